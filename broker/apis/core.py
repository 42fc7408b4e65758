"""The core group as far as the broker uses it: nodes, pods, and the events that it writes.

https://kubernetes.io/docs/reference/kubernetes-api/. Fields that no decision reads are left out, so
10,000 pods need little memory. A condition of a Pod or a Node may come without a transition time.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final

from pydantic import Field

from broker.apis import names
from broker.apis.disks import AwsElasticBlockStore, GcePersistentDisk, IscsiDisk, RbdImage
from broker.apis.meta import (
    Condition,
    Kind,
    MicroTime,
    Model,
    Object,
    Quantity,
    Time,
    condition,
    instance_of,
    is_true,
)
from broker.apis.schema import crd

# The condition of a pod that the scheduler sets, and its reason if no node has room.
POD_SCHEDULED: Final = "PodScheduled"
UNSCHEDULABLE: Final = "Unschedulable"
FAILED: Final = "Failed"
RESIZE_PENDING: Final = "PodResizePending"
INFEASIBLE: Final = "Infeasible"
ENDED: Final = ("Succeeded", FAILED)

LABEL_KEY = (
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*(\/))?"
    r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]$"
)
LABEL_VALUE = r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$"


class Taint(Model):
    """Repels pods that do not tolerate it from the node."""

    key: Annotated[str, crd("The taint's key.", required=True, minLength=1, pattern=LABEL_KEY)]
    value: Annotated[str, crd("The taint's value.", pattern=LABEL_KEY)] = ""
    effect: Annotated[
        str,
        crd("The effect on such a pod.", required=True, enum=["NoSchedule", "PreferNoSchedule", "NoExecute"]),
    ] = ""
    time_added: Annotated[Time | None, crd("When the taint was added.")] = None


class NodeSpec(Model):
    # As everywhere in Kubernetes, an acronym keeps its capitals.
    provider_id: str = Field(default="", alias="providerID")
    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()


class NodeSystemInfo(Model):
    """The identifiers that the kubelet reports; `boot_id` changes with each boot."""

    boot_id: str = Field(default="", alias="bootID")


class AttachedVolume(Model):
    """A volume that kube-controller-manager has attached to the node."""

    name: str = ""


class NodeStatus(Model):
    capacity: dict[str, Quantity] = Field(default_factory=dict)
    allocatable: dict[str, Quantity] = Field(default_factory=dict)
    conditions: tuple[Condition, ...] = ()
    node_info: NodeSystemInfo = NodeSystemInfo()
    volumes_attached: tuple[AttachedVolume, ...] = ()


class Node(Object):
    KIND: ClassVar[Kind] = Kind(group="", version="v1", kind="Node")

    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()

    @property
    def instance_id(self) -> str:
        """Empty until its cloud controller has found the instance."""
        return instance_of(self.spec.provider_id)

    @property
    def ready(self) -> bool:
        """Whether the kubelet reports the node as ready."""
        return is_true(self, names.READY)

    @property
    def disrupted(self) -> bool:
        """Whether the node's taint keeps new pods off it, because it is about to end."""
        return any(taint.key == names.DISRUPTED_TAINT for taint in self.spec.taints)

    @property
    def rebooting(self) -> bool:
        """Whether the node's taint keeps new pods off it, because it is rebooted."""
        return any(taint.key == names.REBOOTING_TAINT for taint in self.spec.taints)


class Toleration(Model):
    """A taint that pods tolerate."""

    key: Annotated[str, crd("The taint's key; empty for every key.")] = ""
    operator: Annotated[str, crd("Equal or Exists.")] = "Equal"
    value: Annotated[str, crd("The taint's value.")] = ""
    effect: Annotated[str, crd("The taint's effect; empty for every effect.")] = ""
    toleration_seconds: Annotated[
        int | None, crd("For how long a NoExecute taint is tolerated.", format="int64")
    ] = None


class NodeSelectorRequirement(Model):
    """One test of a node's labels; all tests of a term must pass."""

    key: Annotated[str, crd("The label key that is tested.", required=True)]
    operator: Annotated[str, crd("In, NotIn, Exists, DoesNotExist, Gt or Lt.", required=True)]
    values: Annotated[
        tuple[str, ...], crd("The values that the label is compared with.", x_kubernetes_list_type="atomic")
    ] = ()


class NodeSelectorTerm(Model):
    match_expressions: tuple[NodeSelectorRequirement, ...] = ()
    match_fields: tuple[NodeSelectorRequirement, ...] = ()


class NodeSelector(Model):
    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()


class PreferredSchedulingTerm(Model):
    weight: int
    preference: NodeSelectorTerm


class LabelSelectorRequirement(Model):
    """One test of a label; all tests of a selector must pass."""

    key: Annotated[str, crd("The label key that is tested.")] = ""
    operator: Annotated[str, crd("In, NotIn, Exists or DoesNotExist.")] = ""
    values: Annotated[
        tuple[str, ...], crd("The values that the label is compared with.", x_kubernetes_list_type="atomic")
    ] = ()


class LabelSelector(Model):
    """Both parts must match. An empty selector matches everything, a missing one nothing."""

    match_labels: Annotated[dict[str, str], crd("Labels with their values.")] = Field(default_factory=dict)
    match_expressions: Annotated[
        tuple[LabelSelectorRequirement, ...], crd("Tests of labels.", x_kubernetes_list_type="atomic")
    ] = ()


class NodeAffinity(Model):
    required_during_scheduling_ignored_during_execution: NodeSelector | None = None
    preferred_during_scheduling_ignored_during_execution: tuple[PreferredSchedulingTerm, ...] = ()


class PodAffinityTerm(Model):
    """The pods of a selector and the topology that they share."""

    label_selector: LabelSelector | None = None
    topology_key: str = ""
    namespaces: tuple[str, ...] = ()
    namespace_selector: LabelSelector | None = None
    match_label_keys: tuple[str, ...] = ()
    mismatch_label_keys: tuple[str, ...] = ()


class WeightedPodAffinityTerm(Model):
    weight: int
    pod_affinity_term: PodAffinityTerm


class PodAffinity(Model):
    """Affinity and anti-affinity between pods have the same shape."""

    required_during_scheduling_ignored_during_execution: tuple[PodAffinityTerm, ...] = ()
    preferred_during_scheduling_ignored_during_execution: tuple[WeightedPodAffinityTerm, ...] = ()


class Affinity(Model):
    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class TopologySpreadConstraint(Model):
    max_skew: int = 1
    min_domains: int | None = None
    topology_key: str = ""
    when_unsatisfiable: str = ""
    label_selector: LabelSelector | None = None
    node_affinity_policy: str = "Honor"
    node_taints_policy: str = "Ignore"
    match_label_keys: tuple[str, ...] = ()


class Resources(Model):
    requests: dict[str, Quantity] = Field(default_factory=dict)
    limits: dict[str, Quantity] = Field(default_factory=dict)


class ContainerPort(Model):
    container_port: int = 0
    host_port: int = 0
    protocol: str = "TCP"
    host_ip: str = Field(default="", alias="hostIP")


class Container(Model):
    name: str = ""
    resources: Resources = Resources()
    restart_policy: str = ""
    ports: tuple[ContainerPort, ...] = ()


class ClaimVolume(Model):
    claim_name: str = ""


class Volume(Model):
    """A pod's volume, as far as a node can have it or not. Only the presence of `ephemeral` counts."""

    name: str = ""
    persistent_volume_claim: ClaimVolume | None = None
    ephemeral: dict[str, Any] | None = None
    gce_persistent_disk: GcePersistentDisk | None = None
    aws_elastic_block_store: AwsElasticBlockStore | None = None
    iscsi: IscsiDisk | None = None
    rbd: RbdImage | None = None


class SchedulingGate(Model):
    """A reason of its own not to schedule the pod yet."""

    name: str = ""


class PodSchedulingGroup(Model):
    """The PodGroup of a pod, since Kubernetes 1.36."""

    pod_group_name: str = ""


class PodWorkloadRef(Model):
    """The pod group of a Workload, in Kubernetes 1.35."""

    name: str = ""
    pod_group: str = ""
    pod_group_replica_key: str = ""


class PodResourceClaim(Model):
    """Devices that the pod asks for by dynamic resource allocation."""

    name: str = ""


class PodSpec(Model):
    node_name: str = ""
    node_selector: dict[str, str] = Field(default_factory=dict)
    affinity: Affinity | None = None
    tolerations: tuple[Toleration, ...] = ()
    priority: int = 0
    priority_class_name: str = ""
    scheduler_name: str = ""
    scheduling_gates: tuple[SchedulingGate, ...] = ()
    resource_claims: tuple[PodResourceClaim, ...] = ()
    scheduling_group: PodSchedulingGroup | None = None
    workload_ref: PodWorkloadRef | None = None
    preemption_policy: str = ""
    termination_grace_period_seconds: int | None = None
    active_deadline_seconds: int | None = None
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    overhead: dict[str, Quantity] = Field(default_factory=dict)
    resources: Resources = Resources()
    host_network: bool = False
    topology_spread_constraints: tuple[TopologySpreadConstraint, ...] = ()
    volumes: tuple[Volume, ...] = ()


class ContainerStatus(Model):
    """The resources that the container has: they differ from the spec while a resize is pending."""

    name: str = ""
    allocated_resources: dict[str, Quantity] = Field(default_factory=dict)
    resources: Resources = Resources()


class PodStatus(Model):
    phase: str = ""
    reason: str = ""
    start_time: Time | None = None
    nominated_node_name: str = ""
    conditions: tuple[Condition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    # Of the pod as a whole.
    allocated_resources: dict[str, Quantity] = Field(default_factory=dict)
    resources: Resources = Resources()


class Pod(Object):
    KIND: ClassVar[Kind] = Kind(group="", version="v1", kind="Pod", namespaced=True)

    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def ended(self) -> bool:
        """Whether its containers have ended for good."""
        return self.status.phase in ENDED

    @property
    def waits(self) -> bool:
        """Whether it still needs a node."""
        return not self.spec.node_name and not self.deleting and not self.ended

    @property
    def sizes(self) -> object:
        """The parts that its requests follow from: they change when it is resized."""
        status, pending = self.status, condition(self.status.conditions, RESIZE_PENDING)
        given = (status.container_statuses, status.init_container_statuses)
        return self.spec, *given, status.allocated_resources, status.resources, pending and pending.reason

    @property
    def scheduled(self) -> Condition | None:
        """The scheduler's condition."""
        return condition(self.status.conditions, POD_SCHEDULED)


class ConfigMap(Object):
    KIND: ClassVar[Kind] = Kind(group="", version="v1", kind="ConfigMap", namespaced=True)

    data: dict[str, str] = Field(default_factory=dict)


class ResourceQuotaSpec(Model):
    hard: dict[str, Quantity] = Field(default_factory=dict)
    scopes: tuple[str, ...] = ()
    scope_selector: dict[str, Any] | None = None


class ResourceQuota(Object):
    KIND: ClassVar[Kind] = Kind(group="", version="v1", kind="ResourceQuota", namespaced=True)

    spec: ResourceQuotaSpec = ResourceQuotaSpec()


class ObjectReference(Model):
    api_version: str = ""
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    resource_version: str = ""
    field_path: str = ""


class EventSource(Model):
    component: str = ""
    host: str = ""


class EventSeries(Model):
    """The repeats of an event, as kube-scheduler writes them."""

    count: int = 0
    last_observed_time: MicroTime | None = None


class Event(Object):
    KIND: ClassVar[Kind] = Kind(group="", version="v1", kind="Event", namespaced=True)

    involved_object: ObjectReference = ObjectReference()
    type: str = "Normal"
    reason: str = ""
    message: str = ""
    count: int = 0
    first_timestamp: Time | None = None
    last_timestamp: Time | None = None
    event_time: MicroTime | None = None
    series: EventSeries = EventSeries()
    source: EventSource = EventSource()
    reporting_component: str = ""
    reporting_instance: str = ""
