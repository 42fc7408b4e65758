"""The invariants of room on nodes, read from the API server's memory alone.

No node is oversubscribed and no hold is lost, at every moment. No pod and no reservation waits beside room
that it may have, once faults have stopped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import orjson

from broker.apis.core import Event
from broker.apis.godel import FINALIZER, MATCHED_UID, PLACEHOLDER_UID
from broker.apis.koordinator import ALLOCATED
from broker.apis.nos import ElasticQuota
from tests.simulation.rooms import kept_of, nodes_of, pods_of, reservations_of, waiting_text
from tests.simulation.violation import Violation
from tests.simulation.world import World, condition

Json = dict[str, Any]
TTLS: Mapping[str, float] = {"2m": 120.0, "24h": 86400.0, "0s": 86400.0}  # the operator's bound
ENDED = ("Succeeded", "Failed")
# Writes of a placement: pods, reservations, and the use of elastic quotas.
TAKES_ROOM = ("/binding", "/pods/", "scheduling.koordinator.sh/", "nos.nebuly.com/")
HANGS = timedelta(seconds=60)  # the shortest time for which room is kept


def cpu(spec: Json) -> int:
    return sum(int(container["resources"]["requests"]["cpu"]) for container in spec["containers"])


def _annotation(item: Json, name: str) -> str:
    return str(item["metadata"].get("annotations", {}).get(name, ""))


def _may_leave_room(pod: Json) -> bool:
    return FINALIZER in pod["metadata"].get("finalizers", ())


def _leaves_room(pod: Json) -> bool:
    """Whether the pod is being deleted, and its room is to be kept."""
    return bool(pod["metadata"].get("deletionTimestamp")) and _may_leave_room(pod)


def taken_from(pod: Json) -> str:
    """The uid of the reservation that a pod names."""
    text = pod["metadata"].get("annotations", {}).get(ALLOCATED)
    return str(orjson.loads(text)["uid"]) if text else ""


@dataclass(frozen=True)
class Rooms:
    """Nodes, pods and reservations at one moment."""

    nodes: Mapping[str, Json]
    pods: Sequence[Json]
    holds: Mapping[str, Json]
    left: Mapping[str, Json]  # Gödel's: the room of deleted pods, by uid
    now: datetime

    @classmethod
    def of(cls, world: World) -> Rooms:
        holds = reservations_of(world)
        return cls(nodes_of(world), pods_of(world), holds, kept_of(world), world.time.now())

    def on(self, node: str) -> Iterator[Json]:
        """The pods that take room on a node. One that ends counts until its room is given back or kept."""
        for pod in self.pods:
            ended = pod.get("status", {}).get("phase") in ENDED
            if pod["spec"].get("nodeName") == node and (not ended or _may_leave_room(pod)):
                yield pod

    def left_on(self, node: str) -> Iterator[tuple[Json, int]]:
        """The room of deleted pods that no pod took yet."""
        present = {pod["metadata"]["uid"] for pod in self.pods}
        for uid, item in self.left.items():
            meta, spec = item["metadata"], item["spec"]
            if spec["nodename"] != node or meta.get("deletionTimestamp") or self.over(item):
                continue
            taken = any(_annotation(pod, MATCHED_UID) == uid for pod in self.on(node))
            if not taken and _annotation(item, PLACEHOLDER_UID) not in present:
                yield item, cpu(spec["template"]["spec"])

    def over(self, item: Json, within: float = 0.0) -> bool:
        """Whether the time of a deleted pod's room is over, now or within so many seconds."""
        created = datetime.fromisoformat(item["metadata"]["creationTimestamp"])
        return created + timedelta(seconds=int(item["spec"]["ttl"]) - within) <= self.now

    def expired(self, hold: Json) -> bool:
        created = datetime.fromisoformat(hold["metadata"]["creationTimestamp"])
        seconds = TTLS[hold["spec"]["ttl"]]
        return seconds != float("inf") and created + timedelta(seconds=seconds) <= self.now

    def kept(self, node: str) -> Iterator[tuple[Json, int]]:
        """The live holds of a node with the room that their owners do not use."""
        for hold in self.holds.values():
            status = hold.get("status", {})
            if status.get("phase") != "Available" or status.get("nodeName") != node or self.expired(hold):
                continue
            owners = [pod for pod in self.on(node) if taken_from(pod) == hold["metadata"]["uid"]]
            if owners and hold["spec"]["allocateOnce"]:
                continue
            used = sum(cpu(pod["spec"]) for pod in owners)
            yield hold, max(0, int(status["allocatable"]["cpu"]) - used)

    def free(self, node: str) -> int:
        used = sum(cpu(pod["spec"]) for pod in self.on(node))
        idle = sum(room for _, room in (*self.kept(node), *self.left_on(node)))
        return int(self.nodes[node]["status"]["allocatable"]["cpu"]) - used - idle


class RoomsWatch:
    """Looks at the room on the nodes of one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._placed: dict[str, str] = {}  # uid of a reservation -> its node, once it has one
        self._before = Rooms({}, (), {}, {}, world.time.now())
        self._kept: set[str] = set()  # uids of deleted pods with a reservation of their room
        self._taken: set[str] = set()  # uids of those reservations that a pod took

    def check(self) -> None:
        rooms = Rooms.of(self._world)
        for node in rooms.nodes:
            if rooms.free(node) < 0:
                pods = [(pod["metadata"]["name"], cpu(pod["spec"])) for pod in rooms.on(node)]
                kept = (*rooms.kept(node), *rooms.left_on(node))
                holds = [(hold["metadata"]["name"], room) for hold, room in kept]
                raise Violation("no room twice", f"{node} is oversubscribed by {pods} and {holds}")
        self._lost(rooms)
        self._left(rooms)
        self._preempted(rooms)
        self._before = rooms

    def _left(self, rooms: Rooms) -> None:
        """A deleted pod leaves its room to a reservation, which ends by its time, its back pod or with its
        node.
        """
        self._kept |= {_annotation(item, PLACEHOLDER_UID) for item in rooms.left.values()}
        self._taken |= {uid for pod in rooms.pods if (uid := _annotation(pod, MATCHED_UID))}
        present = {pod["metadata"]["uid"] for pod in rooms.pods}
        # While a call hangs, a reservation may come and go without a look at it.
        unseen = rooms.now - self._before.now >= HANGS
        for pod in () if unseen else self._before.pods:
            uid, node = pod["metadata"]["uid"], pod["spec"].get("nodeName")
            if uid not in present and _leaves_room(pod) and node in rooms.nodes and uid not in self._kept:
                raise Violation("hold kept", f"{pod['metadata']['name']} is gone, and its room is not kept")
        successors = {_annotation(item, PLACEHOLDER_UID) for item in rooms.left.values()}
        names = {item["metadata"]["name"] for item in rooms.left.values()}
        for uid, item in self._before.left.items():
            ended = item["spec"].get("nodename") not in rooms.nodes
            over = uid in rooms.left or uid in self._taken or rooms.over(item) or ended
            replaced = item["metadata"]["name"] in names and successors - {_annotation(item, PLACEHOLDER_UID)}
            if not over and not replaced and not self._replacing(item, rooms):
                raise Violation("hold kept", f"the room of {item['metadata']['name']} is gone: {item}")

    def _replacing(self, item: Json, rooms: Rooms) -> bool:
        """Whether a later pod of the same name leaves its room now: its reservation replaces this one."""
        name = item["metadata"]["name"]
        return any(pod["metadata"]["name"] == name and _leaves_room(pod) for pod in rooms.pods)

    def _preempted(self, rooms: Rooms) -> None:
        """The event is true: its pod is being deleted, or gone."""
        preempted = {
            event["involvedObject"]["uid"]
            for event in self._world.objects(Event.KIND).values()
            if event.get("reason") == "Preempted" and event["involvedObject"]["kind"] == "Pod"
        }
        for pod in rooms.pods:
            if pod["metadata"]["uid"] in preempted and not pod["metadata"].get("deletionTimestamp"):
                raise Violation("preempted", f"{pod['metadata']['name']} runs on after its event")

    def _lost(self, rooms: Rooms) -> None:
        """A hold stays on its node, and ends only by its deadline, its owner or its node."""
        for name, hold in rooms.holds.items():
            uid, status = hold["metadata"]["uid"], hold.get("status", {})
            node = status.get("nodeName", "")
            if uid in self._placed and self._placed[uid] != node:
                raise Violation("hold kept", f"{name} was on {self._placed[uid]}, and now {node!r}")
            if node:
                self._placed[uid] = node
            if status.get("phase") == "Failed" and node in rooms.nodes and not rooms.expired(hold):
                raise Violation("hold kept", f"{name} failed, and its node {node} is there: {status}")
            if status.get("phase") == "Succeeded" and not status.get("currentOwners"):
                raise Violation("hold kept", f"{name} succeeded without an owner")

    def ending(self, within: float) -> list[str]:
        """The paths of the writes that follow if reservations end within so many seconds.

        These are deleted then, and pods and other reservations that wait take their room.
        """
        rooms = Rooms.of(self._world)
        over = [item["metadata"] for item in rooms.left.values() if rooms.over(item, within)]
        ended = [f"/namespaces/{meta['namespace']}/reservations/{meta['name']}" for meta in over]
        return [*ended, *(TAKES_ROOM if over else ())]

    def check_at_rest(self) -> None:
        rooms = Rooms.of(self._world)
        for pod in rooms.pods:
            self._pod_at_rest(pod, rooms)
        for hold in rooms.holds.values():
            self._hold_at_rest(hold, rooms)

    def _pod_at_rest(self, pod: Json, rooms: Rooms) -> None:
        name = pod["metadata"]["name"]
        if pod["spec"].get("nodeName") or pod["metadata"].get("deletionTimestamp"):
            return
        if condition(pod, "PodScheduled").get("status") != "False" or not waiting_text(pod):
            raise Violation("no pod stuck", f"{name} waits without a reason")
        if taken_from(pod):
            raise Violation("no pod stuck", f"{name} waits, and names the reservation {taken_from(pod)}")
        if self._limited(pod, rooms):
            return
        if place := self._room_for(cpu(pod["spec"]), rooms):
            raise Violation("no pod stuck", f"{name} waits beside {place}: {waiting_text(pod)}")

    def _limited(self, pod: Json, rooms: Rooms) -> bool:
        """Whether a quota decides, or a reservation that restricts its owners."""
        if any(space == pod["metadata"]["namespace"] for space, _ in self._world.objects(ElasticQuota.KIND)):
            return True
        return any(
            hold["spec"]["allocatePolicy"] == "Restricted"
            and _matches(hold, pod)
            and hold.get("status", {}).get("phase") == "Available"
            for hold in rooms.holds.values()
        )

    def _room_for(self, cpus: int, rooms: Rooms) -> str:
        nominated = {pod.get("status", {}).get("nominatedNodeName") for pod in rooms.pods}
        for node in rooms.nodes:
            if node not in nominated and rooms.free(node) >= cpus:
                return f"{rooms.free(node)} free CPUs of {node}"
        return ""

    def _hold_at_rest(self, hold: Json, rooms: Rooms) -> None:
        name, status = hold["metadata"]["name"], hold.get("status", {})
        node = status.get("nodeName")
        if status.get("phase", "Pending") == "Pending":
            if not condition(hold, "Scheduled").get("message"):
                raise Violation("no pod stuck", f"{name} waits without a reason")
            if hold["spec"].get("preAllocation"):
                return
            if place := self._room_for(cpu(hold["spec"]["template"]["spec"]), rooms):
                raise Violation("no pod stuck", f"{name} waits beside {place}: {status}")
        if status.get("phase") == "Available":
            if node not in rooms.nodes:
                raise Violation("hold kept", f"{name} is Available on {node}, which is gone")
            owners = {
                pod["metadata"]["name"]
                for pod in rooms.on(node)
                if taken_from(pod) == hold["metadata"]["uid"]
            }
            shown = {owner["name"] for owner in status.get("currentOwners", ())}
            if owners != shown:
                raise Violation("owners shown", f"{name} shows {shown}, and {owners} take from it")


def _matches(hold: Json, pod: Json) -> bool:
    owners: Iterable[Json] = hold["spec"]["owners"]
    labels = pod["metadata"].get("labels", {})
    return any(owner["labelSelector"]["matchLabels"].items() <= labels.items() for owner in owners)
