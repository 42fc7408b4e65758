"""Spending on ODCRs that the broker bought, against the caps.

Invariant: whatever a plan buys, instances and dollars an hour stay within the caps of each reservation, of
each namespace and of all together. These count:

- owned ODCRs, also those about to be replaced or no longer described,
- earlier purchases of the same plan,
- purchases that EC2 may have made and does not show.

An ODCR costs the On-Demand price of its type, platform and tenancy for each slot, used or not (EC2 User
Guide, "Capacity Reservation pricing and billing"). Without a known price an ODCR is bought only if no cap is
in dollars. While one is owned, spending is unknown, and nothing is bought under such a cap.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping

from broker.apis import names
from broker.quota.usage import ReservationKey
from broker.reservations.desired import Caps
from broker.reservations.ownership import ReservationProblem, made_here, named_in
from broker.text import counted
from providers.model import PLAIN_OFFER, InstanceType, Odcr
from providers.prices import Product, product_of, region_code, slot_price, usd_hour

_CAP, _UNKNOWN = "SpendingCapReached", "PriceUnknown"
Scope = tuple[str, ...]  # (), (namespace,) or (namespace, name)
ALL: Scope = ()


def costs(odcrs: Iterable[Odcr], types: Mapping[str, InstanceType]) -> str:
    """The instances of these ODCRs and their cost, as text."""
    count, dollars, unpriced = 0, 0.0, set[str]()
    for odcr in odcrs:
        count += odcr.reserved
        unit_price = slot_price(types, odcr)
        if unit_price is None:
            unpriced.add(product_text(product_of(odcr)) + _in_zone(odcr.zone))
        else:
            dollars += odcr.reserved * unit_price
    without = f" without the unknown price of {', '.join(sorted(unpriced))}" if unpriced else ""
    return f"{counted(count, 'instance')}, {dollars:.2f} dollars an hour{without}"


def odcr_text(odcr: Odcr) -> str:
    """`3 p5.48xlarge in us-east-1a`, with terms that are not the defaults."""
    open_ = ", open to any matching instance" if odcr.match_criteria == "open" else ""
    return f"{odcr.total} {product_text(product_of(odcr))} in {odcr.zone}{open_}"


class Spending:
    """Instances and dollars that count; grows with each purchase of a plan."""

    def __init__(
        self,
        odcrs: Iterable[Odcr],
        owner: Mapping[str, ReservationKey],
        *,
        cluster: str,
        types: Mapping[str, InstanceType],
        caps: Caps,
    ) -> None:
        self._types = types
        self._caps = caps
        self._instances: Counter[Scope] = Counter()
        self._dollars: dict[Scope, float] = {}
        self._unpriced: dict[Scope, set[str]] = {}  # held products without a known price
        self._unshown: Counter[Scope] = Counter()  # of the instances, those that EC2 does not show
        for odcr in odcrs:
            if made_here(odcr, cluster) and not odcr.over and not odcr.prepaid:
                self.add(named_in(odcr) or owner.get(odcr.id), product_of(odcr), odcr.reserved)

    def add(
        self, reserved: ReservationKey | None, product: Product, count: int, *, shown: bool = True
    ) -> None:
        """Counts for the reservation, its namespace and all. `shown`: EC2 describes it."""
        unit_price = usd_hour(self._types, product)
        for scope in _scopes(reserved):
            self._instances[scope] += count
            if not shown:
                self._unshown[scope] += count
            if unit_price is None:
                self._unpriced.setdefault(scope, set()).add(product_text(product) + _in_zone(product.zone))
            else:
                self._dollars[scope] = self._dollars.get(scope, 0.0) + count * unit_price

    def room(self, reserved: ReservationKey, product: Product) -> int:
        """Instances that may still be bought; below 0 if a cap is exceeded already."""
        return min(room for room, _, _ in self._rooms(reserved, product, 0))

    def problem(
        self, reserved: ReservationKey, product: Product, wanted: int, *, below: int
    ) -> ReservationProblem:
        """Why not all of the `wanted` are bought. It gives the cost of all, and the value that each limiting
        option needs, the widest scope first. `below`: the instances that the flavor could have with a part
        of them, if none is bought because that is below its minimum.
        """
        rooms = [limit for limit in self._rooms(reserved, product, wanted) if limit[0] < wanted]
        room, reason, _ = min(rooms, key=lambda limit: limit[0])
        unit_price = usd_hour(self._types, product)
        cost = f" for {wanted * unit_price:.2f} dollars an hour" if unit_price else ""
        price_text = f", {unit_price:.2f} each" if unit_price and wanted > 1 else ""
        only = f"{max(0, room)} may be bought"
        ways = "lower the quota"
        verb = "is" if wanted == 1 else "are"
        if room > 0 and below:
            only += ", so none is"
            ways += f', or allow a part by annotation {names.MINIMUM}: "{below}"'
        return ReservationProblem(
            reason=reason,
            message=f"{wanted} more {product_text(product)} {verb} wanted{cost}{price_text}, "
            f"and {only}: {'; '.join(why for _, _, why in rooms)}; or {ways}",
        )

    def _rooms(
        self, reserved: ReservationKey, product: Product, wanted: int
    ) -> Iterable[tuple[int, str, str]]:
        caps, unit_price = self._caps, usd_hour(self._types, product)
        namespace = f"in namespace {reserved.namespace}" if reserved.namespace else "for cluster-wide ones"
        limits = (
            ("in all", caps.instances, caps.dollars, ""),
            (namespace, caps.instances_namespace, caps.dollars_namespace, "-namespace"),
            (f"for {reserved}", caps.instances_each, caps.dollars_each, "-each"),
        )
        for scope, (where, instances, dollars, ending) in zip(_scopes(reserved), limits, strict=True):
            count = self._unshown[scope]
            unshown = f" (with {count} that EC2 does not show and may have)" if count else ""
            if not math.isinf(instances):
                has = self._instances[scope]
                yield (
                    int(instances) - has,
                    _CAP,
                    f"{counted(has, 'instance is', 'instances are')} bought {where}{unshown}, and "
                    f"--buy-instances{ending} is "
                    f"{instances:g}: set it to {has + wanted}",
                )
            if math.isinf(dollars):
                continue
            spent = self._dollars.get(scope, 0.0)
            option = f"--buy-dollars{ending} is {dollars:g}"
            if unit_price is None:
                why = f"its price{_in_zone(product.zone)} is unknown, and {option}"
                yield 0, _UNKNOWN, f"{why}: set it to inf"
            elif unpriced := self._unpriced.get(scope):
                listed = ", ".join(sorted(unpriced))
                why = f"the price of {listed}, held {where}, is unknown, and {option}"
                yield 0, _UNKNOWN, f"{why}: set it to inf"
            elif unit_price > 0:
                # Floating-point error must not round a whole number down.
                room = math.floor((dollars - spent) / unit_price + 1e-9)
                cost = f"{spent:.2f} dollars an hour are spent {where}{unshown}"
                off = ", so buying is off" if dollars == 0 else ""
                needed = math.ceil((spent + wanted * unit_price) * 100 - 1e-6) / 100
                yield room, _CAP, f"{cost}, and {option}{off}: set it to {needed:.2f} or more"
        yield 1 << 30, _CAP, ""


def _scopes(reserved: ReservationKey | None) -> tuple[Scope, ...]:
    """The scopes with caps that a purchase counts against, the widest first."""
    return (ALL, (reserved.namespace,), (reserved.namespace, reserved.name)) if reserved else (ALL,)


def _in_zone(zone: str) -> str:
    """The zone of an unknown price, if it is the cause: in a Local Zone none is known."""
    return f" in {zone}" if zone and not region_code(zone) else ""


def product_text(product: Product) -> str:
    """`m5.large`, with platform and tenancy unless they are the defaults."""
    has = product.platform, product.tenancy
    more = [value for value, plain in zip(has, PLAIN_OFFER, strict=True) if value != plain]
    return f"{product.instance_type} ({', '.join(more)})" if more else product.instance_type
