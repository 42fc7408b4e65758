"""OME's DedicatedAICluster and its profile: machines held for one tenant, out of a reservation.

`resources` of a cluster is its total request; if it is empty, the request is `count` times that of its
profile. That is the definition of OME's concept page; the numbers of its example match no rule.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from broker.apis.core import NodeSelectorRequirement, Toleration
from broker.apis.meta import Condition, Kind, Model, Object, Quantity, Time
from broker.apis.ome import OME, SIZE_RULE, DedicatedState, FlavorUsage
from broker.apis.schema import SchemaRule, crd


class ResourceRequirements(Model):
    """Amounts by resource."""

    requests: Annotated[dict[str, Quantity], crd("The requested amounts.", maxProperties=64)] = Field(
        default_factory=dict
    )
    limits: Annotated[dict[str, Quantity], crd("The limits.", maxProperties=64)] = Field(default_factory=dict)


class SelectorTerm(Model):
    """Tests that a node must all pass."""

    match_expressions: Annotated[
        tuple[NodeSelectorRequirement, ...],
        crd("Tests of the node's labels.", x_kubernetes_list_type="atomic"),
    ] = ()


class ClusterNodeSelector(Model):
    """Terms of which a node must pass one."""

    node_selector_terms: Annotated[
        tuple[SelectorTerm, ...], crd("Any of these will do.", required=True, x_kubernetes_list_type="atomic")
    ] = ()


class PreferredTerm(Model):
    """A term that nodes should pass."""

    weight: Annotated[int, crd("1 to 100.", required=True, format="int32", minimum=1, maximum=100)] = 1
    preference: Annotated[SelectorTerm, crd("The term.", required=True)] = SelectorTerm()


class ClusterNodeAffinity(Model):
    """The required and the preferred nodes."""

    required_during_scheduling_ignored_during_execution: Annotated[
        ClusterNodeSelector | None, crd("Nodes must pass this.")
    ] = None
    preferred_during_scheduling_ignored_during_execution: Annotated[
        tuple[PreferredTerm, ...],
        crd("Nodes that pass these come first.", x_kubernetes_list_type="atomic"),
    ] = ()


class ClusterAffinity(Model):
    """The placement of the cluster's pods."""

    node_affinity: Annotated[ClusterNodeAffinity | None, crd("The required and the preferred nodes.")] = None


class Placement(Model):
    """The common fields of cluster and profile; the cluster's values come first."""

    count: Annotated[int | None, crd("How many units.", format="int32", minimum=0)] = None
    affinity: Annotated[ClusterAffinity | None, crd("The placement of its pods.")] = None
    tolerations: Annotated[
        tuple[Toleration, ...],
        crd("Taints that its pods tolerate.", x_kubernetes_list_type="atomic"),
    ] = ()
    node_selector: Annotated[dict[str, str], crd("Labels that its nodes have.")] = Field(default_factory=dict)
    priority_class_name: Annotated[str, crd("Priority of its pods.", maxLength=253)] = ""


class DedicatedAIClusterSpec(Placement):
    """The size of the cluster, and its reservation."""

    RULES: ClassVar[tuple[SchemaRule, ...]] = (SIZE_RULE,)

    profile: Annotated[str, crd("The DedicatedAIClusterProfile of one unit.", maxLength=253)] = ""
    resources: Annotated[
        ResourceRequirements | None,
        crd("The cluster's total request; if empty, that of its profile, count times."),
    ] = None
    capacity_reservation_id: Annotated[
        str,
        crd(
            "The reservation: namespace/name, or the name of a ClusterCapacityReservation, or a name that "
            "only one CapacityReservation has.",
            maxLength=507,
        ),
    ] = ""
    compartment_id: Annotated[str, crd("The account or compartment that pays.", maxLength=253)] = Field(
        default="", alias="compartmentID"
    )


class DedicatedAdmission(Model):
    """The quota that the cluster holds, until its instances are gone."""

    reservation: Annotated[
        str,
        crd("The reservation: namespace/name, or the name of a ClusterCapacityReservation.", required=True),
    ]
    reserved_at: Annotated[Time | None, crd("Since when it is held.")] = None
    priority: Annotated[
        int | None,
        crd(
            "The last value of its priority class; it counts while the class does not exist.", format="int32"
        ),
    ] = None
    flavors: Annotated[
        tuple[FlavorUsage, ...],
        crd("The amounts, by flavor.", map_key="name"),
    ] = ()


class DedicatedAIClusterStatus(Model):
    """The state of the cluster."""

    dac_lifecycle_state: Annotated[DedicatedState | None, crd("The state of the cluster.")] = None
    lifecycle_detail: Annotated[str, crd("The reason for the state, and how to resolve it.")] = ""
    available_gpu: Annotated[int | None, crd("GPUs that its nodes have ready.", format="int32")] = None
    allocated_gpu: Annotated[int | None, crd("GPUs that it holds.", format="int32")] = None
    admission: Annotated[DedicatedAdmission | None, crd("The quota that it holds; none while it waits.")] = (
        None
    )
    conditions: Annotated[
        tuple[Condition, ...],
        crd("Conditions of the cluster.", map_key="type"),
    ] = ()


class DedicatedAICluster(Object):
    """Machines held for one tenant, out of a capacity reservation."""

    KIND: ClassVar[Kind] = Kind(group=OME, version="v1beta1", kind="DedicatedAICluster")

    spec: Annotated[DedicatedAIClusterSpec, crd("Its size, and its reservation.", required=True)] = (
        DedicatedAIClusterSpec()
    )
    status: Annotated[DedicatedAIClusterStatus, crd("Its state.")] = DedicatedAIClusterStatus()


class DedicatedAIClusterProfileSpec(Placement):
    """One unit of a cluster."""

    disabled: Annotated[bool, crd("Whether no new cluster may use it.")] = False
    resources: Annotated[ResourceRequirements, crd("The request of one unit.", required=True)] = (
        ResourceRequirements()
    )


class DedicatedAIClusterProfile(Object):
    """A named size of dedicated clusters."""

    KIND: ClassVar[Kind] = Kind(group=OME, version="v1beta1", kind="DedicatedAIClusterProfile")

    spec: Annotated[DedicatedAIClusterProfileSpec, crd("One unit of a cluster.", required=True)] = (
        DedicatedAIClusterProfileSpec()
    )
