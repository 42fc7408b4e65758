"""Capacity that somebody moved in EC2 is not bought a second time: a person decides between its two ids."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from broker.apis import names
from broker.apis.core import Event
from broker.reservations.moves import MOVED
from local.aws import LocalAws
from tests.cluster.account import A, B
from tests.cluster.ome import bought
from tests.cluster.ome.bought import MANAGE, P5
from tests.cluster.ome.reserved import KIND
from tests.faults import walk
from tests.faults.test_odcr_life import LOOPS, RESERVED, Team
from tests.faults.test_purchases import patched, problems, purchase_calls
from tests.faults.walk import Process, account, share_clients
from tests.support.odcr_counts import counts


@pytest.fixture
def team(local_aws: LocalAws, monkeypatch: pytest.MonkeyPatch) -> Iterator[Team]:
    share_clients(monkeypatch)
    monkeypatch.setattr(walk, "LOOPS", LOOPS)
    account(local_aws, fresh=True)
    team = Team(local_aws, 0)
    team.settings = replace(team.settings, adopt_by_annotation="default")
    yield team
    local_aws.control.reset()


def holding(team: Team, count: int = 4, **annotations: str) -> tuple[Process, str]:
    """The broker bought this many in one ODCR, and has recorded them."""
    process = team.start()
    team.create_reservation(count, annotations={**MANAGE, **annotations})
    process.until(lambda: team.quiet({A: count}), "it is bought")
    process.run(60.0)
    (purchase,) = team.purchases()
    return process, purchase["CapacityReservationId"]


def total(team: Team, odcr_id: str) -> int:
    odcr = team.aws.reservation(odcr_id)
    return 0 if odcr["State"] in bought.ENDED else odcr["TotalInstanceCount"]


def split(team: Team, source: str, count: int) -> str:
    ec2 = team.aws.ec2
    answer = ec2.create_capacity_reservation_by_splitting(
        SourceCapacityReservationId=source, InstanceCount=count
    )
    return str(answer["DestinationCapacityReservation"]["CapacityReservationId"])


def move(team: Team, source: str, target: str, count: int) -> None:
    team.aws.ec2.move_capacity_reservation_instances(
        SourceCapacityReservationId=source, DestinationCapacityReservationId=target, InstanceCount=count
    )


def lower(team: Team, odcr_id: str, count: int) -> None:
    team.aws.ec2.modify_capacity_reservation(CapacityReservationId=odcr_id, InstanceCount=count)


def spent(team: Team) -> tuple[int, int]:
    """Purchases of the broker, of both kinds."""
    return purchase_calls(team), len(team.control.log("ModifyCapacityReservation"))


def asks(process: Process, team: Team, *ids: str) -> None:
    """The condition and an event have all ids, and nothing is bought for as long as nobody decides."""
    before = spent(team)
    process.until(lambda: MOVED in problems(process), "the move is reported")
    process.run(1800.0)
    assert spent(team) == before
    odcrs = process.broker.reads.snapshot().odcrs.status(RESERVED)
    message = "; ".join(problem.message for problem in odcrs.problems if problem.reason == MOVED)
    (condition,) = [c for c in team.status().conditions if c.type == "ResourcesSufficient"]
    process.broker.recorder.flush()
    events = [Event.decode(item) for item in team.client.list(Event.KIND)[0]]
    warned = [event.message for event in events if event.reason == MOVED and event.type == "Warning"]
    for id_ in ids:
        assert id_ in message and id_ in condition.message and any(id_ in text for text in warned)


def annotate(team: Team, key: str, value: str | None) -> None:
    patched(team, {"metadata": {"annotations": {key: value}}})


def obtained(process: Process) -> int:
    return counts(process.broker.reads.snapshot().odcrs.status(RESERVED)).obtained


def other(team: Team, count: int = 2, kind: str = P5, zone: str = A, **more: Any) -> str:
    """Another reservation of the account, which EC2 matches like the broker's."""
    return team.aws.odcr(kind, zone, count, **more)


@pytest.mark.covers("FLT-02")
def test_split_reservation_is_reported_with_both_ids_until_the_other_is_adopted(team: Team) -> None:
    process, source = holding(team)
    target = split(team, source, 2)
    asks(process, team, source, target)

    annotate(team, names.ADOPT_IDS, target)
    process.until(lambda: obtained(process) == 4, "the other one counts")
    process.run(600.0)
    assert MOVED not in problems(process) and spent(team) == (1, 0)
    assert (total(team, source), total(team, target)) == (2, 2)


@pytest.mark.covers("FLT-02")
def test_move_while_no_broker_runs_is_reported_by_its_successors_until_it_is_restored(team: Team) -> None:
    target = other(team, 1)
    process, source = holding(team)
    move(team, source, target, 3)
    for _ in range(2):
        process = team.start()
        asks(process, team, source, target)

    annotate(team, names.RESTORE_MOVED, target)
    process.until(lambda: total(team, source) == 4, "the source is restored")
    annotate(team, names.RESTORE_MOVED, None)
    process.run(600.0)
    assert MOVED not in problems(process) and (total(team, source), total(team, target)) == (4, 4)


def lowered(team: Team, source: str) -> None:
    lower(team, source, 2)


def in_another_zone(team: Team, source: str) -> None:
    other(team, zone=B)
    lower(team, source, 2)


def of_another_type(team: Team, source: str) -> None:
    other(team, kind="p5.4xlarge")
    lower(team, source, 2)


def of_another_tenancy(team: Team, source: str) -> None:
    other(team, Tenancy="dedicated")
    lower(team, source, 2)


def of_another_platform(team: Team, source: str) -> None:
    team.aws.ec2.create_capacity_reservation(
        InstanceType=P5, AvailabilityZone=A, InstanceCount=2, InstancePlatform="Windows"
    )
    lower(team, source, 2)


def of_another_size(team: Team, source: str) -> None:
    other(team, 3)
    lower(team, source, 2)


def long_before(team: Team, source: str) -> None:
    other(team)
    assert team.process is not None
    team.process.run(900.0)
    lower(team, source, 2)


def also_smaller(team: Team, source: str) -> None:
    target = other(team, 4)
    assert team.process is not None
    team.process.run(900.0)
    lower(team, target, 2)
    lower(team, source, 2)


@pytest.mark.covers("FLT-02")
@pytest.mark.parametrize(
    "smaller",
    [
        lowered,
        in_another_zone,
        of_another_type,
        of_another_tenancy,
        of_another_platform,
        of_another_size,
        long_before,
        also_smaller,
    ],
)
def test_reservation_that_shrank_otherwise_is_restored(
    team: Team, smaller: Callable[[Team, str], object]
) -> None:
    process, source = holding(team)
    smaller(team, source)
    assert total(team, source) == 2
    process.until(lambda: total(team, source) == 4, "it is restored")
    assert MOVED not in problems(process)


def split_twice(team: Team, source: str) -> list[str]:
    return [split(team, source, 1), split(team, source, 2)]


def split_one_by_one(team: Team, source: str) -> list[str]:
    first = split(team, source, 1)
    assert team.process is not None
    team.process.run(900.0)
    return [first, split(team, source, 2)]


def moved_as_a_whole(team: Team, source: str) -> list[str]:
    target = other(team, 1)
    assert team.process is not None
    team.process.run(900.0)
    move(team, source, target, 4)
    return [target]


def split_again(team: Team, source: str) -> list[str]:
    """The capacity goes on to a third one, and the second is cancelled."""
    first, last = split(team, source, 2), other(team, 1)
    assert team.process is not None
    team.process.run(900.0)
    move(team, first, last, 2)
    return [last]


def bought_by_hand_first(team: Team, source: str) -> list[str]:
    target = other(team)
    assert team.process is not None
    team.process.run(120.0)
    lower(team, source, 2)
    return [target]


def shown_lost_first(team: Team, source: str) -> list[str]:
    """EC2 shows the other one only in a later description, to the next broker."""
    lower(team, source, 2)
    assert team.process is not None
    team.process.run(120.0)
    team.start().run(120.0)
    return [other(team)]


def ended_first(team: Team, source: str) -> list[str]:
    """EC2 shows the end of the source, which went as a whole, before the growth of the other."""
    target = other(team, 1)
    assert team.process is not None
    team.process.run(900.0)
    team.aws.ec2.cancel_capacity_reservation(CapacityReservationId=source)
    team.process.run(35.0)
    lower(team, target, 5)
    return [target]


def went_on_and_lost_first(team: Team, source: str) -> list[str]:
    """The second one is cancelled; a third one has its capacity later."""
    first = split(team, source, 2)
    assert team.process is not None
    team.process.run(900.0)
    team.aws.ec2.cancel_capacity_reservation(CapacityReservationId=first)
    team.process.run(35.0)
    return [other(team)]


def joined_from_two(team: Team, source: str) -> list[str]:
    """Capacity of another reservation of the broker goes with it."""
    team.client.create(KIND, bought.reservation_body(3, name="tuning"))
    process = team.process
    assert process is not None
    process.until(lambda: team.held() == {A: 7}, "the other is bought")
    process.run(60.0)
    (beside,) = [p["CapacityReservationId"] for p in team.purchases() if p["CapacityReservationId"] != source]
    target = other(team, 1)
    process.run(900.0)
    move(team, source, target, 2)
    move(team, beside, target, 1)
    return [target]


@pytest.mark.covers("FLT-02")
@pytest.mark.parametrize(
    "moved",
    [
        split_twice,
        split_one_by_one,
        moved_as_a_whole,
        split_again,
        bought_by_hand_first,
        shown_lost_first,
        ended_first,
        went_on_and_lost_first,
        joined_from_two,
    ],
)
def test_capacity_that_moved_in_several_steps_is_not_bought_again(
    team: Team, moved: Callable[[Team, str], list[str]]
) -> None:
    _, source = holding(team)
    targets = moved(team, source)
    assert team.process is not None
    asks(team.process, team, source, *targets)


@pytest.mark.covers("FLT-02")
def test_capacity_that_is_moved_back_or_cancelled_needs_no_decision(team: Team) -> None:
    process, source = holding(team)
    target = split(team, source, 2)
    asks(process, team, source, target)
    move(team, target, source, 2)
    process.until(lambda: MOVED not in problems(process), "it is back")
    assert spent(team) == (1, 0) and obtained(process) == 4

    target = split(team, source, 1)
    asks(process, team, source, target)
    team.aws.ec2.cancel_capacity_reservation(CapacityReservationId=target)
    process.until(lambda: total(team, source) == 4, "nothing holds it any more, so it is restored")


@pytest.mark.covers("FLT-02")
@pytest.mark.parametrize("decided", [False, True], ids=["after a while", "at once by its annotation"])
def test_loss_is_restored_once_no_other_reservation_can_have_it(team: Team, decided: bool) -> None:
    process, source = holding(team)
    lower(team, source, 1)
    process.run(120.0)
    odcrs = process.broker.reads.snapshot().odcrs.status(RESERVED)
    (why,) = [problem.message for problem in odcrs.problems if problem.reason == "PurchaseSkipped"]
    assert f"{source} lost 3 of 4" in why and total(team, source) == 1
    if decided:
        annotate(team, names.RESTORE_MOVED, source)
    process.until(lambda: total(team, source) == 4, "it is restored", seconds=60.0 if decided else 240.0)
    process.run(60.0)
    assert "PurchaseSkipped" not in problems(process)


@pytest.mark.covers("FLT-02")
def test_smaller_quota_than_the_loss_left_needs_nothing(team: Team) -> None:
    process, source = holding(team)
    lower(team, source, 3)
    process.run(60.0)
    team.change_quota(2)
    process.until(lambda: total(team, source) == 2, "it is as small as wanted")
    team.change_quota(4)
    process.until(lambda: total(team, source) == 4, "its own change is no loss", seconds=120.0)


@pytest.mark.covers("FLT-02")
def test_target_of_a_move_between_two_of_the_brokers_is_not_made_smaller(team: Team) -> None:
    process, source = holding(team)
    team.client.create(KIND, bought.reservation_body(2, name="tuning"))
    process.until(lambda: team.held() == {A: 6}, "the other is bought")
    process.run(60.0)
    (target,) = [p["CapacityReservationId"] for p in team.purchases() if p["CapacityReservationId"] != source]
    move(team, source, target, 2)
    asks(process, team, source, target)
    assert (total(team, source), total(team, target)) == (2, 4)

    annotate(team, names.RESTORE_MOVED, source)
    process.until(lambda: (total(team, source), total(team, target)) == (4, 2), "each has its own")


@pytest.mark.covers("FLT-02")
def test_own_changes_of_the_broker_are_no_move(team: Team) -> None:
    """One reservation gives two back while another buys two of the same kind."""
    process, source = holding(team)
    team.change_quota(2)
    team.client.create(KIND, bought.reservation_body(2, name="tuning"))
    process.until(lambda: team.held() == {A: 4} and total(team, source) == 2, "both are as wanted")
    team.change_quota(4)
    process.until(lambda: total(team, source) == 4, "it is bought")
    process = team.start()
    process.run(300.0)
    assert MOVED not in problems(process)
