"""Pods that required affinity keeps together get one domain that has machines for all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from broker.capacity.full_slots import full_ids
from broker.placement.packing_model import MachineOption, PendingPod
from broker.placement.packing_reasons import NO_ROOM, SPREAD
from broker.placement.packing_state import node_of
from broker.placement.snapshot import PlacementSnapshot
from tests.unit.placement.builders import HOST, ZONE, pod
from tests.unit.placement.packing import bins, many, option, pack, pending, problems

pytestmark = pytest.mark.covers("FLT-30")

RESERVATION = "karpenter.k8s.aws/capacity-reservation-id"


def near(key: str = ZONE, to: str = "train", app: str = "train") -> dict[str, Any]:
    """A pod's label, and its affinity to pods with another, in one domain of a label of nodes."""
    term = {"topologyKey": key, "labelSelector": {"matchLabels": {"app": to}}}
    affinity = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    return {"labels": {"app": app}, "affinity": affinity}


def slots(counts: Mapping[str, int], **more: Any) -> tuple[list[MachineOption], dict[str, int]]:
    """A reservation in each zone, by the zone's last letter, and its free slots."""
    options = [
        option(zone=f"us-east-1{zone[0]}", source=f"cr-{zone}", labels={RESERVATION: f"cr-{zone}"}, **more)
        for zone in counts
    ]
    return options, {f"cr-{zone}": count for zone, count in counts.items()}


CASES: dict[str, Callable[[], list[PendingPod]]] = {
    "alike": lambda: many(2, cpu="1500m", **near()),
    "gang": lambda: many(2, cpu="1500m", gang="train", **near()),
    "leader and workers": lambda: [
        pending("leader", cpu="1500m", labels={"app": "leader"}),
        pending("worker", cpu="1500m", **near(to="leader", app="worker")),
    ],
    "worker named first": lambda: [
        pending("a-worker", cpu="1500m", priority=1, **near(to="leader", app="worker")),
        pending("leader", cpu="1500m", priority=1, labels={"app": "leader"}),
    ],
    "of unlike size": lambda: [pending("a", cpu="1500m", **near()), pending("b", cpu="1600m", **near())],
    "of unlike priority": lambda: [
        pending("a", cpu="1500m", **near()),
        pending("b", cpu="1500m", priority=5, **near()),
    ],
}


@pytest.mark.parametrize("pods", CASES.values(), ids=CASES)
@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")], ids=["one-first", "two-first"])
def test_the_zone_that_holds_all_is_chosen(
    pods: Callable[[], list[PendingPod]], order: tuple[str, str]
) -> None:
    counts = {"a": 1, "b": 2}
    options, room = slots({zone: counts[zone] for zone in order})
    packing = pack(pods(), options, room=room)
    assert not packing.reasons and not problems(packing)
    assert bins(packing) == [("m5.large", "cr-b", 1)] * 2


@pytest.mark.parametrize("gang", ["", "train"])
def test_the_reservation_that_holds_all_is_chosen(gang: str) -> None:
    options, room = slots({"a": 1, "a2": 2, "b": 1})
    packing = pack(many(2, cpu="1500m", gang=gang, **near(RESERVATION)), options, room=room)
    assert bins(packing) == [("m5.large", "cr-a2", 1)] * 2 and not problems(packing)


def test_the_cheapest_zone_that_holds_all_is_chosen() -> None:
    dear = option("dear", zone="us-east-1a", cost=3)
    cheap = option("cheap", zone="us-east-1b", cost=1)
    one_slot, room = slots({"a": 1})
    packing = pack(many(2, cpu="1500m", **near()), [dear, *one_slot, cheap], room=room)
    assert bins(packing) == [("cheap", "us-east-1b", 1)] * 2
    dear = option("dear", zone="us-east-1a", cost=1.5)
    packing = pack(many(2, cpu="1500m", **near()), [dear, *one_slot, cheap], room=room)
    assert bins(packing) == [("dear", "us-east-1a", 1), ("m5.large", "cr-a", 1)]


def test_unlike_machines_are_in_one_zone() -> None:
    """Zone a has the cheaper machine for the driver, and none for the workers."""
    driver = [option("c5", zone=f"us-east-1{zone}", cost=cost) for zone, cost in (("a", 1), ("b", 2))]
    worker = option("p5", zone="us-east-1b", cost=50, room={"nvidia.com/gpu": "8"})
    pods = [
        pending("driver", cpu="1500m", **near()),
        pending("worker", cpu="1", requests={"nvidia.com/gpu": "8"}, **near()),
    ]
    packing = pack(pods, [*driver, worker], room={})
    assert bins(packing) == [("c5", "us-east-1b", 1), ("p5", "us-east-1b", 1)] and not problems(packing)


@pytest.mark.parametrize("gang", ["", "train"])
def test_unlike_machines_of_pools_with_unlike_weights_are_in_one_zone(gang: str) -> None:
    driver = [option("c5", pool="cpu", weight=10, zone=f"us-east-1{zone}") for zone in "ab"]
    worker = option("p5", pool="gpu", zone="us-east-1b", cost=50, room={"nvidia.com/gpu": "8"})
    pods = [
        pending("driver", cpu="1500m", gang=gang, **near()),
        pending("worker", cpu="1", gang=gang, requests={"nvidia.com/gpu": "8"}, **near()),
    ]
    packing = pack(pods, [*driver, worker], room={})
    assert bins(packing) == [("c5", "us-east-1b", 1), ("p5", "us-east-1b", 1)] and not problems(packing)


def test_a_pod_that_must_be_in_a_zone_takes_the_others_there() -> None:
    """As a volume does, which is in one zone."""
    options = [option(zone="us-east-1a", cost=1), option(zone="us-east-1b", cost=2)]
    bound = pending("bound", cpu="1500m", node_selector={ZONE: "us-east-1b"}, **near())
    packing = pack([*many(2, cpu="1500m", **near()), bound], options, room={})
    assert bins(packing) == [("m5.large", "us-east-1b", 1)] * 3 and not problems(packing)


@pytest.mark.parametrize("gang", ["", "train"])
def test_pods_that_share_a_host_get_a_machine_for_both(gang: str) -> None:
    small, large = option("small", cpu="2", cost=1), option("large", cpu="4", cost=5)
    packing = pack(many(2, cpu="1500m", gang=gang, **near(HOST)), [small, large], room={})
    assert bins(packing) == [("large", "us-east-1a", 2)] and not problems(packing)


def test_pods_near_one_that_shares_their_host_get_a_machine_for_all() -> None:
    small, large = option("small", cpu="2", cost=1), option("large", cpu="8", cost=5)
    web = many(3, "web", cpu="1500m", **near(HOST, to="cache", app="web"))
    packing = pack([*web, pending("cache", cpu="1", labels={"app": "cache"})], [small, large], room={})
    assert bins(packing) == [("large", "us-east-1a", 4)] and not problems(packing)


def test_a_pair_on_one_host_is_in_the_zone_of_the_pod_near_it() -> None:
    """Zone a has the cheaper machine for the pair, and none for the third pod."""
    pair = many(2, "pair", cpu="1500m", **near(HOST, to="pair", app="pair"))
    third = pending("third", cpu="100m", node_selector={"disk": "fast"}, **near(ZONE, to="pair", app="third"))
    large = [
        option("large", zone=f"us-east-1{zone}", cpu="4", cost=cost) for zone, cost in (("a", 1), ("b", 2))
    ]
    fast = option("fast", zone="us-east-1b", cost=9, labels={"disk": "fast"})
    packing = pack([*pair, third], [*large, fast], room={})
    assert bins(packing) == [("fast", "us-east-1b", 1), ("large", "us-east-1b", 2)] and not problems(packing)


def test_as_many_as_one_zone_holds_get_machines_if_none_holds_all() -> None:
    options, room = slots({"a": 1, "b": 2})
    packing = pack(many(3, cpu="1500m", **near()), options, room=room)
    assert bins(packing) == [("m5.large", "cr-b", 1)] * 2 and not problems(packing)
    (reason,) = packing.reasons.values()
    assert reason == (
        "affinity keeps 3 pods in one domain of topology.kubernetes.io/zone, and none has machines for all "
        "of them: us-east-1b has them for 2"
    )


def test_a_gang_that_no_zone_holds_gets_no_machine() -> None:
    options, room = slots({"a": 1, "b": 1})
    packing = pack(many(2, cpu="1500m", gang="train", **near()), options, room=room)
    assert not packing.bins and len(packing.reasons) == 2
    assert all("none has machines for all of them" in reason for reason in packing.reasons.values())


def test_the_zone_of_pods_that_run_is_kept() -> None:
    running = pod("running", **near(), requests={"cpu": "1"})
    node = option("old", zone="us-east-1a").node
    snapshot = PlacementSnapshot().with_node(node).with_pod(running, node.name)
    options, room = slots({"a": 2, "b": 3})
    packing = pack(many(2, cpu="1500m", **near()), options, room=room, snapshot=snapshot)
    assert bins(packing) == [("m5.large", "cr-a", 1)] * 2


def test_units_apart_take_their_own_zones() -> None:
    options, room = slots({"a": 2, "b": 2})
    pods = [
        *many(2, "x", cpu="1500m", **near(to="x", app="x")),
        *many(2, "y", cpu="1500m", **near(to="y", app="y")),
    ]
    packing = pack(pods, options, room=room)
    assert not packing.reasons and not problems(packing) and len(packing.bins) == 4


def test_a_unit_of_higher_priority_takes_the_zone_that_both_need() -> None:
    options, room = slots({"a": 1, "b": 2})
    low = many(2, "low", cpu="1500m", **near(to="low", app="low"))
    high = many(2, "high", cpu="1500m", priority=5, **near(to="high", app="high"))
    packing = pack([*low, *high], options, room=room)
    assert [p.key for item in packing.bins for p in item.pods if item.option.source == "cr-b"] == [
        "default/high-0",
        "default/high-1",
    ]


def apart(app: str) -> dict[str, Any]:
    """Anti-affinity to pods with the label, by host name."""
    term = {"topologyKey": HOST, "labelSelector": {"matchLabels": {"app": app}}}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


@pytest.mark.parametrize("gang", ["", "train"])
def test_pairs_that_keep_apart_get_a_machine_each(gang: str) -> None:
    """A web pod beside each cache, as in Kubernetes' own example."""
    small, large = option("small", cpu="2", cost=1), option("large", cpu="4", cost=5)
    beside = near(HOST, to="cache", app="web")
    beside["affinity"] |= apart("web")
    web = many(3, "web", cpu="1500m", gang=gang, **beside)
    cache = many(3, "cache", cpu="1500m", gang=gang, labels={"app": "cache"}, affinity=apart("cache"))
    packing = pack([*web, *cache], [small, large], room={})
    assert bins(packing) == [("large", "us-east-1a", 2)] * 3 and not problems(packing)


def test_as_many_as_one_machine_holds_share_it_if_none_holds_all() -> None:
    small, large = option("small", cpu="2", cost=1), option("large", cpu="4", cost=5)
    packing = pack(many(3, cpu="1500m", **near(HOST)), [small, large], room={})
    assert bins(packing) == [("large", "us-east-1a", 2)] and len(packing.reasons) == 1


@pytest.mark.parametrize("gang", ["", "train"])
def test_pods_near_those_that_run_in_two_zones_take_both_if_neither_holds_all(gang: str) -> None:
    snapshot = PlacementSnapshot()
    for zone in "ab":
        node = option("old", zone=f"us-east-1{zone}").node
        running = pod(f"running-{zone}", **near(), requests={"cpu": "2"})
        snapshot = snapshot.with_node(node).with_pod(running, node.name)
    for counts, zones in ({"a": 1, "b": 1}, ["cr-a", "cr-b"]), ({"a": 1, "b": 2}, ["cr-b", "cr-b"]):
        options, room = slots(counts)
        packing = pack(many(2, cpu="1500m", gang=gang, **near()), options, room=room, snapshot=snapshot)
        assert [source for _, source, _ in bins(packing)] == zones and not problems(packing, snapshot)


@pytest.mark.parametrize("others", [{}, {"priority": 5}, {"gang": "other"}], ids=str)
@pytest.mark.parametrize("gang", ["", "train"])
def test_a_pod_that_may_be_anywhere_leaves_the_zone_that_holds_all(gang: str, others: dict[str, Any]) -> None:
    for counts in {"a": 2, "b": 1}, {"a": 1, "b": 2}:
        options, room = slots(counts)
        pods = [pending("other", cpu="1500m", **others), *many(2, cpu="1500m", gang=gang, **near())]
        packing = pack(pods, options, room=room)
        assert not packing.reasons and not problems(packing) and len(packing.bins) == 3


def test_a_unit_with_one_zone_comes_before_one_with_two() -> None:
    options, room = slots({"a": 2, "b": 2})
    free = many(2, "free", cpu="1500m", **near(to="free", app="free"))
    pinned = many(2, "pin", cpu="1500m", node_selector={ZONE: "us-east-1a"}, **near(to="pin", app="pin"))
    packing = pack([*free, *pinned], options, room=room)
    assert not packing.reasons and not problems(packing) and len(packing.bins) == 4


def test_a_unit_of_more_pods_comes_before_one_of_fewer() -> None:
    options, room = slots({"a": 3, "b": 2})
    few = many(2, "few", cpu="1500m", **near(to="few", app="few"))
    most = many(3, "most", cpu="1500m", **near(to="most", app="most"))
    packing = pack([*few, *most], options, room=room)
    assert not packing.reasons and not problems(packing) and len(packing.bins) == 5


def to_any_leader(**more: Any) -> list[PendingPod]:
    """Two leaders, and a worker of each that may be beside either."""
    leaders = many(2, "leader", cpu="1500m", labels={"app": "leader"}, **more)
    return [*leaders, *many(2, "worker", cpu="1500m", **near(to="leader", app="worker"), **more)]


@pytest.mark.parametrize("gang", ["", "train"])
@pytest.mark.parametrize("counts", [{"a": 2, "b": 2}, {"a": 3, "b": 1}, {"a": 4, "b": 0}])
def test_leaders_with_workers_of_their_own_may_be_in_two_zones(gang: str, counts: Mapping[str, int]) -> None:
    options, room = slots(counts)
    packing = pack(to_any_leader(gang=gang), options, room=room)
    assert not packing.reasons and not problems(packing)
    assert Counter(source for _, source, _ in bins(packing)) == +Counter(
        {f"cr-{zone}": count for zone, count in counts.items()}
    )


def existing(*rooms: tuple[str, str]) -> PlacementSnapshot:
    """A node in each of these zones, with so much CPU."""
    nodes = [
        node_of(option(zone=f"us-east-1{zone}", cpu=cpu), f"node-{zone}-{place}")
        for place, (zone, cpu) in enumerate(rooms)
    ]
    return PlacementSnapshot.of(nodes, ())


@pytest.mark.parametrize("gang", ["", "train"])
@pytest.mark.parametrize("pods", ["alike", "leader and workers", "of unlike size"])
def test_existing_nodes_count_with_the_machines_of_their_zone(gang: str, pods: str) -> None:
    options, room = slots({"a": 1, "b": 1})
    unit = [replace(item, gang=gang) for item in CASES[pods]()]
    packing = pack(unit, options, room=room, snapshot=existing(("c", "2"), ("b", "2")))
    assert not packing.reasons
    assert [*packing.taken.values()] == ["node-b-1"] and bins(packing) == [("m5.large", "cr-b", 1)]


def test_a_unit_that_fits_on_existing_nodes_needs_no_machine() -> None:
    for options in [], slots({"a": 2})[0]:
        packing = pack(
            CASES["leader and workers"](),
            options,
            room={"cr-a": 2},
            snapshot=existing(("b", "2"), ("b", "2")),
        )
        assert not packing.reasons and not packing.bins and len(packing.taken) == 2


def test_pods_of_one_host_share_an_existing_node() -> None:
    options, room = slots({"a": 1})
    packing = pack(many(2, **near(HOST)), options, room=room, snapshot=existing(("a", "1"), ("b", "2")))
    assert {*packing.taken.values()} == {"node-b-1"} and not packing.bins


def test_a_gang_that_no_zone_holds_takes_no_existing_node() -> None:
    options, room = slots({"a": 1})
    gang = many(2, cpu="1500m", gang="train", **near())
    packing = pack(gang, options, room=room, snapshot=existing(("b", "2")))
    assert not packing.taken and not packing.bins and len(packing.reasons) == 2


def test_a_zone_that_is_only_full_is_no_reason_for_ever() -> None:
    """The pod must be beside one that runs in a zone without a free slot; another zone has one."""
    snapshot = existing(("a", "1")).with_pod(pod("runs", node="node-a-0", **near()), "node-a-0")
    options, room = slots({"a": 0, "b": 1})
    packing = pack(many(1, cpu="1500m", **near()), options, room=room, snapshot=snapshot)
    assert packing.reasons["default/p-0"] == NO_ROOM
    why = packing.by_pool["default/p-0"]["default"].text
    assert "no free slot is left for it in cr-a" in why and full_ids(why) == ("cr-a",)
    packing = pack(many(1, cpu="1500m", **near()), options[1:], room=room, snapshot=snapshot)
    assert packing.reasons["default/p-0"] == f"{SPREAD}: podAffinity on {ZONE}"


def test_pods_of_a_broken_gang_wait_for_each_other() -> None:
    options, room = slots({"a": 1, "b": 1})
    pods = [replace(item, gang="train") for item in CASES["leader and workers"]()]
    alone = pending("z", cpu="1500m", gang="train", labels={"app": "z"})
    packing = pack([*pods, alone], options, room=room)
    assert not any(SPREAD in text for text in packing.reasons.values())
