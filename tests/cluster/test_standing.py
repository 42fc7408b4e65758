"""At scale-in, pods outside reservations move to reserved nodes that stand before any of these ends.

A Deployment is played: a pod that ends has a successor at once, which the scheduler binds.
"""

from __future__ import annotations

from typing import Any

import pytest

from broker.apis import names
from broker.apis.core import Node, Pod
from broker.apis.karpenter import NodeClaim, NodePool
from broker.controllers.disruption import methods
from local.demo.scheduling import schedule
from tests.cluster import objects
from tests.cluster.account import A
from tests.cluster.objects import ON_DEMAND, RESERVED, SPOT
from tests.cluster.stack import Stack
from tests.cluster.test_disruption import STEP, run

pytestmark = pytest.mark.covers("FLT-10")
WEB = {"app": "web"}


def cluster(stack: Stack, *, slots: int, pools: tuple[str, ...] = ("web",), **disruption: Any) -> str:
    """Pools of a class with a reservation; none of them returns to reservations. Returns the ODCR."""
    odcr = stack.aws.odcr(count=slots)
    stack.node_class("web", id_=odcr, zones=(A,))
    for name in pools:
        stack.node_pool(name, node_class="web")
        block = {"consolidateAfter": "30s", "budgets": [{"nodes": "100%"}], **disruption}
        kinds = {"key": names.CAPACITY_TYPE, "operator": "In", "values": [RESERVED, ON_DEMAND, SPOT]}
        types = {"key": names.INSTANCE_TYPE, "operator": "In", "values": ["m5.large"]}
        template = {"spec": {"requirements": [kinds, types]}}
        stack.edit(NodePool, name, {"spec": {"disruption": block, "template": template}})
    return odcr


def nodes(stack: Stack, kind: str, *claims: str, app: bool = True, pool: str = "web", **more: Any) -> None:
    """Ready claims, each with a pod of the Deployment that fills it."""
    for name in claims:
        stack.claim(name, node_class="web", pool=pool, capacity=(kind,), **more)
    stack.until_ready(*claims)
    for name in claims:
        if app:
            run(stack, f"app-{name}", stack.get(NodeClaim, name).status.node_name, cpu="1500m", labels=WEB)
    broker = stack.broker
    for name in claims if app and broker is not None else ():  # a node without a known pod counts as empty
        stack.until(lambda n=name: broker.read.pods.cache.find(f"default/app-{n}"), "its pod is known")  # type: ignore[misc,union-attr]


def live(stack: Stack) -> list[Pod]:
    return [pod for pod in stack.all(Pod) if pod.metadata.labels.get("app") == "web" and not pod.deleting]


def replicas(stack: Stack, count: int, successor: dict[str, Any] | None = None) -> None:
    """What the Deployment's controllers and the scheduler do now."""
    container = {"name": "main", "image": "x", "resources": {"requests": {"cpu": "1500m"}}}
    for number in range(count - len(live(stack))):
        name = f"next-{len(stack.all(Pod))}-{number}-{stack.clock.now().timestamp():.0f}"
        body = objects.pod(name, containers=[container], labels=WEB, **(successor or {}))
        stack.client.create(Pod.KIND, body)
    schedule(stack.client)


def scale(stack: Stack, count: int, gone: tuple[str, ...], seconds: float = 180) -> tuple[int, int]:
    """Scales in, and lets time pass. Returns the launches and the ended instances since."""
    launches, ended = stack.calls("CreateFleet"), len(stack.aws.instances())
    for name in gone:
        stack.delete(Pod, f"app-{name}", namespace="default")
    for _ in range(int(seconds // STEP)):
        replicas(stack, count)
        stack.advance(STEP)
        stack.passes(1)
    replicas(stack, count)
    assert all(pod.spec.node_name for pod in live(stack)) and len(live(stack)) == count
    return stack.calls("CreateFleet") - launches, ended - len(stack.aws.instances())


def left(stack: Stack) -> set[str]:
    return {claim.name for claim in stack.all(NodeClaim) if not claim.deleting}


R, D = ("r-0", "r-1", "r-2"), ("d-0", "d-1")
KEPT = {names.DO_NOT_DISRUPT: "true"}


@pytest.mark.parametrize("gone", [("r-0", "r-1"), ("d-0", "d-1"), ("r-0", "d-0")], ids=str)
@pytest.mark.parametrize("returns", ["true", None], ids=["returns", "stays"])
def test_scale_in_ends_the_nodes_outside_reservations(
    stack: Stack, gone: tuple[str, ...], returns: str | None
) -> None:
    cluster(stack, slots=3)
    if returns:
        meta = {"annotations": {names.RETURN_TO_RESERVATIONS: returns}}
        stack.edit(NodePool, "web", {"metadata": meta})
    stack.start()
    nodes(stack, RESERVED, *R)
    nodes(stack, ON_DEMAND, *D)
    assert scale(stack, 3, gone) == (0, 2)
    assert left(stack) == {*R}


def test_budgets_bound_moves_and_no_pod_loses_its_node(stack: Stack) -> None:
    cluster(stack, slots=2, pools=("web", "idle"), budgets=[{"nodes": "1"}])
    stack.start()
    nodes(stack, RESERVED, "r-0", "r-1", pool="idle")
    nodes(stack, SPOT, "d-0", types=("m5.large",))
    nodes(stack, ON_DEMAND, "d-1", types=("m5.large",))
    assert scale(stack, 2, ("r-0", "r-1"), 480) == (0, 2)
    assert left(stack) & {"r-0", "r-1"} and len(left(stack)) == 2


def test_empty_reserved_nodes_stay_while_there_is_no_time_to_try_all_moves(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster(stack, slots=1, pools=("web", "idle"))
    stack.start()
    nodes(stack, RESERVED, "r-0", pool="idle")
    nodes(stack, ON_DEMAND, "d-0", types=("m5.large",))
    with monkeypatch.context() as slow:
        slow.setattr(methods, "TRYING", -1.0)
        assert scale(stack, 1, ("r-0",), 120) == (0, 0)
    assert scale(stack, 1, ()) == (0, 1)
    assert left(stack) == {"r-0"}


def test_a_policy_that_keeps_nodes_with_pods_moves_none_and_launches_none(stack: Stack) -> None:
    cluster(stack, slots=1, consolidationPolicy="WhenEmpty")
    stack.start()
    nodes(stack, RESERVED, "r-0")
    nodes(stack, ON_DEMAND, "d-0")
    assert scale(stack, 1, ("r-0",)) == (0, 1)
    assert left(stack) == {"d-0"}


def test_pods_of_a_drifted_node_move_to_a_reserved_node_before_it_ends(stack: Stack) -> None:
    """Also where the policy keeps nodes with pods: a drifted one ends in any case."""
    cluster(stack, slots=1, pools=("web", "idle"), consolidationPolicy="WhenEmpty")
    stack.start()
    nodes(stack, RESERVED, "r-0", pool="idle")
    nodes(stack, ON_DEMAND, "d-0")
    stack.until(lambda: names.NODEPOOL_HASH in stack.get(NodeClaim, "d-0").annotations, "a hash", step=STEP)
    template = {"spec": {"taints": [{"key": "example.com/new", "effect": "PreferNoSchedule"}]}}
    stack.delete(Pod, "app-r-0", namespace="default")
    stack.edit(NodePool, "web", {"spec": {"template": template}})
    assert scale(stack, 1, ()) == (0, 1)
    assert left(stack) == {"r-0"}


@pytest.mark.parametrize("gone", [("r-0",), ("r-0", "r-1")], ids=len)
def test_a_gang_moves_whole_or_not_at_all(stack: Stack, gone: tuple[str, ...]) -> None:
    cluster(stack, slots=2)
    stack.start()
    nodes(stack, RESERVED, "r-0", "r-1")
    nodes(stack, ON_DEMAND, *D, annotations={names.GANG: "train", names.GANG_SIZE: "2"})
    assert scale(stack, 4 - len(gone), gone) == (0, len(gone))
    assert left(stack) == ({"r-1", *D} if len(gone) == 1 else {"r-0", "r-1"})


def test_reserved_node_waits_for_pods_that_a_disruption_budget_keeps_for_now(stack: Stack) -> None:
    cluster(stack, slots=1)
    stack.start()
    nodes(stack, RESERVED, "r-0")
    nodes(stack, ON_DEMAND, "d-0")
    stack.budget("web", app="web", allowed=0)
    assert scale(stack, 1, ("r-0",), 90) == (0, 0)
    stack.client.delete(objects.PDB, "web", namespace="default")
    assert scale(stack, 1, ()) == (0, 1)
    assert left(stack) == {"r-0"}


def test_room_of_a_reserved_node_is_given_once(stack: Stack) -> None:
    """Two nodes fit on the reserved one, each by itself: the pods of the second would get no node."""
    cluster(stack, slots=1, budgets=[{"nodes": "1"}])
    stack.start()
    nodes(stack, RESERVED, "r-0")
    nodes(stack, ON_DEMAND, *D)
    assert scale(stack, 2, ("r-0",), 240) == (0, 1)
    assert "r-0" in left(stack) and len(left(stack)) == 2


def test_room_is_not_given_again_before_the_pods_of_a_node_are_made_anew(stack: Stack) -> None:
    """A controller of pods that is slow leaves the reserved node empty for a while."""
    cluster(stack, slots=1, budgets=[{"nodes": "1"}])
    stack.start()
    nodes(stack, RESERVED, "r-0")
    nodes(stack, ON_DEMAND, *D)
    stack.delete(Pod, "app-r-0", namespace="default")
    stack.until(lambda: len(left(stack)) == 2 and len(stack.all(NodeClaim)) == 2, "one moves", step=STEP)
    for _ in range(6):
        stack.advance(STEP)
        stack.passes(1)
    assert len(left(stack)) == 2
    assert scale(stack, 2, (), 60) == (0, 0)


def test_node_that_is_not_ready_gets_no_pods(stack: Stack) -> None:
    cluster(stack, slots=1)
    stack.start()
    nodes(stack, RESERVED, "r-0")
    nodes(stack, ON_DEMAND, "d-0")
    stack.kubelets.stop()
    status = {"conditions": [{"type": names.READY, "status": "False", "reason": "KubeletNotReady"}]}
    stack.client.patch(
        Node.KIND, stack.get(NodeClaim, "r-0").status.node_name, {"status": status}, subresource="status"
    )
    assert scale(stack, 1, ("r-0",), 60)[0] == 0
    assert "d-0" in left(stack)


def test_pods_that_want_an_on_demand_node_keep_theirs(stack: Stack) -> None:
    cluster(stack, slots=1)
    stack.start()
    nodes(stack, RESERVED, "r-0")
    nodes(stack, ON_DEMAND, "d-0", app=False)
    claim = stack.get(NodeClaim, "d-0")
    selector = {"nodeSelector": {names.CAPACITY_TYPE: ON_DEMAND}}
    run(stack, "app-d-0", claim.status.node_name, cpu="1500m", labels=WEB, **selector)
    assert scale(stack, 1, ("r-0",), 120) == (0, 1)
    assert left(stack) == {"d-0"}


def sizes(stack: Stack, *types: str) -> None:
    """Lets the pool buy these types."""
    kinds = {"key": names.CAPACITY_TYPE, "operator": "In", "values": [RESERVED, ON_DEMAND]}
    values = {"key": names.INSTANCE_TYPE, "operator": "In", "values": [*types]}
    stack.edit(NodePool, "web", {"spec": {"template": {"spec": {"requirements": [kinds, values]}}}})


@pytest.mark.parametrize("restarts_at", ["its end begins", "its end is over"])
def test_reserved_node_awaits_moving_pods_after_a_restart(stack: Stack, restarts_at: str) -> None:
    cluster(stack, slots=1)
    stack.start()
    nodes(stack, RESERVED, "r-0")
    nodes(stack, ON_DEMAND, "d-0")
    stack.delete(Pod, "app-r-0", namespace="default")
    begins = restarts_at == "its end begins"
    stack.until(
        lambda: (claim := stack.find(NodeClaim, "d-0")) is None or (begins and claim.deleting),
        restarts_at,
        step=STEP,
    )
    stack.stop()
    stack.start()
    for _ in range(6):
        stack.advance(STEP)
        stack.passes(1)
    assert scale(stack, 1, (), 60) == (0, 0)
    assert left(stack) == {"r-0"}


def test_reserved_node_awaits_pods_of_a_node_that_is_not_quiet_yet(stack: Stack) -> None:
    cluster(stack, slots=1, pools=("web", "idle"))
    stack.edit(NodePool, "web", {"spec": {"disruption": {"consolidateAfter": "8m"}}})
    stack.start()
    nodes(stack, RESERVED, "r-0", pool="idle")
    nodes(stack, ON_DEMAND, "d-0")
    assert scale(stack, 1, ("r-0",), 600) == (0, 1)
    assert left(stack) == {"r-0"}


def test_some_pods_of_a_node_move_to_a_reserved_node_and_others_to_a_bought_one(stack: Stack) -> None:
    cluster(stack, slots=1)
    sizes(stack, "m5.large", "m5.xlarge")
    stack.start()
    nodes(stack, RESERVED, "r-0", types=("m5.large",))
    nodes(stack, ON_DEMAND, *D, types=("m5.xlarge",), app=False)
    ends, stays = (stack.get(NodeClaim, name).status.node_name for name in D)
    run(stack, "app-0", ends, cpu="1500m", labels=WEB)
    run(stack, "app-1", ends, cpu="700m", labels=WEB)
    kept = {names.DO_NOT_DISRUPT: "true"}
    run(stack, "app-2", stays, cpu="2500m", labels=WEB, annotations=kept)
    assert scale(stack, 3, ("r-0",)) == (0, 1)
    assert left(stack) == {"r-0", "d-1"}


def test_some_pods_of_a_node_move_to_a_reserved_node_and_others_to_a_cheaper_one(stack: Stack) -> None:
    cluster(stack, slots=1)
    sizes(stack, "m5.large", "m5.xlarge")
    stack.start()
    nodes(stack, RESERVED, "r-0", types=("m5.large",))
    nodes(stack, ON_DEMAND, "d-0", types=("m5.xlarge",))
    run(stack, "app-1", stack.get(NodeClaim, "d-0").status.node_name, cpu="1500m", labels=WEB)
    assert scale(stack, 2, ("r-0",), 400)[0] == 1
    types = {claim.name: claim.labels[names.INSTANCE_TYPE] for claim in stack.all(NodeClaim)}
    assert "r-0" in types and [*types.values()] == ["m5.large"] * 2


def test_pods_on_a_slot_that_ec2_does_not_show_yet_stay(stack: Stack) -> None:
    cluster(stack, slots=2, pools=("web", "idle"))
    stack.start()
    nodes(stack, RESERVED, "r-0", pool="idle")
    stack.advance(4000)
    stack.control.lag(3600)
    nodes(stack, RESERVED, "r-1")
    assert names.CAPACITY_TYPE not in stack.get(NodeClaim, "r-1").labels
    scale(stack, 1, ("r-0",), 180)
    assert [pod.name for pod in live(stack)] == ["app-r-1"] and "r-1" in left(stack)


@pytest.mark.covers("FLT-20")
@pytest.mark.parametrize("made_for", [("default/late",), ()], ids=["its-own", "another"])
def test_no_pod_is_evicted_for_room_that_a_pod_got_since_the_pass_began(
    stack: Stack, made_for: tuple[str, ...]
) -> None:
    cluster(stack, slots=1, pools=("web", "idle"))
    stack.start()
    nodes(stack, RESERVED, "r-0", pool="idle", app=False, pods=made_for, annotations=KEPT)
    nodes(stack, ON_DEMAND, "d-0")
    broker, host = stack.broker, stack.get(NodeClaim, "r-0").status.node_name
    assert broker is not None

    def comes(_: object) -> None:
        run(stack, "late", host, cpu="1500m")
        stack.until(lambda: broker.read.pods.cache.find("default/late"), "the pod is known")

    stack.tap.on(
        lambda r: r.path.endswith("/d-0/status") and names.CONSOLIDATABLE.encode() in (r.body or b""), comes
    )
    stack.until(lambda: stack.find(Pod, "late", namespace="default"), "the pod", step=STEP)
    assert scale(stack, 1, (), 60) == (0, 0)
    assert left(stack) == {"r-0", "d-0"}
