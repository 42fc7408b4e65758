"""Unmodified Karpenter and the broker, one after the other, with the same needs and reservations.

There are as many reserved slots as needs, in three reservations of three types. Of each three needs two take
any of the types and the third takes only the cheapest. Karpenter has pods and its class names the
reservations. The broker has a NodeClaim for each of Karpenter's pods, and its class names their group. Both
get all needs at once: Karpenter waits for a second without a new pod, the broker's class comes after its
claims. The clock runs from the last pod, or the class, to the response of the last CreateFleet that
launched. Each has half an hour; the needs that are not served by then are a figure too.

Each program is a process of its own: kube-apiserver, etcd, kube-scheduler, local AWS, Karpenter, the broker
(`make peers` builds them).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from benchmarks.figures import Figure, run
from broker.apis.karpenter import NodeClaim
from broker.controllers.nodeclaim.status import instance_id
from tests.cluster.account import A
from tests.cluster.objects import reservation_spec
from tests.peers import objects
from tests.peers.objects import ON_DEMAND
from tests.peers.programs import until
from tests.peers.stage import BROKER, KARPENTER, Stage, missing

TYPES = ("c5.large", "m5.large", "r5.large")  # the cheapest first
WARM = "m5.xlarge"
PATIENCE = 1800.0
NEED = {"cpu": "1500m"}  # an instance each


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    unserved: int  # pods without a node, claims without an instance, when time was up
    idle: int  # reserved slots
    bought: int  # on demand
    seconds: float


def measure(*, small: bool) -> Sequence[Figure]:
    """24 needs for 24 reserved slots, and ten times that: idle slots, bought instances, and the time."""
    if reason := missing():
        sys.exit(reason)
    with Stage(poll_seconds=30.0) as stage:
        _warm(stage)
        return [figure for size in ((24,) if small else (24, 240)) for figure in _figures(stage, size)]


def _figures(stage: Stage, size: int) -> list[Figure]:
    karpenter, broker = _by_karpenter(stage, size), _by_broker(stage, size)
    of = "unmodified Karpenter"
    return [
        Figure(
            name=f"{size} needs: not served",
            measured=broker.unserved,
            most=0,
            unit="needs",
            baseline=karpenter.unserved,
            of=of,
        ),
        Figure(
            name=f"{size} needs: idle reserved slots",
            measured=broker.idle,
            most=0,
            unit="slots",
            baseline=karpenter.idle,
            of=of,
        ),
        Figure(
            name=f"{size} needs: on-demand launches",
            measured=broker.bought,
            most=0,
            unit="instances",
            baseline=karpenter.bought,
            of=of,
        ),
        Figure(
            name=f"{size} needs: time to the last launch",
            measured=broker.seconds,
            unit="s",
            baseline=karpenter.seconds,
            of=of,
        ),
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
    until(lambda: len(_launched(stage.claims())) == 2, "first launch of each")


def _by_karpenter(stage: Stage, size: int) -> Outcome:
    pool = f"karpenter-{size}"
    odcrs = _reserve(stage, size)
    stage.offer(
        objects.node_class(pool, stage.aws, terms=[{"id": odcr} for odcr in odcrs]),
        objects.node_pool(pool, node_class=pool, types=TYPES),
    )
    pods = [
        objects.pod(f"{pool}-{number}", pool=pool, requests=NEED, types=_takes(number))
        for number in range(size)
    ]
    stage.create(*pods)
    # By its pods: it may make more claims than it needs, and let one go again.
    return _outcome(stage, KARPENTER, odcrs, lambda: size - stage.bound(pool), lambda: stage.claims(pool))


def _by_broker(stage: Stage, size: int) -> Outcome:
    name = f"broker-{size}"
    odcrs = _reserve(stage, size)
    group = stage.aws.group(*odcrs, name=name)
    claims = [
        objects.claim(f"{name}-{number}", node_class=name, types=_takes(number), requests=NEED)
        for number in range(size)
    ]
    given = {claim["metadata"]["name"] for claim in claims}
    stage.create(*claims, objects.node_class(name, stage.aws, spec=reservation_spec(group=group)))

    def found() -> list[NodeClaim]:
        return [claim for claim in stage.claims() if claim.name in given]

    return _outcome(stage, BROKER, odcrs, lambda: size - len(_launched(found())), found)


def _outcome(
    stage: Stage,
    who: str,
    odcrs: Sequence[str],
    unserved: Callable[[], int],
    found: Callable[[], list[NodeClaim]],
) -> Outcome:
    """From now, when the last of the needs was given."""
    began = datetime.now(UTC)
    # The times come from AWS's log: reading more often would only take the CPU that is measured.
    try:
        until(lambda: not unserved(), f"launches for all needs by {who}", patience=PATIENCE, look=1.0)
    except AssertionError as late:
        sys.stderr.write(f"{late}\nThe figures of {who} are those of that time.\n")
    ended = [
        datetime.fromisoformat(call["at"])
        for call in stage.calls(who, "CreateFleet")
        if call["status"] == 200
    ]
    mine = {instance_id(claim) for claim in found()}
    described = [i for i in stage.aws.instances(ours=False) if i["InstanceId"] in mine]
    return Outcome(
        unserved=unserved(),
        idle=sum(stage.aws.free(odcr) for odcr in odcrs),
        bought=sum(not instance.get("CapacityReservationId") for instance in described),
        seconds=(max(ended, default=datetime.now(UTC)) - began).total_seconds(),
    )


def _takes(number: int) -> tuple[str, ...]:
    return TYPES[:1] if number % 3 == 2 else TYPES


def _reserve(stage: Stage, slots: int) -> list[str]:
    return [stage.aws.odcr(kind, A, slots // len(TYPES)) for kind in TYPES]


def _launched(claims: Sequence[NodeClaim]) -> list[NodeClaim]:
    return [claim for claim in claims if claim.status.provider_id]


if __name__ == "__main__":
    run(measure)
