"""Machines that break: kubelets that report it or fall silent, EC2's status checks, and reboots.

A reboot takes a while, gives the node another boot id, and mends some machines. Some never come back from it.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from broker.apis import names
from broker.apis.core import Node
from broker.apis.karpenter import NodeClaim, NodePool
from broker.text import format_time
from local.aws.ec2.health import HealthRecord
from local.aws.ec2.world import world as aws_world
from tests.simulation.missing import instance_of
from tests.simulation.pools import pools_of
from tests.simulation.wire import Killed
from tests.simulation.world import World

Json = dict[str, Any]
Sign = tuple[str, str, str]  # type, status and reason of a condition
ACCELERATOR = "AcceleratedHardwareReady"
REBOOTED: tuple[Sign, ...] = (
    (ACCELERATOR, "False", "NvidiaXID48Error"),
    (ACCELERATOR, "False", "NvidiaXID95Error"),
)
REPLACED: tuple[Sign, ...] = (
    (ACCELERATOR, "False", "NvidiaXID79Error"),
    (ACCELERATOR, "False", "Unknown"),
    ("StorageReady", "False", "IODelays"),
    ("NetworkingReady", "False", "IPAMDNotReady"),
    ("KernelReady", "False", "ForkFailedOutOfPIDs"),
    ("ContainerRuntimeReady", "False", "PodStuckTerminating"),
)
# Of a world's pools: repairs are due before a run is over.
RULES = (
    f"{ACCELERATOR}=1m,StorageReady=1m,NetworkingReady=2m,KernelReady=1m,ContainerRuntimeReady=1m,"
    "Ready=3m,InstanceImpaired=30s,SystemImpaired=30s"
)
REBOOT = "RebootInstances"


@dataclass
class Machine:
    """One instance's. `boots`: the reboots that are over; `back`: when the one under way is."""

    signs: dict[str, Sign] = field(default_factory=dict)
    mends: bool = False  # a reboot mends it
    stuck: bool = False  # it does not come back from a reboot
    takes: float = 30.0  # seconds of a reboot
    boots: int = 0
    back: float | None = None


class Kubelets:
    """What the kubelets of one world report. `machines`: by instance id."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.machines: defaultdict[str, Machine] = defaultdict(Machine)

    def reported(self, node: Json, instance: Any) -> Json:
        """The status that the kubelet of an instance writes now; empty if the Node has it."""
        machine, now = self.machines[instance.id], self._world.time.seconds
        if machine.back is None and reboots_of(instance.id) > machine.boots:
            machine.back = now + machine.takes
        if machine.back is not None and now >= machine.back and not machine.stuck:
            self._booted(machine, reboots_of(instance.id))
        signs: list[Sign] = [("Ready", "True", "KubeletReady")]
        if machine.back is not None:
            signs = [("Ready", "Unknown", "NodeStatusUnknown")]
        signs += [machine.signs[type_] for type_ in sorted(machine.signs)]
        boot_id = f"{instance.id}-{machine.boots}"
        status = node.get("status", {})
        before = {(c["type"], c["status"], c.get("reason", "")): c for c in status.get("conditions") or ()}
        if [*before] == signs and status.get("nodeInfo", {}).get("bootID") == boot_id:
            return {}
        conditions = [before.get(sign) or condition_of(self._world, sign) for sign in signs]
        return {"conditions": conditions, "nodeInfo": {"bootID": boot_id}}

    def _booted(self, machine: Machine, boots: int) -> None:
        machine.boots, machine.back = boots, None
        if machine.mends:
            machine.signs.clear()

    def heal(self) -> None:
        for machine in self.machines.values():
            machine.signs.clear()
            machine.stuck = False
        self._world.lab.memo.forget("instances")
        for record in aws_world().health.values():
            record.impaired.clear()
            for event in [*record.events]:
                record.complete(event.code)


def reboots_of(instance_id: str) -> int:
    """How many reboots of the instance EC2 carried out."""
    return len((aws_world().health.get(instance_id) or HealthRecord()).reboots)


def condition_of(world: World, sign: Sign) -> Json:
    type_, status, reason = sign
    at = format_time(world.time.now())
    return {"type": type_, "status": status, "reason": reason, "lastTransitionTime": at}


def _joined(world: World) -> list[tuple[str, str, Json]]:
    """The Nodes of the cluster's running instances: name, instance, and Node."""
    nodes = world.objects(Node.KIND)
    running = ((f"{i.id}.ec2.internal", i.id) for i in world.instances() if i.state == "running")
    return [(name, id_, nodes["", name]) for name, id_ in running if ("", name) in nodes]


def _break(world: World, rng: random.Random, id_: str) -> None:
    assert world.kubelets is not None
    machine = world.kubelets.machines[id_]
    sign = rng.choice(REBOOTED if rng.random() < 0.6 else REPLACED)
    machine.signs[sign[0]] = sign
    machine.mends, machine.stuck = rng.random() < 0.5, rng.random() < 0.15
    machine.takes = rng.choice((15.0, 60.0, 200.0))


# ---- what breaks


def break_node(world: World, rng: random.Random) -> None:
    """A kubelet reports that hardware or software of its node is broken."""
    if nodes := _joined(world):
        _break(world, rng, rng.choice(nodes)[1])


def break_pool(world: World, rng: random.Random) -> None:
    """Several nodes of a pool break at once."""
    pools: dict[str, list[str]] = defaultdict(list)
    for _, id_, node in _joined(world):
        if pool := node["metadata"].get("labels", {}).get(names.NODEPOOL):
            pools[pool].append(id_)
    if pools:
        ids = pools[rng.choice(sorted(pools))]
        for id_ in rng.sample(ids, min(len(ids), rng.choice((2, 3)))):
            _break(world, rng, id_)


def mend_node(world: World, rng: random.Random) -> None:
    """What was broken mends by itself."""
    assert world.kubelets is not None
    broken = sorted(id_ for id_, machine in world.kubelets.machines.items() if machine.signs)
    if broken:
        world.kubelets.machines[rng.choice(broken)].signs.clear()


def silent_kubelet(world: World, rng: random.Random) -> None:
    """A kubelet reports no more, which the node controller writes."""
    if nodes := _joined(world):
        name = rng.choice(nodes)[0]
        world.sick.add(name)
        ready = condition_of(world, ("Ready", "Unknown", "NodeStatusUnknown"))
        body = {"status": {"conditions": [ready]}}
        world.client.patch(Node.KIND, name, body, subresource="status")


def impair(world: World, rng: random.Random) -> None:
    """A status check of EC2 fails or passes again, or an event is scheduled."""
    alive = [i.id for i in world.instances() if i.state == "running"]
    if not alive:
        return
    world.lab.memo.forget("instances")
    id_, draw = rng.choice(alive), rng.random()
    if draw < 0.6:
        world.control.impair(id_, rng.choice(("instance", "system")))
    elif draw < 0.8:
        world.control.schedule_event(id_, rng.choice(("instance-retirement", "system-reboot")))
    else:
        world.control.impair(id_, over=True)


# ---- people


def _brokers(claim: Mapping[str, Any]) -> bool:
    return bool(claim["spec"]["nodeClassRef"]["group"] == names.BROKER)


def do_not_repair(world: World, rng: random.Random) -> None:
    """A person keeps a node from repair, or no longer."""
    nodes = _joined(world)
    claims = [c for c in world.claims() if instance_of(c) and _brokers(c)]
    if not nodes or not claims:
        return
    noted = {"metadata": {"annotations": {names.DO_NOT_REPAIR: rng.choice(("true", "true", None))}}}
    if rng.random() < 0.5:
        world.client.patch(Node.KIND, rng.choice(nodes)[0], noted)
    else:
        world.client.patch(NodeClaim.KIND, rng.choice(claims)["metadata"]["name"], noted)


def repair_rules(world: World, rng: random.Random) -> None:
    """Another table of repairs of a pool, or another bound."""
    if pools := sorted(pools_of(world)):
        noted = rng.choice(
            (
                {names.REPAIR: RULES},
                {names.REPAIR: f"{ACCELERATOR}=30s/reboot,StorageReady=30s/reboot"},
                {names.REPAIR: "off"},
                {names.REPAIR_AT_MOST: rng.choice(("0", "1", "2", "20%", "50%", "100%"))},
            )
        )
        world.client.patch(NodePool.KIND, rng.choice(pools), {"metadata": {"annotations": noted}})


# ---- faults


def reboot_refused(world: World, rng: random.Random) -> None:
    """EC2 refuses a reboot, or its answer is lost."""
    fault: Json = rng.choice(
        (
            {"code": "InternalError", "status": 500},
            {"code": "RequestLimitExceeded", "status": 503},
            {"code": "UnauthorizedOperation", "status": 403},
            {"stage": "response"},
            {"stage": "response"},
        )
    )
    world.control.fault(action=REBOOT, times=rng.choice((1, 2, 6)), **fault)
    world.gate.injected("aws reboot refused")


def repair_killed(world: World, rng: random.Random) -> None:
    """The process is killed at a call of a repair or a replacement."""
    wait = rng.choice((0.0, 1.0, 60.0, 350.0))
    of = rng.choice(
        (REBOOT, REBOOT, "POST /apis/karpenter.sh/v1/nodeclaims", "TerminateInstances", "/nodes/")
    )

    def dies() -> None:
        world.restart_at = world.time.seconds + wait
        raise Killed(of)

    when = rng.choice(("before", "after"))
    world.gate.arm(rng.choice((1, 1, 2)), when, dies, of=of, kind="killed")  # type: ignore[arg-type]
