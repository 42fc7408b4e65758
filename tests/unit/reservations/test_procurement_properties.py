"""The procurement plan keeps its invariants under any changes around it.

A small EC2 carries out plan after plan: its capacity in each place is finite, foreign instances take and
leave slots, and users cancel reservations and change quotas. After every step: foreign reservations are
untouched, no reservation is below its running instances, the caps hold, and no more is held than was
requested.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from broker.apis import names
from broker.capacity.inventory import Inventory
from broker.quota.usage import ReservationKey
from broker.reservations.desired import (
    LATEST_VISIBLE,
    Caps,
    DesiredCapacity,
    FlavorDemand,
    OdcrChange,
    ProcurementPlan,
    PurchaseSpec,
)
from broker.reservations.ownership import Adopters, OwnershipClaim, resolve_ownership
from broker.reservations.procurement import plan
from broker.reservations.purchases import Purchase, PurchaseIntent
from broker.reservations.refusals import Refusals
from broker.reservations.sizing import InstanceFlavor
from providers.errors import ErrorClass, ProviderError
from providers.model import Odcr
from providers.names import MANAGED_BY, MANAGER, TAG_CLUSTER
from tests.support.examples import examples
from tests.unit.capacity.builders import NOW, ZONES, type_

CLUSTER = "blue"
GPU = "nvidia.com/gpu"
TYPES = {
    instance_type.name: instance_type
    for instance_type in (
        type_("p5.48xlarge", vcpus=192, memory_gib=2048, gpus=8, price=100.0),
        type_("p5.4xlarge", vcpus=16, memory_gib=256, gpus=1, price=13.0),
    )
}
BIG, SMALL = TYPES
FLAVORS = {
    "big": InstanceFlavor(name="big", instance_types=(BIG,), zones=ZONES[:2]),
    "any": InstanceFlavor(name="any", instance_types=(BIG, SMALL), zones=ZONES[1:]),
}
TEAMS = (ReservationKey("a", "gpus"), ReservationKey("b", "gpus"))
Place = tuple[str, str]


@dataclass
class Ec2:
    """The reservations, their usage, and the remaining capacity."""

    room: dict[Place, int]
    odcrs: dict[str, Odcr] = field(default_factory=dict)
    foreign: frozenset[str] = frozenset()
    numbers: itertools.count[int] = field(default_factory=itertools.count)

    def make(self, kind: str, zone: str, count: int, tags: Mapping[str, str]) -> Odcr:
        id_ = f"cr-{next(self.numbers):05d}"
        self.odcrs[id_] = Odcr(
            id=id_,
            instance_type=kind,
            zone=zone,
            total=count,
            available=count,
            match_criteria="targeted",
            tags=dict(tags),
        )
        return self.odcrs[id_]

    def buy(self, purchase: Purchase) -> bool:
        place = (purchase.instance_type, purchase.zone)
        if self.room[place] < purchase.count:
            return False
        self.room[place] -= purchase.count
        if purchase.odcr_id:
            odcr = self.odcrs[purchase.odcr_id]
            assert odcr.active and odcr.total + purchase.count == purchase.total
            free = odcr.available + purchase.count
            self.odcrs[odcr.id] = replace(odcr, total=purchase.total, available=free)
            return True
        tags = {
            TAG_CLUSTER: CLUSTER,
            MANAGED_BY: MANAGER,
            names.TAG_RESERVATION: str(purchase.reserved),
            names.TAG_FLAVOR: purchase.flavor,
        }
        self.make(purchase.instance_type, purchase.zone, purchase.count, tags)
        return True

    def change(self, change: OdcrChange) -> None:
        odcr = self.odcrs[change.odcr_id]
        assert odcr.id not in self.foreign, "it is foreign"
        used = odcr.total - odcr.available
        assert change.count >= used, f"{used} run in {odcr.id}"
        back = odcr.total - change.count
        self.room[odcr.instance_type, odcr.zone] += back
        state = odcr.state if change.count else "cancelled"
        self.odcrs[odcr.id] = replace(odcr, total=change.count, available=odcr.available - back, state=state)

    def alive(self) -> list[Odcr]:
        return [odcr for odcr in self.odcrs.values() if not odcr.over]

    def managed(self) -> list[Odcr]:
        return [odcr for odcr in self.alive() if odcr.id not in self.foreign]


@dataclass
class World:
    ec2: Ec2
    caps: Caps
    now: datetime = NOW
    quotas: dict[ReservationKey, dict[str, int]] = field(default_factory=dict)
    deleted: set[ReservationKey] = field(default_factory=set)
    cancels: bool = False
    intents: tuple[PurchaseIntent, ...] = ()
    refusals: Refusals = field(default_factory=Refusals)
    flavors: dict[str, InstanceFlavor] = field(default_factory=lambda: dict(FLAVORS))

    def plan(self) -> ProcurementPlan:
        claimants = [
            OwnershipClaim(
                reserved=team, flavor_names=tuple(quota), flavors={n: self.flavors[n] for n in quota}
            )
            for team, quota in self.quotas.items()
        ]
        capacities = [
            DesiredCapacity(
                reserved=team,
                demands={
                    n: FlavorDemand(flavor=self.flavors[n], nominal={GPU: float(g)}) for n, g in quota.items()
                },
                flavor_names=tuple(quota),
                terms=PurchaseSpec(),
                deleted=team in self.deleted,
                cancels=self.cancels,
                groups=False,
            )
            for team, quota in self.quotas.items()
        ]
        holdings = resolve_ownership(
            self.ec2.odcrs.values(), {}, claimants, cluster=CLUSTER, adopters=Adopters({})
        )
        return plan(
            capacities,
            Inventory(odcrs=dict(self.ec2.odcrs), described=self.now),
            holdings,
            types=TYPES,
            refusals=self.refusals,
            caps=self.caps,
            cluster=CLUSTER,
            now=self.now,
            intents=self.intents,
        )

    def run_plans(self) -> None:
        """Plan after plan until no step is left."""
        for _ in range(200):
            planned = self.plan()
            before = self.spent()
            for purchase in planned.purchases:
                self.buy(purchase)
            assert self.spent() <= max(before, self.caps.dollars) + 1e-6
            self.each_within(planned)
            had = self.served()
            for change in planned.changes:
                self.ec2.change(change)
            assert all(self.served()[key] >= served for key, served in had.items()), "needed, given back"
            if not (planned.purchases or planned.changes or planned.regroups):
                return
        raise AssertionError("plans without end")

    def buy(self, purchase: Purchase) -> None:
        kind, zone, count = purchase.instance_type, purchase.zone, purchase.count
        assert (kind, zone) in self.flavors[purchase.flavor].places(TYPES)
        assert purchase.reserved not in self.deleted
        assert self.refusals.lasting(kind, zone, count, self.now) is None, "refused just now"
        gpus = self.held(purchase.reserved, purchase.flavor)
        needs = self.quotas[purchase.reserved][purchase.flavor]
        assert gpus < needs, "it has enough"
        size = TYPES[kind].gpus[0].count
        assert gpus + (count - 1) * size < needs, "more than it lacks"
        if self.ec2.buy(purchase):
            self.refusals = self.refusals.succeeded(kind, zone, count)
            return
        error = ProviderError("InsufficientInstanceCapacity", "none", class_=ErrorClass.CAPACITY)
        self.refusals = self.refusals.record(kind, zone, count, error, self.now)

    def held(self, team: ReservationKey, flavor: str) -> int:
        """The GPUs of any source that are held for a flavor in its places."""
        return sum(
            odcr.total * TYPES[odcr.instance_type].gpus[0].count
            for odcr in self.ec2.alive()
            if odcr.tags.get(names.TAG_RESERVATION) == str(team) and self.flavors_of(odcr, team) == [flavor]
        )

    def flavors_of(self, odcr: Odcr, team: ReservationKey) -> list[str]:
        quota = self.quotas[team]
        tagged = odcr.tags.get(names.TAG_FLAVOR)
        among = [tagged] if tagged in quota else quota
        return [name for name in among if self.flavors[name].admits(odcr)]

    def served(self) -> dict[tuple[ReservationKey, str], int]:
        """The held GPUs of each quota."""
        return {
            (team, flavor): min(gpus, self.held(team, flavor))
            for team, quota in self.quotas.items()
            for flavor, gpus in quota.items()
            if team not in self.deleted
        }

    def spent(self) -> float:
        held = [(odcr.instance_type, odcr.total) for odcr in self.ec2.managed()]
        held += [(intent.instance_type, intent.count) for intent in self.intents]
        return sum(count * (TYPES[name].on_demand_price or 0) for name, count in held)

    def each_within(self, planned: ProcurementPlan) -> None:
        for purchase in planned.purchases:
            team = str(purchase.reserved)
            count = sum(odcr.total for odcr in self.ec2.managed() if odcr.tags[names.TAG_RESERVATION] == team)
            assert count <= self.caps.instances_each


PLACES = [(kind, zone) for kind in TYPES for zone in ZONES]
steps = st.one_of(
    st.tuples(st.just("quota"), st.sampled_from(TEAMS), st.sampled_from([*FLAVORS]), st.integers(0, 40)),
    st.tuples(st.just("drop"), st.sampled_from(TEAMS), st.sampled_from([*FLAVORS])),
    st.tuples(st.just("room"), st.sampled_from(PLACES), st.integers(0, 8)),
    st.tuples(st.just("run"), st.integers(0, 5), st.integers(0, 6)),
    st.tuples(st.just("cancel by hand"), st.integers(0, 5)),
    st.tuples(st.just("foreign purchase"), st.sampled_from(TEAMS), st.sampled_from(PLACES[:3])),
    st.tuples(st.just("policy"), st.booleans()),
    st.tuples(st.just("lost reply"), st.sampled_from(TEAMS), st.sampled_from(PLACES), st.integers(0, 3)),
    st.tuples(st.just("delete"), st.sampled_from(TEAMS)),
    st.tuples(st.just("wait"), st.integers(1, 90)),
)


def happen(world: World, event: tuple[object, ...]) -> None:
    kind, *rest = event
    alive = world.ec2.alive()
    match kind, rest:
        case "quota", [ReservationKey() as team, str(flavor), int(gpus)]:
            if team not in world.deleted:
                world.quotas.setdefault(team, {})[flavor] = gpus
        case "drop", [ReservationKey() as team, str(flavor)]:
            world.quotas.get(team, {}).pop(flavor, None)
        case "room", [(str(name), str(zone)), int(count)]:
            world.ec2.room[name, zone] = count
        case "run", [int(at), int(count)] if alive:
            odcr = alive[at % len(alive)]
            used = min(count, odcr.total)
            world.ec2.odcrs[odcr.id] = replace(odcr, available=odcr.total - used)
        case "cancel by hand", [int(at)] if alive:
            odcr = alive[at % len(alive)]
            world.ec2.odcrs[odcr.id] = replace(odcr, state="cancelled", available=0)
        case "foreign purchase", [ReservationKey() as team, (str(name), str(zone))]:
            foreign = world.ec2.make(name, zone, 1, {names.TAG_RESERVATION: str(team)})
            world.ec2.foreign |= {foreign.id}
        case "policy", [bool(cancels)]:
            world.cancels = cancels
        case "lost reply", [ReservationKey() as team, (str(name), str(zone)), int(count)]:
            sent = PurchaseIntent(
                attempt_id="p-1",
                at=world.now - LATEST_VISIBLE,
                reserved=team,
                flavor="big",
                instance_type=name,
                zone=zone,
                count=count,
                match_criteria="open",  # the desired terms differ, so it is not sent again
            )
            world.intents = (sent,) if count else ()
        case "delete", [ReservationKey() as team]:
            world.deleted.add(team)
        case "wait", [int(minutes)]:
            world.now += timedelta(minutes=minutes)


@examples(60)
@given(
    st.lists(steps, max_size=25),
    st.sampled_from([100.0, 450.0, 1e6]),
    st.sampled_from([3.0, float("inf")]),
)
def test_no_purchase_repeats_or_exceeds_the_caps_and_no_foreign_or_used_slot_is_cancelled(
    events: list[tuple[object, ...]], dollars: float, instances_each: float
) -> None:
    world = World(
        ec2=Ec2(room=dict.fromkeys(PLACES, 3)), caps=Caps(dollars=dollars, instances_each=instances_each)
    )
    for event in events:
        happen(world, event)
        world.run_plans()
        assert world.plan().purchases == ()


@given(st.integers(0, 80), st.dictionaries(st.sampled_from(PLACES), st.integers(0, 6)))
def test_all_available_capacity_of_a_flavor_is_obtained(gpus: int, room: dict[Place, int]) -> None:
    """After one round of plans: the quota is served, or no place of the flavor has an instance left."""
    world = World(ec2=Ec2(room=dict.fromkeys(PLACES, 0) | room), caps=Caps(dollars=1e9))
    world.quotas[TEAMS[0]] = {"any": gpus}
    world.run_plans()
    left = sum(world.ec2.room[place] for place in FLAVORS["any"].places(TYPES))
    assert world.held(TEAMS[0], "any") >= gpus or left == 0


@given(st.integers(1, 6), st.integers(0, 6))
def test_a_flavor_that_moves_to_another_zone_is_bought_there_before_it_is_cancelled(
    count: int, room: int
) -> None:
    world = World(ec2=Ec2(room=dict.fromkeys(PLACES, count)), caps=Caps(dollars=1e9))
    old, new = ZONES[:2]
    world.quotas[TEAMS[0]] = {"big": 8 * count}
    world.run_plans()
    world.ec2.room[BIG, new] = room
    world.flavors["big"] = replace(FLAVORS["big"], zones=(new,))
    world.run_plans()
    zones = {zone: sum(o.total for o in world.ec2.managed() if o.zone == zone) for zone in (old, new)}
    assert zones == {old: 0 if room >= count else count, new: min(room, count)}
