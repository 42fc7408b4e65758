"""Bought nodes end whose pods fit on other nodes or on a cheaper machine; reserved nodes with pods stay.

A Deployment is played: a pod that ends has a successor of its size at once, which the scheduler binds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from broker.apis import names
from broker.apis.core import Node, Pod
from broker.apis.karpenter import NodeClaim, NodePool
from local.demo.scheduling import schedule
from tests.cluster import objects
from tests.cluster.account import A
from tests.cluster.objects import ON_DEMAND, RESERVED, SPOT
from tests.cluster.stack import Provider, Stack
from tests.cluster.test_disruption import STEP, run

pytestmark = pytest.mark.covers("FUL-40")
LARGE, XLARGE, XL2 = "m5.large", "m5.xlarge", "m5.2xlarge"
PRICES: Mapping[str, float] = {LARGE: 0.096, XLARGE: 0.192, XL2: 0.384}
UNDERUSED = "WhenEmptyOrUnderutilized"


class Cluster:
    """A pool of a class with a reservation; its nodes with the sizes of their pods."""

    def __init__(
        self,
        stack: Stack,
        *,
        slots: Mapping[str, int] | None = None,
        types: Sequence[str] = (LARGE,),
        kinds: Sequence[str] = (RESERVED, ON_DEMAND),
        annotations: Mapping[str, str] | None = None,
        **disruption: Any,
    ) -> None:
        self.stack, self.sizes, self.made = stack, dict[str, str](), set[str]()
        odcrs = [stack.aws.odcr(type_, count=count) for type_, count in (slots or {}).items()]
        group = {"group": stack.aws.group(*odcrs)} if odcrs else {"preference": "none"}
        stack.node_class("web", zones=(A,), **group)
        stack.node_pool("web", node_class="web")
        block = {"consolidateAfter": "30s", "budgets": [{"nodes": "100%"}], **disruption}
        required = [
            {"key": names.CAPACITY_TYPE, "operator": "In", "values": [*kinds]},
            {"key": names.INSTANCE_TYPE, "operator": "In", "values": [*types]},
        ]
        spec = {"disruption": block, "template": {"spec": {"requirements": required}}}
        stack.edit(NodePool, "web", {"spec": spec, "metadata": {"annotations": dict(annotations or {})}})
        stack.start()

    def node(self, name: str, kind: str, type_: str, *cpus: str, **more: Any) -> None:
        """A Ready node with a pod of each size."""
        self.made.add(name)
        self.stack.claim(name, node_class="web", pool="web", capacity=(kind,), types=(type_,), **more)
        self.stack.until_ready(name)
        on = self.stack.get(NodeClaim, name).status.node_name
        for number, cpu in enumerate(cpus):
            pod = f"{name}-{number}"
            self.sizes[pod] = cpu
            run(self.stack, pod, on, cpu=cpu, labels={"app": pod})

    def live(self) -> dict[str, Pod]:
        pods = self.stack.all(Pod)
        return {p.metadata.labels["app"]: p for p in pods if "app" in p.metadata.labels and not p.deleting}

    def play(self) -> None:
        """What the Deployments' controllers and the scheduler do now."""
        live = self.live()
        for app, cpu in self.sizes.items():
            if app not in live:
                container = {"name": "main", "image": "x", "resources": {"requests": {"cpu": cpu}}}
                name = f"{app}-{self.stack.clock.now().timestamp():.0f}"
                self.stack.client.create(
                    Pod.KIND, objects.pod(name, containers=[container], labels={"app": app})
                )
        schedule(self.stack.client)

    def pass_time(self, seconds: float) -> None:
        for _ in range(int(seconds // STEP)):
            self.play()
            self.stack.advance(STEP)
            self.stack.passes(1)

    def until(self, *left: str, launched: int = 0) -> list[str]:
        """Time passes until these nodes and as many new ones are left, and all pods run. Returns the new."""

        def reached() -> bool:
            self.play()
            bound = [pod for pod in self.live().values() if pod.spec.node_name]
            old, new = self.claims() & self.made, self.claims() - self.made
            return old == {*left} and len(new) == launched and len(bound) == len(self.sizes)

        self.stack.until(reached, f"{left} and {launched} new nodes are left", step=STEP)
        return sorted(self.claims() - self.made)

    def claims(self) -> set[str]:
        claims = self.stack.all(NodeClaim)
        return {claim.name for claim in claims if not claim.name.startswith("canary")}

    def type_of(self, claim: str) -> tuple[str, str]:
        labels = self.stack.get(NodeClaim, claim).labels
        return labels[names.CAPACITY_TYPE], labels[names.INSTANCE_TYPE]

    def approved(self, claim: str) -> str:
        return self.stack.until_event(claim, "ConsolidationApproved").message


def test_pods_of_a_bought_node_go_to_the_room_of_several_nodes_reserved_ones_first(stack: Stack) -> None:
    cluster = Cluster(stack, slots={LARGE: 1})
    cluster.node("r-0", RESERVED, LARGE, "1200m")
    cluster.node("b-0", ON_DEMAND, LARGE, "1200m")
    cluster.node("d-0", ON_DEMAND, LARGE, "500m", "500m")
    launches = stack.calls("CreateFleet")
    cluster.until("r-0", "b-0")
    assert stack.calls("CreateFleet") == launches
    message = cluster.approved("d-0")
    assert f"saves ${PRICES[LARGE]:.4f} an hour" in message
    hosts = [stack.get(NodeClaim, name).status.node_name for name in ("r-0", "b-0")]
    assert f"its pods fit on {hosts[0]}, {hosts[1]}" in message


def test_bought_node_ends_if_its_pods_fit_on_another_bought_node(stack: Stack) -> None:
    cluster = Cluster(stack)
    cluster.node("b-0", ON_DEMAND, LARGE, "500m", "500m")
    cluster.node("d-0", ON_DEMAND, LARGE, "500m")
    cluster.until("b-0")
    cluster.pass_time(120)
    assert cluster.claims() == {"b-0"}


def test_bought_nodes_end_first_and_a_reserved_node_is_never_replaced(stack: Stack) -> None:
    """The reserved node's pod fits on the bought one, and on a smaller machine."""
    cluster = Cluster(stack, slots={XLARGE: 1}, types=(LARGE, XLARGE))
    cluster.node("r-0", RESERVED, XLARGE, "500m")
    cluster.node("d-0", ON_DEMAND, LARGE, "1500m")
    cluster.until("r-0")
    cluster.pass_time(360)
    assert cluster.claims() == {"r-0"}


def test_reserved_node_stays_beside_a_bought_node_that_something_keeps(stack: Stack) -> None:
    cluster = Cluster(stack, slots={XLARGE: 1}, types=(LARGE, XLARGE))
    cluster.node("r-0", RESERVED, XLARGE, "500m")
    cluster.node("d-0", ON_DEMAND, XLARGE, "500m", annotations={names.DO_NOT_DISRUPT: "true"})
    cluster.pass_time(360)
    assert cluster.claims() == {"r-0", "d-0"}


def test_bought_node_is_replaced_by_a_cheaper_machine_that_is_ready_first(stack: Stack) -> None:
    cluster = Cluster(stack, types=(LARGE, XLARGE))
    cluster.node("d-0", ON_DEMAND, XLARGE, "1500m")
    (new,) = cluster.until(launched=1)
    assert cluster.type_of(new) == (ON_DEMAND, LARGE)
    assert f"saves ${PRICES[XLARGE] - PRICES[LARGE]:.4f} an hour" in cluster.approved("d-0")
    cluster.pass_time(180)
    assert cluster.claims() == {new}


def test_one_cheaper_machine_takes_the_place_of_several_bought_nodes(stack: Stack) -> None:
    cluster = Cluster(stack, types=(XLARGE, XL2))
    bought = ["d-0", "d-1", "d-2"]
    for name in bought:
        cluster.node(name, ON_DEMAND, XLARGE, "2200m")
    launches = stack.calls("CreateFleet")
    (new,) = cluster.until(launched=1)
    assert cluster.type_of(new) == (ON_DEMAND, XL2)
    assert stack.calls("CreateFleet") == launches + 1
    for name in bought:
        assert f"saves ${3 * PRICES[XLARGE] - PRICES[XL2]:.4f} an hour" in cluster.approved(name)


def test_nodes_that_end_for_one_machine_stay_if_the_broker_is_killed_until_it_is_ready(stack: Stack) -> None:
    cluster = Cluster(stack, types=(XLARGE, XL2))
    bought = {"d-0", "d-1", "d-2"}
    for name in sorted(bought):
        cluster.node(name, ON_DEMAND, XLARGE, "2200m")
    stack.until(lambda: cluster.claims() - bought, "the new claim", step=STEP)
    stack.stop()
    assert not any(stack.get(NodeClaim, name).deleting for name in bought)
    stack.start()
    (new,) = cluster.until(launched=1)
    assert cluster.type_of(new) == (ON_DEMAND, XL2)


@pytest.mark.parametrize("kind", [ON_DEMAND, SPOT])
def test_bought_node_becomes_a_cheaper_spot_node_unless_it_is_one(
    stack: Stack, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    types = stack.provider().instance_types()
    spot = {name: replace(type_, spot_prices={A: 0.01}) for name, type_ in types.items()}
    monkeypatch.setattr(Provider, "known", spot)
    cluster = Cluster(stack, types=(LARGE, XLARGE), kinds=(SPOT, ON_DEMAND))
    cluster.node("d-0", kind, XLARGE, "1500m")
    if kind == SPOT:
        cluster.pass_time(240)
        assert cluster.claims() == {"d-0"}
        return
    (new,) = cluster.until(launched=1)
    assert cluster.type_of(new)[0] == SPOT


def test_bought_nodes_end_in_an_idle_slot_that_holds_all_their_pods(stack: Stack) -> None:
    """One moves into the slot, and the pods of the other go to its room."""
    returns = {names.RETURN_TO_RESERVATIONS: "true"}
    cluster = Cluster(stack, slots={XLARGE: 1}, types=(LARGE, XLARGE), annotations=returns)
    for name in ("d-0", "d-1"):
        cluster.node(name, ON_DEMAND, LARGE, "1500m")
    (new,) = cluster.until(launched=1)
    assert cluster.type_of(new) == (RESERVED, XLARGE)


@pytest.mark.parametrize("policy", [UNDERUSED, "Balanced"])
def test_balanced_leaves_a_node_that_saves_too_little_for_its_pods(stack: Stack, policy: str) -> None:
    cluster = Cluster(stack, types=(LARGE, XL2), consolidationPolicy=policy)
    cluster.node("big", ON_DEMAND, XL2, "4")
    cluster.node("small", ON_DEMAND, LARGE, *["150m"] * 8)
    if policy == UNDERUSED:
        cluster.until("big")
        return
    cluster.pass_time(240)
    assert cluster.claims() == {"big", "small"}


def test_balanced_ends_a_node_that_saves_enough_for_its_pods(stack: Stack) -> None:
    cluster = Cluster(stack, consolidationPolicy="Balanced")
    cluster.node("b-0", ON_DEMAND, LARGE, "500m", "500m")
    cluster.node("d-0", ON_DEMAND, LARGE, "500m")
    cluster.until("b-0")


def test_balanced_applies_to_moves_to_reserved_nodes(stack: Stack) -> None:
    cluster = Cluster(stack, slots={XL2: 1}, types=(LARGE, XL2), consolidationPolicy="Balanced")
    cluster.node("keeps", ON_DEMAND, XL2, "7", annotations={names.DO_NOT_DISRUPT: "true"})
    cluster.node("small", ON_DEMAND, LARGE, *["150m"] * 8)
    cluster.node("r-0", RESERVED, XL2, "1")
    cluster.pass_time(240)
    assert cluster.claims() == {"keeps", "small", "r-0"}


@pytest.mark.parametrize("kept_by", ["policy", "never", "node", "pod", "pdb", "budget"])
def test_what_keeps_a_node_keeps_it_until_it_is_gone(stack: Stack, kept_by: str) -> None:
    settings: dict[str, dict[str, Any]] = {
        "policy": {"consolidationPolicy": "WhenEmpty"},
        "never": {"consolidateAfter": "Never"},
        "budget": {"budgets": [{"nodes": "0", "reasons": ["Underutilized"]}, {"nodes": "100%"}]},
    }
    cluster = Cluster(stack, **settings.get(kept_by, {}))
    held = {"annotations": {names.DO_NOT_DISRUPT: "true"}}
    cluster.node("b-0", ON_DEMAND, LARGE, "500m", **held)
    cluster.node("d-0", ON_DEMAND, LARGE, "500m", **(held if kept_by == "node" else {}))
    if kept_by == "pod":
        stack.client.patch(Pod.KIND, "d-0-0", {"metadata": held}, namespace="default")
    if kept_by == "pdb":
        stack.budget("web", app="d-0-0", allowed=0)
    cluster.pass_time(180)
    assert cluster.claims() == {"b-0", "d-0"}
    gone = {"metadata": {"annotations": {names.DO_NOT_DISRUPT: None}}}
    if kept_by == "node":
        stack.edit(NodeClaim, "d-0", gone)
        stack.edit(Node, stack.get(NodeClaim, "d-0").status.node_name, gone)
    elif kept_by == "pod":
        stack.client.patch(Pod.KIND, "d-0-0", gone, namespace="default")
    elif kept_by == "pdb":
        stack.client.delete(objects.PDB, "web", namespace="default")
    else:
        block = {"consolidationPolicy": UNDERUSED, "consolidateAfter": "30s", "budgets": [{"nodes": "1"}]}
        stack.edit(NodePool, "web", {"spec": {"disruption": block}})
    cluster.until("b-0")


def test_budget_bounds_the_nodes_that_end_at_once(stack: Stack) -> None:
    cluster = Cluster(stack, types=(LARGE, XL2), budgets=[{"nodes": "1"}])
    cluster.node("b-0", ON_DEMAND, XL2, "4", annotations={names.DO_NOT_DISRUPT: "true"})
    small = [f"d-{number}" for number in range(3)]
    for name in small:
        cluster.node(name, ON_DEMAND, LARGE, "500m")
    most = 0

    def one_is_left() -> bool:
        nonlocal most
        cluster.play()
        # A claim whose Node is gone is out of the budget, and may be there for a moment.
        nodes = {node.name for node in stack.all(Node)}
        ending = [claim for claim in stack.all(NodeClaim) if claim.name in small and claim.deleting]
        most = max(most, sum(claim.status.node_name in nodes for claim in ending))
        return cluster.claims() == {"b-0"}

    stack.until(one_is_left, "all have moved", step=STEP)
    assert most <= 1


def test_step_is_not_taken_if_its_room_is_gone_before_it_is_validated(stack: Stack) -> None:
    cluster = Cluster(stack, consolidateAfter="60s")
    held = {"annotations": {names.DO_NOT_DISRUPT: "true"}}
    cluster.node("b-0", ON_DEMAND, LARGE, "500m", **held)
    cluster.node("d-0", ON_DEMAND, LARGE, "1")
    stack.until(lambda: stack.is_true("d-0", names.CONSOLIDATABLE), "quiet", step=STEP)
    assert not stack.get(NodeClaim, "d-0").deleting
    cluster.sizes["late"] = "1"
    run(stack, "late", stack.get(NodeClaim, "b-0").status.node_name, cpu="1", labels={"app": "late"})
    cluster.pass_time(180)
    assert cluster.claims() == {"b-0", "d-0"}


def test_node_stays_with_its_pods_if_ec2_has_no_cheaper_machine(stack: Stack) -> None:
    cluster = Cluster(stack, types=(LARGE, XLARGE))
    cluster.node("d-0", ON_DEMAND, XLARGE, "1500m")
    stack.control.pool(instance_type=LARGE, zone=A, size=0)
    calls = stack.calls("CreateFleet")
    stack.until(lambda: stack.calls("CreateFleet") > calls, "a refusal", step=STEP)
    cluster.pass_time(300)
    assert not stack.get(NodeClaim, "d-0").deleting
    assert stack.find(Pod, "d-0-0", namespace="default") is not None
    shown = stack.condition(NodePool, "web", "NodesReplaced")
    assert shown is None or shown.status == "True"


@pytest.mark.covers("FUL-40")
def test_no_saving_lowers_the_minimum_of_values(stack: Stack) -> None:
    cluster = Cluster(stack, types=(LARGE, XLARGE))
    required = [
        {"key": names.CAPACITY_TYPE, "operator": "In", "values": [ON_DEMAND]},
        {"key": names.INSTANCE_TYPE, "operator": "In", "values": [LARGE, XLARGE], "minValues": 2},
    ]
    stack.edit(NodePool, "web", {"spec": {"template": {"spec": {"requirements": required}}}})
    cluster.node("d-0", ON_DEMAND, XLARGE, "1500m")
    for _ in range(40):
        cluster.play()
        stack.advance(STEP)
        stack.passes(1)
    assert cluster.claims() == {"d-0"}
