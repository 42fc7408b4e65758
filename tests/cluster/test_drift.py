"""The pods of drifted nodes: those that fit on other nodes, and the replacements of the others."""

from __future__ import annotations

from broker.apis.karpenter import NodeClaim
from broker.apis.kueue import Namespace
from tests.cluster.stack import Stack
from tests.cluster.test_disruption import change, gone, hashed, node, pool, replacement, run


def drift(stack: Stack, *claims: str) -> None:
    """The claims drift, once they have the hash of the present template."""
    hashed(stack, *claims)
    change(stack, "web", template={"spec": {"expireAfter": "100h"}})


def other_pool(stack: Stack) -> None:
    """A pool with nodes that do not drift."""
    stack.node_pool("other", node_class="web")
    change(stack, "other", disruption={"consolidateAfter": "Never"})


def test_room_for_one_pod_is_given_to_the_pod_of_one_drifted_node_only(stack: Stack) -> None:
    pool(stack)
    other_pool(stack)
    stack.start()
    for name in ("a", "b"):
        run(stack, f"app-{name}", node(stack, name), cpu="900m")
    run(stack, "present", node(stack, "spare", pool="other"), cpu="900m")
    drift(stack, "a", "b")
    gone(stack, "a", "b")
    assert [replacement(stack, name) is None for name in ("a", "b")].count(True) == 1
    assert not stack.get(NodeClaim, "spare").deleting


def test_anti_affinity_by_namespace_labels_keeps_a_pod_off_other_nodes(stack: Stack) -> None:
    pool(stack)
    other_pool(stack)
    stack.start()
    stack.edit(Namespace, "default", {"metadata": {"labels": {"tier": "data"}}})
    run(stack, "data", node(stack, "spare", pool="other"), labels={"app": "db"})
    term = {
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchLabels": {"app": "db"}},
        "namespaceSelector": {"matchLabels": {"tier": "data"}},
    }
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    run(stack, "app", node(stack, "old"), affinity=apart)
    drift(stack, "old")
    gone(stack, "old")
    assert replacement(stack, "old") is not None
