"""Preferences of pods in the choice of machines: as in Karpenter, but no free slot is left for one."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from broker.apis import names
from broker.apis.core import Pod
from broker.apis.karpenter import NodeClaim, pods_of
from broker.oncall.pod_reports import NOMINATED
from local.demo.scheduling import bind
from tests.cluster.account import A, B
from tests.cluster.objects import ON_DEMAND, RESERVED
from tests.cluster.stack import Stack
from tests.cluster.test_mixed_pools import required
from tests.cluster.test_provisioning import bound, pods, pool, start
from tests.cluster.test_spread_pools import WEB, ZONE, in_zones

SMALL = "400m"  # several fit a machine
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def machines(stack: Stack, name: str = "team", *capacity: str, **more: Any) -> None:
    template = {
        "requirements": [*required(["m5.large"], capacity or [ON_DEMAND]), in_zones(A, B)],
        **more.pop("template", {}),
    }
    pool(stack, name, template=template, **more)


def spread(key: str) -> dict[str, Any]:
    rule = {"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "ScheduleAnyway"}
    return {"topologySpreadConstraints": [{**rule, "labelSelector": {"matchLabels": WEB}}]}


def node_terms(*weighted: tuple[int, str, str]) -> dict[str, Any]:
    return {
        "nodeAffinity": {
            PREFERRED: [
                {
                    "weight": weight,
                    "preference": {"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]},
                }
                for weight, key, value in weighted
            ]
        }
    }


def pod_term(kind: str, labels: dict[str, str], key: str) -> dict[str, Any]:
    term = {"topologyKey": key, "labelSelector": {"matchLabels": labels}}
    return {kind: {PREFERRED: [{"weight": 1, "podAffinityTerm": term}]}}


def launched(stack: Stack, waiting: list[str]) -> list[str]:
    """The zones of the machines with these pods."""
    stack.until(lambda: bound(stack, waiting), "the pods run", step=0.2)
    # A pod can be bound before the claim's labels are written.
    stack.until(lambda: all(ZONE in claim.labels for claim in stack.all(NodeClaim)), "zones are told")
    return sorted(claim.labels[ZONE] for claim in stack.all(NodeClaim))


@pytest.mark.covers("FLT-34")
@pytest.mark.parametrize(("policy", "zones"), [("Respect", [A, B]), ("Ignore", [A])])
def test_pods_under_schedule_anyway_get_machines_in_two_zones(
    stack: Stack, policy: str, zones: list[str]
) -> None:
    stack.node_class(preference="none")
    machines(stack)
    waiting = pods(stack, 2, cpu=SMALL, labels=WEB, spec=spread(ZONE))
    start(stack, preference_policy=policy)
    assert launched(stack, waiting) == zones


@pytest.mark.covers("FLT-34")
@pytest.mark.parametrize(
    ("terms", "zone"),
    [
        ([(1, ZONE, B)], B),
        ([(1, ZONE, A), (2, ZONE, B)], B),
        # The heaviest cannot be had: the next one counts.
        ([(1, ZONE, B), (2, "team.example/rack", "7")], B),
        ([(1, "team.example/rack", "7")], A),
    ],
)
def test_heaviest_preferred_term_that_a_machine_meets_counts(
    stack: Stack, terms: list[tuple[int, str, str]], zone: str
) -> None:
    stack.node_class(preference="none")
    machines(stack)
    waiting = pods(stack, 1, cpu=SMALL, spec={"affinity": node_terms(*terms)})
    start(stack)
    assert launched(stack, waiting) == [zone]


@pytest.mark.covers("FLT-34")
@pytest.mark.parametrize(("limit", "count"), [("100", 3), ("2", 1)])
def test_pods_that_prefer_to_be_apart_get_a_machine_each_as_far_as_limits_allow(
    stack: Stack, limit: str, count: int
) -> None:
    stack.node_class(preference="none")
    machines(stack, limits={"cpu": limit})
    apart = {"affinity": pod_term("podAntiAffinity", WEB, names.HOSTNAME)}
    waiting = pods(stack, 3, cpu=SMALL, labels=WEB, spec=apart)
    start(stack)
    assert len(launched(stack, waiting)) == count


@pytest.mark.covers("FLT-34")
def test_pod_that_prefers_the_zone_of_another_one_gets_its_machine_there(stack: Stack) -> None:
    stack.node_class(preference="none")
    machines(stack)
    cache = pods(stack, 1, "cache", cpu="1500m", labels={"app": "cache"}, spec={"nodeSelector": {ZONE: B}})
    start(stack)
    assert launched(stack, cache) == [B]
    near = {"affinity": pod_term("podAffinity", {"app": "cache"}, ZONE)}
    alone = {"affinity": pod_term("podAffinity", {"app": "nobody"}, ZONE)}
    waiting = pods(stack, 1, "near", cpu="1500m", spec=near)
    assert launched(stack, waiting) == [B, B]
    waiting = pods(stack, 1, "alone", cpu="1500m", spec=alone)
    assert launched(stack, waiting) == [A, B, B]


@pytest.mark.covers("FLT-34")
@pytest.mark.parametrize("cpu", ["1500m", SMALL])
def test_free_slot_outweighs_a_preference_that_would_buy(stack: Stack, cpu: str) -> None:
    """Of three pods that prefer another zone, two get the slots, or all get one that has room for them."""
    odcr = stack.aws.odcr("m5.large", A, 2)
    stack.node_class(id_=odcr)
    machines(stack, "team", RESERVED, ON_DEMAND)
    waiting = pods(stack, 3, cpu=cpu, spec={"affinity": node_terms((1, ZONE, B))})
    start(stack)
    zones = launched(stack, waiting)
    placed = Counter(stack.reservation_of(claim.name) for claim in stack.all(NodeClaim))
    assert (zones, placed) == (([A, A, B], {odcr: 2, "": 1}) if cpu != SMALL else ([A], {odcr: 1}))


@pytest.mark.covers("FLT-34")
def test_pod_whose_node_another_pod_took_takes_that_one_rather_than_a_second_machine(stack: Stack) -> None:
    odcr = stack.aws.odcr("m5.large", A, 1)
    stack.node_class(id_=odcr)
    machines(stack, "team", RESERVED, ON_DEMAND)
    waiting = pods(stack, 2, cpu="1500m", spec={"affinity": node_terms((1, ZONE, B))})
    start(stack)
    stack.until(lambda: len(stack.all(NodeClaim)) == 2, "a machine each", step=0.2)
    claims = [claim.name for claim in stack.all(NodeClaim)]
    stack.until_ready(*claims)
    by_zone = {claim.labels[ZONE]: claim for claim in stack.all(NodeClaim)}
    (first,), (second,) = pods_of(by_zone[A]), pods_of(by_zone[B])
    node = by_zone[B].status.node_name  # kube-scheduler prefers zone B, too
    bind(stack.client, stack.get(Pod, first.removeprefix("default/"), namespace="default"), node)
    stack.until_event(
        second.removeprefix("default/"), NOMINATED, kind="Pod", text=by_zone[A].status.node_name
    )
    assert [claim.name for claim in stack.all(NodeClaim)] == claims
    stack.until(lambda: bound(stack, waiting), "the other one runs in the slot", step=0.2)


@pytest.mark.covers("FLT-34")
def test_preference_that_a_free_slot_meets_chooses_among_slots(stack: Stack) -> None:
    stack.aws.odcr("m5.large", A, 1, criteria="open")
    odcr = stack.aws.odcr("m5.large", B, 1, criteria="open")
    stack.node_class(preference="open")
    machines(stack, "team", RESERVED)
    waiting = pods(stack, 1, spec={"affinity": node_terms((1, ZONE, B))})
    start(stack)
    assert launched(stack, waiting) == [B]
    assert [stack.reservation_of(claim.name) for claim in stack.all(NodeClaim)] == [odcr]


@pytest.mark.covers("FLT-34")
def test_pod_stays_off_a_pool_with_a_soft_taint_while_another_has_a_machine(stack: Stack) -> None:
    stack.node_class(preference="none")
    taint = {"key": "team.example/kept", "effect": "PreferNoSchedule"}
    machines(stack, "kept", weight=10, template={"taints": [taint]})
    machines(stack, "plain", limits={"cpu": "2"})
    waiting = pods(stack, 2, cpu="1500m")
    start(stack)
    launched(stack, waiting)
    assert sorted(claim.labels[names.NODEPOOL] for claim in stack.all(NodeClaim)) == ["kept", "plain"]


@pytest.mark.covers("FLT-34")
def test_preference_of_one_pod_keeps_no_other_from_its_machine(stack: Stack) -> None:
    """The other one would have no machine, if the preference were a rule for it as well."""
    stack.node_class(preference="none")
    machines(stack, limits={"cpu": "2"})
    apart = {"affinity": pod_term("podAntiAffinity", {"app": "other"}, names.HOSTNAME)}
    first = pods(stack, 1, "first", cpu=SMALL, spec=apart)
    other = pods(stack, 1, "other", cpu=SMALL, labels={"app": "other"})
    start(stack)
    assert len(launched(stack, [*first, *other])) == 1
