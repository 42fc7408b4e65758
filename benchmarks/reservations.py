"""A thousand reservations and twenty thousand users of them, from a cold start to a full status; then one
user goes.

The reservation loop of the broker, its informers and the embedded API server share this process, so the wall
time includes the server's work. That is lists of 24,000 objects, three writes a reservation (finalizer and
label, Creating, Active), and each write's event. Kueue's part has been played: queues are active, workloads
hold quota. The baseline does the same reservation by reservation, each with a scan of all nodes and all
workloads. It is measured over a few of them and multiplied.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from benchmarks.figures import Figure, run
from benchmarks.reservations_world import GPU, fill, flavor_of, install, reserved
from broker import logs
from broker.apis.core import Node, Pod
from broker.apis.karpenter import NodeClaim, NodePool
from broker.apis.kueue import Workload
from broker.apis.ome import CapacityReservation
from broker.controllers.claim_caches import BY_NODE, ClaimCaches
from broker.controllers.inventory import InventoryCache
from broker.controllers.reservation_reads import ReservationReads
from broker.controllers.snapshot import Ec2Reads
from broker.kube.cache import Cache
from broker.kube.client import READS, Client, Reply, Request, Stream, Transport
from broker.kube.clock import SystemClock
from broker.kube.events import Recorder
from broker.kube.informer import Informer
from broker.kube.manager import ControllerManager
from broker.kube.metrics import REGISTRY
from broker.memory import collect_seldom
from broker.reservations.odcr_status import OdcrSnapshot
from broker.reservations.ownership import Ownership
from broker.settings import Settings
from broker.wiring.reservations import add_reservations
from broker.wiring.term import Signals, Term
from local.in_process import InProcessTransport
from local.kube import Cluster

SAMPLE = 10
CHANGES = 10
PASSES = 5
PATIENCE = 120.0


class Counting:
    """Counts writes; events of Kubernetes apart."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self.writes: Counter[str] = Counter()

    def request(self, request: Request, *, timeout: float) -> Reply:
        if request.method not in READS:
            self.writes["events" if "/events" in request.path else "objects"] += 1
        return self._inner.request(request, timeout=timeout)

    def stream(self, request: Request, *, timeout: float) -> Stream:
        return self._inner.stream(request, timeout=timeout)


class World:
    """The part of a broker that handles reservations, and nothing else of it."""

    def __init__(self, transport: Counting) -> None:
        clock, settings = SystemClock(), Settings()
        client = Client(transport)
        nothing: Any = SimpleNamespace(reservations=list, instance_types=dict)
        inventory = InventoryCache(nothing, clock=clock, groups=list)
        inventory.refresh()
        self.reads = ReservationReads(
            client,
            clock=clock,
            ec2=Ec2Reads(inventory=inventory.snapshot, assumed=inventory.assumed.slots),
        )
        self.nodes = Informer(client, Node, clock=clock)
        self.claims = Informer(client, NodeClaim, clock=clock)
        self.pods = Informer(client, Pod, clock=clock, indexes={BY_NODE: lambda p: [p.spec.node_name]})
        self.recorder = Recorder(client, "benchmark", clock)
        self.reads.snapshots.publish(OdcrSnapshot(ownership=Ownership()))
        self.manager = ControllerManager(
            clock=clock,
            recorder=self.recorder,
            synced=lambda: self.nodes.synced and self.claims.synced,
        )
        self.manager.follow(self.nodes, self.claims, self.pods, *self.reads.named.values())
        read: Any = SimpleNamespace(
            nodes=self.nodes,
            claims=self.claims,
            synced=lambda: self.nodes.synced and self.claims.synced,
        )
        self.loop = add_reservations(
            Term(
                client=client,
                provider=nothing,
                reads=self.reads,
                caches=ClaimCaches(
                    claims=self.claims.cache,
                    nodes=self.nodes.cache,
                    pods=self.pods.cache,
                    pools=Cache(NodePool),
                    owns=lambda _: True,
                ),
                inventory=inventory,
                settings=settings,
                clock=clock,
                recorder=self.recorder,
                describe=lambda: None,
                manager=self.manager,
                read=read,
                signals=Signals(),
                successions=nothing,
                takeover=nothing,
                nodeclasses=nothing,
                ec2=nothing,
            )
        )

    def start(self) -> None:
        self.manager.start()

    def stop(self) -> None:
        self.manager.stop()

    def all_complete(self, users: int) -> bool:
        """Whether every reservation is Active and lists all its users."""
        return all(_is_complete(reservation, users) for reservation in self.reads.reservations.cache.list())

    def passes(self) -> float:
        labels = {"controller": self.loop.name}
        values = (
            REGISTRY.get_sample_value("capacity_broker_reconciles_total", {**labels, "result": result})
            for result in ("done", "requeue")
        )
        return sum(value or 0.0 for value in values)


def _is_complete(reservation: CapacityReservation, users: int) -> bool:
    status = reservation.status
    return status.capacity_reservation_lifecycle_state == "Active" and len(status.association_usages) == users


def measure(*, small: bool) -> Sequence[Figure]:
    """The capacity and the users in the status of each reservation: time and writes."""
    teams, users = (20, 5) if small else (1000, 20)
    logs.configure(level="error", format_="json")
    collect_seldom()
    cluster = Cluster()
    transport = Counting(InProcessTransport(cluster))
    client = Client(InProcessTransport(cluster), field_manager="benchmark")
    install(client)
    fill(cluster, teams, users)
    world = World(transport)
    began, used = time.monotonic(), time.process_time()
    world.start()
    try:
        _until(lambda: len(world.reads.reservations.cache) == teams and world.all_complete(users))
        cold, cold_cpu = time.monotonic() - began, time.process_time() - used
        written = transport.writes["objects"]
        changes = [_change(client, number, users) for number in range(min(CHANGES, teams))]
        world.recorder.flush()
        rest, passes_cpu = _rest(world, transport)
    finally:
        world.stop()
    plain = _plain(client, teams)
    size = f"{teams:,} reservations, {teams * users:,} users"
    return [
        Figure(
            name=f"from a cold start to a full status ({size}), wall time",
            measured=cold,
            unit="s",
            most=10,
            baseline=plain,
            of="each reservation scans nodes and workloads itself",
        ),
        Figure(name="  CPU time, the API server's included", measured=cold_cpu, unit="s"),
        Figure(name="  writes a reservation", measured=written / teams, most=3),
        Figure(
            name=f"a user gone to its reservation's status, slowest of {len(changes)}",
            measured=max(changes),
            unit="s",
            most=1,
        ),
        Figure(name=f"writes in {PASSES} passes at rest", measured=rest, most=0, least=0),
        Figure(name="  CPU time of such a pass", measured=passes_cpu, unit="s"),
    ]


def _change(client: Client, team: int, users: int) -> float:
    owner = reserved(team)
    client.delete(Workload.KIND, "job-000", namespace=owner.namespace)
    began = time.monotonic()

    def complete() -> bool:
        reservation = CapacityReservation.decode(
            client.get(CapacityReservation.KIND, owner.name, namespace=owner.namespace)
        )
        return _is_complete(reservation, users - 1)

    _until(complete)
    return time.monotonic() - began


def _rest(world: World, transport: Counting) -> tuple[int, float]:
    """Writes in some passes that find nothing new, and the CPU time of one."""
    done = world.passes()
    before, used = transport.writes["objects"], time.process_time()
    for _ in range(PASSES):
        world.loop.batcher.add(world.loop.name)
        _until(lambda at=done: world.passes() > at)  # type: ignore[misc]
        done = world.passes()
    return transport.writes["objects"] - before, (time.process_time() - used) / PASSES


def _plain(client: Client, teams: int) -> float:
    """Seconds that all would take, from a few."""
    sample = range(min(SAMPLE, teams))
    began = time.monotonic()
    for team in sample:
        owner = reserved(team)
        nodes = [Node.decode(raw) for raw in client.read_all(Node.KIND, lambda raw: raw)[0]]
        own_nodes = [node for node in nodes if node.labels.get("example.com/sort") == flavor_of(team)]
        total = sum(int(node.status.allocatable[GPU]) for node in own_nodes)
        workloads = [Workload.decode(raw) for raw in client.read_all(Workload.KIND, lambda raw: raw)[0]]
        users = [workload for workload in workloads if workload.namespace == owner.namespace]
        status = {
            "lifecycleDetail": f"{total} GPUs",
            "associationUsages": [{"name": workload.key, "usage": []} for workload in users],
        }
        metadata = {"name": owner.name, "namespace": owner.namespace}
        client.apply(CapacityReservation.KIND, {"metadata": metadata, "status": status}, subresource="status")
    return (time.monotonic() - began) / len(sample) * teams


def _until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not happened():
        if time.monotonic() > deadline:
            raise TimeoutError("the condition was never met")
        time.sleep(0.01)


if __name__ == "__main__":
    run(measure)
