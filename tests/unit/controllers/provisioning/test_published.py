"""EC2's types and pods' reports in ConfigMaps: written if they change, read back, and never a crash."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from broker.apis.core import ConfigMap
from broker.controllers.provisioning.published import (
    EVERY,
    REPORTS,
    TYPES,
    PublishedReports,
    PublishedTypes,
    read_reports,
    read_types,
)
from broker.kube import published
from broker.kube.client import Client
from broker.kube.errors import NotFound
from broker.kube.identity import NAMESPACE
from broker.kube.published import encode
from broker.oncall.pod_reports import PodReport
from local.in_process import InProcessTransport
from local.kube import Cluster
from providers.model import Gpu, InstanceType
from tests.support.clock import FakeClock

H100 = Gpu(name="H100", manufacturer="NVIDIA", count=8, memory_mib=81920)
P5 = InstanceType(
    name="p5.48xlarge", vcpus=192, memory_mib=2097152, gpus=(H100,), zones=frozenset({"a", "b"})
)
NO_VOLUME = PodReport('persistentvolumeclaim "data" not found', held=True)
FULL = PodReport("NodePool gpu: cr-1 is full")
ROOM = PodReport("", room="team-7f3a")


@pytest.fixture
def client() -> Client:
    return Client(InProcessTransport(Cluster()))


def version(client: Client, name: str) -> str:
    return str(client.get(ConfigMap.KIND, name, namespace=NAMESPACE)["metadata"]["resourceVersion"])


@pytest.mark.covers("ONC-02")
def test_types_are_read_back_and_written_only_if_they_change(client: Client) -> None:
    assert read_types(client) == {}
    PublishedTypes(client).publish({P5.name: replace(P5, on_demand_price=98.3)})
    assert read_types(client) == {P5.name: P5}
    before, next_leader = version(client, TYPES), PublishedTypes(client)
    next_leader.publish({P5.name: replace(P5, on_demand_price=55.0)})
    assert version(client, TYPES) == before
    next_leader.publish({P5.name: replace(P5, vcpus=96)})
    assert read_types(client)[P5.name].vcpus == 96


@pytest.mark.covers("ONC-02", "FLT-66")
def test_reports_are_read_back_and_written_only_if_they_change(client: Client) -> None:
    assert read_reports(client) == {}
    known = {"u-1": FULL, "u-2": NO_VOLUME, "u-3": FULL, "u-4": ROOM}
    clock = FakeClock()
    PublishedReports(client, clock).publish(known)
    assert read_reports(client) == known
    before, next_leader = version(client, REPORTS), PublishedReports(client, clock)
    for same in (known, dict(reversed(known.items()))):
        next_leader.publish(same)
        clock.advance(EVERY)
    assert version(client, REPORTS) == before
    next_leader.publish({"u-1": FULL})
    assert read_reports(client) == {"u-1": FULL}
    clock.advance(EVERY)
    next_leader.publish({})
    assert read_reports(client) == {}


def test_no_report_makes_no_config_map(client: Client) -> None:
    PublishedReports(client, FakeClock()).publish({})
    with pytest.raises(NotFound):
        version(client, REPORTS)


def test_reports_that_change_with_every_run_are_written_at_intervals(client: Client) -> None:
    clock, versions = FakeClock(), set[str]()
    reports = PublishedReports(client, clock)
    for second in range(int(3 * EVERY)):
        reports.publish({f"u-{second}": FULL})
        versions.add(version(client, REPORTS))
        clock.advance(1)
    assert len(versions) == 3
    reports.publish({"u": FULL})
    assert read_reports(client) == {"u": FULL}


def test_more_reports_than_a_config_map_holds_leave_no_old_one(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    reports = PublishedReports(client, clock)
    reports.publish({"u-1": FULL})
    clock.advance(EVERY)
    with monkeypatch.context() as patch:
        patch.setattr(published, "LARGEST", 100)
        reports.publish({f"u-{number}": PodReport(f"{number * 7919}") for number in range(300)})
    assert read_reports(client) == {}
    clock.advance(EVERY)
    reports.publish({"u-1": FULL})
    assert read_reports(client) == {"u-1": FULL}


@pytest.mark.covers("ONC-02")
@pytest.mark.parametrize("text", ["", "?", "aGVsbG8=", "H4sIAAAAAAAA/4uOBQApu0wNAgAAAA=", "H4sIAAAAAAACAw=="])
@pytest.mark.parametrize(
    ("name", "key", "read"), [(TYPES, "types", read_types), (REPORTS, "reports", read_reports)]
)
def test_text_that_the_broker_cannot_have_written_counts_as_none(
    client: Client, name: str, key: str, read: Callable[[Client], Any], text: str
) -> None:
    client.create(ConfigMap.KIND, {"metadata": {"name": name, "namespace": NAMESPACE}, "data": {key: text}})
    assert read(client) == {}


@pytest.mark.parametrize("value", [1, "text", [1], [["message"]], {"message": []}, [["message", True, 5]]])
@pytest.mark.parametrize(
    ("name", "key", "read"), [(TYPES, "types", read_types), (REPORTS, "reports", read_reports)]
)
def test_value_of_another_form_counts_as_none(
    client: Client, name: str, key: str, read: Callable[[Client], Any], value: Any
) -> None:
    data = {key: encode(value)}
    client.create(ConfigMap.KIND, {"metadata": {"name": name, "namespace": NAMESPACE}, "data": data})
    assert read(client) == {}
