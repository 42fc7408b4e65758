"""The status of a reservation as it is written: always all of its fields, so that no old value stays.

Invariant: the same facts give the same bytes (flavors, resources and users by name), and an unchanged status
is not written. lastTransitionTime moves only with a condition's status.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from broker.apis.meta import Condition, ConditionUpdate, Json
from broker.apis.ome import RESERVATION_CONDITIONS, SPEC_NORMALIZED, ReservationStatus
from broker.apis.units import LARGEST_AMOUNT, written
from broker.capacity.types import ACCELERATORS
from broker.kube.conditions import condition_body, set_conditions
from broker.quota.hardware import associations, beyond, free
from broker.quota.lifecycle import State
from broker.quota.model import Amounts, summed
from broker.reservations.conditions import ReservationFacts
from broker.text import format_time
from providers.model import Odcr

BROKER_CONDITIONS: Final = frozenset((*RESERVATION_CONDITIONS, SPEC_NORMALIZED))
MESSAGE: Final = 2000
# Limits an object to etcd's size: the remaining users, in order of name, are added up.
MOST_USERS: Final = 2000
OTHERS: Final = "(others)"


def body(
    before: ReservationStatus,
    generation: int,
    state: State,
    updates: Sequence[ConditionUpdate],
    detail: str,
    facts: ReservationFacts,
    *,
    known: bool,
    now: datetime,
) -> Json:
    """`known`: whether amounts are known; until then only the state and the conditions are written."""
    status: Json = {
        "capacityReservationLifecycleState": state,
        "lifecycleDetail": detail[:MESSAGE],
        "conditions": conditions(before.conditions, updates, generation, now),
    }
    if not known:
        return status
    share, used = facts.share, facts.used
    # As in a ClusterQueue: outside a cohort there is nothing to borrow from (Kueue, pkg/cache/scheduler).
    borrowed = beyond(used, facts.nominal) if facts.judged.spec.cohort else {}
    amounts: dict[str, list[Json]] = {
        "capacity": flavors(facts.nominal),
        "allocatable": flavors(share.allocatable),
        "allocated": flavors(used, borrowed),
        "free": flavors(free(free(share.allocatable, used), facts.taken)),
        "associationUsages": users(associations(facts.holders)),
        "cloudReservations": [_cloud(flavor, odcr) for flavor, odcr in facts.cloud],
    }
    status |= {name: value for name, value in amounts.items() if value}
    if facts.group_arn:
        status["reservationGroupARN"] = facts.group_arn
    status["summary"] = {
        "gpuTotal": accelerators(facts.nominal),
        "gpuAllocated": accelerators(used),
        "gpuBorrowed": accelerators(borrowed),
        "gpuAllocatable": accelerators(share.allocatable),
        "dacs": sum(holder.kind == "DedicatedAICluster" for holder in facts.holders),
    }
    return status


def same(before: ReservationStatus, status: Json) -> bool:
    """Whether the object has this status already. Conditions of other writers are ignored."""
    own = tuple(condition for condition in before.conditions if condition.type in BROKER_CONDITIONS)
    written_before = before.model_copy(update={"conditions": own})
    old = written_before.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude_none=True)
    old["conditions"] = [condition_body(condition) for condition in written_before.conditions]
    return _filled(old) == _filled(status)


def patch(before: ReservationStatus, status: Json) -> Json:
    """A merge patch: removed fields are null, and conditions of other writers stay.

    Server-side apply would compute the owner of thousands of fields, all of which the broker owns.
    """
    gone = {name: None for name in _filled(before.wire()) if name not in status}
    foreign = [
        condition_body(condition)
        for condition in before.conditions
        if condition.type not in BROKER_CONDITIONS
    ]
    return {**gone, **status, "conditions": [*status["conditions"], *foreign]}


def conditions(
    before: Iterable[Condition], updates: Iterable[ConditionUpdate], generation: int, now: datetime
) -> list[Json]:
    given = tuple(updates)
    own = [condition for condition in before if condition.type in BROKER_CONDITIONS]
    after = set_conditions(own, *given, now=now, observed_generation=generation, message_limit=MESSAGE)
    by_type = {condition.type: condition for condition in after}
    return [condition_body(by_type[update.type]) for update in given]


def flavors(amounts: Amounts, borrowed: Amounts | None = None) -> list[Json]:
    """Writes the amounts by flavor and resource, in the order of their names."""
    by_flavor: dict[str, list[Json]] = {}
    for key in sorted(amounts):
        entry: Json = {"name": key.resource, "total": written(key.resource, amounts[key])}
        if borrowed and (lent := borrowed.get(key)):
            entry["borrowed"] = written(key.resource, lent)
        by_flavor.setdefault(key.flavor, []).append(entry)
    return [{"name": flavor, "resources": resources} for flavor, resources in by_flavor.items()]


def users(named: Sequence[tuple[str, Amounts]]) -> list[Json]:
    shown, rest = named[:MOST_USERS], named[MOST_USERS:]
    rows = [{"name": name, "usage": flavors(usage)} for name, usage in shown]
    if rest:
        rows.append({"name": OTHERS, "usage": flavors(summed(usage for _, usage in rest))})
    return rows


def accelerators(amounts: Amounts) -> int:
    return min(LARGEST_AMOUNT, sum(value for key, value in amounts.items() if key.resource in ACCELERATORS))


def _cloud(flavor: str, odcr: Odcr) -> Json:
    entry: Json = {
        "id": odcr.id,
        "flavor": flavor,
        "state": odcr.state,
        "total": odcr.total,
        "available": odcr.available,
        "kind": odcr.kind,
    }
    if odcr.lent:
        entry |= {"lent": odcr.lent, "lentTo": odcr.lent_to}
    if odcr.owner_id:
        entry["ownerID"] = odcr.owner_id
    for name, moment in (("start", odcr.start), ("end", odcr.end)):
        if moment is not None:
            entry[name] = format_time(moment)
    return entry


def _filled(fields: Mapping[str, Any]) -> Json:
    """The fields without empty lists and texts, which mean the same as a missing field."""
    return {name: value for name, value in fields.items() if value not in (None, "", [], ())}
