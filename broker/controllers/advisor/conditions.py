"""The broker's conditions on a class about its selector terms and its NodePools.

`CapacityReservationsReady` and other unmarked conditions are Karpenter's, and stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import orjson

from broker.apis import names
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.meta import ConditionStatus, ConditionUpdate, condition
from broker.controllers.advisor.terms import MOST_TERMS, PATIENCE, Advice, Term
from broker.controllers.nodeclass.status import NOT_REQUESTED
from broker.kube.conditions import condition_body, remove_condition, set_conditions
from broker.text import abridged, counted

TYPES = (names.RESERVATIONS_ADVISED, names.RESERVED_ALLOWED)
YIELDED = "ListKeptByOthers"
FIELD = "spec.capacityReservationSelectorTerms"


def advised(
    advice: Advice,
    *,
    usable: int,
    waiting: Sequence[str] = (),
    refused: Mapping[str, str] | None = None,
) -> ConditionUpdate:
    """The list is as the broker wants it.

    `waiting`: reservations that EC2 has not shown with the tag yet. `refused`: by id, the reasons why
    reservations cannot be tagged.
    """
    if waiting:
        text = f"EC2 shows no tag yet on {abridged(waiting, 8)}; {FIELD} follows when it does"
        return _update("False", "TaggingReservations", text)
    if advice.left_out:
        full = (
            f"{FIELD} holds {MOST_TERMS} terms at most, and none is left for {abridged(advice.left_out, 8)}"
        )
        if refused:
            whys = sorted({*refused.values()})
            return _update("False", "TaggingRefused", "; ".join([full, *whys[:4]]))
        return _update("False", "NoRoom", f"{full}: remove terms of your own")
    if advice.form == "none":
        return _update("True", NOT_REQUESTED, "the class requests no reservation")
    if advice.form == "open":
        return _update("True", "OpenTerm", "Karpenter selects every open reservation of the account")
    if not usable:
        return _update("True", "NothingToSelect", "no reservation is usable: see ReservationsResolved")
    how = "by one tag" if advice.form == "tag" else "by id"
    return _update("True", "TermsWritten", f"Karpenter selects {counted(usable, 'reservation')} {how}")


def yielded(offer: Term, manager: str, *, held: bool) -> ConditionUpdate:
    """The list is left to another manager. `held`: it has the offered term nevertheless."""
    if held:
        return _update("True", "TermsHeld", f"the terms of {manager} include the broker's own term")
    text = (
        f"{manager} removed the broker's terms {PATIENCE} times, so the broker leaves {FIELD} alone: put "
        f"this term into the manifest: {orjson.dumps(offer).decode()}. To have the broker write again, set "
        f"annotation {names.ADVISED} to {{}}"
    )
    return _update("False", YIELDED, text)


def unresolved(reason: str, message: str) -> ConditionUpdate:
    """The terms stay as they are while the wanted ones are unknown."""
    return _update("Unknown", reason, f"the terms stay as they are: {message}")


def refused_by_server(reason: str, message: str) -> ConditionUpdate:
    return _update("False", reason, message)


def allowed(without: Sequence[str], beyond: Sequence[str], *, only: bool) -> ConditionUpdate:
    """`without`: pools that do not allow `reserved`. `beyond`: pools that also allow other types.

    The latter matter if the class requests reservations `only`.
    """
    key = names.CAPACITY_TYPE
    if without:
        reason = "ReservedNotAllowed"
        text = (
            f"{_pools(without)}: {key} does not allow reserved, so Karpenter launches none of their nodes "
            "into the class's reservations; add reserved to its values"
        )
    elif only and beyond:
        reason = "MoreThanReserved"
        text = (
            f"{_pools(beyond)}: {key} allows more than reserved, so Karpenter may launch outside of "
            "reservations, which the class's capacity-reservations-only excludes; require In [reserved]"
        )
    else:
        return ConditionUpdate(type=names.RESERVED_ALLOWED, status="True", reason="Allowed", message="")
    return ConditionUpdate(type=names.RESERVED_ALLOWED, status="False", reason=reason, message=text)


def conditions_patch(
    node_class: EC2NodeClass,
    updates: Iterable[ConditionUpdate],
    *,
    types: Iterable[str] = TYPES,
    now: datetime,
) -> dict[str, Any] | None:
    """The status with these conditions, and without the others of `types`; None if nothing changes."""
    by_type = {update.type: update for update in updates}
    before = conditions = node_class.status.conditions
    for type_ in types:
        if update := by_type.get(type_):
            old = condition(conditions, type_)
            if old and (old.status, old.reason, old.message) == (
                update.status,
                update.reason,
                update.message,
            ):
                continue
            conditions = set_conditions(
                conditions,
                update,
                now=now,
                observed_generation=node_class.metadata.generation,
            )
        else:
            conditions = remove_condition(conditions, type_)
    if conditions == before:
        return None
    return {"conditions": [*map(condition_body, conditions)]}


def _update(status: ConditionStatus, reason: str, message: str) -> ConditionUpdate:
    return ConditionUpdate(type=names.RESERVATIONS_ADVISED, status=status, reason=reason, message=message)


def _pools(pools: Sequence[str]) -> str:
    return f"NodePool {pools[0]}" if len(pools) == 1 else f"NodePools {abridged(pools, 8)}"
