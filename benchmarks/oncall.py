"""`explain cluster` and the overview at 10,000 pods and 1,000 reservations, in a night of shortages.

The command's time is that of a reading of the cluster over HTTP, the explanation and the print, without the
start of the program. The overview's is a whole response with the state read from the caches. The baseline of
the command is the reading of the same lists without decoding.
"""

from __future__ import annotations

import gc
import io
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from urllib.request import urlopen

from rich.console import Console

from benchmarks.figures import Figure, run
from broker.apis.capacity_broker import OnDemandCapacityReservation
from broker.apis.core import Pod
from broker.apis.karpenter import NodeClaim
from broker.commands.explain.explanation import explain
from broker.commands.explain.present import WIDTH, rendered
from broker.commands.explain.reading import read
from broker.history.recorder import HistoryRecorder
from broker.kube.client import Client
from broker.memory import collect_seldom
from broker.webpage.server import WebPage
from local.in_process import InProcessTransport
from local.kube import Cluster
from tests.support import night, night_page
from tests.unit.webpage.world import CLOCK, NOW, OPEN

TRIES = 3
SLOTS = 4


def measure(*, small: bool) -> Sequence[Figure]:
    collect_seldom()  # as the broker and its commands do
    pods, reservations = (300, 20) if small else (10_000, 1_000)
    cluster = night.cluster()
    _fill(cluster, pods, reservations)
    gc.freeze()  # the embedded cluster's objects are none of the measured program's
    client = Client(InProcessTransport(cluster))
    listing = _best(
        lambda: [client.list(kind.KIND) for kind in (Pod, NodeClaim, OnDemandCapacityReservation)]
    )
    console = Console(file=io.StringIO(), width=WIDTH)
    explaining = _best(lambda: console.print(rendered(explain(read(client, NOW))), crop=False))
    situation = read(client, NOW)
    overview = _overview(lambda: night_page.live(situation))
    of = "listing pods, claims and reservations"
    return [
        Figure(name="explain cluster", measured=explaining, unit="s", most=2, baseline=listing, of=of),
        Figure(name="overview", measured=overview * 1000, unit="ms", most=300),
    ]


def _fill(cluster: Cluster, pods: int, reservations: int) -> None:
    """Most pods run in slots; every tenth waits."""
    client = Client(InProcessTransport(cluster))
    for model, body, status in _objects(pods, reservations):
        metadata = body["metadata"]
        client.create(model.KIND, body)
        namespace = metadata.get("namespace")
        client.patch(
            model.KIND, metadata["name"], {"status": status}, namespace=namespace, subresource="status"
        )


def _objects(pods: int, reservations: int) -> Iterator[night.Object]:
    nodes = []
    for n in range(reservations):
        id_ = f"cr-{n:017x}"
        yield night.mirror(id_, night.P5, night.ZONES[n % 3], SLOTS, SLOTS - 2)
        for slot in range(2):
            pair = list(night.running(f"{n}-{slot}", night.P5, night.ZONES[n % 3], id_, broken=n < 3))
            nodes.append(pair[1].body["metadata"]["name"])
            yield from pair
    for n in range(pods):
        waits = n % 10 == 0
        made_pod = night.pod_object(f"ml/load-{n}", n // 50)
        if not waits:
            made_pod.body["spec"]["nodeName"] = nodes[n % len(nodes)]
        yield made_pod


def _overview(live: Callable[[], Any]) -> float:
    store = night_page.history()
    recorder = HistoryRecorder(store, clock=CLOCK)
    recorder.forecast()
    page = WebPage(recorder, live, OPEN, clock=CLOCK, host="127.0.0.1", port=0)
    page.start()
    try:
        return _best(lambda: urlopen(page.url, timeout=60).read())
    finally:
        page.close()
        store.close()


def _best(work: Callable[[], object]) -> float:
    """Seconds of the fastest of some tries, since a shared machine only ever adds."""
    spent = []
    for _ in range(TRIES):
        began = time.monotonic()
        work()
        spent.append(time.monotonic() - began)
    return min(spent)


if __name__ == "__main__":
    run(measure)
