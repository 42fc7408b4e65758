"""What the broker buys of EC2, killed at each of its calls, with answers lost, refusals, and hands in between.

Invariant: wherever a process ends, after the next one has settled EC2 holds exactly what the reservation asks
for, no more reservations were ever made than that takes, and what somebody else made is as it was. What each
story sends is counted in an undisturbed run, so that a call that is added is walked too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest

from broker.apis import names
from broker.apis.crds import KIND as CRD
from broker.apis.kueue import ResourceFlavor
from broker.apis.ome import CapacityReservation
from broker.kube.errors import NotFound
from providers.aws import clients
from providers.local import LocalAws
from tests.cluster.account import A, B, tags
from tests.cluster.ome import bought
from tests.cluster.ome.bought import CANCEL, KIND, P5
from tests.faults import walk
from tests.faults.walk import Gate, Killed, Point, Session, World, account, points
from tests.kueue.definitions import definitions

Json = dict[str, Any]
LOOPS = ("inventory", "holdings", "reservation")
TEAM = {names.TAG_RESERVATION: "default/training"}


class Team(World):
    """A cluster with one flavor, whose reservation `training` the broker may buy for."""

    def __init__(self, server: LocalAws, number: int) -> None:
        super().__init__(server, number)
        self.settings = replace(self.settings, buy_dollars=10_000.0)
        (made,) = [d for d in definitions(("v1beta2",)) if d["spec"]["names"]["kind"] == "ResourceFlavor"]
        self.client.create(CRD, made)
        self.client.create(ResourceFlavor.KIND, bought.h100())
        # Whose name says the same, of another cluster, or of nobody: never this broker's to change.
        self.others = [
            self.foreign(tags_=[(names.TAG_CLUSTER, "elsewhere"), (names.TAG_MANAGED, "capacity-broker")]),
            self.foreign(kind="m5.large", tags_=[]),
        ]
        self.as_they_were = [self.aws.reservation(each) for each in self.others]

    def foreign(self, kind: str = P5, zone: str = A, *, tags_: list[tuple[str, str]]) -> str:
        listed = [{"Key": key, "Value": value} for key, value in [*TEAM.items(), *tags_][:3]]
        if not tags_:
            listed = []
        specifications = [{"ResourceType": "capacity-reservation", "Tags": listed}] if listed else []
        return self.aws.odcr(kind, zone, 1, TagSpecifications=specifications)

    def ask(self, instances: int, **more: Any) -> None:
        self.client.create(KIND, bought.wanted(instances, **more))

    def ask_for(self, instances: int) -> None:
        changed = {"spec": bought.wanted(instances)["spec"]}
        self.client.patch(KIND, "training", changed, namespace="default")

    def end(self) -> None:
        self.client.delete(KIND, "training", namespace="default")

    def object(self) -> CapacityReservation | None:
        try:
            return CapacityReservation.decode(self.client.get(KIND, "training", namespace="default"))
        except NotFound:
            return None

    # ---- what EC2 says

    def made(self) -> list[Json]:
        """Everything that this cluster's broker ever made, ended or not, as it is now."""
        self.control.lag(0)
        found = self.aws.ec2.describe_capacity_reservations()["CapacityReservations"]
        self.control.lag(self.lag)
        mine = [dict(each) for each in found if names.TAG_MANAGED in tags(each)]
        return [each for each in mine if tags(each)[names.TAG_CLUSTER] == self.settings.cluster_name]

    def held(self) -> dict[str, int]:
        """Instances by zone of what has not ended."""
        found: dict[str, int] = {}
        for each in self.made():
            if each["State"] not in bought.ENDED:
                zone = each["AvailabilityZone"]
                found[zone] = found.get(zone, 0) + each["TotalInstanceCount"]
        return found

    def grouped(self) -> list[str]:
        """The members of the reservation's group; none where there is no group."""
        name = f"capacity-broker-{self.settings.cluster_name}-default--training"
        try:
            found = self.aws.groups.list_group_resources(Group=name)["Resources"]
        except self.aws.groups.exceptions.NotFoundException:
            return []
        return sorted(each["Identifier"]["ResourceArn"].rpartition("/")[2] for each in found)

    def complete(self, held: dict[str, int]) -> Callable[[], bool]:
        """Whether just this is held, and grouped, and the object says that it is there."""

        def so() -> bool:
            if self.held() != held:
                return False
            alive = [e["CapacityReservationId"] for e in self.made() if e["State"] not in bought.ENDED]
            one = self.object()
            if one is None:
                return not held
            return self.grouped() == sorted(alive) and not one.deleting

        return so

    def untouched(self) -> None:
        self.control.lag(0)
        now = [self.aws.reservation(each) for each in self.others]
        assert now == self.as_they_were, "somebody else's reservation was changed"


@dataclass(frozen=True, kw_only=True)
class Story:
    """`act` is what a process is killed over, `held` what EC2 holds in the end, of so many ever `made`."""

    act: Callable[[Team], object]
    held: dict[str, int]
    made: int
    before: int = 0  # instances that are held when it begins
    lag: float = 0.0  # how late EC2 shows things
    first: dict[str, int] | None = None  # what is held before the meanwhile, where that is another
    meanwhile: Callable[[Team], object] = lambda team: None


def elsewhere(team: Team) -> None:
    """The flavor means the other zone from now on."""
    labels = {"spec": {"nodeLabels": {names.ZONE: B}}}
    team.client.patch(ResourceFlavor.KIND, "h100", labels)


def cancelled_by_hand(team: Team) -> None:
    (made,) = team.made()
    team.aws.ec2.cancel_capacity_reservation(CapacityReservationId=made["CapacityReservationId"])


STORIES = {
    "bought": Story(act=lambda t: t.ask(2, annotations=CANCEL), held={A: 2}, made=1),
    "bought, and EC2 shows it late": Story(
        act=lambda t: t.ask(2, annotations=CANCEL), held={A: 2}, made=1, lag=120.0
    ),
    "bought, and asked otherwise while nobody runs": Story(
        act=lambda t: t.ask(2, annotations=CANCEL),
        first={A: 2},
        meanwhile=lambda t: t.ask_for(3),
        held={A: 3},
        made=1,
        lag=60.0,
    ),
    "grown": Story(before=2, act=lambda t: t.ask_for(5), held={A: 5}, made=1),
    "shrunk": Story(before=5, act=lambda t: t.ask_for(2), held={A: 2}, made=1),
    "moved to another zone": Story(before=2, act=elsewhere, held={B: 2}, made=2),
    "cancelled by hand": Story(before=2, act=cancelled_by_hand, held={A: 2}, made=2),
    "given back": Story(before=2, act=lambda t: t.end(), held={}, made=1),
}


@pytest.fixture
def fresh(local_aws: LocalAws, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalAws]:
    """Clients are shared by all processes; a process has the loops that buy."""
    monkeypatch.setattr(clients, "boto3", SimpleNamespace(Session=Session))
    monkeypatch.setattr(walk, "LOOPS", LOOPS)
    account(local_aws, fresh=True)
    yield local_aws
    local_aws.control.reset()


@pytest.mark.parametrize("name", STORIES)
def test_killed_at_each_call(fresh: LocalAws, name: str) -> None:
    story = STORIES[name]
    calls = run(fresh, story, 0, None)
    assert any(call.endswith("CapacityReservation") for call in calls), calls
    for number, point in enumerate(points(calls), start=1):
        try:
            run(fresh, story, number, point)
        except AssertionError as error:
            raise AssertionError(f"killed {point.when} call {point.call} of {calls}: {error}") from error


def run(server: LocalAws, story: Story, number: int, point: Point | None) -> list[str]:
    """One world: what its process sent, until it was killed or nothing was left to do."""
    team = Team(server, number)
    gate = Gate(kill=point)
    process = team.start(gate)
    if story.before:
        team.ask(story.before, annotations=CANCEL)
        process.until(team.complete({A: story.before}), "the stage is set")
        process.run(30.0)
    team.late(story.lag)
    process.turn()
    gate.armed = True
    try:
        story.act(team)
        process.until(team.complete(story.first or story.held), "all is done")
        assert point is None, f"{point} was never reached"
        gate.armed = False
    except Killed:
        process = team.start()
    story.meanwhile(team)
    process.until(team.complete(story.held), "all is settled")
    process.run(330.0)
    assert team.held() == story.held, picture(team)
    assert len(team.made()) <= story.made, picture(team)
    team.untouched()
    process.bury()
    return gate.calls


def picture(team: Team) -> str:
    return "\n".join(
        f"{e['CapacityReservationId']} {e['AvailabilityZone']} {e['State']} {e['TotalInstanceCount']}"
        for e in team.made()
    )
