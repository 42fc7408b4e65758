"""Two clusters of one name in one account: neither touches the other's resources."""

from __future__ import annotations

import pytest

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.kube.identity import cluster_uid
from providers.names import TAG_CLUSTER, TAG_CLUSTER_UID, TAG_NODECLASS
from tests.cluster.account import CLUSTER, A, tags
from tests.cluster.objects import ON_DEMAND
from tests.cluster.stack import Stack
from tests.cluster.twin import Twin

GRACE = 130.0  # more than an orphan's grace time, and EC2 is listed anew


def marked(stack: Stack, **more: str) -> str:
    """An instance with the cluster's name, and these tags."""
    reply = stack.aws.ec2.run_instances(
        ImageId=stack.aws.image,
        InstanceType="m5.large",
        MinCount=1,
        MaxCount=1,
        Placement={"AvailabilityZone": A},
    )
    id_ = str(reply["Instances"][0]["InstanceId"])
    given = {TAG_CLUSTER: CLUSTER, TAG_NODECLASS: "gpu", **more}
    stack.aws.ec2.create_tags(Resources=[id_], Tags=[{"Key": k, "Value": v} for k, v in given.items()])
    return id_


def until_described_again(stack: Stack) -> None:
    """Returns when templates and instances were described once more, after the grace time."""
    actions = ("DescribeLaunchTemplates", "DescribeInstances")
    before = [stack.calls(action) for action in actions]
    stack.advance(GRACE)
    stack.until(
        lambda: all(stack.calls(action) > count for action, count in zip(actions, before, strict=True)),
        "templates and instances are looked at",
    )


def state(stack: Stack, id_: str) -> str:
    return str(stack.aws.instance(id_)["State"]["Name"])


@pytest.mark.covers("SAF-04")
def test_everything_that_is_launched_carries_the_cluster_uid(stack: Stack) -> None:
    stack.node_class(preference="none")
    stack.start()
    stack.claim(capacity=(ON_DEMAND,))
    stack.until_launched("c-0")
    uid, instance = cluster_uid(stack.client), stack.instance("c-0")
    (template,) = stack.aws.templates()
    volume = instance["BlockDeviceMappings"][0]["Ebs"]["VolumeId"]
    (disk,) = stack.aws.ec2.describe_volumes(VolumeIds=[volume])["Volumes"]
    for resource in (instance, template, disk):
        assert tags(resource)[TAG_CLUSTER] == CLUSTER
        assert tags(resource)[TAG_CLUSTER_UID] == uid


@pytest.mark.covers("SAF-04")
def test_cluster_of_the_same_name_neither_adopts_nor_ends_nor_sweeps(stack: Stack) -> None:
    stack.node_class("gpu", preference="none", zones=(A,))
    stack.node_class("other", preference="none", zones=(A,))
    stack.start(kubelets=False)  # an instance that loses its Node with its claim would not be adopted
    stack.claim("held", capacity=(ON_DEMAND,))
    stack.claim("lost", node_class="other", capacity=(ON_DEMAND,))
    stack.until_launched("held", "lost")
    held, orphan = (stack.get(NodeClaim, name).instance_id for name in ("held", "lost"))
    templates = stack.aws.template_names()
    stack.stop()
    stack.edit(NodeClaim, "lost", {"metadata": {"finalizers": None}})
    stack.delete(NodeClaim, "lost")

    twin = Twin(stack)
    twin.node_class()
    twin.claim("theirs")
    twin.broker.start()
    try:
        stack.until(lambda: twin.instance("theirs"), "the twin launches")
        assert twin.instance("theirs") not in (held, orphan)
        for _ in range(2):
            until_described_again(stack)
        foreign = twin.instance("theirs")
    finally:
        twin.broker.stop()
    assert stack.calls("TerminateInstances") == 0
    assert {state(stack, id_) for id_ in (held, orphan, foreign)} == {"running"}
    assert set(templates) <= set(stack.aws.template_names())
    # The cluster that made it adopts it again.
    stack.start(kubelets=False)
    stack.claim("next", node_class="other", capacity=(ON_DEMAND,))
    stack.until_launched("next")
    assert stack.get(NodeClaim, "next").instance_id == orphan
    stack.passes()
    assert state(stack, foreign) == "running"


@pytest.mark.covers("SAF-04")
@pytest.mark.covers("SAF-53")
def test_no_annotation_gives_the_cluster_an_instance_without_a_uid(stack: Stack) -> None:
    """A user with write access to claims may write the launch id of any instance with the cluster's name,
    even another cluster's."""
    nameless = marked(stack)
    foreign = marked(stack, **{names.TAG_LAUNCH: "launch-of-another"})
    forged = {names.LAUNCH: "launch-of-another"}
    stack.node_class(preference="none", zones=(A,))
    stack.claim("c-0", capacity=(ON_DEMAND,), annotations=forged)
    # Nothing satisfies it, so it stays without an instance and could only have that one ended.
    stack.claim("c-1", types=("m5.96xlarge",), capacity=(ON_DEMAND,), annotations=forged)
    stack.start()
    stack.until_launched("c-0")
    own = stack.get(NodeClaim, "c-0").instance_id
    assert own not in (nameless, foreign)
    for _ in range(2):
        until_described_again(stack)
    stack.delete(NodeClaim, "c-1")
    stack.until_gone(NodeClaim, "c-1")
    stack.passes()
    assert {state(stack, id_) for id_ in (nameless, foreign, own)} == {"running"}
    assert stack.calls("TerminateInstances") == 0


@pytest.mark.covers("SAF-04")
@pytest.mark.both_servers
def test_claim_from_a_backup_of_another_cluster_does_not_end_its_instance(stack: Stack) -> None:
    foreign = marked(stack, **{TAG_CLUSTER_UID: "uid-of-another"})
    stack.node_class(preference="none")
    stack.claim("restored", capacity=(ON_DEMAND,))
    stack.edit(NodeClaim, "restored", {"metadata": {"finalizers": [names.TERMINATION_FINALIZER]}})
    status = {"providerID": f"aws:///{A}/{foreign}"}
    stack.edit(NodeClaim, "restored", {"status": status}, subresource="status")
    stack.start()
    stack.delete(NodeClaim, "restored")
    stack.until_gone(NodeClaim, "restored")
    assert foreign in stack.until_event("restored", "ForeignInstance").message
    assert state(stack, foreign) == "running"
    assert stack.calls("TerminateInstances") == 0
