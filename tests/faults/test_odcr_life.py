"""The broker's purchases at EC2: killed at each call, responses lost, refusals, and foreign changes.

Invariant: wherever a process ends, after the next one EC2 holds exactly the requested amount. No more
reservations were ever made than that takes, and those of others are unchanged. The calls of
each story are counted in an undisturbed run, so that an added call is walked too. A process is killed after
each call that changes something: that is before the next one as well, and a read leaves no trace.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from broker.apis import names
from broker.apis.core import Event, ResourceQuota
from broker.apis.crds import KIND as CRD
from broker.apis.kueue import ResourceFlavor
from broker.apis.ome import CapacityReservation, ReservationStatus
from broker.controllers.odcr.executor import OdcrExecutor
from broker.controllers.odcr.provisioner import OdcrProvisioner, ProvisioningState
from broker.kube.errors import NotFound
from broker.quota.usage import ReservationKey
from local.aws import LocalAws
from providers.model import owned_prefix
from providers.names import MANAGED_BY, TAG_CLUSTER, TAG_CLUSTER_UID
from tests.cluster.account import A, B, C, tags
from tests.cluster.ome import bought
from tests.cluster.ome.bought import CANCEL, P5
from tests.cluster.ome.reserved import KIND
from tests.faults import walk
from tests.faults.walk import Gate, Killed, Point, World, account, reads, share_clients
from tests.kueue.definitions import definitions
from tests.support.odcr_counts import counts

Json = dict[str, Any]
ZONES = (A, B, C)
LOOPS = ("inventory", "odcrs", "reservation")
RESERVED = ReservationKey("default", "training")
TEAM = {names.TAG_RESERVATION: "default/training"}


class Team(World):
    """A cluster with one flavor, for which the broker may buy on behalf of reservation `training`."""

    def __init__(self, server: LocalAws, number: int) -> None:
        super().__init__(server, number)
        self.settings = replace(self.settings, buy_dollars=10_000.0, buy_zones=",".join(ZONES))
        (flavor_definition,) = [
            d for d in definitions(("v1beta2",)) if d["spec"]["names"]["kind"] == "ResourceFlavor"
        ]
        self.client.create(CRD, flavor_definition)
        self.client.create(ResourceFlavor.KIND, bought.h100())
        # Tagged with the same name, of another cluster, or of no cluster: never this broker's to change.
        self.others = [
            self.foreign(tags_=[(TAG_CLUSTER, "elsewhere"), (MANAGED_BY, "capacity-broker")]),
            self.foreign(kind="m5.large", tags_=[]),
        ]
        self.as_they_were = [self.aws.reservation(odcr_id) for odcr_id in self.others]

    def foreign(self, kind: str = P5, zone: str = A, *, tags_: list[tuple[str, str]]) -> str:
        listed = [{"Key": key, "Value": value} for key, value in [*TEAM.items(), *tags_][:3]]
        if not tags_:
            listed = []
        specifications = [{"ResourceType": "capacity-reservation", "Tags": listed}] if listed else []
        return self.aws.odcr(kind, zone, 1, TagSpecifications=specifications)

    def create_reservation(self, instances: int, **more: Any) -> None:
        self.client.create(KIND, bought.reservation_body(instances, **more))

    def change_quota(self, instances: int) -> None:
        changed = {"spec": bought.reservation_body(instances)["spec"]}
        self.client.patch(KIND, "training", changed, namespace="default")

    def end(self) -> None:
        self.client.delete(KIND, "training", namespace="default")

    def object(self) -> CapacityReservation | None:
        try:
            return CapacityReservation.decode(self.client.get(KIND, "training", namespace="default"))
        except NotFound:
            return None

    def status(self) -> ReservationStatus:
        reservation = self.object()
        assert reservation is not None
        return reservation.status

    # ---- EC2's records

    def purchases(self) -> list[Json]:
        """Everything that this cluster's broker ever made, ended or not, as it is now."""
        reservations = self.aws.ec2.describe_capacity_reservations()["CapacityReservations"]
        managed = [dict(odcr) for odcr in reservations if MANAGED_BY in tags(odcr)]
        return [odcr for odcr in managed if tags(odcr)[TAG_CLUSTER] == self.settings.cluster_name]

    def held(self) -> dict[str, int]:
        """Instances by zone of reservations that have not ended."""
        counts: dict[str, int] = {}
        for purchase in self.purchases():
            if purchase["State"] not in bought.ENDED:
                zone = purchase["AvailabilityZone"]
                counts[zone] = counts.get(zone, 0) + purchase["TotalInstanceCount"]
        return counts

    def grouped(self) -> list[str]:
        """The members of the reservation's group; none where there is no group."""
        name = f"{owned_prefix(self.settings.cluster_name)}default--training"
        try:
            members = self.aws.groups.list_group_resources(Group=name)["Resources"]
        except self.aws.groups.exceptions.NotFoundException:
            return []
        return sorted(member["Identifier"]["ResourceArn"].rpartition("/")[2] for member in members)

    def quiet(self, held: dict[str, int]) -> bool:
        """Whether the broker holds it for done, and EC2 has just this."""
        assert self.process is not None
        state = counts(self.process.broker.reads.snapshot().odcrs.status(RESERVED))
        done = state.obtained == state.wanted == sum(held.values()) and not state.pending
        return (done if held else self.object() is None) and self.held() == held

    def ends(self, story: Story) -> None:
        """Checks the end of the story in EC2's records."""
        purchases = self.purchases()
        alive = [
            purchase["CapacityReservationId"]
            for purchase in purchases
            if purchase["State"] not in bought.ENDED
        ]
        assert self.held() == story.held, picture(self)
        assert len(purchases) <= story.purchases, picture(self)
        assert self.grouped() == sorted(alive), picture(self)
        assert story.held or self.object() is None
        self.untouched()

    def untouched(self) -> None:
        now = [self.aws.reservation(odcr_id) for odcr_id in self.others]
        assert now == self.as_they_were, "a foreign reservation was changed"


Act = Callable[[Team], object]


@dataclass(frozen=True, kw_only=True)
class Story:
    """`act`: the work that a process is killed in. `held`: the final amount of all `purchases`."""

    act: Act
    held: dict[str, int]
    purchases: int
    before: int = 0  # instances that are held when it begins
    hidden: float = 0.0  # for how long EC2 does not show new resources
    first: dict[str, int] | None = None  # the amount before the meanwhile, if it differs
    meanwhile: Act = lambda team: None


def elsewhere(team: Team) -> None:
    """The flavor means the other zone from now on."""
    labels = {"spec": {"nodeLabels": {names.ZONE: B}}}
    team.client.patch(ResourceFlavor.KIND, "h100", labels)


def cancelled_by_hand(team: Team) -> None:
    (purchase,) = team.purchases()
    team.aws.ec2.cancel_capacity_reservation(CapacityReservationId=purchase["CapacityReservationId"])


STORIES = {
    "bought": Story(act=lambda t: t.create_reservation(2, annotations=CANCEL), held={A: 2}, purchases=1),
    # Later than a successor waits for it: the same purchase is made under the same token.
    "bought, and EC2 shows it late": Story(
        act=lambda t: t.create_reservation(2, annotations=CANCEL), held={A: 2}, purchases=1, hidden=420.0
    ),
    "bought, and changed while no process runs": Story(
        act=lambda t: t.create_reservation(2, annotations=CANCEL),
        first={A: 2},
        meanwhile=lambda t: t.change_quota(3),
        held={A: 3},
        purchases=1,
        hidden=60.0,
    ),
    "grown": Story(before=2, act=lambda t: t.change_quota(5), held={A: 5}, purchases=1),
    "shrunk": Story(before=5, act=lambda t: t.change_quota(2), held={A: 2}, purchases=1),
    "moved to another zone": Story(before=2, act=elsewhere, held={B: 2}, purchases=2),
    "cancelled by hand": Story(before=2, act=cancelled_by_hand, held={A: 2}, purchases=2),
    "given back": Story(before=2, act=lambda t: t.end(), held={}, purchases=1),
}


@pytest.fixture
def fresh(local_aws: LocalAws, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalAws]:
    """Clients are shared by all processes; a process has the loops that buy."""
    share_clients(monkeypatch)
    monkeypatch.setattr(walk, "LOOPS", LOOPS)
    account(local_aws, fresh=True)
    yield local_aws
    local_aws.control.reset()


@pytest.mark.parametrize("name", STORIES)
def test_killed_at_each_call(fresh: LocalAws, name: str) -> None:
    story = STORIES[name]
    calls = run(fresh, story, 0, None)
    assert any(call.endswith("CapacityReservation") for call in calls), calls
    changes = [Point(number, "after") for number, call in enumerate(calls) if not reads(call)]
    for number, point in enumerate(changes, start=1):
        try:
            run(fresh, story, number, point)
        except AssertionError as error:
            raise AssertionError(f"killed after call {point.call} of {calls}: {error}") from error


def run(server: LocalAws, story: Story, number: int, point: Point | None) -> list[str]:
    """One world: the calls of its process, until it was killed or had no work left."""
    team = Team(server, number)
    gate = Gate(kill=point)
    process = team.start(gate)
    if story.before:
        team.create_reservation(story.before, annotations=CANCEL)
        process.until(lambda: team.quiet({A: story.before}), "the stage is set")
        process.run(30.0)
    team.hidden = story.hidden
    process.turn()
    gate.armed = True
    try:
        story.act(team)
        first = story.first or story.held
        process.run(30.0)  # until the work is reported, not only done
        process.until(lambda: team.quiet(first), "all is done")
        assert point is None, f"{point} was never reached"
        gate.armed = False
    except Killed:
        process = team.start()
    story.meanwhile(team)
    process.run(30.0)
    process.until(lambda: team.quiet(story.held), "all is done")
    process.run(330.0)
    team.ends(story)
    process.bury()
    return gate.calls


@pytest.mark.covers("CAP-03")
@pytest.mark.parametrize("times", [1, 12], ids=["once", "until the broker gives up"])
@pytest.mark.parametrize(
    ("action", "act", "held", "purchases"),
    [
        ("CreateCapacityReservation", lambda t: t.create_reservation(2, annotations=CANCEL), {A: 2}, 1),
        ("ModifyCapacityReservation", lambda t: t.change_quota(3), {A: 3}, 1),
        ("ModifyCapacityReservation", lambda t: t.change_quota(1), {A: 1}, 1),
        ("CancelCapacityReservation", lambda t: t.end(), {}, 1),
        ("CreateGroup", lambda t: t.create_reservation(2, annotations=CANCEL), {A: 2}, 1),
        ("GroupResources", lambda t: t.create_reservation(2, annotations=CANCEL), {A: 2}, 1),
    ],
    ids=["made", "grown", "shrunk", "cancelled", "group", "grouped"],
)
def test_answers_are_lost(
    fresh: LocalAws, times: int, action: str, act: Act, held: dict[str, int], purchases: int
) -> None:
    team = Team(fresh, 0)
    process = team.start()
    if action not in ("CreateCapacityReservation", "CreateGroup", "GroupResources"):
        team.create_reservation(2, annotations=CANCEL)
        process.until(lambda: team.quiet({A: 2}), "the stage is set")
        process.run(30.0)
    team.control.fault(action=action, stage="response", times=times)
    act(team)
    process.run(60.0)
    team.control.clear_faults()
    process.until(lambda: team.quiet(held), "all is done")
    process.run(400.0)
    team.ends(Story(act=act, held=held, purchases=purchases))


@pytest.mark.covers("CAP-03")
def test_a_purchase_that_may_have_been_made_is_made_again_as_the_same_and_a_new_one_as_another(
    fresh: LocalAws,
) -> None:
    team = Team(fresh, 0)

    def tokens() -> list[str]:
        calls = team.control.log("CreateCapacityReservation")[len(team.others) :]
        return [call["params"]["ClientToken"] for call in calls]

    process = team.start()
    team.create_reservation(2, annotations=CANCEL)
    process.until(lambda: team.quiet({A: 2}), "it has it")
    process.run(300.0)
    # Just the same again, of the same generation, and by one that did not make the first.
    process = team.start()
    cancelled_by_hand(team)
    process.until(lambda: team.quiet({A: 2}), "another one is bought", seconds=90.0)
    assert (len(team.purchases()), len(tokens()), len(set(tokens()))) == (2, 2, 2)
    assert team.control.log("ModifyCapacityReservation") == []  # it was had whole

    team.hidden = 420.0
    team.control.fault(action="CreateCapacityReservation", stage="response", times=12)
    purchase = next(purchase_ for purchase_ in team.purchases() if purchase_["State"] not in bought.ENDED)
    team.aws.ec2.cancel_capacity_reservation(CapacityReservationId=purchase["CapacityReservationId"])
    process.until(lambda: len(team.purchases()) == 3, "it is made, and no process knows")
    process.run(20.0)
    earlier_tokens = tokens()
    process = team.start()  # which knows no more than the object
    team.control.clear_faults()
    process.until(lambda: team.quiet({A: 2}), "it has it")
    assert tokens() == [*earlier_tokens, earlier_tokens[-1]]
    assert (len(team.purchases()), len(set(earlier_tokens))) == (3, 3)
    team.untouched()


def refusals(team: Team) -> list[Event]:
    """The Warnings with an error code of EC2 about a purchase."""
    events = [Event.decode(raw) for raw in team.client.list(Event.KIND)[0]]
    return [event for event in events if event.message.startswith("EC2 refused ")]


@pytest.mark.covers("USR-09")
def test_purchase_that_the_account_may_not_make_is_one_event(fresh: LocalAws) -> None:
    team = Team(fresh, 0)
    team.control.fault(action="CreateCapacityReservation", code="UnauthorizedOperation", status=403, times=-1)
    process = team.start()
    team.create_reservation(2)
    process.run(30.0)
    process.broker.recorder.flush()
    events = [Event.decode(raw) for raw in team.client.list(Event.KIND)[0]]
    warnings = [
        event for event in events if event.type == "Warning" and event.involved_object.name == "training"
    ]
    assert [(event.reason, event.count) for event in warnings] == [("UnauthorizedOperation", 1)]
    problems = process.broker.reads.snapshot().odcrs.status(RESERVED).problems
    (problem,) = [problem_ for problem_ in problems if problem_.reason == "PurchaseRefused"]
    assert re.search(
        r"^flavor h100: .*UnauthorizedOperation.*; the next attempt is at 20\d\d-", problem.message
    )
    assert problem.message in team.status().lifecycle_detail


@pytest.mark.covers("CAP-05", "USR-09")
def test_ec2_refuses_for_an_hour_and_then_gives_half(fresh: LocalAws) -> None:
    team = Team(fresh, 0)
    labels = {"spec": {"nodeLabels": {names.ZONE: None}}}
    team.client.patch(ResourceFlavor.KIND, "h100", labels)  # any zone that offers it
    for zone in ZONES:
        team.control.pool(instance_type=P5, zone=zone, size=0)
    process = team.start()
    team.create_reservation(8)
    process.run(3600.0)
    tries = len(team.control.log("CreateCapacityReservation")) - len(team.others)
    assert team.held() == {} and tries <= 60, tries  # some rounds over the zones, ever more rarely
    status = team.status()
    assert status.capacity_reservation_lifecycle_state == "Creating"
    assert "InsufficientInstanceCapacity" in status.lifecycle_detail
    assert re.search(r"; the next attempt is at 20\d\d-\d\d-\d\dT[\d:]+Z", status.lifecycle_detail)
    process.broker.recorder.flush()
    (event,) = refusals(team)
    assert event.message.startswith(f"EC2 refused 8 {P5} in {ZONES[0]}: ") and event.count > 1
    assert f"other requests were refused ({P5} in {ZONES[0]}, {P5} in {ZONES[1]}, " in event.message
    assert event.message.endswith(", down to 1)")

    team.control.pool(instance_type=P5, zone=B, size=4)
    process.until(lambda: team.held() == {B: 4}, "half is had", seconds=3600.0)
    process.run(60.0)
    state = counts(process.broker.reads.snapshot().odcrs.status(RESERVED))
    assert (state.wanted, state.obtained) == (8, 4)
    detail = team.status().lifecycle_detail
    assert "InsufficientInstanceCapacity" in detail and "4 of 8" in detail, detail

    team.control.pool(instance_type=P5, zone=B, size=8)
    process.until(lambda: team.quiet({B: 8}), "the rest is had", seconds=7200.0)
    assert len(team.purchases()) == 1  # the same one, larger
    process.until(lambda: team.status().capacity_reservation_lifecycle_state == "Active", "it is active")


def test_accounts_limit_is_used_up_and_reported(fresh: LocalAws) -> None:
    team = Team(fresh, 0)
    team.control.quota(instance_type=P5, vcpus=192 * 4)  # one is taken by another account
    process = team.start()
    team.create_reservation(8)
    process.until(lambda: team.held() == {A: 3}, "the limit is used up")
    process.run(60.0)
    (count,) = process.broker.reads.snapshot().odcrs.status(RESERVED).flavors.values()
    assert (count.wanted, count.obtained) == (8, 3)
    assert count.code in team.status().lifecycle_detail and "imit" in count.code
    assert "ask AWS for a higher limit in Service Quotas" in team.status().lifecycle_detail


def test_a_group_that_is_edited_by_hand_is_put_right(fresh: LocalAws) -> None:
    team = Team(fresh, 0)
    process = team.start()
    team.create_reservation(2)
    process.until(lambda: team.quiet({A: 2}) and len(team.grouped()) == 1, "it is there, and grouped")
    (own_id,) = team.grouped()
    arn = process.broker.reads.snapshot().odcrs.status(RESERVED).group_arn
    team.aws.join(arn, team.others[1])
    own_arn = team.aws.reservation(own_id)["CapacityReservationArn"]
    team.aws.groups.ungroup_resources(Group=arn, ResourceArns=[own_arn])
    assert team.grouped() == [team.others[1]]
    process.until(lambda: team.grouped() == [own_id], "the group is as it was")
    team.untouched()


def test_deleted_while_it_is_created(fresh: LocalAws) -> None:
    team = Team(fresh, 0)
    team.control.pool(instance_type=P5, zone=A, size=0)
    process = team.start()
    team.create_reservation(2, annotations=CANCEL)
    process.run(120.0)
    team.end()
    process.until(lambda: team.object() is None, "the object is gone")
    team.control.pool(instance_type=P5, zone=A, size=9)
    process.run(3600.0)
    assert team.purchases() == []


def test_deleted_right_before_a_purchase(fresh: LocalAws, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stale purchases that a broker would make, with an object in its cache that is not deleted."""
    team = Team(fresh, 0)
    process = team.start()
    process.turn()
    buy, ended = OdcrExecutor.buy, threading.Event()

    def late(self: OdcrExecutor, *given: Any) -> None:
        if not ended.is_set():
            team.end()
            ended.set()
        buy(self, *given)

    monkeypatch.setattr(OdcrExecutor, "buy", late)
    team.create_reservation(2, annotations=CANCEL)
    # Nothing was bought: there is nothing to wait for in EC2.
    process.until(lambda: ended.is_set() and team.object() is None, "the object is gone", seconds=120.0)
    process.run(60.0)
    assert team.purchases() == []


def test_deleted_while_the_answer_to_a_purchase_is_lost_and_ec2_shows_it_late(fresh: LocalAws) -> None:
    """The object stays until a possible purchase is seen, and given back."""
    team = Team(fresh, 0)
    process = team.start()
    process.turn()
    team.hidden = 120.0
    team.control.fault(action="CreateCapacityReservation", stage="response", times=12)
    team.create_reservation(2, annotations=CANCEL)
    process.until(lambda: len(team.purchases()) == 1, "it is made, and no process knows")
    team.end()
    process.until(lambda: team.object() is None, "the object is gone")
    assert team.held() == {} and len(team.purchases()) == 1
    team.untouched()


@pytest.mark.covers("CAP-10")
def test_slots_idle_for_long_are_given_back_until_the_spec_changes(fresh: LocalAws) -> None:
    team = Team(fresh, 0)
    team.settings = replace(team.settings, release_idle_seconds=3600.0)
    process = team.start()
    team.create_reservation(3)
    process.until(lambda: team.quiet({A: 3}), "it is there")
    (purchase,) = team.purchases()
    team.aws.rival(purchase["CapacityReservationId"])
    process.run(3000.0)
    process = team.start()  # which saw them idle for a shorter time
    process.run(3000.0)
    assert team.held() == {A: 3}
    process.until(lambda: team.held() == {A: 1}, "the idle instances are given back")
    process.run(7200.0)
    assert team.held() == {A: 1} and len(team.purchases()) == 1
    team.change_quota(4)
    process.until(lambda: team.quiet({A: 4}), "the whole amount is requested again")


@pytest.mark.covers("CAP-06", "SAF-54")
def test_annotation_takes_nothing_from_its_holder_and_the_older_of_two_allowed_claims_wins(
    fresh: LocalAws,
) -> None:
    team = Team(fresh, 0)
    odcr_id = team.aws.odcr(P5, A, 1)
    process = team.start()
    adopts = {names.ADOPT_IDS: odcr_id}
    team.client.create(KIND, bought.reservation_body(1, annotations=adopts))
    process.run(60.0)
    odcrs = process.broker.reads.snapshot().odcrs
    (problem,) = odcrs.status(RESERVED).problems
    assert (odcrs.owned.owner, problem.reason) == ({}, "AdoptionNotAllowed")
    assert "--adopt-by-annotation allow namespace default" in problem.message

    team.settings = replace(team.settings, adopt_by_annotation=f"default={odcr_id}")
    process = team.start()
    process.run(60.0)
    team.tick(1.0)
    team.client.create(KIND, bought.reservation_body(1, name="serving", annotations=adopts))
    process.run(60.0)
    process = team.start()  # which was not there when one of them began
    process.run(60.0)
    odcrs = process.broker.reads.snapshot().odcrs
    assert odcrs.owned.owner == {odcr_id: RESERVED}
    assert odcrs.status(RESERVED).problems == ()
    (problem,) = odcrs.status(ReservationKey("default", "serving")).problems
    assert problem.reason == "ReservationDisputed"
    assert f"{odcr_id} belongs to default/training and stays with it" in problem.message
    status = CapacityReservation.decode(team.client.get(KIND, "serving", namespace="default")).status
    assert "give it the tag capacity-broker.io/reservation" in status.lifecycle_detail
    team.untouched()


@pytest.mark.covers("SAF-54")
def test_group_is_adopted_by_its_tag(fresh: LocalAws) -> None:
    team = Team(fresh, 0)
    odcr_id, arn = adopting(team)
    team.client.create(KIND, bought.reservation_body(1, annotations={names.ADOPT_GROUP: arn}))
    process = team.start()
    process.run(60.0)
    (problem,) = process.broker.reads.snapshot().odcrs.status(RESERVED).problems
    assert problem.reason == "AdoptionNotAllowed"
    # Another cluster's broker keeps it for an object of the same name.
    other_cluster = {TAG_CLUSTER: "prod", TAG_CLUSTER_UID: "uid-of-prod"}
    team.aws.groups.tag(Arn=arn, Tags={names.TAG_RESERVATION: "default/training", **other_cluster})
    process.run(600.0)
    (problem,) = process.broker.reads.snapshot().odcrs.status(RESERVED).problems
    assert problem.reason == "AdoptionNotAllowed"
    assert "is of cluster 'prod' with UID uid-of-prod by its tags" in problem.message
    assert process.broker.reads.snapshot().odcrs.owned.owner == {} and team.purchases() == []
    team.aws.groups.untag(Arn=arn, Keys=[*other_cluster])
    process.until(
        lambda: process.broker.reads.snapshot().odcrs.owned.owner == {odcr_id: RESERVED}, "it is adopted"
    )
    assert process.broker.reads.snapshot().odcrs.status(RESERVED).problems == ()


def adopting(team: Team) -> tuple[str, str]:
    """An instance that is reserved already, in a group for the object to name: its id, the ARN."""
    odcr_id = team.aws.odcr(P5, A, 1)
    return odcr_id, team.aws.group(odcr_id)


@pytest.mark.parametrize("read_before", [True, False])
def test_members_of_an_unreadable_group_are_not_bought_again(fresh: LocalAws, read_before: bool) -> None:
    team = Team(fresh, 0)
    team.settings = replace(team.settings, adopt_by_annotation="default")
    odcr_id, arn = adopting(team)
    process = team.start()
    if read_before:
        team.create_reservation(1, annotations={**CANCEL, names.ADOPT_GROUP: arn})
        process.until(lambda: len(team.grouped()) == 1, "it is adopted")
    team.control.fault(action="ListGroupResources", code="AccessDenied", status=403, times=-1)
    if not read_before:
        team.create_reservation(1, annotations={**CANCEL, names.ADOPT_GROUP: arn})
    process.run(900.0)
    state = process.broker.reads.snapshot().odcrs.status(RESERVED)
    messages = {problem.reason: problem.message for problem in state.problems}
    assert (team.purchases(), counts(state).obtained) == ([], int(read_before))
    # Its own group cannot be read either.
    assert messages.keys() == ({"GroupUnreadable"} if read_before else {"GroupUnreadable", "PurchaseSkipped"})
    assert "AccessDenied" in messages["GroupUnreadable"]
    team.control.clear_faults()
    process.until(lambda: team.grouped() == [odcr_id], "it is adopted")
    assert team.purchases() == []


@pytest.mark.parametrize(
    ("wrong", "reason"), [("{}-mistyped", "GroupNotFound"), ("{}?", "InvalidAnnotation")]
)
def test_a_group_that_is_not_there_is_not_bought_anew(fresh: LocalAws, wrong: str, reason: str) -> None:
    team = Team(fresh, 0)
    team.settings = replace(team.settings, adopt_by_annotation="default")
    odcr_id, arn = adopting(team)
    process = team.start()
    team.create_reservation(1, annotations={**CANCEL, names.ADOPT_GROUP: wrong.format(arn)})
    process.run(300.0)
    reasons = {problem.reason for problem in process.broker.reads.snapshot().odcrs.status(RESERVED).problems}
    assert (team.purchases(), reasons) == ([], {reason, "PurchaseSkipped"})
    right = {"metadata": {"annotations": {names.ADOPT_GROUP: arn}}}
    team.client.patch(KIND, "training", right, namespace="default")
    process.until(lambda: team.grouped() == [odcr_id], "it is adopted")
    assert team.purchases() == []


def test_capacity_beyond_the_namespaces_quota_is_not_bought(fresh: LocalAws) -> None:
    team = Team(fresh, 0)
    hard = {"metadata": {"name": "gpus", "namespace": "default"}, "spec": {"hard": {"nvidia.com/gpu": "8"}}}
    team.client.create(ResourceQuota.KIND, hard)
    process = team.start()
    team.create_reservation(2)
    process.run(300.0)
    (problem,) = process.broker.reads.snapshot().odcrs.status(RESERVED).problems
    assert (team.purchases(), problem.reason) == ([], "PurchaseSkipped")
    assert "ResourceQuota gpus allows nvidia.com/gpu 8" in problem.message
    raised = {"spec": {"hard": {"nvidia.com/gpu": "16"}}}
    team.client.patch(ResourceQuota.KIND, "gpus", raised, namespace="default")
    process.until(lambda: team.quiet({A: 2}), "there is room")


def test_a_launch_after_the_decision_keeps_its_slot(fresh: LocalAws, monkeypatch: pytest.MonkeyPatch) -> None:
    team = Team(fresh, 0)
    process = team.start()
    team.create_reservation(3)
    process.until(lambda: team.quiet({A: 3}), "it is there")
    (purchase,) = team.purchases()
    decided = OdcrProvisioner._act
    kept: list[dict[str, int]] = []

    def landing(
        provisioner: OdcrProvisioner, seen: ProvisioningState
    ) -> tuple[ProvisioningState, Exception | None]:
        for id_ in ("i-1", "i-2") if not kept else ():
            process.broker.inventory.launched(instance_id=id_, odcr_id=purchase["CapacityReservationId"])
        done = decided(provisioner, seen)
        kept.append(team.held())
        return done

    monkeypatch.setattr(OdcrProvisioner, "_act", landing)
    team.change_quota(1)
    process.until(lambda: team.quiet({A: 1}), "EC2 shows that nothing runs there")
    assert kept[0] == {A: 3}


def test_reservation_fails_with_the_reason_if_nothing_may_be_bought(fresh: LocalAws) -> None:
    team = Team(fresh, 0)
    team.settings = replace(team.settings, buy_dollars=0.0)
    process = team.start()
    team.create_reservation(1)

    def failed() -> bool:
        reservation = team.object()
        return reservation is not None and reservation.status.capacity_reservation_lifecycle_state == "Failed"

    process.until(failed, "it has failed", seconds=7200.0)
    assert "--buy-dollars is 0" in team.status().lifecycle_detail


def picture(team: Team) -> str:
    return "\n".join(
        f"{e['CapacityReservationId']} {e['AvailabilityZone']} {e['State']} {e['TotalInstanceCount']}"
        for e in team.purchases()
    )


def test_kept_capacity_of_a_deleted_reservation_is_reported_with_its_cost(fresh: LocalAws) -> None:
    team = Team(fresh, 0)
    process = team.start()
    team.create_reservation(2, annotations={names.RESERVATION_POLICY: "Manage"})
    process.until(lambda: team.quiet({A: 2}), "it is bought")
    (purchase,) = team.purchases()
    team.end()
    process.until(lambda: team.object() is None, "it goes")
    process.broker.recorder.flush()
    events = [Event.decode(raw) for raw in team.client.list(Event.KIND)[0]]
    (event,) = [event_ for event_ in events if event_.reason == "ReservationsKept"]
    hourly = 2 * 55.04
    assert (event.type, event.involved_object.name) == ("Warning", "training")
    assert (
        f"{purchase['CapacityReservationId']} (2 {P5}): 2 instances, {hourly:.2f} dollars an hour"
        in event.message
    )
    assert f"--capacity-reservation-id {purchase['CapacityReservationId']}" in event.message
    assert team.held() == {A: 2}


def test_change_that_ec2_refuses_is_reported_with_its_error_and_next_attempt(
    fresh: LocalAws,
) -> None:
    team = Team(fresh, 0)
    process = team.start()
    team.create_reservation(1, annotations=CANCEL)
    process.until(lambda: team.quiet({A: 1}), "it is bought")
    (purchase,) = team.purchases()
    team.control.fault(action="CancelCapacityReservation", code="UnauthorizedOperation", status=403, times=-1)
    team.end()
    process.run(60.0)
    messages = {
        problem.reason: problem.message
        for problem in process.broker.reads.snapshot().odcrs.status(RESERVED).problems
    }
    assert messages["ChangeRefused"].startswith(
        f"cancelling {purchase['CapacityReservationId']} was refused: "
    )
    assert "UnauthorizedOperation" in messages["ChangeRefused"]
    assert re.search(r"; the next attempt is at 20\d\d-\d\d-\d\dT[\d:]+Z$", messages["ChangeRefused"])
