"""The values of `explain claim` and `explain pod` for the web page, from the caches of a leading broker.

Invariant: EC2 is not called, and Kubernetes for the events of one pod only. The classes, slots and shortages
are those of the launch loop, so the options and verdicts are the broker's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

from broker.apis.core import Event, Pod
from broker.apis.karpenter import NodeClaim
from broker.app import Broker
from broker.commands.explain import claims
from broker.commands.explain.options import ClaimForecast, forecast_among
from broker.commands.explain.pod import PodExplainer
from broker.commands.explain.reading import with_events
from broker.commands.plan.claims import plan_inputs
from broker.controllers.nodeclass.resolve import LaunchClass, Unresolved
from broker.kube.client import Client
from broker.kube.errors import ApiError
from broker.oncall.pod_facts import waits
from broker.oncall.situation import Situation
from broker.oncall.state import is_brokers
from broker.reservations.claims import occupied_odcr
from broker.webpage.details import Explainer

EVENTS_EVERY: Final = 10  # seconds between two reads of a pod's events: a live page is read every two


@dataclass(frozen=True, kw_only=True)
class LiveForecaster:
    """Plans claims with what the launch loop knows now."""

    broker: Broker
    now: datetime

    def of(self, claim: NodeClaim) -> ClaimForecast | None:
        if not (claim.waits and is_brokers(claim)):
            return None
        return self.among(claim, self.broker.read.claims.cache.list())

    def among(self, claim: NodeClaim, claims: Sequence[NodeClaim]) -> ClaimForecast:
        if not self.broker.inventory.described:
            return ClaimForecast(decision="unknown, because EC2 is not described yet")
        snapshot = self.broker.slots.snapshot()
        waiting = [other for other in claims if other.waits]
        ready: dict[str, LaunchClass] = {}
        problems: dict[str, str] = {}
        for name in {other.spec.node_class_ref.name for other in waiting}:
            try:
                ready[name] = self.broker.nodeclasses.ready(name)
            except Unresolved as error:
                problems[name] = f"{error.reason}: {error.message}"
        pod = self.broker.read.pods.cache.find
        return forecast_among(
            claim,
            claims,
            plan_inputs(waiting, ready, problems, snapshot.inventory, pod, now=self.now),
            snapshot.types,
            self.broker.launcher.shortages,
            now=self.now,
            entitle=lambda objects, _: self.broker.slots.entitlements(objects, snapshot),
        )


def beside(broker: Broker, pod: Pod) -> Situation:
    """The part of the cluster that a pod with a node shows: the node, its claim, slot and pods."""
    node, known = pod.spec.node_name, broker.situation()
    on_node = [claim for claim in known.claims if node and claim.status.node_name == node]
    slots = {occupied_odcr(claim) for claim in on_node}
    return replace(
        known,
        claims=on_node,
        pods=[other for other in known.pods if other.spec.node_name == node],
        nodes=[item for item in known.nodes if item.name == node],
        mirrors=[mirror for mirror in known.mirrors if mirror.name in slots],
    )


def explain_claim(broker: Broker, name: str) -> dict[str, Any] | None:
    """The document of `explain claim`; None without such a claim."""
    claim = broker.read.claims.cache.find(name)
    if claim is None:
        return None
    known = broker.situation()
    forecast = LiveForecaster(broker=broker, now=known.now).of(claim)
    return claims.document(claim, forecast, pods=known.pods, usd_hour=known.price(claim))


def _with_events_of(broker: Broker, pod: Pod, known: Situation) -> Situation:
    """The situation with the pod's events: no cache has those of the schedulers."""
    period = int(known.now.timestamp()) // EVENTS_EVERY
    try:
        return with_events(known, _events_of_period(broker.client, pod.namespace, pod.name, pod.uid, period))
    except ApiError as error:
        return replace(known, unread=(f"events are left out: {error}",))


@lru_cache(maxsize=64)
def _events_of_period(client: Client, namespace: str, name: str, uid: str, _period: int) -> Sequence[Event]:
    """Read once for all readers: for such a selector, Kubernetes reads all events of the namespace. Raises
    ApiError.
    """
    about = {"kind": Pod.KIND.kind, "name": name, "uid": uid}
    selector = ",".join(f"involvedObject.{field}={value}" for field, value in about.items())
    items, _ = client.list(Event.KIND, namespace=namespace, field_selector=selector)
    return [Event.decode(item) for item in items]


def explain_pod(broker: Broker, key: str) -> dict[str, Any] | None:
    """The document of `explain pod`; None without such a pod."""
    pod: Pod | None = broker.read.pods.cache.find(key)
    if pod is None:
        return None
    known = broker.situation() if waits(pod) else beside(broker, pod)
    explainer = PodExplainer(
        situation=_with_events_of(broker, pod, known),
        forecaster=LiveForecaster(broker=broker, now=known.now),
    )
    return explainer.page(pod).document()


LIVE: Final = Explainer(claim=explain_claim, pod=explain_pod)
