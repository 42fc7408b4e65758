"""The NodeClaim of a replacement: the types that it lists, and its minValues."""

from __future__ import annotations

from typing import Any

from broker.apis import names
from broker.apis.karpenter import NodeClaim, NodePool
from broker.controllers.disruption.replacements import body, demand
from broker.controllers.disruption.snapshot import ManagedNode
from broker.placement.model import NodeInfo
from broker.placement.packing_model import MachineOption
from broker.reservations.drawing import DrawRights

FAMILY = "karpenter.k8s.aws/instance-family"


def machine(name: str, family: str) -> MachineOption:
    return MachineOption(
        pool="web",
        node=NodeInfo(name=name, labels={names.INSTANCE_TYPE: name, FAMILY: family}),
        instance_type=name,
        zone="us-east-1a",
        capacity_type="on-demand",
        cost=1.0,
    )


def requirements(count: int, least: dict[str, int]) -> dict[str, dict[str, Any]]:
    """The requirements of a replacement that fits on so many types, each of a family of its own from the
    80th on; by key and operator.
    """
    given = [{"key": key, "operator": "Exists", "minValues": value} for key, value in least.items()]
    template = {"spec": {"nodeClassRef": {"name": "web"}, "requirements": given}}
    pool = NodePool.decode({"metadata": {"name": "web"}, "spec": {"template": template}})
    claim = NodeClaim.decode({"metadata": {"name": "old", "uid": "u-1"}, "spec": {}})
    types = [f"t{number:03}" for number in range(count)]
    machines = [machine(name, "cheap" if name < "t080" else name) for name in types]
    needed = demand(ManagedNode(claim=claim, pool=pool), ())
    claim_body = body(needed, machines, rights=DrawRights({}), name="new", move="m/1/Drifted")
    listed = claim_body["spec"]["requirements"]
    return {f"{requirement['key']} {requirement['operator']}": requirement for requirement in listed}


def test_a_replacement_lists_enough_types_for_min_values() -> None:
    by_key = requirements(100, {FAMILY: 3})
    listed = by_key[f"{names.INSTANCE_TYPE} In"]["values"]
    assert len(listed) == 60 and listed[-2:] == ["t080", "t081"]
    assert by_key[f"{FAMILY} Exists"]["minValues"] == 3


def test_min_values_beyond_the_types_that_fit_are_lowered() -> None:
    by_key = requirements(2, {FAMILY: 3, names.INSTANCE_TYPE: 5})
    assert by_key[f"{FAMILY} Exists"]["minValues"] == 1
    assert by_key[f"{names.INSTANCE_TYPE} Exists"]["minValues"] == 2
