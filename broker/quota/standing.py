"""What of a reservation's quota there is hardware for, and who uses it: sums over machines and holders.

Invariant: over all reservations that name a flavor, `supplied` and `allocatable` never come to more than the
flavor's hardware, and for each of them 0 <= allocatable <= supplied <= nominal. A machine counts whole or not
at all: all its resources fall together. What belongs to one reservation (instances of its own EC2
reservations) serves that one alone; what belongs to nobody serves the oldest reservation first, so that a new
one never takes from one that stands. Kueue compares quota with no hardware at all (kueue issues 2665, 4782).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from broker.quota.model import Amounts, FlavorResource
from broker.quota.usage import ReservationHolder, Reserved


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """`count` equal machines of a flavor. `owner`: the only reservation that they serve; None: whoever
    names the flavor. `out`: why they cannot be used now; `sudden`: nobody waits whether that passes."""

    name: str
    flavor: str
    resources: Mapping[str, int]
    owner: Reserved | None = None
    out: str = ""
    sudden: bool = False
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class EntitledReservation:
    """A reservation and what it is entitled to. `since` is its age, in seconds since the epoch."""

    reserved: Reserved
    nominal: Amounts
    since: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareShare:
    """Of what a reservation is entitled to: what there is (`supplied`), and can be used now."""

    supplied: Amounts = field(default_factory=dict)
    allocatable: Amounts = field(default_factory=dict)


class UnattributedUsage(NamedTuple):
    """Who has something that no reservation knows of: on the machines of that owner, or on nobody's."""

    owner: Reserved | None
    key: FlavorResource


@dataclass(frozen=True, slots=True)
class SteadyMachines:
    """Which machines were last counted as usable, and since when some look otherwise."""

    counted: Mapping[str, bool]
    since: Mapping[str, float] = field(default_factory=dict)


def attribute(labels: Mapping[str, str], flavors: Mapping[str, Mapping[str, str]]) -> tuple[str, ...]:
    """The flavors that a node with these labels is of: the one with most labels, all of which it has.

    None, or several that say equally much, and it is counted for nobody.
    """
    best, found = -1, list[str]()
    for name, wanted in flavors.items():
        if len(wanted) >= best and wanted.items() <= labels.items():
            found = [*found, name] if len(wanted) == best else [name]
            best = len(wanted)
    return tuple(sorted(found))


def steady(
    before: SteadyMachines | None, machines: Iterable[Machine], now: float, window: float
) -> tuple[SteadyMachines, tuple[Machine, ...]]:
    """The machines as they are to be counted: a change counts once it has lasted for `window` seconds.

    A drain that goes from node to node so takes one node out, not each in turn. What is seen for the first
    time counts as it is; in the midst of a run, a slot whose instance is not there yet still counts.
    """
    counted: dict[str, bool] = {}
    since: dict[str, float] = {}
    settled: list[Machine] = []
    for each in machines:
        usable = not each.out
        if before is None or each.sudden:
            shown = usable
        else:
            shown = before.counted.get(each.name, usable or each.owner is not None)
        if shown != usable:
            began = before.since.get(each.name, now) if before else now
            if now >= began + window:  # the moment that the caller comes back at
                shown = usable
            else:
                since[each.name] = began
        counted[each.name] = shown
        settled.append(each if shown == usable else _as(each, usable=shown))
    return SteadyMachines(counted, since), tuple(settled)


def _as(machine: Machine, *, usable: bool) -> Machine:
    return Machine(
        name=machine.name,
        flavor=machine.flavor,
        resources=machine.resources,
        owner=machine.owner,
        out="" if usable else "only just back",
        count=machine.count,
    )


def shares(
    claimants: Sequence[EntitledReservation],
    machines: Iterable[Machine],
    *,
    sold: Collection[str] | None = None,
) -> dict[Reserved, HardwareShare]:
    """What each reservation gets of the hardware, the oldest first.

    Of what no machine of a flavor says anything and which is not `sold` with one, such as a licence, there is
    what is wanted.
    """
    own: dict[tuple[Reserved, FlavorResource], list[int]] = {}
    common: dict[FlavorResource, list[int]] = {}
    told: set[FlavorResource] = set()
    for machine in machines:
        for resource, value in machine.resources.items():
            key = FlavorResource(machine.flavor, resource)
            told.add(key)
            sums = (
                common.setdefault(key, [0, 0])
                if machine.owner is None
                else own.setdefault((machine.owner, key), [0, 0])
            )
            sums[0] += value * machine.count
            sums[1] += 0 if machine.out else value * machine.count
    found: dict[Reserved, HardwareShare] = {}
    for claimant in sorted(claimants, key=lambda each: (each.since, each.reserved)):
        supplied: dict[FlavorResource, int] = {}
        allocatable: dict[FlavorResource, int] = {}
        for key, nominal in claimant.nominal.items():
            if sold is not None and key not in told and key.resource not in sold:
                supplied[key] = allocatable[key] = nominal
                continue
            mine = own.get((claimant.reserved, key), (0, 0))
            left = common.setdefault(key, [0, 0])
            for at, into in enumerate((supplied, allocatable)):
                taken = min(max(0, nominal - mine[at]), left[at])
                left[at] -= taken
                into[key] = min(nominal, mine[at]) + taken
        found[claimant.reserved] = HardwareShare(supplied=supplied, allocatable=allocatable)
    return found


def taken(
    claimants: Sequence[EntitledReservation],
    machines: Iterable[Machine],
    found: Mapping[Reserved, HardwareShare],
    used: Mapping[Reserved, Amounts],
    strangers: Mapping[UnattributedUsage, int],
    *,
    anywhere: bool = False,
) -> dict[Reserved, dict[FlavorResource, int]]:
    """How much of what each reservation could still use is used by strangers.

    These have what is more than anybody is entitled to first; then what is free of the owner of the machines
    that they are on, and elsewhere of the youngest reservation. `anywhere`: those of no owner may be on
    anybody's machines.
    """
    if not strangers:
        return {}
    usable: dict[UnattributedUsage, int] = {}
    for machine in machines:
        for resource, value in machine.resources.items() if not machine.out else ():
            at = UnattributedUsage(machine.owner, FlavorResource(machine.flavor, resource))
            usable[at] = usable.get(at, 0) + value * machine.count
    left = {key: amount for (owner, key), amount in strangers.items() if owner is None}
    for key in left:
        there = sum(each for (owner, at), each in usable.items() if at == key and (anywhere or owner is None))
        entitled = 0
        for reserved, share in found.items():
            elsewhere = 0 if anywhere else usable.get(UnattributedUsage(reserved, key), 0)
            entitled += max(0, share.allocatable.get(key, 0) - elsewhere)
        left[key] = max(0, left[key] - max(0, there - entitled))
    made: dict[Reserved, dict[FlavorResource, int]] = {}
    for claimant in sorted(claimants, key=lambda each: (each.since, each.reserved), reverse=True):
        me = claimant.reserved
        for key, nominal in claimant.nominal.items():
            unused = max(0, found[me].allocatable.get(key, 0) - used.get(me, {}).get(key, 0))
            own = UnattributedUsage(me, key)
            mine = min(unused, max(0, strangers.get(own, 0) - max(0, usable.get(own, 0) - nominal)))
            more = min(unused - mine, left.get(key, 0))
            if more:
                left[key] -= more
            if mine + more:
                made.setdefault(me, {})[key] = mine + more
    return made


def usage(holders: Iterable[ReservationHolder]) -> dict[FlavorResource, int]:
    """What all of them hold together."""
    total: dict[FlavorResource, int] = {}
    for holder in holders:
        for key, value in holder.usage.items():
            if value:
                total[key] = total.get(key, 0) + value
    return total


def associations(holders: Iterable[ReservationHolder]) -> tuple[tuple[str, Amounts], ...]:
    """Each holder's name and what it holds, by name; who holds nothing is left out.

    A name that two have is each one's with its kind before it.
    """
    using = [each for each in holders if any(each.usage.values())]
    times: dict[str, int] = {}
    for each in using:
        times[each.name] = times.get(each.name, 0) + 1
    named: dict[str, dict[FlavorResource, int]] = {}
    for each in using:
        name = each.name if times[each.name] == 1 else f"{each.kind}/{each.name}"
        held = named.setdefault(name, {})
        for key, value in each.usage.items():
            if value:
                held[key] = held.get(key, 0) + value
    return tuple(sorted(named.items()))


def beyond(amounts: Amounts, bound: Amounts) -> dict[FlavorResource, int]:
    """How much more the amounts are than the bound, where they are. Of usage and nominal quota: what is
    borrowed."""
    return {key: value - bound.get(key, 0) for key, value in amounts.items() if value > bound.get(key, 0)}


def free(allocatable: Amounts, used: Amounts) -> dict[FlavorResource, int]:
    """What is left of what can be used."""
    return {key: max(0, value - used.get(key, 0)) for key, value in allocatable.items()}
