"""`capacity-broker idle`: EC2's count now, and the broker's record of since when."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
import yaml

from broker.apis.capacity_broker import OnDemandCapacityReservation
from broker.apis.ome import CapacityReservation
from broker.commands.crds.install import install
from broker.commands.inventory import inventory
from broker.commands.output import fitting
from broker.kube.client import Client

from .kit import ACCOUNT, REGION, World, claim, files, main, run

QUOTA = {"name": "h100", "resources": [{"name": "nvidia.com/gpu", "nominalQuota": 8}]}
SPEC = {"spec": {"resourceGroups": [{"coveredResources": ["nvidia.com/gpu"], "flavors": [QUOTA]}]}}
SINCE = "2026-11-21T10:02:00Z"
Cluster = tuple[Client, str]


def idle(world: World, kubeconfig: str, *more: str) -> Any:
    return run("idle", "--aws-endpoint", world.endpoint, "--kubeconfig", kubeconfig, *more)


def recorded(client: Client, odcr: str, *, available: int) -> None:
    """As the broker writes it."""
    install(client)
    client.create(OnDemandCapacityReservation.KIND, {"metadata": {"name": odcr}})
    status = {"state": "active", "available": available, "idleSince": SINCE}
    client.apply(
        OnDemandCapacityReservation.KIND,
        {"metadata": {"name": odcr}, "status": status},
        subresource="status",
    )


def decided(client: Client, odcr: str) -> None:
    """The report of the broker about an adopted reservation."""
    body = {
        "metadata": {"name": "training", "namespace": "default"},
        "status": {"cloudReservations": [{"id": odcr}]},
    }
    client.apply(CapacityReservation.KIND, body, subresource="status")


@pytest.mark.covers("CAP-10")
def test_idle_slots_with_cost_owner_and_since(world: World, cluster: Cluster) -> None:
    client, kubeconfig = cluster
    recorded(client, world.odcr, available=2)
    tags = {"capacity-broker.io/reservation": "ml/training", "capacity-broker.io/flavor": "h100"}
    world.ec2.create_tags(Resources=[world.odcr], Tags=[{"Key": k, "Value": v} for k, v in tags.items()])
    result = idle(world, kubeconfig, "-o", "json")
    assert result.exit_code == 0, result.output
    (row,) = json.loads(result.stdout)
    assert (row["id"], row["idle"], row["total"], row["since"]) == (world.odcr, 2, 2, SINCE)
    assert (row["reservation"], row["flavor"]) == ("ml/training", "h100")
    hourly = row["usd_hour"]
    assert hourly > 0

    head, line, total = idle(world, kubeconfig).stdout.splitlines()
    assert head.split() == ["ID", "TYPE", "ZONE", "IDLE", "$/H", "FOR", "OWNER", "FLAVOR"]
    assert re.match(r"\d+[smhd] ", line[head.index("FOR") :]), "aligned"
    assert re.search(rf" 2/2 +{hourly:.2f} ", line)
    assert total == f"{ACCOUNT}, {REGION}: 2 of 2 slots idle in 1 reservation; {hourly:.2f} $/h"


def test_both_commands_and_all_formats_have_the_same_keys(world: World, cluster: Cluster) -> None:
    kubeconfig = cluster[1]
    options = ("--aws-endpoint", world.endpoint, "--kubeconfig", kubeconfig, "-o")
    (first,) = json.loads(run("idle", *options, "json").stdout)
    (second,) = json.loads(run("inventory", *options, "json").stdout)
    (third,) = yaml.safe_load(run("inventory", *options, "yaml").stdout)
    assert first == second == third
    shown = {*inventory.COLUMNS, *inventory.IDLE_COLUMNS} - {"free_of", "idle_of", "lent_text"} - {*first}
    assert shown == {"owner"}


def owner(world: World, kubeconfig: str) -> str:
    """The column OWNER of the only reservation."""
    options = ("--aws-endpoint", world.endpoint, "--kubeconfig", kubeconfig)
    head, line, _total = run("inventory", *options).stdout.splitlines()
    start, end = head.index("OWNER"), head.index("END")
    return line[start:end].strip()


def test_reservation_shared_by_another_account_has_that_account_as_its_owner(
    world: World, cluster: Cluster
) -> None:
    _client, kubeconfig = cluster
    world.ec2.cancel_capacity_reservation(CapacityReservationId=world.odcr)
    shared = {
        "InstanceType": "p5.48xlarge",
        "InstancePlatform": "Linux/UNIX",
        "AvailabilityZone": "us-east-1a",
        "InstanceCount": 1,
        "owner_id": "999988887777",
    }
    body = json.dumps(shared).encode()
    with urlopen(Request(f"{world.endpoint}/moto-api/odcr/reservations", data=body, method="POST")) as answer:
        assert answer.status == 200
    options = ("--aws-endpoint", world.endpoint, "--kubeconfig", kubeconfig)
    for command in ("inventory", "idle"):
        assert "account 999988887777" in run(command, *options).stdout
    (row,) = (row for row in json.loads(run("inventory", *options, "-o", "json").stdout) if row["free"])
    assert (row["shared_by"], row["reservation"]) == ("999988887777", "")


def test_an_owner_is_a_reservation_by_tag_or_annotation_or_terraform_or_none(
    world: World, cluster: Cluster
) -> None:
    client, kubeconfig = cluster
    install(client)
    assert owner(world, kubeconfig) == "none"
    world.ec2.create_tags(Resources=[world.odcr], Tags=[{"Key": "ManagedBy", "Value": "terraform"}])
    assert owner(world, kubeconfig) == "Terraform"
    noted = {"capacity-broker.io/reservation-ids": world.odcr}
    meta = {"name": "training", "namespace": "default", "annotations": noted}
    client.create(CapacityReservation.KIND, {"metadata": meta, **SPEC})
    assert owner(world, kubeconfig) == "Terraform", "the broker has not adopted it"
    decided(client, world.odcr)
    client.create(CapacityReservation.KIND, {"metadata": {**meta, "name": "other"}, **SPEC})
    assert owner(world, kubeconfig) == "default/training"


def test_a_narrow_terminal_loses_the_columns_that_matter_least() -> None:
    row = {"id": "cr-0123456789abcdef0", "kind": "default", "owner": "vision/gpus"}
    columns = {"id": "ID", "owner": "OWNER", "kind": "KIND"}
    for width, kept in ((42, ["id", "owner", "kind"]), (41, ["id", "owner"]), (10, ["id", "owner"])):
        assert [*fitting([row], columns=columns, extra=("kind",), width=width)] == kept


def test_idle_slots_beyond_the_brokers_record_have_an_unknown_start(world: World, cluster: Cluster) -> None:
    client, kubeconfig = cluster
    recorded(client, world.odcr, available=1)
    (row,) = json.loads(idle(world, kubeconfig, "-o", "json").stdout)
    assert row["since"] is None
    assert "unknown" in idle(world, kubeconfig).stdout


def test_slots_kept_for_a_deleted_reservation_are_marked(world: World, cluster: Cluster) -> None:
    client, kubeconfig = cluster
    recorded(client, world.odcr, available=2)
    install(client)
    tag = {"Key": "capacity-broker.io/reservation", "Value": "default/training"}
    world.ec2.create_tags(Resources=[world.odcr], Tags=[tag])
    (row,) = json.loads(idle(world, kubeconfig, "-o", "json").stdout)
    assert (row["reservation"], row["reservation_exists"]) == ("default/training", False)
    assert "default/training (not in this cluster)" in idle(world, kubeconfig).stdout

    client.create(
        CapacityReservation.KIND, {"metadata": {"name": "training", "namespace": "default"}, **SPEC}
    )
    (row,) = json.loads(idle(world, kubeconfig, "-o", "json").stdout)
    assert (row["reservation"], row["reservation_exists"]) == ("default/training", True)


def test_a_reservation_of_another_cluster_is_shown_as_that_ones(world: World, cluster: Cluster) -> None:
    client, kubeconfig = cluster
    install(client)
    meta = {"name": "training", "namespace": "default"}
    client.create(CapacityReservation.KIND, {"metadata": meta, **SPEC})
    tags = {"reservation": "default/training", "cluster": "green", "managed-by": "capacity-broker"}
    marked = [{"Key": f"capacity-broker.io/{key}", "Value": value} for key, value in tags.items()]
    world.ec2.create_tags(Resources=[world.odcr], Tags=marked)

    for options, other, exists, shown in (
        (("--cluster-name", "green"), "", True, "default/training"),
        (("--cluster-name", "blue"), "green", None, "default/training (cluster green)"),
        ((), "green", None, "default/training (cluster green)"),  # it may be another's
    ):
        (row,) = json.loads(idle(world, kubeconfig, *options, "-o", "json").stdout)
        assert (row["reservation"], row["other_cluster"], row["reservation_exists"]) == (
            "default/training",
            other,
            exists,
        )
        assert re.search(rf" {re.escape(shown)} *$", idle(world, kubeconfig, *options).stdout.splitlines()[1])

    noted = {"capacity-broker.io/reservation-ids": world.odcr}
    client.apply(CapacityReservation.KIND, {"metadata": {**meta, "annotations": noted}, **SPEC})
    decided(client, world.odcr)
    (row,) = json.loads(idle(world, kubeconfig, "--cluster-name", "blue", "-o", "json").stdout)
    assert (row["other_cluster"], row["reservation_exists"]) == ("", True), (
        "adopted by the reservation that names it here"
    )


def test_without_a_cluster_slots_are_listed_with_unknown_fields(world: World) -> None:
    result = run("idle", "--aws-endpoint", world.endpoint, "-o", "yaml")
    assert result.exit_code == 0
    assert f"id: {world.odcr}" in result.stdout
    assert "since: null" in result.stdout
    assert "owners are read from tags alone, and idle times are unknown" in result.stderr


@pytest.mark.parametrize("command", ["idle", "inventory", "plan -f {file}"])
@pytest.mark.parametrize(
    ("option", "variables", "message"),
    [
        ("--kubeconfig {missing}", {}, "kubeconfig '{missing}': there is no such file"),
        ("", {"KUBECONFIG": "{missing}"}, "kubeconfig '{missing}': there is no such file"),
        ("", {"KUBECONFIG": "{missing}:{missing}.2"}, "there is no such file"),
        ("", {"KUBECONFIG": "{file}"}, "kubeconfig '{file}': "),
        ("--context prod", {}, "kubeconfig '{home}/.kube/config', context 'prod': "),
    ],
)
def test_named_kubeconfig_that_cannot_be_read_is_an_error(
    world: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    option: str,
    variables: dict[str, str],
    message: str,
) -> None:
    file = files(tmp_path, claim("c-0"))
    home = tmp_path / "home"
    (home / ".kube").mkdir(parents=True)
    (home / ".kube" / "config").write_text("{}")
    monkeypatch.setenv("HOME", str(home))
    where = {"missing": tmp_path / "nope", "file": file, "home": home}
    for name, value in variables.items():
        monkeypatch.setenv(name, value.format(**where))
    arguments = f"{command} {option}".format(**where).split()
    assert main(*arguments, "--aws-endpoint", world.endpoint) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert message.format(**where) in printed.err
    assert len(printed.err.splitlines()) == 1


def test_absence_of_idle_slots_is_reported(world: World, cluster: Cluster) -> None:
    world.ec2.cancel_capacity_reservation(CapacityReservationId=world.odcr)
    assert idle(world, cluster[1]).stdout == f"{ACCOUNT}, {REGION}: no slot is idle\n"
    assert json.loads(idle(world, cluster[1], "-o", "json").stdout) == []
