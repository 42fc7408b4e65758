"""The hardware behind a reservation's quota, and its use: sums over machines and holders.

Invariant: over all reservations that name a flavor, `supplied` and `allocatable` never exceed the
flavor's hardware, and for each of them 0 <= allocatable <= supplied <= nominal. A machine counts whole or
not at all: all its resources become unavailable together. Owned machines (instances of a reservation's
own EC2 reservations) serve their owner alone. Unowned machines serve the oldest reservation first, so a
new one never takes from an older one. Kueue does not compare quota with hardware (kueue issues 2665,
4782).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from broker.quota.model import Amounts, FlavorResource, summed
from broker.quota.usage import ReservationHolder, ReservationKey

_MachineKey = tuple[str, ReservationKey | None]  # its name and its owner


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """`count` equal machines of a flavor. `owner`: the only reservation that they serve; None: all with
    the flavor.

    `out`: why they cannot be used now; `sudden`: that counts at once, without a grace period.
    """

    name: str
    flavor: str
    resources: Mapping[str, int]
    owner: ReservationKey | None = None
    out_of_service: str = ""
    sudden: bool = False
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class EntitledReservation:
    """A reservation and its quota. `since` is its creation, in seconds since the epoch."""

    reserved: ReservationKey
    nominal: Amounts
    since: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareShare:
    """The existing (`supplied`) and the usable (`allocatable`) part of a reservation's quota."""

    supplied: Amounts = field(default_factory=dict)
    allocatable: Amounts = field(default_factory=dict)


class UnattributedKey(NamedTuple):
    """The key of usage that belongs to no reservation: on the machines of that owner, or on unowned ones."""

    owner: ReservationKey | None
    key: FlavorResource


@dataclass(frozen=True, slots=True)
class SteadyMachines:
    """The machines last counted as usable, and since when some appear otherwise."""

    counted: Mapping[_MachineKey, bool]
    since: Mapping[_MachineKey, float] = field(default_factory=dict)


def attribute(labels: Mapping[str, str], flavors: Mapping[str, Mapping[str, str]]) -> tuple[str, ...]:
    """The flavors of a node with these labels: the one with most labels, all of which it has.

    With none, or several of equally many labels, it is counted for no flavor.
    """
    best, fitting = -1, list[str]()
    for name, wanted in flavors.items():
        if len(wanted) >= best and wanted.items() <= labels.items():
            fitting = [*fitting, name] if len(wanted) == best else [name]
            best = len(wanted)
    return tuple(sorted(fitting))


def steady(
    before: SteadyMachines | None, machines: Iterable[Machine], now: float, window: float
) -> tuple[SteadyMachines, tuple[Machine, ...]]:
    """The machines to count: a change counts once it has lasted for `window` seconds.

    So a drain that moves from node to node takes one node out, not each in turn. A new machine counts
    as it is seen. During a run, a slot without its instance still counts, and so does a node that turns out
    to be in a slot.
    """
    counted: dict[_MachineKey, bool] = {}
    since: dict[_MachineKey, float] = {}
    steadied: list[Machine] = []
    for machine in machines:
        usable, key = not machine.out_of_service, (machine.name, machine.owner)
        if before is None or machine.sudden:
            shown = usable
        else:
            shown = before.counted.get(key, usable or machine.owner is not None)
        if shown != usable:
            began = before.since.get(key, now) if before else now
            if now >= began + window:  # the time at which the caller returns
                shown = usable
            else:
                since[key] = began
        counted[key] = shown
        if shown != usable:
            late = f"{machine.name} has been in service for less than {window:g} s"
            machine = replace(machine, out_of_service="" if shown else late)
        steadied.append(machine)
    return SteadyMachines(counted, since), tuple(steadied)


def shares(
    claimants: Sequence[EntitledReservation],
    machines: Iterable[Machine],
    *,
    sold: Collection[str] | None = None,
) -> dict[ReservationKey, HardwareShare]:
    """The hardware of each reservation, the oldest first.

    A resource that no machine of a flavor reports and that is not `sold` with one, such as a licence,
    is supplied as requested.
    """
    own: dict[tuple[ReservationKey, FlavorResource], list[int]] = {}
    common: dict[FlavorResource, list[int]] = {}
    reported: set[FlavorResource] = set()
    for machine in machines:
        for resource, value in machine.resources.items():
            key = FlavorResource(machine.flavor, resource)
            reported.add(key)
            sums = (
                common.setdefault(key, [0, 0])
                if machine.owner is None
                else own.setdefault((machine.owner, key), [0, 0])
            )
            sums[0] += value * machine.count
            sums[1] += 0 if machine.out_of_service else value * machine.count
    result: dict[ReservationKey, HardwareShare] = {}
    for claimant in sorted(claimants, key=lambda reservation: (reservation.since, reservation.reserved)):
        supplied: dict[FlavorResource, int] = {}
        allocatable: dict[FlavorResource, int] = {}
        for key, nominal in claimant.nominal.items():
            if sold is not None and key not in reported and key.resource not in sold:
                supplied[key] = allocatable[key] = nominal
                continue
            own_sums = own.get((claimant.reserved, key), (0, 0))
            remaining = common.setdefault(key, [0, 0])
            for at, into in enumerate((supplied, allocatable)):
                taken = min(max(0, nominal - own_sums[at]), remaining[at])
                remaining[at] -= taken
                into[key] = min(nominal, own_sums[at]) + taken
        result[claimant.reserved] = HardwareShare(supplied=supplied, allocatable=allocatable)
    return result


def taken(
    claimants: Sequence[EntitledReservation],
    machines: Iterable[Machine],
    hardware: Mapping[ReservationKey, HardwareShare],
    used: Mapping[ReservationKey, Amounts],
    unattributed: Mapping[UnattributedKey, int],
    *,
    anywhere: bool = False,
) -> dict[ReservationKey, dict[FlavorResource, int]]:
    """The part of each reservation's free share that unattributed usage takes.

    Such usage first takes hardware beyond all quotas. Then it takes from the owner of the machines
    that it is on, and elsewhere from the youngest reservation. `anywhere`: usage without an owner may
    be on any machine.
    """
    if not unattributed:
        return {}
    usable: dict[UnattributedKey, int] = {}
    for machine in machines:
        for resource, value in machine.resources.items() if not machine.out_of_service else ():
            at = UnattributedKey(machine.owner, FlavorResource(machine.flavor, resource))
            usable[at] = usable.get(at, 0) + value * machine.count
    remaining = {key: amount for (owner, key), amount in unattributed.items() if owner is None}
    for key in remaining:
        total = sum(
            amount for (owner, at), amount in usable.items() if at == key and (anywhere or owner is None)
        )
        entitled = 0
        for reserved, share in hardware.items():
            elsewhere = 0 if anywhere else usable.get(UnattributedKey(reserved, key), 0)
            entitled += max(0, share.allocatable.get(key, 0) - elsewhere)
        remaining[key] = max(0, remaining[key] - max(0, total - entitled))
    result: dict[ReservationKey, dict[FlavorResource, int]] = {}
    for claimant in sorted(
        claimants, key=lambda reservation: (reservation.since, reservation.reserved), reverse=True
    ):
        claimant_name = claimant.reserved
        for key, nominal in claimant.nominal.items():
            unused = max(
                0, hardware[claimant_name].allocatable.get(key, 0) - used.get(claimant_name, {}).get(key, 0)
            )
            own = UnattributedKey(claimant_name, key)
            from_own = min(unused, max(0, unattributed.get(own, 0) - max(0, usable.get(own, 0) - nominal)))
            more = min(unused - from_own, remaining.get(key, 0))
            if more:
                remaining[key] -= more
            if from_own + more:
                result.setdefault(claimant_name, {})[key] = from_own + more
    return result


def usage(holders: Iterable[ReservationHolder]) -> dict[FlavorResource, int]:
    """The total usage of all holders."""
    return {key: value for key, value in summed(holder.usage for holder in holders).items() if value}


def associations(holders: Iterable[ReservationHolder]) -> tuple[tuple[str, Amounts], ...]:
    """Each holder's name and its usage, by name; holders without usage are left out.

    If two holders share a name, each is listed with its kind before it.
    """
    using = [holder for holder in holders if any(holder.usage.values())]
    times = Counter(holder.name for holder in using)
    named: dict[str, list[ReservationHolder]] = {}
    for holder in using:
        name = holder.name if times[holder.name] == 1 else f"{holder.kind}/{holder.name}"
        named.setdefault(name, []).append(holder)
    return tuple((name, usage(named[name])) for name in sorted(named))


def beyond(amounts: Amounts, bound: Amounts) -> dict[FlavorResource, int]:
    """The excess of the amounts over the bound. Of usage over nominal quota: the borrowed amounts."""
    return {key: value - bound.get(key, 0) for key, value in amounts.items() if value > bound.get(key, 0)}


def free(allocatable: Amounts, used: Amounts) -> dict[FlavorResource, int]:
    """The unused part of the allocatable amounts."""
    return {key: max(0, value - used.get(key, 0)) for key, value in allocatable.items()}
