"""A class that names a reservation or group that cannot serve: the plan goes on, and says why."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.capacity import launches
from broker.capacity.inventory import Inventory
from broker.capacity.matching import with_group_errors
from broker.capacity.model import NodeClass, Resolved, Selection, Skipped
from broker.capacity.plan import plan
from broker.capacity.shortages import Shortages
from broker.reservations.claims import ending_claims
from broker.text import plain
from providers.errors import ErrorClass, ProviderError
from providers.launch import ReservationTarget

from .builders import GROUP, NOW, TYPES, claim, inventory, node_class, odcr, planned, supply

BOTH = ["reserved", "on-demand"]
BY_ID, BY_GROUP = Selection(reservation_id="cr-9"), Selection(group_arn=GROUP)


def skips(selection: Selection, world: Inventory, kinds: list[str]) -> tuple[Skipped, ...]:
    wants = claim(kinds=kinds, types=["m5.xlarge"])
    result = planned([wants], node_class(selection, world), world)
    assert result.assignments[0].option.pool.capacity_type == "on-demand"
    return result.skipped.get(wants.uid, ())


@pytest.mark.covers("KRP-08")
@pytest.mark.parametrize(
    ("selection", "world", "reason", "shown"),
    [
        (BY_ID, inventory(), "ReservationNotFound", "cr-9"),
        (BY_GROUP, inventory(), "GroupNotFound", f"group {GROUP.rpartition('/')[2]}"),
        (
            BY_ID,
            inventory(odcr("cr-9", state="cancelled")),
            "ReservationCancelled",
            "cr-9 (m5.xlarge, us-east-1a)",
        ),
    ],
)
def test_claim_bought_beside_an_unusable_reservation_has_the_reason(
    selection: Selection, world: Inventory, reason: str, shown: str
) -> None:
    (skip,) = skips(selection, world, BOTH)
    assert (skip.reason, skip.pool.shown) == (reason, shown)
    assert plain(str(skip.pool)) == shown
    assert skips(selection, world, ["on-demand"]) == ()


def test_reason_of_a_waiting_claim_names_an_unusable_reservation_once() -> None:
    wants = claim(kinds=["reserved"], types=["m5.xlarge"])
    (waits,) = planned([wants], node_class(BY_ID, inventory()), inventory()).unplaced
    assert waits.reason == "NoUsableReservation"
    assert waits.message.count("cr-9 was not found") == 1


def on_demand_target(known: NodeClass) -> ReservationTarget:
    classes = {known.name: known}
    wants = claim(kinds=["on-demand", "reserved"], types=["m5.xlarge"])
    assignments = plan([wants], supply(classes, inventory())).assignments
    (call,) = launches.group(assignments, node_classes=classes, types=TYPES, shortages=Shortages(), now=NOW)
    return call.target


@pytest.mark.covers("KRP-12")
@pytest.mark.parametrize("tenancy", ["default", "dedicated"])
@pytest.mark.parametrize(
    ("class_", "target"),
    [
        (ErrorClass.NOT_FOUND, ReservationTarget(preference="none")),
        (ErrorClass.CONFIGURATION, ReservationTarget(preference="none")),
        (ErrorClass.THROTTLING, ReservationTarget(group_arn=GROUP, spills=True)),
        (ErrorClass.PERMISSION, ReservationTarget(group_arn=GROUP, spills=True)),
    ],
)
def test_only_a_group_that_may_exist_is_the_target_of_an_instance_on_demand(
    class_: ErrorClass, target: ReservationTarget, tenancy: str
) -> None:
    def read(resolved: Resolved) -> Resolved:
        return with_group_errors(resolved, {GROUP: ProviderError("Code", "why", class_=class_)})

    known = node_class(BY_GROUP, inventory())
    resolved = read(known.resolved if tenancy == "default" else known.dedicated)
    assert resolved.misfits[0].message == f"group {GROUP} could not be read: why (Code)"
    assert on_demand_target(replace(known, resolved=resolved)) == target


@pytest.mark.covers("KRP-24")
@pytest.mark.parametrize("shown", [True, False])
def test_claim_bought_beside_a_slot_that_is_being_freed_names_the_claim_that_ends(shown: bool) -> None:
    world = inventory(odcr("cr-9", total=3, free=0))
    known = node_class(BY_ID, world)
    claims = [
        NodeClaim.decode(
            {
                "metadata": {
                    "name": name,
                    "labels" if shown else "annotations": {
                        names.RESERVATION_ID if shown else names.LAUNCHED_INTO: "cr-9"
                    },
                    **({"deletionTimestamp": "2026-11-28T09:00:00Z"} if ends else {}),
                },
                "status": {"providerID": f"aws:///us-east-1a/i-{name}"},
            }
        )
        for name, ends in (("web-1", True), ("web-2", False))
    ]
    wants = claim(kinds=BOTH, types=["m5.xlarge"])
    given = supply({known.name: known}, world, ending=ending_claims(claims))
    (skip,) = plan([wants], given).skipped[wants.uid]
    assert (skip.reason, skip.message) == (
        "ReservationFull",
        "cr-9 (m5.xlarge, us-east-1a): free slots: cr-9 0 of 3; web-1 frees its slot as it ends, and the "
        "node may move there later if its NodePool returns nodes to reservations",
    )
    waits = claim(kinds=["reserved"], types=["m5.xlarge"])
    (unplaced,) = plan([waits], given).unplaced
    assert "web-1" not in unplaced.message  # each change of its text would be another event
