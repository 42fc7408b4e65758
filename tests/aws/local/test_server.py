"""Local AWS as a program and as an object: it starts, prints its address, serves every service, and ends."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from typing import Any

import boto3
import pytest

from local.aws import Control, LocalAws
from tests.aws.local.kit import ONCE, REGION, TYPE, ZONE

COMMAND = [sys.executable, "-m", "local.aws"]


@pytest.fixture
def program() -> Iterator[tuple[subprocess.Popen[str], str]]:
    process = subprocess.Popen([*COMMAND, "--port", "0"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    yield process, line.strip().rpartition("=")[2]
    if process.poll() is None:
        process.kill()
    process.wait()
    process.stdout.close()


def client(service: str, endpoint: str) -> Any:
    session: Any = boto3.Session(aws_access_key_id="a", aws_secret_access_key="b", region_name=REGION)
    return session.client(service, endpoint_url=endpoint, config=ONCE)


def test_program_serves_until_it_is_stopped(program: tuple[subprocess.Popen[str], str]) -> None:
    process, endpoint = program
    assert endpoint.startswith("http://127.0.0.1:")
    reply = client("ec2", endpoint).create_capacity_reservation(
        InstanceType=TYPE, InstancePlatform="Linux/UNIX", AvailabilityZone=ZONE, InstanceCount=1
    )
    assert reply["CapacityReservation"]["State"] == "active"
    assert client("sts", endpoint).get_caller_identity()["Account"] == "123456789012"
    assert client("resource-groups", endpoint).list_groups()["Groups"] == []
    assert Control(endpoint).calls()["CreateCapacityReservation"] == 1
    with urllib.request.urlopen(f"{endpoint}/moto-api/odcr/calls", timeout=30) as answer:
        counts = json.load(answer)
    assert counts == {"CreateCapacityReservation": 1, "GetCallerIdentity": 1, "ListGroups": 1}
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 0


def test_taken_port_is_reported_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            [*COMMAND, "--port", str(port)], capture_output=True, text=True, timeout=120, check=False
        )
    assert done.returncode == 1
    assert f"--port {port}" in done.stderr
    assert "0 for any" in done.stderr


def test_reset_drops_resources_and_knobs() -> None:
    with LocalAws() as aws:
        ec2 = client("ec2", aws.endpoint)
        ec2.create_capacity_reservation(
            InstanceType=TYPE, InstancePlatform="Linux/UNIX", AvailabilityZone=ZONE, InstanceCount=1
        )
        aws.control.fault(action="DescribeCapacityReservations", code="InternalError", times=-1)
        aws.control.freeze()
        aws.reset()
        assert ec2.describe_capacity_reservations()["CapacityReservations"] == []
        assert aws.control.state()["frozen"] is False
        assert aws.control.calls() == {"DescribeCapacityReservations": 1}


def test_a_closed_server_is_gone() -> None:
    with LocalAws() as aws:
        endpoint = aws.endpoint
    with pytest.raises(OSError):
        urllib.request.urlopen(endpoint, timeout=5)


def test_tags_of_reservations_are_found_by_the_tagging_api() -> None:
    with LocalAws() as aws:
        aws.reset()
        odcr = client("ec2", aws.endpoint).create_capacity_reservation(
            InstanceType=TYPE,
            InstancePlatform="Linux/UNIX",
            AvailabilityZone=ZONE,
            InstanceCount=1,
            TagSpecifications=[
                {"ResourceType": "capacity-reservation", "Tags": [{"Key": "team", "Value": "ml"}]}
            ],
        )["CapacityReservation"]
        mappings = client("resourcegroupstaggingapi", aws.endpoint).get_resources(
            TagFilters=[{"Key": "team", "Values": ["ml"]}]
        )["ResourceTagMappingList"]
        assert [entry["ResourceARN"] for entry in mappings] == [odcr["CapacityReservationArn"]]
