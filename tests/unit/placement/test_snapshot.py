"""The snapshot: it never changes, and its indexes follow assumed pods."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.apis.core import Pod
from broker.apis.karpenter import NodeClaim
from broker.capacity.future_labels import future_labels
from broker.placement.filters import fits
from broker.placement.model import PodInfo
from broker.placement.reading import claim_info, takes_room
from broker.placement.snapshot import PlacementSnapshot
from tests.unit.placement.builders import HOST, ZONE, filters, node, pod, required, world

NODES = [node(name, labels={ZONE: name[0]}) for name in ("a1", "a2", "b1")]
LABELS = [{"app": "web"}, {"app": "db"}, {}]
SORTS = range(4)


def pod_of_sort(name: str, on: str, sort: int, labels: dict[str, str]) -> PodInfo:
    """One of four sorts: plain, with a port, with anti-affinity, with a claim."""
    specs: list[dict[str, Any]] = [
        {},
        {"containers": [{"name": "c", "ports": [{"containerPort": 80, "hostPort": 80}]}]},
        {
            "affinity": required(
                "podAntiAffinity", {"topologyKey": HOST, "labelSelector": {"matchLabels": {"app": "db"}}}
            )
        },
        {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]},
    ]
    return pod(name, on=on, labels=labels, requests={"cpu": "100m"} if sort != 1 else None, **specs[sort])


PLACEMENTS = st.lists(
    st.tuples(st.sampled_from(NODES), st.sampled_from(SORTS), st.sampled_from(LABELS)), max_size=6
)


def indexes(snapshot: PlacementSnapshot) -> object:
    sums = {
        name: ({key: value for key, value in state.requested.items() if value}, state.ports)
        for name, state in snapshot.states.items()
    }
    return sums, snapshot.groups, snapshot.repelling, snapshot.claims


@given(PLACEMENTS, PLACEMENTS)
def test_assumed_pods_count_as_bound_ones_and_can_be_forgotten(kept: list, added: list) -> None:  # type: ignore[type-arg]
    old = [pod_of_sort(f"k{i}", at.name, sort, labels) for i, (at, sort, labels) in enumerate(kept)]
    new = [pod_of_sort(f"a{i}", at.name, sort, labels) for i, (at, sort, labels) in enumerate(added)]
    before = world(NODES, old)
    snapshot = before
    for item in new:
        snapshot = snapshot.with_pod(item, item.node_name)
    assert indexes(snapshot) == indexes(world(NODES, [*old, *new]))
    for item in new:
        snapshot = snapshot.without_pod(item, item.node_name)
    assert indexes(snapshot) == indexes(before) == indexes(world(NODES, old))


@given(PLACEMENTS, PLACEMENTS, st.sets(st.sampled_from([node.name for node in NODES])))
def test_removed_nodes_take_their_bound_and_assumed_pods_along(
    bound: list[Any], assumed: list[Any], removed: set[str]
) -> None:
    pods = [pod_of_sort(f"b{i}", at.name, sort, labels) for i, (at, sort, labels) in enumerate(bound)]
    snapshot = world(NODES, pods)
    for i, (at, sort, labels) in enumerate(assumed):
        item = pod_of_sort(f"a{i}", "", sort, labels)
        snapshot = snapshot.with_pod(item, at.name)
        pods.append(replace(item, node_name=at.name))
    kept = [node for node in NODES if node.name not in removed]
    assert indexes(snapshot.without_nodes(removed)) == indexes(world(kept, pods))


@given(PLACEMENTS, st.sampled_from(SORTS), st.sampled_from(LABELS))
def test_filters_of_one_node_give_the_reasons_of_a_whole_pass(
    placed: list[Any], sort: int, labels: dict[str, str]
) -> None:
    pods = [
        pod_of_sort(f"k{i}", at.name, kind, pod_labels) for i, (at, kind, pod_labels) in enumerate(placed)
    ]
    cluster = world(NODES, pods)
    candidate = pod_of_sort("new", "", sort, labels)
    outcome = fits(candidate, cluster)
    for item in NODES:
        assert filters(candidate, item.name, cluster) == outcome.reasons.get(item.name, ())


def test_unknown_pods_and_nodes_are_errors() -> None:
    cluster = world(NODES)
    with pytest.raises(KeyError):
        cluster.with_pod(pod(), "gone")
    with pytest.raises(ValueError, match="tuple"):
        cluster.without_pod(pod(), "a1")
    with pytest.raises(ValueError, match="node 'a1' is in the snapshot"):
        cluster.with_node(NODES[0])


def test_pods_on_unknown_nodes_do_not_count() -> None:
    assert indexes(world(NODES, [pod(on="gone", requests={"cpu": "1"})])) == indexes(world(NODES))


@pytest.mark.parametrize(
    ("node_name", "phase", "counts"),
    [
        ("n", "Running", True),
        ("n", "", True),
        ("n", "Succeeded", False),
        ("n", "Failed", False),
        ("", "Pending", False),
    ],
)
def test_ended_and_unbound_pods_take_no_room(node_name: str, phase: str, counts: bool) -> None:
    body = {"metadata": {"name": "p"}, "spec": {"nodeName": node_name}, "status": {"phase": phase}}
    assert takes_room(Pod.decode(body)) == counts


def test_claim_in_flight_is_a_node_with_its_labels_and_without_startup_taints() -> None:
    claim = NodeClaim.decode(
        {
            "metadata": {"name": "gpu-1", "labels": {"team": "ml"}},
            "spec": {
                "requirements": [
                    {"key": ZONE, "operator": "In", "values": ["a"]},
                    {"key": "arch", "operator": "In", "values": ["amd64", "arm64"]},
                ],
                "taints": [{"key": "gpu", "effect": "NoSchedule"}],
                "startupTaints": [{"key": "starting", "effect": "NoSchedule"}],
            },
            "status": {"allocatable": {"cpu": "2", "pods": "1"}},
        }
    )
    planned = claim_info(claim)
    known = {"team": "ml", ZONE: "a", HOST: "gpu-1"}
    assert planned.labels == future_labels(known, "")
    cluster = world(NODES).with_node(planned)
    toleration = {"key": "gpu", "operator": "Exists"}
    candidate = pod(tolerations=[toleration], nodeSelector={"team": "ml"}, requests={"cpu": "2"})
    assert fits(candidate, cluster).nodes == ("gpu-1",)
    assert fits(candidate, cluster.with_pod(candidate, "gpu-1")).nodes == ()
