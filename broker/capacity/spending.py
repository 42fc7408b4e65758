"""What the broker holds of what it bought, against the most that it may hold.

Invariant: whatever a plan buys, instances and dollars an hour stay within the caps, of each reservation and
of all together, counting what is held already, what is about to be replaced, what the same plan bought
before, and what a purchase may have bought whose answer was lost. A reservation costs its type's On-Demand
price for each slot, used or not (EC2 User Guide, "Capacity Reservation pricing and billing"); a type without
a known price is bought only where no cap is in dollars, and where one of it is held, what is spent is not
known: then nothing more is bought under such a cap.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping

from broker.capacity.holdings import Problem, made_here
from broker.capacity.holdings_model import Caps
from broker.quota.usage import Reserved
from providers.model import ENDED_STATES, InstanceType, Odcr

EVERYBODY = Reserved("", "")  # no object has this name
_CAP, _UNKNOWN = "SpendingCapReached", "PriceUnknown"
_PERHAPS = (
    "with {} that a purchase may have made whose answer was lost: EC2 shows them in five minutes or never"
)


def costs(odcrs: Iterable[Odcr], types: Mapping[str, InstanceType]) -> str:
    """How many instances they hold, and what that costs, in words."""
    count, dollars, unpriced = 0, 0.0, set[str]()
    for odcr in odcrs:
        count += odcr.total
        type_ = types.get(odcr.instance_type)
        if type_ is None or type_.on_demand_price is None:
            unpriced.add(odcr.instance_type)
        else:
            dollars += odcr.total * type_.on_demand_price
    without = f" without {', '.join(sorted(unpriced))}, whose price is not known" if unpriced else ""
    return f"{count} instances, {dollars:.2f} dollars an hour{without}"


class Spending:
    """What is held: grows with each purchase of a plan."""

    def __init__(
        self,
        odcrs: Iterable[Odcr],
        owner: Mapping[str, Reserved],
        *,
        cluster: str,
        types: Mapping[str, InstanceType],
        caps: Caps,
    ) -> None:
        self._types = types
        self._caps = caps
        self._instances: Counter[Reserved] = Counter()
        self._dollars: dict[Reserved, float] = {}
        self._unpriced: dict[Reserved, set[str]] = {}  # types held whose price is not known
        self._perhaps: Counter[Reserved] = Counter()  # of the instances, those that may not be there
        for odcr in odcrs:
            if made_here(odcr, cluster) and odcr.state not in ENDED_STATES:
                self.add(owner.get(odcr.id), odcr.instance_type, odcr.total)

    def add(self, reserved: Reserved | None, instance_type: str, count: int) -> None:
        """Whoever's it is, it counts in all."""
        price = self._price(instance_type)
        for whose in {EVERYBODY, reserved or EVERYBODY}:
            self._instances[whose] += count
            if price is None:
                self._unpriced.setdefault(whose, set()).add(instance_type)
            else:
                self._dollars[whose] = self._dollars.get(whose, 0.0) + count * price

    def perhaps(self, reserved: Reserved, counts: Mapping[str, int]) -> None:
        """One of these, of a type each, may be bought and not shown yet: no more than there was room for."""
        most = {name: min(count, self.room(reserved, name)) for name, count in counts.items()}
        if not any(most.values()):
            return
        name = max(sorted(most), key=lambda each: (most[each] * (self._price(each) or 0), most[each]))
        self.add(reserved, name, most[name])
        for whose in {EVERYBODY, reserved}:
            self._perhaps[whose] += most[name]

    def room(self, reserved: Reserved, instance_type: str) -> int:
        """How many more may be bought."""
        return max(0, min(room for room, _, _ in self._rooms(reserved, instance_type, 0)))

    def problem(self, reserved: Reserved, instance_type: str, wanted: int) -> Problem:
        """Why no more than `room` are bought of the `wanted`, and which option would have to be what."""
        room, reason, why = min(self._rooms(reserved, instance_type, wanted))
        return Problem(
            reason=reason,
            message=f"{wanted} more {instance_type} are wanted and {max(0, room)} may be bought: {why}, or "
            "lower the quota",
        )

    def _rooms(self, reserved: Reserved, instance_type: str, wanted: int) -> Iterable[tuple[int, str, str]]:
        caps, price = self._caps, self._price(instance_type)
        for whose, whom, instances, dollars, ending in (
            (reserved, f"for {reserved}", caps.instances_each, caps.dollars_each, "-each"),
            (EVERYBODY, "in all", caps.instances, caps.dollars, ""),
        ):
            perhaps = f" ({_PERHAPS.format(self._perhaps[whose])})" if self._perhaps[whose] else ""
            if not math.isinf(instances):
                has = self._instances[whose]
                yield (
                    int(instances) - has,
                    _CAP,
                    f"{has} instances are bought {whom}{perhaps}, and --buy-instances{ending} is "
                    f"{instances:g}: set it to {has + wanted}",
                )
            if math.isinf(dollars):
                continue
            spent = self._dollars.get(whose, 0.0)
            option = f"--buy-dollars{ending} is {dollars:g}"
            unlimited = "0, which is none" if ending else "inf"
            if price is None:
                yield 0, _UNKNOWN, f"nothing is known of its price, and {option}: set it to {unlimited}"
            elif unpriced := self._unpriced.get(whose):
                listed = ", ".join(sorted(unpriced))
                why = f"nothing is known of the price of {listed}, held {whom}, and {option}"
                yield 0, _UNKNOWN, f"{why}: set it to {unlimited}"
            elif price > 0:
                # What is a whole number is not to become less by the way it is computed.
                room = math.floor((dollars - spent) / price + 1e-9)
                cost = f"one costs {price:.2f} dollars an hour, {spent:.2f} are spent {whom}{perhaps}"
                off = ", so buying is off" if dollars == 0 else ""
                needed = math.ceil((spent + wanted * price) * 100 - 1e-6) / 100
                yield room, _CAP, f"{cost}, and {option}{off}: set it to {needed:.2f} or more"
        yield 1 << 30, _CAP, ""

    def _price(self, instance_type: str) -> float | None:
        type_ = self._types.get(instance_type)
        return None if type_ is None else type_.on_demand_price
