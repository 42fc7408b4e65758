"""Accepted and refused EC2NodeClasses, apart from their reservation spec."""

from __future__ import annotations

from typing import Any

from tests.unit.apis.cases import ID, Case, Json, node_class


def with_spec(**spec: Any) -> Json:
    return node_class(spec=spec)


ALONE = ("selects by that alone",)
SELECTORS = (
    "amiSelectorTerms",
    "subnetSelectorTerms",
    "securityGroupSelectorTerms",
    "capacityReservationSelectorTerms",
)
CLASSES = (
    Case(name="the least", given=with_spec()),
    Case(name="instance profile", given=node_class(spec={"instanceProfile": "node"}, without=("role",))),
    Case(name="both", given=with_spec(instanceProfile="node"), refused=("role and instanceProfile",)),
    Case(name="neither", given=node_class(without=("role",)), refused=("role and instanceProfile",)),
    Case(name="empty role", given=with_spec(role=""), refused=("role is empty",)),
    Case(
        name="no subnets",
        given=node_class(without=("subnetSelectorTerms",)),
        refused=("subnetSelectorTerms",),
    ),
    Case(
        name="empty subnets",
        given=with_spec(subnetSelectorTerms=[]),
        refused=("subnetSelectorTerms must have at least one term",),
    ),
    Case(
        name="empty subnet term",
        given=with_spec(subnetSelectorTerms=[{}]),
        refused=("each term must set at least one of tags, id",),
    ),
    Case(
        name="one subnet term of two with an id and tags",
        given=with_spec(subnetSelectorTerms=[{"id": "subnet-1", "tags": {"a": "b"}}, {"tags": {"a": "b"}}]),
    ),
    Case(
        name="every subnet term with an id and tags",
        given=with_spec(subnetSelectorTerms=[{"id": "subnet-1", "tags": {"a": "b"}}]),
        refused=ALONE,
    ),
    Case(
        name="no security groups",
        given=with_spec(securityGroupSelectorTerms=[]),
        refused=("securityGroupSelectorTerms must have at least one term",),
    ),
    Case(
        name="security group name with tags",
        given=with_spec(securityGroupSelectorTerms=[{"name": "a", "tags": {"a": "b"}}]),
        refused=ALONE,
    ),
    Case(
        name="tag without a value",
        given=with_spec(subnetSelectorTerms=[{"tags": {"a": ""}}]),
        refused=("use '*' for any value",),
    ),
    *(
        Case(name=f"empty tags in {terms}", given=with_spec(amiFamily="AL2023", **{terms: [{"tags": {}}]}))
        for terms in SELECTORS
    ),
    *(
        Case(
            name=f"a tag without a key in the last of {terms}",
            given=with_spec(amiFamily="AL2023", **{terms: [{"tags": {"a": "b"}}, {"tags": {"": "b"}}]}),
            refused=("use '*' for any value",),
        )
        for terms in SELECTORS
    ),
    Case(name="no AMI", given=node_class(without=("amiSelectorTerms",)), refused=("amiFamily must be set",)),
    Case(
        name="AMI by id needs a family",
        given=with_spec(amiSelectorTerms=[{"id": "ami-1"}]),
        refused=("amiFamily must be set",),
    ),
    Case(name="AMI by id", given=with_spec(amiFamily="Custom", amiSelectorTerms=[{"id": "ami-1"}])),
    Case(
        name="AMI by parameter",
        given=with_spec(amiFamily="AL2023", amiSelectorTerms=[{"ssmParameter": "/golden/image"}]),
    ),
    Case(name="windows alias", given=with_spec(amiSelectorTerms=[{"alias": "windows2022@latest"}])),
    Case(
        name="windows alias with a version",
        given=with_spec(amiSelectorTerms=[{"alias": "windows2022@v1"}]),
        refused=("must have the version latest",),
    ),
    Case(
        name="alias without a version",
        given=with_spec(amiSelectorTerms=[{"alias": "al2023"}]),
        refused=("alias must be family@version",),
    ),
    Case(
        name="alias of no family",
        given=with_spec(amiSelectorTerms=[{"alias": "ubuntu@latest"}]),
        refused=("alias has an unknown family",),
    ),
    Case(
        name="alias with another term",
        given=with_spec(amiSelectorTerms=[{"alias": "al2023@latest"}, {"name": "mine"}]),
        refused=("must be the only term",),
    ),
    Case(
        name="alias with another family",
        given=with_spec(amiFamily="Bottlerocket"),
        refused=("amiFamily must be AL2023",),
    ),
    Case(name="alias with Custom", given=with_spec(amiFamily="Custom")),
    Case(name="al2023 is not al2", given=with_spec(amiFamily="AL2"), refused=("amiFamily must be AL2023",)),
    Case(name="unknown family", given=with_spec(amiFamily="Arch"), refused=("amiFamily", "Arch")),
    Case(
        name="reservation terms",
        given=with_spec(
            capacityReservationSelectorTerms=[{"id": ID}, {"ownerID": "123456789012", "tags": {"a": "*"}}]
        ),
    ),
    Case(
        name="reservation owner alone",
        given=with_spec(capacityReservationSelectorTerms=[{"ownerID": "123456789012"}]),
        refused=("each term must set at least one of",),
    ),
    Case(
        name="reservation id with tags among others",
        given=with_spec(capacityReservationSelectorTerms=[{"id": ID, "tags": {"a": "b"}}, {"id": ID}]),
    ),
    *(
        Case(
            name=f"reservation id with {field}",
            given=with_spec(capacityReservationSelectorTerms=[{"id": ID, field: value}]),
            refused=ALONE,
        )
        for field, value in (("ownerID", "123456789012"), ("instanceMatchCriteria", "open"))
    ),
    Case(
        name="reservation criteria with owner and tags",
        given=with_spec(
            capacityReservationSelectorTerms=[
                {"instanceMatchCriteria": "targeted", "ownerID": "123456789012", "tags": {"a": "b"}},
                {"instanceMatchCriteria": "open"},
            ]
        ),
    ),
    *(
        Case(
            name=f"reservation {field} {value}",
            given=with_spec(capacityReservationSelectorTerms=[{field: value, "tags": {"a": "b"}}]),
            refused=(field,),
        )
        for field, value in (
            ("ownerID", "12345678901"),
            ("instanceMatchCriteria", "closed"),
            ("id", "r-12345749"),
        )
    ),
    Case(
        name="too many reservation terms",
        given=with_spec(capacityReservationSelectorTerms=[{"id": ID}] * 31),
        refused=("capacityReservationSelectorTerms",),
    ),
    Case(name="tags", given=with_spec(tags={"team": "ml"})),
    Case(
        name="tag of a launcher",
        given=with_spec(tags={"karpenter.sh/nodepool": "x"}),
        refused=("set by the launching controller",),
    ),
    Case(
        name="tag of the cluster",
        given=with_spec(tags={"kubernetes.io/cluster/demo": "owned"}),
        refused=("set by the launching controller",),
    ),
    Case(
        name="volumes",
        given=with_spec(
            blockDeviceMappings=[
                {"deviceName": "/dev/xvda", "rootVolume": True, "ebs": {"volumeSize": "100Gi"}},
                {"deviceName": "/dev/xvdb", "ebs": {"snapshotID": "snap-1", "volumeInitializationRate": 200}},
            ]
        ),
    ),
    Case(
        name="two root volumes",
        given=with_spec(blockDeviceMappings=[{"rootVolume": True}, {"rootVolume": True}]),
        refused=("at most one of blockDeviceMappings",),
    ),
    Case(
        name="volume of no size",
        given=with_spec(blockDeviceMappings=[{"ebs": {"volumeType": "gp3"}}]),
        refused=("snapshotID or volumeSize",),
    ),
    Case(
        name="volume without a unit",
        given=with_spec(blockDeviceMappings=[{"ebs": {"volumeSize": "100"}}]),
        refused=("volumeSize",),
    ),
    Case(
        name="kubelet",
        given=with_spec(
            kubelet={
                "maxPods": 110,
                "kubeReserved": {"cpu": "100m", "memory": "1Gi"},
                "evictionHard": {"memory.available": "5%"},
                "evictionSoft": {"nodefs.available": "10Gi"},
                "evictionSoftGracePeriod": {"nodefs.available": "1m"},
            }
        ),
    ),
    Case(
        name="kubelet with expressions and unknown fields",
        given=with_spec(
            kubelet={"maxPods": "vcpus * 10", "topologyManagerPolicy": "restricted", "x": {"y": [1]}}
        ),
    ),
    Case(name="kubelet is text", given=with_spec(kubelet="maxPods"), refused=("spec.kubelet",)),
    Case(name="enclaves", given=with_spec(enclaveOptions={"enabled": True})),
    Case(name="enclaves undecided", given=with_spec(enclaveOptions={}), refused=("enclaveOptions.enabled",)),
    Case(
        name="network interfaces",
        given=with_spec(
            networkInterfaces=[
                {"networkCardIndex": 0, "deviceIndex": 0, "interfaceType": "interface"},
                {"networkCardIndex": 1, "deviceIndex": 1, "interfaceType": "efa-only"},
            ]
        ),
    ),
    Case(
        name="no primary network interface",
        given=with_spec(
            networkInterfaces=[{"networkCardIndex": 1, "deviceIndex": 0, "interfaceType": "interface"}]
        ),
        refused=("networkInterfaces must hold the primary one",),
    ),
    Case(
        name="a network interface twice",
        given=with_spec(
            networkInterfaces=[{"networkCardIndex": 0, "deviceIndex": 0, "interfaceType": "interface"}] * 2
        ),
        refused=("must differ in networkCardIndex or deviceIndex",),
    ),
    Case(
        name="two efa-only interfaces on a card",
        given=with_spec(
            networkInterfaces=[
                {"networkCardIndex": 0, "deviceIndex": 0, "interfaceType": "interface"},
                {"networkCardIndex": 1, "deviceIndex": 1, "interfaceType": "efa-only"},
                {"networkCardIndex": 1, "deviceIndex": 2, "interfaceType": "efa-only"},
            ]
        ),
        refused=("one efa-only interface a network card",),
    ),
    Case(name="placement group", given=with_spec(placementGroupSelector={"name": "cluster"})),
    Case(
        name="placement group twice",
        given=with_spec(placementGroupSelector={"name": "cluster", "id": "pg-1"}),
        refused=("one of name and id",),
    ),
    Case(
        name="no idle timeout",
        given=with_spec(connectionTracking={}),
        refused=("connectionTracking must set",),
    ),
    Case(name="idle timeout", given=with_spec(connectionTracking={"udpTimeout": 45})),
    Case(
        name="metadata hops",
        given=with_spec(metadataOptions={"httpPutResponseHopLimit": 65}),
        refused=("httpPutResponseHopLimit",),
    ),
)
