"""The reservation spec itself: refused by the API server, and by the broker if it bypassed the API server."""

from __future__ import annotations

import json

import pytest

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.apis.karpenter_aws import EC2NodeClass
from broker.kube.errors import Invalid
from tests.cluster.objects import ON_DEMAND, RESERVED, Json
from tests.cluster.stack import Stack

ID = "cr-0123456789abcdef0"
ARN = "arn:aws:resource-groups:us-east-1:123456789012:group/team"
TARGET = {"capacityReservationId": ID}
BOTH = {"capacityReservationPreference": "open", "capacityReservationTarget": TARGET}
VALID = names.RESERVATION_SPEC_VALID


@pytest.mark.covers("KRP-02")
@pytest.mark.parametrize(
    ("spec", "parts"),
    [
        (
            BOTH,
            ("capacityReservationPreference", "capacityReservationTarget", "together"),
        ),
        (
            {
                "capacityReservationTarget": {
                    "capacityReservationId": ID,
                    "capacityReservationResourceGroupArn": ARN,
                }
            },
            ("capacityReservationId", "capacityReservationResourceGroupArn", "together"),
        ),
        ({"capacityReservationTarget": {}}, ("capacityReservationTarget is empty",)),
        ({"capacityReservationTarget": {"capacityReservationId": "r-1"}}, ("capacityReservationId must be",)),
        (
            {"capacityReservationTarget": {"capacityReservationResourceGroupArn": "team"}},
            ("capacityReservationResourceGroupArn must be",),
        ),
        ({"capacityReservationPreference": "Open"}, ("capacityReservationPreference must be open, none",)),
        ({}, ("capacityReservationSpec is empty",)),
    ],
)
def test_a_malformed_spec_is_refused_with_the_fields_and_the_way_out(
    stack: Stack, spec: Json, parts: tuple[str, ...]
) -> None:
    with pytest.raises(Invalid) as refused:
        stack.node_class(spec=spec)
    assert all(part in refused.value.message for part in parts)
    assert "spec.capacityReservationSpec" in refused.value.message
    assert stack.find(EC2NodeClass, "gpu") is None


@pytest.mark.covers("KRP-04")
@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        ("open", "is not JSON"),
        ('["open"]', "is not a JSON object"),
        (
            json.dumps(BOTH),
            "cannot be set together",
        ),
        (json.dumps({"capacityReservationTarget": {"capacityReservationId": "cr_1"}}), "cr_1"),
        (json.dumps({"capacityReservationPreference": 7}), "has the wrong type"),
    ],
)
@pytest.mark.both_servers
def test_nothing_is_launched_from_an_invalid_annotation(stack: Stack, annotation: str, text: str) -> None:
    stack.aws.odcr(criteria="open")
    stack.node_class(annotations={names.RESERVATION_SPEC: annotation})
    stack.start()
    stack.claim(capacity=(RESERVED, ON_DEMAND))
    condition = stack.until_class(VALID, "False", reason="InvalidCapacityReservationSpec")
    assert text in condition.message
    assert f"metadata.annotations[{names.RESERVATION_SPEC}]" in condition.message
    waits = stack.until_waiting("c-0", "InvalidCapacityReservationSpec")
    assert text in waits.message
    stack.until_class(names.LAUNCHABLE, "False")
    stack.until_event("gpu", "InvalidCapacityReservationSpec", kind="EC2NodeClass")
    stack.passes()
    assert stack.calls("CreateLaunchTemplate") == stack.calls("CreateFleet") == 0


@pytest.mark.covers("FLT-53")
def test_many_unknown_keys_are_reported_within_what_a_condition_holds(stack: Stack) -> None:
    """The API server would refuse a longer message with the whole status."""
    keys = {f"capacityReservationPreference{number}": "open" for number in range(300)}
    stack.node_class(annotations={names.RESERVATION_SPEC: json.dumps(keys)})
    stack.start()
    stack.claim()
    condition = stack.until_class(VALID, "False", reason="InvalidCapacityReservationSpec")
    assert "the nearest name is capacityReservationPreference" in condition.message
    assert len(condition.message) == 32768
    stack.until_waiting("c-0", "InvalidCapacityReservationSpec")


@pytest.mark.covers("KRP-04", "KRP-03")
def test_a_corrected_annotation_launches_at_once(stack: Stack) -> None:
    odcr = stack.aws.odcr(criteria="open")
    stack.node_class(annotations={names.RESERVATION_SPEC: "open"})
    stack.start()
    stack.claim(capacity=(RESERVED, ON_DEMAND))
    stack.until_waiting("c-0", "InvalidCapacityReservationSpec")
    fixed = json.dumps({"capacityReservationPreference": "open"})
    stack.edit(EC2NodeClass, "gpu", {"metadata": {"annotations": {names.RESERVATION_SPEC: fixed}}})
    stack.until_class(VALID, "True")
    stack.until_launched("c-0")
    assert stack.reservation_of("c-0") == odcr


@pytest.mark.covers("KRP-03")
def test_the_field_wins_over_the_annotation(stack: Stack) -> None:
    odcr = stack.aws.odcr()
    stack.node_class(
        id_=odcr, annotations={names.RESERVATION_SPEC: json.dumps({"capacityReservationPreference": "none"})}
    )
    stack.start()
    stack.claim()
    stack.until_launched("c-0")
    assert stack.reservation_of("c-0") == odcr


@pytest.mark.covers("KRP-04")
def test_class_that_turns_invalid_keeps_its_instances(stack: Stack) -> None:
    odcr = stack.aws.odcr(count=2)
    spec = json.dumps({"capacityReservationTarget": {"capacityReservationId": odcr}})
    stack.node_class(annotations={names.RESERVATION_SPEC: spec})
    stack.start()
    stack.claim("c-0")
    stack.until_ready("c-0")
    stack.edit(EC2NodeClass, "gpu", {"metadata": {"annotations": {names.RESERVATION_SPEC: "{"}}})
    stack.until_class(VALID, "False")
    stack.claim("c-1")
    stack.until_waiting("c-1", "InvalidCapacityReservationSpec")
    assert len(stack.aws.instances()) == 1
    assert stack.get(NodeClaim, "c-0").status.provider_id
    assert stack.calls("CreateFleet") == 1
