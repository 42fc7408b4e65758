"""The drift of a claim from its NodePool."""

from __future__ import annotations

from typing import Any

import pytest

from broker.apis import names
from broker.apis.karpenter import NodeClaim, NodePool
from broker.controllers.disruption.drift import drift


def drifted(requirement: dict[str, Any], **labels: str) -> str:
    template = {"spec": {"nodeClassRef": {"name": "web"}, "requirements": [requirement]}}
    pool = NodePool.decode({"metadata": {"name": "web"}, "spec": {"template": template}})
    claim = NodeClaim.decode({"metadata": {"name": "c-0", "labels": labels}, "spec": {}})
    return drift(claim, pool, None, None)


@pytest.mark.parametrize("key", names.UNLABELED_KEYS)
@pytest.mark.parametrize("operator", [{"operator": "Exists"}, {"operator": "In", "values": ["1"]}])
def test_a_claim_does_not_drift_from_labels_that_no_node_has(key: str, operator: dict[str, Any]) -> None:
    assert drifted({"key": key, **operator}) == ""


def test_a_claim_drifts_from_a_label_that_its_node_should_have() -> None:
    requirement = {"key": names.INSTANCE_TYPE, "operator": "In", "values": ["c5.large"]}
    assert drifted(requirement) == "RequirementsDrifted"
    assert drifted(requirement, **{names.INSTANCE_TYPE: "c5.large"}) == ""
