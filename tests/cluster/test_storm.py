"""Claims come and go while EC2 and the API server fail and the broker dies: at the end all is well.

Invariant: after the storm each claim has one instance and one node, and nothing else runs. The embedded API
server has its storms in tests/simulation.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from broker.apis.core import Node
from broker.apis.karpenter import NodeClaim
from broker.kube.client import READS
from broker.kube.errors import NotFound
from tests.cluster.account import A, B
from tests.cluster.objects import ON_DEMAND, RESERVED
from tests.cluster.stack import Stack
from tests.support.servers import REAL

SEED = 1
STEPS = 40
LAUNCH_CODES = (
    "InsufficientInstanceCapacity",
    "ReservationCapacityExceeded",
    "RequestLimitExceeded",
    "InternalError",
    "VcpuLimitExceeded",
    "InvalidLaunchTemplateName.NotFoundException",
)


class Storm:
    """The possible events, each as one step."""

    def __init__(self, stack: Stack, seed: int) -> None:
        self.stack = stack
        self.random = random.Random(seed)
        self.created = 0
        self.story: list[str] = []

    def step(self) -> None:
        happens: list[Callable[[], str]] = [
            *[self.come] * 6,
            *[self.go] * 3,
            self.refuse,
            self.lose_reply,
            self.throttle,
            self.deaf,
            self.conflict,
            self.restart,
            self.rival,
            self.pass_time,
            self.crash,
        ]
        self.story.append(self.random.choice(happens)())
        if self.random.random() < 0.3:
            self.stack.polls(1)

    def come(self) -> str:
        capacity_types = self.random.choice([(RESERVED, ON_DEMAND), (ON_DEMAND,), ()])
        for _ in range(self.random.randint(1, 4)):
            self.stack.claim(
                f"c-{self.created}",
                node_class=self.random.choice(["group", "open"]),
                types=self.random.choice([("m5.large",), ("m5.large", "m5.xlarge")]),
                capacity=capacity_types,
                priority=self.random.randint(0, 3),
            )
            self.created += 1
        return f"claims up to c-{self.created - 1}"

    def go(self) -> str:
        claims = self.stack.all(NodeClaim)
        if not claims:
            return "no claim goes"
        name = self.random.choice(claims).name
        self.stack.delete(NodeClaim, name)
        return f"{name} deleted"

    def refuse(self) -> str:
        code = self.random.choice(LAUNCH_CODES)
        self.stack.control.fault(action="CreateFleet", stage="launch", code=code, message="storm")
        return f"refuse with {code}"

    def lose_reply(self) -> str:
        times = self.random.choice([1, 4])
        self.stack.control.fault(action="CreateFleet", stage="response", times=times)
        return f"{times} replies lost"

    def throttle(self) -> str:
        action = self.random.choice(["CreateFleet", "DescribeInstances", "CreateLaunchTemplate"])
        self.stack.control.fault(action=action, code="RequestLimitExceeded", status=503, times=3)
        return f"throttle {action}"

    def deaf(self) -> str:
        self.stack.tap.lose(lambda request: request.method not in READS, times=self.random.randint(1, 5))
        return "writes lost"

    def conflict(self) -> str:
        turn = str(self.random.random())

        def meddle(_: object) -> None:
            for claim in self.stack.all(NodeClaim)[:3]:
                try:
                    note = {"metadata": {"annotations": {"example.com/turn": turn}}}
                    self.stack.edit(NodeClaim, claim.name, note)
                except NotFound:
                    continue

        self.stack.tap.on(lambda request: "/nodeclaims/" in request.path, meddle, times=2)
        return "conflicts"

    def restart(self) -> str:
        self.stack.stop()
        self.stack.start()
        return "restart"

    def crash(self) -> str:
        """The broker's writes no longer arrive; the next broker starts from the existing state."""
        self.stack.tap.lose(lambda request: request.method not in READS)
        self.stack.stop()
        self.stack.tap.heal()
        self.stack.start()
        return "crash"

    def rival(self) -> str:
        odcr = self.random.choice(self.odcrs)
        if self.stack.aws.free(odcr):
            self.stack.aws.rival(odcr)
        return f"a rival in {odcr}"

    def pass_time(self) -> str:
        seconds = self.random.choice([5, 70, 200])
        self.stack.advance(seconds)
        return f"{seconds} s pass"

    def begin(self) -> None:
        aws = self.stack.aws
        self.odcrs = [
            aws.odcr(count=3),
            aws.odcr("m5.xlarge", B, 2),
            aws.odcr(zone=B, count=2, criteria="open"),
        ]
        self.stack.node_class("group", group=aws.group(*self.odcrs[:2]), zones=(A, B))
        self.stack.node_class("open", preference="open", zones=(A, B))
        self.stack.start(orphan_grace_seconds=90.0)

    def labelled(self) -> bool:
        """Whether each claim shows the reservation that its instance counts against."""
        return all(
            claim.labels.get("karpenter.k8s.aws/capacity-reservation-id", "")
            == self.stack.instance(claim.name).get("CapacityReservationId", "")
            for claim in self.stack.all(NodeClaim)
        )

    def at_rest(self) -> bool:
        claims = self.stack.all(NodeClaim)
        if any(c.deleting for c in claims) or not all(self.stack.is_true(c.name, "Ready") for c in claims):
            return False
        running = sorted(i["InstanceId"] for i in self.stack.aws.instances())
        nodes = sorted(n.instance_id for n in self.stack.all(Node))
        return running == sorted(claim.instance_id for claim in claims) == nodes


@pytest.mark.covers("KRP-25", "KRP-26")
@pytest.mark.both_servers
@pytest.mark.parametrize("stack", [pytest.param("real", marks=REAL)], indirect=True)
def test_after_the_storm_each_claim_has_one_instance_and_nothing_else_runs(stack: Stack) -> None:
    storm = Storm(stack, SEED)
    storm.begin()
    for _ in range(STEPS):
        storm.step()
    stack.control.clear_faults()
    stack.tap.heal()
    stack.until(storm.at_rest, f"calm after {storm.story}", step=3)
    owners = {n.name: [o.name for o in n.metadata.owner_references] for n in stack.all(Node)}
    assert all(len(names) == 1 for names in owners.values()), owners
    # Instances that EC2 matched by itself are labelled at the next description.
    stack.until(storm.labelled, f"labelled after {storm.story}", step=3)
