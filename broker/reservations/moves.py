"""Detects reserved capacity that was moved in EC2 from one ODCR to another (a split or a move).

Invariant: an ODCR that shrank is not restored while another of equal type, zone, platform and tenancy that
appeared or grew by as much may hold its capacity: it would be paid twice. A person decides, by an adoption of
the other or by RESTORE_MOVED. EC2 may show both halves at different times, and the other may be made first.
So growth counts for MOVE_SPAN, and a loss is restored only when MOVE_SPAN has passed without growth by as
much. Growth that the broker bought counts for nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import combinations
from typing import Final

from broker.apis import names
from broker.quota.usage import ReservationKey
from broker.reservations.ownership import Ownership, ReservationProblem
from broker.reservations.purchases import TAG_PURCHASE, HeldRecord, PurchaseIntent
from broker.text import format_time
from providers.model import Odcr

MOVED: Final = "CapacityMoved"
MOVE_SPAN: Final = timedelta(minutes=5)
# The same for an ODCR that ended: a move takes all of an ODCR seldom, and a person cancels one often.
END_SPAN: Final = timedelta(seconds=45)
_MOST_COMBINED: Final = 8  # ODCRs among which those are sought that grew by as much together

Place = tuple[str, str, str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeRecord:
    """The size of an ODCR as last described; `before` its growth at `grown`.

    `lost`: when it was first described smaller than `total`, which it keeps while the loss may be a move.
    """

    total: int
    before: int
    grown: datetime | None = None
    lost: datetime | None = None

    def gain(self, now: datetime) -> int:
        return self.total - self.before if self.grown and now - self.grown < MOVE_SPAN else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityLoss:
    """`count` instances left the ODCR `source`, which had `total`."""

    reserved: ReservationKey
    flavor: str
    source: str
    total: int
    count: int
    targets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedCapacity(CapacityLoss):
    """The `targets` grew by as much."""

    @property
    def key(self) -> str:
        return f"{self.source}-{self.targets[0]}"

    @property
    def problem(self) -> ReservationProblem:
        others = " and ".join(self.targets)
        ids = ",".join(self.targets)
        return ReservationProblem(
            reason=MOVED,
            message=f"flavor {self.flavor}: {self.source} lost {self.count} of {self.total}, and {others} of "
            "equal type, zone, platform and tenancy appeared or grew by as much. The capacity may have "
            f"moved: nothing is bought. Adopt it with annotation {names.ADOPT_IDS}: {ids} (or in EC2 with "
            f"the tag {names.TAG_RESERVATION}={self.reserved}), or restore {self.source} with annotation "
            f"{names.RESTORE_MOVED}: {ids}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentLoss(CapacityLoss):
    """Another ODCR may have them until `until`."""

    until: datetime

    @property
    def problem(self) -> ReservationProblem:
        return ReservationProblem(
            reason="PurchaseSkipped",
            message=f"flavor {self.flavor}: {self.source} lost {self.count} of {self.total}. EC2 may show "
            f"later that another reservation has them, so it is restored at {format_time(self.until)}, or at "
            f"once with annotation {names.RESTORE_MOVED}: {self.source}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveSnapshot:
    """The moves and sizes by one description. `sizes`: None before the first one."""

    moves: Mapping[str, MovedCapacity] = field(default_factory=dict)
    sizes: Mapping[str, SizeRecord] | None = None

    @property
    def lost(self) -> Collection[str]:
        """The ODCRs with a loss that may still be a move."""
        return {id_ for id_, size in (self.sizes or {}).items() if size.lost}


def detect_moves(
    before: MoveSnapshot,
    held: Mapping[str, HeldRecord],
    odcrs: Mapping[str, Odcr],
    intents: Iterable[PurchaseIntent],
    now: datetime,
) -> MoveSnapshot:
    """Adds the moves since the last description, which `held` is of."""
    if before.sizes is None:
        return before
    bought = {intent.attempt_id for intent in intents} | {intent.odcr_id for intent in intents}
    bought -= {""}
    sizes = {
        id_: _size(before.sizes.get(id_), odcr, now)
        for id_, odcr in _alike(odcrs, held.values()).items()
        if not bought & {id_, odcr.tags.get(TAG_PURCHASE, "")}
    }
    moves = dict(before.moves)
    by_target = {id_: move for move in moves.values() for id_ in move.targets}
    losses: dict[Place, dict[str, int]] = {}
    gains: dict[Place, dict[str, int]] = {}
    for id_, size in sizes.items():
        place = place_of(odcrs[id_])
        if gain := size.gain(now):
            gains.setdefault(place, {})[id_] = gain
        if loss := _lost(id_, odcrs[id_], held, before.sizes if id_ in by_target else {}, now):
            losses.setdefault(place, {})[id_] = loss
    for place, lost in losses.items():
        for sources, targets in _matches(lost, gains.get(place, {})):
            for source in sources:
                for move in _moved(source, lost[source], targets, held, by_target):
                    moves[move.key] = _added(moves.get(move.key), move)
            for id_ in targets:
                sizes[id_] = SizeRecord(total=sizes[id_].total, before=sizes[id_].total)
            lost = {id_: loss for id_, loss in lost.items() if id_ not in sources}
        for id_ in lost:
            known = before.sizes.get(id_) or SizeRecord(total=held[id_].total, before=held[id_].total)
            since = known.lost or now
            if now - since < _span(odcrs[id_]):
                sizes[id_] = replace(known, lost=since)
    return MoveSnapshot(moves=moves, sizes=sizes)


def recent_losses(
    snapshot: MoveSnapshot,
    held: Mapping[str, HeldRecord],
    odcrs: Mapping[str, Odcr],
    restored: Mapping[ReservationKey, Collection[str]],
) -> Iterable[RecentLoss]:
    """The losses that may still be moves. `restored`: the ids in RESTORE_MOVED of each reservation."""
    for id_, size in (snapshot.sizes or {}).items():
        record = held.get(id_)
        if size.lost is None or record is None or id_ not in odcrs:
            continue
        count = record.total - _total(odcrs[id_])
        if count > 0 and id_ not in restored.get(record.reserved, ()):
            yield RecentLoss(
                reserved=record.reserved,
                flavor=record.flavor,
                source=id_,
                total=record.total,
                count=count,
                until=size.lost + _span(odcrs[id_]),
            )


def watched_losses(
    snapshot: MoveSnapshot, observed: Mapping[str, Odcr], odcrs: Mapping[str, Odcr]
) -> Collection[str]:
    """The ODCRs to record as they were before their loss: those that the broker has not changed since."""
    return {
        id_
        for id_ in snapshot.lost
        if id_ in observed and id_ in odcrs and _total(observed[id_]) == _total(odcrs[id_])
    }


def record_moves(
    snapshot: MoveSnapshot,
    observed: Mapping[str, Odcr],
    held: Mapping[str, HeldRecord],
    odcrs: Mapping[str, Odcr],
) -> MoveSnapshot:
    """The snapshot to compare the next description with.

    `odcrs`: as the broker left them; a difference from the `observed` ones is its own change.
    """
    sizes = {}
    for id_, odcr in _alike(odcrs, held.values()).items():
        total = _total(odcr)
        known = (snapshot.sizes or {}).get(id_)
        own = id_ not in observed or _total(observed[id_]) != total
        sizes[id_] = SizeRecord(total=total, before=total) if known is None or own else known
    return replace(snapshot, sizes=sizes)


def open_moves(
    snapshot: MoveSnapshot,
    odcrs: Mapping[str, Odcr],
    ownership: Ownership,
    restored: Mapping[ReservationKey, Collection[str]],
) -> dict[str, MovedCapacity]:
    """The moves without a decision. `restored`: the ids in RESTORE_MOVED of each reservation."""
    lost = snapshot.lost

    def is_open(move: MovedCapacity) -> bool:
        answered = restored.get(move.reserved)
        if answered is None or not {move.source, *move.targets}.isdisjoint(answered):
            return False
        source = odcrs.get(move.source)
        if source is not None and _total(source) >= move.total:
            return False  # moved back
        return any(
            id_ not in odcrs
            or id_ in lost
            or (_total(odcrs[id_]) > 0 and ownership.owner.get(id_) != move.reserved)
            for id_ in move.targets
        )

    return {move.key: move for move in snapshot.moves.values() if is_open(move)}


def place_of(odcr: Odcr | HeldRecord) -> Place:
    return odcr.instance_type, odcr.zone, odcr.platform, odcr.tenancy


def _alike(odcrs: Mapping[str, Odcr], held: Iterable[HeldRecord]) -> dict[str, Odcr]:
    """The ODCRs that capacity of a held one can be moved to or from."""
    places = {place_of(record) for record in held}
    return {id_: odcr for id_, odcr in odcrs.items() if place_of(odcr) in places and odcr.kind == "default"}


def _span(lost: Odcr) -> timedelta:
    """The time for which the loss may still be a move."""
    return END_SPAN if lost.over else MOVE_SPAN


def _total(odcr: Odcr) -> int:
    return 0 if odcr.over else odcr.reserved


def _size(known: SizeRecord | None, odcr: Odcr, now: datetime) -> SizeRecord:
    total = _total(odcr)
    if known is None:
        return SizeRecord(total=total, before=0, grown=now)
    if total > known.total:
        return SizeRecord(total=total, before=known.total - known.gain(now), grown=now)
    return known if total == known.total else SizeRecord(total=total, before=min(total, known.before))


def _lost(
    id_: str, odcr: Odcr, held: Mapping[str, HeldRecord], targets: Mapping[str, SizeRecord], now: datetime
) -> int:
    """Instances that the ODCR lost since the last description, other than by its end date."""
    if odcr.end is not None and odcr.end <= now:
        return 0
    known = held[id_].total if id_ in held else targets[id_].total if id_ in targets else 0
    return max(0, known - _total(odcr))


def _matches(
    losses: Mapping[str, int], gains: Mapping[str, int]
) -> Iterable[tuple[tuple[str, ...], tuple[str, ...]]]:
    """The sources and targets of equal amounts: one of either, or one and several."""
    lost, grown = dict(losses), dict(gains)
    for source in sorted(losses):
        if targets := _summing(grown, losses[source]):
            del lost[source]
            grown = {id_: gain for id_, gain in grown.items() if id_ not in targets}
            yield (source,), targets
    for target in sorted(grown):
        if sources := _summing(lost, grown[target]):
            lost = {id_: loss for id_, loss in lost.items() if id_ not in sources}
            yield sources, (target,)


def _summing(amounts: Mapping[str, int], total: int) -> tuple[str, ...]:
    """The fewest ids with this total; none if there are no such ids."""
    ids = sorted(amounts)[:_MOST_COMBINED]
    if equal := [id_ for id_ in sorted(amounts) if amounts[id_] == total]:
        return (equal[0],)
    for size in range(2, len(ids) + 1):
        for chosen in combinations(ids, size):
            if sum(amounts[id_] for id_ in chosen) == total:
                return chosen
    return ()


def _added(known: MovedCapacity | None, move: MovedCapacity) -> MovedCapacity:
    """Several moves between two ODCRs are one."""
    if known is None or known.targets != move.targets:
        return move
    return replace(known, count=known.count + move.count)


def _moved(
    source: str,
    count: int,
    targets: tuple[str, ...],
    held: Mapping[str, HeldRecord],
    by_target: Mapping[str, MovedCapacity],
) -> Iterable[MovedCapacity]:
    """The new move from a held ODCR, and the earlier move to it, which the targets are added to."""
    if (record := held.get(source)) is not None and record.flavor:
        yield MovedCapacity(
            reserved=record.reserved,
            flavor=record.flavor,
            source=source,
            total=record.total,
            count=count,
            targets=targets,
        )
    if (earlier := by_target.get(source)) is not None:
        yield replace(earlier, targets=tuple(dict.fromkeys([*earlier.targets, *targets])))
