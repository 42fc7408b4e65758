"""Until when the drain of a claim that ends may take."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.text import InvalidText, decode_duration, decode_time


def deadline_of(claim: NodeClaim) -> datetime | None:
    """The earlier of its terminationGracePeriod's end, once it is deleted, and Karpenter's annotation."""
    return min(_deadlines(claim), default=None)


def _deadlines(claim: NodeClaim) -> Iterator[datetime]:
    period, since = claim.spec.termination_grace_period, claim.metadata.deletion_timestamp
    if period and since is not None:
        with suppress(InvalidText):
            yield since + decode_duration(period)
    if text := claim.annotations.get(names.TERMINATION_DEADLINE, ""):
        with suppress(InvalidText):
            yield decode_time(text)
