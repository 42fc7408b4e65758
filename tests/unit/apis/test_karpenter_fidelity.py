"""The CRDs compared with Karpenter's own: the schemas, and the answers to thousands of objects.

Every object that Karpenter's definitions accept is accepted and kept alike. Deliberate differences are listed
with their reasons; any other difference fails.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import pytest

from broker.apis import crds
from tests.controlplane.client import Api
from tests.support.servers import over_embedded
from tests.unit.apis.cases import Case, Json, node_claim, node_class, node_pool
from tests.unit.apis.claim_cases import CLAIMS, POOLS, requirement
from tests.unit.apis.class_cases import CLASSES
from tests.unit.apis.karpenter_crds import module, pruned, stored
from tests.unit.apis.test_crds_served import dry

COMPARED = (
    "type",
    "format",
    "enum",
    "pattern",
    "default",
    "minimum",
    "maximum",
    "minItems",
    "maxItems",
    "minLength",
    "maxLength",
    "maxProperties",
    "required",
    "x-kubernetes-int-or-string",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-list-type",
    "x-kubernetes-map-type",
)

BROKER_FIELD = "a field of the broker"
OLDER = "v1beta1 allowed it, and both versions share a schema"
VALUES = (
    "Karpenter puts the limit on the list, where it means nothing; the pool's conditions name a bad value"
)
DIFFERENT = {
    ".spec.capacityReservationSpec": BROKER_FIELD,
    ".status.capacityReservationMisfits": BROKER_FIELD,
    ".status.capacityReservations[].totalInstanceCount": BROKER_FIELD,
    ".status.capacityReservations[].availableInstanceCount": BROKER_FIELD,
    ".status.capacityReservations[].state enum": "pending is the broker's state",
    ".spec required": OLDER,
    ".spec.amiFamily enum": OLDER,
    ".spec.blockDeviceMappings[].ebs.volumeSize pattern": "Karpenter's refuses some, such as 18Ti",
    ".spec.requirements[].values pattern": VALUES,
    ".spec.requirements[].values maxLength": VALUES,
    ".spec.template.spec.requirements[].values pattern": VALUES,
    ".spec.template.spec.requirements[].values maxLength": VALUES,
}


def facts(schema: Json, path: str = "") -> Iterator[tuple[str, Any]]:
    """Each field, and each of its constraints."""
    yield path, "field"
    for key in COMPARED:
        if key in schema:
            value = schema[key]
            yield f"{path} {key}", sorted(value) if key in ("required", "enum") else value
    for name, child in schema.get("properties", {}).items():
        yield from facts(child, f"{path}.{name}")
    if "items" in schema:
        yield from facts(schema["items"], f"{path}[]")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from facts(schema["additionalProperties"], f"{path}{{}}")


def meant(fact: str) -> bool:
    return any(fact == path or fact.startswith((f"{path}.", f"{path} ", f"{path}[")) for path in DIFFERENT)


@pytest.mark.covers("CUR-01")
@pytest.mark.parametrize("name", stored())
def test_schemas_equal_karpenters(name: str) -> None:
    karpenter = stored()[name]["spec"]
    (broker,) = (crd["spec"] for crd in crds.load() if crd["metadata"]["name"] == name)
    for key in ("group", "names", "scope"):
        assert broker[key] == karpenter[key]
    broker_version, karpenter_version = broker["versions"][0], karpenter["versions"][0]
    assert broker_version["subresources"] == karpenter_version["subresources"]
    # The broker keeps all columns of Karpenter, some with -o wide only.
    columns = [
        {c["name"]: c["jsonPath"] for c in version["additionalPrinterColumns"]}
        for version in (broker_version, karpenter_version)
    ]
    assert columns[1].items() <= columns[0].items()
    karpenter_facts = dict(facts(karpenter_version["schema"]["openAPIV3Schema"]))
    broker_facts = dict(facts(broker_version["schema"]["openAPIV3Schema"]))
    differing = {
        fact
        for fact in karpenter_facts.keys() | broker_facts.keys()
        if karpenter_facts.get(fact) != broker_facts.get(fact)
    }
    assert sorted(fact for fact in differing if not meant(fact)) == []


@pytest.mark.peers
def test_stored_definitions_are_those_of_the_release() -> None:
    folder = module()
    if folder is None:
        pytest.skip("Karpenter's Go module is not on this machine")
    assert {definition["metadata"]["name"]: definition for definition in pruned(folder)} == stored()


# Refused here and accepted by Karpenter's definitions, with the reason.
REFUSED = {"a size without a number": "Karpenter cannot decode it, so such an object breaks its cache"}
ONLY_KARPENTER = (
    Case(
        name="a size without a number",
        given=node_class(spec={"blockDeviceMappings": [{"ebs": {"volumeSize": "Ti"}}]}),
    ),
)


@pytest.fixture(scope="module")
def both() -> Iterator[tuple[Api, Api]]:
    """An API server with the broker's definitions, and one with Karpenter's."""
    with ExitStack() as exits:
        broker, karpenter = (exits.enter_context(over_embedded()) for _ in range(2))
        for definition in crds.load():
            broker.install(definition)
        for definition in stored().values():
            karpenter.install(definition)
        yield broker, karpenter


def loss(both: tuple[Api, Api], given: Json) -> str:
    """What the broker's definitions lose of an object that Karpenter's accept; empty if nothing."""
    broker, karpenter = (dry(api, given) for api in both)
    if karpenter.status != 201:
        return ""
    if broker.status != 201:
        return str(broker.body["message"])
    kept = broker.body["spec"]
    return "" if kept == karpenter.body["spec"] else f"kept {kept}, not {karpenter.body['spec']}"


@pytest.mark.covers("CUR-01")
@pytest.mark.parametrize("case", (*CLASSES, *CLAIMS, *POOLS, *ONLY_KARPENTER), ids=lambda case: case.name)
def test_what_karpenter_accepts_is_accepted_and_kept(both: tuple[Api, Api], case: Case) -> None:
    if case.given["apiVersion"].endswith("v1"):
        assert bool(loss(both, case.given)) == (case.name in REFUSED)


TAGS: tuple[Any, ...] = ({}, {"a": "b"}, {"a": "*"}, {"a": ""}, {"": "b"})
TERM: Mapping[str, tuple[Any, ...]] = {
    "id": ("subnet-1", "sg-1", "cr-0123", "ami-1", ""),
    "tags": TAGS,
    "name": ("a", ""),
    "ownerID": ("123456789012", "me"),
    "instanceMatchCriteria": ("open", "targeted", "none"),
    "alias": ("al2023@latest", "al2@v1", "windows2022@latest", "windows2022@v1", "al2023", "x@y"),
    "ssmParameter": ("/golden",),
    "owner": ("self",),
}
KUBELETS: tuple[Any, ...] = (
    {},
    {"maxPods": "vcpus * 10", "kubeReserved": {"cpu": "vcpus * 30"}},
    {"maxPods": -1, "topologyManagerPolicy": "restricted", "featureGates": {"A": True}},
    {"evictionHard": {"memory.available": ""}, "shutdownGracePeriod": 5, "nested": {"a": [1, {"b": None}]}},
    [],
    "maxPods",
)
CLASS_FIELDS: Mapping[str, tuple[Any, ...]] = {
    "amiFamily": ("AL2023", "AL2", "Custom", "Windows2022", "Ubuntu", ""),
    "role": ("node", ""),
    "instanceProfile": ("node",),
    "enclaveOptions": ({"enabled": True}, {"enabled": False}, {}, {"enabled": "yes"}),
    "kubelet": KUBELETS,
    "cpuOptions": ({}, {"nestedVirtualization": "enabled"}),
    "tags": ({"a": "b"}, {"karpenter.sh/nodepool": "x"}, {"kubernetes.io/cluster/x": "y"}, {"": "x"}, {}),
    "placementGroupSelector": ({}, {"name": "a"}, {"id": "pg-1"}, {"name": "a", "id": "pg-1"}),
    "connectionTracking": ({}, {"udpTimeout": 45}, {"udpTimeout": 5}),
    "blockDeviceMappings": tuple(
        [{"rootVolume": root, "ebs": ebs}]
        for root in (True, False)
        for ebs in (
            {},
            {"volumeSize": "10Gi"},
            {"volumeSize": "17Ti"},
            {"volumeSize": "64T"},
            {"volumeSize": 10},
        )
    ),
    "networkInterfaces": tuple(
        [
            {"networkCardIndex": card, "deviceIndex": device, "interfaceType": kind}
            for card, device, kind in places
        ]
        for places in (
            [(0, 0, "interface")],
            [(1, 0, "interface")],
            [(0, 0, "interface"), (0, 0, "interface")],
            [(0, 0, "interface"), (1, 1, "efa-only"), (1, 2, "efa-only")],
        )
    ),
    "context": ("x",),
    "instanceStorePolicy": ("RAID0", "RAID1"),
    "metadataOptions": ({}, {"httpTokens": "optional"}, {"httpPutResponseHopLimit": 0}),
}
SELECTORS = (
    "amiSelectorTerms",
    "subnetSelectorTerms",
    "securityGroupSelectorTerms",
    "capacityReservationSelectorTerms",
)
KEYS = (
    "a",
    "karpenter.sh/capacity-type",
    "karpenter.sh/x",
    "kubernetes.io/hostname",
    "karpenter.k8s.aws/instance-cpu",
)
VALUES_OF = (
    (),
    ("1",),
    ("+5",),
    ("-0",),
    ("-1",),
    ("007",),
    ("x",),
    ("1", "2"),
    ("a b", "-", "x" * 70),
    ("",),
)
OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Gte", "Lte", "Near")
DISRUPTIONS: tuple[Any, ...] = (
    {},
    {"consolidateAfter": "Never", "consolidationPolicy": "Balanced"},
    {"consolidateAfter": "30d"},
    *({"budgets": [{"nodes": "0", "reasons": [reason]}]} for reason in ("Unhealthy", "Drifted", "Expired")),
    {"budgets": [{"nodes": "5%", "schedule": "@daily"}]},
    {"budgets": [{"nodes": "5%", "schedule": "@daily", "duration": "1h"}]},
    {"budgets": [{}]},
)
LIMITS: tuple[Any, ...] = (
    {},
    {"nodes": "5"},
    {"cpu": 10},
    {"nodes": 1, "cpu": 1},
    {f"r{i}": 1 for i in range(120)},
)


def random_class(dice: random.Random) -> Json:
    spec: dict[str, Any] = {
        name: dice.choice(values) for name, values in CLASS_FIELDS.items() if dice.random() < 0.12
    }
    for name in SELECTORS:
        if dice.random() < 0.3:
            spec[name] = [
                {
                    field: dice.choice(TERM[field])
                    for field in dice.sample(sorted(TERM), dice.choice((1, 1, 2)))
                }
                for _ in range(dice.choice((0, 1, 1, 2)))
            ]
    return node_class(spec=spec)


def random_requirements(dice: random.Random) -> list[Json]:
    return [
        requirement(
            dice.choice(KEYS),
            dice.choice(OPERATORS),
            *dice.choice(VALUES_OF),
            **({"minValues": dice.choice((0, 1, 2))} if dice.random() < 0.3 else {}),
        )
        for _ in range(dice.choice((0, 1, 2)))
    ]


def random_pool(dice: random.Random) -> Json:
    fields: dict[str, tuple[float, tuple[Any, ...]]] = {
        "disruption": (0.7, DISRUPTIONS),
        "limits": (0.5, LIMITS),
        "replicas": (0.3, (0, 3)),
        "weight": (0.2, (0, 5)),
    }
    chosen = {name: dice.choice(values) for name, (share, values) in fields.items() if dice.random() < share}
    pool = node_pool(**chosen)
    pool["spec"]["template"]["spec"]["requirements"] = random_requirements(dice)
    return pool


def random_claim(dice: random.Random) -> Json:
    return node_claim(requirements=random_requirements(dice))


@pytest.mark.covers("CUR-01")
@pytest.mark.parametrize("make", [random_class, random_pool, random_claim])
def test_random_objects_that_karpenter_accepts_are_accepted_and_kept(
    both: tuple[Api, Api], make: Any
) -> None:
    dice = random.Random(make.__name__)
    objects = [make(dice) for _ in range(600)]
    assert [(given["spec"], lost) for given in objects if (lost := loss(both, given))] == []
    accepted = sum(dry(both[1], given).status == 201 for given in objects[:100])
    assert 10 <= accepted <= 90, "both answers occur"
