"""The text of a pod that no node can have, as kube-scheduler writes it in events and conditions."""

from __future__ import annotations

from collections import Counter
from typing import Final

from broker.placement.filters import Fits

NO_NODES: Final = "no nodes available to schedule pods"


def own_rejection(text: str) -> str:
    """The rejection of the pod itself in such a text, as of a volume; empty if nodes rejected it."""
    _, _, reasons = text.partition(" nodes are available: ")
    if reasons[:1].isdigit():
        return ""
    return reasons.partition(". preemption: ")[0].removesuffix(".")


def message(fits: Fits) -> str:
    """`0/5 nodes are available: 2 Insufficient cpu, 3 node(s) had untolerated taint(s).`

    Each reason counts once for each node that has it. The parts are sorted as text, so that 10 precedes 2.
    A rejection of the pod itself is named without nodes too.
    """
    if not fits.total and fits.rejection is None:
        return NO_NODES
    head = f"{len(fits.nodes)}/{fits.total} nodes are available"
    if fits.rejection is not None:
        return f"{head}: {fits.rejection}."
    counts = Counter(reason for reasons in fits.reasons.values() for reason in reasons)
    parts = sorted(f"{count} {text}" for text, count in counts.items())
    return f"{head}: {', '.join(parts)}." if parts else head
