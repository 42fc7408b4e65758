"""OME's DedicatedAICluster and its profile: machines held for one tenant, out of a reservation.

`resources` of a cluster is all that it wants; left out, it wants its profile's, `count` times. OME's
concept page says it so, and its example's numbers agree with nothing else.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from broker.apis.meta import QUANTITY, Condition, Kind, Model, Object, Text, Time
from broker.apis.ome import OME, SIZE_RULE, DedicatedState, FlavorUsage
from broker.apis.schema import SchemaRule, crd

Amounts = dict[
    str,
    Annotated[
        Text,
        crd(
            anyOf=[{"type": "integer"}, {"type": "string"}], pattern=QUANTITY, x_kubernetes_int_or_string=True
        ),
    ],
]


class ResourceRequirements(Model):
    """Amounts by resource."""

    requests: Annotated[Amounts, crd("What is wanted.", maxProperties=64)] = Field(default_factory=dict)
    limits: Annotated[Amounts, crd("What may be used at most.", maxProperties=64)] = Field(
        default_factory=dict
    )


class ClusterToleration(Model):
    """A taint that the cluster's pods put up with."""

    key: Annotated[str, crd("The taint's key; empty for every key.")] = ""
    operator: Annotated[str, crd("Equal or Exists.")] = "Equal"
    value: Annotated[str, crd("The taint's value.")] = ""
    effect: Annotated[str, crd("The taint's effect; empty for every effect.")] = ""
    toleration_seconds: Annotated[
        int | None, crd("For how long a NoExecute taint is tolerated.", format="int64")
    ] = None


class NodeLabelRequirement(Model):
    """One test of a node's labels."""

    key: Annotated[str, crd("The label.", required=True)]
    operator: Annotated[str, crd("In, NotIn, Exists, DoesNotExist, Gt or Lt.", required=True)]
    values: Annotated[
        tuple[str, ...], crd("The values that the label is tested for.", x_kubernetes_list_type="atomic")
    ] = ()


class SelectorTerm(Model):
    """Tests that a node must all pass."""

    match_expressions: Annotated[
        tuple[NodeLabelRequirement, ...], crd("Tests of the node's labels.", x_kubernetes_list_type="atomic")
    ] = ()


class ClusterNodeSelector(Model):
    """Terms of which a node must pass one."""

    node_selector_terms: Annotated[
        tuple[SelectorTerm, ...], crd("Any of these will do.", required=True, x_kubernetes_list_type="atomic")
    ] = ()


class PreferredTerm(Model):
    """A term that a node had better pass."""

    weight: Annotated[int, crd("1 to 100.", required=True, format="int32", minimum=1, maximum=100)] = 1
    preference: Annotated[SelectorTerm, crd("The term.", required=True)] = SelectorTerm()


class ClusterNodeAffinity(Model):
    """Which nodes are wanted."""

    required_during_scheduling_ignored_during_execution: Annotated[
        ClusterNodeSelector | None, crd("Nodes must pass this.")
    ] = None
    preferred_during_scheduling_ignored_during_execution: Annotated[
        tuple[PreferredTerm, ...],
        crd("Nodes that pass these come first.", x_kubernetes_list_type="atomic"),
    ] = ()


class ClusterAffinity(Model):
    """Where the cluster's pods are wanted."""

    node_affinity: Annotated[ClusterNodeAffinity | None, crd("Which nodes are wanted.")] = None


class Placement(Model):
    """What cluster and profile share; the cluster's word comes first."""

    count: Annotated[int | None, crd("How many units.", format="int32", minimum=0)] = None
    affinity: Annotated[ClusterAffinity | None, crd("Where its pods are wanted.")] = None
    tolerations: Annotated[
        tuple[ClusterToleration, ...],
        crd("Taints that its pods put up with.", x_kubernetes_list_type="atomic"),
    ] = ()
    node_selector: Annotated[dict[str, str], crd("Labels that its nodes have.")] = Field(default_factory=dict)
    priority_class_name: Annotated[str, crd("Priority of its pods.", maxLength=253)] = ""


class DedicatedAIClusterSpec(Placement):
    """How large the cluster is, and which reservation it draws from."""

    RULES: ClassVar[tuple[SchemaRule, ...]] = (SIZE_RULE,)

    profile: Annotated[str, crd("The DedicatedAIClusterProfile of one unit.", maxLength=253)] = ""
    resources: Annotated[
        ResourceRequirements | None,
        crd("All that the cluster wants; left out, its profile's, count times."),
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
        str, crd("Whose quota: namespace/name, or the name of a ClusterCapacityReservation.", required=True)
    ]
    reserved_at: Annotated[Time | None, crd("Since when it is held.")] = None
    priority: Annotated[
        int | None,
        crd(
            "What its priority class was worth last; it counts while the class is not there.", format="int32"
        ),
    ] = None
    flavors: Annotated[
        tuple[FlavorUsage, ...],
        crd("How much, by flavor.", x_kubernetes_list_type="map", x_kubernetes_list_map_keys=["name"]),
    ] = ()


class DedicatedAIClusterStatus(Model):
    """How far the cluster is."""

    dac_lifecycle_state: Annotated[DedicatedState | None, crd("Where in its life the cluster is.")] = None
    lifecycle_detail: Annotated[str, crd("Why it is there, and what would help.")] = ""
    available_gpu: Annotated[int | None, crd("GPUs that its nodes have ready.", format="int32")] = None
    allocated_gpu: Annotated[int | None, crd("GPUs that it holds.", format="int32")] = None
    admission: Annotated[DedicatedAdmission | None, crd("The quota that it holds; none while it waits.")] = (
        None
    )
    conditions: Annotated[
        tuple[Condition, ...],
        crd("What is known of it.", x_kubernetes_list_type="map", x_kubernetes_list_map_keys=["type"]),
    ] = ()


class DedicatedAICluster(Object):
    """Machines held for one tenant, out of a capacity reservation."""

    KIND: ClassVar[Kind] = Kind(
        group=OME,
        version="v1beta1",
        kind="DedicatedAICluster",
        plural="dedicatedaiclusters",
        namespaced=False,
    )

    spec: Annotated[
        DedicatedAIClusterSpec, crd("How large it is, and where it draws from.", required=True)
    ] = DedicatedAIClusterSpec()
    status: Annotated[DedicatedAIClusterStatus, crd("How far it is.")] = DedicatedAIClusterStatus()


class DedicatedAIClusterProfileSpec(Placement):
    """What one unit of a cluster is."""

    disabled: Annotated[bool, crd("Whether no new cluster may use it.")] = False
    resources: Annotated[ResourceRequirements, crd("What one unit wants.", required=True)] = (
        ResourceRequirements()
    )


class DedicatedAIClusterProfile(Object):
    """A size of dedicated clusters, under a name."""

    KIND: ClassVar[Kind] = Kind(
        group=OME,
        version="v1beta1",
        kind="DedicatedAIClusterProfile",
        plural="dedicatedaiclusterprofiles",
        namespaced=False,
    )

    spec: Annotated[DedicatedAIClusterProfileSpec, crd("What one unit is.", required=True)] = (
        DedicatedAIClusterProfileSpec()
    )
