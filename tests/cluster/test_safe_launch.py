"""Launches must not cost more than requested, lose an instance, or trust a tenant's text."""

from __future__ import annotations

import pytest

from broker.apis import names
from broker.apis.core import Node
from broker.apis.karpenter import NodeClaim
from tests.cluster.objects import ON_DEMAND, RESERVED
from tests.cluster.stack import Stack
from tests.cluster.test_isolation import make_odd

BOTH = (RESERVED, ON_DEMAND)


@pytest.mark.covers("SAF-16")
def test_ultraserver_takes_launches_only_while_it_is_launchable(stack: Stack) -> None:
    server = stack.aws.capacity_block(ultraserver_type="u-p6e-gb200x72")
    stack.control.set_reservation(server, launchable=False)
    stack.node_class(id_=server)
    stack.start()
    condition = stack.until_class(names.RESERVATIONS_RESOLVED, "False", reason="ReservationNotLaunchable")
    assert server in condition.message and "unlaunchable" in condition.message
    stack.claim(types=("p5.48xlarge",))
    assert "unlaunchable" in stack.until_waiting("c-0", "NoUsableReservation").message
    stack.passes()
    assert stack.calls("CreateFleet") == 0
    stack.control.set_reservation(server, launchable=True)
    stack.until_launched("c-0")
    assert stack.reservation_of("c-0") == server


@pytest.mark.covers("SAF-24")
@pytest.mark.parametrize("how", ["collected", "deleted", "deleted and left out"])
def test_instance_with_a_node_that_goes_is_adopted_by_no_claim(
    stack: Stack, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner reference of the Node is removed; with or without a garbage collector, the Node will go."""
    odcr = stack.aws.odcr(count=2)
    stack.node_class(id_=odcr)
    stack.start()
    stack.claim("old")
    stack.until_ready("old")
    old = stack.get(NodeClaim, "old")
    stack.stop()
    node = old.status.node_name
    if how != "collected":
        stack.edit(Node, node, {"metadata": {"ownerReferences": None}})
        stack.delete(Node, node)
        assert stack.get(Node, node).deleting
    if how == "deleted and left out":
        make_odd(stack, node, monkeypatch)
    stack.edit(NodeClaim, "old", {"metadata": {"finalizers": None}})
    stack.delete(NodeClaim, "old")
    stack.until_gone(NodeClaim, "old")
    stack.claim("new")
    uid = stack.get(NodeClaim, "new").uid
    stack.start(orphan_grace_seconds=900.0)
    stack.until_ready("new")
    assert stack.get(NodeClaim, "new").instance_id != old.instance_id
    assert old.instance_id in {i["InstanceId"] for i in stack.aws.instances()}
    if how == "deleted and left out":
        stack.edit(Node, node, {"metadata": {"annotations": {"test": "mended"}}})
    stack.until(lambda: stack.find(Node, node) is None, "the old node gone", step=60)
    stack.passes()
    assert stack.get(NodeClaim, "new").uid == uid and stack.is_true("new", names.READY)
    assert [i["InstanceId"] for i in stack.aws.instances()] == [stack.get(NodeClaim, "new").instance_id]


@pytest.mark.covers("SAF-24")
def test_instance_is_adopted_once_its_node_can_be_read_and_stays(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack.node_class(id_=stack.aws.odcr(count=1))
    stack.start(orphan_grace_seconds=900.0)
    stack.claim("old")
    stack.until_ready("old")
    old = stack.get(NodeClaim, "old")
    stack.stop()
    node = old.status.node_name
    make_odd(stack, node, monkeypatch)
    stack.edit(Node, node, {"metadata": {"ownerReferences": None}})
    stack.edit(NodeClaim, "old", {"metadata": {"finalizers": None}})
    stack.delete(NodeClaim, "old")
    stack.until_gone(NodeClaim, "old")
    stack.start()
    stack.claim("new")
    stack.until_waiting("new")
    stack.passes()
    assert not stack.get(NodeClaim, "new").status.provider_id
    stack.edit(Node, node, {"metadata": {"annotations": {"test": "mended"}}})
    stack.until(lambda: stack.is_true("new", names.READY), "new has the instance", step=1.0)
    assert stack.get(NodeClaim, "new").instance_id == old.instance_id


@pytest.mark.covers("SAF-10")
@pytest.mark.both_servers
def test_pending_reservation_holds_its_claim_instead_of_paying_beside_it(stack: Stack) -> None:
    odcr = stack.aws.odcr(count=1)
    stack.control.set_reservation(odcr, state="pending")
    stack.node_class(id_=odcr)
    stack.start()
    stack.claims(1, capacity=BOTH)
    waits = stack.until_waiting("c-0", "ReservationPending")
    assert odcr in waits.message and "tried again at" in waits.message
    stack.passes()
    assert stack.calls("CreateFleet") == 0 and not stack.aws.instances()
    stack.control.set_reservation(odcr, state="active")
    stack.until_launched("c-0")
    assert stack.reservation_of("c-0") == odcr
    assert stack.calls("CreateFleet") == 1


DEDICATED = {"key": names.INSTANCE_TENANCY, "operator": "In", "values": ["dedicated"]}


@pytest.mark.covers("SAF-09")
def test_tenancy_comes_from_the_claim(stack: Stack) -> None:
    """One group with a slot of each tenancy: each claim is launched into its own, or outside."""
    shared, dedicated = stack.aws.odcr(), stack.aws.odcr(Tenancy="dedicated")
    stack.node_class(group=stack.aws.group(shared, dedicated))
    stack.start()
    for number in range(2):
        stack.claim(f"plain-{number}", capacity=BOTH)
        stack.claim(f"dedicated-{number}", capacity=BOTH, requirements=[DEDICATED])
    claims = [f"{kind}-{number}" for kind in ("plain", "dedicated") for number in range(2)]
    stack.until_ready(*claims)
    inside = {name: stack.reservation_of(name) for name in claims}
    assert {inside["plain-0"], inside["plain-1"]} == {shared, ""}
    assert {inside["dedicated-0"], inside["dedicated-1"]} == {dedicated, ""}
    for name in claims:
        tenancy = name.partition("-")[0].replace("plain", "default")
        assert stack.instance(name)["Placement"]["Tenancy"] == tenancy
        claim = stack.get(NodeClaim, name)
        assert claim.labels[names.INSTANCE_TENANCY] == tenancy
        assert stack.get(Node, claim.status.node_name).labels[names.INSTANCE_TENANCY] == tenancy
    tenancies = [template["Data"]["Placement"]["Tenancy"] for template in stack.aws.templates()]
    assert sorted(tenancies) == ["dedicated", "dedicated", "default", "default"]
