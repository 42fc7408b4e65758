"""`capacity-broker demo --room`: room on nodes that stays kept while its pods are away, and borrowed quota.

The broker and its scheduler are the real ones. The nodes, their kubelets and the controllers of the
Deployments are simulated. `--once` ends with exit code 0 only if every pod was where it should be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from broker.apis.core import Event, Pod
from broker.apis.godel import MATCHED_PLACEHOLDER, GodelDeployment, GodelReservation
from broker.apis.koordinator import ALLOCATED, KoordinatorReservation
from broker.apis.kueue import Namespace
from broker.apis.meta import Kind
from broker.apis.nos import CAPACITY, ElasticQuota
from broker.commands import manifests
from broker.commands.examples import examples
from broker.commands.output import table
from broker.placement.quantities import CPU, pod_requests
from broker.settings import Settings
from local.demo import account
from local.demo.machines import join, machine
from local.demo.story import Scene, open_scene

GPU: Final = "nvidia.com/gpu"
NODES: Final = (
    machine("node-a", {"cpu": "8", "memory": "32Gi"}),
    machine("node-b", {"cpu": "8", "memory": "32Gi"}),
    machine(
        "gpu-a", {"cpu": "8", "memory": "32Gi", GPU: "8"}, taints=({"key": GPU, "effect": "NoSchedule"},)
    ),
)
KINDS: Final[Mapping[tuple[str, str], Kind]] = {
    (model.KIND.api_version, model.KIND.kind): model.KIND
    for model in (KoordinatorReservation, GodelDeployment, ElasticQuota, Namespace)
}
COLUMNS: Final = {
    "pod": "POD",
    "requests": "REQUESTS",
    "node": "NODE",
    "room": "ROOM",
    "waits": "WAITS FOR",
    "as": "OK",
}
# The room of a pod that takes from no reservation and no quota.
PLAIN: Final = "of the node"


def demo(settings: Settings, *, once: bool) -> int:
    """Runs the demo; the exit code is 0 if every pod was where it should be."""
    with open_scene(settings, make=account.plain) as scene:
        for node in NODES:
            join(scene.user, node)
        scene.report("node-a and node-b have 8 CPUs each, gpu-a has 8 GPUs")
        good = all([_reservation(scene), _placeholder(scene), _quota(scene)])
        scene.out.print(
            "\nAs expected: kept room was closed to others, its pods came back to it, and borrowed GPUs "
            "went back to their owner."
            if good
            else "\nNot as expected."
        )
        if not once:
            scene.stay(
                "kubectl get reservations.scheduling.koordinator.sh",
                "kubectl scale deployment cache --replicas=0",
                "kubectl get reservations.scheduling.godel.kubewharf.io",
                "kubectl get elasticquotas -A",
            )
    return 0 if good else 1


# ---- Koordinator


def _reservation(scene: Scene) -> bool:
    _apply(scene, "reservation.yaml", only="Reservation")
    scene.until(lambda: _kept(scene).status.phase == "Available")
    room = _kept(scene).status
    scene.report(
        f"Reservation web-room: 6 CPUs of {room.node_name} are kept for pods with app=web, which do not "
        "exist yet"
    )
    _apply(scene, "reservation.yaml", only="Deployment")
    scene.until(lambda: _running(scene, "web") == 2)
    scene.until(lambda: _kept(scene).status.allocated.get("cpu") == "6")
    scene.report("Deployment web: its two pods run in that room")
    _scale(scene, "web", 0)
    scene.until(lambda: not _pods(scene, "web") and _kept(scene).status.allocated.get("cpu") in (None, "0"))
    scene.report("web is scaled to zero, and the room stays")
    _scale(scene, "batch", 2)
    scene.until(lambda: _running(scene, "batch") == 1 and any(map(_reason, _pods(scene, "batch"))))
    scene.report("two pods of batch request 5 CPUs each; one of them must wait")
    closed = [pod.spec.node_name for pod in _pods(scene, "batch") if pod.spec.node_name] != [room.node_name]
    good = _table(scene, "while web is away", "batch", {PLAIN: 1, "": 1}) and closed
    _scale(scene, "web", 2)
    scene.until(lambda: _running(scene, "web") == 2)
    scene.report(f"web is scaled to two again, and comes back to {room.node_name}")
    back = {pod.spec.node_name for pod in _pods(scene, "web")} == {room.node_name}
    return _table(scene, "after its return", "web", {"web-room": 2}) and good and back


def _kept(scene: Scene) -> KoordinatorReservation:
    kind = KoordinatorReservation.KIND
    return KoordinatorReservation.decode(scene.user.get(kind, "web-room"))


# ---- Gödel


def _placeholder(scene: Scene) -> bool:
    scene.report("an annotation of Deployment cache keeps the room of its deleted pods")
    _apply(scene, "placeholder.yaml")
    scene.until(lambda: _running(scene, "cache") == 1)
    (before,) = _pods(scene, "cache")
    _scale(scene, "cache", 0)
    scene.until(lambda: not _pods(scene, "cache") and scene.user.list(GodelReservation.KIND)[0])
    for kept in map(GodelReservation.decode, scene.user.list(GodelReservation.KIND)[0]):
        scene.report(
            f"cache is scaled to zero: Reservation {kept.name} keeps its room on {kept.spec.node_name}"
        )
    _scale(scene, "cache", 1)
    scene.until(lambda: _running(scene, "cache") == 1)
    same = [pod.spec.node_name for pod in _pods(scene, "cache")] == [before.spec.node_name]
    return _table(scene, "cache is back", "cache", {f"default/{before.name}-placeholder": 1}) and same


# ---- nos


def _quota(scene: Scene) -> bool:
    scene.report("vision and speech are guaranteed 4 GPUs each; speech may use up to 8")
    _apply(scene, "quota.yaml")
    scene.until(lambda: _running(scene, "vision") == 1 and _running(scene, "speech") == 3)
    scene.until(lambda: _labels(scene, "speech").count("over-quota") == 1 and all(_labels(scene, "vision")))
    scene.report("vision uses 2 of its 4 GPUs, and speech borrows the other 2")
    good = _table(scene, "before", "vision", {"in-quota": 1})
    good &= _table(scene, "", "speech", {"in-quota": 2, "over-quota": 1})
    scene.report("vision requests the rest of its guarantee")
    _scale(scene, "vision", 2)
    scene.until(lambda: _running(scene, "vision") == 2 and any(map(_reason, _pods(scene, "speech"))))
    scene.until(lambda: all(_labels(scene, "vision")))
    for event in map(Event.decode, scene.user.list(Event.KIND)[0]):
        if event.reason == "Preempted":
            scene.report(f"[yellow]{event.involved_object.name}[/yellow] {event.message}")
    good &= _table(scene, "after", "vision", {"in-quota": 2})
    return _table(scene, "", "speech", {"in-quota": 2, "": 1}) and good


def _labels(scene: Scene, app: str) -> list[str]:
    return [pod.labels.get(CAPACITY, "") for pod in _pods(scene, app)]


# ---- the cluster as a user sees it


def _apply(scene: Scene, example: str, *, only: str = "") -> None:
    for document in manifests.read([str(examples() / "rooms" / example)]):
        if only in ("", document["kind"]):
            scene.user.apply(KINDS[document["apiVersion"], document["kind"]], document)


def _scale(scene: Scene, name: str, replicas: int) -> None:
    namespace = next(
        item["metadata"]["namespace"]
        for item in scene.user.list(GodelDeployment.KIND)[0]
        if item["metadata"]["name"] == name
    )
    scene.user.patch(GodelDeployment.KIND, name, {"spec": {"replicas": replicas}}, namespace=namespace)


def _pods(scene: Scene, app: str) -> list[Pod]:
    """The pods of a Deployment, by name."""
    pods = map(Pod.decode, scene.user.list(Pod.KIND)[0])
    return sorted((pod for pod in pods if app in _apps(pod)), key=lambda pod: pod.name)


def _apps(pod: Pod) -> Iterable[str]:
    return (pod.labels.get("app", ""), pod.labels.get("name", ""))


def _running(scene: Scene, app: str) -> int:
    return sum(pod.status.phase == "Running" and not pod.deleting for pod in _pods(scene, app))


def _reason(pod: Pod) -> str:
    """The scheduler's message about a pod that waits."""
    scheduled = pod.scheduled
    waits = scheduled is not None and scheduled.status == "False" and not pod.spec.node_name
    return scheduled.message if waits and scheduled is not None else ""


def _table(scene: Scene, title: str, app: str, expected: Mapping[str, int]) -> bool:
    """Prints the pods of a Deployment. `wanted`: their number by room, which is empty for those that wait."""
    pods = _pods(scene, app)
    rooms = [_room(pod) for pod in pods]
    good = {room: rooms.count(room) for room in rooms} == expected
    rows = [_row(pod, room, good) for pod, room in zip(pods, rooms, strict=True)]
    scene.out.print()
    scene.out.print(table(title, rows, columns=COLUMNS))
    return good


def _row(pod: Pod, room: str, good: bool) -> dict[str, Any]:
    return {
        "pod": pod.name,
        "requests": ", ".join(_requests_text(pod)),
        "node": pod.spec.node_name or "-",
        "room": room or "-",
        "waits": _reason(pod) or "-",
        "as": "yes" if good else "NO",
    }


def _requests_text(pod: Pod) -> Iterable[str]:
    words: Mapping[str, Callable[[int], str]] = {
        CPU: lambda milli: f"{milli / 1000:g} CPU",
        GPU: lambda count: f"{count} GPU",
    }
    return (words[name](value) for name, value in pod_requests(pod).items() if name in words)


def _room(pod: Pod) -> str:
    """The room that a pod has: a reservation's, a placeholder's, a quota's, or its node's."""
    if not pod.spec.node_name:
        return ""
    annotations = pod.annotations
    if ALLOCATED in annotations:
        return "web-room"
    return annotations.get(MATCHED_PLACEHOLDER) or pod.labels.get(CAPACITY, "") or PLAIN
