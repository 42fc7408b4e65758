"""A deleted class stays until the last claim that names it is gone, and reports this."""

from __future__ import annotations

import pytest

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.apis.karpenter_aws import EC2NodeClass
from tests.cluster.account import CLUSTER
from tests.cluster.objects import ON_DEMAND
from tests.cluster.stack import Stack


@pytest.mark.covers("KRP-23")
def test_a_class_is_held_by_its_claims_and_goes_with_the_last(stack: Stack) -> None:
    stack.node_class(preference="none")
    claims = stack.claims(2, capacity=(ON_DEMAND,))
    stack.start()
    stack.until_ready(*claims)
    stack.delete(EC2NodeClass, "gpu")
    condition = stack.until_class(names.LAUNCHABLE, "False", reason="NodeClassTerminating")
    assert condition.message.endswith("now c-0, c-1")
    assert condition.message == stack.until_event("gpu", "NodeClassTerminating", kind="EC2NodeClass").message
    stack.claim("late", capacity=(ON_DEMAND,))
    assert "being deleted" in stack.until_waiting("late", "NodeClassTerminating").message
    for name in (*claims, "late"):
        assert stack.find(EC2NodeClass, "gpu")
        stack.delete(NodeClaim, name)
        stack.until_gone(NodeClaim, name)
    stack.until_gone(EC2NodeClass, "gpu")
    assert not stack.aws.instances()


@pytest.mark.covers("KRP-26")
@pytest.mark.both_servers
def test_class_that_no_claim_of_the_broker_names_is_not_held(stack: Stack) -> None:
    stack.node_class(preference="none")
    stack.start()
    stack.claim("theirs", capacity=(ON_DEMAND,), group=names.KARPENTER_AWS)
    stack.passes()
    assert names.CLASS_FINALIZER not in stack.get(EC2NodeClass, "gpu").metadata.finalizers
    stack.delete(EC2NodeClass, "gpu")
    stack.until_gone(EC2NodeClass, "gpu")


def profiles(stack: Stack) -> dict[str, list[str]]:
    """The account's instance profiles with their roles."""
    listed = stack.aws.client("iam").list_instance_profiles()["InstanceProfiles"]
    return {p["InstanceProfileName"]: [r["RoleName"] for r in p["Roles"]] for p in listed}


def of_role(stack: Stack, name: str, role: str = "workers") -> None:
    stack.node_class(name, preference="none", instanceProfile=None, role=role)


@pytest.mark.covers("SAF-22")
def test_a_profile_that_the_broker_made_goes_with_the_last_class_of_its_role(stack: Stack) -> None:
    iam = stack.aws.client("iam")
    iam.create_role(RoleName="workers", AssumeRolePolicyDocument="{}")
    iam.create_role(RoleName="others", AssumeRolePolicyDocument="{}")
    before = profiles(stack)
    # Another cluster's profile of the same role, and a profile with a name similar to the broker's.
    foreign = {"theirs": "workers", f"capacity-broker.{CLUSTER}.0123456789": "others"}
    for name, role in foreign.items():
        iam.create_instance_profile(InstanceProfileName=name)
        iam.add_role_to_instance_profile(InstanceProfileName=name, RoleName=role)
    stack.start()
    of_role(stack, "one")
    of_role(stack, "two")
    stack.claim(node_class="one", capacity=(ON_DEMAND,))
    stack.until_ready("c-0")
    [profile] = profiles(stack).keys() - before.keys() - foreign.keys()
    assert profiles(stack)[profile] == ["workers"]

    stack.delete(EC2NodeClass, "two")
    stack.until_gone(EC2NodeClass, "two")
    stack.advance(4000)
    stack.passes()
    assert profile in profiles(stack)  # class `one` still names the role
    stack.delete(EC2NodeClass, "one")
    stack.until_class(names.LAUNCHABLE, "False", name="one", reason="NodeClassTerminating")
    stack.delete(NodeClaim, "c-0")
    stack.until_gone(EC2NodeClass, "one")
    stack.until(lambda: profile not in profiles(stack), "the profile is deleted", step=5.0)
    assert profiles(stack) == {**before, **{name: [role] for name, role in foreign.items()}}


@pytest.mark.covers("SAF-22")
def test_a_profile_stays_while_an_instance_runs_with_it(stack: Stack) -> None:
    iam = stack.aws.client("iam")
    for role in ("workers", "others"):
        iam.create_role(RoleName=role, AssumeRolePolicyDocument="{}")
    before = profiles(stack)
    stack.start()
    of_role(stack, "gpu")
    stack.claim(capacity=(ON_DEMAND,))
    stack.until_ready("c-0")
    [profile] = profiles(stack).keys() - before.keys()
    stack.edit(EC2NodeClass, "gpu", {"spec": {"role": "others"}})
    stack.until(lambda: "others" in str(profiles(stack)), "the other role has a profile")
    stack.advance(4000)
    stack.passes()
    assert profile in profiles(stack)
    stack.delete(NodeClaim, "c-0")
    stack.until_gone(NodeClaim, "c-0")
    stack.until(lambda: profile not in profiles(stack), "the profile is deleted", step=10.0)
    assert "others" in str(profiles(stack))


@pytest.mark.covers("SAF-22")
def test_a_class_that_was_deleted_while_no_broker_ran_leaves_no_profile(stack: Stack) -> None:
    stack.aws.client("iam").create_role(RoleName="workers", AssumeRolePolicyDocument="{}")
    before = profiles(stack)
    of_role(stack, "gpu")
    stack.start()
    stack.until(lambda: profiles(stack) != before, "the profile is made")
    stack.until_class(names.LAUNCHABLE, "True")
    stack.stop()
    stack.delete(EC2NodeClass, "gpu")
    stack.until_gone(EC2NodeClass, "gpu")
    stack.start()
    stack.until(lambda: profiles(stack) == before, "the profile is deleted")
    calls = stack.calls("ListInstanceProfiles")
    stack.advance(300)
    stack.passes()
    assert stack.calls("ListInstanceProfiles") == calls
