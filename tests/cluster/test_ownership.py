"""The broker and Karpenter never both act on one claim, nor on one instance."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from broker.apis import names
from broker.apis.coordination import Lease
from broker.apis.karpenter import NodeClaim
from broker.kube.lease_holders import DURATION
from broker.text import format_micros
from broker.webpage.live import live_state
from providers.names import TAG_CLUSTER, TAG_EKS_CLUSTER, TAG_NODECLASS
from tests.cluster.account import CLUSTER, tags
from tests.cluster.objects import ON_DEMAND
from tests.cluster.stack import Stack
from tests.cluster.taps import writes_of

KARPENTER = names.KARPENTER_AWS
LASTS = 300  # seconds of a Lease: more than a test needs between two reads


def lease(stack: Stack, *, age: float = 0.0, holder: str = "karpenter-0") -> None:
    renewed = format_micros(datetime.now(UTC) - timedelta(seconds=age))
    stack.client.apply(
        Lease.KIND,
        {
            "metadata": {"name": "karpenter-leader-election", "namespace": "default"},
            "spec": {"holderIdentity": holder, "leaseDurationSeconds": LASTS, "renewTime": renewed},
        },
    )


def until_taken_over(stack: Stack) -> None:
    """Moves time until the broker acts on Karpenter's claim, and no further."""
    stack.until(lambda: stack.get(NodeClaim, "theirs").metadata.finalizers, "taken over", step=LASTS / 10)
    stack.until_ready("theirs")


@pytest.mark.covers("KRP-26")
def test_a_claim_of_karpenter_is_left_alone(stack: Stack) -> None:
    stack.node_class(preference="none")
    broker = stack.start()
    stack.claim("theirs", capacity=(ON_DEMAND,), group=KARPENTER)
    before = stack.client.get(NodeClaim.KIND, "theirs")
    stack.claim("ours", capacity=(ON_DEMAND,))
    stack.until_launched("ours")
    stack.passes()
    assert stack.client.get(NodeClaim.KIND, "theirs") == before
    assert len(stack.aws.instances()) == 1
    assert not stack.events("theirs")
    assert stack.current is not None
    page = live_state(broker)
    assert {row.name for row in page.claims if not row.name.startswith("canary")} == {"theirs", "ours"}
    assert not [row for row in page.waiting if not row.name.startswith("canary")]


@pytest.mark.covers("KRP-26")
def test_instances_never_carry_karpenter_s_three_marks(stack: Stack) -> None:
    """All three EC2 tags on one instance give it to Karpenter's garbage collection."""
    stack.node_class(preference="none")
    stack.start()
    stack.claim(capacity=(ON_DEMAND,), pool="gpu")
    stack.until_launched("c-0")
    shown = tags(stack.instance("c-0"))
    assert not {names.NODEPOOL, names.NODECLASS_LABEL, TAG_EKS_CLUSTER} <= {*shown}
    assert TAG_EKS_CLUSTER not in shown
    assert (shown[TAG_CLUSTER], shown[TAG_NODECLASS]) == (CLUSTER, "gpu")
    [template] = stack.aws.templates()
    assert TAG_EKS_CLUSTER not in tags(template)
    volume = stack.instance("c-0")["BlockDeviceMappings"][0]["Ebs"]["VolumeId"]
    marked = tags(stack.aws.ec2.describe_volumes(VolumeIds=[volume])["Volumes"][0])
    assert marked[TAG_CLUSTER] == CLUSTER and TAG_EKS_CLUSTER not in marked


@pytest.mark.covers("KRP-26")
@pytest.mark.parametrize("how", ["no lease", "released", "expired"])
def test_taking_over_works_when_karpenter_is_gone(stack: Stack, how: str) -> None:
    """The Lease is watched for its duration first, whatever its record: a rollout leaves it without a
    holder."""
    if how != "no lease":
        lease(stack, holder="" if how == "released" else "karpenter-0", age=60.0 if how == "expired" else 0.0)
    stack.node_class(preference="none")
    written: list[float] = []
    stack.tap.on(
        writes_of("nodeclaims", "theirs"), lambda _: written.append(stack.clock.monotonic()), times=-1
    )
    began = stack.clock.monotonic()
    stack.start(take_over_karpenter=True)
    stack.claim("theirs", capacity=(ON_DEMAND,), group=KARPENTER)
    until_taken_over(stack)
    assert written[0] - began >= (DURATION if how == "no lease" else LASTS)


@pytest.mark.covers("KRP-26")
@pytest.mark.parametrize("skew", [-3600.0, 3600.0], ids=["an hour behind", "an hour ahead"])
def test_karpenters_clock_may_differ(stack: Stack, skew: float) -> None:
    """It renews by its own clock: alive. It stops: gone after the Lease's duration, by the broker's clock."""
    lease(stack, age=skew)
    stack.node_class(preference="none")
    stack.start(take_over_karpenter=True)
    stack.claim("theirs", capacity=(ON_DEMAND,), group=KARPENTER)
    for turn in range(1, 4):
        stack.passes(1)
        lease(stack, age=skew - 10 * turn)
        stack.advance(LASTS * 2 / 3)
    stack.passes()
    assert not stack.aws.instances()
    until_taken_over(stack)


@pytest.mark.covers("KRP-26")
def test_claims_are_taken_over_when_the_lease_runs_out(stack: Stack) -> None:
    lease(stack)
    stack.node_class(preference="none")
    stack.start(take_over_karpenter=True)
    stack.claim("theirs", capacity=(ON_DEMAND,), group=KARPENTER)
    stack.passes()
    assert not stack.aws.instances()
    until_taken_over(stack)


@pytest.mark.covers("KRP-26")
def test_a_karpenter_that_renews_is_alive_though_the_broker_s_watch_is_deaf(stack: Stack) -> None:
    lease(stack)
    stack.node_class(preference="none")
    stack.start(take_over_karpenter=True)
    stack.claim("theirs", capacity=(ON_DEMAND,), group=KARPENTER)
    stack.passes()
    assert stack.broker is not None
    stack.broker.read.leases.stop()
    lease(stack, age=-600.0)  # it has been renewed meanwhile
    stack.advance(2 * LASTS)
    stack.polls(2)
    stack.passes()
    assert not stack.aws.instances()
    assert not stack.get(NodeClaim, "theirs").metadata.finalizers


@pytest.mark.covers("KRP-26")
def test_claim_that_karpenter_left_behind_is_ended_after_the_takeover(stack: Stack) -> None:
    """Launched by Karpenter, deleted while no controller ran: the controller that takes over removes the
    finalizer."""
    reply = stack.aws.ec2.run_instances(
        ImageId=stack.aws.image, InstanceType="m5.large", MinCount=1, MaxCount=1
    )
    id_ = reply["Instances"][0]["InstanceId"]
    lease(stack, age=60.0)
    stack.node_class(preference="none")
    stack.claim("theirs", capacity=(ON_DEMAND,), group=KARPENTER)
    stack.edit(NodeClaim, "theirs", {"metadata": {"finalizers": [names.TERMINATION_FINALIZER]}})
    stack.edit(
        NodeClaim, "theirs", {"status": {"providerID": f"aws:///us-east-1a/{id_}"}}, subresource="status"
    )
    stack.delete(NodeClaim, "theirs")
    stack.start(take_over_karpenter=True)
    stack.until(lambda: stack.find(NodeClaim, "theirs") is None, "it is ended", step=LASTS / 10)
    assert stack.aws.instance(id_)["State"]["Name"] == "terminated"


@pytest.mark.covers("KRP-26")
@pytest.mark.both_servers
def test_without_the_setting_nothing_is_taken_over(stack: Stack) -> None:
    stack.node_class(preference="none")
    stack.start()
    stack.claim("theirs", capacity=(ON_DEMAND,), group=KARPENTER)
    stack.passes()
    assert not stack.aws.instances()
