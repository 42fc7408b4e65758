"""10,000 pods placed on 5,000 nodes with 1,000 holds and 200 elastic quotas: decisions a second.

Each decision is the scheduler's own, from the pod to the next state, without the API server. It includes
quota, holds, filters, the choice of a node, and the assumption. The same decisions on a tenth of the nodes
show how the cost of a pod grows. The baseline checks every node for each pod. CPU seconds of one thread.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from benchmarks.figures import Figure, run
from broker.controllers.elasticquota.use import rejection
from broker.controllers.scheduler.state import SchedulerState
from broker.placement.filters import fits
from broker.placement.holds import Consumption, Hold
from broker.placement.holds_decide import decide
from broker.placement.holds_ledger import HoldLedger
from broker.placement.holds_match import HoldRequest, OwnerMatcher, OwnerTest
from broker.placement.model import NodeInfo, PodInfo
from broker.placement.selectors import equal
from broker.placement.snapshot import PlacementSnapshot
from broker.quota.elastic import ElasticShare, ElasticTotals
from broker.quota.elastic_labels import ElasticPod

NOW: Final = datetime(2026, 11, 1, tzinfo=UTC)
GI: Final = 2**30
LEAST: Final = 3000.0
QUOTAS: Final = 200


def measure(*, small: bool) -> Sequence[Figure]:
    """Decisions a second at full size, on a tenth of the nodes, and with every node checked."""
    scale = 20 if small else 1
    nodes, pods, holds = 5000 // scale, 10_000 // scale, 1000 // scale
    large, placed, oversubscribed = _rate(nodes, pods, holds)
    few, _, _ = _rate(nodes // 10, pods // 10, holds // 10)
    every = _rate_of_every_node(nodes, max(10, 100 // scale))
    return [
        Figure(
            name=f"decisions, {nodes:,} nodes",
            measured=round(large),
            unit="/s",
            least=LEAST,
            baseline=round(every),
            of="every node checked",
        ),
        Figure(name="cost a pod, 10 times the nodes", measured=round(few / large, 2), unit="x", most=10),
        Figure(name="pods without a node", measured=pods - placed, most=0),
        Figure(name="oversubscribed nodes", measured=oversubscribed, most=0),
    ]


def _rate(nodes: int, pods: int, holds: int) -> tuple[float, int, int]:
    """Decisions a second, the pods placed, and the nodes with more than they have."""
    state = _state(nodes, holds)
    requests = [_request(number, holds) for number in range(pods)]
    placed = 0
    began = time.process_time()
    for request in requests:
        pod = request.pod
        elastic = ElasticPod(
            uid=pod.uid, namespace=pod.namespace, name=pod.name, created=NOW, requests=pod.requests
        )
        if rejection(state.totals, elastic) is not None:
            continue
        decision = decide(request, state.snapshot, state.ledger)
        if decision.node:
            state = state.placed(request, decision.node, decision.hold, elastic)
            placed += 1
    seconds = time.process_time() - began
    over = sum(
        any(amount > item.node.allocatable[name] for name, amount in item.requested.items())
        for item in state.snapshot.states.values()
    )
    return pods / seconds, placed, over


def _rate_of_every_node(nodes: int, pods: int) -> float:
    state = _state(nodes, 0)
    began = time.process_time()
    for number in range(pods):
        pod = _request(number, 0).pod
        outcome = fits(pod, state.snapshot)
        state = replace(state, snapshot=state.snapshot.with_pod(pod, outcome.nodes[0]))
    return pods / (time.process_time() - began)


def _state(nodes: int, holds: int) -> SchedulerState:
    room = {"cpu": 32_000, "memory": 128 * GI, "pods": 110}
    infos = [NodeInfo(name=f"node-{number}", allocatable=room) for number in range(nodes)]
    kept = [
        Hold(
            id=f"hold-{number}",
            name=f"hold-{number}",
            node=f"node-{number % nodes}",
            amount={"cpu": 4000, "memory": 16 * GI},
            matcher=OwnerMatcher((OwnerTest(labels=equal({"app": f"app-{number}"})),)),
            consumption=Consumption.SHARED,
        )
        for number in range(holds)
    ]
    ledger = HoldLedger.of(kept, (), NOW)
    shares = (
        ElasticShare(id=f"q-{number}", namespaces=frozenset({f"ns-{number}"}), min={"cpu": 10**9})
        for number in range(QUOTAS)
    )
    return SchedulerState(
        PlacementSnapshot.of(infos, ledger.placeholders()), ledger, ElasticTotals.of(shares)
    )


def _request(number: int, holds: int) -> HoldRequest:
    """Every fifth pod owns a hold."""
    app = f"app-{number % holds}" if holds and number % 5 == 0 else "web"
    pod = PodInfo(
        namespace=f"ns-{number % QUOTAS}",
        name=f"pod-{number}",
        uid=f"uid-{number}",
        labels={"app": app},
        requests={"cpu": 1000 + 500 * (number % 3), "memory": (1 + number % 4) * GI},
    )
    return HoldRequest(pod=pod)


if __name__ == "__main__":
    run(measure)
