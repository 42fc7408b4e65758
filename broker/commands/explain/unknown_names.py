"""Answers to names that no object of the cluster has."""

from __future__ import annotations

from collections.abc import Iterable

from broker.apis.ome import CapacityReservation
from broker.text import abridged, all_similar


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
    if kind == CapacityReservation.KIND.kind and name.startswith("cr-"):
        return f"no class and no CapacityReservation uses {name}: capacity-broker inventory shows all of EC2"
    if meant := all_similar(name, existing, most=3):
        shown = f"did you mean {' or '.join(meant)}?"
    else:
        shown = f"there are {abridged(existing, 3)}" if existing else "there is none at all"
    return f"no {kind} {name!r} in {where}: {shown} ({command})"
