"""Which of EC2's reservations belong to which CapacityReservation, and in which flavor.

Invariant: an EC2 reservation belongs to at most one CapacityReservation. One that names a CapacityReservation
in its own tag belongs to that, whoever else names it: an annotation in some namespace takes nothing away.
Anything else that two of them name belongs to neither, and both are told. What another cluster's broker made
is never taken. A group that could not be read is not one that is not there. One that fits no flavor, or two
alike, is held by nobody and told: it is neither dropped nor counted twice. Nothing here decides to change
anything.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from broker.capacity.sizing import Flavor
from broker.quota.usage import Reserved
from providers.model import ENDED_STATES, Odcr, ReservationGroup

TAG_RESERVATION: Final = "capacity-broker.io/reservation"
TAG_FLAVOR: Final = "capacity-broker.io/flavor"
TAG_MANAGED: Final = "capacity-broker.io/managed-by"
TAG_CLUSTER: Final = "capacity-broker.io/cluster"
BROKER: Final = "capacity-broker"  # the value of the last but one on what the broker made


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimant:
    """A CapacityReservation as it claims EC2's: by its name in a tag, by id, by a group's ARN.

    `flavors` are those that its spec names and that mean something; `flavor_names` all that it names.
    """

    reserved: Reserved
    flavor_names: tuple[str, ...] = ()
    flavors: Mapping[str, Flavor] = field(default_factory=dict)
    ids: frozenset[str] = frozenset()
    group_arn: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something about a CapacityReservation's holdings that a person should know."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Holdings:
    """What belongs to whom: EC2 reservations that have not ended, in whatever state EC2 shows them."""

    odcrs: Mapping[Reserved, Mapping[str, tuple[Odcr, ...]]] = field(default_factory=dict)
    owner: Mapping[str, Reserved] = field(default_factory=dict)
    flavor: Mapping[str, str] = field(default_factory=dict)
    disputed: Mapping[str, tuple[Reserved, ...]] = field(default_factory=dict)
    problems: Mapping[Reserved, tuple[Problem, ...]] = field(default_factory=dict)

    def of(self, reserved: Reserved) -> Mapping[str, tuple[Odcr, ...]]:
        """What a reservation holds, by flavor."""
        return self.odcrs.get(reserved, {})


def belongs(
    odcrs: Iterable[Odcr],
    groups: Mapping[str, ReservationGroup],
    reservations: Iterable[Claimant],
    *,
    cluster: str = "",
    unread: Mapping[str, str] | None = None,
) -> Holdings:
    """Whose each of EC2's reservations is. `groups` are those that a claimant names, by ARN; `unread` those
    of which nothing is known, and why."""
    claimants = {each.reserved: each for each in reservations}
    named = _named(claimants.values(), groups)
    seen: dict[str, Odcr] = {}
    owner: dict[str, Reserved] = {}
    flavor: dict[str, str] = {}
    disputed: dict[str, tuple[Reserved, ...]] = {}
    problems: dict[Reserved, list[Problem]] = defaultdict(list)
    held: dict[Reserved, dict[str, list[Odcr]]] = defaultdict(lambda: defaultdict(list))
    for odcr in sorted(odcrs, key=lambda each: each.id):
        seen[odcr.id] = odcr
        if odcr.state in ENDED_STATES:
            continue
        tagged = _tagged(odcr, claimants, cluster)
        claims = sorted({*named.get(odcr.id, ()), *tagged})
        if tagged or made_here(odcr, cluster):
            for other in claims:
                if other not in tagged:
                    problems[other].append(_others(odcr))
            claims = tagged
        if len(claims) > 1:
            disputed[odcr.id] = tuple(claims)
            for each in claims:
                problems[each].append(_disputed(odcr, claims))
        elif claims:
            owner[odcr.id] = claims[0]
            name = _flavor(odcr, claimants[claims[0]])
            if isinstance(name, Problem):
                problems[claims[0]].append(name)
            else:
                flavor[odcr.id] = name
                held[claims[0]][name].append(odcr)
    for each in claimants.values():
        problems[each.reserved] += _absent(each, seen, groups, unread or {})
    return Holdings(
        odcrs={
            reserved: {name: tuple(some) for name, some in by_flavor.items()}
            for reserved, by_flavor in held.items()
        },
        owner=owner,
        flavor=flavor,
        disputed=disputed,
        problems={reserved: tuple(some) for reserved, some in problems.items() if some},
    )


def made_here(odcr: Odcr, cluster: str) -> bool:
    """Whether this cluster's broker made it, and so may change and end it."""
    return odcr.tags.get(TAG_MANAGED) == BROKER and odcr.tags.get(TAG_CLUSTER) == cluster


def _named(
    claimants: Iterable[Claimant], groups: Mapping[str, ReservationGroup]
) -> Mapping[str, list[Reserved]]:
    found: dict[str, list[Reserved]] = defaultdict(list)
    for each in claimants:
        group = groups.get(each.group_arn)
        for id_ in each.ids.union(group.member_ids if group else ()):
            found[id_].append(each.reserved)
    return found


def _tagged(odcr: Odcr, claimants: Mapping[Reserved, Claimant], cluster: str) -> list[Reserved]:
    """Whose name the reservation carries. Another cluster may have reservations of the same names."""
    namespace, _, name = odcr.tags.get(TAG_RESERVATION, "").rpartition("/")
    said = Reserved(namespace, name)
    if said not in claimants or odcr.tags.get(TAG_CLUSTER, cluster) != cluster:
        return []
    return [said]


def _flavor(odcr: Odcr, claimant: Claimant) -> str | Problem:
    """By the reservation's own tag, else by its type and zone."""
    tagged = odcr.tags.get(TAG_FLAVOR, "")
    if tagged in claimant.flavor_names:
        return tagged
    fitting = [name for name, flavor in claimant.flavors.items() if flavor.admits(odcr)]
    if len(fitting) == 1:
        return fitting[0]
    what = f"{odcr.id} ({odcr.instance_type} in {odcr.zone})"
    if fitting:
        return Problem(
            reason="FlavorAmbiguous",
            message=f"{what} fits the flavors {' and '.join(fitting)} alike, so it counts in none: give it "
            f"the tag {TAG_FLAVOR}",
        )
    names = ", ".join(claimant.flavor_names) or "(none)"
    return Problem(
        reason="FlavorUnmatched",
        message=f"{what} fits none of the flavors {names}, so it counts in none: give it the tag "
        f"{TAG_FLAVOR}, or take it away from the reservation",
    )


def _disputed(odcr: Odcr, claims: Iterable[Reserved]) -> Problem:
    return Problem(
        reason="ReservationDisputed",
        message=f"{odcr.id} is claimed by {' and '.join(map(str, claims))}, so none of them gets it: "
        f"give it the tag {TAG_RESERVATION} with one's name, or leave it to one in annotations and groups",
    )


def _others(odcr: Odcr) -> Problem:
    return Problem(
        reason="ReservationDisputed",
        message=f"{odcr.id} belongs to {odcr.tags.get(TAG_RESERVATION)} by its tag and stays with it: "
        f"take it out of this reservation's annotations and group, or change its tag {TAG_RESERVATION}",
    )


def _absent(
    claimant: Claimant,
    seen: Mapping[str, Odcr],
    groups: Mapping[str, ReservationGroup],
    unread: Mapping[str, str],
) -> list[Problem]:
    found = []
    for id_ in sorted(claimant.ids):
        odcr = seen.get(id_)
        if odcr is None or odcr.state in ENDED_STATES:
            state = "EC2 shows this account no" if odcr is None else f"has ended ({odcr.state}):"
            found.append(
                Problem(
                    reason="ReservationNotFound",
                    message=f"{state} reservation {id_}, which the reservation names: correct the annotation",
                )
            )
    if claimant.group_arn in unread:
        found.append(Problem(reason="GroupNotRead", message=unread[claimant.group_arn]))
    elif claimant.group_arn and claimant.group_arn not in groups:
        found.append(
            Problem(
                reason="GroupNotFound",
                message=f"group {claimant.group_arn} was not found: correct the annotation",
            )
        )
    return found
