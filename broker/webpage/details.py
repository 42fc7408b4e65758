"""What one page alone shows: the nodes, the pods, and the explanation of a claim or of a pod.

Invariant: it is read when a page needs it, so the other pages do not pay for it. `visible_details` leaves the
part that a person may read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from broker.apis.core import Pod
from broker.app import Broker
from broker.webpage.nodes import NodeRow, PodAmounts, PodRow, node_rows, pod_rows
from broker.webpage.scope import VisibleScope

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Explainer:
    """The documents of `explain claim NAME` and `explain pod NAMESPACE/NAME`; None without such an object."""

    claim: Callable[[Broker, str], Document | None]
    pod: Callable[[Broker, str], Document | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Details:
    """Each is computed when it is called. `pods`: of a namespace, or that draw from an owner."""

    nodes: Callable[[], Sequence[NodeRow]] = tuple
    pods: Callable[[str, str], Sequence[PodRow]] = lambda _namespace, _owner: ()
    claim: Callable[[str], Document | None] = lambda _: None
    pod: Callable[[str], Document | None] = lambda _: None


NO_DETAILS = Details()


def live_details(broker: Broker, explainer: Explainer, requests: PodAmounts) -> Details:
    """From the caches of a leading broker. `requests` are kept from one page to the next."""

    def nodes() -> list[NodeRow]:
        known = broker.situation()
        return node_rows(known.nodes, known.claims, known.pods, known.slot_owners, known.price, requests)

    def pods(namespace: str, owner: str) -> list[PodRow]:
        known = broker.situation()
        return pod_rows(
            known.nodes,
            known.claims,
            known.pods,
            known.rights,
            known.price,
            requests,
            waiting=known.waiting_pods,
            pools=known.pools,
            namespace=namespace,
            owner=owner,
        )

    return Details(
        nodes=nodes,
        pods=pods,
        claim=lambda name: explainer.claim(broker, name),
        pod=lambda key: explainer.pod(broker, key),
    )


def visible_details(details: Details, scope: VisibleScope) -> Details:
    """The part within the scope. Without the cluster there are no nodes, claims and reservations."""
    if scope.whole:
        return details

    def nodes() -> list[NodeRow]:
        return [replace(row, owner=scope.owner(row.owner)) for row in details.nodes()]

    def pods(namespace: str, owner: str) -> list[PodRow]:
        rows = (row for row in details.pods(namespace, owner) if scope.admits(row.namespace))
        return [(row if scope.cluster else row.without_cluster()).masked(scope.owner) for row in rows]

    def pod(key: str) -> Document | None:
        if not scope.admits(key.partition("/")[0]):
            return None
        document = details.pod(key)
        return _visible_pod(document, scope) if document is not None else None

    def claim(name: str) -> Document | None:
        document = details.claim(name) if scope.cluster else None
        return _visible_claim(document, scope) if document is not None else None

    return Details(nodes=nodes if scope.cluster else tuple, pods=pods, claim=claim, pod=pod)


def _visible_claim(document: Document, scope: VisibleScope) -> Document:
    """Without the sentences of a plan, which may name what is of others."""
    options = [{**row, "message": ""} for row in document.get("options", ())]
    return {**document, "pods": [*scope.pods(document["pods"])], "options": options, "decision": ""}


def _visible_pod(document: Document, scope: VisibleScope) -> Document:
    """Sentences may name what is of others: for a part of the cluster, they are left out."""
    why = [{**row, "message": row["own_message"], "alike": []} for row in document.get("why", ())]
    events = [row for row in document.get("events", ()) if row["about"].startswith(f"{Pod.KIND.kind} ")]
    if not scope.cluster:
        why = [{**row, "nodepool": "", "claim": ""} for row in why]
        head = {"subject": document["subject"], "headline": "", "why": why, "events": events}
        return head | dict.fromkeys(("placed", "nodepools", "options", "slots", "do", "next"), ())
    return {
        **document,
        "why": why,
        "events": events,
        "options": [{**row, "message": ""} for row in document.get("options", ())],
        "slots": [_slot(row, scope) for row in document.get("slots", ())],
        "placed": [_slot(row, scope) for row in document.get("placed", ())],
        "do": (),
        "next": (),
    }


def _slot(row: Document, scope: VisibleScope) -> Document:
    named = {key: scope.owner(row.get(key) or "") for key in ("owner", "draws_from")}
    return {**row, **named, "pods": [*scope.pods(row.get("pods", ()))], "why_until": ""}
