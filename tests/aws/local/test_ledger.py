"""In any order of events, each instance is in one place and nothing is counted twice."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule

from local.aws.ec2 import changes, matching
from local.aws.ec2.errors import Ec2Error
from local.aws.ec2.launch_needs import ON_DEMAND, CapacityTarget, LaunchNeeds
from local.aws.ec2.reservations import Ec2Reservation, Occupant, PoolKey
from local.aws.ec2.world import AwsWorld

ACCOUNT, REGION, ZONE = "123456789012", "us-east-1", "us-east-1a"
TYPES = ("m5.large", "c5.large")
MACHINES = 6


@dataclass
class Backend:
    account_id: str = ACCOUNT
    region_name: str = REGION
    partition: str = "aws"


@dataclass
class Instance:
    id: str
    state: str = "running"
    state_code: int = 16
    capacity_reservation_id: str | None = None
    capacity_block_id: str | None = None
    more: SimpleNamespace = field(default_factory=SimpleNamespace)


class Life(RuleBasedStateMachine):
    reservations = Bundle("reservations")
    occupants = Bundle("occupants")

    def __init__(self) -> None:
        super().__init__()
        self.world = AwsWorld("aws", "everyone")
        self.world.clock.freeze()
        self.ledger = self.world.ledger
        self.launches = 0
        for instance_type in TYPES:
            self.ledger.limit(PoolKey(ON_DEMAND, instance_type, ZONE), MACHINES)

    @rule(
        target=reservations,
        instance_type=st.sampled_from(TYPES),
        count=st.integers(1, 4),
        criteria=st.sampled_from(["open", "targeted"]),
        hours=st.none() | st.integers(1, 5),
    )
    def reserve(self, instance_type: str, count: int, criteria: str, hours: int | None) -> Any:
        params: dict[str, Any] = {
            "InstanceType": instance_type,
            "InstancePlatform": "Linux/UNIX",
            "AvailabilityZone": ZONE,
            "InstanceCount": count,
            "InstanceMatchCriteria": criteria,
        }
        if hours:
            params |= {
                "EndDate": self.world.clock.now() + timedelta(hours=hours),
                "EndDateType": "limited",
            }
        try:
            return changes.create(self.world, Backend(), params)
        except Ec2Error as refused:
            assert refused.code == "InsufficientInstanceCapacity"
            return multiple()

    @rule(reservation=reservations, count=st.integers(1, 5), criteria=st.sampled_from(["open", "targeted"]))
    def modify(self, reservation: Ec2Reservation, count: int, criteria: str) -> None:
        before = (reservation.total, reservation.match_criteria)
        params = {"InstanceCount": count, "InstanceMatchCriteria": criteria}
        try:
            changes.modify(self.world, reservation, ACCOUNT, params)
        except Ec2Error:
            assert (reservation.total, reservation.match_criteria) == before

    @rule(reservation=reservations)
    def cancel(self, reservation: Ec2Reservation) -> None:
        ended = not reservation.usable
        try:
            changes.cancel(self.world, reservation, ACCOUNT, {})
        except Ec2Error:
            assert ended

    @rule(
        target=occupants,
        instance_type=st.sampled_from(TYPES),
        preference=st.sampled_from([None, "open", "none", "capacity-reservations-only"]),
        count=st.integers(1, 3),
    )
    def launch(self, instance_type: str, preference: str | None, count: int) -> Any:
        return self._launch(instance_type, CapacityTarget(preference), count)

    @rule(target=occupants, reservation=reservations, count=st.integers(1, 3))
    def launch_into(self, reservation: Ec2Reservation, count: int) -> Any:
        free = reservation.available
        launched = self._launch(
            reservation.instance_type, CapacityTarget(reservation_id=reservation.id), count
        )
        assert (len(launched.values) == count) == (free >= count)
        return launched

    def _launch(self, instance_type: str, target: CapacityTarget, count: int) -> Any:
        needs = LaunchNeeds(ACCOUNT, REGION, instance_type, ZONE, "Linux/UNIX", target=target)
        try:
            places = matching.place(self.ledger, needs, at_least=count, at_most=count)
        except Ec2Error:
            return multiple()
        launched = []
        for place in places:
            self.launches += 1
            launched.append(self.ledger.enter(Instance(f"i-{self.launches}"), needs, place))
        return multiple(*launched)

    @rule(occupant=occupants, slow=st.sampled_from([0, 600]))
    def end(self, occupant: Occupant, slow: int) -> None:
        occupant.instance.state = "terminated"
        self.ledger.leave(occupant, slot_free_after=slow)

    @rule(seconds=st.integers(1, 7200))
    def wait(self, seconds: int) -> None:
        self.world.clock.advance(seconds)
        self.ledger.run_due()

    # ---- invariants

    def _places(self) -> list[Ec2Reservation | PoolKey]:
        return [*self.ledger.reservations.values(), *self.ledger._pools]

    @invariant()
    def each_instance_is_in_one_place(self) -> None:
        places_by_instance: dict[str, list[Any]] = {}
        for place in self._places():
            for instance_id in self.ledger._slots(place).occupants:
                places_by_instance.setdefault(instance_id, []).append(place)
        for instance_id, occupant in self.ledger.occupants.items():
            expected = [] if occupant.where is None else [occupant.where]
            assert places_by_instance.get(instance_id, []) == expected
            inside = occupant.where.id if isinstance(occupant.where, Ec2Reservation) else None
            assert occupant.instance.capacity_reservation_id == inside

    @invariant()
    def no_reservation_holds_more_than_it_has(self) -> None:
        for reservation in self.ledger.reservations.values():
            inside = len(reservation.slots.occupants)
            assert inside <= reservation.total
            assert reservation.slots.lingering >= 0
            if reservation.usable:
                assert reservation.available == max(0, reservation.total - reservation.used)
            else:
                assert (inside, reservation.available) == (0, 0)
            assert reservation.history[-1][1:] == reservation.view(self.ledger.now())[1:]

    @invariant()
    def no_pool_is_overdrawn(self) -> None:
        for instance_type in TYPES:
            free = self.ledger.free(ON_DEMAND, instance_type, ZONE)
            assert free is not None
            assert free >= 0

    @invariant()
    def no_instance_waits_outside_an_open_reservation_with_room(self) -> None:
        room = {
            r.instance_type
            for r in self.ledger.reservations.values()
            if r.match_criteria == "open" and r.available
        }
        for occupant in self.ledger.occupants.values():
            target = occupant.needs.target
            if isinstance(occupant.where, PoolKey) and target in (
                CapacityTarget(),
                CapacityTarget("open"),
            ):
                assert occupant.needs.instance_type not in room


TestLife = Life.TestCase
