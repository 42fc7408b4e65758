"""The purchases, changes and returns, one rule at a time."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from broker.apis import names
from broker.capacity.inventory import Inventory
from broker.quota.usage import ReservationKey
from broker.reservations.desired import (
    LATEST_VISIBLE,
    MOST_ADDED,
    Caps,
    DesiredCapacity,
    FlavorDemand,
    GroupChange,
    ProcurementPlan,
    PurchaseSpec,
)
from broker.reservations.ownership import Adopters, OwnershipClaim, made_here, resolve_ownership
from broker.reservations.procurement import plan
from broker.reservations.purchases import TAG_PURCHASE, HeldRecord, Purchase, PurchaseIntent
from broker.reservations.refusals import Refusals
from broker.reservations.sizing import InstanceFlavor
from providers.aws.tags import Owner
from providers.errors import ErrorClass, ProviderError
from providers.model import Instance, InstanceType, MatchCriteria, Odcr, ReservationGroup
from providers.names import MANAGED_BY, MANAGER, TAG_CLUSTER, TAG_CLUSTER_UID
from tests.unit.capacity.builders import GROUP, NOW, ZONES, instance, minutes, odcr, type_

GPU = "nvidia.com/gpu"
TEAM, OTHER = ReservationKey("team", "gpus"), ReservationKey("team", "more")
RICH = Caps(dollars=1e9)
TYPES = {
    instance_type.name: instance_type
    for instance_type in (
        type_("p5.48xlarge", vcpus=192, memory_gib=2048, gpus=8, price=100.0),
        type_("p5.4xlarge", vcpus=16, memory_gib=256, gpus=1, price=13.0),
        type_("p4d.24xlarge", vcpus=96, memory_gib=1152, gpus=8),
        type_("m5.xlarge", price=0.2),
    )
}
P5, SMALL, P4 = [*TYPES][:3]
A, B, C = ZONES
H100 = InstanceFlavor(name="h100", instance_types=(P5,), zones=(A, B))


def desired(
    gpus: int = 64, flavor: InstanceFlavor = H100, reserved: ReservationKey = TEAM, **more: Any
) -> DesiredCapacity:
    demand = FlavorDemand(flavor=flavor, nominal={GPU: float(gpus)})
    demands = more.pop("demands", {flavor.name: demand})
    names = more.pop("flavor_names", tuple(demands))
    more = {"groups": False, "minimum": 1, **more}
    return DesiredCapacity(reserved=reserved, demands=demands, flavor_names=names, **more)


def managed(
    id_: str, count: int, *, used: int = 0, zone: str = A, kind: str = P5, flavor: str = "h100", **more: Any
) -> Odcr:
    tags = {
        names.TAG_RESERVATION: str(more.pop("reserved", TEAM)),
        names.TAG_FLAVOR: flavor,
        MANAGED_BY: MANAGER,
        TAG_CLUSTER: "blue",
        TAG_PURCHASE: more.pop("bought_by", ""),
    }
    more = {"match_criteria": "targeted", **more}
    return odcr(id_, kind, zone, total=count, free=count - used, tags=tags, **more)


def foreign(id_: str, count: int, *, zone: str = A, kind: str = P5, **more: Any) -> Odcr:
    return odcr(id_, kind, zone, total=count, free=count, tags={names.TAG_RESERVATION: str(TEAM)}, **more)


def intent(id_: str, count: int, *, reserved: ReservationKey = TEAM, **more: Any) -> PurchaseIntent:
    more = {"at": NOW, "flavor": "h100", "instance_type": P5, "zone": A, **more}
    return PurchaseIntent(attempt_id=id_, count=count, reserved=reserved, **more)


def lost(id_: str, total: int, *, reserved: ReservationKey = TEAM, **more: Any) -> HeldRecord:
    more = {"flavor": "h100", "instance_type": P5, "zone": A, "bought": True, **more}
    return HeldRecord(id=id_, total=total, reserved=reserved, **more)


def steps(procurement: ProcurementPlan) -> bool:
    """Whether any step is due."""
    return bool(procurement.purchases or procurement.changes or procurement.regroups)


def planned(
    *capacities: DesiredCapacity,
    odcrs: tuple[Odcr, ...] = (),
    refusals: Refusals | None = None,
    caps: Caps = RICH,
    debits: Mapping[str, int] | None = None,
    kept: Mapping[str, str] | None = None,
    now: datetime = NOW,
    types: Mapping[str, InstanceType] = TYPES,
    intents: Iterable[PurchaseIntent] = (),
    lost: Iterable[HeldRecord] = (),
) -> ProcurementPlan:
    claimants = [
        OwnershipClaim(
            reserved=capacity.reserved,
            flavor_names=capacity.flavor_names,
            flavors={name: demand.flavor for name, demand in capacity.demands.items()},
        )
        for capacity in capacities
    ]
    inventory = Inventory(
        odcrs={reservation.id: reservation for reservation in odcrs},
        debits=debits or {},
        kept=kept or {},
        described=now,
    )
    return plan(
        capacities,
        inventory,
        resolve_ownership(odcrs, {}, claimants, cluster="blue", adopters=Adopters({})),
        types=types,
        refusals=refusals or Refusals(),
        caps=caps,
        cluster="blue",
        now=now,
        intents=intents,
        lost=lost,
    )


def buys(procurement: ProcurementPlan) -> list[tuple[str, str, int]]:
    return [(purchase.instance_type, purchase.zone, purchase.count) for purchase in procurement.purchases]


def changes(procurement: ProcurementPlan) -> dict[str, int]:
    return {change.odcr_id: change.count for change in procurement.changes}


def reasons(procurement: ProcurementPlan, reserved: ReservationKey = TEAM) -> list[str]:
    return [problem.reason for problem in procurement.statuses[reserved].problems]


def refused(*given: tuple[str, str, int], code: str = "InsufficientInstanceCapacity") -> Refusals:
    class_ = {
        "InsufficientInstanceCapacity": ErrorClass.CAPACITY,
        "InstanceLimitExceeded": ErrorClass.QUOTA,
        "Unsupported": ErrorClass.UNSUPPORTED,
    }[code]
    refusals_ = Refusals()
    for kind, zone, count in given:
        refusals_ = refusals_.record(kind, zone, count, ProviderError(code, "no", class_=class_), NOW)
    return refusals_


# ---- buying


@pytest.mark.parametrize(
    ("odcrs", "bought"),
    [
        ((), [(P5, A, 8)]),
        ((managed("cr-1", 8),), []),
        ((foreign("cr-1", 8),), []),
        # Held capacity of any source and state is not bought again.
        ((foreign("cr-1", 5), managed("cr-2", 2, zone=B)), [(P5, A, 1)]),
        ((managed("cr-1", 8, state="pending"),), []),
        ((foreign("cr-1", 8, state="scheduled"),), []),
        ((foreign("cr-1", 8, reservation_type="capacity-block"),), []),
        ((managed("cr-1", 8, state="cancelled"),), [(P5, A, 8)]),
        # A block in state unavailable serves no claim, and will not recover by itself.
        ((foreign("cr-1", 8, reservation_type="capacity-block", state="unavailable"),), [(P5, A, 8)]),
        ((replace(managed("cr-1", 8), tags={}),), [(P5, A, 8)]),
    ],
)
def test_missing_capacity_is_bought_once(odcrs: tuple[Odcr, ...], bought: list[tuple[str, str, int]]) -> None:
    assert buys(planned(desired(), odcrs=odcrs)) == bought


def lending(total: int, lent: int, **more: Any) -> Odcr:
    """An ODCR of the broker with an interruptible allocation: `total` is the rest, as in EC2."""
    return replace(managed("cr-1", total, **more), lent=lent, lent_to="cr-spare")


SPARE = replace(managed("cr-spare", 2), interruptible=True, source_id="cr-1")  # with the lender's tags


@pytest.mark.covers("FLT-01")
@pytest.mark.parametrize(
    ("odcrs", "bought", "changed"),
    [
        ((lending(6, 2),), [], {}),
        ((lending(0, 8),), [], {}),
        # The borrower's instances count once, in the lender, even if it has the lender's tags.
        ((lending(6, 2), SPARE), [], {}),
        ((lending(4, 2), SPARE), [(P5, A, 2)], {}),
        # More than the quota is given back from the part that is not lent; the ODCR itself stays.
        ((lending(8, 2),), [], {"cr-1": 6}),
        ((lending(2, 10),), [], {"cr-1": 1}),
        ((lending(1, 10),), [], {}),
    ],
)
def test_lent_instances_count_and_nothing_is_bought_in_their_place(
    odcrs: tuple[Odcr, ...], bought: list[tuple[str, str, int]], changed: dict[str, int]
) -> None:
    procurement = planned(desired(), odcrs=odcrs)
    assert (buys(procurement), changes(procurement)) == (bought, changed)


@pytest.mark.covers("FLT-01")
def test_a_purchase_before_a_loan_is_not_repeated() -> None:
    grown = intent("p-1", 4, odcr_id="cr-1", total=8)
    assert grown.unshown({"cr-1": lending(6, 2)}) == 0
    assert grown.unshown({"cr-1": lending(2, 2)}) == 4
    (purchase,) = planned(desired(), odcrs=(lending(2, 2),)).purchases
    assert (purchase.count, purchase.total) == (4, 8), "the target has the lent ones"


@pytest.mark.covers("FLT-01")
def test_a_deleted_reservation_keeps_its_lending_odcr_and_says_why() -> None:
    procurement = planned(desired(deleted=True, cancels=True), odcrs=(lending(2, 2),))
    assert changes(procurement) == {}
    (problem,) = procurement.statuses[TEAM].problems
    assert (problem.reason, "cr-1 lends 2 instances to cr-spare" in problem.message) == ("CapacityLent", True)


@pytest.mark.covers("CAP-03")
@pytest.mark.parametrize(
    ("label", "odcrs"),
    [
        (("karpenter.k8s.aws/capacity-reservation-id", "cr-9"), ()),
        (("karpenter.k8s.aws/capacity-reservation-type", "capacity-block"), ()),
        (("karpenter.k8s.aws/capacity-reservation-interruptible", "true"), ()),
        (("karpenter.k8s.aws/instance-tenancy", "dedicated"), ()),
        # A zone's name means another zone in another account: one reservation is enough to detect that.
        (("topology.k8s.aws/zone-id", "use1-az9"), (managed("cr-1", 8),)),
    ],
)
def test_a_purchase_that_could_not_serve_its_flavor_is_skipped(
    label: tuple[str, str], odcrs: tuple[Odcr, ...]
) -> None:
    pinned = replace(H100, labels=dict([label]))
    procurement = planned(desired(flavor=pinned), odcrs=odcrs)
    assert (buys(procurement), reasons(procurement)) == ([], ["PurchaseSkipped"])
    (problem,) = procurement.statuses[TEAM].problems
    assert (odcrs[0].id if odcrs else label[1]) in problem.message
    # A foreign reservation that has the label serves it.
    block = foreign("cr-9", 8, reservation_type="capacity-block", interruptible=True, zone_id="use1-az9")
    assert label[0].endswith("tenancy") or not reasons(planned(desired(flavor=pinned), odcrs=(block,)))


@pytest.mark.covers("SAF-09")
@pytest.mark.parametrize(("label", "tenancy"), [("default", "dedicated"), ("dedicated", "default")])
def test_a_tenancy_that_no_claim_could_use_is_not_bought(label: str, tenancy: Any) -> None:
    pinned = replace(H100, labels={"karpenter.k8s.aws/instance-tenancy": label})
    procurement = planned(desired(flavor=pinned, terms=PurchaseSpec(tenancy=tenancy)))
    (problem,) = procurement.statuses[TEAM].problems
    assert not buys(procurement)
    assert (
        "nothing could use it" in problem.message and tenancy in problem.message and label in problem.message
    )


def test_a_flavor_label_that_every_purchase_has_is_allowed() -> None:
    plain = replace(H100, labels={"karpenter.k8s.aws/capacity-reservation-type": "default"})
    assert buys(planned(desired(flavor=plain))) == [(P5, A, 8)]


def test_an_existing_reservation_grows() -> None:
    procurement = planned(
        desired(), odcrs=(managed("cr-1", 5, zone=A), managed("cr-2", 1, zone=A, state="pending"))
    )
    assert procurement.purchases == (
        Purchase(reserved=TEAM, flavor="h100", instance_type=P5, zone=A, count=2, odcr_id="cr-1", total=7),
    )


@pytest.mark.covers("CAP-05")
@pytest.mark.parametrize(
    ("before", "bought"),
    [
        ((), (P5, A, 8)),
        (((P5, A, 8),), (P5, B, 8)),
        (((P5, A, 8), (P5, B, 8)), (P5, A, 4)),
        (((P5, A, 4), (P5, B, 8)), (P5, B, 4)),
        (((P5, A, 1), (P5, B, 2)), (P5, B, 1)),
        (((P5, A, 1), (P5, B, 1)), None),
    ],
)
def test_a_refused_purchase_tries_the_next_zone_then_half_the_count(
    before: tuple[tuple[str, str, int], ...], bought: tuple[str, str, int] | None
) -> None:
    procurement = planned(desired(), refusals=refused(*before))
    assert buys(procurement) == ([bought] if bought else [])
    if bought is None:
        assert procurement.retry_at == NOW + minutes(3)
        count = procurement.statuses[TEAM].counts["h100"]
        assert (count.wanted, count.obtained, count.code) == (8, 0, "InsufficientInstanceCapacity")
        later = planned(desired(), refusals=refused(*before), now=NOW + minutes(3))
        assert buys(later) == [(P5, A, 8)]


@pytest.mark.covers("CAP-05")
def test_a_purchase_is_retried_when_the_first_refusal_expires() -> None:
    no = ProviderError("InsufficientInstanceCapacity", "no", class_=ErrorClass.CAPACITY)
    given = refused((P5, A, 1)).record(P5, B, 1, no, NOW + minutes(1))
    procurement = planned(desired(), refusals=given, now=NOW + minutes(2))
    assert (buys(procurement), procurement.retry_at) == ([], NOW + minutes(3))


@pytest.mark.covers("CAP-04")
@pytest.mark.parametrize(("named", "ended"), [(("h100",), {"cr-2": 0}), (("h100", "gone"), {})])
def test_nothing_is_cancelled_while_a_flavor_is_unresolved(
    named: tuple[str, ...], ended: dict[str, int]
) -> None:
    """A reservation that fits no flavor today may belong to the flavor without a ResourceFlavor."""
    odcrs = (managed("cr-1", 8), managed("cr-2", 1, kind="m5.xlarge", flavor="old"))
    assert changes(planned(desired(flavor_names=named, cancels=True), odcrs=odcrs)) == ended


@pytest.mark.covers("CAP-05")
def test_a_partial_purchase_is_kept_while_the_rest_is_refused() -> None:
    odcrs = (managed("cr-1", 4, zone=B),)
    procurement = planned(desired(), odcrs=odcrs, refusals=refused((P5, A, 1), (P5, B, 1)))
    assert not steps(procurement)
    count = procurement.statuses[TEAM].counts["h100"]
    assert (count.wanted, count.obtained, count.pending) == (8, 4, 0)
    assert count.code == "InsufficientInstanceCapacity"


def test_an_account_limit_applies_to_every_zone_and_fewer_are_tried() -> None:
    procurement = planned(desired(), refusals=refused((P5, A, 8), code="InstanceLimitExceeded"))
    assert buys(procurement) == [(P5, A, 4)]
    procurement = planned(desired(), refusals=refused((P5, A, 1), code="InstanceLimitExceeded"))
    assert buys(procurement) == []
    assert procurement.statuses[TEAM].counts["h100"].code == "InstanceLimitExceeded"


def test_a_zone_without_the_type_is_skipped() -> None:
    assert buys(planned(desired(), refusals=refused((P5, A, 8), code="Unsupported"))) == [(P5, B, 8)]


def test_types_of_a_flavor_are_tried_in_order_and_count_alike() -> None:
    flavor = InstanceFlavor(name="h100", instance_types=(P5, SMALL), zones=(A,))
    assert buys(planned(desired(20, flavor))) == [(P5, A, 3)]
    assert buys(planned(desired(20, flavor), refusals=refused((P5, A, 1)))) == [(SMALL, A, 20)]
    odcrs = (managed("cr-1", 2),)
    assert buys(planned(desired(20, flavor), odcrs=odcrs, refusals=refused((P5, A, 1)))) == [(SMALL, A, 4)]


def test_a_purchase_is_limited_to_ec2s_maximum() -> None:
    assert buys(planned(desired(8 * 1500))) == [(P5, A, MOST_ADDED)]


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"on_hold": "no"}, "PurchaseSkipped"),
        ({"refused": "no"}, "PurchaseRefused"),
        ({"frozen": "no"}, "PurchaseSkipped"),
        ({"terms": PurchaseSpec(end=NOW)}, "PurchaseSkipped"),
        ({"ready": False}, None),
    ],
)
def test_a_reservation_on_hold_buys_nothing(more: dict[str, Any], reason: str | None) -> None:
    procurement = planned(desired(**more))
    assert not steps(procurement)
    assert reasons(procurement) == ([reason] if reason else [])


def test_an_unsatisfiable_ratio_buys_by_the_accelerator_and_is_reported() -> None:
    demand = FlavorDemand(flavor=H100, nominal={GPU: 64.0, "memory": 32 * 2.0**40})
    procurement = planned(desired(demands={"h100": demand}))
    assert buys(procurement) == [(P5, A, 8)]
    assert reasons(procurement) == ["ResourceRatioUnsatisfiable"]


# ---- caps


@pytest.mark.covers("CAP-02")
@pytest.mark.parametrize(
    ("caps", "odcrs", "bought", "message"),
    [
        (
            Caps(),
            (),
            [],
            "--buy-dollars is 0, so buying is off: set it to 800.00 or more; ",
        ),
        (Caps(dollars=800.0), (), [(P5, A, 8)], ""),
        (Caps(dollars=799.0), (), [(P5, A, 7)], "--buy-dollars is 799"),
        (Caps(dollars=1e9, dollars_each=250.0), (), [(P5, A, 2)], "--buy-dollars-each is 250"),
        (Caps(dollars=1e9, instances=3), (), [(P5, A, 3)], "--buy-instances is 3: set it to 8"),
        (Caps(dollars=1e9, instances_each=3), (), [(P5, A, 3)], "--buy-instances-each is 3"),
        # All purchases of the broker count, for every reservation and in every state.
        (
            Caps(dollars=800.0),
            (managed("cr-1", 5, reserved=OTHER),),
            [(P5, A, 3)],
            "500.00 dollars an hour are spent in all, and --buy-dollars is 800: set it to 1300.00",
        ),
        (Caps(dollars=800.0), (managed("cr-1", 8, reserved=OTHER, state="pending"),), [], "--buy-dollars"),
        (
            Caps(dollars=1e9, instances_each=3),
            (managed("cr-1", 5, reserved=OTHER),),
            [(P5, A, 3)],
            "--buy-instances-each is 3",
        ),
        # Foreign reservations are not the broker's spending, and ended ones no longer count.
        (Caps(dollars=300.0), (foreign("cr-1", 5), managed("cr-2", 9, state="cancelled")), [(P5, A, 3)], ""),
    ],
)
def test_caps_limit_purchases_and_the_message_has_the_numbers(
    caps: Caps, odcrs: tuple[Odcr, ...], bought: list[tuple[str, str, int]], message: str
) -> None:
    procurement = planned(desired(), odcrs=odcrs, caps=caps)
    assert buys(procurement) == bought
    (problem,) = procurement.statuses[TEAM].problems or (None,)
    assert (problem.reason if problem else "", bool(problem)) == (
        "SpendingCapReached" if message else "",
        bool(message),
    )
    if problem:
        assert message in problem.message
        assert f"8 more {P5} are wanted for 800.00 dollars an hour, 100.00 each, and " in problem.message
        assert f" {sum(purchase[2] for purchase in bought)} may be bought: " in problem.message


@pytest.mark.covers("USR-05")
@pytest.mark.parametrize(
    ("gpus", "minimum", "odcrs", "bought"),
    [
        (64, None, (), []),
        (64, 4, (), []),
        (64, 3, (), [(P5, A, 3)]),
        (64, 1, (), [(P5, A, 3)]),
        (24, None, (), [(P5, A, 3)]),
        (8, None, (), [(P5, A, 1)]),
        # Held instances count toward the minimum, and more of them is a purchase as any other.
        (64, None, (foreign("cr-1", 6),), [(P5, A, 2)]),
        (64, None, (foreign("cr-1", 4),), []),
        (64, 7, (foreign("cr-1", 4),), [(P5, A, 3)]),
        (64, 8, (foreign("cr-1", 4),), []),
    ],
)
def test_a_goal_beyond_a_cap_is_bought_in_part_only_from_the_minimum(
    gpus: int, minimum: int | None, odcrs: tuple[Odcr, ...], bought: list[tuple[str, str, int]]
) -> None:
    procurement = planned(desired(gpus, minimum=minimum), odcrs=odcrs, caps=Caps(dollars=350.0))
    assert buys(procurement) == bought
    missing = gpus // 8 - sum(reservation.total for reservation in odcrs)
    if missing > 3:
        (problem,) = procurement.statuses[TEAM].problems
        assert problem.reason == "SpendingCapReached"
        whole = (
            f"{missing} more {P5} are wanted for {missing}00.00 dollars an hour, 100.00 each, and 3 may be"
        )
        assert whole in problem.message
        has = sum(reservation.total for reservation in odcrs)
        way = f'or allow a part by annotation capacity-broker.io/minimum: "{has + 3}"'
        assert (way in problem.message) != bool(bought)
    else:
        assert reasons(procurement) == []


_OPTION = re.compile(r"--buy-([a-z-]+) is [0-9.]+(?:, so buying is off)?: set it to ([0-9.]+)")


@pytest.mark.parametrize(
    "caps",
    [
        Caps(dollars_namespace=0.0, dollars_each=0.0),
        Caps(dollars=400.0, dollars_namespace=200.0, dollars_each=100.0),
        Caps(dollars=1e9, dollars_namespace=1e9, dollars_each=1e9, instances=4, instances_namespace=2),
        Caps(dollars=700.0, dollars_namespace=350.0, instances_each=3),
    ],
)
def test_the_message_names_every_cap_to_raise(caps: Caps) -> None:
    odcrs = (managed("cr-1", 2, reserved=OTHER),)
    (problem,) = planned(desired(), odcrs=odcrs, caps=caps).statuses[TEAM].problems
    raised = {name.replace("-", "_"): float(value) for name, value in _OPTION.findall(problem.message)}
    assert len(raised) > 1
    procurement = planned(desired(), odcrs=odcrs, caps=replace(caps, **raised))
    assert (buys(procurement), reasons(procurement, TEAM)) == ([(P5, A, 8)], [])
    for name in raised:  # each of them was needed
        left = {other: value for other, value in raised.items() if other != name}
        assert reasons(planned(desired(), odcrs=odcrs, caps=replace(caps, **left)), TEAM)


def test_a_cap_is_shared_and_the_first_reservation_buys_first() -> None:
    procurement = planned(desired(), desired(reserved=OTHER), caps=Caps(dollars=1000.0))
    assert [(purchase.reserved, purchase.count) for purchase in procurement.purchases] == [
        (TEAM, 8),
        (OTHER, 2),
    ]
    assert reasons(procurement, TEAM) == [] and reasons(procurement, OTHER) == ["SpendingCapReached"]


@pytest.mark.covers("SAF-23")
@pytest.mark.parametrize("caps", [Caps(dollars=1000.0), Caps(dollars=1e9, instances=10)])
@pytest.mark.parametrize(
    ("odcrs", "others", "left"),
    [
        ((), (), 2),  # its object is deleted under Retain, or set to Observe: it has no demand left
        ((), (desired(reserved=OTHER, on_hold="no"),), 2),
        ((), (desired(16, reserved=OTHER),), 2),  # its quota was lowered
        ((managed("cr-1", 8, reserved=OTHER, bought_by="p-1"),), (), 2),  # shown: it counts once
        ((managed("cr-1", 5, reserved=OTHER),), (), 0),  # a different purchase
    ],
)
def test_a_purchase_that_ec2_does_not_show_counts_toward_the_caps(
    odcrs: tuple[Odcr, ...], others: tuple[DesiredCapacity, ...], left: int, caps: Caps
) -> None:
    sent = intent("p-1", 8, reserved=OTHER, at=NOW - minutes(40))
    procurement = planned(desired(), *others, odcrs=odcrs, caps=caps, intents=[sent])
    bought = [purchase.count for purchase in procurement.purchases if purchase.reserved == TEAM]
    assert bought == ([left] if left else [])
    (problem,) = procurement.statuses[TEAM].problems
    assert problem.reason == "SpendingCapReached"
    assert ("with 8 that EC2 does not show and may have" in problem.message) == (not odcrs or left == 0)


@pytest.mark.covers("SAF-23")
@pytest.mark.parametrize(
    ("capacity", "repeated"),
    [
        (desired(), True),
        (desired(80), True),  # the demand grew: the sent amount, then the rest
        (desired(32), False),  # the demand fell
        (desired(terms=PurchaseSpec(match_criteria="open")), False),
        (desired(on_hold="no"), False),
        (desired(flavor=replace(H100, zones=(B,))), False),
    ],
)
def test_a_purchase_of_unknown_result_is_resent_unchanged_only_if_still_desired(
    capacity: DesiredCapacity, repeated: bool
) -> None:
    sent = intent("p-1", 8)
    procurement = planned(capacity, intents=[sent])
    assert procurement.purchases == ((sent,) if repeated else ())
    assert reasons(procurement) == ([] if repeated else ["PurchaseSkipped"])
    if not repeated and not capacity.on_hold:  # EC2 would show it by now: the demand is bought beside it
        later = planned(capacity, intents=[sent], now=NOW + LATEST_VISIBLE)
        assert [type(purchase) for purchase in later.purchases] == [Purchase]
    poor = planned(capacity, intents=[sent], caps=Caps(dollars=1e9, instances=7))
    assert poor.purchases == (), "the cap was lowered meanwhile"


@pytest.mark.covers("FLT-70")
@pytest.mark.parametrize(
    ("flavor_of_purchase", "bought"),
    [("old-name", 0), ("h100", 0), ("small", 8)],
)
def test_an_unclear_purchase_of_a_renamed_flavor_stops_a_second(flavor_of_purchase: str, bought: int) -> None:
    """A purchase under a name that the reservation has no more may be the one that the flavor needs."""
    small = FlavorDemand(flavor=replace(H100, name="small", instance_types=(SMALL,)), nominal={GPU: 0.0})
    h100 = FlavorDemand(flavor=replace(H100, zones=(B,)), nominal={GPU: 64.0})
    capacity = desired(demands={"h100": h100, "small": small})
    sent = intent("p-1", 8, flavor=flavor_of_purchase)
    procurement = planned(capacity, intents=[sent])
    assert sum(purchase.count for purchase in procurement.purchases) == bought
    assert reasons(procurement) == ([] if bought else ["PurchaseSkipped"])
    later = planned(capacity, intents=[sent], now=NOW + LATEST_VISIBLE)
    assert sum(purchase.count for purchase in later.purchases) == 8


@pytest.mark.covers("SAF-23")
def test_growth_of_unknown_result_counts_until_ec2_shows_it() -> None:
    sent = intent("p-1", 6, odcr_id="cr-1", total=8)
    small, grown = managed("cr-1", 2), managed("cr-1", 8)
    (purchase,) = planned(desired(), odcrs=(small,), intents=[sent]).purchases
    assert purchase == sent
    ten = Caps(dollars=1e9, instances=10)
    other = desired(reserved=OTHER)
    for odcrs, intents in (((small,), [sent]), ((grown,), [sent]), ((grown,), [])):
        procurement = planned(desired(16), other, odcrs=odcrs, intents=intents, caps=ten)
        assert [bought.count for bought in procurement.purchases if bought.reserved == OTHER] == [2]


@pytest.mark.covers("SAF-07")
def test_a_held_reservation_that_ec2_does_not_describe_counts_and_is_not_bought_again() -> None:
    gone = lost("cr-9", 8)
    procurement = planned(
        desired(), desired(reserved=OTHER), lost=[gone], caps=Caps(dollars=1e9, instances=10)
    )
    assert [(purchase.reserved, purchase.count) for purchase in procurement.purchases] == [(OTHER, 2)]
    (problem,) = procurement.statuses[TEAM].problems
    assert problem.reason == "PurchaseSkipped"
    assert "cr-9 was held and EC2 does not describe it at all" in problem.message
    # Under another flavor's name it would still be bought again; another type is not the same.
    renamed = desired(flavor=replace(H100, name="hopper"))
    assert reasons(planned(renamed, lost=[gone])) == ["PurchaseSkipped"]
    small = InstanceFlavor(name="small", instance_types=(SMALL,), zones=(A,))
    assert buys(planned(desired(1, small), lost=[gone])) == [(SMALL, A, 1)]
    # A deleted reservation under Cancel stays until it is returned: no other object would return it.
    for policy, record, stays in (
        (True, gone, True),
        (False, gone, False),
        (True, replace(gone, bought=False), False),
    ):
        ended = desired(deleted=True, cancels=policy, groups=True)
        procurement = planned(ended, lost=[record])
        assert procurement.statuses[TEAM].deletable is not stays
        assert reasons(procurement) == (["ReservationNotDescribed"] if stays else [])
        assert not stays or procurement.statuses[TEAM].problems[0].message.startswith("cr-9 was held and EC2")
    # A foreign reservation was never the broker's spending.
    unmanaged = lost("cr-9", 8, bought=False)
    procurement = planned(
        desired(), desired(reserved=OTHER), lost=[unmanaged], caps=Caps(dollars=1e9, instances=10)
    )
    assert [(purchase.reserved, purchase.count) for purchase in procurement.purchases] == [(OTHER, 8)]


@pytest.mark.covers("SAF-55")
def test_caps_hold_for_each_namespace() -> None:
    elsewhere = ReservationKey("third", "gpus")
    for caps, option in (
        (Caps(dollars=1e9, dollars_namespace=1000.0), "--buy-dollars-namespace is 1000"),
        (Caps(dollars=1e9, instances_namespace=10), "--buy-instances-namespace is 10"),
    ):
        procurement = planned(desired(), desired(reserved=OTHER), desired(reserved=elsewhere), caps=caps)
        assert [(purchase.reserved, purchase.count) for purchase in procurement.purchases] == [
            (TEAM, 8),
            (OTHER, 2),
            (elsewhere, 8),
        ]
        (problem,) = procurement.statuses[OTHER].problems
        assert option in problem.message and "in namespace team" in problem.message
        # Capacity left by a deleted object of the namespace counts, by the tag of its purchase.
        left = (managed("cr-1", 9, reserved=ReservationKey("team", "deleted")),)
        assert [purchase.count for purchase in planned(desired(), odcrs=left, caps=caps).purchases] == [1]
    assert buys(planned(desired(), lost=[lost("cr-9", 9, reserved=OTHER)], caps=caps)) == [(P5, A, 1)]


@pytest.mark.covers("SAF-08")
@pytest.mark.parametrize(
    "terms", [PurchaseSpec(platform="Windows with SQL Server Standard"), PurchaseSpec(tenancy="dedicated")]
)
def test_price_is_that_of_platform_and_tenancy(terms: PurchaseSpec) -> None:
    plain = InstanceFlavor(name="cpu", instance_types=("m5.xlarge",), zones=(A,))
    capacity = desired(
        demands={"cpu": FlavorDemand(flavor=plain, nominal={"cpu": 40.0})},
        terms=terms,
    )
    caps = Caps(dollars=2.0)
    assert buys(planned(replace(capacity, terms=PurchaseSpec()), caps=caps)) == [("m5.xlarge", A, 10)]
    procurement = planned(capacity, caps=caps)
    assert (buys(procurement), reasons(procurement)) == ([], ["PriceUnknown"])
    (problem,) = procurement.statuses[TEAM].problems
    assert terms.platform in problem.message or terms.tenancy in problem.message
    known = {terms.platform: {str(terms.tenancy): 0.5}}
    types = TYPES | {"m5.xlarge": replace(TYPES["m5.xlarge"], other_prices=known)}
    assert buys(planned(capacity, caps=caps, types=types)) == [("m5.xlarge", A, 4)]
    # Held capacity of an unknown price does not count as free.
    held = managed(
        "cr-1", 1, kind="m5.xlarge", reserved=OTHER, platform=terms.platform, tenancy=terms.tenancy
    )
    assert reasons(planned(desired(), odcrs=(held,))) == ["PriceUnknown"]


def test_a_type_without_a_price_is_not_bought_under_a_cap_in_dollars() -> None:
    flavor = InstanceFlavor(name="a100", instance_types=(P4,), zones=(A,))
    procurement = planned(desired(8, flavor))
    assert (buys(procurement), reasons(procurement)) == ([], ["PriceUnknown"])
    assert buys(planned(desired(8, flavor), caps=Caps(dollars=float("inf")))) == [(P4, A, 1)]


def test_a_held_reservation_without_a_price_blocks_purchases_under_a_cap_in_dollars() -> None:
    odcrs = (managed("cr-1", 1, kind=P4, reserved=OTHER),)
    procurement = planned(desired(), odcrs=odcrs)
    assert (buys(procurement), reasons(procurement)) == ([], ["PriceUnknown"])
    assert P4 in procurement.statuses[TEAM].problems[0].message
    # It belongs to another object, so a cap for each object still holds; without a cap in dollars no price is
    # needed.
    assert buys(planned(desired(), odcrs=odcrs, caps=Caps(dollars=float("inf"), dollars_each=1e9)))
    own = (managed("cr-1", 1, kind=P4),)
    assert not buys(planned(desired(), odcrs=own, caps=Caps(dollars=float("inf"), dollars_each=1e9)))
    assert buys(planned(desired(), odcrs=odcrs, caps=Caps(dollars=float("inf"))))


@pytest.mark.parametrize(
    ("more", "caps", "refusals", "buying"),
    [
        ({}, RICH, None, True),
        ({}, RICH, refused((P5, A, 1), (P5, B, 1)), True),
        ({"refused": "EC2 refused it"}, RICH, None, True),
        ({"ready": False}, RICH, None, True),
        ({}, Caps(), None, False),
        ({"on_hold": "no room"}, RICH, None, False),
        ({"frozen": "not understood"}, RICH, None, False),
        ({"terms": PurchaseSpec(end=NOW)}, RICH, None, False),
    ],
)
def test_a_reservation_counts_as_buying_only_while_a_purchase_can_follow(
    more: dict[str, Any], caps: Caps, refusals: Refusals | None, buying: bool
) -> None:
    count = planned(desired(**more), caps=caps, refusals=refusals).statuses[TEAM].counts["h100"]
    assert (count.wanted, count.obtained, count.buying) == (8, 0, buying)


def test_a_scheduled_reservation_counts_as_buying_and_an_unavailable_block_does_not() -> None:
    for state, pending in (("scheduled", 8), ("unavailable", 0)):
        procurement = planned(desired(), odcrs=(foreign("cr-1", 8, state=state),), caps=Caps())
        count = procurement.statuses[TEAM].counts["h100"]
        assert (count.obtained, count.pending, count.buying) == (0, pending, pending > 0)


def test_a_named_reservation_that_is_not_adopted_blocks_purchases_of_its_flavors() -> None:
    a100 = InstanceFlavor(name="a100", instance_types=("m5.xlarge",), zones=(A,))
    demands = {
        "h100": FlavorDemand(flavor=H100, nominal={GPU: 8.0}),
        "a100": FlavorDemand(flavor=a100, nominal={"cpu": 4.0}),
    }
    both = (desired(demands=demands), desired(8, reserved=OTHER))
    odcrs = (odcr("cr-1", P5, A, total=1, free=1),)
    claimants = [
        OwnershipClaim(
            reserved=capacity.reserved,
            flavor_names=capacity.flavor_names,
            flavors={name: demand.flavor for name, demand in capacity.demands.items()},
            ids=frozenset({"cr-1"}),
        )
        for capacity in both
    ]
    procurement = plan(
        both,
        Inventory(odcrs={"cr-1": odcrs[0]}, described=NOW),
        resolve_ownership(odcrs, {}, claimants, cluster="blue", adopters=Adopters({})),
        types=TYPES,
        refusals=Refusals(),
        caps=RICH,
        cluster="blue",
        now=NOW,
    )
    assert [(purchase.reserved, purchase.flavor) for purchase in procurement.purchases] == [(TEAM, "a100")]
    for reserved in (TEAM, OTHER):
        (problem,) = procurement.statuses[reserved].problems
        assert problem.reason == "PurchaseSkipped" and "cr-1" in problem.message


# ---- less, changed, none


@pytest.mark.parametrize("more", [{}, {"deleted": True, "cancels": True}, {"terms": PurchaseSpec(end=NOW)}])
def test_a_frozen_reservation_is_not_changed(more: dict[str, Any]) -> None:
    odcrs = (managed("cr-1", 8), managed("cr-2", 2, zone=C))
    capacity = desired(16, groups=True, frozen="the annotation is not understood", **more)
    assert steps(planned(replace(capacity, frozen=""), odcrs=odcrs))
    procurement = planned(capacity, odcrs=odcrs)
    assert not steps(procurement) and not procurement.statuses[TEAM].deletable
    assert "the annotation is not understood" in procurement.statuses[TEAM].problems[0].message


@pytest.mark.covers("CAP-04")
@pytest.mark.parametrize(
    ("odcrs", "debits", "left"),
    [
        ((managed("cr-1", 8),), {}, {"cr-1": 2}),
        ((managed("cr-1", 8, used=5),), {}, {"cr-1": 5}),
        # A launch that EC2 does not count yet is included.
        ((managed("cr-1", 8, used=5),), {"cr-1": 1}, {"cr-1": 6}),
        ((managed("cr-1", 8, used=8),), {}, {}),
        # The last choice for a purchase is the first to go.
        ((managed("cr-1", 2), managed("cr-2", 2, zone=B)), {}, {"cr-2": 0}),
        ((managed("cr-1", 2), managed("cr-2", 3, zone=B, used=1)), {}, {"cr-2": 1, "cr-1": 1}),
        # Foreign reservations are never changed, but count.
        ((foreign("cr-1", 8), managed("cr-2", 3)), {}, {"cr-2": 0}),
        # A reservation that is not active yet serves no claim: the other stays until then.
        ((foreign("cr-1", 8, state="scheduled"), managed("cr-2", 2)), {}, {}),
    ],
)
def test_excess_is_cancelled_never_below_usage(
    odcrs: tuple[Odcr, ...], debits: dict[str, int], left: dict[str, int]
) -> None:
    procurement = planned(desired(16), odcrs=odcrs, debits=debits)
    assert (changes(procurement), buys(procurement)) == (left, [])


@pytest.mark.covers("CAP-04")
def test_a_slot_that_is_kept_for_a_successor_is_not_given_back() -> None:
    procurement = planned(desired(16), odcrs=(managed("cr-1", 8, used=5),), kept={"uid-next": "cr-1"})
    assert changes(procurement) == {"cr-1": 6}


@pytest.mark.covers("CAP-04")
@pytest.mark.parametrize(
    "stray",
    [
        managed("cr-old", 2, zone=C),
        managed("cr-old", 2, kind=P4),
        managed("cr-old", 2, platform="Windows"),
        managed("cr-old", 2, tenancy="dedicated"),
        managed("cr-old", 2, match_criteria="open"),
    ],
    ids=["zone", "type", "platform", "tenancy", "criteria"],
)
def test_a_replacement_is_bought_before_the_old_reservation_is_cancelled(stray: Odcr) -> None:
    procurement = planned(
        desired(16), odcrs=(stray,), caps=Caps(dollars=float("inf"))
    )  # one price is unknown
    assert (buys(procurement), changes(procurement)) == ([(P5, A, 2)], {})
    assert procurement.statuses[TEAM].counts["h100"].obtained == 0
    procurement = planned(desired(16), odcrs=(stray, managed("cr-new", 2, state="pending")))
    assert not steps(procurement)
    procurement = planned(desired(16), odcrs=(stray, managed("cr-new", 2)))
    assert changes(procurement) == {"cr-old": 0}
    running = replace(stray, available=1)
    assert changes(planned(desired(16), odcrs=(running, managed("cr-new", 2)))) == {"cr-old": 1}


def test_end_dates_are_updated_in_place() -> None:
    end = NOW + timedelta(days=7)
    procurement = planned(desired(16, terms=PurchaseSpec(end=end)), odcrs=(managed("cr-1", 2),))
    assert [(change.odcr_id, change.count, change.end) for change in procurement.changes] == [
        ("cr-1", 2, end)
    ]
    odcrs = (managed("cr-1", 2, end=end + timedelta(milliseconds=5)),)
    assert not steps(planned(desired(16, terms=PurchaseSpec(end=end)), odcrs=odcrs))
    procurement = planned(desired(16), odcrs=odcrs)
    assert [(change.odcr_id, change.end) for change in procurement.changes] == [("cr-1", None)]
    assert not steps(planned(desired(16, terms=PurchaseSpec(end=NOW)), odcrs=(managed("cr-1", 2, end=NOW),)))


@pytest.mark.covers("FLT-70")
@pytest.mark.parametrize("odcr", [managed("cr-1", 2), managed("cr-1", 3), managed("cr-1", 3, end=NOW)])
def test_an_end_that_has_passed_is_not_sent_and_gives_nothing_back(odcr: Odcr) -> None:
    """EC2 refuses an end in the past; the reservation ends by itself."""
    assert not planned(desired(16, terms=PurchaseSpec(end=NOW)), odcrs=(odcr,)).changes


def test_an_unresolved_flavor_is_left_unchanged() -> None:
    lost = desired(demands={}, flavor_names=("h100",), cancels=True)
    assert not steps(planned(lost, odcrs=(managed("cr-1", 8),)))
    impossible = desired(
        8, InstanceFlavor(name="h100", instance_types=("m5.xlarge",), zones=(A,)), cancels=True
    )
    assert not steps(planned(impossible, odcrs=(managed("cr-1", 8),)))


@pytest.mark.covers("CAP-04")
@pytest.mark.parametrize(
    "capacity", [desired(0), desired(demands={}, flavor_names=())], ids=["zero", "no flavor"]
)
def test_a_reservation_scaled_to_zero_is_cancelled_only_under_its_policy(capacity: DesiredCapacity) -> None:
    odcrs = (managed("cr-1", 8), foreign("cr-2", 4))
    kept = planned(capacity, odcrs=odcrs)
    assert not steps(kept) and "Retained" in reasons(kept)
    assert changes(planned(replace(capacity, cancels=True), odcrs=odcrs)) == {"cr-1": 0}


def test_a_removed_flavor_stays_until_its_replacement_is_active() -> None:
    old = managed("cr-1", 2, flavor="a100", kind=P4, zone=C)
    assert changes(planned(desired(16, cancels=True), odcrs=(old,))) == {}
    assert changes(planned(desired(16, cancels=True), odcrs=(old, managed("cr-2", 2)))) == {"cr-1": 0}


@pytest.mark.covers("CAP-04")
@pytest.mark.parametrize(
    ("odcrs", "cancels", "left", "deletable"),
    [
        ((), True, {}, True),
        ((managed("cr-1", 8),), False, {}, True),
        ((managed("cr-1", 8), foreign("cr-2", 1)), True, {"cr-1": 0}, False),
        ((managed("cr-1", 8, used=3),), True, {"cr-1": 3}, False),
        ((managed("cr-1", 3, used=3),), True, {}, False),
        ((managed("cr-1", 3, state="cancelled"), foreign("cr-2", 1)), True, {}, True),
    ],
)
def test_a_deleted_reservation_is_cancelled_only_under_its_policy(
    odcrs: tuple[Odcr, ...], cancels: bool, left: dict[str, int], deletable: bool
) -> None:
    procurement = planned(desired(deleted=True, cancels=cancels, groups=True), odcrs=odcrs)
    assert (changes(procurement), buys(procurement)) == (left, [])
    assert procurement.statuses[TEAM].deletable is deletable
    if odcrs and odcrs[0].available < odcrs[0].total and cancels:
        assert reasons(procurement) == ["InstancesRunning"]


def test_a_deleted_reservation_stays_while_a_purchase_may_appear_or_its_group_exists() -> None:
    gone = desired(deleted=True, cancels=True, groups=True)
    assert not planned(gone, intents=[intent("p-1", 1)]).statuses[TEAM].deletable
    assert not planned(replace(gone, groups=False)).statuses[TEAM].deletable
    procurement = planned(replace(gone, group=ReservationGroup(arn=GROUP, name="g")))
    assert not procurement.statuses[TEAM].deletable
    assert procurement.regroups == (GroupChange(reserved=TEAM, drop=True),)


# ---- groups


@pytest.mark.covers("CAP-03")
@pytest.mark.parametrize(
    ("members", "odcrs", "step"),
    [
        (None, (), None),
        (None, (managed("cr-1", 8),), GroupChange(reserved=TEAM, make=True)),
        (("cr-1",), (managed("cr-1", 8),), None),
        ((), (managed("cr-1", 7), foreign("cr-2", 1)), GroupChange(reserved=TEAM, join=("cr-1", "cr-2"))),
        # Added by hand: it does not belong to the reservation.
        (("cr-1", "cr-9"), (managed("cr-1", 8), odcr("cr-9")), GroupChange(reserved=TEAM, leave=("cr-9",))),
        # EC2 removes ended reservations by itself.
        (("cr-1", "cr-8", "cr-7"), (managed("cr-1", 8), managed("cr-8", 1, state="cancelled")), None),
    ],
)
def test_the_group_has_exactly_the_held_reservations(
    members: tuple[str, ...] | None, odcrs: tuple[Odcr, ...], step: GroupChange | None
) -> None:
    group = None if members is None else ReservationGroup(arn=GROUP, name="g", member_ids=members)
    procurement = planned(desired(groups=True, group=group), odcrs=odcrs)
    assert procurement.regroups == ((step,) if step else ())
    assert planned(desired(groups=False), odcrs=odcrs).regroups == ()


def test_a_satisfied_plan_has_no_step() -> None:
    assert not steps(planned(desired(), odcrs=(managed("cr-1", 8),)))
    assert steps(planned(desired()))


@pytest.mark.covers("CAP-04", "CAP-06")
@pytest.mark.parametrize(
    ("cluster", "uid", "own"),
    [
        ("blue", "uid-of-this", True),
        ("green", "uid-of-this", True),  # the cluster was renamed
        ("blue", "uid-of-another", False),
        ("blue", None, True),
        ("green", None, False),
        (None, None, False),
    ],
)
def test_only_reservations_of_this_clusters_broker_are_changed(
    cluster: str | None, uid: str | None, own: bool
) -> None:
    reservation = managed("cr-1", 8)
    tags = {key: value for key, value in reservation.tags.items() if key != TAG_CLUSTER}
    tags |= {TAG_CLUSTER: cluster} if cluster else {}
    tags |= {TAG_CLUSTER_UID: uid} if uid else {}
    reservation = replace(reservation, tags=tags, ownership=Owner("blue", "uid-of-this").ownership_of(tags))
    assert made_here(reservation, "blue") is own
    assert not made_here(replace(reservation, tags={**tags, MANAGED_BY: "terraform"}), "blue")


# ---- running instances that a purchase absorbs


def running(name: str, zone: str, **more: Any) -> Instance:
    return instance(name, P5, zone, **{"reservation_preference": "open", **more})


@pytest.mark.covers("FUL-12")
@pytest.mark.parametrize(
    ("runs", "criteria", "bought"),
    [
        ([running("i-1", B), running("i-2", B)], "open", (P5, B, 2)),
        ([running("i-1", A), running("i-2", B), running("i-3", B)], "open", (P5, B, 2)),
        ([running("i-1", B)], "targeted", (P5, A, 8)),  # EC2 never counts it there
        ([running("i-1", B, reservation_preference="none")], "open", (P5, A, 8)),
        ([running("i-1", B, platform="Windows")], "open", (P5, A, 8)),
        ([running("i-1", C)], "open", (P5, A, 8)),  # the flavor is not there
        ([running(f"i-{n}", B) for n in range(20)], "open", (P5, B, 8)),
    ],
)
def test_quota_that_runs_on_demand_is_bought_where_it_runs(
    runs: list[Instance], criteria: MatchCriteria, bought: tuple[str, str, int]
) -> None:
    capacity = desired(terms=PurchaseSpec(match_criteria=criteria), running=tuple(runs))
    assert buys(planned(capacity)) == [bought]


@pytest.mark.covers("FUL-12")
def test_running_instances_that_a_free_slot_absorbs_are_not_bought_for_again() -> None:
    capacity = desired(terms=PurchaseSpec(match_criteria="open"), running=(running("i-1", B),))
    free = managed("cr-1", 2, used=1, zone=B, match_criteria="open")
    assert buys(planned(capacity, odcrs=(free,))) == [(P5, A, 6)]
    full = managed("cr-1", 2, used=2, zone=B, match_criteria="open")
    assert buys(planned(capacity, odcrs=(full,))) == [(P5, B, 1)]
