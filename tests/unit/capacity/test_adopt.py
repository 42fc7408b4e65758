"""Orphans and waiting claims: no instance is terminated if a waiting claim could use it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.capacity.adopt import adopt, capacity_type, satisfies
from broker.capacity.model import Claim
from providers.model import Instance, Odcr
from providers.names import TAG_NODECLASS

from .builders import TYPES, claim, instance, node_class, odcr

CLASSES = {"default": node_class(), "other": node_class(name="other")}


def orphan(id_: str, type_name: str = "m5.xlarge", *, of: str = "default", **more: Any) -> Instance:
    return instance(id_, type_name, tags={TAG_NODECLASS: of}, **more)


def adopted(
    orphans: Sequence[Instance], claims: Sequence[Claim], *odcrs: Odcr
) -> tuple[dict[str, str], list[str]]:
    pairs = adopt(orphans, claims, CLASSES, TYPES, odcrs={odcr.id: odcr for odcr in odcrs})
    ids = {claim.name: instance.id for claim, instance in pairs}
    return ids, sorted({orphan.id for orphan in orphans} - {*ids.values()})


@pytest.mark.covers("KRP-25")
def test_an_orphan_is_adopted_by_a_waiting_claim_that_it_satisfies() -> None:
    assert adopted([orphan("i-1")], [claim("a")]) == ({"a": "i-1"}, [])


@pytest.mark.covers("KRP-25")
@pytest.mark.parametrize(
    ("ec2_instance", "claim_fields"),
    [
        (orphan("i-1"), {"types": ["m5.large"]}),
        (orphan("i-1"), {"zones": ["us-east-1b"]}),
        (orphan("i-1"), {"kinds": ["reserved"]}),
        (orphan("i-1", reservation="cr-1"), {"kinds": ["on-demand"]}),
        (orphan("i-1", lifecycle="spot"), {"kinds": ["on-demand"]}),
        (orphan("i-1", lifecycle="spot"), {}),
        (orphan("i-1"), {"requests": {"cpu": 16.0}}),
        (orphan("i-1", of="other"), {}),
        (instance("i-1"), {}),
        (orphan("i-1"), {"node_class": "gone"}),
        (orphan("i-1", state="terminated"), {}),
        (orphan("i-1", described=False), {}),
        (orphan("i-1", "x9.large"), {}),
    ],
    ids=[
        "another type",
        "another zone",
        "not reserved",
        "reserved",
        "spot",
        "spot, not requested",
        "too small",
        "of another class",
        "of no class",
        "a claim of no class",
        "gone",
        "not described yet",
        "a type that is unknown",
    ],
)
def test_orphan_that_matches_no_claim_is_left_over(
    ec2_instance: Instance, claim_fields: dict[str, Any]
) -> None:
    assert adopted([ec2_instance], [claim("a", **claim_fields)]) == ({}, ["i-1"])


@pytest.mark.covers("KRP-22", "KRP-25")
def test_a_gang_adopts_for_all_of_its_claims_or_for_none() -> None:
    gang = [claim("a", gang="g"), claim("b", gang="g")]
    assert adopted([orphan("i-1"), orphan("i-2")], gang) == ({"a": "i-1", "b": "i-2"}, [])
    assert adopted([orphan("i-1")], gang) == ({}, ["i-1"])
    assert adopted([orphan("i-1")], [*gang, claim("c")]) == ({"c": "i-1"}, [])


@pytest.mark.covers("KRP-25")
def test_an_orphan_in_a_reservation_goes_to_a_claim_that_wants_that_reservation() -> None:
    pin = ("karpenter.k8s.aws/capacity-reservation-id", "In", ["cr-2"])
    orphans = [orphan("i-1", reservation="cr-1"), orphan("i-2", reservation="cr-2")]
    claims = [claim("a", pin, kinds=["reserved"]), claim("b", kinds=["reserved"])]
    assert adopted(orphans, claims, odcr("cr-1"), odcr("cr-2")) == ({"a": "i-2", "b": "i-1"}, [])
    # The reservation may be gone from the description already; its id is still on the instance.
    assert adopted(orphans[1:], claims[:1]) == ({"a": "i-2"}, [])


@pytest.mark.covers("KRP-25")
def test_reservation_requirements_apply_to_orphans_too() -> None:
    key = "karpenter.k8s.aws/capacity-reservation-"
    inside, outside = orphan("i-1", reservation="cr-1"), orphan("i-2")
    block = claim("block", (f"{key}type", "In", ["capacity-block"]))
    lasting = claim("lasting", (f"{key}type", "In", ["default"]))
    none = claim("none", (f"{key}id", "DoesNotExist", []))
    assert adopted([inside, outside], [block, lasting, none], odcr("cr-1")) == (
        {"lasting": "i-1", "none": "i-2"},
        [],
    )


@pytest.mark.covers("KRP-25")
def test_best_fit_first_and_the_claim_that_comes_first_is_served_first() -> None:
    orphans = [orphan("i-1", "m5.2xlarge"), orphan("i-2", "m5.large"), orphan("i-3", "m5.xlarge")]
    claims = [claim("low"), claim("high", priority=1, requests={"cpu": 3.0})]
    assert adopted(orphans, claims) == ({"high": "i-3", "low": "i-2"}, ["i-1"])


@pytest.mark.covers("KRP-25")
def test_a_claim_that_could_take_another_leaves_the_only_one_that_fits_its_neighbour() -> None:
    orphans = [orphan("i-1", "m5.large"), orphan("i-2", "m5.xlarge")]
    claims = [claim("any", priority=1), claim("picky", types=["m5.large"])]
    assert adopted(orphans, claims) == ({"any": "i-2", "picky": "i-1"}, [])


@pytest.mark.parametrize(
    ("ec2_instance", "kind"),
    [
        (instance("i-1"), "on-demand"),
        (instance("i-1", lifecycle="spot"), "spot"),
        (instance("i-1", reservation="cr-1"), "reserved"),
        (instance("i-1", reservation="cr-1", lifecycle="capacity-block"), "reserved"),
    ],
)
def test_capacity_type_follows_ec2s_description(ec2_instance: Instance, kind: str) -> None:
    assert capacity_type(ec2_instance) == kind


_orphans = st.lists(
    st.builds(
        orphan,
        st.sampled_from([f"i-{n}" for n in range(5)]),
        st.sampled_from(["m5.large", "m5.xlarge", "m5.2xlarge"]),
        reservation=st.sampled_from(["", "cr-1"]),
    ),
    max_size=4,
    unique_by=lambda orphan: str(orphan.id),
)
_claims = st.lists(
    st.builds(
        claim,
        st.sampled_from([f"c{n}" for n in range(5)]),
        kinds=st.sampled_from([[], ["reserved"], ["on-demand"]]),
        types=st.sampled_from([[], ["m5.large"], ["m5.xlarge", "m5.2xlarge"]]),
        priority=st.integers(0, 1),
    ),
    max_size=4,
    unique_by=lambda claim: str(claim.name),
)


@pytest.mark.covers("KRP-25")
@given(_orphans, _claims, st.randoms(use_true_random=False))
def test_most_possible_orphans_are_adopted_once_in_any_order(
    orphans: list[Instance], claims: list[Claim], random: Any
) -> None:
    reservation = odcr("cr-1")
    pairs, left = adopted(orphans, claims, reservation)
    assert len(set(pairs.values())) == len(pairs)
    assert sorted([*pairs.values(), *left]) == sorted(orphan.id for orphan in orphans)
    fits = {
        (claim.name, orphan.id)
        for claim in claims
        for orphan in orphans
        if satisfies(orphan, claim, CLASSES, TYPES, odcrs={"cr-1": reservation})
    }
    assert set(pairs.items()) <= fits
    placeholders = [claim(f"none-{n}") for n in range(len(orphans))]
    most = max(
        sum((claim.name, orphan.id) in fits for claim, orphan in zip(choice, orphans, strict=True))
        for choice in itertools.permutations([*claims, *placeholders], len(orphans))
    )
    assert len(pairs) == most
    random.shuffle(orphans)
    random.shuffle(claims)
    assert adopted(orphans, claims, reservation) == (pairs, left)
