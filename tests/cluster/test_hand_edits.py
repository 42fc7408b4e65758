"""Manual edits of objects during a launch: nothing is launched twice, nothing is lost."""

from __future__ import annotations

from typing import Any

import pytest

from broker.apis import names
from broker.apis.core import Node
from broker.apis.karpenter import NodeClaim
from broker.apis.karpenter_aws import EC2NodeClass
from broker.kube.errors import Invalid
from tests.cluster.account import A
from tests.cluster.objects import ON_DEMAND
from tests.cluster.stack import Stack
from tests.cluster.taps import status_of, writes_of


def started(stack: Stack, **settings: Any) -> str:
    """A ready claim in a reservation; returns its instance's id."""
    stack.node_class(id_=stack.aws.odcr())
    stack.start(**settings)
    stack.claim()
    stack.until_ready("c-0")
    return stack.get(NodeClaim, "c-0").instance_id


def test_a_wiped_status_finds_its_instance_again(stack: Stack) -> None:
    before = started(stack)
    wiped = dict.fromkeys(("providerID", "imageID", "nodeName", "capacity", "allocatable", "conditions"))
    stack.edit(NodeClaim, "c-0", {"status": wiped}, subresource="status")
    stack.until_ready("c-0")
    claim = stack.get(NodeClaim, "c-0")
    assert claim.instance_id == before
    assert claim.status.node_name and claim.status.image_id and claim.status.capacity
    assert stack.calls("CreateFleet") == 1
    assert len(stack.aws.instances()) == 1
    node = stack.get(Node, claim.status.node_name)
    assert [owner.uid for owner in node.metadata.owner_references] == [claim.uid]


def test_a_condition_removed_by_hand_comes_back(stack: Stack) -> None:
    before = started(stack)
    stack.edit(NodeClaim, "c-0", {"status": {"conditions": []}}, subresource="status")
    stack.until_ready("c-0")
    assert stack.get(NodeClaim, "c-0").instance_id == before


def test_a_finalizer_taken_off_comes_back(stack: Stack) -> None:
    started(stack)
    stack.edit(NodeClaim, "c-0", {"metadata": {"finalizers": None}})
    finalizer = names.TERMINATION_FINALIZER
    stack.until(lambda: finalizer in stack.get(NodeClaim, "c-0").metadata.finalizers, "the finalizer")


def test_a_claim_torn_out_leaves_neither_instance_nor_node(stack: Stack) -> None:
    """Its finalizer is removed: the instance has no owner, and ends after the grace time."""
    id_ = started(stack, orphan_grace_seconds=900.0)
    node = stack.get(NodeClaim, "c-0").status.node_name
    stack.stop()
    stack.edit(NodeClaim, "c-0", {"metadata": {"finalizers": None}})
    stack.delete(NodeClaim, "c-0")
    stack.until_gone(NodeClaim, "c-0")
    stack.start()
    stack.passes()
    assert [i["InstanceId"] for i in stack.aws.instances()] == [id_]
    stack.until(lambda: not stack.aws.instances(), "the instance terminated", step=90)
    stack.until(lambda: stack.find(Node, node) is None, "the node gone", step=5)


def test_annotations_of_the_broker_removed_in_flight(stack: Stack) -> None:
    """The launch id is gone when the status is written: the instance still belongs to the claim."""
    stack.node_class(id_=stack.aws.odcr())
    annotations = {names.LAUNCH: None, "capacity-broker.io/attempts": None}
    stack.tap.on(
        status_of("nodeclaims", "c-0"),
        lambda _: stack.edit(NodeClaim, "c-0", {"metadata": {"annotations": annotations}}),
    )
    stack.start()
    stack.claim()
    stack.until_ready("c-0")
    assert stack.calls("CreateFleet") == 1
    assert len(stack.aws.instances()) == 1


def test_annotations_of_the_broker_removed_while_it_is_down(stack: Stack) -> None:
    started(stack)
    stack.stop()
    stack.edit(NodeClaim, "c-0", {"metadata": {"annotations": {names.LAUNCH: None}}})
    stack.start(orphan_grace_seconds=0.0)
    stack.passes()
    stack.advance(61)
    stack.passes()
    assert len(stack.aws.instances()) == 1
    assert stack.calls("CreateFleet") == 1


@pytest.mark.both_servers
def test_labels_changed_in_flight_stay_where_they_are_the_user_s(stack: Stack) -> None:
    """EC2's values are kept for labels that EC2 knows better; a user's labels stay and reach the node."""
    odcr = stack.aws.odcr()
    stack.node_class(id_=odcr)
    labels = {"example.com/team": "b", names.CAPACITY_TYPE: "spot", names.ZONE: "us-east-1f"}
    edit = {"metadata": {"labels": labels}}
    stack.tap.on(writes_of("nodeclaims", "c-0"), lambda _: stack.edit(NodeClaim, "c-0", edit))
    stack.start()
    stack.claim(labels={"example.com/team": "a"})
    stack.until_ready("c-0")
    stack.until_shown("c-0", as_="reserved")
    claim = stack.get(NodeClaim, "c-0")
    assert claim.labels["example.com/team"] == "b"
    assert (claim.labels[names.CAPACITY_TYPE], claim.labels[names.ZONE]) == ("reserved", A)
    assert stack.get(Node, claim.status.node_name).labels["example.com/team"] == "b"
    assert stack.calls("CreateFleet") == 1


def test_a_label_added_later_reaches_the_node(stack: Stack) -> None:
    started(stack)
    stack.edit(NodeClaim, "c-0", {"metadata": {"labels": {"example.com/added": "yes"}}})
    node = stack.get(NodeClaim, "c-0").status.node_name
    stack.until(lambda: stack.get(Node, node).labels.get("example.com/added") == "yes", "the node's label")


def test_a_provider_id_given_to_a_second_claim_by_hand(stack: Stack) -> None:
    """The instance stays with the first claim; the second reports the conflict, and its end harms nothing."""
    started(stack)
    first = stack.get(NodeClaim, "c-0")
    stack.claim("c-1")
    stack.until_waiting("c-1")
    registered = names.REGISTERED_CONDITION
    stolen = {"providerID": first.status.provider_id}
    stack.edit(NodeClaim, "c-1", {"status": stolen}, subresource="status")
    condition = stack.until(
        lambda: (c := stack.claim_condition("c-1", registered)) and c.reason == "InstanceTaken" and c,
        "c-1 has the condition",
    )
    assert condition and "NodeClaim c-0's" in condition.message
    node = stack.get(Node, first.status.node_name)
    assert [owner.name for owner in node.metadata.owner_references] == ["c-0"]
    stack.delete(NodeClaim, "c-1")
    stack.until_gone(NodeClaim, "c-1")
    stack.passes()
    assert len(stack.aws.instances()) == 1
    assert stack.is_true("c-0", names.READY)


def test_the_spec_of_a_claim_cannot_be_edited(stack: Stack) -> None:
    started(stack)
    with pytest.raises(Invalid) as refused:
        stack.edit(NodeClaim, "c-0", {"spec": {"resources": {"requests": {"cpu": "2"}}}})
    assert "immutable" in refused.value.message


def test_node_edited_by_hand_gets_the_values_of_the_broker_back(stack: Stack) -> None:
    started(stack)
    stack.until_shown("c-0")
    claim = stack.get(NodeClaim, "c-0")
    name = claim.status.node_name
    stack.edit(
        Node,
        name,
        {"metadata": {"finalizers": None, "ownerReferences": None, "labels": {names.CAPACITY_TYPE: None}}},
    )

    def restored() -> bool:
        node = stack.get(Node, name)
        return (
            names.TERMINATION_FINALIZER in node.metadata.finalizers
            and [o.uid for o in node.metadata.owner_references] == [claim.uid]
            and node.labels.get(names.CAPACITY_TYPE) == "reserved"
        )

    stack.until(restored, "finalizer, owner and label restored")


def test_a_class_s_status_wiped_by_hand_comes_back(stack: Stack) -> None:
    odcr = stack.aws.odcr()
    stack.node_class(id_=odcr)
    stack.start()
    stack.until_class(names.RESERVATIONS_RESOLVED, "True")
    wiped = {"conditions": None, "capacityReservations": None}
    stack.edit(EC2NodeClass, "gpu", {"status": wiped}, subresource="status")
    stack.until_class(names.RESERVATIONS_RESOLVED, "True")
    listed = stack.client.get(EC2NodeClass.KIND, "gpu")["status"]["capacityReservations"]
    assert [row["id"] for row in listed] == [odcr]


@pytest.mark.covers("KRP-13")
def test_a_class_changed_while_its_claims_are_launched(stack: Stack) -> None:
    """The claim in flight gets the class's values from its planning; the next claim gets the present ones."""
    stack.node_class(preference="none", zones=(A,))
    stack.start()
    stack.until_class(names.LAUNCHABLE, "True")
    stack.tap.on(
        writes_of("nodeclaims", "c-0"),
        lambda _: stack.edit(EC2NodeClass, "gpu", {"spec": {"detailedMonitoring": True}}),
    )
    stack.claim("c-0", capacity=(ON_DEMAND,))
    stack.until_ready("c-0")
    stack.until(
        lambda: (s := stack.class_condition(names.LAUNCHABLE)) and s.observed_generation == 2,
        "the new class seen",
    )
    stack.claim("c-1", capacity=(ON_DEMAND,))
    stack.until_ready("c-1")
    assert stack.instance("c-1")["Monitoring"]["State"] == "enabled"
    assert len(stack.aws.instances()) == 2
