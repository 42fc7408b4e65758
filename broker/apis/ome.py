"""OME's kinds: reservations of teams, and the clusters that use them.

A CapacityReservation is quota by flavor, shared in a cohort; it is not EC2's reservation. Names and
shapes follow OME's capacity reservation concept (ome.io/v1beta1). Inside `resourceGroups` and
`preemptionRule` they follow Kueue's ClusterQueue (kueue.x-k8s.io/v1beta1). The schema refuses specs
without a meaning. A spec with a meaning that Kueue does not accept (`Any` for borrowing, a covered
resource without quota) is accepted here and handled by `ome_rules`.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field

from broker.apis.meta import QUANTITY, Condition, Kind, Model, Object, Text, Time
from broker.apis.schema import SchemaRule, crd
from broker.text import counted

OME: Final = "ome.io"

LifecycleState = Literal["Active", "Creating", "Deleting", "Failed", "Updating"]
DedicatedState = Literal["ACTIVE", "CREATING", "DELETING", "FAILED", "UPDATING"]
# Condition types of a reservation.
RESERVATION_CONDITIONS: Final = (
    "Ready",
    "ResourcesSufficient",
    "ResourcesProvisioned",
    "DACAssociationsHealthy",
    "WorkloadsHealthy",
)
# Set only if the effective spec differs from the written spec.
SPEC_NORMALIZED: Final = "SpecNormalized"

_NAME: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
# Not a CEL rule: over all groups, flavors and resources it would exceed the cost limit.
_AMOUNT: Final[dict[str, object]] = {
    "anyOf": [{"type": "integer"}, {"type": "string"}],
    "minimum": 0,
    "pattern": QUANTITY.replace(r"^(\+|-)?", r"^\+?"),
    "x_kubernetes_int_or_string": True,
}
GROUPS_RULE: Final = SchemaRule(
    "size(self) > 0", "No resource groups specified: name at least one, with its coveredResources and flavors"
)
PREEMPTION_RULE: Final = SchemaRule(
    "!(has(self.borrowWithinCohort) && has(self.borrowWithinCohort.policy) && "
    "self.borrowWithinCohort.policy != 'Never' && "
    "(!has(self.reclaimWithinCohort) || self.reclaimWithinCohort == 'Never'))",
    "borrowWithinCohort needs reclaimWithinCohort: set it to Any or LowerPriority, or borrowWithinCohort's "
    "policy to Never",
)
SIZE_RULE: Final = SchemaRule(
    "has(self.resources) || has(self.count) || has(self.profile)",
    "the cluster's size is not set: set resources, or a profile and a count",
)


class FlavorResourceQuota(Model):
    """Quota of one resource in a flavor."""

    name: Annotated[
        str, crd("The resource, such as nvidia.com/gpu, cpu or memory.", required=True, maxLength=316)
    ]
    nominal_quota: Annotated[Text, crd("The nominal quota of the reservation.", required=True, **_AMOUNT)] = (
        "0"
    )
    borrowing_limit: Annotated[
        Text | None,
        crd("The most that it may use of the cohort's idle quota; unlimited if empty.", **_AMOUNT),
    ] = None
    lending_limit: Annotated[
        Text | None,
        crd("The most of its idle quota that the cohort may use; all of it if empty.", **_AMOUNT),
    ] = None


class FlavorQuotas(Model):
    """A flavor and the quota of each covered resource in it."""

    name: Annotated[str, crd("The ResourceFlavor.", required=True, maxLength=253, pattern=_NAME)]
    resources: Annotated[
        tuple[FlavorResourceQuota, ...],
        crd(
            "Quota of each covered resource.",
            required=True,
            minItems=1,
            maxItems=64,
            map_key="name",
        ),
    ] = ()


class QuotaGroup(Model):
    """Resources that share one flavor, chosen from these flavors in order."""

    covered_resources: Annotated[
        tuple[Annotated[str, crd(maxLength=316)], ...],
        crd(
            "The resources of the group.",
            required=True,
            minItems=1,
            maxItems=64,
            x_kubernetes_list_type="set",
        ),
    ] = ()
    flavors: Annotated[
        tuple[FlavorQuotas, ...],
        crd(
            "The flavors, in the order in which they are tried.",
            required=True,
            minItems=1,
            maxItems=64,
            map_key="name",
        ),
    ] = ()


class BorrowWithinCohort(Model):
    """Whether workloads of other reservations may be preempted if this one borrows."""

    policy: Annotated[
        Literal["Never", "LowerPriority", "Any"],
        crd("Never, or LowerPriority. Any is taken as LowerPriority."),
    ] = "Never"
    max_priority_threshold: Annotated[
        int | None, crd("Only workloads up to this priority are preempted.", format="int32")
    ] = None


class PreemptionRule(Model):
    """The workloads that the reservation's workloads may preempt."""

    RULES: ClassVar[tuple[SchemaRule, ...]] = (PREEMPTION_RULE,)

    reclaim_within_cohort: Annotated[
        Literal["Never", "LowerPriority", "Any"] | None,
        crd("The workloads that may be preempted to reclaim the nominal quota from the cohort."),
    ] = None
    borrow_within_cohort: Annotated[
        BorrowWithinCohort | None, crd("Preemption in the cohort while borrowing.")
    ] = None
    within_cluster_queue: Annotated[
        Literal["Never", "LowerPriority", "LowerOrNewerEqualPriority"] | None,
        crd("Which of the reservation's own workloads may be preempted."),
    ] = None


class ReservationSpec(Model):
    """The reserved quota, and how it is shared."""

    resource_groups: Annotated[
        tuple[QuotaGroup, ...],
        crd("The reserved quota.", GROUPS_RULE, required=True, maxItems=16, x_kubernetes_list_type="atomic"),
    ] = ()
    cohort: Annotated[
        str, crd("Reservations of one cohort share idle quota.", maxLength=253, pattern=f"{_NAME[:-1]}$|^$")
    ] = ""
    preemption_rule: Annotated[
        PreemptionRule | None,
        crd("If empty, nothing is reclaimed, and lower priority is preempted in the reservation itself."),
    ] = None
    priority_class_name: Annotated[
        str, crd("Priority of the workloads that use the reservation.", maxLength=253)
    ] = ""
    allow_borrowing: Annotated[
        bool, crd("Whether it may use the cohort's idle quota. It lends in either case.")
    ] = False
    compartment_id: Annotated[
        str, crd("The account or compartment that pays; set as a tag on purchases.", maxLength=253)
    ] = Field(default="", alias="compartmentID")


class ResourceUsage(Model):
    """An amount of one resource."""

    name: Annotated[str, crd("The resource.", required=True)]
    total: Annotated[Text | None, crd("The amount in all.", **_AMOUNT)] = None
    borrowed: Annotated[Text | None, crd("The part of it that is borrowed from the cohort.", **_AMOUNT)] = (
        None
    )


class FlavorUsage(Model):
    """Amounts in one flavor."""

    name: Annotated[str, crd("The flavor.", required=True)]
    resources: Annotated[
        tuple[ResourceUsage, ...],
        crd("Amounts by resource.", map_key="name"),
    ] = ()


class AssociationUsage(Model):
    """The usage of one user of the reservation."""

    name: Annotated[
        str,
        crd("A DedicatedAICluster's name, or a workload's namespace and name with a slash.", required=True),
    ]
    usage: Annotated[tuple[FlavorUsage, ...], crd("Amounts by flavor.", map_key="name")] = ()


class CloudReservation(Model):
    """A reservation of EC2's that belongs to this one, as EC2 last described it."""

    id: Annotated[str, crd("Its id in EC2.", required=True)]
    flavor: Annotated[str, crd("The flavor that it serves.")] = ""
    state: Annotated[str, crd("Its state in EC2, such as active or scheduled.")] = ""
    total: Annotated[int, crd("Its slots.", format="int32", minimum=0)] = 0
    available: Annotated[int, crd("Its free slots.", format="int32", minimum=0)] = 0
    lent: Annotated[
        int,
        crd(
            "Instances that it lent to an interruptible reservation; `total` is without them.",
            format="int32",
            minimum=0,
        ),
    ] = 0
    lent_to: Annotated[str, crd("The interruptible reservation that it lends to.")] = ""
    kind: Annotated[str, crd("default, capacity-block or interruptible.")] = ""
    owner_id: Annotated[str, crd("The account that owns it.")] = Field(default="", alias="ownerID")
    start: Annotated[Time | None, crd("When it starts, or started.")] = None
    end: Annotated[Time | None, crd("When it ends; empty if it has no end.")] = None


class ReservationSummary(Model):
    """Sums over all flavors and accelerators, for `kubectl get`."""

    gpu_total: Annotated[int, crd("Accelerators of the nominal quota.", format="int64")] = 0
    gpu_allocated: Annotated[
        int, crd("Accelerators in use, by the quota that users hold.", format="int64")
    ] = 0
    gpu_borrowed: Annotated[int, crd("Accelerators borrowed from the cohort.", format="int64")] = 0
    gpu_allocatable: Annotated[int, crd("Accelerators of machines that can be used now.", format="int64")] = 0
    dacs: Annotated[int, crd("DedicatedAIClusters that draw from it.", format="int32")] = 0

    @property
    def text(self) -> str:
        """The accelerators for people: those of the quota, and those of machines, which may differ."""
        return (
            f"quota: {self.gpu_allocated} of {counted(self.gpu_total, 'accelerator')} used, "
            f"{self.gpu_borrowed} borrowed; machines: {self.gpu_allocatable} usable now"
        )


class ReservationStatus(Model):
    """The supply, the allocatable part of it, and its users."""

    capacity_reservation_lifecycle_state: Annotated[
        LifecycleState | None, crd("The state of the reservation.")
    ] = None
    lifecycle_detail: Annotated[str, crd("The reason for the state, and how to resolve it.")] = ""
    capacity: Annotated[tuple[FlavorUsage, ...], crd("Nominal quota by flavor.", map_key="name")] = ()
    allocatable: Annotated[
        tuple[FlavorUsage, ...], crd("Capacity without the part that is unavailable now.", map_key="name")
    ] = ()
    allocated: Annotated[
        tuple[FlavorUsage, ...], crd("The used amounts, and the borrowed part of them.", map_key="name")
    ] = ()
    free: Annotated[tuple[FlavorUsage, ...], crd("Allocatable less used.", map_key="name")] = ()
    association_usages: Annotated[
        tuple[AssociationUsage, ...], crd("The users, and the usage of each.", map_key="name")
    ] = ()
    cloud_reservations: Annotated[
        tuple[CloudReservation, ...],
        crd(
            "EC2's reservations that belong to it.",
            map_key="id",
        ),
    ] = ()
    reservation_group_arn: Annotated[str, crd("The group of those that the broker manages.")] = Field(
        default="", alias="reservationGroupARN"
    )
    summary: Annotated[ReservationSummary | None, crd("Sums, for kubectl get.")] = None
    conditions: Annotated[
        tuple[Condition, ...],
        crd(
            f"{', '.join(RESERVATION_CONDITIONS)}; and SpecNormalized if a field of the spec is "
            "not applied as written.",
            map_key="type",
        ),
    ] = ()


class CapacityReservation(Object):
    """Quota that a team reserves: an amount of each resource in each flavor, shared in a cohort."""

    KIND: ClassVar[Kind] = Kind(group=OME, version="v1beta1", kind="CapacityReservation", namespaced=True)

    spec: Annotated[ReservationSpec, crd("The reserved quota, and how it is shared.", required=True)] = (
        ReservationSpec()
    )
    status: Annotated[ReservationStatus, crd("The state of the reservation.")] = ReservationStatus()


class ClusterCapacityReservation(Object):
    """Quota that is reserved for the whole cluster: a CapacityReservation without a namespace."""

    KIND: ClassVar[Kind] = Kind(group=OME, version="v1beta1", kind="ClusterCapacityReservation")

    spec: Annotated[ReservationSpec, crd("The reserved quota, and how it is shared.", required=True)] = (
        ReservationSpec()
    )
    status: Annotated[ReservationStatus, crd("The state of the reservation.")] = ReservationStatus()
