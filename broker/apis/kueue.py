"""Kueue's kinds, as far as the broker reads and renders them, in the shape of v1beta2.

Differences in v1beta1 are converted at the edge (`kueue_versions`); all other modules know one version.
The definitions are Kueue's own and are never shipped. The markers define the list types of server-side
apply, for the definitions in tests. Shapes: Kueue's apis/kueue/v1beta2 (resourceflavor_types.go,
clusterqueue_types.go, localqueue_types.go, cohort_types.go, workload_types.go, admissioncheck_types.go,
workloadpriorityclass_types.go).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import AfterValidator, Field, model_validator

from broker.apis.core import LabelSelector, Taint, Toleration
from broker.apis.kueue_versions import read_cluster_queue
from broker.apis.label_names import by_present_names
from broker.apis.meta import Condition, Kind, Model, Object, Quantity, Time
from broker.apis.ome import PreemptionRule, QuotaGroup
from broker.apis.schema import crd

KUEUE: Final = "kueue.x-k8s.io"
# On a Workload of an elastic job: `namespace/name` of the Workload that it replaces (KEP-77).
REPLACES: Final = "kueue.x-k8s.io/workload-slice-replacement-for"
# On pods: their Workload, by name; and that of a group of plain pods.
OF_WORKLOAD: Final = "kueue.x-k8s.io/workload"
OF_POD_GROUP: Final = "kueue.x-k8s.io/pod-group-name"
# The supported versions, the preferred first.
VERSIONS: Final = ("v1beta2", "v1beta1")

ACTIVE: Final = "Active"
QUOTA_RESERVED: Final = "QuotaReserved"
ADMITTED: Final = "Admitted"
EVICTED: Final = "Evicted"
REQUEUED: Final = "Requeued"
FINISHED: Final = "Finished"
PODS_READY: Final = "PodsReady"

CheckState = Literal["Pending", "Ready", "Retry", "Rejected"]
StopPolicy = Literal["None", "Hold", "HoldAndDrain"]
Search = Literal["MayStopSearch", "TryNextFlavor"]

_ANY: Final[dict[str, Any]] = {"x_kubernetes_preserve_unknown_fields": True}
_ATOMIC: Final[dict[str, Any]] = {"x_kubernetes_list_type": "atomic"}


def _kind(kind: str, *, namespaced: bool = False) -> Kind:
    return Kind(group=KUEUE, version=VERSIONS[0], kind=kind, namespaced=namespaced, versions=VERSIONS)


Conditions = Annotated[tuple[Condition, ...], crd("Kueue's observations.", map_key="type")]


class ResourceFlavorSpec(Model):
    """`node_labels`: by their present names, whatever names the object has."""

    node_labels: Annotated[dict[str, str], AfterValidator(by_present_names)] = Field(default_factory=dict)
    node_taints: tuple[Taint, ...] = ()
    tolerations: tuple[Toleration, ...] = ()


class ResourceFlavor(Object):
    """Nodes of one kind, by their labels."""

    KIND: ClassVar[Kind] = _kind("ResourceFlavor")

    spec: ResourceFlavorSpec = ResourceFlavorSpec()


class FlavorFungibility(Model):
    when_can_borrow: Search = "MayStopSearch"
    when_can_preempt: Search = "TryNextFlavor"


class AdmissionCheckRule(Model):
    """A check, and the flavors of the workloads that it applies to; none: all of them."""

    name: Annotated[str, crd(required=True)]
    on_flavors: Annotated[tuple[str, ...], crd(x_kubernetes_list_type="set")] = ()


class AdmissionChecksStrategy(Model):
    admission_checks: Annotated[tuple[AdmissionCheckRule, ...], crd(map_key="name")] = ()


class ClusterQueueSpec(Model):
    """For groups and preemption, Kueue and OME use the same names."""

    resource_groups: Annotated[tuple[QuotaGroup, ...], crd(maxItems=16, **_ATOMIC)] = ()
    cohort_name: Annotated[str, crd(maxLength=253)] = ""
    queueing_strategy: Literal["StrictFIFO", "BestEffortFIFO"] = "BestEffortFIFO"
    namespace_selector: Annotated[LabelSelector | None, crd(x_kubernetes_map_type="atomic")] = None
    flavor_fungibility: FlavorFungibility = FlavorFungibility()
    preemption: PreemptionRule = PreemptionRule()
    admission_checks_strategy: AdmissionChecksStrategy | None = None
    stop_policy: StopPolicy = "None"


class ClusterQueueStatus(Model):
    conditions: Conditions = ()
    reserving_workloads: int = 0


class ClusterQueue(Object):
    """Quota by flavor, for the selected namespaces."""

    KIND: ClassVar[Kind] = _kind("ClusterQueue")

    spec: ClusterQueueSpec = ClusterQueueSpec()
    status: ClusterQueueStatus = ClusterQueueStatus()

    @model_validator(mode="before")
    @classmethod
    def _as_v1beta2(cls, raw: Any) -> Any:
        return read_cluster_queue(raw) if isinstance(raw, Mapping) else raw


class LocalQueueSpec(Model):
    cluster_queue: Annotated[str, crd(maxLength=253)] = ""
    stop_policy: StopPolicy = "None"


class LocalQueueStatus(Model):
    conditions: Conditions = ()


class LocalQueue(Object):
    """The queue of a namespace for a ClusterQueue."""

    KIND: ClassVar[Kind] = _kind("LocalQueue", namespaced=True)

    spec: LocalQueueSpec = LocalQueueSpec()
    status: LocalQueueStatus = LocalQueueStatus()


class CohortSpec(Model):
    parent_name: str = ""


class Cohort(Object):
    """A node between ClusterQueues and the root of their quota."""

    KIND: ClassVar[Kind] = _kind("Cohort")

    spec: CohortSpec = CohortSpec()


class AdmissionCheckSpec(Model):
    controller_name: str = ""


class AdmissionCheckStatus(Model):
    conditions: Conditions = ()


class AdmissionCheck(Object):
    """A check before a workload with reserved quota is admitted, and its controller."""

    KIND: ClassVar[Kind] = _kind("AdmissionCheck")

    spec: AdmissionCheckSpec = AdmissionCheckSpec()
    status: AdmissionCheckStatus = AdmissionCheckStatus()


class PodSetResources(Model):
    requests: dict[str, Quantity] = Field(default_factory=dict)


class PodSetContainer(Model):
    resources: PodSetResources = PodSetResources()


class PodSetSpec(Model):
    node_selector: dict[str, str] = Field(default_factory=dict)
    containers: tuple[PodSetContainer, ...] = ()


class PodSetMeta(Model):
    annotations: dict[str, str] = Field(default_factory=dict)


class PodSetTemplate(Model):
    metadata: Annotated[PodSetMeta, crd(**_ANY)] = PodSetMeta()
    spec: Annotated[PodSetSpec, crd(**_ANY)] = PodSetSpec()


class PodSet(Model):
    name: Annotated[str, crd(default="main")] = "main"
    count: int = 1
    template: Annotated[PodSetTemplate, crd(**_ANY)] = PodSetTemplate()


class WorkloadSpec(Model):
    queue_name: str = ""
    priority: int = 0
    active: bool = True
    pod_sets: Annotated[tuple[PodSet, ...], crd(map_key="name")] = ()


class PodSetAssignment(Model):
    """`resource_usage` is that of all the set's pods together."""

    name: Annotated[str, crd(default="main")] = "main"
    flavors: dict[str, str] = Field(default_factory=dict)
    resource_usage: dict[str, Quantity] = Field(default_factory=dict)
    count: int | None = None


class Admission(Model):
    cluster_queue: str = ""
    pod_set_assignments: Annotated[tuple[PodSetAssignment, ...], crd(map_key="name")] = ()


class PodSetUpdate(Model):
    name: Annotated[str, crd(required=True)]
    annotations: dict[str, str] = Field(default_factory=dict)
    node_selector: dict[str, str] = Field(default_factory=dict)


class AdmissionCheckState(Model):
    name: Annotated[str, crd(required=True)]
    state: Annotated[CheckState, crd(required=True)] = "Pending"
    message: Annotated[str, crd(required=True)] = ""
    last_transition_time: Annotated[Time | None, crd(required=True)] = None
    requeue_after_seconds: int | None = None
    retry_count: int = 0
    pod_set_updates: Annotated[tuple[PodSetUpdate, ...], crd(**_ATOMIC)] = ()


class ReclaimablePod(Model):
    """Pods of a set that no longer hold quota."""

    name: Annotated[str, crd(required=True)]
    count: Annotated[int, crd(required=True)] = 0


class RequeueState(Model):
    """Kueue queues an evicted workload again when `requeue_at` has passed."""

    count: int | None = None
    requeue_at: Time | None = None


class WorkloadStatus(Model):
    """`accumulated_past_execution_time_seconds` is set if the workload was admitted and no longer is."""

    conditions: Conditions = ()
    admission: Admission | None = None
    admission_checks: Annotated[tuple[AdmissionCheckState, ...], crd(map_key="name")] = ()
    reclaimable_pods: Annotated[tuple[ReclaimablePod, ...], crd(map_key="name")] = ()
    requeue_state: RequeueState | None = None
    accumulated_past_execution_time_seconds: int | None = None


class Workload(Object):
    """Pods that are admitted together."""

    KIND: ClassVar[Kind] = _kind("Workload", namespaced=True)

    spec: WorkloadSpec = WorkloadSpec()
    status: WorkloadStatus = WorkloadStatus()


class WorkloadPriorityClass(Object):
    """Priority of a workload in its queue, apart from its pods'."""

    KIND: ClassVar[Kind] = _kind("WorkloadPriorityClass")

    value: int = 0


class PriorityClass(Object):
    """Kubernetes' own: https://kubernetes.io/docs/concepts/scheduling-eviction/pod-priority-preemption/"""

    KIND: ClassVar[Kind] = Kind(group="scheduling.k8s.io", version="v1", kind="PriorityClass")

    value: int = 0
    global_default: bool = False


class Namespace(Object):
    KIND: ClassVar[Kind] = Kind(group="", version="v1", kind="Namespace")
