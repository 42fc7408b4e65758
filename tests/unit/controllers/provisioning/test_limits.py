"""The limits of NodePools hold, whatever pods come, however late EC2 answers, and with replacements."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.apis import names
from broker.apis.core import Pod
from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.karpenter_aws import EC2NodeClass
from broker.capacity.entitlement import NO_ENTITLEMENTS
from broker.capacity.shortages import Shortages
from broker.capacity.supply import LaunchSupply
from broker.capacity.types import capacity
from broker.controllers.disruption.machines import MachineFinder
from broker.controllers.disruption.replacements import Demand
from broker.controllers.disruption.snapshot import ManagedNode
from broker.controllers.nodereservation.occupancy import NodeOccupancy
from broker.controllers.provisioning.creation import within_limits
from broker.controllers.provisioning.decide import (
    LaunchState,
    NewClaim,
    ProvisioningCluster,
    ProvisioningPlanner,
)
from broker.controllers.provisioning.learned import LearnedRoom
from broker.controllers.provisioning.pools import served
from broker.controllers.provisioning.usage import (
    LargestMachines,
    exceeded,
    limit_amounts,
    pool_limits,
    pool_usage,
)
from broker.placement.gangs import unknown_sizes
from broker.placement.model import NodeInfo
from broker.placement.packing_model import MachineOption, PendingPod
from broker.placement.quantities import amounts
from broker.placement.storage import Storage
from tests.support.examples import examples
from tests.unit.capacity.builders import NOW, TYPES, inventory, node_class
from tests.unit.placement.builders import pod

Json = dict[str, Any]
CLASS = node_class(zones=("us-east-1a",))
REPLACES_A = {names.REPLACES: "a/a"}
SIZES = ("m5.large", "m5.xlarge", "m5.2xlarge")  # 2, 4 and 8 cores


def machine(name: str) -> dict[str, int]:
    """The capacity of a machine of the type, as limits count it."""
    room = capacity(TYPES[name], CLASS)
    return {key: int(value * 1000 if key == "cpu" else value) for key, value in room.items()} | {"nodes": 1}


def node_pool(name: str = "web", **spec: Any) -> NodePool:
    required = [
        {"key": names.INSTANCE_TYPE, "operator": "In", "values": [*SIZES]},
        {"key": names.CAPACITY_TYPE, "operator": "In", "values": ["on-demand"]},
    ]
    ref = {"group": names.BROKER, "kind": "EC2NodeClass", "name": "default"}
    template = {"spec": {"nodeClassRef": ref, "requirements": required}}
    return NodePool.decode({"metadata": {"name": name, "uid": name}, "spec": {"template": template, **spec}})


def claim(name: str, *types: str, launched: str = "", **more: Any) -> NodeClaim:
    """A claim of the pool for one of the types; `launched`: the one that EC2 gave."""
    meta = {"name": name, "uid": name, "labels": {names.NODEPOOL: "web"}, **more.pop("metadata", {})}
    required = [{"key": names.INSTANCE_TYPE, "operator": "In", "values": [*types]}] if types else []
    spec = {"nodeClassRef": {"name": "default"}, "requirements": required, **more}
    return launch(NodeClaim.decode({"metadata": meta, "spec": spec}), launched)


def launch(known: NodeClaim, type_: str) -> NodeClaim:
    if not type_:
        return known
    room = {key: f"{n}m" if key == "cpu" else str(n) for key, n in machine(type_).items() if key != "nodes"}
    body = known.wire()
    body["status"] = {"providerID": f"aws:///us-east-1a/i-{known.name}", "capacity": room}
    return NodeClaim.decode(body)


def listed(known: NodeClaim) -> list[str]:
    """The types that EC2 may answer with."""
    values = [set(r.values) for r in known.spec.requirements if r.key == names.INSTANCE_TYPE and r.values]
    return sorted(set(SIZES).intersection(*values), key=SIZES.index)


def largest() -> LargestMachines:
    return LargestMachines(TYPES, lambda _: CLASS)


@pytest.mark.covers("FLT-61", "FLT-70")
@pytest.mark.parametrize(
    ("claims", "cores"),
    [
        ([], 0),
        ([claim("a", "m5.large", "m5.2xlarge")], 8),  # in flight: it may get either
        ([claim("a", "m5.large", "m5.2xlarge", launched="m5.large")], 2),
        ([claim("a")], 192),  # in flight, with any type of the class
        # In flight, with any type that its other requirements admit.
        (
            [
                claim(
                    "a",
                    requirements=[
                        {"key": names.INSTANCE_CPU, "operator": "Lt", "values": ["8"]},
                        {"key": names.INSTANCE_TENANCY, "operator": "In", "values": ["dedicated"]},
                    ],
                )
            ],
            4,
        ),
        ([claim("a", "m5.large", metadata={"deletionTimestamp": "2026-11-01T12:00:00Z"})], 0),
        (
            [
                claim("a", "m5.large", launched="m5.large"),
                claim("b", "m5.xlarge", metadata={"annotations": REPLACES_A}),
            ],
            4,  # the replacement counts instead of the node
        ),
        (
            [
                claim("a", "m5.large", launched="m5.large"),
                claim(
                    "b",
                    "m5.xlarge",
                    metadata={
                        "annotations": REPLACES_A,
                        "deletionTimestamp": "2026-11-01T12:00:00Z",
                    },
                ),
            ],
            2,  # the replacement was given up
        ),
        (
            [
                claim("a", "m5.2xlarge", launched="m5.2xlarge"),
                claim("b", "m5.large", metadata={"annotations": REPLACES_A}),
            ],
            8,  # the replacement may be given up
        ),
        (
            [
                *(claim(name, "m5.large", launched="m5.large") for name in "abc"),
                claim("d", "m5.xlarge", metadata={"annotations": {**REPLACES_A, names.REPLACES_ALSO: "b/b"}}),
            ],
            6,  # one replacement counts instead of two nodes, and the third stays
        ),
        (
            [
                *(claim(name, "m5.large", launched="m5.large") for name in "abc"),
                claim(
                    "d", "m5.xlarge", metadata={"annotations": {**REPLACES_A, names.REPLACES_ALSO: "b/b,c/c"}}
                ),
            ],
            6,  # the replacement of three nodes may be given up
        ),
        ([claim("a", "m5.large", resources={"requests": {"cpu": "1"}})], 2),
        ([claim("a", "unknown.type", resources={"requests": {"cpu": "3"}})], 3),
        ([claim("a", "m5.large", metadata={"labels": {}})], 0),  # of no pool
        ([claim("a", "m5.large"), claim("b", "m5.xlarge", launched="m5.xlarge")], 6),
    ],
)
def test_claim_counts_with_the_machine_that_it_may_get(claims: list[NodeClaim], cores: int) -> None:
    pool = node_pool(limits={"cpu": "1000"})
    remaining = pool_limits([pool], claims, [], largest())
    assert remaining == {"web": {"cpu": (1000 - cores) * 1000}}


@pytest.mark.covers("FLT-61")
def test_status_counts_one_replacement_instead_of_all_nodes_that_end_for_it() -> None:
    olds = [claim(name, "m5.large", launched="m5.large") for name in "abc"]
    annotations = {**REPLACES_A, names.REPLACES_ALSO: "b/b,c/c"}
    new = claim("d", "m5.xlarge", launched="m5.xlarge", metadata={"annotations": annotations})
    assert pool_usage([*olds, new], [])["web"] == machine("m5.xlarge")


@pytest.mark.covers("FLT-61")
def test_instance_of_a_type_that_was_unknown_counts_with_the_claims_types() -> None:
    bound = claim("a", "m5.xlarge", launched="m5.large")
    unknown = NodeClaim.decode({**bound.wire(), "status": {"providerID": bound.status.provider_id}})
    pool = node_pool(limits={"cpu": "10"})
    assert pool_limits([pool], [unknown], [], largest()) == {"web": {"cpu": 6000}}


@dataclass
class World:
    """One pool's claims, its pods without room, and the loops that create claims."""

    pool: NodePool
    claims: dict[str, NodeClaim] = field(default_factory=dict)
    pods: list[PendingPod] = field(default_factory=list)
    decided: list[NewClaim] = field(default_factory=list)
    replacements: int = 0

    def decide(self) -> None:
        """A provisioning run decides; its claims are created later."""
        ready = SimpleNamespace(plan=CLASS, source=EC2NodeClass.decode({"metadata": {"name": "default"}}))
        state = LaunchState(
            supply=LaunchSupply(
                classes={"default": CLASS},
                types=TYPES,
                inventory=inventory(),
                shortages=Shortages(),
                now=NOW,
            ),
            entitle=lambda *_: NO_ENTITLEMENTS,
            owns=lambda _: True,
            launching=lambda _: False,
        )
        served_pool = served(self.pool, lambda _: ready)  # type: ignore[arg-type, return-value]
        decision = ProvisioningPlanner(
            pools=[served_pool],
            pending=self.pods,
            cluster=ProvisioningCluster(
                pods=[Pod.decode({"metadata": {"name": item.info.name}}) for item in self.pods],
                claims=[*self.claims.values()],
                occupancy=NodeOccupancy(),
                daemons=[],
                learned=LearnedRoom(),
                storage=Storage(),
                group_size=unknown_sizes,
                pools=[self.pool.name],
            ),
            launches=lambda: state,
            now=NOW,
            seconds=1.0,
            timer=float,
        ).decide()
        self.decided = [*decision.created]

    def create(self) -> None:
        limits = pool_limits([self.pool], self.claims.values(), [], largest())
        for item in within_limits(self.decided, limits):
            body = {**item.body, "metadata": {**item.body["metadata"], "uid": item.name}}
            self.claims.setdefault(item.name, NodeClaim.decode(body))
            served_keys = {p.key for p in item.packed.pods}
            self.pods = [waiting for waiting in self.pods if waiting.key not in served_keys]
        self.decided = []

    def answer(self, name: str, type_: str) -> None:
        if self.claims[name].waits:
            self.claims[name] = launch(self.claims[name], type_)

    def replace(self, name: str, least: int, meanwhile: Callable[[], object] = int) -> None:
        """Disruption replaces a node by one of the types of at least a size; other loops act meanwhile."""
        old = self.claims[name]
        if not old.status.provider_id or any(
            names.REPLACES in c.annotations and c.annotations[names.REPLACES].startswith(f"{name}/")
            for c in self.claims.values()
        ):
            return
        options = [
            MachineOption(
                pool="web",
                node=NodeInfo(name=type_),
                instance_type=type_,
                zone="us-east-1a",
                capacity_type="on-demand",
                cost=1.0,
                capacity=machine(type_),
            )
            for type_ in SIZES[least:]
        ]
        every = SimpleNamespace(list=lambda: [*self.claims.values()])
        finder = MachineFinder(
            caches=SimpleNamespace(claims=every, nodes=SimpleNamespace(list=list)),  # type: ignore[arg-type]
            sources=SimpleNamespace(  # type: ignore[arg-type]
                nodeclasses=SimpleNamespace(plan=lambda _: CLASS),
            ),
            snapshot=SimpleNamespace(pools={"web": self.pool}),  # type: ignore[arg-type]
            observed=SimpleNamespace(types=TYPES),  # type: ignore[arg-type]
        )
        needed = Demand(node=ManagedNode(claim=old, pool=self.pool), pods=())
        if finder.over_limits([needed.node]):
            return
        pairs = finder.within_limits([(needed, options)])
        meanwhile()
        if not pairs[0][1] or not finder.admit(pairs):
            return
        self.replacements += 1
        types = [option.instance_type for option in pairs[0][1]]
        new = f"replacement-{self.replacements}"
        meta = {"annotations": {names.REPLACES: f"{name}/{name}"}}
        self.claims[new] = claim(new, *types, metadata=meta)

    def end(self, name: str) -> None:
        """A node ends, or a replacement is given up and its node stays."""
        del self.claims[name]

    def used(self, *, in_flight: bool) -> dict[str, int]:
        """As EC2 has it: nodes that are replaced, or that end, are on their way out."""
        replaced = {c.annotations.get(names.REPLACES, "/").partition("/")[0] for c in self.claims.values()}
        total: dict[str, int] = {}
        for name, known in self.claims.items():
            if name in replaced or not (in_flight or known.status.provider_id):
                continue
            room = amounts(known.status.capacity) or machine(listed(known)[-1])
            for key, amount in {**room, "nodes": 1}.items():
                total[key] = total.get(key, 0) + amount
        return total


ACTS = st.one_of(
    st.tuples(st.just("pods"), st.integers(1, 4), st.sampled_from(["300m", "1500m", "3", "6"])),
    st.tuples(st.sampled_from(["run", "run", "decide", "create", "restart"]), st.just(0), st.just("")),
    st.tuples(st.sampled_from(["answer", "answer", "end"]), st.integers(0, 9), st.sampled_from(SIZES)),
    st.tuples(
        st.sampled_from(["replaced", "created first", "replaced first"]),
        st.integers(0, 9),
        st.sampled_from(SIZES),
    ),
)
LIMITS = [{"cpu": "20"}, {"cpu": "7", "nodes": "3"}, {"memory": "40Gi"}, {"nodes": "2"}, {"pods": "120"}]


@pytest.mark.covers("FLT-61")
@examples(80)
@given(st.sampled_from(LIMITS), st.lists(ACTS, min_size=4, max_size=30))
def test_no_sequence_of_pods_slow_calls_and_restarts_exceeds_limits(
    limits: dict[str, str], acts: list[tuple[str, int, str]]
) -> None:
    world = World(node_pool(limits=limits))
    for number, (act, count, text) in enumerate(acts):
        names_ = [*world.claims]
        if act == "pods":
            world.pods += [
                PendingPod(info=pod(f"p-{number}-{n}", requests={"cpu": text})) for n in range(count)
            ]
        elif act in ("decide", "run"):
            world.decide()
            if act == "run":
                world.create()
        elif act == "create":
            world.create()
        elif act == "restart":
            world.decided = []
        elif names_:
            name = names_[count % len(names_)]
            possible = listed(world.claims[name])
            if act == "answer":
                world.answer(name, possible[SIZES.index(text) % len(possible)])
            elif act == "end":
                world.end(name)
            else:
                world.decide()
                world.replace(name, SIZES.index(text), world.create if act == "created first" else int)
                if act == "replaced first":
                    world.create()
        assert not exceeded(limit_amounts(limits), world.used(in_flight=True)), act
    for name, known in world.claims.items():
        world.answer(name, listed(known)[-1])  # at last, EC2 answers every call with the largest machine
    assert not exceeded(limit_amounts(limits), world.used(in_flight=False))
    status: Mapping[str, int] = pool_usage(world.claims.values(), []).get("web", {})
    assert {key: n for key, n in status.items() if n} == world.used(in_flight=False)


@pytest.mark.covers("FLT-61")
@pytest.mark.parametrize("first", ["created first", "replaced first"])
def test_two_loops_that_create_claims_at_once_stay_within_the_limits(first: str) -> None:
    """A machine of 8 cores and a replacement of 4 for a node of 2 are within 10 only one by one."""
    world = World(node_pool(limits={"cpu": "10"}), {"old": claim("old", "m5.large", launched="m5.large")})
    world.pods = [PendingPod(info=pod("p", requests={"cpu": "6"}))]
    world.decide()
    world.replace("old", 1, world.create if first == "created first" else int)
    world.create()
    assert len(world.claims) == 2
    assert world.used(in_flight=True)["cpu"] in (4000, 10000)


@pytest.mark.covers("FLT-61")
def test_a_negative_limit_of_an_unused_pool_is_exceeded() -> None:
    """The definition of a NodePool allows it, and no error of one pool may stop the others."""
    assert exceeded(limit_amounts({"cpu": "-1", "nodes": "-2"}), {}) == "cpu 0 of -1, nodes 0 of -2"
