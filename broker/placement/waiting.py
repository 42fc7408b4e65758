"""Since when the pods of a claim wait for a machine, also if claims before it gave way.

Invariant: the annotation alone is not believed. It counts only from the creation of the claim's pods on, and
only before the claim's own creation; without known pods it does not count.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from broker.apis import names
from broker.apis.core import Pod
from broker.apis.karpenter import NodeClaim, pods_of
from broker.text import InvalidText, decode_time


def waiting_since(claim: NodeClaim, pod: Callable[[str], Pod | None]) -> datetime | None:
    """The creation of the claim, or of the claims before it for its pods. `pod`: by `namespace/name`."""
    created, text = claim.metadata.creation_timestamp, claim.annotations.get(names.WAITING_SINCE)
    if created is None or text is None:
        return created
    pods = (known.metadata.creation_timestamp for key in pods_of(claim) if (known := pod(key)) is not None)
    first = min((at for at in pods if at is not None), default=None)
    try:
        since = decode_time(text)
    except InvalidText:
        return created
    return created if first is None else min(created, max(since, first))
