"""The options of a claim, and their order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from broker.capacity.inventory import Inventory
from broker.capacity.model import Claim, ReservationTerm, Selection
from providers.model import Image, Odcr
from providers.odcr_states import OdcrState
from tests.unit.capacity.builders import options

from .builders import GROUP, NOW, TYPES, claim, inventory, minutes, node_class, odcr, planned, type_

OPEN = Selection(preference="open")


def pools(claim: Claim, selection: Selection, world: Inventory, **more: Any) -> list[str]:
    types = dict(reversed([*TYPES.items()]))  # in any order of EC2's list
    usable, _ = options(claim, node_class(selection, world, **more), types, world, NOW)
    return [str(option.pool) for option in usable]


def skips(claim: Claim, selection: Selection, world: Inventory, **more: Any) -> dict[str, tuple[str, str]]:
    _, skipped = options(claim, node_class(selection, world, **more), TYPES, world, NOW)
    return {skip.pool.reservation: (skip.reason, skip.message) for skip in skipped}


@pytest.mark.covers("KRP-16")
@pytest.mark.parametrize(
    ("kinds", "order"),
    [
        ([], ["reserved", "on-demand"]),
        (["reserved"], ["reserved"]),
        (["on-demand"], ["on-demand"]),
        (["on-demand", "reserved"], ["reserved", "on-demand"]),
        (["spot"], ["spot"]),
        (["spot", "reserved"], ["reserved", "spot"]),
        (["spot", "on-demand", "reserved"], ["reserved", "spot", "on-demand"]),
    ],
)
def test_the_capacity_type_requirement_is_the_fallback_policy(kinds: Sequence[str], order: list[str]) -> None:
    world = inventory(odcr("cr-1", "m5.large"))
    new_claim = claim(kinds=kinds, types=["m5.large"], zones=["us-east-1a"])
    pool_keys = pools(new_claim, Selection(reservation_id="cr-1"), world)
    assert [pool.split(":")[0] for pool in pool_keys] == order


def test_not_in_and_exists_are_fallback_policies_too() -> None:
    world = inventory(odcr("cr-1", "m5.large"))
    claim_fields: dict[str, Any] = {"types": ["m5.large"], "zones": ["us-east-1a"]}
    not_reserved = claim("c", ("karpenter.sh/capacity-type", "NotIn", ["reserved"]), **claim_fields)
    anything = claim("c", ("karpenter.sh/capacity-type", "Exists", []), **claim_fields)
    first = [pool.split(":")[0] for pool in pools(not_reserved, OPEN, world)]
    second = [pool.split(":")[0] for pool in pools(anything, OPEN, world)]
    assert (first, second) == (["spot", "on-demand"], ["reserved", "spot", "on-demand"])


@pytest.mark.covers("KRP-08")
@pytest.mark.parametrize("selection", [OPEN, Selection(reservation_id="cr-1"), Selection(group_arn=GROUP)])
def test_reservation_in_a_zone_that_the_claim_excludes_is_no_option(
    selection: Selection,
) -> None:
    world = inventory(odcr("cr-1", zone="us-east-1a"), groups={GROUP: ["cr-1"]})
    elsewhere = claim(kinds=["reserved"], zones=["us-east-1b"])
    assert pools(elsewhere, selection, world) == []
    assert skips(elsewhere, selection, world)["cr-1"][0] == "RequirementsMismatch"
    by_id = claim("c", ("topology.k8s.aws/zone-id", "In", ["use1-aza"]), kinds=["reserved"])
    assert len(pools(by_id, selection, world)) == 1


@pytest.mark.covers("KRP-08")
@pytest.mark.covers("SAF-09")
@pytest.mark.parametrize(
    ("requirement", "given"),
    [
        ((), "default"),
        (("In", ["default"]), "default"),
        (("In", ["dedicated"]), "dedicated"),
        (("In", ["dedicated", "default"]), "default"),
        (("NotIn", ["default"]), "dedicated"),
        (("Exists", []), "default"),
        (("In", ["host"]), None),
    ],
)
def test_claim_launches_with_the_tenancy_that_it_requires(requirement: Any, given: str | None) -> None:
    key = "karpenter.k8s.aws/instance-tenancy"
    new_claim = claim("c", *([(key, *requirement)] if requirement else []), kinds=["reserved", "on-demand"])
    world = inventory(odcr("cr-default"), odcr("cr-dedicated", tenancy="dedicated"))
    assignments = planned([new_claim], node_class(OPEN, world), world).assignments
    assert [assignment.option.odcr_ids for assignment in assignments] == ([(f"cr-{given}",)] if given else [])
    if given:
        placed = "@dedicated" if given == "dedicated" else ""
        assert str(assignments[0].option.pool) == f"reserved:m5.xlarge:us-east-1a{placed}"
        others = [option.pool for option in assignments[0].rest if option.pool.capacity_type == "on-demand"]
        assert others and all(option.placement == placed.lstrip("@") for option in others)


ONLY = Selection(preference="capacity-reservations-only")
NAMED = "capacityReservationPreference of EC2NodeClass default is"


@pytest.mark.parametrize(
    ("selection", "kinds", "odcrs", "remedy"),
    [
        (
            Selection(preference="none"),
            ["reserved"],
            [odcr("cr-1")],
            f"{NAMED} none: set capacityReservationTarget in its place, or allow on-demand in "
            "karpenter.sh/capacity-type",
        ),
        (
            Selection(),
            ["reserved"],
            [odcr("cr-1")],
            "EC2NodeClass default has no capacityReservationSpec: set capacityReservationTarget, or allow "
            "on-demand in karpenter.sh/capacity-type",
        ),
        (
            ONLY,
            ["on-demand"],
            [odcr("cr-1", match_criteria="open")],
            f"{NAMED} capacity-reservations-only: allow reserved in karpenter.sh/capacity-type, or set it to "
            "open",
        ),
        (
            ONLY,
            [],
            [],
            f"{NAMED} capacity-reservations-only: make an open reservation, or set it to open",
        ),
        (
            ONLY,
            [],
            [odcr("cr-1", "g5.xlarge", match_criteria="open")],
            f"{NAMED} capacity-reservations-only: make an open reservation that fits, or set it to open; "
            "g5.xlarge: ",
        ),
        (
            ONLY,
            ["reserved"],
            [odcr("cr-1", "g5.xlarge", match_criteria="open")],
            f"{NAMED} capacity-reservations-only: make an open reservation that fits; g5.xlarge: ",
        ),
    ],
)
def test_claim_that_its_class_leaves_without_an_option_names_the_field_and_the_remedy(
    selection: Selection, kinds: Sequence[str], odcrs: Sequence[Odcr], remedy: str
) -> None:
    world = inventory(*odcrs)
    (unplaced,) = planned(
        [claim(kinds=kinds, types=["m5.xlarge"])], node_class(selection, world), world
    ).unplaced
    assert unplaced.reason == "NoUsableReservation" and remedy in unplaced.message


def test_types_without_an_image_are_counted_with_their_architecture() -> None:
    arm = claim("c", ("kubernetes.io/arch", "In", ["arm64"]))
    (unplaced,) = planned([arm], node_class(images=(Image(id="ami-amd64"),)), inventory()).unplaced
    assert "image (the class has no image for arm64) excludes " in unplaced.message


def test_claim_that_requires_a_reservation_has_no_option_outside() -> None:
    world = inventory(odcr("cr-1"))
    new_claim = claim("c", ("karpenter.k8s.aws/capacity-reservation-id", "In", ["cr-9"]), types=["m5.xlarge"])
    (unplaced,) = planned([new_claim], node_class(OPEN, world), world).unplaced
    assert unplaced.reason == "NoUsableReservation"
    assert "karpenter.k8s.aws/capacity-reservation-id is cr-1, needs one of cr-9" in unplaced.message


@pytest.mark.covers("KRP-20")
def test_reserved_smaller_first_then_soonest_ending_then_by_zone_and_id() -> None:
    world = inventory(
        odcr("cr-1", "m5.2xlarge", end=NOW + minutes(10)),
        odcr("cr-2", "m5.xlarge", "us-east-1b"),
        odcr("cr-3", "m5.xlarge", "us-east-1a"),
        odcr("cr-4", "m5.xlarge", "us-east-1c", end=NOW + minutes(500)),
        odcr("cr-5", "m5.xlarge", "us-east-1c", end=NOW + minutes(400)),
        odcr("cr-6", "p5.48xlarge"),
        odcr("cr-7", "m5.large"),
    )
    terms = Selection(terms=tuple(_term(f"cr-{n}") for n in range(1, 8)))
    assert [pool.rsplit(":")[-1] for pool in pools(claim(kinds=["reserved"]), terms, world)] == [
        "cr-7",
        "cr-5",
        "cr-4",
        "cr-3",
        "cr-2",
        "cr-1",
        "cr-6",
    ]


def _term(id_: str) -> ReservationTerm:
    return ReservationTerm(id=id_)


def test_on_demand_by_price_and_unknown_prices_last() -> None:
    priceless = replace(TYPES["m5.large"], on_demand_price=None)
    nodeclass = node_class(zones=["us-east-1a"])
    usable, _ = options(
        claim(kinds=["on-demand"]), nodeclass, {**TYPES, "m5.large": priceless}, inventory(), NOW
    )
    assert [(option.pool.instance_type, option.price) for option in usable] == [
        ("c6g.xlarge", 0.136),
        ("m5.xlarge", 0.192),
        ("m5.2xlarge", 0.384),
        ("m5.large", None),
    ]


def test_spot_by_the_price_of_each_zone() -> None:
    pool_keys = pools(claim(kinds=["spot"], types=["m5.large", "m5.xlarge"]), Selection(), inventory())
    assert pool_keys[0] == "spot:m5.large:us-east-1a"
    assert len(pool_keys) == 6


@pytest.mark.covers("KRP-05")
def test_an_id_is_a_pool_of_its_own() -> None:
    world = inventory(odcr("cr-1", match_criteria="targeted"), odcr("cr-2"))
    usable, _ = options(
        claim(kinds=["reserved"]), node_class(Selection(reservation_id="cr-1"), world), TYPES, world, NOW
    )
    (option,) = usable
    assert str(option.pool) == "reserved:m5.xlarge:us-east-1a:cr-1"
    assert option.odcr_ids == ("cr-1",)


@pytest.mark.covers("KRP-06")
def test_a_group_is_one_pool_for_each_type_and_zone_of_its_members() -> None:
    world = inventory(
        odcr("cr-1"),
        odcr("cr-2", end=NOW + minutes(60)),
        odcr("cr-3", zone="us-east-1b"),
        odcr("cr-4", "p5.48xlarge"),
        groups={GROUP: ["cr-1", "cr-2", "cr-3", "cr-4"]},
    )
    nodeclass = node_class(Selection(group_arn=GROUP), world)
    usable, _ = options(claim(kinds=["reserved"]), nodeclass, TYPES, world, NOW)
    assert [(str(option.pool), option.odcr_ids, option.ends) for option in usable] == [
        (f"reserved:m5.xlarge:us-east-1a:{GROUP}", ("cr-2", "cr-1"), NOW + minutes(60)),
        (f"reserved:m5.xlarge:us-east-1b:{GROUP}", ("cr-3",), None),
        (f"reserved:p5.48xlarge:us-east-1a:{GROUP}", ("cr-4",), None),
    ]


@pytest.mark.covers("KRP-07")
def test_open_is_one_pool_for_each_type_and_zone_of_open_reservations() -> None:
    world = inventory(odcr("cr-1"), odcr("cr-2"), odcr("cr-3", match_criteria="targeted"))
    usable, _ = options(claim(kinds=["reserved"]), node_class(OPEN, world), TYPES, world, NOW)
    (option,) = usable
    assert str(option.pool) == "reserved:m5.xlarge:us-east-1a"
    assert option.odcr_ids == ("cr-1", "cr-2")


@pytest.mark.covers("KRP-07")
@pytest.mark.parametrize("selection", [Selection(), Selection(preference="none")])
def test_none_has_no_reserved_options(selection: Selection) -> None:
    pool_keys = pools(
        claim(types=["m5.large"], zones=["us-east-1a"]), selection, inventory(odcr("cr-1", "m5.large"))
    )
    assert pool_keys == ["on-demand:m5.large:us-east-1a"]


def test_capacity_reservations_only_never_leaves_the_open_reservations() -> None:
    only = Selection(preference="capacity-reservations-only")
    assert pools(claim(), only, inventory(odcr("cr-1"))) == ["reserved:m5.xlarge:us-east-1a"]
    assert pools(claim(), only, inventory()) == []


@pytest.mark.parametrize("selection", [OPEN, Selection(group_arn=GROUP)])
def test_claim_that_pins_a_reservation_launches_by_its_id_if_ec2_would_choose_another(
    selection: Selection,
) -> None:
    world = inventory(odcr("cr-1"), odcr("cr-2"), groups={GROUP: ["cr-1", "cr-2"]})
    pinned = claim("c", ("karpenter.k8s.aws/capacity-reservation-id", "In", ["cr-2"]), kinds=["reserved"])
    assert pools(pinned, selection, world) == ["reserved:m5.xlarge:us-east-1a:cr-2"]
    reason, message = skips(pinned, selection, world)["cr-1"]
    assert reason == "RequirementsMismatch"
    assert message == "karpenter.k8s.aws/capacity-reservation-id is cr-1, needs one of cr-2"


@pytest.mark.covers("KRP-15")
def test_blocks_and_interruptible_reservations_have_their_own_markets_and_calls() -> None:
    world = inventory(
        odcr("cr-1", "p5.48xlarge"),
        odcr("cr-2", "p5.48xlarge", reservation_type="capacity-block", end=NOW + minutes(600)),
        odcr("cr-3", "p5.48xlarge", interruptible=True),
        groups={GROUP: ["cr-1", "cr-2", "cr-3"]},
    )
    nodeclass = node_class(Selection(group_arn=GROUP), world)
    usable, _ = options(claim(kinds=["reserved"]), nodeclass, TYPES, world, NOW)
    assert {(option.pool.reservation, option.market, option.odcr_ids) for option in usable} == {
        (GROUP, "on-demand", ("cr-1",)),
        ("cr-2", "capacity-block", ("cr-2",)),
        ("cr-3", "interruptible-capacity-reservation", ("cr-3",)),
    }


@pytest.mark.parametrize(
    ("requirement", "expected"),
    [
        (("karpenter.k8s.aws/capacity-reservation-type", "In", ["capacity-block"]), ["cr-2"]),
        (("karpenter.k8s.aws/capacity-reservation-interruptible", "In", ["true"]), ["cr-3"]),
        (("karpenter.k8s.aws/capacity-reservation-id", "DoesNotExist", []), []),
    ],
)
def test_requirements_on_reservation_labels_choose_among_them(requirement: Any, expected: list[str]) -> None:
    world = inventory(
        odcr("cr-1"),
        odcr("cr-2", reservation_type="capacity-block", end=NOW + minutes(600)),
        odcr("cr-3", interruptible=True),
    )
    terms = Selection(terms=tuple(_term(f"cr-{n}") for n in (1, 2, 3)))
    pool_keys = pools(claim("c", requirement, kinds=["reserved"]), terms, world)
    assert [pool.rsplit(":")[-1] for pool in pool_keys] == expected


@pytest.mark.covers("KRP-08")
@pytest.mark.parametrize(
    ("claim_fields", "reason", "words"),
    [
        ({"types": ["m5.large"]}, "InstanceTypeMismatch", ["m5.xlarge", "one of m5.large"]),
        ({"requests": {"nvidia.com/gpu": 1}}, "InstanceTypeMismatch", ["nvidia.com/gpu: requests 1"]),
        ({"zones": ["us-east-1b"]}, "RequirementsMismatch", ["us-east-1a", "one of us-east-1b"]),
        ({"kinds": ["on-demand"]}, "CapacityTypeMismatch", ["accepts only on-demand"]),
        ({"kinds": ["reservd"]}, "CapacityTypeMismatch", ["one of reservd", "reserved, spot, on-demand"]),
    ],
)
def test_reservation_that_does_not_match_the_claim_is_reported(
    claim_fields: dict[str, Any], reason: str, words: list[str]
) -> None:
    skip = skips(claim(**claim_fields), Selection(reservation_id="cr-1"), inventory(odcr("cr-1")))["cr-1"]
    assert skip[0] == reason
    assert all(word in skip[1] for word in words), skip


def test_reservation_that_starts_later_is_reported_with_its_start() -> None:
    world = inventory(odcr("cr-1", state="scheduled", start=NOW + minutes(60)))
    skip = skips(claim(), Selection(reservation_id="cr-1"), world)["cr-1"]
    text = "reservation cr-1 (m5.xlarge, us-east-1a) is scheduled, starts at 2026-11-01T13:00:00Z"
    assert skip == ("ReservationPending", text)
    other = skips(claim(types=["m5.large"]), Selection(reservation_id="cr-1"), world)["cr-1"]
    assert other[0] == "InstanceTypeMismatch"


@pytest.mark.covers("KRP-08")
@pytest.mark.parametrize(
    ("state", "reason"), [("cancelled", "ReservationCancelled"), ("pending", "ReservationPending")]
)
def test_a_reservation_that_changed_since_the_class_was_resolved_is_left_out(
    state: OdcrState, reason: str
) -> None:
    before = inventory(odcr("cr-1"))
    nodeclass = node_class(Selection(reservation_id="cr-1"), before)
    after = inventory(odcr("cr-1", state=state))
    usable, skipped = options(claim(kinds=["reserved"]), nodeclass, TYPES, after, NOW)
    assert usable == ()
    assert [skip.reason for skip in skipped] == [reason]


@pytest.mark.covers("FLT-35")
def test_a_block_that_drains_since_the_class_was_resolved_names_the_end_of_launches() -> None:
    block = odcr("cr-1", reservation_type="capacity-block", end=NOW + minutes(60))
    nodeclass = node_class(Selection(reservation_id="cr-1"), inventory(block))
    later = NOW + minutes(21)
    usable, skipped = options(claim(kinds=["reserved"]), nodeclass, TYPES, inventory(block), later)
    assert usable == ()
    (message,) = [skip.message for skip in skipped]
    assert message.startswith("capacity block cr-1 ends at") and "nothing is launched into it" in message


def test_type_without_a_description_is_reported() -> None:
    skip = skips(claim(), Selection(reservation_id="cr-1"), inventory(odcr("cr-1", "x9.large")))["cr-1"]
    assert skip[0] == "InstanceTypeMismatch"
    assert "x9.large" in skip[1]


def test_only_types_with_an_image_are_options() -> None:
    pool_keys = pools(claim(kinds=["on-demand"]), Selection(), inventory(), images=(Image(id="ami-amd64"),))
    assert pool_keys
    assert not [pool for pool in pool_keys if "c6g" in pool]
    world = inventory(odcr("cr-1", "c6g.xlarge"))
    skipped = skips(claim(), Selection(reservation_id="cr-1"), world, images=(Image(id="ami-amd64"),))
    assert skipped["cr-1"] == ("InstanceTypeMismatch", "c6g.xlarge: the class has no image for arm64")


def test_a_type_with_accelerators_needs_an_image_that_drives_them() -> None:
    general = (Image(id="ami-1", accelerator="none"),)
    skipped = skips(
        claim(), Selection(reservation_id="cr-1"), inventory(odcr("cr-1", "p5.48xlarge")), images=general
    )
    assert skipped["cr-1"] == (
        "InstanceTypeMismatch",
        "p5.48xlarge: the class has no image for amd64 with its accelerators",
    )
    both = (*general, Image(id="ami-2", accelerator="nvidia"))
    gpu_claim = claim(kinds=["on-demand"], zones=["us-east-1a"], requests={"nvidia.com/gpu": 8.0})
    pool_keys = pools(gpu_claim, Selection(), inventory(), images=both)
    assert "on-demand:p5.48xlarge:us-east-1a" in pool_keys


def test_the_image_must_be_of_the_reservations_platform_and_the_types_architecture_at_once() -> None:
    images = (Image(id="ami-1", platform="Windows"), Image(id="ami-2", architecture="arm64"))
    skipped = skips(claim(), Selection(reservation_id="cr-1"), inventory(odcr("cr-1")), images=images)
    assert skipped["cr-1"] == (
        "PlatformMismatch",
        "the class has no image for m5.xlarge on platform Linux/UNIX",
    )


def test_on_demand_needs_an_offer_in_a_zone_of_the_class() -> None:
    types = {"m5.large": replace(TYPES["m5.large"], zones=frozenset({"us-east-1b", "us-east-1c"}))}
    nodeclass = node_class(zones=["us-east-1a", "us-east-1b"])
    usable, _ = options(claim(kinds=["on-demand"]), nodeclass, types, inventory(), NOW)
    assert [str(option.pool) for option in usable] == ["on-demand:m5.large:us-east-1b"]


def test_types_sold_only_as_capacity_blocks_are_no_on_demand_options() -> None:
    blocks = replace(TYPES["p5.48xlarge"], market_types=frozenset({"capacity-block"}))
    usable, _ = options(claim(kinds=["on-demand"]), node_class(), {"p5.48xlarge": blocks}, inventory(), NOW)
    assert usable == ()


def test_a_claims_own_labels_are_no_requirement_on_the_instance() -> None:
    new_claim = claim("c", ("example.com/team", "In", ["ml"]), types=["m5.large"], zones=["us-east-1a"])
    assert pools(new_claim, Selection(), inventory()) == ["on-demand:m5.large:us-east-1a"]


def test_zone_ids_choose_zones() -> None:
    new_claim = claim("c", ("topology.k8s.aws/zone-id", "In", ["use1-azb"]), types=["m5.large"])
    assert pools(new_claim, Selection(), inventory()) == ["on-demand:m5.large:us-east-1b"]


MORE = {
    **TYPES,
    "c7i-flex.xlarge": type_("c7i-flex.xlarge", clock_mhz=3200, branch_interfaces=8, price=0.1),
    "z1d.xlarge": type_("z1d.xlarge", clock_mhz=4000, branch_interfaces=28, price=0.372),
    "x1e.xlarge": type_("x1e.xlarge", local_storage_gb=120, local_nvme=False, price=0.834),
    "m5d.xlarge": type_("m5d.xlarge", local_storage_gb=150, price=0.226),
}


@pytest.mark.parametrize(
    ("key", "operator", "values", "left"),
    [
        ("instance-capability-flex", "In", ["true"], {"c7i-flex.xlarge"}),
        ("instance-capability-flex", "NotIn", ["true"], MORE.keys() - {"c7i-flex.xlarge", "p5.48xlarge"}),
        ("instance-cpu-sustained-clock-speed-mhz", "Gt", ["3500"], {"z1d.xlarge"}),
        ("instance-local-nvme", "Exists", [], {"m5d.xlarge"}),
        # The broker chooses no partition, so a node labelled with one could run in another.
        ("placement-group-partition", "In", ["2"], set()),
        ("placement-group-id", "In", ["pg-1"], set()),
    ],
)
def test_requirements_on_type_labels_select_types(
    key: str, operator: str, values: list[str], left: set[str]
) -> None:
    new_claim = claim("c", (f"karpenter.k8s.aws/{key}", operator, values), kinds=["on-demand"])
    usable, _ = options(new_claim, node_class(), MORE, inventory(), NOW)
    assert {option.pool.instance_type for option in usable} == left


def test_pods_with_security_groups_of_their_own_need_branch_interfaces() -> None:
    new_claim = claim("c", kinds=["on-demand"], requests={"vpc.amazonaws.com/pod-eni": 9})
    usable, _ = options(new_claim, node_class(), MORE, inventory(), NOW)
    assert {option.pool.instance_type for option in usable} == {"z1d.xlarge"}
