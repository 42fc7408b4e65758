"""The start of a world: reservations of several owners, classes, teams, and others that share the account."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from broker.apis import names
from broker.apis.core import Node
from broker.apis.karpenter import NodeClaim
from broker.apis.kueue import Namespace
from broker.apis.ome import CapacityReservation
from providers.names import MANAGED_BY, TAG_CLUSTER, TAG_CLUSTER_UID
from tests.cluster import objects
from tests.cluster.account import CLUSTER, A, B
from tests.cluster.ome.reserved import GPU, spec
from tests.simulation.world import World

Json = dict[str, Any]
SMALL, MEDIUM, GPUS, BOUGHT = "m5.large", "m5.xlarge", "p5.48xlarge", "g6.12xlarge"
OWNER, BORROWER = "default/training", "default/research"
PER = {GPUS: 8, BOUGHT: 4}  # accelerators of an instance
OTHER_CLUSTER = "green"


# The option `scheduler` of each process, without and with leader election.
ROLES = ((("off",), ("off", "off")),)
ROOM_ROLES = (
    (("on",), ("on", "on")),
    (("off", "only"), ("off", "only", "only")),
)


def begin(world: World, rng: random.Random, *, rooms: bool, full: bool = False) -> None:
    """Two to four reservations, a group, classes that use them, two teams, and resources of others.

    `full`: open reservations and a class for them as well.
    """
    leaders = rng.random() < 0.3
    world.set(leader_election=leaders)
    world.roles = tuple(rng.choice(ROOM_ROLES if rooms else ROLES)[leaders])
    aws = world.aws
    first = aws.odcr(SMALL, A, rng.randint(1, 3), criteria=_criteria(rng, full))
    second = aws.odcr(MEDIUM, B, rng.randint(1, 2), criteria=_criteria(rng, full))
    group = aws.group(first, second, name="blue-team")
    world.node_class("by-id", id_=first)
    world.node_class("by-group", group=group, zones=(A, B))
    world.node_class("plain", preference="none")
    if full:
        aws.odcr(SMALL, A, rng.randint(1, 2), criteria="open")
        world.node_class("by-open", preference="open", zones=(A, B))
    if rng.random() < 0.6:
        slots = rng.randint(1, 3)
        lent = aws.odcr(GPUS, A, slots, TagSpecifications=tagged({names.TAG_RESERVATION: OWNER}))
        world.node_class("lent", id_=lent)
        limit = str(8 * rng.randint(0, slots))
        rule: Any = {"preemptionRule": {"reclaimWithinCohort": "Any"}}
        reserve(world, "training", spec(GPUS, quotas={GPU: str(8 * slots)}, cohort="ml", **rule))
        borrows: Any = {"cohort": "ml", "allowBorrowing": True, **rule}
        reserve(world, "research", spec(GPUS, quotas={GPU: "0"}, borrow=limit, **borrows))
    if rng.random() < 0.5:
        buy(world, "bought", rng.randint(1, 3), cancel=rng.random() < 0.7)
    if rooms:
        meta = {"name": "default", "annotations": {names.KEPT_ROOM: "true"}}
        world.client.apply(Namespace.KIND, {"metadata": meta})
    _others(world)
    for _ in world.roles:
        world.start()


def _criteria(rng: random.Random, full: bool) -> str:
    return rng.choice(("targeted", "open")) if full else "targeted"


def tagged(tags: Mapping[str, str]) -> list[Json]:
    listed = [{"Key": key, "Value": value} for key, value in tags.items()]
    return [{"ResourceType": "capacity-reservation", "Tags": listed}]


def reserve(world: World, name: str, body: Json, annotations: Mapping[str, str] | None = None) -> None:
    metadata = {"name": name, "namespace": "default", "annotations": dict(annotations or {})}
    world.client.create(CapacityReservation.KIND, {"metadata": metadata, "spec": body})


def buy(world: World, name: str, instances: int, *, cancel: bool) -> None:
    """A reservation that the broker buys for."""
    marks = {names.RESERVATION_POLICY: "Manage", names.MINIMUM: "1"} | (
        {names.DELETION_POLICY: "Cancel"} if cancel else {}
    )
    reserve(world, name, spec(BOUGHT, quotas={GPU: str(PER[BOUGHT] * instances)}), marks)
    note_request(world, name, instances)


def note_request(world: World, name: str, instances: int) -> None:
    key = f"default/{name}"
    world.facts.requested[key] = max(world.facts.requested.get(key, 0), instances)


def _others(world: World) -> None:
    """Another cluster's instance and reservation, Karpenter's own claim, and a node of no claim."""
    aws, facts = world.aws, world.facts
    other_cluster = {TAG_CLUSTER: OTHER_CLUSTER, MANAGED_BY: "capacity-broker"}
    facts.foreign.add(aws.odcr(BOUGHT, A, 1, TagSpecifications=tagged(other_cluster)))
    same_name = {TAG_CLUSTER: CLUSTER, TAG_CLUSTER_UID: "another"}
    for tags in ({TAG_CLUSTER: OTHER_CLUSTER}, same_name, {}):
        listed = [{"Key": key, "Value": value} for key, value in tags.items()]
        more = {"TagSpecifications": [{"ResourceType": "instance", "Tags": listed}]} if listed else {}
        stored_claim = aws.ec2.run_instances(
            ImageId=aws.image,
            InstanceType=SMALL,
            MinCount=1,
            MaxCount=1,
            Placement={"AvailabilityZone": A},
            CapacityReservationSpecification={"CapacityReservationPreference": "none"},
            **more,
        )["Instances"][0]["InstanceId"]
        facts.foreign.add(stored_claim)
    body = objects.claim(
        "karpenters", node_class="by-id", types=(SMALL,), capacity=("on-demand",), group=names.KARPENTER_AWS
    )
    stored_claim = world.client.create(NodeClaim.KIND, body)
    status = {"status": {"providerID": f"aws:///{A}/{max(facts.foreign)}", "nodeName": "theirs"}}
    world.client.patch(NodeClaim.KIND, "karpenters", status, subresource="status")
    node = {
        "metadata": {"name": "theirs"},
        "spec": {"providerID": f"aws:///{A}/{max(facts.foreign)}"},
        "status": {"conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]},
    }
    world.client.create(Node.KIND, node)
