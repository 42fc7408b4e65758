"""karpenter.k8s.aws: the parts of an EC2NodeClass that are copied into launch templates.

Fields and limits are those of Karpenter's AWS provider 1.15 (karpenter.k8s.aws_ec2nodeclasses.yaml). They
are EC2's RequestLaunchTemplateData:
https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_RequestLaunchTemplateData.html
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from broker.apis.meta import Model, Text
from broker.apis.schema import SchemaRule, crd

SWITCH = ["enabled", "disabled"]
# Sizes of EBS volumes: 1 to 59000 Gi, 64000 G, 58 Ti, 64 T.
VOLUME_SIZE = (
    "^((?:[1-9][0-9]{0,3}|[1-4][0-9]{4}|[5][0-8][0-9]{3}|59000)Gi"
    "|(?:[1-9][0-9]{0,3}|[1-5][0-9]{4}|[6][0-3][0-9]{3}|64000)G"
    "|([1-9]|[1-4][0-9]|5[0-8])Ti|([1-9]|[1-5][0-9]|6[0-4])T)$"
)


class EbsVolume(Model):
    """An EBS volume."""

    RULES: ClassVar[tuple[SchemaRule, ...]] = (
        SchemaRule("has(self.snapshotID) || has(self.volumeSize)", "ebs must set snapshotID or volumeSize"),
        SchemaRule(
            "!has(self.volumeInitializationRate) || (has(self.snapshotID) && self.snapshotID != '')",
            "volumeInitializationRate needs snapshotID",
        ),
    )

    delete_on_termination: Annotated[bool | None, crd("Whether the volume goes with its instance.")] = None
    encrypted: Annotated[bool | None, crd("Whether the volume is encrypted.")] = None
    iops: Annotated[int | None, crd("I/O operations per second (gp3, io1, io2).", format="int64")] = None
    kms_key_id: Annotated[str, crd("Key that encrypts the volume: id, alias or ARN.")] = Field(
        default="", alias="kmsKeyID"
    )
    snapshot_id: Annotated[str, crd("Snapshot that the volume begins as.")] = Field(
        default="", alias="snapshotID"
    )
    throughput: Annotated[int | None, crd("Throughput in MiB/s (gp3).", format="int64")] = None
    volume_initialization_rate: Annotated[
        int | None,
        crd("MiB/s at which the snapshot is fetched.", format="int32", minimum=100, maximum=300),
    ] = None
    # Karpenter's CRD has this as text; an int-or-string would be another schema.
    volume_size: Annotated[Text, crd("Size in Gi, G, Ti or T.", pattern=VOLUME_SIZE)] = ""
    volume_type: Annotated[
        str, crd("Type of the volume.", enum=["standard", "io1", "io2", "gp2", "sc1", "st1", "gp3"])
    ] = ""


class BlockDeviceMapping(Model):
    """A volume and its device."""

    device_name: Annotated[str, crd("Device name, such as /dev/xvda.")] = ""
    ebs: Annotated[EbsVolume | None, crd()] = None
    root_volume: Annotated[bool, crd("Whether the kubelet's root directory is on it.")] = False


class MetadataOptionsSpec(Model):
    """Instance Metadata Service of the instances."""

    http_endpoint: Annotated[str, crd("Whether it answers at all.", default="enabled", enum=SWITCH)] = (
        "enabled"
    )
    http_protocol_ipv6: Annotated[
        str, crd("Whether it answers over IPv6.", default="disabled", enum=SWITCH)
    ] = Field(default="disabled", alias="httpProtocolIPv6")
    http_put_response_hop_limit: Annotated[
        int, crd("How far its answers may travel.", default=1, format="int64", minimum=1, maximum=64)
    ] = 1
    http_tokens: Annotated[
        str, crd("Whether requests need a session token.", default="required", enum=["required", "optional"])
    ] = "required"


class MetadataOptionsV1Beta1(MetadataOptionsSpec):
    """Instance Metadata Service of the instances."""

    http_put_response_hop_limit: Annotated[
        int, crd("How far its answers may travel.", default=2, format="int64", minimum=1, maximum=64)
    ] = 2


METADATA_DEFAULT = {
    "httpEndpoint": "enabled",
    "httpProtocolIPv6": "disabled",
    "httpPutResponseHopLimit": 1,
    "httpTokens": "required",
}


class NetworkInterfaceSpec(Model):
    """A network interface of the instances."""

    network_card_index: Annotated[int, crd("Its network card.", required=True, format="int32", minimum=0)]
    device_index: Annotated[int, crd("Its place on the instance.", required=True, format="int32", minimum=0)]
    interface_type: Annotated[str, crd("Its type.", required=True, enum=["interface", "efa-only"])]


class ConnectionTrackingSpec(Model):
    """Idle timeouts of connection tracking, in seconds."""

    RULES: ClassVar[tuple[SchemaRule, ...]] = (
        SchemaRule(
            "has(self.tcpEstablishedTimeout) || has(self.udpStreamTimeout) || has(self.udpTimeout)",
            "connectionTracking must set tcpEstablishedTimeout, udpStreamTimeout or udpTimeout",
        ),
    )

    tcp_established_timeout: Annotated[
        int | None, crd("Established TCP connections.", format="int32", minimum=60, maximum=432000)
    ] = None
    udp_stream_timeout: Annotated[
        int | None, crd("UDP flows of several exchanges.", format="int32", minimum=60, maximum=180)
    ] = None
    udp_timeout: Annotated[
        int | None, crd("UDP flows of one exchange.", format="int32", minimum=30, maximum=60)
    ] = None


class CpuOptions(Model):
    """CPU options of the instances."""

    nested_virtualization: Annotated[str, crd("Whether instances may run virtual machines.", enum=SWITCH)] = (
        ""
    )


class EnclaveOptions(Model):
    """Nitro Enclaves on the instances; disabled if left out."""

    enabled: Annotated[
        bool,
        crd("Whether instances may run enclaves; only types that support them are launched.", required=True),
    ] = False
