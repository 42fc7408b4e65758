"""A launch killed at each of its calls to EC2 and Kubernetes, one after the other, and started again.

Invariant: wherever the process ends, the next one leaves each claim with one instance and each instance with
one claim. No reservation holds more than its slots, and no claim was made again. The calls of a launch are
counted in an undisturbed run, so that an added call is walked too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from broker.apis import names
from broker.controllers.launch import calls as open_calls
from broker.controllers.launch import waves
from local.aws import LocalAws
from tests.cluster.account import A, B
from tests.cluster.objects import ON_DEMAND, RESERVED
from tests.faults.walk import (
    ENDED,
    Gate,
    Killed,
    Point,
    World,
    account,
    held,
    points,
    records,
    share_clients,
)

BOTH = (RESERVED, ON_DEMAND)


@dataclass(frozen=True, kw_only=True)
class Story:
    """The story of a process while it is walked.

    `stage` makes reservations and class; `act` is the work that the process is killed in; `meanwhile`
    happens while no process runs. `launches` is how many instances there may have been in all, `lag` how late
    EC2 shows them.
    """

    stage: Callable[[World], object]
    act: Callable[[World], object]
    meanwhile: Callable[[World], object] = lambda world: None
    ends: Callable[[World], None] = lambda world: None
    launches: int = 0
    lag: float = 0.0
    launched: tuple[str, ...] = field(default=())  # before the act


def one_reservation(count: int) -> Callable[[World], object]:
    return lambda world: world.node_class(id_=world.aws.odcr(count=count))


def group_then_full(world: World) -> None:
    """Three slots as far as the broker knows, two in truth, and on-demand behind them."""
    odcr = world.aws.odcr(count=3)
    world.node_class(group=world.aws.group(odcr, name=world.settings.cluster_name))
    vars(world)["odcr"] = odcr


def rival_then(claims: Callable[[World], object], count: int = 1) -> Callable[[World], None]:
    """Another account takes slots that the broker still counts as free."""

    def act(world: World) -> None:
        world.aws.rival(vars(world)["odcr"], count)
        claims(world)

    return act


def two_reservations(world: World) -> None:
    """The first is full from the start; the second is another type in another zone."""
    first, second = world.aws.odcr(count=1), world.aws.odcr("m5.xlarge", B, 1)
    world.node_class(group=world.aws.group(first, second, name=world.settings.cluster_name), zones=(A, B))
    vars(world)["odcr"] = first


def plain(world: World) -> None:
    world.node_class(preference="none")


def gang(world: World) -> None:
    world.claims(3, capacity=BOTH, annotations={names.GANG: "train"})


def one_slot_taken(world: World) -> None:
    group_then_full(world)
    world.aws.rival(vars(world)["odcr"])


def refused_once(world: World) -> None:
    """Two of the gang's three are to be in the reservation; the third is refused on demand, at first."""
    world.control.fault(
        action="CreateFleet",
        stage="launch",
        code="InsufficientInstanceCapacity",
        match={"CapacityType": "on-demand"},
    )
    gang(world)


def next_one(world: World) -> None:
    world.delete("c-0")
    world.claim("next")


def whole_or_none(world: World) -> None:
    """All three are in the reservations, or all three on demand: the first two slots are given back."""
    counted = [i.get("CapacityReservationId") for i in world.instances()]
    assert len(set(counted)) == 1, counted


STORIES = {
    "one claim": Story(stage=one_reservation(1), act=lambda w: w.claims(1), launches=1),
    "a batch": Story(stage=one_reservation(3), act=lambda w: w.claims(3), launches=3),
    "a batch, and another claim before the next process": Story(
        stage=one_reservation(4),
        act=lambda w: w.claims(2),
        meanwhile=lambda w: w.claim("new", priority=9),
        launches=3,
    ),
    "on demand": Story(
        stage=plain,
        act=lambda w: w.claims(2, capacity=(ON_DEMAND,), types=("m5.large", "c5.large")),
        launches=2,
    ),
    "a fleet that is partly filled": Story(
        stage=group_then_full, act=rival_then(lambda w: w.claims(3, capacity=BOTH)), launches=3
    ),
    "a refusal, then another reservation": Story(
        stage=two_reservations,
        act=rival_then(lambda w: w.claims(1, types=("m5.large", "m5.xlarge"))),
        launches=1,
    ),
    "a gang": Story(stage=group_then_full, act=gang, ends=whole_or_none, launches=3),
    "a gang that is not whole": Story(stage=group_then_full, act=rival_then(gang), launches=5),
    "a gang of two calls, one of them refused": Story(stage=one_slot_taken, act=refused_once, launches=7),
    "a claim that is deleted": Story(
        stage=one_reservation(2),
        act=lambda w: w.delete("c-1"),
        launched=("c-0", "c-1"),
        launches=2,
    ),
    "a claim with a slot that the next one waits for": Story(
        stage=one_reservation(1),
        act=next_one,
        launched=("c-0",),
        launches=2,
    ),
    "EC2 shows instances late": Story(
        stage=one_reservation(4),
        act=lambda w: w.claims(2),
        meanwhile=lambda w: w.claim("new", priority=9),
        launches=3,
        lag=120.0,
    ),
    "a gang that EC2 shows late": Story(
        stage=group_then_full, act=gang, ends=whole_or_none, launches=3, lag=120.0
    ),
}


@pytest.fixture
def fresh(local_aws: LocalAws, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalAws]:
    """Clients are shared by all processes, calls are made one at a time, and recorded in one place: how many
    of them share a record is chance otherwise, and with it the number of calls.
    """
    share_clients(monkeypatch)
    monkeypatch.setattr(waves, "PARALLEL", 1)
    monkeypatch.setattr(open_calls, "RECORDS", open_calls.RECORDS[:1])
    account(local_aws, fresh=True)
    yield local_aws
    local_aws.control.reset()


@pytest.mark.covers("KRP-22", "KRP-25")
@pytest.mark.parametrize("name", STORIES)
def test_killed_at_each_call(fresh: LocalAws, name: str) -> None:
    story = STORIES[name]
    walked = run(fresh, story, 0, None)
    calls = walked.calls
    assert any(call == "CreateFleet" or call == "TerminateInstances" for call in calls), calls
    reached = 0
    for number, point in enumerate(points(walked), start=1):
        try:
            reached = max(reached, len(run(fresh, story, number, point).calls))
        except AssertionError as error:
            raise AssertionError(f"killed {point.when} call {point.call} of {calls}: {error}") from error
    # The number of polls while a refused pool is short differs from run to run.
    assert reached >= len(calls) / 2


def run(server: LocalAws, story: Story, number: int, point: Point | None) -> Gate:
    """One world: the calls of its process, until it was killed or had no work left."""
    world = World(server, number)
    story.stage(world)
    world.tick(2 * story.lag)
    world.late(story.lag)
    for claim in story.launched:
        world.claim(claim)
    gate = Gate(kill=point)
    process = world.start(gate)
    process.until(lambda: process.broker.inventory.described and all_launched(world), "the stage is set")
    process.turn()
    claim_uids = {claim.name: claim.uid for claim in world.all_claims()}
    gate.armed = True
    try:
        story.act(world)
        claim_uids |= {claim.name: claim.uid for claim in world.all_claims()}
        process.until(lambda: all_launched(world) and not records(world), "all is done, and calls are tidied")
    except Killed:
        story.meanwhile(world)
        process = world.start()
        process.until(lambda: all_launched(world), "the next process launches all")
    process.until(lambda: not records(world), "calls are tidied")
    end(world, story, claim_uids)
    process.bury()
    return gate


def all_launched(world: World) -> bool:
    """Every claim has its own instance, and nothing else runs."""
    claims = world.all_claims()
    if len(held(claims)) < len(claims) or any(claim.deleting for claim in claims):
        return False
    running = sorted(i["InstanceId"] for i in world.instances())
    return sorted(held(claims).values()) == running


def end(world: World, story: Story, claim_uids: dict[str, str]) -> None:
    claims = world.all_claims()
    assert all(claim_uids.get(claim.name, claim.uid) == claim.uid for claim in claims), (
        "a claim was made again"
    )
    listed = world.instances(ended=True)
    assert len(listed) <= story.launches, picture(world)
    inside = Counter(i.get("CapacityReservationId") for i in listed if i["State"]["Name"] not in ENDED)
    for odcr in world.aws.ec2.describe_capacity_reservations()["CapacityReservations"]:
        assert inside[odcr["CapacityReservationId"]] <= odcr["TotalInstanceCount"], odcr
    story.ends(world)


def picture(world: World) -> str:
    lines = [
        f"{claim.name} {'deleting ' if claim.deleting else ''}{claim.status.provider_id} "
        + "; ".join(f"{c.type}={c.status} {c.reason}: {c.message}" for c in claim.status.conditions)
        for claim in world.all_claims()
    ]
    lines += [
        f"{i['InstanceId']} {i['State']['Name']} {i.get('CapacityReservationId', '-')}"
        for i in world.instances(ended=True)
    ]
    return "\n".join(lines)
