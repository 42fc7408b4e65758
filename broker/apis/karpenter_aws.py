"""karpenter.k8s.aws: EC2NodeClass, Karpenter's class of instances, with `capacityReservationSpec` added.

Fields are those of Karpenter's AWS provider 1.15 (its CRD karpenter.k8s.aws_ec2nodeclasses.yaml). v1 and
v1beta1 are stored alike and converted by name only, so one schema serves both. Values allowed in v1beta1
alone (no amiSelectorTerms, amiFamily Ubuntu) are allowed in both. Otherwise an object written at one
version could not be patched at the other. A cluster with Karpenter keeps its own CRD; there the fields
marked as the broker's are pruned unless they are added to it.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from broker.apis import names
from broker.apis.core import NodeSelectorRequirement
from broker.apis.karpenter_aws_accepted import load
from broker.apis.karpenter_aws_kubelet import KUBELET, KubeletConfiguration
from broker.apis.karpenter_aws_launch import (
    METADATA_DEFAULT,
    BlockDeviceMapping,
    ConnectionTrackingSpec,
    CpuOptions,
    EnclaveOptions,
    MetadataOptionsSpec,
    MetadataOptionsV1Beta1,
    NetworkInterfaceSpec,
)
from broker.apis.karpenter_aws_terms import (
    ACCOUNT,
    AMI_FAMILIES,
    AMISelectorTerm,
    CapacityReservationSelectorTerm,
    PlacementGroupSelector,
    SecurityGroupSelectorTerm,
    SubnetSelectorTerm,
    alone,
    at_least_one,
)
from broker.apis.meta import Condition, Kind, Model, Object, Time
from broker.apis.reservation_spec import (
    ID,
    CapacityReservationSpec,
    ReservationSettings,
    reservation_settings,
)
from broker.apis.schema import SchemaRule, crd


class EC2NodeClassSpec(Model):
    """The launch settings of this class's instances."""

    RULES: ClassVar[tuple[SchemaRule, ...]] = (
        SchemaRule(
            "has(self.role) != has(self.instanceProfile)",
            "exactly one of role and instanceProfile must be set",
        ),
        SchemaRule(
            "has(self.amiFamily) || (has(self.amiSelectorTerms) && "
            "self.amiSelectorTerms.exists(x, has(x.alias)))",
            "amiFamily must be set unless a term of amiSelectorTerms has an alias, which sets the family",
        ),
        *(
            SchemaRule(
                "!has(self.amiFamily) || !has(self.amiSelectorTerms) || "
                f"self.amiFamily in ['{family}', 'Custom'] || "
                f"!self.amiSelectorTerms.exists(x, has(x.alias) && x.alias.startsWith('{alias}@'))",
                f"amiFamily must be {family}, Custom or left out with an {alias} alias in amiSelectorTerms",
            )
            for alias, family in AMI_FAMILIES.items()
        ),
    )

    ami_family: Annotated[
        str,
        crd(
            "Format of the user data and default block devices; an alias in amiSelectorTerms implies it.",
            enum=[*AMI_FAMILIES.values(), "Ubuntu", "Custom"],
        ),
    ] = ""
    ami_selector_terms: Annotated[
        tuple[AMISelectorTerm, ...],
        crd(
            "AMIs to launch. Left out (v1beta1), the newest EKS optimized AMI of amiFamily.",
            at_least_one("tags", "id", "name", "alias", "ssmParameter"),
            alone("id", "alias", "tags", "name", "owner", every=False),
            alone("alias", "id", "tags", "name", "owner", every=False),
            SchemaRule(
                "self.size() == 1 || !self.exists(x, has(x.alias))",
                "a term with 'alias' must be the only term of amiSelectorTerms",
            ),
            minItems=1,
            maxItems=30,
        ),
    ] = ()
    subnet_selector_terms: Annotated[
        tuple[SubnetSelectorTerm, ...],
        crd(
            "Subnets, and by them zones, to launch into.",
            SchemaRule("self.size() != 0", "subnetSelectorTerms must have at least one term"),
            at_least_one("tags", "id"),
            alone("id", "tags"),
            required=True,
            maxItems=30,
        ),
    ] = ()
    security_group_selector_terms: Annotated[
        tuple[SecurityGroupSelectorTerm, ...],
        crd(
            "Security groups of the instances.",
            SchemaRule("self.size() != 0", "securityGroupSelectorTerms must have at least one term"),
            at_least_one("tags", "id", "name"),
            alone("id", "tags", "name"),
            alone("name", "tags", "id"),
            required=True,
            maxItems=30,
        ),
    ] = ()
    capacity_reservation_selector_terms: Annotated[
        tuple[CapacityReservationSelectorTerm, ...],
        crd(
            "Capacity reservations that Karpenter may launch into.",
            at_least_one("tags", "id", "instanceMatchCriteria"),
            alone("id", "tags", "ownerID", "instanceMatchCriteria"),
            maxItems=30,
        ),
    ] = ()
    capacity_reservation_spec: Annotated[CapacityReservationSpec | None, crd()] = None
    role: Annotated[
        str,
        crd("IAM role of the nodes; excludes instanceProfile.", SchemaRule("self != ''", "role is empty")),
    ] = ""
    instance_profile: Annotated[
        str,
        crd(
            "Instance profile of the nodes, with its role; excludes role.",
            SchemaRule("self != ''", "instanceProfile is empty"),
        ),
    ] = ""
    user_data: Annotated[str, crd("Merged into the user data of amiFamily.")] = ""
    tags: Annotated[
        dict[str, str],
        crd(
            "Tags of all that is made for the class, its instance profile and spot requests too.",
            SchemaRule("self.all(k, k != '')", "a tag needs a key"),
            SchemaRule(
                f"self.all(k, !(k in {list(names.RESTRICTED_TAGS)}))",
                f"{', '.join(names.RESTRICTED_TAGS)} are set by the launching controller",
            ),
            SchemaRule(
                f"self.all(k, !k.startsWith('{names.TAG_KUBERNETES_CLUSTER}'))",
                f"{names.TAG_KUBERNETES_CLUSTER}/... is set by the launching controller",
            ),
        ),
    ] = Field(default_factory=dict)
    block_device_mappings: Annotated[
        tuple[BlockDeviceMapping, ...],
        crd(
            "Volumes of the instances.",
            SchemaRule(
                "self.filter(x, has(x.rootVolume) && x.rootVolume).size() <= 1",
                "at most one of blockDeviceMappings may be rootVolume",
            ),
            maxItems=50,
        ),
    ] = ()
    metadata_options: Annotated[MetadataOptionsSpec, crd(default=METADATA_DEFAULT)] = MetadataOptionsSpec()
    detailed_monitoring: Annotated[bool | None, crd("One-minute metrics in CloudWatch.")] = None
    associate_public_ip_address: Annotated[bool | None, crd("Whether instances get a public IP address.")] = (
        Field(default=None, alias="associatePublicIPAddress")
    )
    ip_prefix_count: Annotated[
        int | None, crd("IPv4 prefixes of the primary network interface.", format="int32", minimum=0)
    ] = Field(default=None, alias="ipPrefixCount")
    network_interfaces: Annotated[
        tuple[NetworkInterfaceSpec, ...],
        crd(
            "Network interfaces, instead of the type's own.",
            SchemaRule(
                "self.size() == 0 || self.exists(x, x.deviceIndex == 0 && x.networkCardIndex == 0 && "
                "x.interfaceType == 'interface')",
                "networkInterfaces must hold the primary one: deviceIndex 0, networkCardIndex 0, "
                "interfaceType interface",
            ),
            SchemaRule(
                "self.all(x, self.filter(y, x.networkCardIndex == y.networkCardIndex && "
                "x.deviceIndex == y.deviceIndex).size() == 1)",
                "networkInterfaces must differ in networkCardIndex or deviceIndex",
            ),
            SchemaRule(
                "self.all(x, x.interfaceType != 'efa-only' || self.filter(y, "
                "y.interfaceType == 'efa-only' && x.networkCardIndex == y.networkCardIndex).size() == 1)",
                "networkInterfaces may have one efa-only interface a network card",
            ),
            maxItems=150,
        ),
    ] = ()
    connection_tracking: Annotated[ConnectionTrackingSpec | None, crd()] = None
    cpu_options: Annotated[CpuOptions | None, crd()] = None
    enclave_options: Annotated[EnclaveOptions | None, crd()] = None
    kubelet: Annotated[KubeletConfiguration | None, KUBELET] = None
    instance_store_policy: Annotated[str, crd("The use of instance-store disks.", enum=["RAID0"])] = ""
    placement_group_selector: Annotated[PlacementGroupSelector | None, crd()] = None
    context: Annotated[str, crd("Reserved by EC2 (CreateFleet's Context).")] = ""


class ResolvedSubnet(Model):
    """A subnet that the class resolved to."""

    id: Annotated[str, crd("Id of the subnet.", required=True)]
    zone: Annotated[str, crd("Its availability zone.", required=True)] = ""
    zone_id: Annotated[str, crd("Id of that zone, the same in all accounts.")] = Field(
        default="", alias="zoneID"
    )


class ResolvedSecurityGroup(Model):
    """A security group that the class resolved to."""

    id: Annotated[str, crd("Id of the security group.", required=True)]
    name: Annotated[str, crd("Its name.")] = ""


class AMI(Model):
    """An AMI that the class resolved to, and its instance types."""

    id: Annotated[str, crd("Id of the AMI.", required=True)]
    name: Annotated[str, crd("Its name.")] = ""
    deprecated: Annotated[bool | None, crd("Whether its owner deprecated it.")] = None
    requirements: Annotated[
        tuple[NodeSelectorRequirement, ...], crd("Requirements on instance types that run it.", required=True)
    ] = ()


class ResolvedReservation(Model):
    """A capacity reservation that the class may use. The two counts are the broker's."""

    id: Annotated[str, crd("Id of the reservation.", required=True, pattern=ID)]
    availability_zone: Annotated[str, crd("Its zone.", required=True)] = ""
    instance_type: Annotated[str, crd("Its instance type.", required=True)] = ""
    instance_match_criteria: Annotated[
        str, crd("How instances are matched to it.", required=True, enum=["open", "targeted"])
    ] = ""
    owner_id: Annotated[str, crd("Account that owns it.", required=True, pattern=ACCOUNT)] = Field(
        default="", alias="ownerID"
    )
    reservation_type: Annotated[
        str, crd("Its type.", default="default", enum=["default", "capacity-block"])
    ] = "default"
    interruptible: Annotated[bool, crd("Whether its owner may reclaim it.")] = False
    state: Annotated[
        str,
        crd(
            "active; expiring if EC2 is about to reclaim it; pending (the broker's) if it is about to start.",
            default="active",
            enum=["active", "expiring", "pending"],
        ),
    ] = "active"
    end_time: Annotated[Time | None, crd("When it ends; empty if it has no end.")] = None
    total_instance_count: Annotated[int | None, crd("Its slots.", format="int32", minimum=0)] = None
    available_instance_count: Annotated[int | None, crd("Its free slots.", format="int32", minimum=0)] = None


class CapacityReservationMisfit(Model):
    """A selected capacity reservation that cannot be used, and the reason. A field of the broker's."""

    id: Annotated[str, crd("Id of the reservation, or of the group that could not be read.", required=True)]
    reason: Annotated[str, crd("The reason, in one CamelCase word.", required=True)] = ""
    message: Annotated[str, crd("The reason, in a sentence with both values.")] = ""
    code: Annotated[str, crd("EC2's own error code, if any.")] = ""


class EC2NodeClassStatus(Model):
    """The resources that the class resolved to."""

    subnets: Annotated[tuple[ResolvedSubnet, ...], crd("Subnets to launch into.")] = ()
    security_groups: Annotated[tuple[ResolvedSecurityGroup, ...], crd("Security groups of instances.")] = ()
    amis: Annotated[tuple[AMI, ...], crd("AMIs to launch.")] = ()
    instance_profile: Annotated[str, crd("Instance profile of instances.")] = ""
    capacity_reservations: Annotated[
        tuple[ResolvedReservation, ...], crd("Capacity reservations that the class may use.")
    ] = ()
    capacity_reservation_misfits: Annotated[
        tuple[CapacityReservationMisfit, ...],
        crd("Capacity reservations that were selected and cannot be used."),
    ] = ()
    # An atomic list, as in Karpenter's CRD: each writer keeps the other party's entries.
    conditions: Annotated[tuple[Condition, ...], crd("Conditions of the class.")] = ()


class EC2NodeClass(Object):
    """A class of EC2 instances: their launch settings, and the capacity reservations that they use."""

    KIND: ClassVar[Kind] = Kind(group=names.KARPENTER_AWS, version="v1", kind="EC2NodeClass")

    spec: EC2NodeClassSpec = EC2NodeClassSpec()
    status: EC2NodeClassStatus = EC2NodeClassStatus()

    @property
    def reservation_settings(self) -> ReservationSettings:
        """The class's reservation settings: from the field, or the annotation.

        If the definition has lost the field, the broker's copy of it counts before the
        annotation.
        """
        field = self.spec.capacity_reservation_spec
        if field is None and (accepted := load(self.annotations.get(names.ACCEPTED_SPEC))):
            field = accepted.spec
        return reservation_settings(field, annotation=self.annotations.get(names.RESERVATION_SPEC))


class EC2NodeClassSpecV1Beta1(EC2NodeClassSpec):
    """The launch settings of this class's instances."""

    metadata_options: Annotated[
        MetadataOptionsV1Beta1, crd(default={**METADATA_DEFAULT, "httpPutResponseHopLimit": 2})
    ] = MetadataOptionsV1Beta1()


class EC2NodeClassV1Beta1(EC2NodeClass):
    """A class of EC2 instances, under its older version: v1 with another default in metadataOptions."""

    KIND: ClassVar[Kind] = Kind(group=names.KARPENTER_AWS, version="v1beta1", kind="EC2NodeClass")

    spec: EC2NodeClassSpecV1Beta1 = EC2NodeClassSpecV1Beta1()
