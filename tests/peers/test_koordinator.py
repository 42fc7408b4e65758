"""Koordinator's reservations with koord-scheduler and with the broker, on the same kube-apiserver.

Each scenario runs twice on the same definitions, and shows the same phases, nodes, amounts, owners and
reasons. `DIFFERENCES` lists the rest: each line has the statement that decides it.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest

from broker.apis.core import Node, Pod
from broker.apis.crds import KIND as CRD
from broker.apis.koordinator import AFFINITY, ALLOCATED, EXACT_MATCH, ORDER, KoordinatorReservation
from broker.apis.kueue import Namespace
from broker.kube.errors import NotFound
from broker.kube.transports import HttpTransport
from tests.cluster.rooms import Rooms
from tests.cluster.test_rooms_koordinator import BIG, OWNER, QUICK_START
from tests.controlplane.server import ControlPlane
from tests.peers import koordinator
from tests.peers.programs import Program, until
from tests.support import servers

pytestmark = pytest.mark.peers
Json = dict[str, Any]
ANY: Json = {"labelSelector": {"matchLabels": {"any": "yes"}}}
DEMO = {"app": "demo", "any": "yes"}
STILL, POLL = 2.0, 0.1  # seconds without a change, after which a decision stands
Shown = dict[str, str]


@dataclass(frozen=True)
class Difference:
    """`field` of a scenario's object, as koord-scheduler and as the broker shows it."""

    field: str
    koordinator: str
    broker: str
    why: str


# By scenario, which names the statement that decides.
DIFFERENCES: Mapping[str, tuple[Difference, ...]] = {
    "KOO-06 restricted": (
        Difference(
            "pod second node",
            "node-0",
            "",
            "an owner of a restricted reservation takes from it alone; "
            "BROKER_RESTRICTED_NODE_FALLBACK=true places it as koord-scheduler does",
        ),
        Difference(
            "pod second message",
            "",
            "0/1 nodes are available: 1 Reservation(s) Insufficient cpu",
            "the same",
        ),
    ),
    "KOO-12 affinity": (
        Difference(
            "pod by-none message",
            "0/1 nodes are available: node(s) no reservations match reservation affinity. "
            "3 Reservation(s) didn't match affinity rules, 3 Reservation(s) matched owner total",
            "0/1 nodes are available: 1 node(s) no reservations match reservation affinity",
            "the reason is the statement's; kube-scheduler counts nodes in front of each reason",
        ),
    ),
}


# ---- scenarios


def quick_start(cluster: Rooms) -> None:
    cluster.node("node-0")
    cluster.apply(QUICK_START)
    rest(cluster)
    cluster.apply(OWNER)


def second_example(cluster: Rooms) -> None:
    cluster.node("node-0")
    cluster.node("node-1", room={"memory": "28629692Ki"})
    cluster.pod("system", cpu="780m", memory="1216Mi", nodeName="node-1")
    cluster.apply(BIG)
    rest(cluster)
    for name in ("app-demo-1", "app-demo-2"):
        cluster.pod(name, cpu="2", memory="10Gi", labels={"app": "app-demo"})


def owners(cluster: Rooms) -> None:
    cluster.node("node-0", room={"cpu": "40"})
    cluster.reservation("by-object", cpu="2", owners=({"object": {"name": "named", "namespace": "default"}},))
    cluster.reservation("by-labels", cpu="2", owners=({"labelSelector": {"matchLabels": {"app": "demo"}}},))
    rest(cluster)
    cluster.pod("named", cpu="1")
    cluster.pod("labelled", cpu="1", labels={"app": "demo"})
    cluster.pod("stranger", cpu="1", labels={"app": "other"})


def shared(cluster: Rooms) -> None:
    """Several owners take from one reservation; its idle room is closed to strangers."""
    cluster.node("node-0", room={"cpu": "4"})
    cluster.reservation("room", cpu="3", allocateOnce=False)
    rest(cluster)
    cluster.pod("first", cpu="1", labels=DEMO)
    rest(cluster)
    cluster.pod("second", cpu="1", labels=DEMO)
    cluster.pod("stranger", cpu="2")
    rest(cluster)
    cluster.delete_pod("first")


def once(cluster: Rooms) -> None:
    """One owner ends the reservation; the rest of its room is free."""
    cluster.node("node-0", room={"cpu": "4"})
    cluster.reservation("room", cpu="3")
    rest(cluster)
    cluster.pod("owner", cpu="1", labels=DEMO)
    rest(cluster)
    cluster.pod("stranger", cpu="3")


def too_large(cluster: Rooms) -> None:
    """No node can hold the reservation; its owner waits for room of its own."""
    cluster.node("node-0", room={"cpu": "2"})
    cluster.reservation("room", cpu="3")
    rest(cluster)
    cluster.pod("owner", cpu="1", labels=DEMO)


def restricted(cluster: Rooms) -> None:
    """The owner is larger than the rest of a restricted reservation."""
    cluster.node("node-0", room={"cpu": "8"})
    cluster.reservation("room", cpu="2", allocateOnce=False, allocatePolicy="Restricted")
    rest(cluster)
    cluster.pod("first", cpu="1", labels=DEMO)
    rest(cluster)
    cluster.pod("second", cpu="2", labels=DEMO)


def aligned(cluster: Rooms) -> None:
    """The owner takes from the node the amount that the reservation lacks."""
    cluster.node("node-0", room={"cpu": "4"})
    cluster.reservation("room", cpu="2", allocateOnce=False, allocatePolicy="Aligned")
    rest(cluster)
    cluster.pod("larger", cpu="3", labels=DEMO)


def expires(cluster: Rooms) -> None:
    cluster.node("node-0", room={"cpu": "4"})
    cluster.reservation("room", cpu="3", ttl="1s")
    cluster.until_phase("Failed", "room")
    cluster.pod("stranger", cpu="3")


def node_goes(cluster: Rooms) -> None:
    cluster.node("node-0", room={"cpu": "4"})
    cluster.reservation("room", cpu="3", ttl="24h")
    rest(cluster)
    cluster.client.delete(Node.KIND, "node-0")
    cluster.until(lambda: gone_or_failed(cluster, "room"), "room has failed")
    with suppress(NotFound):  # it is collected at once, or later
        cluster.client.delete(KoordinatorReservation.KIND, "room")


def gone_or_failed(cluster: Rooms, name: str) -> bool:
    with suppress(NotFound):
        return cluster.status(name).phase == "Failed"
    return True


def closed(cluster: Rooms) -> None:
    cluster.node("node-0", room={"cpu": "8"})
    cluster.reservation("closed", cpu="1", unschedulable=True, allocateOnce=False)
    rest(cluster)
    cluster.pod("plain", cpu="1", labels=DEMO)
    cluster.pod("bound-to-it", cpu="1", labels=DEMO, annotations=affinity(name="closed"))


def affinities(cluster: Rooms) -> None:
    cluster.node("node-0", room={"cpu": "16"})
    kept: Json = {"allocateOnce": False, "cpu": "2"}
    cluster.reservation("gold", labels={"tier": "gold"}, **kept)
    cluster.reservation("second", labels={ORDER: "2"}, **kept)
    cluster.reservation("first", labels={ORDER: "1"}, **kept)
    rest(cluster)
    cluster.pod("by-order", cpu="1", labels=DEMO)
    cluster.pod("by-name", cpu="1", labels=DEMO, annotations=affinity(name="second"))
    cluster.pod(
        "by-selector", cpu="1", labels=DEMO, annotations=affinity(reservationSelector={"tier": "gold"})
    )
    cluster.pod("by-none", cpu="1", labels=DEMO, annotations=affinity(reservationSelector={"tier": "tin"}))


def exact(cluster: Rooms) -> None:
    cluster.node("node-0", room={"cpu": "16"})
    cluster.reservation("room", cpu="2", allocateOnce=False)
    rest(cluster)
    same = {EXACT_MATCH: '{"resourceNames": ["cpu"]}'}
    cluster.pod("unequal", cpu="1", labels=DEMO, annotations=same)
    cluster.pod("equal", cpu="2", labels=DEMO, annotations=same)


def deleted(cluster: Rooms) -> None:
    """The owner keeps its node; the rest of the room is free."""
    cluster.node("node-0", room={"cpu": "4"})
    cluster.reservation("room", cpu="3", allocateOnce=False)
    rest(cluster)
    cluster.pod("owner", cpu="1", labels=DEMO)
    rest(cluster)
    cluster.client.delete(KoordinatorReservation.KIND, "room")
    cluster.pod("stranger", cpu="3")


def affinity(**rule: Any) -> dict[str, str]:
    return {AFFINITY: orjson.dumps(rule).decode()}


SCENARIOS: Mapping[str, Callable[[Rooms], None]] = {
    "KOO-03 quick start": quick_start,
    "KOO-04 owners": owners,
    "KOO-05 shared": shared,
    "KOO-05 once": once,
    "KOO-02 too large": too_large,
    "KOO-06 restricted": restricted,
    "KOO-06 aligned": aligned,
    "KOO-08 expires": expires,
    "KOO-08 node goes": node_goes,
    "KOO-09 deleted": deleted,
    "KOO-10 closed": closed,
    "KOO-12 affinity": affinities,
    "KOO-12 exact match": exact,
    "KOO-13 second example": second_example,
}


# ---- the fields that a user sees


def shown(cluster: Rooms) -> Shown:
    """Phases, nodes, amounts, owners and reasons, by object and field."""
    fields: Shown = {}
    for raw in cluster.client.list(KoordinatorReservation.KIND)[0]:
        item = KoordinatorReservation.decode(raw)
        status, name = item.status, f"reservation {item.name}"
        fields[f"{name} phase"] = status.phase
        fields[f"{name} node"] = status.node_name
        fields[f"{name} allocatable"] = amounts(status.allocatable)
        fields[f"{name} allocated"] = amounts(status.allocated)
        fields[f"{name} owners"] = " ".join(sorted(owner.name for owner in status.current_owners))
        for condition in status.conditions:
            fields[f"{name} {condition.type}"] = f"{condition.status} {condition.reason}"
    for raw in cluster.client.list(Pod.KIND, namespace="default")[0]:
        pod = Pod.decode(raw)
        text = pod.annotations.get(ALLOCATED)
        fields[f"pod {pod.name} node"] = pod.spec.node_name
        fields[f"pod {pod.name} from"] = str(orjson.loads(text)["name"]) if text else ""
        if pod.scheduled is not None and pod.scheduled.status == "False":
            fields[f"pod {pod.name} message"] = reason(pod.scheduled.message)
    return fields


def reason(message: str) -> str:
    """Without the sentence about preemption by priority: the broker evicts for a quota's guarantee alone."""
    return message.partition(" preemption: ")[0].rstrip(",.")


def amounts(quantities: Mapping[str, str]) -> str:
    return " ".join(f"{name}={text}" for name, text in sorted(quantities.items()) if text != "0")


def rest(cluster: Rooms) -> Shown:
    """Returns once all is decided, and nothing has changed for a while."""
    since, before = time.monotonic(), shown(cluster)
    while time.monotonic() < since + STILL or not decided(before):
        time.sleep(POLL)
        if (now := shown(cluster)) != before:
            since, before = time.monotonic(), now
        assert time.monotonic() < since + 30, f"undecided: {before}"
    return before


def decided(now: Shown) -> bool:
    pods = [key.removesuffix(" node") for key in now if key.startswith("pod ") and key.endswith(" node")]
    holds = [key.removesuffix(" phase") for key in now if key.endswith(" phase")]
    placed = all(now[f"{pod} node"] or f"{pod} message" in now for pod in pods)
    return placed and all(now[f"{hold} phase"] and f"{hold} Scheduled" in now for hold in holds)


# ---- the two schedulers


@contextmanager
def control_plane() -> Iterator[ControlPlane]:
    """kube-apiserver with Koordinator's own definitions."""
    with ControlPlane() as plane:
        client = Rooms(crds=(), server=transport(plane)).client
        for definition in koordinator.crds():
            client.create(CRD, definition)
        until(lambda: all(map(established, client.list(CRD)[0])), "definitions established")
        until(lambda: client.list(Namespace.KIND)[0], "namespaces")
        yield plane


def established(definition: Json) -> bool:
    conditions = definition.get("status", {}).get("conditions") or ()
    return any(item["type"] == "Established" and item["status"] == "True" for item in conditions)


def transport(plane: ControlPlane) -> HttpTransport:
    with tempfile.TemporaryDirectory(prefix="koordinator-") as folder:
        path = Path(folder) / "kubeconfig"
        path.write_text(plane.kubeconfig())
        return HttpTransport.from_kubeconfig(path)


@contextmanager
def koord_scheduler(plane: ControlPlane, cluster: Rooms) -> Iterator[None]:
    del cluster
    with tempfile.TemporaryDirectory(prefix="koordinator-") as name:
        folder = Path(name)
        kubeconfig = folder / "kubeconfig"
        kubeconfig.write_text(plane.kubeconfig())
        command = koordinator.command(kubeconfig, folder)
        with Program("koord-scheduler", command, folder=folder, environment={}):
            yield


@contextmanager
def broker(plane: ControlPlane, cluster: Rooms) -> Iterator[None]:
    del plane
    cluster.start()
    try:
        yield
    finally:
        cluster.stop()


def seen(scheduler: Callable[[ControlPlane, Rooms], AbstractContextManager[None]]) -> dict[str, Shown]:
    """The end of each scenario, on a control plane of the scheduler's own."""
    by_scenario: dict[str, Shown] = {}
    with control_plane() as plane:
        cluster = Rooms(crds=(), server=transport(plane))
        with scheduler(plane, cluster):
            for name, scenario in SCENARIOS.items():
                scenario(cluster)
                by_scenario[name] = rest(cluster)
                clear(cluster)
    return by_scenario


def clear(cluster: Rooms) -> None:
    for kind in (Pod.KIND, KoordinatorReservation.KIND, Node.KIND):
        for item in cluster.client.list(kind)[0]:
            space = item["metadata"].get("namespace")
            with suppress(NotFound):
                cluster.client.delete(kind, item["metadata"]["name"], namespace=space, grace_period=0)
    time.sleep(STILL)  # the scheduler's caches see it go


def test_reservations_end_as_with_koord_scheduler() -> None:
    servers.need()
    if why := koordinator.missing():
        pytest.skip(why)
    with ThreadPoolExecutor(2) as pool:
        koordinators, brokers = pool.map(seen, (koord_scheduler, broker))
    wrong = []
    for name in SCENARIOS:
        known = {item.field: (item.koordinator, item.broker) for item in DIFFERENCES.get(name, ())}
        for key in sorted(koordinators[name].keys() | brokers[name].keys()):
            pair = koordinators[name].get(key, ""), brokers[name].get(key, "")
            if key in known and pair != known[key]:
                wrong.append(f"{name}: {key} is {pair}, and {known[key]} by the table")
            elif key not in known and pair[0] != pair[1]:
                wrong.append(f"{name}: {key}: {pair[0]!r} with koord-scheduler, {pair[1]!r} with the broker")
    assert not wrong, "\n".join(wrong)
