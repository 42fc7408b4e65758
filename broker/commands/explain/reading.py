"""Reads the cluster's records for an explanation, as far as the caller may.

Invariant: only Kubernetes is read, so the answer needs neither the broker nor AWS. A kind that is not
installed counts as empty. A kind that may not be read counts as empty too, and `unread` reports it.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from broker.apis.capacity_broker import OnDemandCapacityReservation
from broker.apis.core import Event, Node, Pod
from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.kueue import Namespace
from broker.apis.ome import CapacityReservation, ClusterCapacityReservation
from broker.commands.explain.event_facts import KARPENTER, happened, of_scheduler, reports, written_by
from broker.commands.explain.permitted import REPORTS, SHORTAGES, TYPES, listed, published
from broker.commands.inventory.prices import shipped_price
from broker.controllers.left_slots import slots_of_claims
from broker.kube.client import Client
from broker.kube.errors import Forbidden
from broker.oncall.pod_facts import waits
from broker.oncall.situation import Situation
from broker.oncall.state import is_brokers
from providers.names import MANAGER


def read(client: Client, now: datetime) -> Situation:
    """Reads the cluster. Raises ApiError, as NotFound if NodeClaims are not installed."""
    collecting = gc.isenabled()
    gc.disable()  # all that is read stays, and a collection would walk it again and again
    try:
        return _read(client, now)
    finally:
        if collecting:
            gc.enable()


def _read(client: Client, now: datetime) -> Situation:
    unread: list[str] = []
    shortages = published(client, SHORTAGES, unread)
    events = listed(client, Event, unread)
    claims = listed(client, NodeClaim, unread, required=True)
    pods = listed(client, Pod, unread)
    waiting = any(map(waits, pods))
    types = published(client, TYPES, unread) if waiting else {}
    known = published(client, REPORTS, unread) if waiting else {}
    mirrors = listed(client, OnDemandCapacityReservation, unread)
    situation = Situation(
        now=now,
        claims=claims,
        types=types,
        reports=known,
        pods=pods,
        pools=listed(client, NodePool),
        nodes=listed(client, Node, unread),
        classes=listed(client, EC2NodeClass, unread),
        reservations=[
            *listed(client, CapacityReservation, unread),
            *listed(client, ClusterCapacityReservation, unread),
        ],
        namespaces=listed(client, Namespace),
        mirrors=mirrors,
        price=shipped_price({mirror.name: mirror.status for mirror in mirrors}),
        inventory=slots_of_claims(claims, now, owns=is_brokers),
        shortages=sorted(shortages.lasting(now), key=lambda shortage: shortage.since),
        unread=tuple(unread),
    )
    return with_events(situation, events)


def with_events(situation: Situation, events: Iterable[Event]) -> Situation:
    """The situation with these events, each beside those of its writer. What the running broker published
    comes before its events, which end after an hour.
    """
    ordered = sorted(events, key=lambda event: happened(event) or situation.now)
    of_launchers = (e for e in ordered if written_by(e, MANAGER) or written_by(e, KARPENTER))
    return replace(
        situation,
        events=[event for event in ordered if written_by(event, MANAGER)],
        karpenter_events=[event for event in ordered if written_by(event, KARPENTER)],
        reports=reports(of_launchers) | {**situation.reports},
        scheduler_events=[event for event in ordered if of_scheduler(event)],
    )


def read_pods(client: Client, now: datetime, namespace: str) -> Situation:
    """Reads the cluster; of a caller that may not list all pods, those of the namespace. Raises ApiError."""
    situation = read(client, now)
    if situation.pods:
        return situation
    try:
        pods = [Pod.decode(raw) for raw in client.list(Pod.KIND, namespace=namespace)[0]]
    except Forbidden:
        return situation
    reported = published(client, REPORTS)
    return replace(
        situation,
        pods=pods,
        types=published(client, TYPES),
        reports={**situation.reports, **reported},
    )
