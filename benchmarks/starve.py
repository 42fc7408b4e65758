"""A gang of 8 at priority 1,000 beside a stream of singles: the wait for its slots.

Twelve reserved slots are full. Each holder ends after half an hour on average, and two singles of priority 0
wait at any time. The planner assigns the free slots every 10 seconds. The gang comes after
half an hour. The baseline is the same without a hold: each slot that becomes free goes to the next single.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from random import Random
from statistics import median
from typing import Final

from benchmarks.figures import Figure, run
from benchmarks.plan_world import ACCOUNT, NOW
from broker.capacity.inventory import Inventory
from broker.capacity.matching import resolve
from broker.capacity.model import Claim, LaunchDefaults, NodeClass, Plan, Selection
from broker.capacity.plan import plan
from broker.capacity.requirements import Requirements
from broker.capacity.shortages import Shortages
from broker.capacity.supply import LaunchSupply
from providers.model import Image, InstanceType, Odcr, Subnet

SLOTS: Final = 12
GANG: Final = 8
HOLD: Final = timedelta(minutes=60)
STEP: Final = timedelta(seconds=10)
LASTS: Final = timedelta(minutes=30)
COMES: Final = timedelta(minutes=30)
ENDS: Final = timedelta(hours=6)
ZONE: Final = "us-east-1a"
TYPE: Final = InstanceType(
    name="p5.48xlarge",
    vcpus=192,
    memory_mib=2**21,
    zones=frozenset({ZONE}),
    on_demand_price=98.32,
    max_pods=100,
)
RESERVED: Final = Requirements.of([("karpenter.sh/capacity-type", "In", ["reserved"])])


@dataclass(slots=True)
class PlayedSlots:
    """Reserved slots, their holders' ends, and the claims that wait."""

    hold: timedelta
    random: Random
    ends: list[datetime] = field(default_factory=list)
    singles: int = 0
    idle: float = 0.0  # hours of slots
    held_late: int = 0  # steps with a held slot after the gang's window

    def play(self) -> timedelta:
        """The time until the gang launches; ENDS if it does not."""
        now = NOW
        self.ends = [now + self._lasts() for _ in range(SLOTS)]
        waiting = [self._single(now) for _ in range(2)]
        gang: list[Claim] = []
        while now < NOW + ENDS:
            if not gang and now >= NOW + COMES:
                gang = [_claim(f"gang-{number}", now, gang="gang", priority=1000) for number in range(GANG)]
            self.ends = [end for end in self.ends if end > now]
            plan = self._planned([*waiting, *gang], now)
            launched = {assignment.claim.uid for assignment in plan.assignments}
            self.ends += [now + self._lasts() for _ in launched]
            if gang and gang[0].uid in launched:
                return now - (NOW + COMES)
            waiting = [claim for claim in waiting if claim.uid not in launched]
            waiting += [self._single(now) for _ in range(2 - len(waiting))]
            self.idle += (SLOTS - len(self.ends)) * (STEP / timedelta(hours=1))
            self.held_late += bool(plan.holds) and now >= NOW + COMES + self.hold
            now += STEP
        return ENDS

    def _planned(self, claims: Sequence[Claim], now: datetime) -> Plan:
        free = SLOTS - len(self.ends)
        odcr = Odcr(
            id="cr-1", instance_type=TYPE.name, zone=ZONE, total=SLOTS, available=free, owner_id=ACCOUNT
        )
        inventory = Inventory(odcrs={odcr.id: odcr}, described=now)
        node_class = NodeClass(
            name="gpu",
            selection=Selection(reservation_id=odcr.id),
            subnets=(Subnet(id="subnet-a", zone=ZONE, zone_id="", available_addresses=99),),
            images=(Image(id="ami-1"),),
            defaults=LaunchDefaults(gang_hold_seconds=self.hold.total_seconds()),
        )
        resolved = resolve(node_class, inventory, account_id=ACCOUNT, now=now)
        classes = {node_class.name: replace(node_class, resolved=resolved)}
        supply = LaunchSupply(
            classes=classes,
            types={TYPE.name: TYPE},
            inventory=inventory,
            shortages=Shortages(),
            now=now,
        )
        return plan(claims, supply)

    def _single(self, now: datetime) -> Claim:
        self.singles += 1
        return _claim(f"single-{self.singles:05}", now)

    def _lasts(self) -> timedelta:
        return LASTS * self.random.expovariate(1)


def _claim(name: str, now: datetime, *, gang: str = "", priority: int = 0) -> Claim:
    return Claim(
        name=name,
        uid=name,
        node_class="gpu",
        requirements=RESERVED,
        priority=priority,
        created=now,
        gang=gang,
    )


def measure(*, small: bool) -> Sequence[Figure]:
    """A gang of 8 beside singles: minutes until it launches, with a hold and without."""
    seeds = range(1 if small else 20)
    held = [PlayedSlots(hold=HOLD, random=Random(seed)) for seed in seeds]
    plain = [PlayedSlots(hold=timedelta(), random=Random(seed)) for seed in seeds]
    with_hold = [_minutes(played.play()) for played in held]
    without = [_minutes(played.play()) for played in plain]
    return [
        Figure(
            name="minutes until the gang launches, at most",
            measured=max(with_hold),
            most=_minutes(HOLD),
            baseline=max(without),
            of="no hold; 360 is never",
        ),
        Figure(
            name="minutes until the gang launches, median",
            measured=median(with_hold),
            baseline=median(without),
            of="no hold; 360 is never",
        ),
        Figure(
            name="gangs launched within one hold",
            measured=sum(minutes <= _minutes(HOLD) for minutes in with_hold),
            least=len(seeds),
            baseline=sum(minutes <= _minutes(HOLD) for minutes in without),
            of="no hold",
        ),
        Figure(
            name="plans that hold a slot after the window", measured=sum(e.held_late for e in held), most=0
        ),
        Figure(
            name="idle slot hours until then",
            measured=sum(played.idle for played in held) / len(held),
            baseline=sum(played.idle for played in plain) / len(plain),
            of="no hold",
        ),
    ]


def _minutes(time: timedelta) -> float:
    return time / timedelta(minutes=1)


if __name__ == "__main__":
    run(measure)
