"""Claims that another loop made since a decision hold back only those that may be the same machines."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.apis import names
from broker.apis.karpenter import NodeClaim, NodePool
from broker.controllers.claim_caches import ClaimCaches
from broker.controllers.nodeclass.controller import NodeClassController
from broker.controllers.provisioning.creation import OVERTAKEN, ClaimCreator, LaunchProgress
from broker.controllers.provisioning.decide import NewClaim
from broker.controllers.slots.controller import PreemptionController
from broker.kube.client import Client
from broker.kube.writers import WriterPool
from broker.placement.model import NodeInfo
from broker.placement.packing_model import MachineOption, PackedBin, PendingPod
from tests.unit.capacity.builders import TYPES
from tests.unit.placement.builders import pod

OTHER = "static-1"


def required(type_: str, kind: str, zone: str = "us-east-1a") -> list[dict[str, Any]]:
    chosen = {names.INSTANCE_TYPE: type_, names.CAPACITY_TYPE: kind, names.ZONE: zone}
    return [{"key": key, "operator": "In", "values": [value]} for key, value in chosen.items() if value]


def body(name: str, requirements: list[dict[str, Any]]) -> dict[str, Any]:
    owner = {"apiVersion": "karpenter.sh/v1", "kind": NodePool.KIND.kind, "name": "static", "uid": "pool"}
    meta = {"name": name, "uid": name, "ownerReferences": [owner]}
    return {"metadata": meta, "spec": {"nodeClassRef": {"name": "gpu"}, "requirements": requirements}}


def new_claim(name: str, type_: str, kind: str = "reserved", gang: str = "") -> NewClaim:
    option = MachineOption(
        pool="team",
        node=NodeInfo(name="m"),
        instance_type=type_,
        zone="us-east-1a",
        capacity_type=kind,
        cost=1.0,
    )
    waiting = PendingPod(info=pod(name), gang=gang)
    return NewClaim(
        packed=PackedBin(option=option, pods=(waiting,)), name=name, body=body(name, required(type_, kind))
    )


def created_beside(late: NodeClaim, *new: NewClaim) -> tuple[list[str], dict[str, str]]:
    """The claims that are created although another loop made one meanwhile, and the reasons of pods."""
    created: list[str] = []
    caches = SimpleNamespace(
        claims=SimpleNamespace(list=lambda: [late], observe=lambda _: None),
        pools=SimpleNamespace(list=list),
        nodes=SimpleNamespace(list=list),
    )
    creator = ClaimCreator(
        cast(Client, SimpleNamespace(create=lambda _, body: created.append(body["metadata"]["name"]))),
        cast(ClaimCaches, caches),
        cast(NodeClassController, SimpleNamespace(plan=lambda _: None)),
        cast(PreemptionController, SimpleNamespace(snapshot=lambda: SimpleNamespace(types=TYPES))),
        launches=cast(LaunchProgress, SimpleNamespace(creating=nullcontext)),
        writers=WriterPool("test"),
        created=lambda _: None,
    )
    reasons = creator.create(new, frozenset())
    assert creator.overtaken == bool(reasons)
    return sorted(created), reasons


@pytest.mark.parametrize(
    ("other", "shares"),
    [
        (required("m5.large", "reserved"), True),
        ([], True),
        (required("m5.xlarge", "reserved"), False),
        ([{"key": names.INSTANCE_FAMILY, "operator": "In", "values": ["g5"]}], False),
        (required("m5.large", "reserved", "us-east-1b"), False),
        (required("m5.large", "on-demand"), False),
    ],
    ids=["same", "any", "other type", "other family", "other zone", "not reserved"],
)
def test_pod_is_overtaken_only_by_a_claim_that_may_be_its_machine(
    other: list[dict[str, Any]], shares: bool
) -> None:
    created, reasons = created_beside(NodeClaim.decode(body(OTHER, other)), new_claim("new", "m5.large"))
    assert (created, [*reasons.values()]) == (([], [OVERTAKEN.format(OTHER)]) if shares else (["new"], []))


def test_gang_is_overtaken_as_a_whole() -> None:
    late = NodeClaim.decode(body(OTHER, required("m5.large", "reserved")))
    gang = [new_claim("g-0", "m5.large", gang="g"), new_claim("g-1", "m5.xlarge", gang="g")]
    created, reasons = created_beside(late, *gang, new_claim("alone", "m5.xlarge"))
    assert created == ["alone"] and len(reasons) == 2
