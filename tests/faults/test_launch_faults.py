"""EC2, the API server, the network and the clocks fail while claims are launched.

Invariant of each: afterwards every claim has one instance and every instance one claim. No reservation holds
more than its slots, no claim was made again, and meanwhile nothing was launched twice.
"""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pytest

from broker.apis.karpenter import NodeClaim
from broker.kube.client import Client
from broker.kube.errors import ApiError, Unavailable
from broker.kube.tenure import Candidate
from tests.cluster.objects import ON_DEMAND, RESERVED
from tests.faults.walk import Gate, Process, Session, World, held

BOTH = (RESERVED, ON_DEMAND)
MINUTE = 60.0


def started(world: World) -> Process:
    """A process that knows its classes and has nothing to do."""
    process = world.start()
    process.until(lambda: process.broker.inventory.described, "EC2 is described")
    process.turn()
    return process


def all_launched(world: World) -> bool:
    claims = world.all_claims()
    if len(held(claims)) < len(claims) or any(claim.deleting for claim in claims):
        return False
    return sorted(held(claims).values()) == sorted(i["InstanceId"] for i in world.instances())


def fleets(world: World) -> int:
    return int(world.control.calls().get("CreateFleet", 0))


def check(world: World, before: list[NodeClaim], *, launches: int) -> None:
    """The invariant, and how many instances there ever were."""
    assert all_launched(world)
    uids = {claim.name: claim.uid for claim in world.all_claims()}
    assert {claim.name: claim.uid for claim in before}.items() <= uids.items()
    assert len(world.instances(ended=True)) == launches
    inside = Counter(i.get("CapacityReservationId") for i in world.instances())
    for odcr in world.aws.ec2.describe_capacity_reservations()["CapacityReservations"]:
        assert inside[odcr["CapacityReservationId"]] <= odcr["TotalInstanceCount"]


@pytest.mark.covers("KRP-18", "KRP-19", "KRP-25", "KRP-34")
def test_ten_minutes_of_throttling_are_no_shortage(world: World) -> None:
    world.node_class(id_=world.aws.odcr(count=3))
    process = started(world)
    world.control.fault(action="CreateFleet", code="RequestLimitExceeded", status=503, times=-1)
    world.claims(3, capacity=BOTH)
    before = world.all_claims()
    process.run(10 * MINUTE)
    assert not world.instances()
    assert not [*process.broker.launcher.shortages.lasting(world.clock.now())]
    assert fleets(world) <= 6 * 20  # six tries at a time, and ever more time between them
    world.control.clear_faults()
    process.until(lambda: all_launched(world), "they are launched")
    check(world, before, launches=3)
    assert {i["CapacityReservationId"] for i in world.instances()} != {None}


@pytest.mark.covers("KRP-25", "KRP-34")
@pytest.mark.parametrize("lag", [0.0, 2 * MINUTE])
@pytest.mark.parametrize("lost", [1, 4, 9], ids=["once", "a whole call", "call after call"])
def test_call_with_a_lost_reply_is_repeated(world: World, lost: int, lag: float) -> None:
    """Also where EC2 shows the instances late, and other claims have come in between."""
    world.node_class(id_=world.aws.odcr(count=4))
    world.tick(2 * lag)
    world.late(lag)
    process = started(world)
    world.control.fault(action="CreateFleet", stage="response", times=lost)
    world.claims(3)
    process.turn()
    world.claim("new", priority=9)
    before = world.all_claims()
    process.until(lambda: all_launched(world), "they are launched")
    check(world, before, launches=4)


@pytest.mark.covers("KRP-25")
@pytest.mark.parametrize("stage", ["request", "response"])
def test_credentials_that_expire_in_the_middle_of_a_batch(world: World, stage: str) -> None:
    """Of three calls the first is answered; at the second, nothing is any more, for five minutes.

    Once EC2 had carried it out before.
    """
    world.node_class(preference="none")
    process = started(world)
    for number, kind in enumerate(("m5.large", "m5.xlarge", "c5.large")):
        world.claim(f"c-{number}", types=(kind,), capacity=(ON_DEMAND,))
    before = world.all_claims()

    def expire() -> None:
        if stage == "response":
            world.control.fault(action="CreateFleet", stage="response")
            process.gate.at("CreateFleet", refuse)
        else:
            refuse()

    def refuse() -> None:
        world.control.fault(action="*", code="ExpiredToken", status=400, times=-1)

    process.gate.at("CreateFleet", lambda: None, expire)
    process.turn()
    process.run(5 * MINUTE)
    assert len(held(world.all_claims())) == 1
    world.control.clear_faults()
    process.until(lambda: all_launched(world), "they are launched")
    check(world, before, launches=3)


@pytest.mark.covers("KRP-25")
@pytest.mark.parametrize("when", ["CreateFleet", "PATCH /apis/karpenter.sh/v1/nodeclaims/c-1"])
def test_an_api_server_that_is_gone_for_a_minute(world: World, when: str) -> None:
    world.node_class(id_=world.aws.odcr(count=3))
    process = started(world)
    world.claims(3)
    before = world.all_claims()
    process.gate.at(when, lambda: setattr(process.gate, "away", True))
    process.turn()
    assert process.gate.away
    process.run(MINUTE)
    assert fleets(world) <= 1
    process.gate.away = False
    process.until(lambda: all_launched(world), "they are launched")
    check(world, before, launches=3)


@pytest.mark.covers("KRP-25")
def test_a_watch_that_is_dropped_in_the_middle_of_a_batch(world: World) -> None:
    """From the call on the process gets no events: a claim is deleted and another comes meanwhile."""
    world.node_class(id_=world.aws.odcr(count=3))
    process = started(world)
    world.claims(2)
    before = [claim for claim in world.all_claims() if claim.name == "c-0"]

    def cut() -> None:
        process.deaf = True
        world.delete("c-1")
        world.claim("new")

    process.gate.at("CreateFleet", cut)
    process.turn()
    process.run(MINUTE)
    assert "new" not in held(world.all_claims())
    process.deaf = False
    process.until(
        lambda: all_launched(world) and len(world.all_claims()) == 2,
        "every event is received, and all is done",
    )
    check(world, before, launches=len(world.instances(ended=True)))
    assert len(world.instances(ended=True)) <= 3


@pytest.mark.covers("KRP-25")
def test_other_writers_of_the_same_status(world: World) -> None:
    """A foreign condition and annotation change before each write of the broker's, and both stay."""
    world.node_class(id_=world.aws.odcr(count=2))
    process = started(world)
    world.claims(2)
    before = world.all_claims()
    turns = iter(range(1000))

    def meddle() -> None:
        turn = str(next(turns))
        for name in ("c-0", "c-1"):
            world.client.patch(
                NodeClaim.KIND, name, {"metadata": {"annotations": {"example.com/turn": turn}}}
            )
            condition = {
                "type": "example.com/Seen",
                "status": "True",
                "reason": "Seen",
                "message": turn,
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }
            world.client.apply(
                NodeClaim.KIND,
                {"metadata": {"name": name}, "status": {"conditions": [condition]}},
                subresource="status",
            )

    process.gate.at("PATCH /apis/karpenter.sh", *[meddle] * 4)
    process.until(lambda: all_launched(world), "they are launched")
    check(world, before, launches=2)
    assert fleets(world) <= 2  # a claim with three conflicts in a row waits for the next pass
    for claim in world.all_claims():
        assert claim.annotations["example.com/turn"] == "3"
        assert {"Launched", "example.com/Seen"} <= {c.type for c in claim.status.conditions}


class Candidacy:
    """One replica's hold on the Lease, renewed by the test."""

    def __init__(self, world: World, name: str) -> None:
        self.holds = Candidate(
            Client(world.transport), "capacity-broker", "default", name, world.clock, duration=15.0
        )

    def guard(self) -> None:
        if not self.holds.leading:
            raise Unavailable(0, "NotLeading", "the Lease is not held")


@pytest.mark.covers("KRP-25")
@pytest.mark.parametrize(
    "pause",
    ["PATCH /apis/karpenter.sh/v1/nodeclaims/c-2", "CreateFleet", "DescribeInstances"],
    ids=["before its last look at the Lease", "in the middle of the call", "after the call"],
)
def test_a_holder_of_the_lease_that_was_paused_and_wakes(world: World, pause: str) -> None:
    """The other has taken over and launched meanwhile; the late calls of the first change nothing."""
    world.node_class(id_=world.aws.odcr(count=6))
    first, second = Candidacy(world, "first"), Candidacy(world, "second")
    assert first.holds.contend() and not second.holds.contend()
    leader = Process(world, Gate(), first.guard)
    leader.until(lambda: leader.broker.inventory.described, "EC2 is described")
    leader.turn()
    world.claims(3)
    before = world.all_claims()
    assert first.holds.renew()
    others: list[Process] = []

    def paused() -> None:
        while not second.holds.contend():
            world.tick(5.0)
        other = Process(world, Gate(), second.guard)
        others.append(other)
        other.until(lambda: bool(second.holds.renew()) and all_launched(world), "the second launches")
        Session.gate = leader.gate

    sent = fleets(world)
    leader.gate.armed = True
    leader.gate.at(pause, paused)
    try:
        leader.turn()
    except ApiError as error:
        assert error.reason == "NotLeading"
    finally:
        leader.bury()
        for other in others:
            other.bury()
    assert others, "it was never paused"
    check(world, before, launches=3)
    own_launches = leader.gate.calls.count("CreateFleet")
    assert own_launches == (0 if pause.startswith("PATCH") else 1)
    assert fleets(world) - sent <= 2
    writes = [call for call in leader.gate.calls if call.startswith("PATCH")]
    assert len([write for write in writes if "/nodeclaims/" in write]) <= 3, (
        "it wrote to claims after it woke"
    )
    assert len(writes) <= 4, "beside the claims it wrote the record of its call, once"


@pytest.mark.covers("KRP-17", "KRP-25")
def test_a_reservation_that_is_cancelled_between_plan_and_launch(world: World) -> None:
    first, second = world.aws.odcr(count=2), world.aws.odcr("m5.xlarge", count=1)
    world.node_class(group=world.aws.group(first, second, name="team"))
    process = started(world)
    world.claims(2, types=("m5.large", "m5.xlarge"), capacity=BOTH)
    before = world.all_claims()
    process.gate.at(
        "CreateFleet", lambda: world.aws.ec2.cancel_capacity_reservation(CapacityReservationId=first)
    )
    process.until(lambda: all_launched(world), "they are launched")
    check(world, before, launches=2)
    assert sorted(i.get("CapacityReservationId", "") for i in world.instances()) == ["", second]


@pytest.mark.covers("KRP-25", "KRP-30")
def test_two_minutes_of_describe_lag(world: World) -> None:
    """Nothing is launched twice, taken for gone, or put where a slot is taken that EC2 does not show yet."""
    odcr = world.aws.odcr(count=3)
    world.node_class(id_=odcr)
    world.tick(5 * MINUTE)
    world.late(2 * MINUTE)
    process = started(world)
    world.claims(2)
    process.until(lambda: all_launched(world), "they are launched")
    for number in (2, 3):
        world.claim(f"c-{number}", capacity=BOTH)
    before = world.all_claims()
    process.until(lambda: all_launched(world), "the next ones too")
    process.run(6 * MINUTE)
    check(world, before, launches=4)
    assert Counter(i.get("CapacityReservationId") for i in world.instances()) == {odcr: 3, None: 1}
    world.delete("c-0")
    process.until(lambda: all_launched(world) and len(world.all_claims()) == 3, "the claim is gone")


@pytest.mark.covers("KRP-25")
@pytest.mark.parametrize("hours", [-2, 2], ids=["behind", "ahead"])
def test_a_clock_that_is_hours_off_ec2_s(world: World, hours: int) -> None:
    """The process before had another clock: a lost reply's instance is adopted, and no claim changes."""
    world.node_class(id_=world.aws.odcr(count=4))
    process = started(world)
    world.claims(2)
    process.until(lambda: all_launched(world), "they are launched")
    world.claim("c-2")
    world.control.fault(action="CreateFleet", stage="response", times=4)
    process.turn()
    world.clock.skew = timedelta(hours=hours)
    before = world.all_claims()
    process = world.start()
    process.until(lambda: all_launched(world), "the third is adopted")
    process.run(5 * MINUTE)
    check(world, before, launches=3)


@pytest.mark.covers("KRP-25")
def test_an_orphan_has_its_grace_time_by_the_broker_s_own_clock(world: World) -> None:
    world.node_class(id_=world.aws.odcr(count=1))
    process = started(world)
    world.claim("c-0")
    world.control.fault(action="CreateFleet", stage="response", times=4)
    process.turn()
    world.client.patch(NodeClaim.KIND, "c-0", {"metadata": {"finalizers": None}})
    world.delete("c-0")
    world.clock.skew = timedelta(hours=2)  # EC2's launch time is hours ago, as it looks
    process = started(world)
    assert len(world.instances()) == 1
    process.run(world.settings.orphan_grace_seconds / 2)
    assert len(world.instances()) == 1
    process.run(world.settings.orphan_grace_seconds + MINUTE)
    assert not world.instances()
