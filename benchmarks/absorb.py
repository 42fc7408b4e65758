"""A simulated week of a pool with a full reservation: idle slots, restarts, and broken nodes.

The reservation has 100 slots, and 110 from the fourth day on. The load is a sine around 100 claims, from 50
to 150, and grows by a tenth in the week. Claims last eight hours on average. On the second and the fifth day
all nodes drift, and each day a reserved node breaks.

EC2, pods and machines are played: a new node is Ready after 90 s, a drain takes a minute, a reboot three. The
broker's own rules decide: which instance is launched so that EC2 can count it later (`ClosedPlaces`), which
one EC2 counts (`absorbs`), when a slot is idle and which claim moves into it (`choose_moves`), how many nodes
may be away, how long a slot is kept, and when which repair is due (`diagnose`). There are three weeks: EC2
counts a running instance in a slot that becomes free; it does not, and claims move by restarts; it does not,
and none moves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Final

from benchmarks.figures import Figure, run
from benchmarks.plan_world import ACCOUNT
from benchmarks.repairs_played import BREAKS, KARPENTER, Break, outage
from broker.apis.karpenter import Budget
from broker.capacity.absorption import ClosedPlaces, absorbs, lets_absorb
from broker.capacity.inventory import Inventory
from broker.capacity.matching import resolve
from broker.capacity.model import NodeClass, Selection
from broker.capacity.returning import IdleSince, ReturnCandidate, choose_moves, idle_for, observe_idle
from broker.capacity.shortages import Shortages
from broker.capacity.successors import COUNTED
from broker.capacity.supply import LaunchSupply
from broker.controllers.disruption.controller import EVERY
from broker.controllers.disruption.returning import LEAST_IDLE
from broker.placement.disruption_budgets import BudgetLedger, PoolNodes
from broker.placement.repair_policies import DEFAULT
from broker.settings import Settings
from providers.model import Instance, Odcr

SLOTS: Final = 100
GROWN: Final = 110
AT_ONCE: Final = 1  # nodes of the reservation that may be away for a replacement
BEGAN: Final = datetime(2026, 11, 23, tzinfo=UTC)
DAY: Final = 86400.0
READY, DRAIN, LASTS, QUIET = 90.0, 60.0, 8 * 3600.0, 300.0  # seconds
ROLLOUTS: Final = (1.4, 4.4)  # days
GROWS: Final = 3.0  # days
BUDGETS: Final = (Budget(nodes="10%"),)
POOL: Final = "web"
ODCR: Final = "cr-0"
PLACE: Final = ("m5.large", "us-east-1a")
PRICE: Final = 0.096  # dollars an hour, of an m5.large


@dataclass(slots=True)
class WeekClaim:
    """A claim with its node. Times are seconds since the beginning of the week; infinite for never.

    `joins`: when its node is Ready. `replaced`: when its replacement, which runs beside it, is Ready; `into`:
    whether that has a slot, and `moved`: whether it moves for an idle slot. `drains`: when its drain is over.
    `succeeded`: whether its slot is kept for a successor. `dead`: when its broken node is well or ends.
    """

    uid: str
    instance: Instance
    ends: float
    quiet: float
    joins: float
    version: int
    replaced: float = math.inf
    into: bool = False
    moved: bool = False
    drains: float = math.inf
    succeeded: bool = False
    dead: float = math.inf
    reboots: bool = False

    @property
    def reserved(self) -> bool:
        return bool(self.instance.reservation_id)

    @property
    def busy(self) -> bool:
        """Whether it is in a disruption, or about to join."""
        return min(self.replaced, self.drains, self.dead) < math.inf


@dataclass(slots=True)
class WeekTotals:
    """Hours and counts of a week. `missed`: hours on demand beside an idle slot."""

    hours: float = 0.0
    missed: float = 0.0
    dead: float = 0.0  # hours of slots with a broken node
    restarts: int = 0  # for an idle slot
    countable: int = 0  # of these, of instances that EC2 could have counted in the slot
    replaced: int = 0  # by rollouts and repairs
    absorbed: int = 0
    above_budget: int = 0  # passes with more disruptions than the budget allows
    away: int = 0  # nodes of the reservation at once, for replacements


@dataclass(slots=True)
class PlayedWeek:
    """A week of one pool. `absorbing`: EC2 counts running instances in freed slots. `returns`: claims move
    into idle slots.
    """

    absorbing: bool
    returns: bool
    random: Random
    totals: WeekTotals = field(default_factory=WeekTotals)
    claims: list[WeekClaim] = field(default_factory=list)
    idle: IdleSince = field(default_factory=dict)
    successors: list[float] = field(default_factory=list)  # when each launches outside, if its slot is taken
    serial: int = 0
    slots: int = SLOTS
    version: int = 0

    def play(self, days: int) -> WeekTotals:
        now = 0.0
        breaks = [(day + self.random.random()) * DAY for day in range(days)]
        while now < days * DAY:
            self.slots = GROWN if now >= GROWS * DAY else SLOTS
            self.version = sum(now >= day * DAY for day in ROLLOUTS)
            self._finish(now)
            self._succeed(now)
            self._load(now)
            self._absorb()
            if breaks and now >= breaks[0]:
                self._break(now, BREAKS[len(breaks) % len(BREAKS)])
                breaks.pop(0)
            self._replace(now)
            if self.returns:
                self._return(now)
            self._count()
            now += EVERY
        return self.totals

    # ---- EC2

    @property
    def _free(self) -> int:
        """The slots without an instance. A replacement that is launched first has one while it boots."""
        return max(0, self.slots - sum(claim.reserved + claim.into for claim in self.claims))

    @property
    def _open(self) -> int:
        """The slots without an instance that are not kept for a successor."""
        return self._free - len(self.successors)

    @property
    def _odcr(self) -> Odcr:
        return Odcr(
            id=ODCR,
            instance_type=PLACE[0],
            zone=PLACE[1],
            total=self.slots,
            available=self._free,
            match_criteria="open",
            owner_id=ACCOUNT,
        )

    def _absorb(self) -> None:
        """EC2 counts running instances in free slots; it knows nothing of slots that are kept."""
        free = self._free
        if not self.absorbing or not free:
            return
        odcr = self._odcr
        for claim in self.claims:
            if free > 0 and claim.drains == math.inf and absorbs(odcr, claim.instance, {}):
                claim.instance = replace(claim.instance, reservation_id=ODCR)
                self.totals.absorbed += 1
                free -= 1

    # ---- launches

    def _launch(self, now: float, *, reserved: bool, ends: float = 0.0) -> WeekClaim:
        self.serial += 1
        instance = Instance(
            id=f"i-{self.serial}",
            instance_type=PLACE[0],
            zone=PLACE[1],
            state="running",
            reservation_id=ODCR if reserved else "",
            reservation_preference="open" if reserved else self._preference(),
        )
        claim = WeekClaim(
            uid=str(self.serial),
            instance=instance,
            ends=ends or now + self.random.expovariate(1 / LASTS),
            quiet=now + QUIET,
            joins=now + READY,
            version=self.version,
        )
        self.claims.append(claim)
        return claim

    def _preference(self) -> str:
        """Of an instance outside: `open` if EC2 may count it later, by the rules of launches."""
        inventory = Inventory(odcrs={ODCR: self._odcr}, described=BEGAN)
        plain = NodeClass(name=POOL, selection=Selection(preference="open"))
        resolved = resolve(plain, inventory, account_id=ACCOUNT, now=BEGAN)
        node_class = replace(plain, resolved=resolved)
        supply = LaunchSupply(
            classes={POOL: node_class}, types={}, inventory=inventory, shortages=Shortages(), now=BEGAN
        )
        leaving = any(claim.succeeded for claim in self.claims)
        closed = ClosedPlaces([ODCR] if self.successors or leaving else [], supply).of(node_class, "")
        return "open" if lets_absorb(node_class, PLACE) and PLACE not in closed else "none"

    def _load(self, now: float) -> None:
        """Claims come and go. Those that go when the load falls are of random age."""
        share = now / DAY
        target = round(100 * (1 + 0.5 * math.sin(2 * math.pi * share)) * (1 + 0.1 * share / 7))
        self.claims = [claim for claim in self.claims if claim.ends > now or claim.busy]
        running = [claim for claim in self.claims if claim.drains == math.inf]
        count = len(running) + len(self.successors)
        for _ in range(target - count):
            self._launch(now, reserved=self._open > 0)
        leaving = [claim for claim in running if not claim.busy]
        for claim in self.random.sample(leaving, min(len(leaving), max(0, count - target))):
            self.claims.remove(claim)

    # ---- replacements

    def _finish(self, now: float) -> None:
        """Takes each disruption one step further."""
        for claim in [*self.claims]:
            if claim.drains <= now:
                self.claims.remove(claim)
                if claim.succeeded:
                    self.successors.append(now + COUNTED.total_seconds())
            elif claim.replaced <= now:
                fresh = self._launch(now, reserved=claim.into, ends=claim.ends)
                fresh.joins = now
                self.totals.restarts += claim.moved
                self.totals.countable += claim.moved and absorbs(self._odcr, claim.instance, {})
                claim.replaced, claim.into, claim.drains = math.inf, False, now + DRAIN
            elif claim.dead <= now:
                claim.dead = math.inf
                if not claim.reboots:
                    claim.drains, claim.succeeded = now, claim.reserved
                claim.reboots = False

    def _succeed(self, now: float) -> None:
        """Launches the successors: in their slots, or outside if others have these after a minute."""
        for late in [*self.successors]:
            free = self._free > 0
            if free or now >= late:
                self.successors.remove(late)
                self._launch(now, reserved=free)
                self.totals.replaced += 1

    def _away(self, now: float) -> int:
        """The nodes of the reservation whose successors are not Ready."""
        fresh = sum(claim.reserved and claim.joins > now for claim in self.claims)
        return len(self.successors) + fresh + sum(claim.succeeded for claim in self.claims)

    def _ledger(self, now: float) -> BudgetLedger:
        disrupted = sum(claim.busy for claim in self.claims)
        nodes = PoolNodes(total=len(self.claims), disrupted=disrupted, leaving=disrupted)
        return BudgetLedger({POOL: BUDGETS}, {POOL: nodes}, BEGAN + timedelta(seconds=now))

    def _replace(self, now: float) -> None:
        """Replaces drifted nodes: into a free slot, in their own slot, or outside."""
        drifted = [
            claim
            for claim in self.claims
            if claim.version < self.version and not claim.busy and claim.joins <= now
        ]
        if not drifted:
            return
        ledger = self._ledger(now)
        for claim in drifted:
            if not ledger.remaining(POOL, "Drifted"):
                return
            if not claim.reserved or self._open > 0:
                claim.into, claim.replaced = self._open > 0, now + READY
                self.totals.replaced += 1
            elif self._away(now) < AT_ONCE:
                claim.drains, claim.succeeded = now + DRAIN, True
                self.totals.away = max(self.totals.away, self._away(now))
            else:
                continue
            ledger.take(POOL, "Drifted")

    def _break(self, now: float, sign: Break) -> None:
        """Breaks a reserved node, and plans its repair."""
        well = [claim for claim in self.claims if claim.reserved and not claim.busy and claim.joins <= now]
        if not well:
            return
        claim = self.random.choice(well)
        repair = outage(sign, DEFAULT)
        claim.reboots = repair.action == "reboot"
        claim.dead = now + (repair.dead if claim.reboots else repair.until_terminated).total_seconds()
        self.totals.dead += repair.dead / timedelta(hours=1)

    # ---- returns

    def _return(self, now: float) -> None:
        at = BEGAN + timedelta(seconds=now)
        self.idle = observe_idle(self.idle, {ODCR: max(0, self._open)}, at)
        if not idle_for(self.idle, LEAST_IDLE, at):
            return
        ledger = self._ledger(now)
        absorption = timedelta(seconds=Settings.absorption_seconds)
        slots = {
            True: idle_for(self.idle, max(LEAST_IDLE, absorption), at),  # EC2 has time for these first
            False: idle_for(self.idle, LEAST_IDLE, at),
        }
        odcr = self._odcr
        candidates = [
            ReturnCandidate(uid=claim.uid, name=claim.uid, pool=POOL, saving=PRICE, slots=(ODCR,))
            for claim in self.claims
            if not claim.reserved
            and not claim.busy
            and now >= max(claim.quiet, claim.joins)
            and slots[absorbs(odcr, claim.instance, {})]
        ]
        chosen = choose_moves(candidates, slots[False], {POOL: ledger.remaining(POOL, "Underutilized")})
        uids = {candidate.uid for candidate in chosen}
        for claim in self.claims:
            if claim.uid in uids:
                claim.replaced, claim.into, claim.moved = now + READY, True, True
        self.totals.above_budget += not ledger.take(POOL, "Underutilized", len(uids))

    def _count(self) -> None:
        hours = EVERY / 3600
        outside = sum(not claim.reserved and claim.drains == math.inf for claim in self.claims)
        self.totals.hours += outside * hours
        # Its claim does not use the slot of a replacement that boots.
        unused = self.slots - sum(claim.reserved for claim in self.claims)
        self.totals.missed += min(outside, max(0, unused)) * hours


def measure(*, small: bool) -> Sequence[Figure]:
    """A simulated week of 100 slots: hours on demand beside an idle slot, restarts, broken nodes."""
    days = 1 if small else 7

    def week(*, absorbing: bool, returns: bool) -> WeekTotals:
        return PlayedWeek(absorbing=absorbing, returns=returns, random=Random(7)).play(days)

    counted, moved = week(absorbing=True, returns=True), week(absorbing=False, returns=True)
    plain = week(absorbing=False, returns=False)
    return [
        Figure(
            name="hours on demand beside an idle slot",
            measured=100 * counted.missed / counted.hours,
            unit="%",
            most=0.1,
            baseline=100 * moved.missed / moved.hours,
            of="by restarts",
        ),
        Figure(
            name="  the same if EC2 counts no running instance in a freed slot",
            measured=100 * moved.missed / moved.hours,
            unit="%",
            most=5,
            baseline=100 * plain.missed / plain.hours,
            of="no returns",
        ),
        Figure(
            name="restarts of instances that EC2 can count in the slot",
            measured=counted.countable,
            most=0,
            baseline=moved.countable,
            of="by restarts",
        ),
        Figure(
            name="restarts of others: launched while a slot was kept for a successor",
            measured=counted.restarts - counted.countable,
            baseline=moved.restarts - moved.countable,
            of="by restarts",
        ),
        Figure(name="instances that EC2 counted in a slot as they ran", measured=counted.absorbed),
        Figure(
            name="dollars on demand",
            measured=PRICE * counted.hours,
            unit="$",
            baseline=PRICE * plain.hours,
            of="no returns",
        ),
        Figure(name="passes above the budget of 10 %", measured=counted.above_budget, most=0),
        Figure(name="nodes replaced by rollouts and repairs", measured=counted.replaced),
        Figure(name="nodes of the reservation away at once", measured=counted.away, most=AT_ONCE),
        Figure(name="hours of a slot with a broken node, of one a day", measured=counted.dead, unit="h"),
        *_repairs(days),
    ]


def _repairs(days: int) -> Sequence[Figure]:
    """Minutes of a paid slot with a broken node, the mean of the signs."""

    def mean(minutes: Sequence[float]) -> float:
        return sum(minutes) / len(minutes)

    ours, theirs = (
        mean([outage(sign, rules).dead / timedelta(minutes=1) for sign in BREAKS])
        for rules in (DEFAULT, KARPENTER)
    )
    nothing = days * 24 * 60 / 2
    name = "minutes that a paid slot is dead, a broken node"
    return [
        Figure(name=name, measured=ours, baseline=nothing, of="nothing done until the end", most=nothing),
        Figure(name=name, measured=ours, baseline=theirs, of="Karpenter's table, with its gates"),
        Figure(
            name="nodes that a repair keeps, of each hundred broken",
            measured=100 * mean([outage(sign, DEFAULT).action == "reboot" for sign in BREAKS]),
            baseline=100 * mean([outage(sign, KARPENTER).action == "reboot" for sign in BREAKS]),
            of="Karpenter's table, with its gates",
        ),
    ]


if __name__ == "__main__":
    run(measure)
