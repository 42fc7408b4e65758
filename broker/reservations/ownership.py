"""Resolves which CapacityReservation owns each ODCR, and in which flavor.

Invariant: an ODCR belongs to at most one CapacityReservation. Its own tag names the owner, or the tag of a
group that the owner names. An annotation names the owner only if the operator allows it for that namespace;
one that is not allowed changes nothing. Of several claimants the current holder keeps an ODCR; without a
holder the oldest gets it.

A tag of another cluster names no owner here. The cluster's UID identifies it, or its name if there is no UID.
An ODCR that another cluster's broker made is adopted only by an allowed annotation. A group that could not be
read counts as unknown, not as absent. An ODCR that fits no flavor, or two alike, has an owner but no flavor,
and is reported as a problem.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from broker.apis import names
from broker.quota.usage import ReservationKey
from broker.reservations.sizing import InstanceFlavor
from broker.text import group_name
from providers.model import Odcr, ReservationGroup
from providers.names import TAG_CLUSTER, TAG_CLUSTER_UID

ANY: Final = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnershipClaim:
    """The ODCRs that a CapacityReservation claims: by its name in a tag, by id, by a group's ARN.

    `flavor_names`: all flavors of its spec; `flavors`: those that resolve to instances. Without `created`, it
    counts as the youngest.
    """

    reserved: ReservationKey
    flavor_names: tuple[str, ...] = ()
    flavors: Mapping[str, InstanceFlavor] = field(default_factory=dict)
    ids: frozenset[str] = frozenset()
    group_arn: str = ""
    created: datetime | None = None

    @property
    def age(self) -> tuple[datetime, ReservationKey]:
        """The oldest first."""
        return self.created or datetime.max.replace(tzinfo=UTC), self.reserved


@dataclass(frozen=True, slots=True)
class Adopters:
    """Adoptions by annotation that the operator allows: ids and ARNs by namespace; ANY allows all."""

    allowed: Mapping[str, frozenset[str]]

    @classmethod
    def parse(cls, entries: Iterable[str]) -> Adopters:
        """Entries are `NAMESPACE`, `NAMESPACE=ID`, `NAMESPACE=ARN` or `*`. Raises ValueError."""
        allowed: dict[str, frozenset[str]] = {}
        for entry in entries:
            namespace, given, resource = entry.partition("=")
            if not namespace.strip() or (given and not resource.strip().startswith(("cr-", "arn:"))):
                raise ValueError(
                    f"--adopt-by-annotation has {entry!r}: write NAMESPACE, NAMESPACE=cr-0123456789abcdef0, "
                    "NAMESPACE=ARN of a group, or *"
                )
            added = {resource.strip() if given else ANY}
            allowed[namespace.strip()] = allowed.get(namespace.strip(), frozenset()) | added
        return cls(allowed)

    def allow(self, namespace: str, resource: str) -> bool:
        """Whether a CapacityReservation there (empty: a cluster-wide one) may adopt the id or group."""
        return any(
            entry in (ANY, resource) for key in (ANY, namespace) for entry in self.allowed.get(key, ())
        )


ALL_ADOPTERS: Final = Adopters({ANY: frozenset({ANY})})


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationProblem:
    """A problem with a CapacityReservation's ODCRs or queues, for a condition.

    `pending`: the broker is solving it.
    """

    reason: str
    message: str
    pending: bool = False

    @property
    def text(self) -> str:
        """Reason and message in one line."""
        return f"{self.reason}: {self.message}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    """The owner and flavor of each ODCR that has not ended, in any state.

    `refused`: by ODCR id, claimants that do not get it. `ended`: those that have ended, by the reservation of
    their tag, without the broker's own.
    """

    odcrs: Mapping[ReservationKey, Mapping[str, tuple[Odcr, ...]]] = field(default_factory=dict)
    owner: Mapping[str, ReservationKey] = field(default_factory=dict)
    flavor: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, tuple[ReservationKey, ...]] = field(default_factory=dict)
    problems: Mapping[ReservationKey, tuple[ReservationProblem, ...]] = field(default_factory=dict)
    ended: Mapping[ReservationKey, tuple[Odcr, ...]] = field(default_factory=dict)

    def of(self, reserved: ReservationKey) -> Mapping[str, tuple[Odcr, ...]]:
        """The ODCRs of a reservation, by flavor."""
        return self.odcrs.get(reserved, {})


def resolve_ownership(
    odcrs: Iterable[Odcr],
    groups: Mapping[str, ReservationGroup],
    reservations: Iterable[OwnershipClaim],
    *,
    cluster: str,
    unread: Mapping[str, str] | None = None,
    adopters: Adopters,
    holders: Mapping[str, ReservationKey] | None = None,
) -> Ownership:
    """Resolves the owner of each ODCR.

    `groups`: by ARN, the groups that claimants name; `unread`: groups that could not be read, and why.
    `holders`: by ODCR id, the owner at the last decision.
    """
    claimants = {claim.reserved: claim for claim in reservations}
    allowed, refused = _named(claimants.values(), groups, adopters, cluster)
    seen: dict[str, Odcr] = {}
    owner: dict[str, ReservationKey] = {}
    flavor: dict[str, str] = {}
    lost: dict[str, tuple[ReservationKey, ...]] = {}
    problems: dict[ReservationKey, list[ReservationProblem]] = defaultdict(list)
    held: dict[ReservationKey, dict[str, list[Odcr]]] = defaultdict(lambda: defaultdict(list))
    ended: dict[ReservationKey, list[Odcr]] = defaultdict(list)
    for odcr in sorted(odcrs, key=lambda odcr: odcr.id):
        seen[odcr.id] = odcr
        tagged = _tagged(odcr, claimants, cluster)
        if odcr.over:
            if tagged is not None and not made_here(odcr, cluster):
                ended[tagged].append(odcr)
            continue
        claims = sorted(allowed.get(odcr.id, ()), key=lambda claimant: claimants[claimant].age)
        holder = (holders or {}).get(odcr.id)
        first = next(iter(claims), None) if holder not in claims else holder
        chosen = tagged if tagged is not None or made_here(odcr, cluster) else first
        losing = {*claims, *refused.get(odcr.id, ())} - {chosen}
        for other in sorted(losing):
            if other in claims or tagged is not None:
                problems[other].append(_disputed(odcr, chosen))
            else:
                group = groups.get(claimants[other].group_arn)
                if group is not None and odcr.id not in group.member_ids:
                    group = None
                problems[other].append(_unallowed(odcr, other, group, cluster))
        if losing and tagged is None:
            lost[odcr.id] = tuple(sorted(losing))
        if chosen is not None:
            owner[odcr.id] = chosen
            name = _flavor(odcr, claimants[chosen])
            if isinstance(name, ReservationProblem):
                problems[chosen].append(name)
            else:
                flavor[odcr.id] = name
                held[chosen][name].append(odcr)
    for claim in claimants.values():
        problems[claim.reserved] += _missing(claim, seen, groups, unread or {})
    return Ownership(
        odcrs={
            reserved: {name: tuple(items) for name, items in by_flavor.items()}
            for reserved, by_flavor in held.items()
        },
        owner=owner,
        flavor=flavor,
        refused=lost,
        problems={reserved: tuple(items) for reserved, items in problems.items() if items},
        ended={reserved: tuple(items) for reserved, items in ended.items()},
    )


def made_here(odcr: Odcr, cluster: str) -> bool:
    """Whether this cluster's broker made the ODCR, and so may change and end it."""
    if odcr.maker != "broker" or odcr.ownership == "foreign":
        return False
    # By its UID it is this cluster's, also if the cluster had another name then.
    return odcr.ownership == "owned" or odcr.tags.get(TAG_CLUSTER) == cluster


def of_other_cluster(resource: Odcr | ReservationGroup, cluster: str) -> bool:
    """Whether the tags name another cluster."""
    if resource.ownership == "owned":
        return False
    return resource.ownership == "foreign" or resource.tags.get(TAG_CLUSTER, cluster) != cluster


def named_in(odcr: Odcr) -> ReservationKey | None:
    """The CapacityReservation that the ODCR's own tag names."""
    reserved = ReservationKey.parse(odcr.tags.get(names.TAG_RESERVATION, ""))
    return reserved if reserved.name else None


def _named(
    claimants: Iterable[OwnershipClaim],
    groups: Mapping[str, ReservationGroup],
    adopters: Adopters,
    cluster: str,
) -> tuple[Mapping[str, set[ReservationKey]], Mapping[str, set[ReservationKey]]]:
    """Claimants by annotation, by ODCR id: the allowed ones, and the others."""
    allowed: dict[str, set[ReservationKey]] = defaultdict(set)
    refused: dict[str, set[ReservationKey]] = defaultdict(set)
    for claim in claimants:
        for id_ in claim.ids:
            allows = adopters.allow(claim.reserved.namespace, id_)
            (allowed if allows else refused)[id_].add(claim.reserved)
        group = groups.get(claim.group_arn)
        if group is None:
            continue
        allows = group.tags.get(names.TAG_RESERVATION) == str(claim.reserved) and not of_other_cluster(
            group, cluster
        )
        allows = allows or adopters.allow(claim.reserved.namespace, claim.group_arn)
        for id_ in group.member_ids:
            (allowed if allows else refused)[id_].add(claim.reserved)
    return allowed, {
        id_: refused_claimants - allowed.get(id_, set()) for id_, refused_claimants in refused.items()
    }


def _tagged(
    odcr: Odcr, claimants: Mapping[ReservationKey, OwnershipClaim], cluster: str
) -> ReservationKey | None:
    """The owner that the tag names. Another cluster may have reservations of the same names."""
    reserved = named_in(odcr)
    return reserved if reserved in claimants and not of_other_cluster(odcr, cluster) else None


def _flavor(odcr: Odcr, claimant: OwnershipClaim) -> str | ReservationProblem:
    """The flavor by the ODCR's own tag, else by its type and zone."""
    tagged = odcr.tags.get(names.TAG_FLAVOR, "")
    if tagged in claimant.flavor_names:
        return tagged
    fitting = [name for name, flavor in claimant.flavors.items() if flavor.admits(odcr)]
    if len(fitting) == 1:
        return fitting[0]
    place = f"{odcr.id} ({odcr.instance_type} in {odcr.zone})"
    if fitting:
        return ReservationProblem(
            reason="FlavorAmbiguous",
            message=f"{place} fits the flavors {' and '.join(fitting)} alike, so it counts in none: give it "
            f"the tag {names.TAG_FLAVOR}",
        )
    flavor_names = ", ".join(claimant.flavor_names) or "(none)"
    return ReservationProblem(
        reason="FlavorUnmatched",
        message=f"{place} fits none of the flavors {flavor_names}, so it counts in none: give it the tag "
        f"{names.TAG_FLAVOR}, or take it away from the reservation",
    )


def _disputed(odcr: Odcr, holder: ReservationKey | None) -> ReservationProblem:
    where = f"belongs to {holder}" if holder else "is kept for the CapacityReservation that its tag names"
    return ReservationProblem(
        reason="ReservationDisputed",
        message=f"{odcr.id} {where} and stays with it: take it out of this reservation's annotations and "
        f"group, or give it the tag {names.TAG_RESERVATION} with this one's name",
    )


def _unallowed(
    odcr: Odcr, claimant: ReservationKey, group: ReservationGroup | None, cluster: str
) -> ReservationProblem:
    where = f"namespace {claimant.namespace}" if claimant.namespace else "cluster-wide reservations"
    mend = f"give it, or its group, the tag {names.TAG_RESERVATION}={claimant} in AWS"
    if of_other_cluster(odcr, cluster):
        mend = f"it is {_cluster_text(odcr)}: take it out of this reservation's annotations and group"
    elif group is not None and of_other_cluster(group, cluster):
        named = f"its group {group_name(group.arn)} is {_cluster_text(group)}"
        mend = f"{named}: take that out of this reservation's annotations"
    return ReservationProblem(
        reason="AdoptionNotAllowed",
        message=f"{odcr.id} is not adopted: {mend}; or have the broker's --adopt-by-annotation allow {where}",
    )


def _cluster_text(resource: Odcr | ReservationGroup) -> str:
    name, uid = resource.tags.get(TAG_CLUSTER, ""), resource.tags.get(TAG_CLUSTER_UID)
    return f"of cluster {name!r}{f' with UID {uid}' if uid else ''} by its tags"


def _missing(
    claimant: OwnershipClaim,
    seen: Mapping[str, Odcr],
    groups: Mapping[str, ReservationGroup],
    unread: Mapping[str, str],
) -> list[ReservationProblem]:
    problems = []
    for id_ in sorted(claimant.ids):
        odcr = seen.get(id_)
        if odcr is None or odcr.over:
            state = (
                f"EC2 shows this account no reservation {id_}"
                if odcr is None
                else f"reservation {id_} has ended ({odcr.state})"
            )
            problems.append(
                ReservationProblem(
                    reason="ReservationNotFound",
                    message=f"{state}, and the CapacityReservation names it: correct the annotation",
                )
            )
    if claimant.group_arn in unread:
        problems.append(ReservationProblem(reason="GroupUnreadable", message=unread[claimant.group_arn]))
    elif (arn := claimant.group_arn) and arn not in groups:
        problems.append(
            ReservationProblem(
                reason="GroupNotFound",
                message=f"group {arn} was not found: correct the annotation",
            )
        )
    return problems
