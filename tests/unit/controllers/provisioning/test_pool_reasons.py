"""The order in which a pod's event names NodePools."""

from __future__ import annotations

from typing import Any

import pytest

from broker.apis import names
from broker.apis.core import Pod
from broker.apis.karpenter import NodePool
from broker.controllers.provisioning.offers import Offers
from broker.controllers.provisioning.pending import pending_pod
from broker.controllers.provisioning.pool_reasons import empty_pools, pool_reasons
from broker.placement.gangs import unknown_sizes
from broker.placement.machines import NO_OPTION
from broker.placement.model import NodeInfo
from broker.placement.packing_model import NO_DRAWING, Drawing, MachineOption, Packing, PendingPod
from broker.placement.pool_room import TypeRoom
from broker.placement.storage import Storage
from broker.placement.type_reasons import PoolReason
from providers.model import Gpu, InstanceType

ZONES = frozenset({"us-east-1a", "us-east-1b"})
H100 = Gpu(name="H100", manufacturer="NVIDIA", count=8, memory_mib=81920)
TYPES = (
    InstanceType(name="m5.large", vcpus=2, memory_mib=8192, zones=ZONES),
    InstanceType(name="p5.48xlarge", vcpus=192, memory_mib=2 * 2**20, zones=ZONES, gpus=(H100,)),
)
ROOM = TypeRoom(lambda: {type_.name: type_ for type_ in TYPES})


def pool(name: str, draws: str = "", **spec: Any) -> NodePool:
    ref = {"group": names.BROKER, "kind": "EC2NodeClass", "name": "gpu"}
    template: dict[str, Any] = {"spec": {"nodeClassRef": ref, **spec}}
    template["metadata"] = {"annotations": {names.DRAWS_FROM: draws} if draws else {}}
    return NodePool.decode({"metadata": {"name": name}, "spec": {"template": template}})


@pytest.mark.covers("FLT-22")
@pytest.mark.parametrize(("draws", "first"), [("team/gpus", "theirs"), ("", "any"), ("other/gpus", "any")])
def test_the_pool_of_the_owner_is_named_first(draws: str, first: str) -> None:
    drawing = Drawing(named=draws, admitted=(draws,) if draws else ())
    body = {"metadata": {"name": "p", "namespace": "team", "uid": "u"}, "spec": {"containers": []}}
    pod = pending_pod(Pod.decode(body), lambda *_: drawing, unknown_sizes)
    offered = Offers(
        options=(), room={}, empty={("any", drawing): "full", ("theirs", drawing): "its slots are lent"}
    )
    packing = Packing(bins=(), reasons={pod.key: NO_OPTION})
    pools = [pool("any"), pool("theirs", "team/gpus")]
    reasons = pool_reasons(packing, [pod], offered, pools, [], Storage(), ("any", "theirs"), ROOM)
    assert reasons[pod.key].startswith(f"NodePool {first}: ")


def test_a_pool_of_another_controller_is_not_said_to_be_missing() -> None:
    selected = {"containers": [], "nodeSelector": {names.NODEPOOL: "gpu-karp"}}
    body = {"metadata": {"name": "p", "namespace": "team", "uid": "u"}, "spec": selected}
    pod = pending_pod(Pod.decode(body), lambda *_: NO_DRAWING, unknown_sizes)
    offered = Offers(options=(), room={}, empty={("any", NO_DRAWING): "full"})
    packing = Packing(bins=(), reasons={pod.key: NO_OPTION})

    def reason(*existing: str) -> str:
        every = [pool("any")]
        return pool_reasons(packing, [pod], offered, every, [], Storage(), existing, ROOM)[pod.key]

    assert reason("any") == "NodePool gpu-karp does not exist; the cluster has any"
    assert reason("any", "gpu-karp") == (
        "no NodePool accepts it: NodePool any: karpenter.sh/nodepool: no value satisfies In [any] and "
        "In [gpu-karp]"
    )


def pending(
    selector: dict[str, str], name: str = "p", drawing: Drawing = NO_DRAWING, *, cpu: str = "1"
) -> PendingPod:
    container = {"name": "main", "image": "pause", "resources": {"requests": {"cpu": cpu}}}
    body = {
        "metadata": {"name": name, "namespace": "team", "uid": name},
        "spec": {"containers": [container], "nodeSelector": selector},
    }
    return pending_pod(Pod.decode(body), lambda *_: drawing, unknown_sizes)


def reason_of(selector: dict[str, str], *pools: NodePool, cpu: str = "1") -> str:
    """The reason of a pod for which each pool has types that cannot have it."""
    pod = pending(selector, cpu=cpu)
    known = {item.name: PoolReason("2 instance types do not match it") for item in pools}
    packing = Packing(reasons={pod.key: "none"}, by_pool={pod.key: known})
    existing = [item.name for item in pools]
    offered = Offers(options=(), room={})
    return pool_reasons(packing, [pod], offered, pools, [], Storage(), existing, ROOM)[pod.key]


@pytest.mark.covers("FLT-35")
@pytest.mark.parametrize(
    ("selector", "text"),
    [
        (
            {names.INSTANCE_TYPE: "m5.lrage"},
            "no instance type 'm5.lrage' in this Region; the nearest name is m5.large",
        ),
        ({names.INSTANCE_GPU_NAME: "amdgpu"}, "no GPU 'amdgpu' in this Region; there are h100"),
        (
            {names.ARCH: "ppc64le"},
            "no instance type of architecture 'ppc64le' in this Region; there are amd64",
        ),
        ({names.ZONE: "us-east-1z"}, "this Region has no zone 'us-east-1z'; the nearest name is us-east-1b"),
        ({names.CAPACITY_TYPE: "spto"}, "there is no capacity type 'spto'; the nearest name is spot"),
    ],
    ids=["type", "gpu", "architecture", "zone", "capacity type"],
)
def test_label_value_that_nothing_has_is_the_whole_reason(selector: dict[str, str], text: str) -> None:
    reason = reason_of(selector, pool("a"), pool("b"))
    assert reason.endswith(text) and "NodePool" not in reason and "node(s)" not in reason


@pytest.mark.covers("FLT-35")
def test_pools_with_one_reason_are_one_clause() -> None:
    chosen = {names.INSTANCE_GPU_NAME: "h100", names.INSTANCE_FAMILY: "m5"}
    assert reason_of(chosen, pool("a"), pool("b")) == (
        "NodePools a, b: EC2 has no instance type that it and the pod's selector allow "
        f"({names.INSTANCE_FAMILY} one of m5, {names.INSTANCE_GPU_NAME} one of h100)"
    )


@pytest.mark.covers("FLT-35")
def test_of_pools_that_refuse_a_pod_only_the_one_that_it_names_is_shown() -> None:
    reserved = {"key": names.CAPACITY_TYPE, "operator": "In", "values": ["reserved"]}
    pools = [pool(name, requirements=[reserved]) for name in ("a", "b", "c", "mix")]
    chosen = {names.NODEPOOL: "mix", names.CAPACITY_TYPE: "spot"}
    assert reason_of(chosen, *pools) == (
        f"no NodePool accepts it: NodePool mix: {names.CAPACITY_TYPE}: no value satisfies In [reserved] and "
        "In [spot]"
    )


@pytest.mark.covers("FLT-35")
def test_pod_larger_than_each_type_is_told_the_largest() -> None:
    assert reason_of({}, pool("a"), cpu="500") == (
        "NodePool a: the largest type that it allows has 192 CPU, the pod requests 500 CPU"
    )


def test_types_that_some_pool_has_are_counted() -> None:
    assert reason_of({names.ZONE: "us-east-1a"}, pool("a")) == "NodePool a: 2 instance types do not match it"


def test_pool_offers_none_only_if_it_has_no_machine_for_any_pod() -> None:
    team, named = Drawing(admitted=("team/gpus",)), Drawing("team/gone")
    node = NodeInfo(name="m")
    owned = MachineOption(
        pool="owned",
        node=node,
        instance_type="m5.large",
        zone="us-east-1a",
        capacity_type="reserved",
        cost=1.0,
        drawing=team,
    )
    empty = {
        ("owned", NO_DRAWING): "the slots are the team's",
        ("full", team): "reservation full",  # also if only the pods of its owner wait
        ("other", named): "no reservation team/gone",  # which is the pod's problem
    }
    waiting = [pending({}, name, drawing) for name, drawing in (("t", team), ("n", NO_DRAWING), ("o", named))]
    offered = Offers(options=(owned,), room={}, empty=empty)
    pools = [pool(name) for name in ("owned", "full", "other")]
    assert empty_pools(waiting, offered, pools, ROOM) == {"full": "reservation full"}


@pytest.mark.parametrize(
    ("selector", "cpu"), [({names.NODEPOOL: "other"}, "1"), ({names.ZONE: "us-east-1z"}, "1"), ({}, "500")]
)
def test_pool_that_no_pod_could_use_has_no_condition_of_its_offers(
    selector: dict[str, str], cpu: str
) -> None:
    offered = Offers(options=(), room={}, empty={("full", NO_DRAWING): "reservation full"})
    assert not empty_pools([pending(selector, cpu=cpu)], offered, [pool("full")], ROOM)
    assert empty_pools([pending({})], offered, [pool("full")], ROOM)
