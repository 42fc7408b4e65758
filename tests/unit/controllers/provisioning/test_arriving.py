"""A replacement in flight keeps its room for the pods of the node that it replaces."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from broker.apis import names
from broker.apis.core import Node, Pod
from broker.apis.karpenter import NodeClaim
from broker.capacity.successors import AWAITS_REPLACED
from broker.controllers.nodereservation.occupancy import NodeOccupancy
from broker.controllers.provisioning.existing import PodAssignment, assign, existing
from broker.controllers.provisioning.learned import LearnedRoom
from broker.placement.gangs import unknown_sizes
from broker.placement.reading import pod_info
from broker.placement.storage import Storage
from broker.text import format_time
from tests.unit.placement.packing import pending

pytestmark = pytest.mark.covers("FLT-10")
CREATED = datetime(2026, 11, 1, tzinfo=UTC)
ROOM = {"cpu": "2", "memory": "8Gi", "pods": "10"}
OLD_ID = "aws:///us-east-1a/i-old"


def claim(
    name: str, *, provider_id: str = "", annotations: dict[str, str] | None = None, waits: str = "Waits"
) -> NodeClaim:
    launched = {"type": names.LAUNCHED, "status": "Unknown", "reason": waits}
    launched["lastTransitionTime"] = format_time(CREATED)
    return NodeClaim.decode(
        {
            "metadata": {"name": name, "uid": f"{name}-uid", "annotations": annotations or {}},
            "spec": {
                "nodeClassRef": {"group": names.BROKER, "kind": "EC2NodeClass", "name": "web"},
                "resources": {"requests": ROOM},
            },
            "status": {"providerID": provider_id, "allocatable": ROOM, "conditions": [launched]},
        }
    )


def running(cpu: str, **metadata: Any) -> Pod:
    container = {"name": "main", "resources": {"requests": {"cpu": cpu, "memory": "1Gi"}}}
    return Pod.decode(
        {
            "metadata": {"name": "moves", "namespace": "default", "uid": "m", **metadata},
            "spec": {"nodeName": "old-node", "containers": [container]},
            "status": {"phase": "Running"},
        }
    )


def assigned(
    pod: Pod, *, replaces: str = "old/old-uid", also: str = "", waits: str = "Waits", minutes: float = 0
) -> PodAssignment:
    """The assignment of a pod of 600m beside this one on the old node, so long after the replacement was
    made.
    """
    old = claim("old", provider_id=OLD_ID)
    new = claim("new", annotations={names.REPLACES: replaces, names.REPLACES_ALSO: also}, waits=waits)
    node = Node.decode(
        {
            "metadata": {"name": "old-node", "labels": {names.INITIALIZED: "true"}},
            "spec": {"providerID": OLD_ID},
            "status": {"allocatable": {**ROOM, "cpu": "1500m"}},
        }
    )
    occupancy = NodeOccupancy(nodes=[node], pods=[pod], bound=[pod_info(pod)], infos={})
    known = existing(
        occupancy, [old, new], [], Storage(), LearnedRoom(), CREATED + timedelta(minutes=minutes)
    )
    return assign([pending("other", cpu="600m")], known, [], unknown_sizes, CREATED)


def test_other_pods_get_no_room_of_a_replacement_that_moving_pods_need() -> None:
    assert assigned(running("1500m")).taken == {}


def test_pods_of_each_node_that_one_machine_replaces_need_its_room() -> None:
    assert assigned(running("1500m"), replaces="first/first-uid", also="old/old-uid").taken == {}


def test_other_pods_get_the_room_of_a_replacement_that_is_left() -> None:
    assert assigned(running("1")).taken == {"default/other": "new"}


@pytest.mark.parametrize(
    ("waits", "minutes", "taken"),
    [(AWAITS_REPLACED, 9, True), (AWAITS_REPLACED, 10, False), ("InsufficientInstanceCapacity", 10, True)],
)
def test_no_pod_waits_for_ever_for_a_replacement_whose_node_does_not_end(
    waits: str, minutes: float, taken: bool
) -> None:
    """The budget of its own application may keep the node until it runs."""
    assert bool(assigned(running("1"), waits=waits, minutes=minutes).taken) is taken


@pytest.mark.parametrize("replaces", ["old/another-uid", "gone/gone-uid"])
def test_pods_of_another_node_take_no_room_of_a_replacement(replaces: str) -> None:
    assert assigned(running("1500m"), replaces=replaces).taken == {"default/other": "new"}


def test_pods_of_a_daemon_set_do_not_move() -> None:
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "logs", "uid": "d", "controller": True}
    assert assigned(running("1500m", ownerReferences=[owner])).taken == {"default/other": "new"}
