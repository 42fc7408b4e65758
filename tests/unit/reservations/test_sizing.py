"""From a flavor's labels to types and zones, from a quota to instances."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.reservations.sizing import (
    FlavorProblem,
    InstanceFlavor,
    amount_text,
    flavor_of,
    needed,
    size,
    supply,
)
from providers.model import Odcr, is_zone_id
from tests.unit.capacity.builders import INSTANCE_TYPE, ZONE, ZONES, odcr, type_

GPU = "nvidia.com/gpu"
TI = 2.0**40
GI = 2.0**30
ZONE_ID = "topology.k8s.aws/zone-id"
TYPES = {
    instance_type.name: instance_type
    for instance_type in (
        type_("p5.48xlarge", vcpus=192, memory_gib=2048, gpus=8, price=98.32, zones=ZONES[:2]),
        type_("p5.4xlarge", vcpus=16, memory_gib=256, gpus=1, price=12.29, zones=ZONES[1:]),
        type_("p4d.24xlarge", vcpus=96, memory_gib=1152, gpus=8, price=32.77),
        type_("m5.large", vcpus=2, memory_gib=8, price=0.096),
    )
}


def flavor(*types: str, zones: tuple[str, ...] = ZONES, **labels: str) -> InstanceFlavor:
    return InstanceFlavor(name="f", instance_types=types, zones=zones, labels=labels)


@pytest.mark.covers("CAP-01")
@pytest.mark.parametrize(
    ("labels", "configured", "types", "zones"),
    [
        ({INSTANCE_TYPE: "p5.48xlarge", ZONE: ZONES[1]}, (), ("p5.48xlarge",), ZONES[1:2]),
        ({INSTANCE_TYPE: "p5.48xlarge", ZONE_ID: "use1-az4"}, (), ("p5.48xlarge",), ("use1-az4",)),
        # If both are set, the zone's name is used.
        ({INSTANCE_TYPE: "m5.large", ZONE: ZONES[0], ZONE_ID: "use1-az4"}, (), ("m5.large",), ZONES[:1]),
        ({INSTANCE_TYPE: "p5.48xlarge"}, (ZONES[1], ZONES[0]), ("p5.48xlarge",), (ZONES[1], ZONES[0])),
        ({INSTANCE_TYPE: "p5.48xlarge"}, (), ("p5.48xlarge",), ZONES[:2]),
        # By family: the cheapest first.
        ({"karpenter.k8s.aws/instance-family": "p5"}, (), ("p5.4xlarge", "p5.48xlarge"), ZONES),
        # Labels that no node has choose no type.
        (
            {INSTANCE_TYPE: "p5.48xlarge", "karpenter.k8s.aws/placement-group-id": "pg-1"},
            (),
            ("p5.48xlarge",),
            ZONES[:2],
        ),
        (
            {INSTANCE_TYPE: "m5.large", "team": "blue", "karpenter.sh/capacity-type": "reserved"},
            (),
            ("m5.large",),
            ZONES,
        ),
    ],
)
def test_labels_of_a_flavor_give_types_and_zones(
    labels: dict[str, str], configured: tuple[str, ...], types: tuple[str, ...], zones: tuple[str, ...]
) -> None:
    resolved = flavor_of("f", labels, TYPES, configured)
    assert isinstance(resolved, InstanceFlavor), resolved
    assert (resolved.instance_types, resolved.zones) == (types, zones)


@pytest.mark.covers("CAP-01")
@pytest.mark.parametrize(
    ("labels", "reason", "message"),
    [
        ({"team": "blue"}, "FlavorWithoutInstanceType", INSTANCE_TYPE),
        ({"kubernetes.io/arch": "amd64"}, "FlavorWithoutInstanceType", INSTANCE_TYPE),
        ({INSTANCE_TYPE: "p9.large"}, "InstanceTypeUnknown", "'p9.large'"),
        (
            {INSTANCE_TYPE: "p5.48xlrge"},
            "InstanceTypeUnknown",
            "'p5.48xlrge' in this Region; the nearest name is p5.48xlarge",
        ),
        (
            {INSTANCE_TYPE: "p5.48xlarge", ZONE: "us-east-1z"},
            "ZoneUnknown",
            f"no zone 'us-east-1z'; the nearest name is {ZONES[0][:-1]}",
        ),
        ({"karpenter.k8s.aws/instance-family": "p9"}, "InstanceTypeUnknown", "instance-family=p9"),
        ({INSTANCE_TYPE: "p5.48xlarge", ZONE: ZONES[2]}, "InstanceTypeNotOffered", f"{ZONES[0]}, {ZONES[1]}"),
        ({INSTANCE_TYPE: "m5.large", "karpenter.sh/capacity-type": "spot"}, "FlavorNotReserved", "'spot'"),
    ],
)
def test_an_unresolved_flavor_names_the_remedy(labels: dict[str, str], reason: str, message: str) -> None:
    problem = flavor_of("f", labels, TYPES)
    assert isinstance(problem, FlavorProblem)
    assert problem.reason == reason
    assert message in problem.message and problem.message.startswith("flavor f: ")


@pytest.mark.covers("CAP-01")
@pytest.mark.parametrize(
    ("kind", "nominal", "count", "missing"),
    [
        # 64 GPUs are eight instances, which have just that memory; 128 vCPUs a node would be fewer.
        ("p5.48xlarge", {GPU: 64, "memory": 16 * TI, "cpu": 1024}, 8, {}),
        # By GPU four, by memory eight: twice the GPUs are not bought for memory.
        ("p4d.24xlarge", {GPU: 32, "memory": 8 * TI, "cpu": 512}, 4, {"memory": 3.5 * TI, "cpu": 128}),
        ("p5.48xlarge", {GPU: 12}, 2, {}),
        ("p5.48xlarge", {GPU: 0, "cpu": 0}, 0, {}),
        ("m5.large", {"cpu": 7, "memory": 8 * GI}, 4, {}),
        ("m5.large", {"cpu": 1, "memory": 33 * GI}, 5, {}),
        ("m5.large", {GPU: 8, "cpu": 4}, 0, {GPU: 8, "cpu": 4}),
        # Resources that EC2 does not supply are not missed.
        ("m5.large", {"cpu": 2, "example.com/licence": 5}, 1, {}),
    ],
)
def test_the_accelerator_sets_the_count_and_other_resources_may_be_missing(
    kind: str, nominal: dict[str, float], count: int, missing: dict[str, float]
) -> None:
    sized = size(flavor(kind), nominal, TYPES)
    assert sized.count == count
    assert (sized.reason == "ResourceRatioUnsatisfiable") == bool(missing)
    for name, short in missing.items():
        assert f"no {name}" in sized.message or f"{name}: quota" in sized.message
        assert not sized.by or f"{amount_text(name, short)} too few" in sized.message


def test_an_unsatisfiable_ratio_is_reported_with_its_numbers() -> None:
    sized = size(flavor("p4d.24xlarge"), {GPU: 32, "memory": 8 * TI}, TYPES)
    assert sized.message == (
        "flavor f: 32 of nvidia.com/gpu are 4 p4d.24xlarge. memory: quota 8Ti, they have 4.5Ti, 3.5Ti too few"
        ": lower the quota, or set sizing to max"
    )
    none = size(flavor("m5.large"), {GPU: 8}, TYPES)
    assert none.message == "flavor f: m5.large has no nvidia.com/gpu"


def test_sizing_by_the_largest_covers_every_resource() -> None:
    sized = size(flavor("p4d.24xlarge"), {GPU: 32, "memory": 8 * TI, "cpu": 512}, TYPES, sizing="max")
    assert (sized.count, sized.by, sized.reason) == (8, "memory", "")


def test_each_type_of_a_flavor_has_a_count_of_its_own() -> None:
    sized = size(flavor("p5.4xlarge", "p5.48xlarge"), {GPU: 20}, TYPES)
    assert (sized.count, sized.counts) == (20, {"p5.4xlarge": 20, "p5.48xlarge": 3})


@given(
    st.sampled_from(sorted(TYPES)),
    st.dictionaries(st.sampled_from([GPU, "cpu", "memory"]), st.floats(0, 1e6), max_size=3),
)
def test_the_count_is_the_smallest_that_serves(kind: str, nominal: dict[str, float]) -> None:
    exact = needed(TYPES[kind], nominal)
    sized = size(flavor(kind), nominal, TYPES)
    assert sized.count - 1 < exact <= sized.count
    short = {name for name in nominal if nominal[name] > sized.count * supply(TYPES[kind]).get(name, 0.0)}
    assert bool(sized.reason) == bool(short) and sized.by not in short


@pytest.mark.parametrize(
    ("labels", "reservation", "admitted"),
    [
        ({}, odcr("cr-1", "m5.large", ZONES[0]), True),
        ({}, odcr("cr-1", "m5.xlarge", ZONES[0]), False),
        ({}, replace(odcr("cr-1", "m5.large"), zone="us-east-1f", zone_id="use1-az9"), False),
        ({"karpenter.k8s.aws/capacity-reservation-id": "cr-1"}, odcr("cr-1", "m5.large", ZONES[0]), True),
        ({"karpenter.k8s.aws/capacity-reservation-id": "cr-2"}, odcr("cr-1", "m5.large", ZONES[0]), False),
        (
            {"karpenter.k8s.aws/capacity-reservation-type": "capacity-block"},
            odcr("cr-1", "m5.large", ZONES[0]),
            False,
        ),
        ({ZONE_ID: "use1-azb"}, odcr("cr-1", "m5.large", ZONES[0]), False),
    ],
)
def test_a_flavor_admits_matching_reservations(
    labels: dict[str, str], reservation: Odcr, admitted: bool
) -> None:
    assert replace(flavor("m5.large"), labels=labels).admits(reservation) is admitted


def test_a_zone_can_be_given_by_its_id() -> None:
    zoned = flavor("m5.large", zones=("use1-aza",))
    assert zoned.admits(odcr("cr-1", "m5.large", ZONES[0]))
    assert is_zone_id("use1-az4") and is_zone_id("apne2-az1") and not is_zone_id("us-east-1a")
    assert [*flavor("m5.large", zones=("use1-az4",)).places(TYPES)] == [("m5.large", "use1-az4")]
