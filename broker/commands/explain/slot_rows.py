"""The slots of an EC2 reservation with their users, as rows of an explanation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from broker.apis.capacity_broker import OnDemandCapacityReservation
from broker.apis.meta import Object
from broker.commands.output import age
from broker.oncall.situation import Situation
from broker.oncall.slot_holders import SlotUse, SlotUser
from broker.reservations.spec import Reservation
from broker.text import abridged, counted, format_time

MOST_CLASSES: Final = 3


def users_of_slots(situation: Situation, subject: Object | None) -> Iterator[dict[str, Any]]:
    """The users of a reservation's slots; none for another subject."""
    if isinstance(subject, Reservation | OnDemandCapacityReservation):
        for mirror in situation.mirrors:
            if (use := situation.slot_uses.get(mirror.name)) is not None:
                yield from slot_rows(use, situation.now)


def slot_state(situation: Situation, mirror: OnDemandCapacityReservation) -> Iterator[dict[str, Any]]:
    """One row about an EC2 reservation."""
    use = situation.slot_uses.get(mirror.name)
    begins = use.begins if use is not None else None
    yield {
        "kind": "EC2 reservation",
        "object": mirror.name,
        "state": mirror.status.state,
        "since": begins and format_time(begins),
        "message": use.summary if use is not None else _ended(situation, mirror),
    }


def _ended(situation: Situation, mirror: OnDemandCapacityReservation) -> str:
    """What is left of a reservation that is over."""
    status, whole = mirror.status, situation.whole or situation
    named = [
        item.name
        for item in whole.classes
        if any(misfit.id == mirror.name for misfit in item.status.capacity_reservation_misfits)
    ]
    text = f"{mirror.name} ({status.type}, {status.zone}): nothing launches into it any more"
    return f"{text}; still named by EC2NodeClass {abridged(named, MOST_CLASSES)}" if named else text


def slot_rows(use: SlotUse, now: datetime, role: str = "") -> Iterator[dict[str, Any]]:
    """A row for each user of a reservation, one for its free slots, those kept, and those that others use.

    `role`: what a pod has to do with it, if the page is that of a pod.
    """
    named = {"role": role, "slot": use.id, "type": use.type, "zone": use.zone, "owner": use.owner or None}
    named["place"] = f"{use.id} ({use.type}, {use.zone})" + (f" of {use.owner}" if use.owner else "")
    for user in use.holders:
        yield {**named, **_user(user, now)}
    others = (
        (use.free, "free slot", ""),
        (use.kept, "unused slot", " kept for certain claims"),
        (use.elsewhere, "instance", " of no claim of this cluster"),
    )
    for count, noun, detail in others:
        if count:
            yield {**named, **_NO_CLAIM, "holder": f"{counted(count, noun)}{detail}"}


# The keys of `_user` that only a claim has a value of.
_NO_CLAIM: Final[Mapping[str, Any]] = {
    **dict.fromkeys(("claim", "draws_from", "since", "until", "for")),
    "pods": [],
    "why_until": "",
    "end": "",
}


def end_of(user: SlotUser) -> dict[str, Any]:
    """When the user leaves its slot, and why."""
    end = f"{format_time(user.until).replace('T', ' ')}: {user.why}" if user.until else user.why
    return {
        "until": user.until and format_time(user.until),
        "why_until": user.why,
        "end": end or "not known",
    }


def _user(user: SlotUser, now: datetime) -> dict[str, Any]:
    return {
        "claim": user.claim,
        "pods": list(user.pods),
        "draws_from": user.owner,
        "since": user.since and format_time(user.since),
        "holder": f"{user.named}{f', draws from {user.owner}' if user.owner else ''}",
        "for": age(now - user.since) if user.since else None,
        **end_of(user),
    }
