"""A broken node is rebooted once, wherever the broker is killed, and replaced once."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from broker.apis import names
from broker.apis.core import Node
from broker.apis.karpenter import NodeClaim, NodePool
from broker.placement.reboots import reboots_of
from broker.text import format_time
from local.aws import LocalAws
from tests.cluster import objects
from tests.cluster.account import A
from tests.cluster.objects import RESERVED
from tests.faults import walk
from tests.faults.walk import Gate, Killed, Point, Process, World, account, points, share_clients

LOOPS = ("inventory", "nodeclass", "launch", "nodeclaim", "terminations", "disruption")
CLAIM = "c-0"


@pytest.fixture
def server(local_aws: LocalAws, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalAws]:
    share_clients(monkeypatch)
    monkeypatch.setattr(walk, "LOOPS", LOOPS)
    account(local_aws, fresh=True)
    yield local_aws
    local_aws.control.reset()


class Machine:
    """The node of the claim; a reboot takes a minute, and mends it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.boots, self.back = 0, 0.0

    @property
    def claim(self) -> NodeClaim:
        return NodeClaim.decode(self.world.client.get(NodeClaim.KIND, CLAIM))

    @property
    def node(self) -> Node:
        return Node.decode(self.world.client.get(Node.KIND, "n-0"))

    def join(self) -> None:
        provider_id = self.claim.status.provider_id
        taints = [{"key": names.UNREGISTERED_TAINT, "effect": "NoExecute"}]
        spec = {"providerID": provider_id, "taints": taints}
        room = {"cpu": "2", "memory": "7Gi", "pods": "29"}
        self.world.client.create(Node.KIND, {"metadata": {"name": "n-0"}, "spec": spec})
        self._status({"capacity": room, "allocatable": room, "nodeInfo": {"bootID": "boot-0"}})
        self._conditions(Ready="True")

    def shatter(self) -> None:
        self._conditions(Ready="True", AcceleratedHardwareReady="False")

    def step(self) -> None:
        """A rebooted machine is away for a minute."""
        reboots, now = self.world.control.reboots(self.claim.instance_id), self.world.clock.monotonic()
        if reboots > self.boots:
            self.boots, self.back = reboots, now + 60
            self._conditions(Ready="Unknown", AcceleratedHardwareReady="False")
        elif self.back and now >= self.back:
            self.back = 0.0
            self._status({"nodeInfo": {"bootID": f"boot-{self.boots}"}})
            self._conditions(Ready="True", AcceleratedHardwareReady="True")

    def _conditions(self, **statuses: str) -> None:
        at = format_time(self.world.clock.now() - timedelta(seconds=1))
        listed = [
            {"type": type_, "status": status, "reason": "NvidiaXID48Error", "lastTransitionTime": at}
            for type_, status in statuses.items()
        ]
        self._status({"conditions": listed})

    def _status(self, status: dict[str, Any]) -> None:
        self.world.client.patch(Node.KIND, "n-0", {"status": status}, subresource="status")


def staged(server: LocalAws, number: int) -> tuple[World, Machine]:
    world = World(server, number)
    world.node_class(id_=world.aws.odcr(count=1))
    body = objects.node_pool("gpu", node_class="gpu")
    changes = {names.REPAIR: "AcceleratedHardwareReady=1m"}
    world.client.create(NodePool.KIND, {**body, "metadata": {"name": "gpu", "annotations": changes}})
    world.claim(CLAIM, pool="gpu", zones=(A,), capacity=(RESERVED,))
    machine = Machine(world)
    process = world.start()
    process.until(lambda: bool(machine.claim.status.provider_id), "it is launched")
    machine.join()
    process.until(lambda: _is(machine.claim, names.INITIALIZED_CONDITION), "it is ready")
    return world, machine


def _is(claim: NodeClaim, type_: str) -> bool:
    return any((item.type, item.status) == (type_, "True") for item in claim.status.conditions)


def over(machine: Machine) -> bool:
    """Whether the reboot succeeded, and the node takes pods again."""
    machine.step()
    known = reboots_of(machine.claim).known
    return bool(known) and known[-1].phase == "Succeeded" and not machine.node.rebooting


def walked(server: LocalAws, number: int, point: Point | None) -> Gate:
    world, machine = staged(server, number)
    first = machine.claim.instance_id
    gate = Gate(kill=point, clock=world.clock.monotonic)
    process: Process = world.start(gate)
    process.turn()
    gate.armed = True
    machine.shatter()
    try:
        process.until(lambda: over(machine), "it is rebooted", seconds=3600)
        gate.armed = False
    except Killed:
        process = world.start()
        process.until(lambda: over(machine), "the next process goes on", seconds=3600)
    process.run(120)
    assert world.control.reboots(first) == 1
    assert machine.claim.instance_id == first and not machine.claim.deleting
    assert len(world.instances(ended=True)) == 1
    process.bury()
    return gate


@pytest.mark.covers("FUL-21")
def test_instance_is_rebooted_once_wherever_the_broker_is_killed(server: LocalAws) -> None:
    gate = walked(server, 0, None)
    assert gate.calls.count("RebootInstances") == 1
    for number, point in enumerate(points(gate), start=1):
        try:
            walked(server, number, point)
        except AssertionError as error:
            raise AssertionError(f"killed {point.when} call {point.call} of {gate.calls}: {error}") from error
