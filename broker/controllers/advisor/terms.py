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

MOST_TERMS = 30  # entries that the CRD allows
TAG_KEY = 128  # characters that EC2 allows
OPEN: Term = {"instanceMatchCriteria": "open"}
# After this many removals, each within a day of the last write, the broker no longer restores its entries.
PATIENCE = 3
REMOVAL_MEMORY = timedelta(days=1)
# Karpenter itself foresees these ends and drains. If the entries were dropped, its nodes would also drift.
ENDED_BY_KARPENTER = frozenset({"CapacityBlockEnding"})


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

    `request`: the request that they were written for. `removed`: how often they were removed, and `by` which
    manager. `at`: the time of the last write.
    """

    terms: tuple[Term, ...] = ()
    request: str = ""
    removed: int = 0
    by: str = ""
    at: str = ""

    @property
    def yielded(self) -> bool:
        """Whether the list is left to another manager: the broker no longer writes it."""
        return self.removed >= PATIENCE

    def dump(self) -> str:
        entry: dict[str, Any] = {"terms": list(self.terms), "for": self.request, "at": self.at}
        removed = {"removed": self.removed, "by": self.by} if self.removed else {}
        return orjson.dumps(entry | removed).decode()


def load(annotation: str | None) -> Record | None:
    """The record of an annotation. None if missing or unreadable: then every entry counts as a user's."""
    try:
        entry = decode_object(annotation or "")
        terms = entry.get("terms", [])
        if not all(isinstance(term, dict) for term in terms):
            return None
        if at := str(entry.get("at", "")):
            decode_time(at)
        return Record(
            terms=tuple(terms),
            request=str(entry.get("for", "")),
            removed=int(entry.get("removed", 0)),
            by=str(entry.get("by", "")),
            at=at,
        )
    except (TypeError, ValueError):
        return None


def request_of(spec: CapacityReservationSpec) -> str:
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


def offered(resolved: Resolved) -> tuple[str, ...]:
    """The ids that Karpenter may launch into: usable, pending, or in use until Karpenter ends them."""
    ending = [misfit.id for misfit in resolved.misfits if misfit.reason in ENDED_BY_KARPENTER]
    return tuple(sorted({*(odcr.id for odcr in (*resolved.usable, *resolved.pending)), *ending}))


def advise(
    spec: CapacityReservationSpec | None,
    resolved: Resolved | None,
    user_terms: Sequence[Term],
    *,
    tag: Term,
    account_id: str,
    untaggable: Collection[str] = (),
) -> Advice:
    """The entries to write beside a user's own. `resolved` counts for an id or a group only.

    This account cannot tag a reservation of another account, so such a reservation keeps its id. So do those
    that EC2 refused to tag.
    """
    room = MOST_TERMS - len(user_terms)
    if spec is None or spec.preference == "none":
        return Advice(form="none")
    if spec.preference:
        terms = () if OPEN in user_terms else (OPEN,)
        return Advice(form="open", terms=terms[:room], left_out=("open",) if terms and room < 1 else ())
    selected = resolved or Resolved()
    ids = [id_ for id_ in offered(selected) if {"id": id_} not in user_terms]
    tagged = any(term.get("tags") == tag["tags"] for term in user_terms)
    if len(ids) <= room and not tagged:
        return Advice(form="ids", terms=tuple({"id": id_} for id_ in ids))
    own = own_of(selected, account_id).intersection(ids) - {*untaggable}
    if tagged:
        tag_terms: tuple[Term, ...] = ()
    elif own and room > 0:
        tag_terms = (tag,)
    else:
        tag_terms, own = (), frozenset()
    left = [id_ for id_ in ids if id_ not in own]
    kept = left[: max(room - len(tag_terms), 0)]
    return Advice(
        form="tag" if tag_terms or tagged else "full",
        terms=(*tag_terms, *({"id": id_} for id_ in kept)),
        by_tag=own,
        left_out=tuple(left[len(kept) :]),
    )


def own_of(resolved: Resolved, account_id: str) -> frozenset[str]:
    """The ids in `offered` that this account can tag."""
    foreign = {o.id for o in (*resolved.usable, *resolved.pending) if o.owner_id not in ("", account_id)}
    return frozenset(offered(resolved)) - foreign


def split(present: Sequence[Term], record: Record) -> tuple[list[Term], list[Term]]:
    """A user's entries in their order, and the entries of the record that are gone."""
    user_terms, gone = list(present), []
    for term in record.terms:
        if term not in user_terms:
            gone.append(term)
            continue
        user_terms.reverse()  # the broker's entries come last
        user_terms.remove(term)
        user_terms.reverse()
    return user_terms, gone


def checked(record: Record, gone: Collection[Term], *, request: str, now: datetime) -> Record:
    """The record after a check of the list, with the number of removals for this request."""
    if record.request != request:
        return replace(record, request=request, removed=0, by="")
    if not gone or record.yielded:
        return record
    forgotten = not record.at or now - decode_time(record.at) > REMOVAL_MEMORY
    return replace(record, removed=1 if forgotten else record.removed + 1)


def written(record: Record, terms: Iterable[Term]) -> Record:
    """The record for these entries; empty if there are neither entries nor removals."""
    listed = tuple(terms)
    return replace(record, terms=listed) if listed or record.removed else Record()


def same(terms: Sequence[Term], other_terms: Sequence[Term]) -> bool:
    """Whether two lists select alike: the order of entries has no meaning."""
    return sorted(map(_sortable, terms)) == sorted(map(_sortable, other_terms))


def untagged(by_tag: Collection[str], odcrs: Iterable[Odcr], key: str, value: str) -> frozenset[str]:
    """The reservations that EC2 has not shown with the tag yet."""
    return frozenset(by_tag) - {odcr.id for odcr in odcrs if odcr.tags.get(key) == value}


def _sortable(term: Term) -> bytes:
    return orjson.dumps(term, option=orjson.OPT_SORT_KEYS)
