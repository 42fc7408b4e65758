"""Keeps labels of claims and Nodes to the reservation that EC2 counts their instances in.

Invariant: a pass reads the last listing of the cluster's instances and the last description of the
reservations. It makes no call to EC2 itself, writes only differences, and disrupts nothing. Claim and Node
are compared separately, so that the next pass completes a pass that a crash interrupted. It requests a new
listing for each description of the reservations that may count an instance elsewhere: labels follow within
one poll. A full reservation that lost one instance and took another one in has the same numbers as before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import structlog
from prometheus_client import Counter

from broker.apis import names
from broker.apis.core import Node
from broker.apis.karpenter import NodeClaim
from broker.apis.meta import ConditionUpdate, is_true
from broker.capacity.absorption import absorbs, place_of
from broker.capacity.inventory import Inventory
from broker.controllers.claim_caches import BY_INSTANCE, ClaimCaches
from broker.controllers.claim_status import AVAILABLE, LIMIT_EXCEEDED, patch, place_outside, write
from broker.controllers.instances import InstanceListing, InstanceView
from broker.controllers.inventory import InventoryCache
from broker.kube.context import ControllerContext
from broker.kube.controller import Result
from broker.kube.derived import Derived
from broker.kube.for_each import for_each
from broker.lists import lists_by_key
from broker.oncall.metrics import REGISTRY
from broker.reservations.instance_labels import RESERVED, Change, InstanceLabels, instance_labels
from broker.text import counted
from providers.model import Instance, Odcr

REASONS: Mapping[Change, str] = {
    "demoted": "DemotedToOnDemand",
    "promoted": "PromotedToReserved",
    "moved": "ReservationChanged",
}
CHANGES = Counter(
    "capacity_broker_instance_moves",
    "Running instances that EC2 moved between reservations, into one, or out of all.",
    ["change"],
    registry=REGISTRY,
)

Work = tuple[NodeClaim, Instance, InstanceLabels, Inventory]
Size = tuple[bool, int]  # whether the reservation is active, and its slots

_log = structlog.get_logger("reservations")


class InstanceLabelController:
    """`run` is one pass over all claims: it writes demotions and promotions."""

    def __init__(
        self,
        context: ControllerContext,
        caches: ClaimCaches,
        inventory: InventoryCache,
        view: InstanceView,
        *,
        relist: Callable[[], None],
    ) -> None:
        """`relist` requests a new listing if the view is in doubt."""
        self._client, self._clock, self._recorder = context.client, context.clock, context.recorder
        self._claims, self._nodes = caches.claims, caches.nodes
        self._inventory = inventory
        self._view = view
        self._relist = relist
        self._caches = caches
        self._launched = Derived(self._read, caches.claims, caches.nodes, also=caches.taken)
        self._sizes: Mapping[str, Size] = {}  # of each reservation, when the instances were last listed
        self._asked: datetime | None = None  # the description for which the last new listing was requested
        self._settled: tuple[object, ...] = ()  # what a pass read that had nothing to write or to doubt

    def run(self) -> Result | None:
        """Raises ApiError, after every claim had its turn unless the API server is unavailable."""
        listing, inventory = self._view.listing, self._inventory.snapshot()
        if listing is None or inventory.described is None:
            return None
        due, doubtful = self._due(listing, inventory)
        if doubtful and inventory.described != self._asked:
            self._asked = inventory.described
            self._view.doubt()
            self._relist()
        for_each(due, lambda work: self._reconcile(*work))
        return None

    def _due(self, listing: InstanceListing, inventory: Inventory) -> tuple[list[Work], bool]:
        """Claims that differ from EC2's description, or have a Node that does; and whether some wait for a
        new listing.
        """
        older = inventory.described is not None and listing.taken < inventory.described
        launched = self._launched()
        seen = (launched, listing.instances, inventory.odcrs, inventory.groups)
        settled = seen == self._settled
        sizes = self._sizes if settled and older else _sizes(inventory)
        changes = _Changes(self._sizes, sizes, inventory) if older and not settled else None
        if not older:
            self._sizes = sizes
        if settled:
            self._settled = seen  # equal to the old one, which need not be kept
            return [], False
        due: list[Work] = []
        doubtful = False
        for claim, id_, nodes in launched:
            with self._claims.guard(claim):
                instance = listing.instances.get(id_)
                if instance is None:  # launched after the listing
                    doubtful |= older and _ended(claim, inventory)
                    doubtful = doubtful or (changes is not None and changes.reach(claim))
                    continue
                wanted = instance_labels(instance, inventory.odcrs.get(instance.reservation_id))
                doubtful = doubtful or (changes is not None and changes.concern(instance))
                if wanted is None or not any(wanted.lacking(item.labels) for item in (claim, *nodes)):
                    continue
                if wanted.contradicted and older:
                    doubtful = True  # the reservation ended since: a new listing shows its instances
                    continue
                if not older and not instance.reservation_id and _active(claim, inventory):
                    continue  # the next description shows the state of the reservation
                due.append((claim, instance, wanted, inventory))
        # What an older listing leaves without doubt, one that shows the same does as well.
        self._settled = seen if older and not due and not doubtful else ()
        return due, doubtful

    def _read(self) -> Sequence[tuple[NodeClaim, str, Sequence[Node]]]:
        """The claims with an instance, its id and their Nodes."""
        launched: list[tuple[NodeClaim, str, Sequence[Node]]] = []
        for id_, claim in self._caches.launched().items():
            with self._claims.guard(claim):
                launched.append((claim, id_, self._registered(claim)))
        return launched

    def _reconcile(
        self, claim: NodeClaim, instance: Instance, wanted: InstanceLabels, inventory: Inventory
    ) -> None:
        change = wanted.change(claim.labels)
        before = claim.labels.get(names.RESERVATION_ID, "")
        message = ""
        if _spilled(claim, wanted):
            claim = self._report_spill(claim, instance)
        elif change:
            # The condition first: labels that still differ make the next pass complete an interrupted one.
            message = self._message(change, instance, before, inventory)
            claim = write(
                self._client, self._claims, claim, _condition(change, message), now=self._clock.now()
            )
        claim = patch(self._client, self._claims, claim, lambda now: _metadata(now, wanted))
        if change:
            _log.info(REASONS[change], claim=claim.name, why=message)
            self._recorder.event(
                claim, "Warning" if change == "demoted" else "Normal", REASONS[change], message
            )
            CHANGES.labels(change).inc()
        for node in self._registered(claim):
            if lacking := wanted.lacking(node.labels):
                # Another instance may have this name by now, but not at this version.
                metadata = {"labels": lacking, "resourceVersion": node.metadata.resource_version}
                self._nodes.observe(self._client.patch(Node.KIND, node.name, {"metadata": metadata}))
                _log.info("node labelled", node=node.name, claim=claim.name, labels=lacking)

    def _message(self, change: Change, instance: Instance, before: str, inventory: Inventory) -> str:
        if change == "promoted":
            return f"EC2 counts instance {instance.id} in reservation {instance.reservation_id} now"
        if change == "moved":
            return (
                f"EC2 counts instance {instance.id} in reservation {instance.reservation_id} now, "
                f"no longer in {before or 'another'}"
            )
        why = _no_longer(inventory.odcrs.get(before), self._inventory.resized.get(before))
        return (
            f"instance {instance.id} runs on as an On-Demand Instance: reservation {before or '(unknown)'} "
            f"{why}"
        )

    def _report_spill(self, claim: NodeClaim, instance: Instance) -> NodeClaim:
        """Writes the condition that a claim gets at launch if EC2 already shows the instance outside its
        reservation.
        """
        change = ConditionUpdate(
            type=names.CAPACITY_RESERVATION,
            status="False",
            reason=LIMIT_EXCEEDED,
            message=f"instance {instance.id} runs on demand: EC2 shows it in no reservation",
        )
        _log.warning("launched outside the reservation", claim=claim.name, why=change.message)
        return write(self._client, self._claims, claim, change, now=self._clock.now())

    def _registered(self, claim: NodeClaim) -> list[Node]:
        """The claim's registered Nodes. A later Node gets the claim's labels when it joins."""
        nodes = self._nodes.by(BY_INSTANCE, claim.instance_id)
        return [node for node in nodes if node.labels.get(names.REGISTERED) == "true" and not node.deleting]


class _Changes:
    """What may be new in a description of the reservations since the last listing of the instances."""

    def __init__(self, before: Mapping[str, Size], after: Mapping[str, Size], inventory: Inventory) -> None:
        self._resized = {id_ for id_, size in after.items() if before.get(id_) != size}
        self._groups = inventory.groups
        self._at = lists_by_key((place_of(odcr), odcr) for odcr in inventory.odcrs.values())

    def reach(self, claim: NodeClaim) -> bool:
        """Whether a reservation may have taken in an instance on demand that EC2 has not listed yet."""
        place = place_outside(claim)
        return place is not None and any(odcr.active for odcr in self._at.get(place, ()))

    def concern(self, instance: Instance) -> bool:
        """Whether EC2 may count the instance in another reservation than the last listing shows."""
        if instance.reservation_id:
            return instance.reservation_id in self._resized
        near = self._at.get((instance.instance_type, instance.zone), ())
        return any(absorbs(odcr, instance, self._groups) for odcr in near)


def _sizes(inventory: Inventory) -> Mapping[str, Size]:
    return {id_: (odcr.active, odcr.total) for id_, odcr in inventory.odcrs.items()}


def _ended(claim: NodeClaim, inventory: Inventory) -> bool:
    """Whether the reservation that the claim was launched into no longer exists or has ended."""
    id_ = claim.labels.get(names.RESERVATION_ID)
    odcr = inventory.odcrs.get(id_ or "")
    return bool(id_) and (odcr is None or odcr.released)


def _spilled(claim: NodeClaim, wanted: InstanceLabels) -> bool:
    """Whether EC2 shows only now that an instance runs outside the reservation that it was launched for."""
    if names.CAPACITY_TYPE in claim.labels or wanted.labels[names.CAPACITY_TYPE] == RESERVED:
        return False
    return is_true(claim, names.CAPACITY_RESERVATION)


def _active(claim: NodeClaim, inventory: Inventory) -> bool:
    odcr = inventory.odcrs.get(claim.labels.get(names.RESERVATION_ID, ""))
    return odcr is not None and odcr.active


def _metadata(claim: NodeClaim, wanted: InstanceLabels) -> dict[str, Any]:
    lacking = {} if claim.deleting else wanted.lacking(claim.labels)
    return {"labels": lacking} if lacking else {}


def _condition(change: Change, message: str) -> ConditionUpdate:
    reserved = change != "demoted"
    return ConditionUpdate(
        type=names.CAPACITY_RESERVATION,
        status="True" if reserved else "False",
        reason=AVAILABLE if reserved else REASONS[change],
        message=message,
    )


def _no_longer(odcr: Odcr | None, resized: tuple[int, int] | None) -> str:
    """Why EC2 counts an instance no longer in the reservation."""
    if odcr is None:
        return "is gone"
    if not odcr.active:
        return f"is {odcr.state}"
    if resized is not None:
        return f"shrank from {resized[0]} to {counted(resized[1], 'instance')}, and EC2 counts it no longer"
    return f"has {counted(odcr.reserved, 'instance')}, and EC2 counts it no longer"
