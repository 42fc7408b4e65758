"""Packing: pods share machines, slots come first, and rules between pods hold on new machines."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from broker.apis.core import Taint
from broker.placement import patterns
from broker.placement.packing_model import Drawing, Packing
from broker.placement.packing_reasons import FEW_LEFT, GANG, NO_ROOM, POSTPONED, SPREAD
from broker.placement.sequential import place_on_existing
from tests.support.examples import examples
from tests.unit.placement import builders
from tests.unit.placement.builders import HOST, ZONE, node_affinity, required
from tests.unit.placement.packing import CAPACITY, bins, many, option, pack, pending, problems

A, B, C = "us-east-1a", "us-east-1b", "us-east-1c"
LARGE, XLARGE = option(), option("m5.xlarge", cpu="4", memory="16Gi", cost=2.0)
APP = {"app": "web"}
RESERVED: dict[str, Any] = {"nodeSelector": {CAPACITY: "reserved"}}


def spread(key: str, skew: int = 1) -> dict[str, Any]:
    constraint = {
        "maxSkew": skew,
        "topologyKey": key,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": APP},
    }
    return {"labels": APP, "topologySpreadConstraints": [constraint]}


def near(kind: str, key: str) -> dict[str, Any]:
    term = {"topologyKey": key, "labelSelector": {"matchLabels": APP}}
    return {"labels": APP, "affinity": required(kind, term)}


def packed(*args: Any, **more: Any) -> Packing:
    return pack(*args, timer=time.monotonic, **more)


@pytest.mark.covers("KRP-35")
def test_pods_share_machines() -> None:
    assert bins(packed(many(8, cpu="500m"), [LARGE], room={})) == [("m5.large", A, 4)] * 2


@pytest.mark.covers("KRP-35")
def test_free_slots_are_filled_before_anything_is_bought() -> None:
    slots = option("m5.xlarge", cpu="4", memory="16Gi", cost=2.0, source="cr-1")
    result = packed(many(6), [LARGE, XLARGE, slots], room={"cr-1": 1})
    assert bins(result) == [("m5.large", A, 2), ("m5.xlarge", "cr-1", 4)]


@pytest.mark.covers("KRP-35")
@pytest.mark.parametrize("rules", [{}, spread(HOST)])
@pytest.mark.parametrize(("slots", "joined"), [(2, 1), (1, 2), (0, 3)])
def test_pods_that_can_have_a_machine_now_join_none_that_waits(
    slots: int, joined: int, rules: dict[str, Any]
) -> None:
    """Those without another machine do."""
    lent = option("p5.big", cpu="64", memory="64Gi", source="cr-1", cost=50.0, waits=True)
    slot = option("m5.large", cpu="1", source="cr-2")
    large = pending("large", cpu="32")
    result = packed([large, *many(2, **rules)], [lent, slot], room={"cr-1": 1, "cr-2": slots})
    assert result.reasons == {}
    assert bins(result) == [*[("m5.large", "cr-2", 1)] * slots, ("p5.big", "cr-1", joined)]


@pytest.mark.covers("KRP-35")
def test_pods_that_need_not_wait_take_no_limit_from_those_that_do() -> None:
    lent = option("p5.big", cpu="64", memory="64Gi", source="cr-1", cost=50.0, waits=True)
    pods = [pending("large", cpu="32", priority=1), *many(2)]
    limits = {"default": {"cpu": 65_000}}
    result = packed(pods, [lent, option(source="cr-2")], room={"cr-1": 1, "cr-2": 1}, limits=limits)
    assert result.reasons == {} and bins(result) == [("p5.big", "cr-1", 3)]


@pytest.mark.covers("KRP-35")
def test_pods_are_packed_together_and_not_one_after_another() -> None:
    """First fit decreasing needs three machines of ten cores: 4 and 4, 3 three times, and 3."""
    pods = [*many(2, "four", cpu="4"), *many(4, "three", cpu="3")]
    slot = option("c5.big", cpu="10", memory="64Gi", source="cr-1")
    result = packed(pods, [slot], room={"cr-1": 2})
    assert result.reasons == {} and len(result.bins) == 2


@pytest.mark.covers("FLT-35")
@pytest.mark.parametrize(
    ("rules", "text"),
    [
        (spread("rack"), ": no node has the label rack, which one of them names as its topologyKey"),
        (
            near("podAffinity", "rack"),
            ": no node has the label rack, which one of them names as its topologyKey",
        ),
        (
            {**near("podAffinity", ZONE), "labels": {"app": "other"}},
            ": no pod is there that its pod affinity names (app In [web])",
        ),
    ],
    ids=["spread", "affinity", "nobody"],
)
def test_rule_about_other_pods_that_nothing_meets_is_named(rules: dict[str, Any], text: str) -> None:
    result = packed([pending("p", **rules)], [LARGE], room={})
    assert result.reasons == {"default/p": f"{SPREAD}{text}"}


@pytest.mark.covers("KRP-35")
def test_the_cheapest_machines_are_opened() -> None:
    dear = option("c5.large", memory="4Gi", cost=3.0)
    assert bins(packed(many(2), [dear, LARGE], room={})) == [("m5.large", A, 2)]


@pytest.mark.covers("FLT-05")
@pytest.mark.parametrize("lost", [{"cpu": "64"}, {"cpu": "2", **RESERVED}])
def test_no_second_machine_is_opened_for_pods_of_lower_priority_that_fit_the_first(lost: Any) -> None:
    """Also if a pod gets none, since no type holds it, or another has the slot."""
    slot, plain = option("m5.large", source="cr-1"), option("m5.large")
    pods = [
        pending("high", cpu="1", priority=9, **RESERVED),
        pending("low", cpu="1"),
        pending("lost", **lost),
    ]
    packing = packed(pods, [slot, plain], room={"cr-1": 1})
    assert [[pod.info.name for pod in item.pods] for item in packing.bins] == [["high", "low"]]
    assert packing.reasons.keys() == {"default/lost"}


@pytest.mark.covers("KRP-35")
def test_pods_of_higher_priority_get_the_last_slots() -> None:
    slot = option(source="cr-1")
    result = packed(
        [*many(2, "low", cpu="2"), *many(2, "high", cpu="2", priority=9)], [slot], room={"cr-1": 2}
    )
    assert sorted(pod.key for item in result.bins for pod in item.pods) == [
        "default/high-0",
        "default/high-1",
    ]
    assert result.reasons == dict.fromkeys(["default/low-0", "default/low-1"], NO_ROOM)


@pytest.mark.covers("KRP-35")
def test_pool_of_more_weight_serves_first() -> None:
    heavy = option(pool="heavy", cost=9.0, weight=10, taints=(Taint(key="t", effect="NoSchedule"),))
    tolerant = pending("t", cpu="2", tolerations=[{"operator": "Exists"}])
    result = packed([tolerant, pending("p", cpu="2")], [LARGE, heavy], room={})
    assert {item.pods[0].key: item.option.pool for item in result.bins} == {
        "default/t": "heavy",
        "default/p": "default",
    }


@pytest.mark.covers("KRP-35")
def test_limits_of_a_pool_hold() -> None:
    result = packed(many(3, cpu="2"), [LARGE], room={}, limits={"default": {"cpu": 4000}})
    assert len(result.bins) == 2 and list(result.reasons.values()) == [NO_ROOM]


@pytest.mark.covers("KRP-35")
@pytest.mark.parametrize(
    ("pod", "text"),
    [
        (
            {"cpu": "9"},
            "NodePool default: 1 instance type has too little cpu (2 for pods at most, the pod requests 9)",
        ),
        (
            {"nodeSelector": {"disk": "ssd"}},
            "NodePool default: 1 instance type does not match the pod's node selector (disk In [ssd])",
        ),
        ({"requests": {"nvidia.com/gpu": "1"}}, "NodePool default: 1 instance type has no nvidia.com/gpu"),
        (
            {
                "affinity": node_affinity(
                    {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}
                )
            },
            "the pod names nodes, and a new node cannot be one of them",
        ),
    ],
)
def test_pod_that_fits_no_new_machine_gets_none_and_the_reason(pod: dict[str, Any], text: str) -> None:
    result = packed([pending(**pod)], [LARGE], room={})
    assert result.bins == () and result.reasons == {"default/p": text}


@pytest.mark.covers("KRP-35")
def test_taints_keep_pods_off() -> None:
    tainted = option(taints=(Taint(key="gpu", effect="NoSchedule"),))
    result = packed([pending()], [tainted], room={})
    reason = "NodePool default: 1 instance type has a taint that the pod does not tolerate (gpu:NoSchedule)"
    assert result.reasons == {"default/p": reason}


@pytest.mark.covers("KRP-35")
def test_pods_spread_over_zones() -> None:
    zones = [option(zone=zone) for zone in (A, B, C)]
    result = packed(many(7, **spread(ZONE)), zones, room={})
    counts = {zone: sum(n for _, z, n in bins(result) if z == zone) for zone in (A, B, C)}
    assert sorted(counts.values()) == [2, 2, 3] and problems(result) == []


@pytest.mark.covers("KRP-35")
def test_a_zone_without_machines_bounds_the_others() -> None:
    """The pods may use a node in zone C, which is full: each other zone gets one pod more than C has."""
    full = builders.node("n", labels={ZONE: C}, room={"cpu": "0"})
    result = packed(
        many(5, **spread(ZONE)), [option(zone=A), option(zone=B)], room={}, snapshot=builders.world([full])
    )
    assert sum(len(item.pods) for item in result.bins) == 2
    assert set(result.reasons.values()) == {f"{SPREAD}: topologySpreadConstraints on {ZONE}"}


@pytest.mark.covers("KRP-35")
@pytest.mark.parametrize(
    ("pod", "pods_per_machine"),
    [
        (spread(HOST), 1),
        (near("podAntiAffinity", HOST), 1),
        ({"hostPort": 80}, 1),
    ],
    ids=["spread", "anti-affinity", "host port"],
)
def test_rules_by_host_name_limit_the_pods_of_a_machine(pod: dict[str, Any], pods_per_machine: int) -> None:
    if port := pod.get("hostPort"):
        ports = [{"containerPort": port, "hostPort": port}]
        container = {"name": "c", "ports": ports, "resources": {"requests": {"cpu": "100m"}}}
        pod = {"containers": [container]}
    result = packed(many(4, cpu="100m", **pod), [XLARGE], room={})
    assert [len(item.pods) for item in result.bins] == [pods_per_machine] * 4 and problems(result) == []


@pytest.mark.covers("KRP-35")
def test_affinity_keeps_pods_in_one_zone() -> None:
    zones = [option(zone=zone) for zone in (A, B)]
    result = packed(many(5, **near("podAffinity", ZONE)), zones, room={})
    assert len({item.option.zone for item in result.bins}) == 1
    assert result.reasons == {} and problems(result) == []


@pytest.mark.covers("KRP-35")
def test_a_zone_that_is_opened_last_counts_for_pods_that_were_spread_before() -> None:
    """The last pod needs the other zone, and its label counts there."""
    in_a, anywhere = {**spread(ZONE), "nodeSelector": {ZONE: A}}, spread(ZONE)
    options = [option(zone=A, cpu="4", cost=2.0), option(zone=B)]
    pods = [*many(3, "any", cpu="1", **anywhere), *many(1, "a", cpu="300m", **in_a)]
    result = packed(pods, options, room={})
    assert result.reasons == {} and problems(result) == []
    by_zone = Counter(item.option.zone for item in result.bins for pod in item.pods)
    assert by_zone == {A: 2, B: 2}


@pytest.mark.covers("KRP-35")
@pytest.mark.parametrize("more", [{}, {"gang": "g"}], ids=["single pods", "a gang"])
@pytest.mark.parametrize("by", ["priority", "weight"])
def test_a_pod_that_comes_later_opens_no_zone_that_blocks_those_before(by: str, more: dict[str, Any]) -> None:
    """The machines in zone B are too small for the pods that are spread, so they are all in zone A."""
    first, last = (10, 0) if by == "priority" else (0, 0)
    weights = (0, 0) if by == "priority" else (100, 1)
    options = [option(zone=A, cpu="8", weight=weights[0]), option(zone=B, cpu="1", weight=weights[1])]
    spread_pods = many(4, "spread", cpu="1500m", priority=first, **more, **spread(ZONE))
    late = pending("late", cpu="300m", priority=last, nodeSelector={ZONE: B})
    result = packed([*spread_pods, late], options, room={})
    assert result.reasons == {"default/late": POSTPONED} and problems(result) == []
    assert {item.option.zone for item in result.bins} == {A} and result.bound <= result.cost


@pytest.mark.covers("KRP-35")
def test_a_gang_gets_machines_for_all_its_pods_or_none() -> None:
    slot = option(source="cr-1")
    gang, single = many(3, "g", cpu="2", gang="g"), pending("s", cpu="2")
    short = packed([*gang, single], [slot], room={"cr-1": 2})
    assert [pod.key for item in short.bins for pod in item.pods] == ["default/s"]
    reason = GANG.format(gang="g", count=2)
    few = f"NodePool default: {FEW_LEFT}1 in cr-1 (m5.large, us-east-1a)"
    assert short.reasons["default/g-0"] == f"{reason}; {few}"
    limited = packed([*gang, single], [LARGE], room={}, limits={"default": {"cpu": 6000}})
    over = "limit of cpu is 6, its nodes and claims use 2, and each machine of the gang (m5.large) has 2"
    assert over in limited.reasons["default/g-0"]
    enough = packed([*gang, single], [slot], room={"cr-1": 4})
    assert enough.reasons == {} and len(enough.bins) == 4


@pytest.mark.covers("KRP-35", "CUR-04")
@pytest.mark.parametrize(("slots", "machines"), [(1, 0), (2, 2), (4, 4), (6, 5)])
@pytest.mark.parametrize("short", ["slots", "limit"])
def test_a_gang_gets_as_many_machines_as_there_are_once_these_are_enough(
    short: str, slots: int, machines: int
) -> None:
    gang = many(5, "g", cpu="2", gang="g")
    if short == "slots":
        result = packed(gang, [option(source="cr-1")], room={"cr-1": slots}, needed={"g": 2})
    else:
        limits = {"default": {"cpu": 2000 * slots}}
        result = packed(gang, [LARGE], room={}, limits=limits, needed={"g": 2})
    assert len(result.bins) == machines and len(result.reasons) == 5 - machines
    lack = {"slots": NO_ROOM, "limit": NO_ROOM} if machines else {}
    assert not lack or {*result.reasons.values()} <= {lack[short]}


@pytest.mark.covers("KRP-35")
def test_gangs_and_others_share_no_machine() -> None:
    result = packed([*many(2, "g", gang="g"), *many(2, "s")], [XLARGE], room={})
    assert sorted({pod.gang for pod in item.pods} == {"g"} for item in result.bins) == [False, True]


@pytest.mark.covers("KRP-35")
def test_pods_take_slots_of_their_reservation_only() -> None:
    reserved = option(source="cr-1", drawing=Drawing("team/gpus"))
    result = packed(
        [pending("mine", cpu="2", drawing=Drawing("team/gpus")), pending("other", cpu="2")],
        [reserved, LARGE],
        room={"cr-1": 2},
    )
    assert {item.pods[0].key: item.option.source for item in result.bins} == {
        "default/mine": "cr-1",
        "default/other": "",
    }


@pytest.mark.covers("KRP-35")
def test_existing_nodes_take_pods_first() -> None:
    world = builders.world([builders.node("n")])
    _, taken = place_on_existing(many(5), world)
    assert list(taken.values()) == ["n"] * 4


# ---- any world

RULES = [{}, {}, {}, spread(ZONE), spread(HOST, 2), near("podAntiAffinity", HOST), near("podAffinity", ZONE)]
SELECTORS = [{}, {}, {"nodeSelector": {ZONE: A}}, {"nodeSelector": {ZONE: B}}]


@st.composite
def worlds(draw: st.DrawFn) -> tuple[list[Any], list[Any], dict[str, int], dict[str, dict[str, int]]]:
    options = [
        option(name, cpu=str(cpu), memory=f"{cpu * 4}Gi", zone=zone, cost=cpu / 2, source=source, pool=pool)
        for name, cpu in draw(
            st.lists(st.sampled_from([("a", 2), ("b", 4), ("c", 8)]), min_size=1, max_size=3)
        )
        for zone in (A, B)
        for source, pool in draw(
            st.lists(
                st.sampled_from([("", "x"), ("cr-1", "x"), ("cr-2", "y"), ("", "y")]), max_size=3, unique=True
            )
        )
    ]
    pods = []
    for number in range(draw(st.integers(1, 4))):
        rules = {**draw(st.sampled_from(RULES)), **draw(st.sampled_from(SELECTORS))}
        pods += many(
            draw(st.integers(1, 6)),
            f"s{number}",
            cpu=draw(st.sampled_from(["300m", "1", "1500m", "3"])),
            memory=draw(st.sampled_from(["100Mi", "2Gi", "6Gi"])),
            priority=draw(st.sampled_from([0, 0, 5])),
            gang=draw(st.sampled_from(["", "", f"g{number}"])),
            **rules,
        )
    room = {"cr-1": draw(st.integers(0, 3)), "cr-2": draw(st.integers(0, 3))}
    limits = draw(
        st.sampled_from(
            [{}, {"x": {"cpu": 9000}}, {"y": {"nodes": 2}}, {"x": {"nodes": -1}}, {"gone": {"cpu": -4000}}]
        )
    )
    return pods, options, room, limits


@pytest.mark.covers("FLT-60")
@pytest.mark.parametrize("weight", [0, 5])
@pytest.mark.parametrize(
    "remaining", [{"full": {"cpu": -4000}}, {"full": {"nvidia.com/gpu": -8}}, {"gone": {"nodes": -1}}]
)
def test_pool_over_its_limits_keeps_no_pod_from_the_others(
    remaining: dict[str, dict[str, int]], weight: int
) -> None:
    others = [option(pool="other"), option("c5.large", pool="other", zone=B, cost=1.1)]
    over = [option(pool="full", cost=0.1, weight=weight)] if "full" in remaining else []
    result = packed(many(3), [*over, *others], room={}, limits=remaining)
    assert {item.option.pool for item in result.bins} == {"other"} and not result.reasons
    assert not result.unsolved  # one program for all pods, as without the limit
    alone = packed(many(1), over, room={}, limits=remaining)
    assert not over or alone.reasons == {"default/p-0": NO_ROOM}


@pytest.mark.covers("FLT-60")
@pytest.mark.parametrize("answer", ["INFEASIBLE", "ABNORMAL", "NOT_SOLVED"])
def test_pods_get_machines_whatever_the_solver_answers(answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_answer(self: patterns.PatternMaster) -> None:
        raise patterns.PatternsUnsolved(answer)

    monkeypatch.setattr(patterns.PatternMaster, "solve", no_answer)
    gang = many(2, "g", cpu="2", gang="g")
    result = packed([*many(3, cpu="500m"), *gang], [LARGE], room={}, limits={"default": {"cpu": 6000}})
    assert bins(result) == [("m5.large", A, 1), ("m5.large", A, 1), ("m5.large", A, 3)]
    assert result.unsolved == answer and not result.reasons


@pytest.mark.covers("FLT-61")
def test_gang_gets_the_dearer_machines_that_use_less_of_a_limit() -> None:
    """A cheaper machine with as much room for the gang reaches the limit before all its pods have one."""
    slim = option("c5.large", memory="4Gi", cost=1.2)
    limits = {"default": {"memory": 12 * 2**30}}
    result = packed(many(3, "g", cpu="2", gang="g"), [LARGE, slim], room={}, limits=limits)
    assert bins(result) == [("c5.large", A, 1)] * 3 and not result.reasons


@pytest.mark.covers("KRP-35", "FLT-61")
@pytest.mark.parametrize(
    ("count", "cores", "types"),
    [
        (1, 1000, {"m5.large", "m5.xlarge"}),  # as without a limit
        (1, 10, {"m5.large", "m5.xlarge"}),  # a quarter of the rest of 8 cores is the difference
        (1, 9, {"m5.large"}),
        (2, 12, {"m5.large"}),  # both share the quarter
        (2, 20, {"m5.large", "m5.xlarge"}),
    ],
)
def test_machine_within_a_limit_has_larger_alternatives_that_leave_room_for_others(
    count: int, cores: int, types: set[str]
) -> None:
    pods = many(count, cpu="2")
    result = packed(pods, [LARGE, XLARGE], room={}, limits={"default": {"cpu": cores * 1000}})
    assert bins(result) == [("m5.large", A, 1)] * count
    assert [{machine.instance_type for machine in item.also} for item in result.bins] == [types] * count


@pytest.mark.covers("FLT-60")
def test_limit_is_kept_to_the_byte() -> None:
    """SCIP's numbers hold within its tolerance, which is more than a byte."""
    memory = 8 * 2**30
    result = packed(many(2, cpu="2"), [LARGE], room={}, limits={"default": {"memory": 2 * memory - 1}})
    assert len(result.bins) == 1 and [*result.reasons.values()] == [NO_ROOM]


@pytest.mark.covers("FLT-60")
def test_pod_with_a_request_beyond_64_bits_keeps_no_machine_from_the_others() -> None:
    huge = pending("huge", cpu=str(2**63 - 1))
    result = packed([huge, *many(2)], [option(), option(pool="wide", cpu=str(2**63 - 1))], room={})
    assert [*result.reasons] == ["default/huge"] and bins(result) == [("m5.large", A, 2)]


@pytest.mark.covers("KRP-35")
@examples(60, suppress_health_check=[HealthCheck.too_slow])
@given(worlds())
def test_in_any_world_no_room_slot_limit_or_filter_is_violated(world: Any) -> None:
    pods, options, room, limits = world
    result = pack(pods, options, room=room, limits=limits, seconds=2.0, timer=time.monotonic)
    placed = [pod.key for item in result.bins for pod in item.pods]
    assert sorted([*placed, *result.reasons]) == sorted(pod.key for pod in pods)
    assert all(item.pods for item in result.bins)
    assert problems(result) == []
    for source, most in room.items():
        assert sum(item.option.source == source for item in result.bins) <= most
    for pool, left in limits.items():
        for name, most in left.items():
            used = [
                max(machine.capacity[name] for machine in (item.option, *item.also))
                for item in result.bins
                if item.option.pool == pool
            ]
            assert sum(used) <= max(0, most)
    for gang in {pod.gang for pod in pods if pod.gang}:
        members = {pod.key for pod in pods if pod.gang == gang}
        assert len(members & {*placed}) in (0, len(members))
    for item in result.bins:
        assert len({(pod.gang, pod.drawing) for pod in item.pods}) == 1


@pytest.mark.covers("KRP-35")
@pytest.mark.parametrize("pods", [3, 5])
def test_gang_gets_machines_of_pools_of_several_weights_if_no_pool_has_enough(pods: int) -> None:
    heavy, light = option(pool="heavy", source="cr-1", weight=10), option(pool="light")
    limits = {"light": {"cpu": 4000}}
    gang = many(pods, "g", cpu="2", gang="g")
    result = packed(gang, [heavy, light], room={"cr-1": 2}, limits=limits)
    if pods == 3:
        assert sorted(item.option.pool for item in result.bins) == ["heavy", "heavy", "light"]
        return
    assert not result.bins
    (reason,) = {*result.reasons.values()}
    assert (
        reason.startswith(GANG.format(gang="g", count=1)) and "NodePool heavy: too few free slots" in reason
    )
    assert "NodePool light: its limit of cpu is 4, its nodes and claims use 0" in reason


def test_pods_of_lower_priority_take_no_machine_that_a_gang_needs_beside_those_of_another_weight() -> None:
    heavy, light = option(pool="heavy", source="cr-1", weight=10), option(pool="light")
    pods = [*many(2, "low", cpu="2", gang="low"), *many(3, "g", cpu="2", gang="g", priority=100)]
    result = packed(pods, [heavy, light], room={"cr-1": 2}, limits={"light": {"cpu": 4000}})
    assert {pod.gang for item in result.bins for pod in item.pods} == {"g"}
    assert {key.partition("-")[0].rpartition("/")[2] for key in result.reasons} == {"low"}


def test_gang_over_the_limits_of_pools_that_share_slots_names_the_limits() -> None:
    pools = [
        option(pool=pool, source=source, cost=cost, weight=weight)
        for pool, weight in (("heavy", 10), ("light", 0))
        for source, cost in (("cr-1", 0.0), ("", 1.0))
    ]
    limits = {"heavy": {"cpu": 4000}, "light": {"cpu": 4000}}
    result = packed(many(5, "g", cpu="2", gang="g"), pools, room={"cr-1": 2}, limits=limits)
    (reason,) = {*result.reasons.values()}
    assert (
        "NodePool heavy: its limit of cpu is 4" in reason
        and "NodePool light: its limit of cpu is 4" in reason
    )
