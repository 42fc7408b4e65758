"""The manifests of examples/: accepted, complete, and each claim declares its expected pool."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from broker.apis.karpenter import NodeClaim
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.names import BROKER, EXPECT
from tests.controlplane.client import Api
from tests.unit.apis.cases import ARN, ID, Json

EXAMPLES = Path(__file__).parents[3] / "examples"
FILLED = {"ODCR_P5": ID, "ODCR_FULL": ID, "GROUP_ARN": ARN, "AMI": "ami-0123456789abcdef0"}
PLURALS = {"EC2NodeClass": "ec2nodeclasses", "NodeClaim": "nodeclaims", "NodePool": "nodepools"}


def objects() -> list[Json]:
    examples = []
    for path in sorted(EXAMPLES.glob("*.yaml")):
        text = re.sub(r"\$\{(\w+)\}", lambda name: FILLED[name[1]], path.read_text())
        examples += [obj for obj in yaml.safe_load_all(text) if obj]
    return examples


def test_the_api_server_accepts_every_example(served: Api) -> None:
    for obj in objects():
        collection = f"/apis/{obj['apiVersion']}/{PLURALS[obj['kind']]}"
        reply = served.request("POST", collection, {"dryRun": "All", "fieldValidation": "Strict"}, obj)
        assert reply.status == 201, reply.body


@pytest.mark.covers("KRP-02")
def test_every_kind_of_selection_has_an_example() -> None:
    classes = [EC2NodeClass.decode(obj) for obj in objects() if obj["kind"] == "EC2NodeClass"]
    specs = {ec2_class.name: ec2_class.reservation_settings.spec for ec2_class in classes}
    shown = {
        name: (spec.preference, bool(spec.reservation_id), bool(spec.group_arn))
        for name, spec in specs.items()
        if spec is not None
    }
    assert shown == {
        "by-id": (None, True, False),
        "by-group": (None, False, True),
        "open": ("open", False, False),
        "full": (None, True, False),
        "none": ("none", False, False),
    }


def test_every_claim_is_the_brokers_and_declares_its_expected_pool() -> None:
    claims = [NodeClaim.decode(obj) for obj in objects() if obj["kind"] == "NodeClaim"]
    assert {claim.spec.node_class_ref.group for claim in claims} == {BROKER}
    landing: dict[str, list[str]] = {}
    for claim in claims:
        landing.setdefault(claim.spec.node_class_ref.name, []).append(claim.annotations[EXPECT])
    assert landing == {
        "by-id": ["odcr", "odcr"],
        "by-group": ["group", "group"],
        "open": ["open", "open"],
        "full": ["on-demand", "on-demand"],
        "none": ["none", "none"],
    }
