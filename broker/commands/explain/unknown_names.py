"""Answers to names that no object of the cluster has."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from broker.text import abridged, all_similar

_NEAR_ID: Final = 0.8  # of difflib's ratio: ids of EC2 have few different characters


def elsewhere(kind: str, name: str, namespace: str, namespaces: Iterable[str]) -> str:
    """About a name that only other namespaces have; empty if none has it."""
    same = sorted(namespaces)
    if not same:
        return ""
    return f"no {kind} {name!r} in namespace {namespace}: it is in {abridged(same, 3)} (write -n {same[0]})"


def no_namespace(namespace: str, known: Iterable[str]) -> str:
    """About a namespace that does not exist; empty for one that does, or while none can be read."""
    existing = {*known}
    if not existing or namespace in existing:
        return ""
    return unknown("Namespace", namespace, existing, "kubectl get namespaces")


def unknown(kind: str, name: str, known: Iterable[str], command: str, where: str = "this cluster") -> str:
    """About a name that no object has: the similar names, or the first of all; `where`: their place."""
    existing = sorted(known)
    if meant := all_similar(name, existing, most=3):
        shown = f"did you mean {' or '.join(meant)}?"
    else:
        shown = f"there are {abridged(existing, 3)}" if existing else "there is none at all"
    return f"no {kind} {name!r} in {where}: {shown} ({command})"


def unknown_reservation(name: str, reservations: Iterable[str], odcr_ids: Iterable[str]) -> str:
    """About a name that no CapacityReservation has, and an id that no class and no owner uses."""
    named, ids = sorted(reservations), sorted(odcr_ids)
    near = [*all_similar(name, named, most=3), *all_similar(name, ids, most=3, ratio=_NEAR_ID)]
    known = [
        f"{kind} {abridged(texts, 3)}"
        for kind, texts in (("CapacityReservations", named), ("EC2 reservations", ids))
        if texts
    ]
    if near:
        shown = f"did you mean {' or '.join(near)}?"
    else:
        shown = f"there are {' and '.join(known)}" if known else "there is none at all"
    return (
        f"no CapacityReservation, and no EC2 reservation in use, is {name!r} in this cluster: {shown} "
        "(kubectl get capacityreservations -A; capacity-broker inventory shows all of EC2)"
    )
