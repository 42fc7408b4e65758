"""A cluster at rest as the broker leaves it: claims, nodes and instances, each with its full status.

Half of the claims run, one node each, five to a reservation. The other half wait for reservations with every
slot taken. Sizes are those of real objects. A node lists the images of its kubelet; an instance has
the fields of one with a network interface, two volumes and a launch's tags.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

from broker.apis import names
from broker.capacity.types import node_labels
from providers.model import InstanceType, Odcr
from providers.names import TAG_CLUSTER, TAG_NODECLASS
from tests.cluster import objects
from tests.cluster.account import CLUSTER

Json = dict[str, Any]
TYPES = (
    "m5.large",
    "m5.xlarge",
    "m5.2xlarge",
    "c5.large",
    "c5.xlarge",
    "c5.2xlarge",
    "r5.large",
    "r5.xlarge",
)
ZONES = ("us-east-1a", "us-east-1b", "us-east-1c")
SLOTS = 5  # of each reservation, all taken
SINCE = "2026-01-05T08:00:00Z"
IMAGES = 25  # of the 50 that a kubelet lists at most
CLASSES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A reservation with one of its slots, which the instance of this number has."""

    number: int
    odcr: Odcr

    @property
    def instance(self) -> str:
        return f"i-{0xABC00000000000000 + self.number:017x}"

    @property
    def node(self) -> str:
        return f"ip-10-{self.number >> 16 & 255}-{self.number >> 8 & 255}-{self.number & 255}.ec2.internal"

    @property
    def provider_id(self) -> str:
        return f"aws:///{self.odcr.zone}/{self.instance}"

    @property
    def node_class(self) -> str:
        return class_name(self.number // SLOTS)


def class_name(odcr: int) -> str:
    """The class with the group of a reservation."""
    return f"class-{odcr % CLASSES}"


def places(odcrs: Sequence[Odcr], running: int) -> Iterator[Place]:
    for number in range(running):
        yield Place(number=number, odcr=odcrs[number // SLOTS % len(odcrs)])


def running(place: Place, type_: InstanceType) -> tuple[Json, Json]:
    """A claim that is ready, and its node."""
    odcr = place.odcr
    claim_body = objects.claim(
        f"run-{place.number:05}",
        node_class=place.node_class,
        types=(odcr.instance_type,),
        capacity=(objects.RESERVED,),
        zones=(odcr.zone,),
        pool="general",
    )
    facts = node_labels(type_, odcr.zone, zone_id=odcr.zone_id, odcr=odcr)
    meta = _meta(claim_body["metadata"]["name"])
    labels = {**claim_body["metadata"]["labels"], **facts}
    resources = {"cpu": str(type_.vcpus), "memory": f"{type_.memory_mib}Mi", "pods": str(type_.max_pods)}
    claim = {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodeClaim",
        "metadata": {
            **meta,
            "labels": labels,
            "annotations": {names.LAUNCH: f"{place.number:032x}", "capacity-broker.io/attempts": _ATTEMPTS},
            "finalizers": [names.TERMINATION_FINALIZER],
        },
        "spec": {**claim_body["spec"], "expireAfter": "Never"},
        "status": {
            "providerID": place.provider_id,
            "imageID": "ami-0123456789abcdef0",
            "nodeName": place.node,
            "capacity": resources,
            "allocatable": resources,
            "conditions": [
                _condition(kind, place.number)
                for kind in (
                    names.LAUNCHED,
                    names.REGISTERED_CONDITION,
                    names.INITIALIZED_CONDITION,
                    names.READY,
                )
            ],
        },
    }
    return claim, _node(place, claim, resources)


def waiting(number: int, odcrs: Sequence[Odcr]) -> Json:
    """A claim without a free slot in any reservation."""
    odcr = odcrs[number % len(odcrs)]
    claim_body = objects.claim(
        f"wait-{number:05}",
        node_class=class_name(number % len(odcrs)),
        types=(odcr.instance_type,),
        capacity=(objects.RESERVED,),
        pool="general",
    )
    return {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodeClaim",
        "metadata": {**claim_body["metadata"], **_meta(claim_body["metadata"]["name"])},
        "spec": {**claim_body["spec"], "expireAfter": "Never"},
        "status": {},
    }


def described(place: Place) -> str:
    """The instance as DescribeInstances shows it (EC2 API Reference, type Instance)."""
    odcr, number = place.odcr, place.number
    address = f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"
    hexed = f"{number:017x}"
    tags = {
        TAG_CLUSTER: CLUSTER,
        TAG_NODECLASS: place.node_class,
        names.TAG_LAUNCH: f"{number:032x}",
        "Name": place.node,
        "team": "machine-learning",
        "aws:ec2:fleet-id": "fleet-01234567-89ab-cdef-0123-456789abcdef",
        "aws:ec2launchtemplate:version": "1",
        "aws:ec2launchtemplate:id": "lt-0123456789abcdef0",
    }
    listed = "".join(
        f"<item><key>{escape(k)}</key><value>{escape(v)}</value></item>" for k, v in tags.items()
    )
    return _INSTANCE.format(
        id=place.instance,
        type=odcr.instance_type,
        zone=odcr.zone,
        zone_id=odcr.zone_id,
        odcr=odcr.id,
        dns=place.node,
        address=address,
        hexed=hexed,
        tags=listed,
    )


def _node(place: Place, claim: Json, resources: Mapping[str, str]) -> Json:
    labels = {
        **claim["metadata"]["labels"],
        names.REGISTERED: "true",
        names.INITIALIZED: "true",
        names.HOSTNAME: place.node,
    }
    chosen = random.Random(place.number)
    images = [
        {
            "names": [
                f"registry.example.com/team/{name}@sha256:{chosen.getrandbits(256):064x}",
                f"registry.example.com/team/{name}:v1.{chosen.randint(0, 99)}.{chosen.randint(0, 9)}",
            ],
            "sizeBytes": chosen.randint(10**6, 10**9),
        }
        for name in (f"service-{chosen.randint(0, 500)}" for _ in range(IMAGES))
    ]
    conditions = [
        {
            "type": kind,
            "status": "True" if kind == names.READY else "False",
            "reason": f"Kubelet{kind}",
            "message": f"kubelet reports {kind}",
            "lastHeartbeatTime": _moment(place.number + 60),
            "lastTransitionTime": _moment(place.number),
        }
        for kind in ("MemoryPressure", "DiskPressure", "PIDPressure", names.READY)
    ]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            **_meta(place.node),
            "labels": labels,
            "annotations": {
                f"{names.BROKER}/nodeclass": place.node_class,
                "node.alpha.kubernetes.io/ttl": "0",
                "volumes.kubernetes.io/controller-managed-attach-detach": "true",
            },
            "finalizers": [names.TERMINATION_FINALIZER],
            "ownerReferences": [
                {
                    "apiVersion": "karpenter.sh/v1",
                    "kind": "NodeClaim",
                    "name": claim["metadata"]["name"],
                    "uid": claim["metadata"]["uid"],
                    "controller": False,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "spec": {"providerID": place.provider_id},
        "status": {
            "capacity": dict(resources),
            "allocatable": dict(resources),
            "conditions": conditions,
            "addresses": [{"type": "InternalDNS", "address": place.node}],
            "nodeInfo": {"kubeletVersion": "v1.34.1-eks-1234567", "architecture": "amd64"},
            "images": images,
        },
    }


def _meta(name: str) -> Json:
    return {
        "name": name,
        "uid": f"{abs(hash(name)) % 2**128:032x}",
        "generation": 1,
        "creationTimestamp": SINCE,
        "managedFields": [
            {
                "manager": manager,
                "operation": "Apply",
                "apiVersion": "v1",
                "time": SINCE,
                "fieldsType": "FieldsV1",
                "fieldsV1": {f"f:{part}": {".": {}} for part in ("metadata", "spec", "status")},
            }
            for manager in ("karpenter", "capacity-broker", "kubelet")
        ],
    }


def _condition(kind: str, number: int) -> Json:
    return {
        "type": kind,
        "status": "True",
        "reason": kind,
        "message": "",
        "lastTransitionTime": _moment(number),
        "observedGeneration": 1,
    }


def _moment(number: int) -> str:
    """No two objects have the same times."""
    return f"2026-01-{5 + number // 3600 % 20:02}T08:{number // 60 % 60:02}:{number % 60:02}Z"


_ATTEMPTS = (
    '[{"pool":"reserved:m5.large:us-east-1a:arn:aws:resource-groups:us-east-1:123456789012:group/class-0",'
    '"outcome":"Launched","at":"2026-01-05T08:00:00Z","instanceID":"i-0abc","requestID":'
    '"59dbff89-35bd-4eac-99ed-be587ed81825"}]'
)
_INSTANCE = """<item><reservationId>r-{hexed}</reservationId><ownerId>123456789012</ownerId><groupSet/>\
<instancesSet><item><instanceId>{id}</instanceId><imageId>ami-0123456789abcdef0</imageId><instanceState>\
<code>16</code><name>running</name></instanceState><privateDnsName>{dns}</privateDnsName><dnsName/><reason/>\
<amiLaunchIndex>0</amiLaunchIndex><productCodes/><instanceType>{type}</instanceType>\
<launchTime>2026-01-05T08:00:00.000Z</launchTime><placement><availabilityZone>{zone}</availabilityZone>\
<availabilityZoneId>{zone_id}</availabilityZoneId><groupName/><tenancy>default</tenancy></placement>\
<monitoring><state>disabled</state></monitoring><subnetId>subnet-{hexed}</subnetId><vpcId>vpc-{hexed}</vpcId>\
<privateIpAddress>{address}</privateIpAddress><sourceDestCheck>true</sourceDestCheck><groupSet><item>\
<groupId>sg-{hexed}</groupId><groupName>nodes</groupName></item></groupSet><architecture>x86_64</architecture>\
<rootDeviceType>ebs</rootDeviceType><rootDeviceName>/dev/xvda</rootDeviceName><blockDeviceMapping><item>\
<deviceName>/dev/xvda</deviceName><ebs><volumeId>vol-{hexed}</volumeId><status>attached</status>\
<attachTime>2026-01-05T08:00:01.000Z</attachTime><deleteOnTermination>true</deleteOnTermination></ebs></item>\
<item><deviceName>/dev/xvdb</deviceName><ebs><volumeId>vol-{hexed}</volumeId><status>attached</status>\
<attachTime>2026-01-05T08:00:01.000Z</attachTime><deleteOnTermination>true</deleteOnTermination></ebs></item>\
</blockDeviceMapping><virtualizationType>hvm</virtualizationType><clientToken>fleet-{hexed}</clientToken>\
<tagSet>{tags}</tagSet><hypervisor>xen</hypervisor><networkInterfaceSet><item><networkInterfaceId>eni-{hexed}\
</networkInterfaceId><subnetId>subnet-{hexed}</subnetId><vpcId>vpc-{hexed}</vpcId><description/>\
<ownerId>123456789012</ownerId><status>in-use</status><macAddress>02:00:00:00:00:00</macAddress>\
<privateIpAddress>{address}</privateIpAddress><privateDnsName>{dns}</privateDnsName>\
<sourceDestCheck>true</sourceDestCheck><groupSet><item><groupId>sg-{hexed}</groupId><groupName>nodes\
</groupName></item></groupSet><attachment><attachmentId>eni-attach-{hexed}</attachmentId><deviceIndex>0\
</deviceIndex><status>attached</status><attachTime>2026-01-05T08:00:00.000Z</attachTime><deleteOnTermination>\
true</deleteOnTermination><networkCardIndex>0</networkCardIndex></attachment><privateIpAddressesSet><item>\
<privateIpAddress>{address}</privateIpAddress><privateDnsName>{dns}</privateDnsName><primary>true</primary>\
</item></privateIpAddressesSet><ipv6AddressesSet/><interfaceType>interface</interfaceType></item>\
</networkInterfaceSet><iamInstanceProfile><arn>arn:aws:iam::123456789012:instance-profile/nodes</arn>\
<id>AIPAEXAMPLEEXAMPLE</id></iamInstanceProfile><ebsOptimized>true</ebsOptimized><enaSupport>true</enaSupport>\
<cpuOptions><coreCount>1</coreCount><threadsPerCore>2</threadsPerCore></cpuOptions>\
<capacityReservationId>{odcr}</capacityReservationId><capacityReservationSpecification>\
<capacityReservationPreference>capacity-reservations-only</capacityReservationPreference>\
<capacityReservationTarget><capacityReservationResourceGroupArn>arn:aws:resource-groups:us-east-1:123456789012:\
group/nodes</capacityReservationResourceGroupArn></capacityReservationTarget></capacityReservationSpecification>\
<hibernationOptions><configured>false</configured></hibernationOptions><metadataOptions><state>applied</state>\
<httpTokens>required</httpTokens><httpPutResponseHopLimit>1</httpPutResponseHopLimit><httpEndpoint>enabled\
</httpEndpoint><httpProtocolIpv6>disabled</httpProtocolIpv6><instanceMetadataTags>disabled\
</instanceMetadataTags></metadataOptions><enclaveOptions><enabled>false</enabled></enclaveOptions>\
<platformDetails>Linux/UNIX</platformDetails><usageOperation>RunInstances</usageOperation>\
<usageOperationUpdateTime>2026-01-05T08:00:00.000Z</usageOperationUpdateTime><privateDnsNameOptions>\
<hostnameType>ip-name</hostnameType><enableResourceNameDnsARecord>false</enableResourceNameDnsARecord>\
<enableResourceNameDnsAAAARecord>false</enableResourceNameDnsAAAARecord></privateDnsNameOptions>\
<maintenanceOptions><autoRecovery>default</autoRecovery></maintenanceOptions><currentInstanceBootMode>uefi\
</currentInstanceBootMode></item></instancesSet></item>"""
