"""If the disruption of a gang cannot be finished, no healthy node ends for it."""

from __future__ import annotations

import pytest

from broker.apis import names
from broker.apis.core import Node, Pod
from broker.apis.karpenter import NodeClaim
from broker.kube.client import Request
from broker.kube.errors import Forbidden
from tests.cluster.stack import Stack
from tests.cluster.test_disruption import STEP, change, gone, hashed, later, node, pool, replacement, run

WHOLE = ("g-0", "g-1")
GANG = {names.GANG: "train"}


def drifting(stack: Stack) -> list[str]:
    """A gang with a Ready replacement for each node, held up by a pod of g-0. Returns the replacements."""
    pool(stack)
    stack.start()
    for name in WHOLE:
        node(stack, name, f"app-{name}", annotations=GANG)
    hashed(stack, *WHOLE)
    stack.kubelets.stop()
    template = {"spec": {"taints": [{"key": "example.com/new", "effect": "PreferNoSchedule"}]}}
    change(stack, "web", template=template)
    stack.until(lambda: all(replacement(stack, name) for name in WHOLE), "replacements", step=STEP)
    new = [claim.name for name in WHOLE if (claim := replacement(stack, name))]
    run(stack, "held", stack.get(NodeClaim, "g-0").status.node_name)
    body = {"metadata": {"annotations": {names.DO_NOT_DISRUPT: "true"}}}
    stack.client.patch(Pod.KIND, "held", body, namespace="default")
    stack.kubelets_again()
    stack.until_ready(*new)
    return new


def deleting(stack: Stack, name: str) -> bool:
    claim = stack.find(NodeClaim, name)
    return claim is None or claim.deleting


@pytest.mark.both_servers
def test_replacement_with_pods_outlives_the_undoing_of_its_move(stack: Stack) -> None:
    used, unused = drifting(stack)
    run(stack, "early", stack.get(NodeClaim, used).status.node_name)
    stack.advance(560)
    later(stack, 60)
    gone(stack, unused)
    stack.until_event("g-0", "DisruptionFailed", text="it was held up for 0:10:00")
    assert not any(deleting(stack, name) for name in (*WHOLE, used))
    assert not {names.MOVE, names.REPLACES} & set(stack.get(NodeClaim, used).annotations)
    taints = {taint.key for name in WHOLE for taint in _node(stack, name).spec.taints}
    assert names.DISRUPTED_TAINT not in taints


def test_held_up_node_stays_when_another_of_its_move_ends(stack: Stack) -> None:
    drifting(stack)
    later(stack, 20)
    assert not any(deleting(stack, name) for name in WHOLE)
    stack.delete(NodeClaim, "g-1")
    gone(stack, "g-1")
    later(stack, 30)
    assert not deleting(stack, "g-0")
    stack.client.delete(Pod.KIND, "held", namespace="default")
    gone(stack, "g-0")


def test_claim_that_cannot_be_deleted_takes_no_other_along(stack: Stack) -> None:
    pool(stack)
    stack.start()

    def refuse(_: Request) -> None:
        raise Forbidden(403, "Forbidden", "a policy keeps it")

    stack.tap.on(lambda r: r.method == "DELETE" and r.path.endswith("/nodeclaims/first"), refuse, times=-1)
    node(stack, "first", "app-first", annotations=GANG, expireAfter="1h")
    node(stack, "second", "app-second", annotations=GANG, expireAfter="90h")
    stack.advance(3700)
    later(stack, 20)
    assert not deleting(stack, "first") and not deleting(stack, "second")


def _node(stack: Stack, claim: str) -> Node:
    return stack.get(Node, stack.get(NodeClaim, claim).status.node_name)
