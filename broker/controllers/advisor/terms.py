"""The broker's entries of `spec.capacityReservationSelectorTerms`: the present and the wanted ones.

Invariant: the new list keeps every entry of a user, in its place; every other entry is in the record. The
list is atomic and holds 30 entries at most (Karpenter's CRD, karpenter.k8s.aws_ec2nodeclasses.yaml).
Reservations that do not fit by id are selected by one tag. No entry of the broker repeats a user's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Literal

import orjson

from broker.apis import names
from broker.apis.reservation_spec import CapacityReservationSpec
from broker.capacity.model import Resolved
from broker.text import decode_object, decode_time
from providers.model import Odcr

Term = dict[str, Any]
Form = Literal["none", "ids", "tag", "open", "full"]

MOST = 30  # entries that the CRD allows
TAG_KEY = 128  # characters that EC2 allows
OPEN: Term = {"instanceMatchCriteria": "open"}
# After this many removals, each within a day of the last write, the broker no longer restores its entries.
PATIENCE = 3
FORGOTTEN = timedelta(days=1)
# Karpenter itself foresees these ends and drains. If the entries were dropped, its nodes would also drift.
KARPENTERS_TO_END = frozenset({"CapacityBlockEnding"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The entries that the broker wants in the list.

    `by_tag`: reservations for the tag term to select. `left_out`: reservations that no entry can select.
    """

    form: Form
    terms: tuple[Term, ...] = ()
    by_tag: frozenset[str] = frozenset()
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The entries that the broker wrote; kept on the object, so that any broker knows its own entries.

    `asked`: the request that they were written for. `removed`: how often they were removed, and `by` which
    manager. `at`: the time of the last write.
    """

    terms: tuple[Term, ...] = ()
    asked: str = ""
    removed: int = 0
    by: str = ""
    at: str = ""

    @property
    def yielded(self) -> bool:
        """Whether the list is left to another manager: the broker no longer writes it."""
        return self.removed >= PATIENCE

    def dump(self) -> str:
        said: dict[str, Any] = {"terms": list(self.terms), "for": self.asked, "at": self.at}
        removed = {"removed": self.removed, "by": self.by} if self.removed else {}
        return orjson.dumps(said | removed).decode()


def load(annotation: str | None) -> Record | None:
    """The record of an annotation. None if missing or unreadable: then every entry counts as a user's."""
    try:
        said = decode_object(annotation or "")
        terms = said.get("terms", [])
        if not all(isinstance(term, dict) for term in terms):
            return None
        if at := str(said.get("at", "")):
            decode_time(at)
        return Record(
            terms=tuple(terms),
            asked=str(said.get("for", "")),
            removed=int(said.get("removed", 0)),
            by=str(said.get("by", "")),
            at=at,
        )
    except (TypeError, ValueError):
        return None


def asked(spec: CapacityReservationSpec) -> str:
    """The request of a class, as the record names it."""
    return spec.preference or spec.reservation_id or spec.group_arn


def tag_prefix(cluster: str) -> str:
    """The prefix of the tags of this cluster's classes."""
    return f"{names.TAG_ADVISED}/{cluster}/"[: TAG_KEY - 13]


def tag_key(cluster: str, node_class: str) -> str:
    """The tag of one class. Its value is the class's name, since a long key is cut."""
    key = f"{names.TAG_ADVISED}/{cluster}/{node_class}"
    if len(key) <= TAG_KEY:
        return key
    return f"{key[: TAG_KEY - 13]}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"


def tag_term(cluster: str, node_class: str) -> Term:
    return {"tags": {tag_key(cluster, node_class): node_class}}


def offered(found: Resolved) -> tuple[str, ...]:
    """The ids that Karpenter may launch into: usable, pending, or in use until Karpenter ends them."""
    ending = [misfit.id for misfit in found.misfits if misfit.reason in KARPENTERS_TO_END]
    return tuple(sorted({*(odcr.id for odcr in (*found.usable, *found.pending)), *ending}))


def advise(
    spec: CapacityReservationSpec | None,
    found: Resolved | None,
    theirs: Sequence[Term],
    *,
    tag: Term,
    account_id: str,
    untaggable: Collection[str] = (),
) -> Advice:
    """The entries to write beside `theirs`, a user's own entries. `found` counts for an id or a group only.

    This account cannot tag a reservation of another account, so such a reservation keeps its id. So do those
    that EC2 refused to tag.
    """
    room = MOST - len(theirs)
    if spec is None or spec.preference == "none":
        return Advice(form="none")
    if spec.preference:
        terms = () if OPEN in theirs else (OPEN,)
        return Advice(form="open", terms=terms[:room], left_out=("open",) if terms and room < 1 else ())
    resolved = found or Resolved()
    ids = [id_ for id_ in offered(resolved) if {"id": id_} not in theirs]
    tagged = any(term.get("tags") == tag["tags"] for term in theirs)
    if len(ids) <= room and not tagged:
        return Advice(form="ids", terms=tuple({"id": id_} for id_ in ids))
    own = own_of(resolved, account_id).intersection(ids) - {*untaggable}
    if tagged:
        ours: tuple[Term, ...] = ()
    elif own and room > 0:
        ours = (tag,)
    else:
        ours, own = (), frozenset()
    left = [id_ for id_ in ids if id_ not in own]
    kept = left[: max(room - len(ours), 0)]
    return Advice(
        form="tag" if ours or tagged else "full",
        terms=(*ours, *({"id": id_} for id_ in kept)),
        by_tag=own,
        left_out=tuple(left[len(kept) :]),
    )


def own_of(found: Resolved, account_id: str) -> frozenset[str]:
    """The ids in `offered` that this account can tag."""
    foreign = {o.id for o in (*found.usable, *found.pending) if o.owner_id not in ("", account_id)}
    return frozenset(offered(found)) - foreign


def split(present: Sequence[Term], record: Record) -> tuple[list[Term], list[Term]]:
    """A user's entries in their order, and the entries of the record that are gone."""
    theirs, gone = list(present), []
    for term in record.terms:
        if term not in theirs:
            gone.append(term)
            continue
        theirs.reverse()  # the broker's entries come last
        theirs.remove(term)
        theirs.reverse()
    return theirs, gone


def noticed(record: Record, gone: Collection[Term], *, asked_for: str, now: datetime) -> Record:
    """The record after a check of the list, with the number of removals for this request."""
    if record.asked != asked_for:
        return replace(record, asked=asked_for, removed=0, by="")
    if not gone or record.yielded:
        return record
    forgotten = not record.at or now - decode_time(record.at) > FORGOTTEN
    return replace(record, removed=1 if forgotten else record.removed + 1)


def written(record: Record, terms: Iterable[Term]) -> Record:
    """The record for these entries; empty if there are neither entries nor removals."""
    listed = tuple(terms)
    return replace(record, terms=listed) if listed or record.removed else Record()


def same(one: Sequence[Term], other: Sequence[Term]) -> bool:
    """Whether two lists select alike: the order of entries has no meaning."""
    return sorted(map(_sortable, one)) == sorted(map(_sortable, other))


def untagged(by_tag: Collection[str], odcrs: Iterable[Odcr], key: str, value: str) -> frozenset[str]:
    """The reservations that EC2 has not shown with the tag yet."""
    return frozenset(by_tag) - {odcr.id for odcr in odcrs if odcr.tags.get(key) == value}


def _sortable(term: Term) -> bytes:
    return orjson.dumps(term, option=orjson.OPT_SORT_KEYS)
