"""The machines that count for a reservation, and the reasons why others do not."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from broker.apis import names
from broker.apis.core import Node
from broker.apis.karpenter import NodeClaim
from broker.capacity.inventory import Inventory
from broker.capacity.matching import expiring
from broker.quota.usage import ReservationKey
from broker.reservations.machines import MachineReader, node_problem, slots
from broker.reservations.ownership import Ownership
from providers.model import Gpu, InstanceType, Odcr

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
P5 = InstanceType(
    name="p5.48xlarge",
    vcpus=192,
    memory_mib=2_097_152,
    gpus=(Gpu(name="H100", manufacturer="NVIDIA", count=8, memory_mib=81_920),),
)
OWNER = ReservationKey("team", "gpus")
LIMIT = timedelta(minutes=10)
GPU = "nvidia.com/gpu"


def node(
    name: str = "n",
    *,
    ready: str = "True",
    labels: Any = None,
    age: timedelta | None = None,
    has: Any = None,
    going: bool = False,
    **spec: Any,
) -> Node:
    times = {"creationTimestamp": (NOW - age).isoformat()} if age is not None else {}
    times |= {"deletionTimestamp": NOW.isoformat()} if going else {}
    return Node.decode(
        {
            "metadata": {"name": name, "labels": labels or {}, **times},
            "spec": spec,
            "status": {"conditions": [{"type": "Ready", "status": ready}], "allocatable": has or {}},
        }
    )


def odcr(total: int = 4, available: int = 4, **more: Any) -> Odcr:
    more = {"id": "cr-1", **more}
    return Odcr(instance_type=P5.name, zone="a", total=total, available=available, **more)


@pytest.mark.covers("OME-029")
@pytest.mark.parametrize(
    ("given", "out"),
    [
        (node(), ""),
        (node(taints=[{"key": "team", "value": "a", "effect": "NoExecute"}]), ""),
        (node(unschedulable=True), "node n is cordoned"),
        (node(ready="False"), "node n is not ready"),
        (node(ready="Unknown"), "node n is not ready"),
        (node(going=True), "node n is being removed"),
        (Node.decode({"metadata": {"name": "n"}}), "node n is not ready"),
    ],
)
def test_a_node_is_out_of_service_if_cordoned_or_not_ready(given: Node, out: str) -> None:
    assert node_problem(given) == out


@pytest.mark.covers("OME-030")
def test_accelerators_of_no_or_several_flavors_are_unattributed() -> None:
    eight = {GPU: "8", "cpu": "1001m", "memory": "1500m"}
    flavors = {"h100": {"sort": "h100"}, "twin": {"sort": "h100"}, "a100": {"sort": "a100"}}
    ended = odcr(id="cr-2", state="expired")
    inventory = Inventory(odcrs={ended.id: ended})
    held = Ownership(
        owner={ended.id: OWNER},
        flavor={ended.id: "h100"},
    )
    nodes = [
        node("a", labels={"sort": "a100"}, has=eight),
        node("b", labels={"sort": "h100"}, has=eight),
        node("c", labels={"sort": "h100"}, has=eight, unschedulable=True),
        node("d", has=eight | {"aws.amazon.com/neuron": "4"}),
        node("e", has={"cpu": "8"}),
        # An instance of an ended reservation still runs: its node's labels name the flavor.
        node("g", labels={"sort": "a100", names.RESERVATION_ID: ended.id}, has=eight),
    ]
    hardware = MachineReader(starting_seconds=LIMIT.total_seconds())
    for _ in range(2):  # the kept results are the same
        result = hardware.read(nodes, [], inventory, held, flavors, {P5.name: P5}, NOW)
        assert [(machine.name, machine.flavor, machine.resources) for machine in result.machines] == [
            ("a", "a100", {GPU: 8, "cpu": 1001, "memory": 1}),
            ("g", "a100", {GPU: 8, "cpu": 1001, "memory": 1}),
        ]
        assert result.unattributed == {
            (GPU, "several flavors"): 16,
            (GPU, "no flavor"): 8,
            ("aws.amazon.com/neuron", "no flavor"): 4,
        }
        assert result.tied == {"h100": ("b", "c"), "twin": ("b", "c")}


def counted(reservation: Odcr, nodes: list[Node], joining: int = 0) -> tuple[int, int, list[str]]:
    """All GPUs, the usable GPUs, and the reasons for the others."""
    machines = list(slots(reservation, "h100", OWNER, P5, nodes, joining, NOW, starting=LIMIT))
    assert {machine.owner for machine in machines} <= {OWNER}
    total = sum(slot.resources["nvidia.com/gpu"] * slot.count for slot in machines)
    usable = sum(
        slot.resources["nvidia.com/gpu"] * slot.count for slot in machines if not slot.out_of_service
    )
    return total, usable, [slot.out_of_service for slot in machines if slot.out_of_service]


STARTING = {names.REGISTERED: "true"}


@pytest.mark.covers("CAP-07")
@pytest.mark.parametrize(
    ("reservation", "nodes", "joining", "usable"),
    [
        (odcr(), [], 0, 32),
        # A launch changes nothing: a slot is taken, its claim waits for the node, the node comes up.
        (odcr(available=3), [], 1, 32),
        (odcr(available=3), [node(ready="False", labels=STARTING)], 0, 32),
        (odcr(available=3), [node()], 0, 32),
        # EC2 has not been described since the node came.
        (odcr(available=4), [node()], 0, 32),
        (odcr(available=3), [node(unschedulable=True)], 0, 24),
        (odcr(available=3), [node(ready="False")], 0, 24),
        (odcr(available=1), [node()], 0, 16),
        (odcr(end=NOW + timedelta(minutes=5)), [], 0, 0),
        (odcr(end=NOW + timedelta(hours=5)), [], 0, 32),
    ],
)
def test_slots_count_as_whole_instances(
    reservation: Odcr, nodes: list[Node], joining: int, usable: int
) -> None:
    total, can, outs = counted(reservation, nodes, joining)
    assert (total, can) == (32, usable)
    assert bool(outs) == (usable < 32)


@pytest.mark.covers("CAP-07")
@pytest.mark.parametrize("state", ["active", "scheduled", "pending", "assessing", "failed"])
def test_only_an_active_reservation_has_slots(state: str) -> None:
    reservation = odcr(state=state)
    held = Ownership(
        odcrs={OWNER: {"h100": (reservation,)}},
        owner={reservation.id: OWNER},
        flavor={reservation.id: "h100"},
    )
    inventory = Inventory(odcrs={reservation.id: reservation})
    hardware = MachineReader(starting_seconds=LIMIT.total_seconds())
    result = hardware.read([], [], inventory, held, {"h100": {}}, {P5.name: P5}, NOW)
    assert sum(machine.count for machine in result.machines if not machine.out_of_service) == (
        4 if state == "active" else 0
    )


@pytest.mark.covers("OME-029")
@pytest.mark.parametrize(
    ("claims", "usable"),
    [
        ([], 24),
        ([{"providerID": "aws:///a/i-1"}], 32),
        ([{}], 24),
        ([{"providerID": "aws:///a/i-1", "nodeName": "n"}], 24),
        ([{"providerID": "aws:///a/i-1", "going": True}], 24),
    ],
)
def test_a_taken_slot_counts_while_its_instance_is_about_to_be_a_node(
    claims: list[dict[str, Any]], usable: int
) -> None:
    reservation = odcr(available=3)
    held = Ownership(
        odcrs={OWNER: {"h100": (reservation,)}},
        owner={reservation.id: OWNER},
        flavor={reservation.id: "h100"},
    )
    node_claims = [
        NodeClaim.decode(
            {
                "metadata": {"name": "c", "labels": {names.RESERVATION_ID: reservation.id}}
                | ({"deletionTimestamp": NOW.isoformat()} if status.pop("going", False) else {}),
                "status": status,
            }
        )
        for status in map(dict, claims)
    ]
    hardware = MachineReader(starting_seconds=LIMIT.total_seconds())
    result = hardware.read(
        [], node_claims, Inventory(odcrs={reservation.id: reservation}), held, {}, {P5.name: P5}, NOW
    )
    assert (
        sum(
            machine.resources[GPU] * machine.count
            for machine in result.machines
            if not machine.out_of_service
        )
        == usable
    )


@pytest.mark.parametrize("joined", ["", "node", "node and claim"])
def test_a_slot_counts_once_while_ec2_does_not_show_whose_instance_it_has(joined: str) -> None:
    reservation = odcr(available=3)
    held = Ownership(owner={reservation.id: OWNER}, flavor={reservation.id: "h100"})
    claim = NodeClaim.decode(
        {
            "metadata": {"name": "c", "annotations": {names.LAUNCHED_INTO: reservation.id}},
            "status": {"providerID": "aws:///a/i-1"}
            | ({"nodeName": "n"} if joined == "node and claim" else {}),
        }
    )
    given = node("n", labels={"sort": "h100"}, has={GPU: "8"}, providerID="aws:///a/i-1")
    nodes = [given] if joined else []
    result = MachineReader(starting_seconds=LIMIT.total_seconds()).read(
        nodes,
        [claim],
        Inventory(odcrs={reservation.id: reservation}),
        held,
        {"h100": {"sort": "h100"}},
        {P5.name: P5},
        NOW,
    )
    assert sum(machine.count for machine in result.machines if not machine.out_of_service) == 4
    assert not [machine for machine in result.machines if machine.out_of_service]


@pytest.mark.parametrize(
    ("ready", "age", "labels", "out"),
    [
        ("False", LIMIT / 2, STARTING, ""),
        ("True", LIMIT / 2, STARTING, ""),
        ("False", LIMIT, STARTING, "node n is not ready"),
        ("True", LIMIT, STARTING, "node n was not initialized within 10 minutes"),
        ("True", LIMIT, STARTING | {names.INITIALIZED: "true"}, ""),
    ],
)
def test_an_uninitialized_node_counts_only_for_a_time(
    ready: str, age: timedelta, labels: dict[str, str], out: str
) -> None:
    reservation = odcr(total=1, available=0)
    (machine,) = slots(
        reservation, "h100", OWNER, P5, [node(ready=ready, age=age, labels=labels)], 0, NOW, starting=LIMIT
    )
    assert machine.out_of_service == out


def test_a_block_is_out_of_service_when_its_nodes_drain_and_others_ten_minutes_before_their_end() -> None:
    soon = NOW + timedelta(minutes=35)
    assert expiring(odcr(reservation_type="capacity-block", end=soon), NOW)
    assert not expiring(odcr(end=soon), NOW)
    assert expiring(odcr(end=NOW + timedelta(minutes=10)), NOW)
    assert not expiring(odcr(), NOW)
