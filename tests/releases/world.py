"""One world under a release's broker: running claims, a waiting one, a CapacityReservation with slots.

Objects refer to EC2 by ids that differ in each account. A recording names them by placeholders, which
`restore` replaces by the ids of the account that it fills.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from broker.apis import names
from broker.apis.crds import KIND as CRD
from broker.apis.kueue import ResourceFlavor
from broker.commands.crds.install import MARK
from broker.kube.client import Client
from local.aws import LocalAws
from local.in_process import InProcessTransport
from local.kube import Cluster
from tests.cluster.account import A, Account
from tests.cluster.ome.reserved import flavors_alone, reserve, until_state
from tests.cluster.stack import Stack

Json = dict[str, Any]
FOLDER = Path(__file__).parent
# Of the server itself, or of no meaning to the next broker.
LEFT_OUT = ("events", "leases.", "customresourcedefinitions.", "services", "servicecidrs.", "ipaddresses.")
KINDS = ("m5.large", "m5.xlarge")


@dataclass(frozen=True, kw_only=True)
class Recording:
    """The files of one release."""

    definitions: list[Json]
    state: Json

    @classmethod
    def load(cls, version: str) -> Recording:
        folder = FOLDER / version
        return cls(
            definitions=list(yaml.safe_load_all((folder / "definitions.yaml").read_text())),
            state=json.loads((folder / "state.json").read_text()),
        )


def released() -> list[str]:
    """The recorded versions, oldest first."""
    versions = [path.parent.name for path in FOLDER.glob("*/state.json")]
    return sorted(versions, key=lambda name: [int(part) for part in name.split(".")])


def live(stack: Stack) -> None:
    """Lets the broker make the world, and waits until it rests."""
    flavors_alone(stack)
    flavor = {"nodeLabels": {names.INSTANCE_TYPE: KINDS[0], names.ZONE: A}}
    stack.client.create(ResourceFlavor.KIND, {"metadata": {"name": "m5"}, "spec": flavor})
    owned = tags_of("default/training", "m5")
    first = stack.aws.odcr(KINDS[0], count=3, TagSpecifications=owned)
    full = stack.aws.odcr(KINDS[1], count=1)
    stack.node_class("gpu", group=stack.aws.group(first))
    stack.node_class("full", id_=full)
    stack.node_pool("gpu")
    reserve(stack, flavor="m5", quotas={"cpu": "6"})
    stack.start()
    until_state(stack, "Active", step=1.0)
    stack.claims(2, pool="gpu", annotations={names.DRAWS_FROM: "default/training"})
    stack.claim("full", node_class="full", types=(KINDS[1],))
    stack.until_ready("c-0", "c-1", "full")
    stack.claim("waits", node_class="full", types=(KINDS[1],))
    stack.until_waiting("waits")


def tags_of(reservation: str, flavor: str) -> list[Json]:
    given = {names.TAG_RESERVATION: reservation, names.TAG_FLAVOR: flavor}
    listed = [{"Key": key, "Value": value} for key, value in given.items()]
    return [{"ResourceType": "capacity-reservation", "Tags": listed}]


def record(cluster: Cluster, aws: Account) -> Json:
    """The state of Kubernetes and of EC2, with placeholders for EC2's ids."""
    objects = [
        {"resource": resource, "key": list(key), "object": item.obj}
        for resource, key, item in cluster.state.store.everything()
        if not resource.startswith(LEFT_OUT)
    ]
    odcrs = aws.ec2.describe_capacity_reservations()["CapacityReservations"]
    kept = ("InstanceType", "AvailabilityZone", "TotalInstanceCount", "Tags")
    ec2 = {
        "odcrs": [{"id": odcr["CapacityReservationId"], **_only(odcr, kept)} for odcr in odcrs],
        "groups": [
            {"name": group["Name"], "members": [member["Identifier"]["ResourceArn"] for member in members]}
            for group in aws.groups.list_groups()["Groups"]
            for members in [aws.groups.list_group_resources(Group=group["Name"])["Resources"]]
        ],
        "instances": [
            {
                "id": instance["InstanceId"],
                "odcr": instance.get("CapacityReservationId", ""),
                "dns": instance["PrivateDnsName"],
                **_only(instance, ("InstanceType", "SubnetId", "ImageId", "Tags")),
            }
            for instance in aws.instances()
        ],
        "templates": [
            {
                "name": template["LaunchTemplateName"],
                "data": template["Data"],
                "tags": template.get("Tags", []),
            }
            for template in aws.templates()
        ],
    }
    text = json.dumps({"objects": objects, "ec2": ec2}, default=str)
    for id_, placeholder in _placeholders(aws, ec2):
        text = text.replace(id_, placeholder)
    state: Json = json.loads(text)
    return state


def _only(item: Mapping[str, Any], fields: tuple[str, ...]) -> Json:
    return {name: item[name] for name in fields if name in item}


def _placeholders(aws: Account, ec2: Json) -> Iterator[tuple[str, str]]:
    for zone, subnet in aws.subnets.items():
        yield subnet, f"@subnet/{zone}@"
    yield aws.security_group, "@security-group@"
    for kind in ("odcrs", "instances"):
        for number, resource in enumerate(ec2[kind]):
            yield resource["id"], f"@{kind}/{number}@"
            if "dns" in resource:
                yield resource["dns"], f"@dns/{number}@"


def restore(server: LocalAws, recording: Recording) -> tuple[Stack, list[str]]:
    """A stack with the release's definitions and objects, before any broker runs; and the instance ids."""
    cluster, stack = _cluster(server, recording.definitions)
    aws = stack.aws
    text = json.dumps(recording.state)
    for zone, subnet in aws.subnets.items():
        text = text.replace(f"@subnet/{zone}@", subnet)
    text = text.replace("@security-group@", aws.security_group)
    for number, odcr in enumerate(json.loads(text)["ec2"]["odcrs"]):
        tagged = [{"ResourceType": "capacity-reservation", "Tags": odcr["Tags"]}] if odcr.get("Tags") else []
        odcr_id = aws.odcr(
            odcr["InstanceType"],
            odcr["AvailabilityZone"],
            odcr["TotalInstanceCount"],
            TagSpecifications=tagged,
        )
        text = text.replace(f"@odcrs/{number}@", odcr_id)
    for number, instance in enumerate(json.loads(text)["ec2"]["instances"]):
        id_, dns = _run(aws, instance)
        text = text.replace(f"@instances/{number}@", id_).replace(f"@dns/{number}@", dns)
    state = json.loads(text)
    for group in state["ec2"]["groups"]:
        aws.group(*[arn.rpartition("/")[2] for arn in group["members"]], name=group["name"])
    for template in state["ec2"]["templates"]:
        aws.ec2.create_launch_template(
            LaunchTemplateName=template["name"],
            LaunchTemplateData=template["data"],
            TagSpecifications=[{"ResourceType": "launch-template", "Tags": template["tags"]}],
        )
    instances = [str(instance_["id"]) for instance_ in state["ec2"]["instances"]]
    _store(cluster, stack.client, state["objects"])
    return stack, instances


def _run(aws: Account, instance: Mapping[str, Any]) -> tuple[str, str]:
    """Launches an instance as EC2 described it, without AWS's own tags. Returns its id and its DNS name."""
    own = [tag for tag in instance["Tags"] if not tag["Key"].startswith("aws:")]
    (launched,) = aws.ec2.run_instances(
        ImageId=instance["ImageId"],
        InstanceType=instance["InstanceType"],
        SubnetId=instance["SubnetId"],
        MinCount=1,
        MaxCount=1,
        CapacityReservationSpecification={
            "CapacityReservationTarget": {"CapacityReservationId": instance["odcr"]}
        },
        TagSpecifications=[{"ResourceType": "instance", "Tags": own}],
    )["Instances"]
    return str(launched["InstanceId"]), str(launched["PrivateDnsName"])


def _cluster(server: LocalAws, definitions: list[Json]) -> tuple[Cluster, Stack]:
    """An API server with the definitions as `crds install` of the release made them, and an account."""
    cluster = Cluster()
    client = Client(InProcessTransport(cluster), field_manager="release")
    for crd in definitions:
        crd["metadata"].setdefault("annotations", {})[MARK] = "true"
        client.create(CRD, crd)
    stack = Stack(server, InProcessTransport(cluster))
    flavors_alone(stack)
    return cluster, stack


def _store(cluster: Cluster, client: Client, objects: list[Json]) -> None:
    """Writes the objects as etcd would hold them, with their UIDs."""
    custom = {crd["metadata"]["name"] for crd in client.list(CRD)[0]}
    for item in objects:
        namespace, name = item["key"]
        resource, bare = item["resource"], item["resource"] not in custom
        with cluster.state.store.lock:
            cluster.state.store.put(resource, (namespace, name), item["object"], bare=bare)
