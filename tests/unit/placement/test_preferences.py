"""Preferences of pods as rules, in the order in which Karpenter drops them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from broker.apis.core import Pod
from broker.placement.model import NodeTaint, PodInfo
from broker.placement.packing_model import PendingPod
from broker.placement.preferences import MOST_DROPS, as_placed, drops_of, preferring
from broker.placement.reading import pod_info
from broker.placement.shapes import shapes_of
from broker.placement.snapshot import PlacementSnapshot

PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
SOFT = NodeTaint("kept", "", "PreferNoSchedule")


def near(weight: int, key: str) -> dict[str, Any]:
    return {"weight": weight, "podAffinityTerm": {"topologyKey": key, "labelSelector": {}}}


def node(weight: int, value: str) -> dict[str, Any]:
    test = {"key": "rack", "operator": "In", "values": [value]}
    return {"weight": weight, "preference": {"matchExpressions": [test]}}


def anyway(key: str) -> dict[str, Any]:
    return {"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {}}


def pod(**spec: Any) -> PodInfo:
    return pod_info(Pod.decode({"metadata": {"name": "p", "namespace": "default"}, "spec": spec}))


EVERY = pod(
    affinity={
        "podAffinity": {PREFERRED: [near(1, "light"), near(9, "heavy")]},
        "podAntiAffinity": {PREFERRED: [near(5, "apart")]},
        "nodeAffinity": {PREFERRED: [node(1, "one"), node(2, "two")]},
    },
    topologySpreadConstraints=[
        anyway("zone"),
        anyway("host"),
        {**anyway("rule"), "whenUnsatisfiable": "DoNotSchedule"},
    ],
    nodeSelector={"own": "yes"},
)


def shown(info: PodInfo) -> str:
    """What counts as a rule."""
    return " ".join(
        [
            *(f"near:{term.topology_key}" for term in info.near),
            *(f"apart:{term.topology_key}" for term in info.apart),
            *(value for item in info.node_selector for value in sorted(item.values)),
            *(rule.topology_key for rule in info.spread),
            *(["untainted"] if info.avoids_soft_taints else []),
        ]
    )


@pytest.mark.covers("FLT-34")
def test_one_preference_after_another_is_dropped_in_karpenters_order() -> None:
    steps = drops_of(EVERY, [SOFT])
    assert [shown(preferring(EVERY, dropped, [SOFT])) for dropped in range(steps + 1)] == [
        "near:heavy near:light apart:apart yes two rule zone host untainted",
        "near:light apart:apart yes two rule zone host untainted",
        "apart:apart yes two rule zone host untainted",
        "yes two rule zone host untainted",
        "yes one rule zone host untainted",
        "yes rule zone host untainted",
        "yes rule host untainted",
        "yes rule untainted",
        "yes rule",
    ]


@pytest.mark.covers("FLT-34")
@pytest.mark.parametrize(
    ("tolerations", "drops"),
    [([], 1), ([{"key": "kept", "operator": "Exists"}], 0), ([{"key": "kept", "effect": "NoSchedule"}], 1)],
)
def test_pod_avoids_a_soft_taint_of_pools_that_it_does_not_tolerate(
    tolerations: list[dict[str, Any]], drops: int
) -> None:
    plain = pod(tolerations=tolerations)
    assert drops_of(plain, [SOFT]) == drops
    assert drops_of(plain, [SOFT._replace(effect="NoSchedule")]) == drops_of(plain) == 0
    assert preferring(plain, drops, [SOFT]) is plain


@pytest.mark.covers("FLT-34")
def test_pods_that_have_lost_unlike_preferences_are_not_interchangeable() -> None:
    every = [preferring(EVERY, dropped, [SOFT]) for dropped in range(drops_of(EVERY, [SOFT]) + 1)]
    pending = [PendingPod(info=replace(info, name=f"p-{n}")) for n, info in enumerate(every)]
    assert len(shapes_of(pending, PlacementSnapshot())) == len(every)


def test_pod_on_a_node_that_is_gone_keeps_its_rules_only() -> None:
    assert as_placed([EVERY], "gone", PlacementSnapshot()) == [EVERY]


def test_pod_with_more_preferences_loses_the_rest_at_once() -> None:
    many = pod(topologySpreadConstraints=[anyway(str(n)) for n in range(20)])
    assert drops_of(many) == MOST_DROPS
    assert len(preferring(many, MOST_DROPS - 1).spread) == 20 - MOST_DROPS + 1
    assert preferring(many, MOST_DROPS).spread == ()


def test_preferred_term_that_names_a_node_is_none_for_a_machine() -> None:
    field = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-1"]}]}
    named = pod(affinity={"nodeAffinity": {PREFERRED: [{"weight": 1, "preference": field}]}})
    assert named.preferences is None
