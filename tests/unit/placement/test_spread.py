"""PodTopologySpread: required constraints."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.placement.filters import fits
from broker.placement.model import PodInfo
from broker.placement.packing_model import PendingPod
from broker.placement.shapes import PodShape, by_domain
from broker.placement.snapshot import PlacementSnapshot
from tests.unit.placement.builders import HOST, ZONE, node, node_affinity, pod, texts, world

WEB = {"app": "web"}
SKEWED = ["node(s) didn't match pod topology spread constraints"]
NO_LABEL = ["node(s) didn't match pod topology spread constraints (missing required label)"]
SELECTOR = {"matchLabels": WEB}


def constraint(key: str = ZONE, skew: int = 1, **rest: Any) -> dict[str, Any]:
    return {
        "maxSkew": skew,
        "topologyKey": key,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": SELECTOR,
        **rest,
    }


def spread(*constraints: dict[str, Any], **rest: Any) -> PodInfo:
    return pod(**{"labels": WEB, **rest}, topologySpreadConstraints=list(constraints))


def zones(**counts: int) -> PlacementSnapshot:
    """A node in each zone, with so many web pods."""
    pods = [pod(f"{zone}{i}", labels=WEB, on=zone) for zone, count in counts.items() for i in range(count)]
    return world([node(zone, labels={ZONE: zone}) for zone in counts], pods)


def nodes(candidate: PodInfo, cluster: PlacementSnapshot) -> str:
    return "".join(fits(candidate, cluster).nodes)


@pytest.mark.parametrize(
    ("counts", "skew", "fitting"),
    [
        ({"a": 0, "b": 0}, 1, "ab"),
        ({"a": 1, "b": 0}, 1, "b"),
        ({"a": 1, "b": 1, "c": 1}, 1, "abc"),
        ({"a": 2, "b": 1, "c": 1}, 1, "bc"),
        ({"a": 2, "b": 1, "c": 0}, 2, "bc"),
        ({"a": 1, "b": 1, "c": 0}, 2, "abc"),
        ({"a": 5, "b": 0}, 1, "b"),
    ],
)
def test_domain_may_have_max_skew_more_than_the_fewest(
    counts: dict[str, int], skew: int, fitting: str
) -> None:
    assert nodes(spread(constraint(skew=skew)), zones(**counts)) == fitting


@pytest.mark.parametrize(("least", "fitting"), [(None, "ab"), (1, "ab"), (2, "ab"), (3, "")])
def test_too_few_domains_count_the_fewest_as_zero(least: int | None, fitting: str) -> None:
    more: dict[str, Any] = {} if least is None else {"minDomains": least}
    assert nodes(spread(constraint(**more)), zones(a=1, b=1)) == fitting


def test_pod_outside_its_own_selector_does_not_add_to_the_skew() -> None:
    assert nodes(spread(constraint(), labels={}), zones(a=1, b=0)) == "ab"
    assert nodes(spread(constraint(), labels={}), zones(a=2, b=0)) == "b"


@pytest.mark.parametrize("selector", [{}, None])
def test_empty_and_missing_selectors_count_no_pod(selector: dict[str, Any] | None) -> None:
    assert nodes(spread(constraint(labelSelector=selector)), zones(a=3, b=0)) == "ab"


def test_pods_of_other_namespaces_and_terminating_pods_do_not_count() -> None:
    cluster = world(
        [node("a", labels={ZONE: "a"}), node("b", labels={ZONE: "b"})],
        [
            pod("1", labels=WEB, on="a", namespace="other"),
            pod("2", labels=WEB, on="a", terminating=True),
            pod("3", labels=WEB, on="b"),
        ],
    )
    assert nodes(spread(constraint()), cluster) == "a"


def test_nodes_without_the_label_are_rejected_and_not_counted() -> None:
    cluster = world(
        [node("a", labels={ZONE: "a"}), node("b", labels={ZONE: "b"}), node("bare")],
        [pod("1", labels=WEB, on="a"), pod("2", labels=WEB, on="b"), pod("3", labels=WEB, on="bare")],
    )
    outcome = fits(spread(constraint()), cluster)
    assert outcome.nodes == ("a", "b")
    assert texts(outcome, "bare") == NO_LABEL


def test_node_needs_the_labels_of_all_constraints_to_count() -> None:
    """Zone b has a node without the rack label only, so zone a is the only domain."""
    cluster = world(
        [node("a", labels={ZONE: "a", "rack": "1"}), node("b", labels={ZONE: "b"})],
        [pod("1", labels=WEB, on="a")],
    )
    outcome = fits(spread(constraint(), constraint("rack")), cluster)
    assert outcome.nodes == ("a",)
    assert texts(outcome, "b") == NO_LABEL


def test_hostname_is_a_domain_for_each_node() -> None:
    cluster = world([node("a"), node("b")], [pod("1", labels=WEB, on="a")])
    outcome = fits(spread(constraint(HOST)), cluster)
    assert outcome.nodes == ("b",)
    assert texts(outcome, "a") == SKEWED


@pytest.mark.parametrize(("policy", "fitting"), [("Honor", "b"), ("Ignore", "")])
def test_affinity_policy_leaves_out_nodes_that_the_pod_cannot_use(policy: str, fitting: str) -> None:
    affinity = node_affinity({"matchExpressions": [{"key": ZONE, "operator": "In", "values": ["a", "b"]}]})
    candidate = spread(constraint(nodeAffinityPolicy=policy), affinity=affinity)
    assert nodes(candidate, zones(a=2, b=1, c=0)) == fitting


@pytest.mark.parametrize(("policy", "fitting"), [("Honor", "b"), ("Ignore", "")])
def test_taints_policy_leaves_out_nodes_that_the_pod_does_not_tolerate(policy: str, fitting: str) -> None:
    cluster = world(
        [
            node("a", labels={ZONE: "a"}),
            node("b", labels={ZONE: "b"}),
            node("c", labels={ZONE: "c"}, taints=[{"key": "k", "effect": "NoSchedule"}]),
        ],
        [pod(name, labels=WEB, on=name[0]) for name in ("a1", "a2", "b1")],
    )
    assert nodes(spread(constraint(nodeTaintsPolicy=policy)), cluster) == fitting


def test_label_keys_narrow_the_selector_to_the_pods_revision() -> None:
    cluster = world(
        [node("a", labels={ZONE: "a"}), node("b", labels={ZONE: "b"})],
        [pod("1", labels={**WEB, "rev": "1"}, on="a"), pod("2", labels={**WEB, "rev": "2"}, on="b")],
    )
    candidate = spread(constraint(matchLabelKeys=["rev", "absent"]), labels={**WEB, "rev": "1"})
    assert nodes(candidate, cluster) == "b"
    missing = spread(constraint(matchLabelKeys=["rev"], labelSelector=None), labels={**WEB, "rev": "1"})
    assert nodes(missing, cluster) == "ab"


def test_preferred_constraints_reject_no_node() -> None:
    assert nodes(spread(constraint(whenUnsatisfiable="ScheduleAnyway")), zones(a=9, b=0)) == "ab"


@given(st.lists(st.integers(0, 4), min_size=1, max_size=4), st.integers(1, 2))
def test_filling_up_never_skews(counts: list[int], skew: int) -> None:
    """Placing on any node that fits keeps the placed pod's domain within the skew."""
    names = "abcd"[: len(counts)]
    cluster = zones(**dict(zip(names, counts, strict=True)))
    for i in range(6):
        fitting = fits(spread(constraint(skew=skew)), cluster).nodes
        assert fitting
        cluster = cluster.with_pod(pod(f"new{i}", labels=WEB), fitting[-1])
        placed = [len(state.pods) for state in cluster.states.values()]
        assert len(cluster.states[fitting[-1]].pods) - min(placed) <= skew


def test_packing_divides_pods_over_zones_by_the_counts_of_the_filter() -> None:
    """Pods on nodes with a taint that the new ones do not tolerate count only without the policy Honor."""
    taints = [{"key": "gpu", "effect": "NoSchedule"}]
    cluster = world(
        [node("tainted", labels={ZONE: "a"}, taints=taints)],
        [pod(f"old{i}", labels=WEB, on="tainted") for i in range(2)],
    )

    def divided(policy: str) -> dict[str, int]:
        rule = constraint(nodeTaintsPolicy=policy)
        pods = tuple(PendingPod(info=spread(rule)) for _ in range(4))
        machines = [{ZONE: "a"}, {ZONE: "b"}]
        shapes = by_domain(PodShape(pods=pods), machines, cluster)
        return {shape.domain[1]: len(shape.pods) for shape in shapes if shape.domain is not None}

    assert divided("Honor") == {"a": 2, "b": 2}
    assert divided("Ignore") == {"a": 1, "b": 3}
