"""Faults: in EC2, on the way to it and to the API server, in processes and their clocks."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from broker.kube.errors import ApiError
from providers.aws import errors
from tests.cluster.account import A, B
from tests.simulation import actors
from tests.simulation.setting import BOUGHT, GPUS, MEDIUM, SMALL
from tests.simulation.wire import ApiFault, Killed
from tests.simulation.world import World

Json = dict[str, Any]
Act = Callable[[World, random.Random], None]
ACTIONS = (
    "CreateFleet",
    "DescribeInstances",
    "DescribeCapacityReservations",
    "TerminateInstances",
    "CreateLaunchTemplate",
    "CreateCapacityReservation",
    "ModifyCapacityReservation",
    "CancelCapacityReservation",
    "DescribeLaunchTemplates",
    "*",
)
CHANGES = (
    "CreateFleet",
    "CreateFleet",
    "CreateCapacityReservation",
    "TerminateInstances",
    "CreateLaunchTemplate",
)

# ---- EC2


def scarce(world: World, rng: random.Random) -> None:
    """A pool has little left, or nothing."""
    kind, zone = rng.choice(((SMALL, A), (MEDIUM, B), ("c5.large", A), (GPUS, A), (BOUGHT, A)))
    world.control.pool(instance_type=kind, zone=zone, size=rng.choice((0, 0, 1, 2)))


def plenty(world: World, rng: random.Random) -> None:
    del rng
    world.control.clear_pools()


def end_instance(world: World, rng: random.Random) -> None:
    """An instance is terminated in the console, or fails."""
    if alive := world.instances():
        world.aws.ec2.terminate_instances(InstanceIds=[rng.choice(alive).id])


def rival(world: World, rng: random.Random) -> None:
    """Another user of the account takes a slot, or leaves one."""
    open_ = [o for o in world.odcrs() if o.instance_type in (SMALL, MEDIUM) and o.available > 0]
    rivals = sorted(
        i.id for i in world.all_instances() if world.tags(i.id).get("rival") and i.state == "running"
    )
    if rivals and rng.random() < 0.5:
        world.aws.ec2.terminate_instances(InstanceIds=[rng.choice(rivals)])
    elif open_:
        (instance_id,) = world.aws.rival(rng.choice(open_).id)
        world.aws.ec2.create_tags(Resources=[instance_id], Tags=[{"Key": "rival", "Value": "yes"}])
        world.facts.foreign.add(instance_id)


def end_odcr(world: World, rng: random.Random) -> None:
    """A reservation is cancelled, resized or given an end by a person."""
    alive = [o for o in world.odcrs() if o.usable and o.id not in world.facts.foreign]
    if not alive:
        return
    chosen, draw = rng.choice(alive), rng.random()
    world.facts.shrunk.add(chosen.id)
    if draw < 0.3:
        world.aws.ec2.cancel_capacity_reservation(CapacityReservationId=chosen.id)
    elif draw < 0.8:
        world.aws.ec2.modify_capacity_reservation(
            CapacityReservationId=chosen.id, InstanceCount=max(1, chosen.total + rng.choice((-1, 1, 2)))
        )
    else:
        soon = world.time.now().timestamp() + rng.choice((120, 600, 1200))
        world.aws.ec2.modify_capacity_reservation(
            CapacityReservationId=chosen.id, EndDateType="limited", EndDate=int(soon)
        )


def lag(world: World, rng: random.Random) -> None:
    """EC2's descriptions are behind."""
    world.control.lag(rng.choice((0, 5, 20, 60)))


def slow_slots(world: World, rng: random.Random) -> None:
    world.control.slot_release(rng.choice((0, 30, 120)))


def never_joins(world: World, rng: random.Random) -> None:
    """The machine of an instance never becomes a node."""
    if alive := world.instances():
        world.stubborn.add(rng.choice(alive).id)


# ---- the way to AWS


def throttled(world: World, rng: random.Random) -> None:
    times = rng.choice((1, 2, 5, 12))
    code = rng.choice(("RequestLimitExceeded", "InternalError", "ServiceUnavailable"))
    status = 503 if code == "RequestLimitExceeded" else 500
    world.control.fault(action=rng.choice(ACTIONS), code=code, status=status, times=times)
    world.gate.injected("aws throttled")


def refused(world: World, rng: random.Random) -> None:
    """One pool of a launch has nothing, for a while."""
    code = rng.choice(
        ("InsufficientInstanceCapacity", "ReservationCapacityExceeded", "UnfulfillableCapacity")
    )
    world.control.fault(action="CreateFleet", stage="launch", code=code, times=rng.choice((1, 2, 4)))
    world.gate.injected("aws refused")


def answer_lost(world: World, rng: random.Random) -> None:
    """The work is done and the reply is lost."""
    world.control.fault(action=rng.choice(CHANGES), stage="response", times=rng.choice((1, 1, 2, 4)))
    world.gate.injected("aws answer lost")


# ---- the way to the API server


def api(world: World, rng: random.Random) -> None:
    kinds: tuple[ApiFault, ...] = ("away", "lost", "slow down")
    world.gate.api_faults.extend(rng.choice(kinds) for _ in range(rng.choice((1, 1, 2, 6))))


def watch_expired(world: World, rng: random.Random) -> None:
    """The API server forgets its events: watches begin with a list again."""
    del rng
    world.cluster.compact()


# Of the kinds that decisions are made by.
LATE = (
    *("pods", "nodes", "nodeclaims", "nodepools", "ec2nodeclasses", "poddisruptionbudgets"),
    *("capacityreservations", "clustercapacityreservations", "dedicatedaiclusters", "reservations"),
)


def late_watch(world: World, rng: random.Random) -> None:
    """What happens to objects of one kind is seen only later, by every process."""
    plural = rng.choice(LATE)
    world.gate.late[plural] = world.time.seconds + rng.choice((1.0, 10.0, 60.0))
    world.gate.injected("watch late")


# ---- processes


def kill(world: World, rng: random.Random) -> None:
    """The process that acts is killed at one of its next calls; another starts later."""
    calls = rng.choice((1, 2, 3, 5, 8, 13, 30))
    of = rng.choice(("", "", "CreateFleet", "PATCH", "TerminateInstances", "CreateCapacity", "DELETE"))
    when = rng.choice(("before", "after"))
    wait = rng.choice((0.0, 1.0, 60.0))

    def dies() -> None:
        world.restart_at = world.time.seconds + wait
        raise Killed(of)

    world.gate.arm(calls if not of else min(calls, 3), when, dies, of=of, kind="killed")  # type: ignore[arg-type]


def freeze(world: World, rng: random.Random) -> None:
    """A process is paused, or its machine sleeps: time passes and it does nothing."""
    if world.running:
        process = rng.choice(world.running)
        process.frozen_until = process.clock.monotonic() + rng.choice((10.0, 100.0, 400.0))


def skew(world: World, rng: random.Random) -> None:
    """A process's wall clock is moved."""
    if world.running:
        moved = rng.choice((-300.0, -20.0, 0.0, 15.0, 200.0))
        rng.choice(world.running).clock.skew = moved
        world.facts.ahead = max(world.facts.ahead, moved)


def replace(world: World, rng: random.Random) -> None:
    """A process ends as it should and another begins, as in a roll-out."""
    if world.running:
        process = rng.choice(world.running)
        process.release()
        process.die()
        world.restart_at = world.time.seconds


# ---- in the middle of a step

MEANWHILE: tuple[Act, ...] = (
    actors.claim,
    actors.delete_claim,
    actors.delete_and_make_again,
    actors.touch,
    actors.touch,
    actors.delete_node,
    actors.force_away,
    actors.buy,
    end_instance,
    rival,
    end_odcr,
)
AT = (
    "",
    "CreateFleet",
    "PATCH",
    "TerminateInstances",
    "DescribeInstances",
    "DescribeCapacity",
    "CreateCapacity",
)


def meanwhile(world: World, rng: random.Random) -> None:
    """Something happens between two calls of one step."""
    chosen, of, when = rng.choice(MEANWHILE), rng.choice(AT), rng.choice(("before", "after"))
    inner = random.Random(rng.random())

    def happens() -> None:
        world.gate.trace(f"meanwhile {chosen.__name__}")
        attempt(chosen, world, inner)

    world.gate.arm(rng.choice((1, 2, 4, 9)), when, happens, of=of)  # type: ignore[arg-type]


def usurp(world: World, rng: random.Random) -> None:
    """A leader hangs in a call until its Lease has run out, and the standby has taken steps."""
    if len(world.running) < 2:
        return

    def happens() -> None:
        hanging = next((p for p in world.running if p.leads), None)
        world.time.advance(200.0)
        for process in world.running:
            for _ in range(40):
                steps = process.steps() if process is not hanging else []
                if not steps:
                    break
                process.take(steps[0])

    world.gate.arm(
        rng.choice((1, 2, 3)),
        "before",
        happens,
        of=rng.choice(("CreateFleet", "Terminate", "Create")),
        kind="usurped",
    )


# Faults that happen at once; the others count when they are met.
COUNTED: tuple[Act, ...] = (
    *(scarce, end_instance, rival, end_odcr, lag, slow_slots, never_joins),
    *(watch_expired, freeze, skew, replace),
)


def attempt(act: Act, world: World, rng: random.Random) -> None:
    """Performs the act, and traces a refusal of the server."""
    if act in COUNTED:
        world.gate.injected(act.__name__.replace("_", " "))
    try:
        act(world, rng)
    except ApiError as refusal:
        world.gate.trace(f"refused {refusal.status}")
    except errors.RAISED as refusal:
        world.gate.trace(f"refused {type(refusal).__name__}")
