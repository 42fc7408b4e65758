"""InterPodAffinity: required affinity and anti-affinity between pods."""

from __future__ import annotations

from typing import Any

import pytest

from broker.placement.filters import fits
from broker.placement.model import PodInfo
from broker.placement.snapshot import PlacementSnapshot
from tests.unit.placement.builders import HOST, ZONE, node, pod, required, texts, world

WEB, DB = {"app": "web"}, {"app": "db"}
NEAR, APART = "podAffinity", "podAntiAffinity"
NO_AFFINITY = ["node(s) didn't match pod affinity rules"]
ANTI_AFFINITY = ["node(s) didn't match pod anti-affinity rules"]
EXISTING = ["node(s) didn't satisfy existing pods anti-affinity rules"]


def term(key: str = ZONE, labels: dict[str, str] | None = None, **rest: Any) -> dict[str, Any]:
    return {"topologyKey": key, "labelSelector": {"matchLabels": DB if labels is None else labels}, **rest}


def cluster(*pods: PodInfo, namespaces: dict[str, dict[str, str]] | None = None) -> PlacementSnapshot:
    """Nodes a1 and a2 in zone a, b1 in zone b, and one in no zone."""
    zoned = [node(name, labels={ZONE: name[0]}) for name in ("a1", "a2", "b1")]
    return world([*zoned, node("bare")], pods, namespaces=namespaces)


@pytest.mark.parametrize(
    ("kind", "key", "fitting"),
    [
        (NEAR, ZONE, ("a1", "a2")),
        (NEAR, HOST, ("a1",)),
        (APART, ZONE, ("b1", "bare")),
        (APART, HOST, ("a2", "b1", "bare")),
    ],
)
def test_term_holds_for_the_whole_topology(kind: str, key: str, fitting: tuple[str, ...]) -> None:
    state = cluster(pod("db", labels=DB, on="a1"))
    outcome = fits(pod(affinity=required(kind, term(key))), state)
    assert outcome.nodes == fitting
    rejected = NO_AFFINITY if kind == NEAR else ANTI_AFFINITY
    assert all(texts(outcome, name) == rejected for name in outcome.reasons)


@pytest.mark.parametrize(
    ("labels", "existing", "fitting"),
    [
        (DB, [], ("a1", "a2", "b1")),
        (WEB, [], ()),
        # Once a pod matches anywhere, the first pod's rule is over.
        (DB, [pod("db", labels=DB, on="b1")], ("b1",)),
        # A matching pod outside all topologies is in no pair.
        (DB, [pod("db", labels=DB, on="bare")], ("a1", "a2", "b1")),
        (DB, [pod("db", labels=DB, on="a1", namespace="other")], ("a1", "a2", "b1")),
    ],
)
def test_first_pod_of_a_series_needs_the_topology_label_only(
    labels: dict[str, str], existing: list[PodInfo], fitting: tuple[str, ...]
) -> None:
    candidate = pod(labels=labels, affinity=required(NEAR, term()))
    assert fits(candidate, cluster(*existing)).nodes == fitting


def test_one_pod_has_to_match_all_affinity_terms() -> None:
    both = required(NEAR, term(ZONE), term(HOST, {"tier": "1"}))
    apart = cluster(pod("1", labels=DB, on="a1"), pod("2", labels={"tier": "1"}, on="a1"))
    assert fits(pod(affinity=both), apart).nodes == ()
    together = cluster(pod("1", labels={**DB, "tier": "1"}, on="a1"))
    assert fits(pod(affinity=both), together).nodes == ("a1",)


def test_each_anti_affinity_term_stands_alone() -> None:
    both = required(APART, term(ZONE), term(HOST, {"tier": "1"}))
    state = cluster(pod("1", labels=DB, on="b1"), pod("2", labels={"tier": "1"}, on="a1"))
    assert fits(pod(affinity=both), state).nodes == ("a2", "bare")


def test_anti_affinity_of_pods_on_nodes_rejects_the_pod() -> None:
    state = cluster(pod("1", on="a1", affinity=required(APART, term(ZONE, WEB))))
    outcome = fits(pod(labels=WEB), state)
    assert outcome.nodes == ("b1", "bare")
    assert texts(outcome, "a2") == EXISTING
    assert fits(pod(labels=DB), state).nodes == ("a1", "a2", "b1", "bare")


def test_reasons_come_in_order_of_affinity_then_anti_affinity_then_other_pods() -> None:
    state = cluster(
        pod("1", labels=DB, on="a1", affinity=required(APART, term(HOST, WEB))),
        pod("2", labels={"tier": "1"}, on="a2"),
    )
    rules = {**required(NEAR, term(ZONE)), **required(APART, term(HOST, {"tier": "1"}))}
    outcome = fits(pod(labels=WEB, affinity=rules), state)
    messages = [texts(outcome, name) for name in ("b1", "a2", "a1")]
    assert messages == [NO_AFFINITY, ANTI_AFFINITY, EXISTING]


TEAMS = {"default": {"team": "x"}, "other": {"team": "y"}, "third": {"team": "y"}}


@pytest.mark.parametrize(
    ("rest", "spaces"),
    [
        ({}, {"default"}),
        ({"namespaces": ["other"]}, {"other"}),
        ({"namespaceSelector": {}}, {"default", "other", "third", "unknown"}),
        ({"namespaceSelector": {"matchLabels": {"team": "y"}}}, {"other", "third"}),
        (
            {"namespaces": ["default"], "namespaceSelector": {"matchLabels": {"team": "y"}}},
            {"default", "other", "third"},
        ),
        ({"namespaceSelector": {"matchLabels": {"team": "z"}}}, set()),
    ],
)
@pytest.mark.parametrize("space", ["default", "other", "third", "unknown"])
def test_term_selects_namespaces_by_name_and_by_label(rest: Any, spaces: set[str], space: str) -> None:
    """Both as the pod's own term and, mirrored, as the term of a pod on a node."""
    candidate = pod(affinity=required(APART, term(HOST, **rest)))
    own = fits(candidate, cluster(pod("1", labels=DB, on="a1", namespace=space), namespaces=TEAMS))
    assert ("a1" not in own.nodes) == (space in spaces)
    mirrored = cluster(pod("1", on="a1", affinity=required(APART, term(HOST, **rest))), namespaces=TEAMS)
    assert ("a1" not in fits(pod(labels=DB, namespace=space), mirrored).nodes) == (space in spaces)


@pytest.mark.parametrize(
    ("keys", "rejecting"),
    [
        ({"matchLabelKeys": ["rev"]}, "1"),
        ({"mismatchLabelKeys": ["rev"]}, "2"),
        ({"matchLabelKeys": ["none"]}, "12"),
    ],
)
def test_label_keys_compare_with_the_pods_own_labels(keys: dict[str, Any], rejecting: str) -> None:
    candidate = pod(labels={**DB, "rev": "1"}, affinity=required(APART, term(HOST, **keys)))
    for rev in "12":
        state = cluster(pod("1", labels={**DB, "rev": rev}, on="a1"))
        assert ("a1" not in fits(candidate, state).nodes) == (rev in rejecting)


@pytest.mark.parametrize(("selector", "matches"), [({}, True), (None, False)])
def test_empty_selector_matches_all_pods_and_a_missing_one_none(selector: Any, matches: bool) -> None:
    candidate = pod(affinity=required(APART, {"topologyKey": HOST, "labelSelector": selector}))
    assert ("a1" in fits(candidate, cluster(pod("1", on="a1"))).nodes) != matches


def test_terminating_pods_count_for_affinity() -> None:
    state = cluster(pod("db", labels=DB, on="b1", terminating=True))
    assert fits(pod(affinity=required(NEAR, term())), state).nodes == ("b1",)
