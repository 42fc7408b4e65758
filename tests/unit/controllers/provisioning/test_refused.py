"""Claims in flight: those that may still give way to others."""

from __future__ import annotations

import pytest

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.controllers.provisioning.refused import in_flight

MADE = {names.PODS: "default/p-0"}


@pytest.mark.covers("FLT-70")
@pytest.mark.parametrize(
    ("annotations", "provider_id", "expected"),
    [
        (MADE, "", True),
        (MADE, "aws:///us-east-1a/i-1", False),
        ({}, "", False),
        # The node that it replaces waits for it: it does not give way.
        ({**MADE, names.REPLACES: "old/u-1"}, "", False),
    ],
)
def test_claim_in_flight_is_made_for_pods_and_replaces_none(
    annotations: dict[str, str], provider_id: str, expected: bool
) -> None:
    owner = {"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "name": "web", "uid": "u-0"}
    meta = {"name": "c-0", "annotations": annotations, "ownerReferences": [owner]}
    claim = NodeClaim.decode({"metadata": meta, "spec": {}, "status": {"providerID": provider_id}})
    assert in_flight(claim) is expected
