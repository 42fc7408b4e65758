"""Unmodified Karpenter and the broker, one after the other, with the same pods and reservations.

There are three reserved slots for each four pods, in three reservations of three types. Each pod fills an
instance. Of each three pods two take any of the types and the third takes only the cheapest. So every slot
can be used, but not in any order. The rest must go on demand. Both have a NodePool that allows the three
types, reserved and on demand. Karpenter's class names the reservations, the broker's their group. Pods are
created one after another; the clock runs from the last one to the response of the last CreateFleet that
launched. Each has ten minutes; the pods without a node by then are a figure too.

Each program is a process of its own on one API server and one account. The programs are kube-apiserver,
etcd, kube-scheduler, local AWS, Karpenter and the broker (`make peers` builds them).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from benchmarks.figures import Figure, run
from broker.apis import names
from tests.cluster.account import A
from tests.cluster.objects import reservation_spec
from tests.peers import objects
from tests.peers.objects import ON_DEMAND
from tests.peers.programs import until
from tests.peers.stage import BROKER, KARPENTER, Machines, Stage, missing

TYPES = ("c5.large", "m5.large", "r5.large")  # the cheapest first
WARM = "m5.xlarge"
PATIENCE = 600.0
NEED = {"cpu": "1500m"}  # fills an instance of two vCPUs


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    unserved: int  # pods without a node when time was up
    idle: int  # reserved slots
    bought: int  # on demand
    dollars: float  # an hour, for these
    seconds: float
    calls: int  # CreateFleet


def measure(*, small: bool) -> Sequence[Figure]:
    """24 pods, then 240: idle slots, bought instances and their cost, calls and time."""
    if reason := missing():
        sys.exit(reason)
    with Stage(poll_seconds=30.0) as stage:
        _warm(stage)
        return [figure for size in ((24,) if small else (24, 240)) for figure in _figures(stage, size)]


def _figures(stage: Stage, size: int) -> list[Figure]:
    bound = size - 3 * (size // 4)
    karpenter, broker = _outcome(stage, KARPENTER, size), _outcome(stage, BROKER, size)

    def figure(name: str, value: Callable[[Outcome], float], unit: str = "", **target: float) -> Figure:
        return Figure(
            name=f"{size} pods: {name}",
            measured=value(broker),
            unit=unit,
            baseline=value(karpenter),
            of="unmodified Karpenter",
            **target,
        )

    return [
        figure("without a node", lambda outcome: outcome.unserved, "pods", most=0),
        figure("idle reserved slots", lambda outcome: outcome.idle, "slots", most=0),
        figure("on-demand launches", lambda outcome: outcome.bought, "instances", most=bound),
        figure("on-demand cost an hour", lambda outcome: round(outcome.dollars, 3), "$"),
        figure("time to the last launch", lambda outcome: outcome.seconds, "s"),
        figure("CreateFleet calls", lambda outcome: outcome.calls),
    ]


def _warm(stage: Stage) -> None:
    """Both have launched before, and know the instance types."""
    stage.offer(
        objects.node_class("warm", stage.aws),
        objects.node_pool("warm", node_class="warm", types=[WARM], capacity=[ON_DEMAND]),
    )
    stage.create(
        objects.pod("warm", pool="warm", requests=NEED),
        objects.claim("warm", node_class="warm", types=[WARM], capacity=[ON_DEMAND]),
    )
    until(lambda: all(claim.status.provider_id for claim in stage.claims()), "first launch of each")


def _outcome(stage: Stage, program: str, size: int) -> Outcome:
    name = f"{program}-{size}"
    odcrs = [stage.aws.odcr(kind, A, size // 4) for kind in TYPES]
    if program == KARPENTER:
        node_class = objects.node_class(name, stage.aws, terms=[{"id": odcr} for odcr in odcrs])
        group = names.KARPENTER_AWS
    else:
        selection = reservation_spec(group=stage.aws.group(*odcrs, name=name))
        node_class, group = objects.node_class(name, stage.aws, spec=selection), names.BROKER
    stage.offer(node_class, objects.node_pool(name, node_class=name, types=TYPES, group=group))
    before = len(stage.calls(program, "CreateFleet"))
    pods = [
        objects.pod(f"{name}-{number}", pool=name, requests=NEED, types=_types_of(number))
        for number in range(size)
    ]
    stage.create(*pods)
    began = datetime.now(UTC)
    # The times come from AWS's log: reading more often would only take the CPU that is measured.
    try:
        until(
            lambda: stage.bound(name) == size,
            f"nodes for all pods by {program}",
            patience=PATIENCE,
            interval=1.0,
        )
    except AssertionError as late:
        sys.stderr.write(f"{late}\nThe figures of {program} are those of that time.\n")
    calls = stage.calls(program, "CreateFleet")[before:]
    ended = [datetime.fromisoformat(call["at"]) for call in calls if call["status"] == 200]
    instance_ids = {claim.instance_id for claim in stage.claims(name)}
    bought = [
        instance
        for instance in stage.aws.instances(own_only=False)
        if instance["InstanceId"] in instance_ids and not instance.get("CapacityReservationId")
    ]
    prices = Machines(stage.endpoint).instance_types()
    return Outcome(
        unserved=size - stage.bound(name),
        idle=sum(stage.aws.free(odcr) for odcr in odcrs),
        bought=len(bought),
        dollars=sum(prices[instance["InstanceType"]].on_demand_price or 0.0 for instance in bought),
        seconds=(max(ended, default=datetime.now(UTC)) - began).total_seconds(),
        calls=len(calls),
    )


def _types_of(number: int) -> tuple[str, ...]:
    return TYPES[:1] if number % 3 == 2 else TYPES


if __name__ == "__main__":
    run(measure)
