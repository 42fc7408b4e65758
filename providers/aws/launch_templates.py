"""Launch templates that are named by their content.

Invariant: the name is `capacity-broker/` and a hash of the whole template, with the cluster and the class of
its tags. So equal content is one template, and a change makes another. Two clusters or two classes never
share one: each may delete its own at any time. Making is idempotent: EC2 rejects a second template of one
name, which is then adopted. Only templates with this cluster's name, its UID and the prefix are seen.

An invalid template is never built: with a reservation target the only valid preference is
`capacity-reservations-only` (EC2 API Reference, LaunchTemplateCapacityReservationSpecificationRequest). That
preference also keeps a full group from spilling to On-Demand inside EC2. A group without it is for launches
outside reservations that EC2 may count in the group later.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import threading
import uuid
from typing import TYPE_CHECKING, Any

from providers.aws import errors, tags
from providers.aws.account import AwsAccount
from providers.aws.clients import Aws
from providers.aws.clock import utc
from providers.errors import ErrorClass, ProviderError
from providers.launch import (
    RESERVATIONS_ONLY,
    BlockDevice,
    ConnectionTracking,
    NetworkInterface,
    ReservationTarget,
    Template,
    TemplateRef,
)
from providers.names import TAG_CLUSTER, TAG_NODECLASS

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import (
        LaunchTemplateBlockDeviceMappingRequestTypeDef,
        LaunchTemplateInstanceNetworkInterfaceSpecificationRequestTypeDef,
        LaunchTemplateTypeDef,
        RequestLaunchTemplateDataTypeDef,
    )

PREFIX = "capacity-broker/"
PAGE = 200
# Raised when the same content would make another template than before.
FORMAT = 3
SPOT_REQUEST = "spot-instances-request"
# Markets that a template must name; spot and on-demand are the fleet's to choose.
TEMPLATE_MARKETS = ("capacity-block", "interruptible-capacity-reservation")


def template_name(template: Template, *, owner: str, cluster: str, uid: str = "") -> str:
    """The name that equal content has; the order of security groups and of tags is no content."""
    content = dataclasses.asdict(template)
    if not template.target.spills:
        del content["target"]["spills"]  # the field is newer than the names of templates without it
    content["security_group_ids"] = sorted(template.security_group_ids)
    content |= {"owner": owner, "cluster": [cluster, uid] if uid else cluster, "format": FORMAT}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return PREFIX + hashlib.sha256(text.encode()).hexdigest()[:40]


def template_data(template: Template) -> RequestLaunchTemplateDataTypeDef:
    """EC2's LaunchTemplateData."""
    data: RequestLaunchTemplateDataTypeDef = {
        "ImageId": template.image_id,
        "MetadataOptions": {
            "HttpEndpoint": _choice(template.metadata.http_endpoint),
            "HttpTokens": _choice(template.metadata.http_tokens),
            "HttpPutResponseHopLimit": template.metadata.http_put_response_hop_limit,
            "HttpProtocolIpv6": _choice(template.metadata.http_protocol_ipv6),
            # An account's default could be enabled; EC2 then refuses tags with a slash, like the broker's.
            "InstanceMetadataTags": "disabled",
        },
        "Monitoring": {"Enabled": template.detailed_monitoring},
        "Placement": {"Tenancy": _choice(template.tenancy)},
    }
    if template.user_data:
        data["UserData"] = base64.b64encode(template.user_data.encode()).decode()
    if template.placement_group:
        data["Placement"]["GroupName"] = template.placement_group
    if template.placement_group_id:
        data["Placement"]["GroupId"] = template.placement_group_id
    if template.nested_virtualization:
        data["CpuOptions"] = {"NestedVirtualization": _choice(template.nested_virtualization)}
    if template.enclaves:
        data["EnclaveOptions"] = {"Enabled": True}
    if template.instance_profile:
        kind = "Arn" if template.instance_profile.startswith("arn:") else "Name"
        data["IamInstanceProfile"] = {kind: template.instance_profile}  # type: ignore[misc]
    if template.block_devices:
        data["BlockDeviceMappings"] = [_block_device(device) for device in template.block_devices]
    groups = sorted(template.security_group_ids)
    if interfaces := _interfaces(template, groups):
        # EC2 takes the groups only there then.
        data["NetworkInterfaces"] = interfaces
    elif groups:
        data["SecurityGroupIds"] = groups
    if template.market in TEMPLATE_MARKETS:
        data["InstanceMarketOptions"] = {"MarketType": _choice(template.market)}
    if specification := _reservation(template.target, market=template.market):
        data["CapacityReservationSpecification"] = _choice(specification)
    if template.tags:
        listed = tags.to_ec2(tags.checked(template.tags))
        data["TagSpecifications"] = [
            {"ResourceType": "instance", "Tags": listed},
            {"ResourceType": "volume", "Tags": listed},
            {"ResourceType": "network-interface", "Tags": listed},
            # Only a template can tag it (Karpenter, pkg/providers/launchtemplate).
            *([_choice({"ResourceType": SPOT_REQUEST, "Tags": listed})] if template.market == "spot" else []),
        ]
    return data


def _interfaces(
    template: Template, groups: list[str]
) -> list[LaunchTemplateInstanceNetworkInterfaceSpecificationRequestTypeDef]:
    """The template's network interfaces; empty if EC2's default one will do.

    An efa-only interface has no addresses and tracks no connections. The public address is the first
    interface's: EC2 gives none to an instance that is launched with several. In an IPv6 cluster each
    interface has a primary IPv6 address, by which the node and its pods are reached. Its prefixes are IPv6
    then (as in Karpenter, pkg/providers/launchtemplate).
    """
    tracking = template.connection_tracking
    launch_settings = (
        template.associate_public_ip,
        template.ipv4_prefix_count,
        tracking,
        template.primary_ipv6 or None,
    )
    if not template.interfaces and all(interface is None for interface in launch_settings):
        return []
    interfaces: list[LaunchTemplateInstanceNetworkInterfaceSpecificationRequestTypeDef] = []
    for interface in template.interfaces or (NetworkInterface(card=0, device=0),):
        built: dict[str, Any] = {
            "DeviceIndex": interface.device,
            "Groups": groups,
            "DeleteOnTermination": True,
        }
        if template.interfaces:
            built |= {"NetworkCardIndex": interface.card, "InterfaceType": interface.kind}
        if not interfaces:
            built["AssociatePublicIpAddress"] = template.associate_public_ip
        if interface.kind != "efa-only":
            built["Ipv4PrefixCount"] = template.ipv4_prefix_count
            if template.primary_ipv6:
                built |= {
                    "PrimaryIpv6": True,
                    "Ipv6AddressCount": 1,
                    "Ipv6PrefixCount": template.ipv6_prefix_count,
                }
            built["ConnectionTrackingSpecification"] = _tracking(tracking) if tracking else None
        interfaces.append(_choice({key: value for key, value in built.items() if value is not None}))
    return interfaces


def _tracking(tracking: ConnectionTracking) -> dict[str, int]:
    seconds = {
        "TcpEstablishedTimeout": tracking.tcp_established,
        "UdpStreamTimeout": tracking.udp_stream,
        "UdpTimeout": tracking.udp,
    }
    return {name: value for name, value in seconds.items() if value is not None}


def _choice(value: Any) -> Any:
    """A value that EC2 checks against its choices."""
    return value


def _reservation(target: ReservationTarget, *, market: str) -> dict[str, Any]:
    aimed = bool(target.reservation_id or target.group_arn)
    if target.reservation_id and target.group_arn:
        raise ValueError(
            f"a template has one reservation target: {target.reservation_id} or {target.group_arn}, not both"
        )
    if aimed and target.preference not in (None, RESERVATIONS_ONLY):
        raise ValueError(
            f"preference {target.preference} with target {target.reservation_id or target.group_arn}: "
            f"EC2 takes a target only with {RESERVATIONS_ONLY}"
        )
    if market == "spot" and (aimed or target.preference == RESERVATIONS_ONLY):
        raise ValueError(
            "a spot template has no reservation target: spot instances never run in a reservation"
        )
    if not aimed:
        return {"CapacityReservationPreference": target.preference} if target.preference else {}
    kind, value = (
        ("CapacityReservationId", target.reservation_id)
        if target.reservation_id
        else ("CapacityReservationResourceGroupArn", target.group_arn)
    )
    if target.spills and not target.group_arn:
        raise ValueError(f"target {target.reservation_id}: only a launch into a group may run outside it")
    specification: dict[str, Any] = {"CapacityReservationTarget": {kind: value}}
    if not target.spills:
        specification["CapacityReservationPreference"] = RESERVATIONS_ONLY
    return specification


def _block_device(device: BlockDevice) -> LaunchTemplateBlockDeviceMappingRequestTypeDef:
    settings: dict[str, Any] = {
        "VolumeSize": device.volume_size_gib,
        "VolumeType": device.volume_type or None,
        "Iops": device.iops,
        "Throughput": device.throughput,
        "Encrypted": device.encrypted,
        "KmsKeyId": device.kms_key_id or None,
        "SnapshotId": device.snapshot_id or None,
        "VolumeInitializationRate": device.initialization_rate,
        "DeleteOnTermination": device.delete_on_termination,
    }
    return {
        "DeviceName": device.device_name,
        "Ebs": _choice({key: value for key, value in settings.items() if value is not None}),
    }


class LaunchTemplates(AwsAccount):
    """This cluster's templates in EC2, remembered until EC2 reports that they are gone."""

    def __init__(self, aws: Aws, owner: tags.Owner) -> None:
        super().__init__(aws, owner)
        self._known: dict[str, TemplateRef] = {}
        self._lock = threading.Lock()

    def ensure_template(self, template: Template, *, owner: str) -> TemplateRef:
        """The template that holds exactly this."""
        cluster = self._owner
        name = template_name(template, owner=owner, cluster=cluster.name, uid=cluster.uid)
        with self._lock:
            if name in self._known:
                return self._known[name]
        ref = self._create(name, template, owner=owner)
        with self._lock:
            self._known[name] = ref
        return ref

    def templates(self) -> list[TemplateRef]:
        """Those with this cluster's tags and the broker's prefix, oldest first."""
        refs = []
        cluster_filter = [{"Name": f"tag:{TAG_CLUSTER}", "Values": [self._owner.name]}]
        for page in self._aws.pages(
            self._aws.ec2.describe_launch_templates, Filters=_choice(cluster_filter), MaxResults=PAGE
        ):
            refs += [_ref(item) for item in page["LaunchTemplates"] if self._is_owned(item)]
        return sorted(refs, key=lambda ref: (ref.created is not None, ref.created, ref.name))

    def delete_template(self, ref: TemplateRef) -> None:
        """Deletes one of the broker's templates; one that is gone already is success."""
        if not ref.name.startswith(PREFIX):
            raise ValueError(f"launch template {ref.name} is not the broker's: its names start with {PREFIX}")
        self._forget_template(ref)
        with errors.suppressed(ErrorClass.TEMPLATE_GONE):
            if ref.id:
                self._aws.call(self._aws.ec2.delete_launch_template, LaunchTemplateId=ref.id)
            else:
                self._aws.call(self._aws.ec2.delete_launch_template, LaunchTemplateName=ref.name)

    def _forget_template(self, ref: TemplateRef) -> None:
        """Forgets a template that EC2 reports gone: the next `ensure_template` makes it again."""
        with self._lock:
            self._known.pop(ref.name, None)

    def _create(self, name: str, template: Template, *, owner: str) -> TemplateRef:
        own = {**self._owner.labels(), TAG_NODECLASS: owner, "Name": name}
        labels = {**tags.checked(template.tags), **own}
        try:
            answer = self._aws.call(
                self._aws.ec2.create_launch_template,
                LaunchTemplateName=name,
                LaunchTemplateData=template_data(template),
                # New for each making: EC2 answers an old token with the template that was deleted since.
                ClientToken=str(uuid.uuid4()),
                TagSpecifications=[{"ResourceType": "launch-template", "Tags": tags.to_ec2(labels)}],
            )
        except ProviderError as error:
            if not errors.already_exists(error):
                raise
            return self._adopt(name)
        return _ref(answer["LaunchTemplate"])

    def _adopt(self, name: str) -> TemplateRef:
        answer = self._aws.call(self._aws.ec2.describe_launch_templates, LaunchTemplateNames=[name])
        for item in answer["LaunchTemplates"]:
            if self._is_owned(item):
                return _ref(item)
        raise errors.misconfigured(
            "ForeignTemplate",
            f"launch template {name} exists without the tags {self._owner.labels()}: "
            "give it back its tags or delete it",
            operation="CreateLaunchTemplate",
        )

    def _is_owned(self, item: LaunchTemplateTypeDef) -> bool:
        named = item.get("LaunchTemplateName", "").startswith(PREFIX)
        return named and self._owner.ownership_of(tags.from_ec2(item.get("Tags", []))) == "owned"


def _ref(item: LaunchTemplateTypeDef) -> TemplateRef:
    return TemplateRef(
        name=item.get("LaunchTemplateName", ""),
        id=item.get("LaunchTemplateId", ""),
        owner=tags.from_ec2(item.get("Tags", [])).get(TAG_NODECLASS, ""),
        created=utc(item.get("CreateTime")),
    )
