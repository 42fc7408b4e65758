"""The drift of a claim from its NodePool."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from broker.apis import names
from broker.apis.karpenter import NodeClaim, NodePool
from broker.capacity.types import node_labels
from broker.controllers.disruption.drift import drift
from tests.unit.capacity.builders import type_

FACTS = node_labels(type_("m5.large"), "us-east-1a", zone_id="use1-az1")


def drifted(requirement: dict[str, Any], facts: Mapping[str, str] | None = FACTS, **labels: str) -> str:
    template = {"spec": {"nodeClassRef": {"name": "web"}, "requirements": [requirement]}}
    pool = NodePool.decode({"metadata": {"name": "web"}, "spec": {"template": template}})
    claim = NodeClaim.decode({"metadata": {"name": "c-0", "labels": labels}, "spec": {}})
    return drift(claim, pool, None, None, facts)


@pytest.mark.parametrize("key", names.UNLABELED_KEYS)
@pytest.mark.parametrize("operator", [{"operator": "Exists"}, {"operator": "In", "values": ["1"]}])
def test_a_claim_does_not_drift_from_labels_that_no_node_has(key: str, operator: dict[str, Any]) -> None:
    assert drifted({"key": key, **operator}) == ""


def needs(key: str, *values: str, operator: str = "In") -> dict[str, Any]:
    return {"key": key, "operator": operator, "values": [*values]}


@pytest.mark.covers("FLT-09")
@pytest.mark.parametrize(
    ("requirement", "reason"),
    [
        (needs(names.INSTANCE_TYPE, "c5.large"), "RequirementsDrifted"),
        (needs(names.INSTANCE_TYPE, "m5.large"), ""),
        (needs(names.INSTANCE_TENANCY, "default"), ""),
        (needs(names.INSTANCE_TENANCY, "dedicated"), "RequirementsDrifted"),
        (needs(names.INSTANCE_CAPABILITY_FLEX, "false"), ""),
        (needs(names.INSTANCE_CAPABILITY_FLEX, "true"), "RequirementsDrifted"),
        (needs(names.ZONE_ID, "use1-az1"), ""),
        (needs(names.ZONE_ID, "use1-az2"), "RequirementsDrifted"),
        (needs("failure-domain.beta.kubernetes.io/zone", "us-east-1b"), "RequirementsDrifted"),
        (needs(names.INSTANCE_GPU_NAME, operator="Exists"), "RequirementsDrifted"),
        (needs(names.INSTANCE_GPU_NAME, operator="DoesNotExist"), ""),
        (needs("team", "a"), ""),  # as in Karpenter: the template's hash shows the change
    ],
)
def test_claim_without_labels_drifts_only_if_its_instance_differs(
    requirement: dict[str, Any], reason: str
) -> None:
    assert drifted(requirement) == reason


@pytest.mark.covers("FLT-09")
def test_label_that_the_claim_has_is_not_needed_from_the_instance() -> None:
    requirement = needs(names.INSTANCE_TYPE, "c5.large")
    assert drifted(requirement, None, **{names.INSTANCE_TYPE: "c5.large"}) == ""
    assert drifted(requirement, None, **{names.INSTANCE_TYPE: "m5.large"}) == "RequirementsDrifted"


@pytest.mark.covers("FLT-09")
@pytest.mark.parametrize("key", [names.INSTANCE_TENANCY, names.ZONE_ID, names.INSTANCE_CPU_MANUFACTURER])
def test_claim_does_not_drift_from_a_label_that_is_not_known(key: str) -> None:
    assert drifted(needs(key, "other"), None) == ""


@pytest.mark.covers("FLT-09")
def test_zone_id_that_ec2_does_not_show_is_not_known() -> None:
    facts = node_labels(type_("m5.large"), "us-east-1a")
    assert drifted(needs(names.ZONE_ID, "use1-az1"), facts) == ""
