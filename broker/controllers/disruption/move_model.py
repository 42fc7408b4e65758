"""Moves as they are on the objects: the label of a move, its claims, and the nodes that they replace."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final, get_args

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.controllers.claim_status import replaced_uids
from broker.controllers.disruption.report import Cause
from broker.controllers.disruption.snapshot import DisruptionSnapshot, ManagedNode
from broker.text import InvalidText, decode_whole

_MOST: Final = 10_000
_ID: Final = 8  # characters of a move's id


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveLabel:
    """The value of the annotation MOVE: an id, the number of claims that end, and the cause."""

    id: str
    size: int
    cause: Cause

    def __str__(self) -> str:
        return f"{self.id}/{self.size}/{self.cause}"


def move_label(claim: NodeClaim) -> MoveLabel | None:
    """None if the annotation is missing or was changed by hand."""
    id_, _, rest = claim.annotations.get(names.MOVE, "").partition("/")
    size, _, cause = rest.partition("/")
    known = next((literal for literal in get_args(Cause) if literal == cause), None)
    try:
        return MoveLabel(id=id_, size=decode_whole(size, least=1, most=_MOST), cause=known) if known else None
    except InvalidText:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """The replacements of one move that exist, each with a node that it replaces, if that exists.

    A replacement of several nodes is in as many pairs.
    """

    label: MoveLabel
    pairs: tuple[tuple[NodeClaim, ManagedNode | None], ...]

    @property
    def olds(self) -> list[ManagedNode]:
        """The old nodes that still have to end."""
        return [node for _, node in self.pairs if node is not None and not node.claim.deleting]

    @property
    def committed(self) -> bool:
        """Whether one of several old claims has ended or ends."""
        return len(self.olds) < len(self.pairs)


def moves_of(snapshot: DisruptionSnapshot, claims: Iterable[NodeClaim]) -> list[Move]:
    """All moves with a replacement that is not being deleted."""
    grouped: dict[MoveLabel, list[tuple[NodeClaim, ManagedNode | None]]] = defaultdict(list)
    for claim in claims:
        if not claim.deleting and (label := move_label(claim)) is not None:
            grouped[label] += [(claim, snapshot.by_uid(uid)) for uid in replaced_uids(claim)]
    return [Move(label=label, pairs=tuple(pairs)) for label, pairs in grouped.items() if pairs]


def base_gang(gang: str) -> str:
    """The name of the gang before an earlier move."""
    name, dot, suffix = gang.rpartition(".")
    moved = dot and len(suffix) == _ID and all(char in "0123456789abcdef" for char in suffix)
    return name if moved else gang


def move_id(nodes: Iterable[ManagedNode], now: datetime) -> str:
    text = "/".join([*sorted(node.claim.uid for node in nodes), now.isoformat()])
    return hashlib.sha256(text.encode()).hexdigest()[:_ID]
