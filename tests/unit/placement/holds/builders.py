"""Holds, owners and requests for tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from broker.placement.holds import Amounts, Hold, HoldOwner, HoldState
from broker.placement.holds_ledger import HoldLedger, HoldLink
from broker.placement.holds_match import HoldRequest, OwnerMatcher, OwnerTest
from broker.placement.model import PodInfo
from broker.placement.quantities import PODS
from broker.placement.selectors import equal

NOW = datetime(2026, 11, 1, tzinfo=UTC)
APP = OwnerTest(labels=equal({"app": "demo"}))


def hold(name: str = "r", *, cpu: int = 0, node: str = "n", **more: Any) -> Hold:
    """A hold of so much milli-CPU for pods with the label `app: demo`."""
    more.setdefault("amount", {"cpu": cpu} if cpu else {})
    more.setdefault("matcher", OwnerMatcher((APP,)))
    return Hold(id=f"id-{name}", name=name, node=node, **more)


def owner(uid: str, *, assumed: bool = False, **requests: int) -> HoldOwner:
    return HoldOwner(uid, requests, assumed)


def state(hold: Hold, *owners: HoldOwner) -> HoldState:
    return HoldState(hold, {item.uid: item for item in owners})


def link(hold: Hold, owner: HoldOwner, node: str = "n") -> HoldLink:
    return HoldLink(hold.id, node, owner)


def request(
    name: str = "p",
    *,
    requests: Mapping[str, int] | None = None,
    labels: Mapping[str, str] | None = None,
    namespace: str = "default",
    **more: Any,
) -> HoldRequest:
    """A pod with the label `app: demo`, unless labels are given."""
    pod = PodInfo(
        namespace=namespace,
        name=name,
        uid=f"uid-{name}",
        labels={"app": "demo"} if labels is None else labels,
        requests=requests or {},
    )
    return HoldRequest(pod=pod, **more)


def ledger(*holds: Hold, links: tuple[HoldLink, ...] = (), now: datetime = NOW) -> HoldLedger:
    return HoldLedger.of(holds, links, now)


def occupied(pods: Iterable[Amounts], states: Iterable[HoldState]) -> dict[str, int]:
    """The room that a node's pods and the idle room of its holds take, with `pods`."""
    total = Counter({PODS: 0})
    for requests in pods:
        total.update({**requests, PODS: 1})
    for state in states:
        total.update({**state.idle, PODS: state.places})
    return dict(total)


def names(states: tuple[HoldState, ...]) -> list[str]:
    return [item.hold.name for item in states]
