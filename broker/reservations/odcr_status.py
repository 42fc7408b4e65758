"""One reservation's EC2 side, and its consequences for the reservation's status."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from broker.apis import names
from broker.quota.usage import ReservationKey
from broker.reservations.desired import FlavorCount
from broker.reservations.ownership import Ownership, ReservationProblem
from broker.text import counted, format_time

BUYING, SHORT = "CloudReservationPending", "InsufficientCapacity"
# Reasons that keep a deleted reservation's purchases from being released.
DELETION_BLOCKERS = frozenset(
    {
        "CapacityLent",
        "InstancesRunning",
        "PurchaseSkipped",
        "ChangeRefused",
        "GroupUnreadable",
        "ReservationNotDescribed",
    }
)
# Reasons why a flavor means no EC2 instances: no failure if nothing is to be bought.
FLAVOR_REASONS = frozenset(
    {
        "FlavorNotFound",
        "FlavorNotReserved",
        "FlavorWithoutInstanceType",
        "InstanceTypeUnknown",
        "InstanceTypeNotOffered",
        "ZoneUnknown",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OdcrStatus:
    """One reservation's EC2 side. `managed`: its policy is Manage."""

    managed: bool = False
    flavors: Mapping[str, FlavorCount] = field(default_factory=dict)
    group_arn: str = ""
    problems: tuple[ReservationProblem, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OdcrSnapshot:
    """Ownership and fulfilment of ODCRs, all from one pass over one description of EC2.

    `ownership`: None before the first pass. `deletable`: by reservation, the uid of each deleted object
    without remaining work in EC2.
    """

    ownership: Ownership | None = None
    statuses: Mapping[ReservationKey, OdcrStatus] = field(default_factory=dict)
    deletable: Mapping[ReservationKey, str] = field(default_factory=dict)

    @property
    def known(self) -> bool:
        """Whether there was a pass."""
        return self.ownership is not None

    @property
    def owned(self) -> Ownership:
        """The owner of each ODCR; empty before the first pass."""
        return self.ownership or NOTHING_OWNED

    def status(self, reserved: ReservationKey) -> OdcrStatus:
        """A reservation's status; an empty one for a reservation that no pass has seen."""
        return self.statuses.get(reserved, UNSEEN)

    def is_deletable(self, reserved: ReservationKey, *, uid: str = "") -> bool:
        """Whether a pass saw the object deleted, and no remaining work in EC2 before it may go.

        `uid` distinguishes an object from an earlier one of its name.
        """
        return reserved in self.deletable and uid in ("", self.deletable[reserved])


NOTHING_OWNED: Final = Ownership()
UNSEEN: Final = OdcrStatus()
NO_ODCRS: Final = OdcrSnapshot()


def _share(flavor: str, count: FlavorCount) -> str:
    verb = "is" if 1 in (count.obtained, count.wanted) else "are"
    return f"flavor {flavor}: {count.obtained} of {counted(count.wanted, 'instance')} {verb}"


def purchase_failures(status: OdcrStatus) -> list[ReservationProblem]:
    """Purchases in progress and their problems, and problems of the ODCRs that the reservation claims."""
    troubles = []
    for name, count in sorted(status.flavors.items()):
        if status.managed and count.obtained < count.wanted:
            retry = f"; the next attempt is at {format_time(count.retry_at)}" if count.retry_at else ""
            refused = f": {count.code}: {count.message}{retry}" if count.code else ""
            troubles.append(
                ReservationProblem(
                    reason=BUYING if count.buying else SHORT,
                    message=f"{_share(name, count)} reserved in EC2{refused}",
                    pending=count.buying,
                )
            )
    troubles += [
        problem for problem in status.problems if status.managed or problem.reason not in FLAVOR_REASONS
    ]
    return troubles


def unreleased(status: OdcrStatus) -> str:
    """Why the purchases of a deleted reservation are not released yet."""
    blockers = "; ".join(
        problem.message for problem in status.problems if problem.reason in DELETION_BLOCKERS
    )
    return blockers or "its EC2 reservations are being checked"


def remedies(status: OdcrStatus, reserved: ReservationKey) -> list[str]:
    """The status of a reservation without purchases: the reserved instances, and ways to get more."""
    if status.managed:
        bought = status.flavors or status.problems
        return [] if bought else ["lower nominalQuota, or add nodes of its flavors"]
    short = [
        f"{_share(name, count)} in EC2 reservations of its own"
        for name, count in sorted(status.flavors.items())
        if count.obtained < count.wanted
    ]
    short += [problem.message for problem in status.problems if problem.reason in FLAVOR_REASONS]
    return [
        *short,
        f"the broker buys none, since annotation {names.RESERVATION_POLICY} is Observe: set it to Manage, "
        "which the broker's --buy-dollars has to allow; or reserve instances with the tag "
        f"{names.TAG_RESERVATION}={reserved}, as terraform/modules/capacity-reservations does; or add nodes "
        "of the flavor, or lower nominalQuota",
    ]
