"""A slot that is kept for the successor of a node is free for no other claim, whoever counts the slots."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import pytest

from broker.apis import names
from broker.apis.capacity_broker import OnDemandCapacityReservation
from broker.apis.karpenter import NodeClaim
from broker.capacity.inventory import Inventory
from broker.capacity.model import Claim, Selection
from broker.capacity.option_catalog import OptionCatalog
from broker.capacity.plan import plan
from broker.capacity.shortages import Scope, Shortages
from broker.capacity.static_nodes import granted, usable_slots
from broker.capacity.successors import HOLD
from broker.capacity.supply import LaunchSupply
from broker.capacity.ways import ways
from broker.controllers.provisioning.observe import forecast, launchable
from broker.oncall.idle_matches import TypeFacts, idle_slots
from broker.oncall.slot_holders import slot_uses
from broker.placement.claims import kept_slots
from broker.text import format_time
from providers.errors import ErrorClass
from tests.unit.capacity.builders import GROUP, NOW, claim, inventory, node_class, odcr, supply

pytestmark = pytest.mark.covers("FUL-04")
STRANGER: Final = claim("stranger", kinds=("reserved",), priority=1000)


def successor(name: str = "next", *, node_class: str = "default") -> NodeClaim:
    hold = {names.REPLACES: "old/uid", names.TAKES_SLOT: f"cr-1/{format_time(NOW + HOLD)}"}
    requirement = {"key": names.CAPACITY_TYPE, "operator": "In", "values": ["reserved"]}
    reference = {"group": names.BROKER, "kind": "EC2NodeClass", "name": node_class}
    return NodeClaim.decode(
        {
            "metadata": {"name": name, "uid": f"uid-{name}", "annotations": hold},
            "spec": {"nodeClassRef": reference, "requirements": [requirement]},
        }
    )


def world(free: int, *claims: NodeClaim) -> LaunchSupply:
    odcrs = inventory(odcr("cr-1", free=free), groups={GROUP: ["cr-1"]})
    stock = replace(odcrs, kept=kept_slots(claims, NOW))
    return supply({"default": node_class(Selection(group_arn=GROUP), stock)}, stock)


def waiting(supply: LaunchSupply, *claims: NodeClaim) -> dict[str, Claim]:
    """As the launch loop, disruption and static pools read them."""
    planned = launchable(claims, lambda _: None)
    return {uid: claim for uid, claim in planned.items() if claim.node_class in supply.classes}


def by_launches(supply: LaunchSupply, *claims: NodeClaim) -> int:
    strangers = [replace(STRANGER, name=f"s-{n}", uid=f"s-{n}") for n in range(3)]
    result = plan([*waiting(supply, *claims).values(), *strangers], supply)
    return sum(assignment.claim in strangers for assignment in result.assignments)


def by_provisioning(supply: LaunchSupply, *claims: NodeClaim) -> int:
    taken = forecast(claims, supply, launched={}, pod=lambda _: None, seconds=60, timer=float).taken
    candidates = OptionCatalog(supply).candidates(STRANGER)
    return sum(way.free - taken[way.odcr_id] for way in ways(STRANGER, candidates, supply))


def by_grants(supply: LaunchSupply, *claims: NodeClaim) -> int:
    return granted(STRANGER, 3, [*waiting(supply, *claims).values()], supply, seconds=60).count


def mirror(supply: LaunchSupply) -> OnDemandCapacityReservation:
    total = supply.inventory.odcrs["cr-1"].total
    status: dict[str, Any] = {"type": "m5.xlarge", "zone": "us-east-1a", "state": "active"}
    status |= {"total": total, "available": total}
    return OnDemandCapacityReservation.decode({"metadata": {"name": "cr-1"}, "status": status})


def by_idle_slots(supply: LaunchSupply, *_: NodeClaim) -> int:
    slots = idle_slots([mirror(supply)], {}, lambda _: TypeFacts(), {"cr-1": by_slot_uses(supply)})
    return sum(slot.free for slot in slots)


def by_slot_uses(supply: LaunchSupply, *_: NodeClaim) -> int:
    uses = slot_uses([mirror(supply)], {}, (), (), lambda _: None, supply.inventory.promised)
    assert uses["cr-1"].elsewhere == 0
    return uses["cr-1"].free


@pytest.mark.parametrize("node_class", ["default", "not-ready"])
@pytest.mark.parametrize(
    ("free", "kept", "expected"), [(1, 1, 0), (2, 1, 1), (3, 2, 1), (3, 0, 3), (1, 2, 0)]
)
@pytest.mark.parametrize(
    "count",
    [
        by_launches,
        by_provisioning,
        by_grants,
        by_idle_slots,
        by_slot_uses,
        lambda supply, *_: usable_slots(STRANGER, supply).open,
        lambda supply, *_: supply.inventory.free("cr-1"),
    ],
)
def test_all_readers_count_the_same_free_slots_beside_kept_ones(
    count: Callable[..., int], free: int, kept: int, expected: int, node_class: str
) -> None:
    claims = [successor(f"next-{n}", node_class=node_class) for n in range(kept)]
    assert count(world(free, *claims), *claims) == expected


def test_successor_gets_the_slot_that_is_kept_for_it() -> None:
    claims = [successor("a"), successor("b", node_class="not-ready")]
    given = world(2, *claims)
    (assignment,) = plan(waiting(given, *claims).values(), given).assignments
    assert (assignment.claim.name, assignment.option.odcr_ids) == ("a", ("cr-1",))


def test_refusal_of_a_kept_slot_ends_once_ec2_shows_room() -> None:
    """A launch that EC2 refused as full: the kept slot shows the room."""
    scope = Scope(kind="reservation", key="cr-1")
    full = Shortages().record(
        scope, class_=ErrorClass.RESERVATION_FULL, code="ReservationCapacityExceeded", now=NOW, free=0
    )
    later = NOW.replace(minute=1)
    stock: Inventory = replace(world(1, successor()).inventory, described=later)
    assert full.get(scope, NOW) and not full.observed(stock, later).get(scope, later)
