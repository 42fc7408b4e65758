"""Claims that are never evicted for another claim."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from broker.apis import names
from broker.apis.core import Node, Pod
from broker.apis.karpenter import NodeClaim
from broker.controllers.claim_caches import BY_INSTANCE, BY_NODE, by_instance
from broker.kube.cache import Cache
from broker.quota.usage import ReservationKey
from broker.reservations.claims import borrows
from tests.support.caches import claim_caches

NOW = datetime(2030, 1, 1, tzinfo=UTC)
KEEP = {names.DO_NOT_DISRUPT: "true"}
MINE, THEIRS = ReservationKey("a", "gpu"), ReservationKey("b", "gpu")


def claim(*, annotations: Any = None, grace: str | None = None, odcr: str = "") -> NodeClaim:
    return NodeClaim.decode(
        {
            "metadata": {
                "name": "one",
                "annotations": annotations or {},
                "labels": {names.RESERVATION_ID: odcr} if odcr else {},
            },
            "spec": {"terminationGracePeriod": grace} if grace else {},
            "status": {"providerID": "aws:///a/i-1"},
        }
    )


@pytest.mark.parametrize(
    ("claim_", "owned", "node", "pod", "phase", "expected"),
    [
        (claim(), True, {}, {names.DO_NOT_DISRUPT: "2h"}, "Running", True),
        (claim(), True, {}, {names.DO_NOT_DISRUPT: "1h"}, "Running", False),
        (claim(), True, {}, {}, "Running", False),
        (claim(), False, {}, {}, "Running", True),
        (claim(annotations=KEEP), True, {}, {}, "Running", True),
        (claim(), True, KEEP, {}, "Running", True),
        (claim(), True, {}, KEEP, "Running", True),
        (claim(), True, {}, KEEP, "Succeeded", False),
        (claim(annotations=KEEP, grace="1h"), True, {}, {}, "Running", False),
        (claim(grace="1h"), False, {}, {}, "Running", True),
    ],
)
def test_foreign_and_do_not_disrupt_claims_are_non_preemptible(
    claim_: NodeClaim, owned: bool, node: Any, pod: Any, phase: str, expected: bool
) -> None:
    nodes = Cache(Node, indexes={BY_INSTANCE: by_instance})
    pods = Cache(Pod, indexes={BY_NODE: lambda pod_: (pod_.spec.node_name,)})
    version = {"resourceVersion": "1", "uid": "u"}
    nodes.replace(
        [{"metadata": {"name": "n", "annotations": node, **version}, "spec": {"providerID": "aws:///a/i-1"}}],
        1,
    )
    meta = {"name": "p", "namespace": "default", "annotations": pod, **version}
    status = {"phase": phase, "startTime": "2029-12-31T23:00:00Z"}
    pods.replace([{"metadata": meta, "spec": {"nodeName": "n"}, "status": status}], 1)
    assert claim_caches(nodes=nodes, pods=pods, owns=lambda _: owned).non_preemptible(claim_, NOW) is expected


def test_a_claim_with_a_left_out_node_is_non_preemptible_without_a_grace_period() -> None:
    nodes = Cache(Node, indexes={BY_INSTANCE: by_instance})
    pods = Cache(Pod, indexes={BY_NODE: lambda pod: (pod.spec.node_name,)})
    version = {"resourceVersion": "1", "uid": "u"}
    caches = claim_caches(nodes=nodes, pods=pods)
    nodes.replace([{"metadata": {"name": "n", **version}, "spec": {"providerID": "aws:///a/i-1"}}], 1)
    assert not caches.non_preemptible(claim(), NOW)
    nodes.leave_out(nodes.list()[0], "poison")
    assert caches.non_preemptible(claim(), NOW)
    assert not caches.non_preemptible(claim(grace="1h"), NOW)


@pytest.mark.parametrize(
    ("odcr", "expected"), [("cr-a", False), ("cr-b", True), ("cr-x", False), ("", False)]
)
def test_a_claim_borrows_only_on_a_slot_of_another_owner(odcr: str, expected: bool) -> None:
    assert borrows(claim(odcr=odcr), MINE, {"cr-a": MINE, "cr-b": THEIRS}) is expected
