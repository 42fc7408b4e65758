"""The order in which a pod's event names NodePools."""

from __future__ import annotations

from typing import Any

import pytest

from broker.apis import names
from broker.apis.core import Pod
from broker.apis.karpenter import NodePool
from broker.controllers.provisioning.offers import Offers
from broker.controllers.provisioning.pending import pending_pod
from broker.controllers.provisioning.pool_reasons import pool_reasons
from broker.placement.gangs import unknown_sizes
from broker.placement.machines import NO_OPTION
from broker.placement.model import NodeInfo
from broker.placement.packing_model import NO_DRAWING, Drawing, MachineOption, Packing
from broker.placement.storage import Storage


def pool(name: str, draws: str = "") -> NodePool:
    ref = {"group": names.BROKER, "kind": "EC2NodeClass", "name": "gpu"}
    template: dict[str, Any] = {"spec": {"nodeClassRef": ref}}
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
    reasons = pool_reasons(packing, [pod], offered, pools, [], Storage(), ("any", "theirs"))
    assert reasons[pod.key].startswith(f"NodePool {first}: ")


def test_a_pool_of_another_controller_is_not_said_to_be_missing() -> None:
    selected = {"containers": [], "nodeSelector": {names.NODEPOOL: "gpu-karp"}}
    body = {"metadata": {"name": "p", "namespace": "team", "uid": "u"}, "spec": selected}
    pod = pending_pod(Pod.decode(body), lambda *_: NO_DRAWING, unknown_sizes)
    offered = Offers(options=(), room={}, empty={("any", NO_DRAWING): "full"})
    packing = Packing(bins=(), reasons={pod.key: NO_OPTION})

    def reason(*existing: str) -> str:
        return pool_reasons(packing, [pod], offered, [pool("any")], [], Storage(), existing)[pod.key]

    assert reason("any") == "NodePool gpu-karp does not exist; there are any"
    assert "not exist" not in reason("any", "gpu-karp") and "1 NodePool of no use" in reason(
        "any", "gpu-karp"
    )


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
    offers = Offers(options=(owned,), room={}, empty=empty)
    assert offers.empty_pools == {"full": "reservation full"}
