"""Room on nodes: kubelets, the pods and reservations of teams, and faults between a decision and its write.

Nodes, pods and reservations of this part have names of their own, so that they meet no claim's machine.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from broker.apis.core import Node, Pod
from broker.apis.godel import INDEX, RESERVATION, TTL, GodelReservation
from broker.apis.koordinator import PREALLOCATABLE, KoordinatorReservation
from broker.apis.kueue import Namespace, PriorityClass
from broker.apis.nos import ElasticQuota
from broker.apis.policy import PodDisruptionBudget
from broker.kube.errors import Conflict, Forbidden, Unavailable
from tests.simulation.wire import Killed
from tests.simulation.world import World, condition

Json = dict[str, Any]
Act = Callable[[World, random.Random], None]
PREFIX = "room-"
TEAMS = ("team-a", "team-b")
APPS = ("a", "b", "c")
PRIORITIES = {"low": -10, "high": 1000}
MOST_NODES, MOST_PODS, MOST_RESERVATIONS = 4, 12, 5
# Parts of the calls between a decision and its end.
WRITES = ("/binding", "/pods/", "/reservations/", "/eviction")
READY: Json = {"conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]}


def nodes_of(world: World) -> dict[str, Json]:
    return {name: node for (_, name), node in world.objects(Node.KIND).items() if name.startswith(PREFIX)}


def pods_of(world: World) -> list[Json]:
    return [pod for pod in world.pods() if pod["metadata"]["name"].startswith("r-")]


def reservations_of(world: World) -> dict[str, Json]:
    return {name: item for (_, name), item in world.objects(KoordinatorReservation.KIND).items()}


def kept_of(world: World) -> dict[str, Json]:
    """The room of deleted pods, by the uid of its reservation."""
    return {item["metadata"]["uid"]: item for item in world.objects(GodelReservation.KIND).values()}


# ---- people


def room_node(world: World, rng: random.Random) -> None:
    if len(nodes_of(world)) >= MOST_NODES:
        return
    name = f"{PREFIX}{rng.randrange(1000):03}"
    labels = {"kubernetes.io/hostname": name, "rooms": "yes"}
    room = {"cpu": rng.choice(("3", "4", "6")), "memory": "64Gi", "pods": "20"}
    world.client.create(
        Node.KIND, {"metadata": {"name": name, "labels": labels}, "status": {"allocatable": room, **READY}}
    )
    world.client.patch(Node.KIND, name, {"status": {"allocatable": room, **READY}}, subresource="status")


def room_node_gone(world: World, rng: random.Random) -> None:
    if nodes := sorted(nodes_of(world)):
        world.client.delete(Node.KIND, rng.choice(nodes))


def room_pod(world: World, rng: random.Random) -> None:
    if len(pods_of(world)) >= MOST_PODS:
        return
    space = rng.choice(("default", "default", *TEAMS))
    scheduler = rng.choice(("koord-scheduler", "capacity-broker", "nos-scheduler"))
    name = f"r-{rng.randrange(1000):03}"
    labels = {"app": rng.choice(APPS)} | ({PREALLOCATABLE: "true"} if rng.random() < 0.3 else {})
    spec = {
        "schedulerName": scheduler if space == "default" else "nos-scheduler",
        **_priority(world, rng),
        "nodeSelector": {"rooms": "yes"},
        "terminationGracePeriodSeconds": rng.choice((0, 30)),
        "containers": [_container(rng.choice(("1", "1", "2", "3")))],
    }
    world.client.create(
        Pod.KIND, {"metadata": {"name": name, "namespace": space, "labels": labels}, "spec": spec}
    )


def room_godel_pod(world: World, rng: random.Random) -> None:
    """A pod that leaves kept room when it is deleted, and takes room that was kept under its index."""
    if len(pods_of(world)) >= MOST_PODS:
        return
    annotations = {INDEX: rng.choice(("web-0", "web-1")), TTL: rng.choice(("60", "600", "86400"))}
    if rng.random() < 0.8:
        annotations[RESERVATION] = "true"
    spec = {
        "schedulerName": "godel-scheduler",
        **_priority(world, rng),
        "nodeSelector": {"rooms": "yes"},
        "terminationGracePeriodSeconds": rng.choice((0, 30)),
        "containers": [_container(rng.choice(("1", "2")))],
    }
    meta = {"name": f"r-{rng.randrange(1000):03}", "namespace": "default", "annotations": annotations}
    world.client.create(Pod.KIND, {"metadata": meta, "spec": spec})


def _priority(world: World, rng: random.Random) -> Json:
    """The part of a spec that gives the pod its priority; most pods have none of their own."""
    name = rng.choice(("", "", *PRIORITIES))
    if not name:
        return {}
    if ("", name) not in world.objects(PriorityClass.KIND):
        body = {
            "metadata": {"name": name},
            "value": PRIORITIES[name],
            "preemptionPolicy": "PreemptLowerPriority",
        }
        world.client.create(PriorityClass.KIND, body)
    return {"priorityClassName": name}


def _container(cpu: str) -> Json:
    return {"name": "main", "image": "pause", "resources": {"requests": {"cpu": cpu}}}


def room_pod_gone(world: World, rng: random.Random) -> None:
    if pods := pods_of(world):
        meta = rng.choice(pods)["metadata"]
        world.client.delete(Pod.KIND, meta["name"], namespace=meta["namespace"])


def room_pod_ends(world: World, rng: random.Random) -> None:
    """A pod completes."""
    if pods := [pod for pod in pods_of(world) if pod["spec"].get("nodeName")]:
        meta, status = rng.choice(pods)["metadata"], {"status": {"phase": "Succeeded"}}
        world.client.patch(Pod.KIND, meta["name"], status, namespace=meta["namespace"], subresource="status")


def room_pod_touched(world: World, rng: random.Random) -> None:
    """Another writer changes a pod: the scheduler's copy is old."""
    if pods := pods_of(world):
        meta = rng.choice(pods)["metadata"]
        noted = {"metadata": {"annotations": {"example.com/seen": str(rng.randrange(1000))}}}
        world.client.patch(Pod.KIND, meta["name"], noted, namespace=meta["namespace"])


def reserve_room(world: World, rng: random.Random) -> None:
    if len(reservations_of(world)) >= MOST_RESERVATIONS:
        return
    name = f"hold-{rng.randrange(1000):03}"
    spec: Json = {
        "template": {
            "spec": {
                "schedulerName": "koord-scheduler",
                "nodeSelector": {"rooms": "yes"},
                "containers": [_container(rng.choice(("1", "2", "3")))],
            }
        },
        "owners": [{"labelSelector": {"matchLabels": {"app": rng.choice(APPS[:2])}}}],
        "ttl": rng.choice(("0s", "24h", "24h", "2m")),
        "allocateOnce": rng.random() < 0.4,
        "allocatePolicy": rng.choice(("Aligned", "Aligned", "Restricted")),
    }
    if rng.random() < 0.35:
        mode = rng.choice(("Default", "Cluster"))
        spec |= {
            "allocateOnce": False,
            "allocatePolicy": "Restricted",
            "preAllocation": True,
            "preAllocationPolicy": {"mode": mode, "enableMultiple": rng.random() < 0.5},
        }
    world.client.create(KoordinatorReservation.KIND, {"metadata": {"name": name}, "spec": spec})


def unreserve_room(world: World, rng: random.Random) -> None:
    if names := sorted(reservations_of(world)):
        world.client.delete(KoordinatorReservation.KIND, rng.choice(names))


def room_quota(world: World, rng: random.Random) -> None:
    """A share for each team: both may borrow from each other."""
    for team in TEAMS:
        least = str(rng.randint(1, 4))
        if ("", team) not in world.objects(Namespace.KIND):
            world.client.create(Namespace.KIND, {"metadata": {"name": team}})
        body = {"metadata": {"name": "quota", "namespace": team}, "spec": {"min": {"cpu": least}}}
        if (team, "quota") in world.objects(ElasticQuota.KIND):
            world.client.patch(ElasticQuota.KIND, "quota", {"spec": body["spec"]}, namespace=team)
        else:
            world.client.create(ElasticQuota.KIND, body)


def room_budget(world: World, rng: random.Random) -> None:
    """A PodDisruptionBudget of a team, as its controller keeps it."""
    team, allowed = rng.choice(TEAMS), rng.choice((0, 1, 1))
    spec = {"maxUnavailable": allowed, "selector": {}}
    if (team, "budget") not in world.objects(PodDisruptionBudget.KIND):
        body = {"metadata": {"name": "budget", "namespace": team}, "spec": spec}
        world.client.create(PodDisruptionBudget.KIND, body)
    counts = {"currentHealthy": 4, "desiredHealthy": 4 - allowed, "expectedPods": 4}
    status = {"status": {"disruptionsAllowed": allowed, "observedGeneration": 1, **counts}}
    world.client.patch(PodDisruptionBudget.KIND, "budget", status, namespace=team, subresource="status")


# ---- kubelets


def kubelets(world: World) -> None:
    """Bound pods run, deleted ones end, and those of a Node that is gone are collected."""
    nodes = nodes_of(world)
    for pod in pods_of(world):
        meta, node = pod["metadata"], pod["spec"].get("nodeName", "")
        if node and (node not in nodes or meta.get("deletionTimestamp")):
            world.client.delete(Pod.KIND, meta["name"], namespace=meta["namespace"], grace_period=0)
        elif node and pod.get("status", {}).get("phase", "Pending") == "Pending":
            running = {"status": {"phase": "Running", **READY}}
            world.client.patch(
                Pod.KIND, meta["name"], running, namespace=meta["namespace"], subresource="status"
            )


# ---- faults


def bind_refused(world: World, rng: random.Random) -> None:
    refusal = rng.choice(
        (
            Conflict(409, "Conflict", "the pod is being changed"),
            Forbidden(403, "Forbidden", "a policy refuses the bind"),
            Unavailable(503, "ServiceUnavailable", "the API server is overloaded"),
        )
    )

    def refuses() -> None:
        raise refusal

    for number in range(rng.choice((1, 1, 3))):
        world.gate.arm(number + 1, "before", refuses, of="/binding", kind="bind refused")


def room_killed(world: World, rng: random.Random) -> None:
    """The process ends between two writes of a decision."""
    when, of, wait = rng.choice(("before", "after")), rng.choice(WRITES), rng.choice((0.0, 1.0, 60.0))

    def dies() -> None:
        world.restart_at = world.time.seconds + wait
        raise Killed(of)

    world.gate.arm(rng.choice((1, 1, 2, 3)), when, dies, of=of, kind="killed")  # type: ignore[arg-type]


MEANWHILE: tuple[Act, ...] = (
    room_godel_pod,
    room_pod,
    room_pod_gone,
    room_pod_gone,
    room_pod_touched,
    room_node_gone,
    unreserve_room,
    unreserve_room,
    reserve_room,
)


def room_meanwhile(world: World, rng: random.Random) -> None:
    """Something happens between two calls of one decision."""
    from tests.simulation.faults import attempt

    chosen, of, when = rng.choice(MEANWHILE), rng.choice(WRITES), rng.choice(("before", "after"))
    inner = random.Random(rng.random())

    def happens() -> None:
        world.gate.trace(f"meanwhile {chosen.__name__}")
        attempt(chosen, world, inner)

    world.gate.arm(rng.choice((1, 1, 2, 4)), when, happens, of=of)  # type: ignore[arg-type]


def room_usurped(world: World, rng: random.Random) -> None:
    """A scheduler hangs in a write until its Lease has run out, and the standby has taken steps.

    The write arrived before, or it is given up.
    """
    if sum(process.scheduler != "off" for process in world.running) < 2:
        return

    def happens() -> None:
        hanging = next((p for p in world.running if p.schedules), None)
        world.time.advance(200.0)
        for process in [p for p in world.running if p is not hanging]:
            for _ in range(rng.choice((2, 4, 12))):
                for step in process.steps():
                    process.take(step)

    when = rng.choice(("before", "after"))
    world.gate.arm(rng.choice((1, 2)), when, happens, of=rng.choice(WRITES), kind="usurped")  # type: ignore[arg-type]


def api_gone(world: World, rng: random.Random) -> None:
    """The API server is gone for a minute."""
    world.gate.api_gone_until = world.time.seconds + rng.choice((20.0, 60.0, 90.0))
    world.gate.injected("api gone")


def api_slow(world: World, rng: random.Random) -> None:
    """Each call takes seconds."""
    world.gate.api_slow_until = world.time.seconds + 60.0
    world.gate.api_seconds = rng.choice((0.5, 3.0))
    world.gate.injected("api slow")


def waiting_text(pod: Json) -> str:
    return str(condition(pod, "PodScheduled").get("message", ""))
