"""The purchases, changes and returns, one rule at a time."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from broker.capacity.model import Inventory
from broker.quota.usage import Reserved
from broker.reservations.desired import (
    LATEST_VISIBLE,
    MOST,
    Caps,
    DesiredCapacity,
    FlavorDemand,
    GroupChange,
    ProcurementPlan,
    PurchaseSpec,
)
from broker.reservations.ownership import (
    BROKER,
    TAG_CLUSTER,
    TAG_CLUSTER_UID,
    TAG_FLAVOR,
    TAG_MANAGED,
    TAG_RESERVATION,
    OwnershipClaim,
    made_here,
    resolve_ownership,
)
from broker.reservations.procurement import plan
from broker.reservations.purchases import TAG_PURCHASE, HeldRecord, Purchase, PurchaseIntent
from broker.reservations.refusals import Refusals
from broker.reservations.sizing import InstanceFlavor
from providers.aws.tags import Owner
from providers.model import ErrorClass, InstanceType, Odcr, ProviderError, ReservationGroup
from tests.unit.capacity.builders import GROUP, NOW, ZONES, minutes, odcr, type_

GPU = "nvidia.com/gpu"
TEAM, OTHER = Reserved("team", "gpus"), Reserved("team", "more")
RICH = Caps(dollars=1e9)
TYPES = {
    each.name: each
    for each in (
        type_("p5.48xlarge", vcpus=192, memory_gib=2048, gpus=8, price=100.0),
        type_("p5.4xlarge", vcpus=16, memory_gib=256, gpus=1, price=13.0),
        type_("p4d.24xlarge", vcpus=96, memory_gib=1152, gpus=8),
        type_("m5.xlarge", price=0.2),
    )
}
P5, SMALL, P4 = [*TYPES][:3]
A, B, C = ZONES
H100 = InstanceFlavor(name="h100", instance_types=(P5,), zones=(A, B))


def wish(
    gpus: int = 64, flavor: InstanceFlavor = H100, reserved: Reserved = TEAM, **more: Any
) -> DesiredCapacity:
    ask = FlavorDemand(flavor=flavor, nominal={GPU: float(gpus)})
    asks = more.pop("asks", {flavor.name: ask})
    names = more.pop("flavor_names", tuple(asks))
    more = {"groups": False, "minimum": 1, **more}
    return DesiredCapacity(reserved=reserved, asks=asks, flavor_names=names, **more)


def ours(
    id_: str, count: int, *, used: int = 0, zone: str = A, kind: str = P5, flavor: str = "h100", **more: Any
) -> Odcr:
    tags = {
        TAG_RESERVATION: str(more.pop("reserved", TEAM)),
        TAG_FLAVOR: flavor,
        TAG_MANAGED: BROKER,
        TAG_CLUSTER: "blue",
        TAG_PURCHASE: more.pop("bought_by", ""),
    }
    more = {"match_criteria": "targeted", **more}
    return odcr(id_, kind, zone, total=count, free=count - used, tags=tags, **more)


def theirs(id_: str, count: int, *, zone: str = A, kind: str = P5, **more: Any) -> Odcr:
    return odcr(id_, kind, zone, total=count, free=count, tags={TAG_RESERVATION: str(TEAM)}, **more)


def intent(id_: str, count: int, *, reserved: Reserved = TEAM, **more: Any) -> PurchaseIntent:
    more = {"at": NOW, "flavor": "h100", "instance_type": P5, "zone": A, **more}
    return PurchaseIntent(attempt_id=id_, count=count, reserved=reserved, **more)


def lost(id_: str, total: int, *, reserved: Reserved = TEAM, **more: Any) -> HeldRecord:
    more = {"flavor": "h100", "instance_type": P5, "zone": A, "bought": True, **more}
    return HeldRecord(id=id_, total=total, reserved=reserved, **more)


def planned(
    *wishes: DesiredCapacity,
    there: tuple[Odcr, ...] = (),
    refusals: Refusals | None = None,
    caps: Caps = RICH,
    debits: Mapping[str, int] | None = None,
    now: datetime = NOW,
    types: Mapping[str, InstanceType] = TYPES,
    intents: Iterable[PurchaseIntent] = (),
    lost: Iterable[HeldRecord] = (),
) -> ProcurementPlan:
    claimants = [
        OwnershipClaim(
            reserved=each.reserved,
            flavor_names=each.flavor_names,
            flavors={name: ask.flavor for name, ask in each.asks.items()},
        )
        for each in wishes
    ]
    inventory = Inventory(odcrs={each.id: each for each in there}, debits=debits or {}, described=now)
    return plan(
        wishes,
        inventory,
        resolve_ownership(there, {}, claimants, cluster="blue"),
        types=types,
        refusals=refusals or Refusals(),
        caps=caps,
        cluster="blue",
        now=now,
        intents=intents,
        lost=lost,
    )


def buys(found: ProcurementPlan) -> list[tuple[str, str, int]]:
    return [(each.instance_type, each.zone, each.count) for each in found.purchases]


def changes(found: ProcurementPlan) -> dict[str, int]:
    return {each.odcr_id: each.count for each in found.changes}


def reasons(found: ProcurementPlan, reserved: Reserved = TEAM) -> list[str]:
    return [each.reason for each in found.outlooks[reserved].problems]


def refused(*given: tuple[str, str, int], code: str = "InsufficientInstanceCapacity") -> Refusals:
    class_ = {
        "InsufficientInstanceCapacity": ErrorClass.CAPACITY,
        "InstanceLimitExceeded": ErrorClass.QUOTA,
        "Unsupported": ErrorClass.UNSUPPORTED,
    }[code]
    found = Refusals()
    for kind, zone, count in given:
        found = found.record(kind, zone, count, ProviderError(code, "no", class_=class_), NOW)
    return found


# ---- buying


@pytest.mark.parametrize(
    ("there", "bought"),
    [
        ((), [(P5, A, 8)]),
        ((ours("cr-1", 8),), []),
        ((theirs("cr-1", 8),), []),
        # Held capacity is not bought again, whatever its source and state.
        ((theirs("cr-1", 5), ours("cr-2", 2, zone=B)), [(P5, A, 1)]),
        ((ours("cr-1", 8, state="pending"),), []),
        ((theirs("cr-1", 8, state="scheduled"),), []),
        ((theirs("cr-1", 8, reservation_type="capacity-block"),), []),
        ((ours("cr-1", 8, state="cancelled"),), [(P5, A, 8)]),
        # A block in state unavailable serves no claim, and will not recover by itself.
        ((theirs("cr-1", 8, reservation_type="capacity-block", state="unavailable"),), [(P5, A, 8)]),
        ((replace(ours("cr-1", 8), tags={}),), [(P5, A, 8)]),
    ],
)
def test_what_is_lacking_is_bought_once(there: tuple[Odcr, ...], bought: list[tuple[str, str, int]]) -> None:
    assert buys(planned(wish(), there=there)) == bought


@pytest.mark.covers("CAP-03")
@pytest.mark.parametrize(
    ("label", "there"),
    [
        (("karpenter.k8s.aws/capacity-reservation-id", "cr-9"), ()),
        (("karpenter.k8s.aws/capacity-reservation-type", "capacity-block"), ()),
        (("karpenter.k8s.aws/capacity-reservation-interruptible", "true"), ()),
        (("karpenter.k8s.aws/instance-tenancy", "dedicated"), ()),
        # A zone's name means another zone in another account: one reservation is enough to detect that.
        (("topology.k8s.aws/zone-id", "use1-az9"), (ours("cr-1", 8),)),
    ],
)
def test_what_would_never_be_of_the_flavor_is_not_bought(
    label: tuple[str, str], there: tuple[Odcr, ...]
) -> None:
    pinned = replace(H100, labels=dict([label]))
    found = planned(wish(flavor=pinned), there=there)
    assert (buys(found), reasons(found)) == ([], ["PurchaseSkipped"])
    (told,) = found.outlooks[TEAM].problems
    assert (there[0].id if there else label[1]) in told.message
    # A foreign reservation that has the label serves it.
    block = theirs("cr-9", 8, reservation_type="capacity-block", interruptible=True, zone_id="use1-az9")
    assert label[0].endswith("tenancy") or not reasons(planned(wish(flavor=pinned), there=(block,)))


@pytest.mark.covers("SAF-09")
@pytest.mark.parametrize(("label", "asked"), [("default", "dedicated"), ("dedicated", "default")])
def test_tenancy_that_no_claim_of_the_flavor_could_use_is_not_bought(label: str, asked: Any) -> None:
    pinned = replace(H100, labels={"karpenter.k8s.aws/instance-tenancy": label})
    found = planned(wish(flavor=pinned, terms=PurchaseSpec(tenancy=asked)))
    (told,) = found.outlooks[TEAM].problems
    assert not buys(found)
    assert "nothing could use it" in told.message and asked in told.message and label in told.message


def test_a_flavor_may_say_what_all_that_is_bought_is() -> None:
    plain = replace(H100, labels={"karpenter.k8s.aws/capacity-reservation-type": "default"})
    assert buys(planned(wish(flavor=plain))) == [(P5, A, 8)]


def test_more_of_a_reservation_that_is_there_is_the_same_reservation_larger() -> None:
    found = planned(wish(), there=(ours("cr-1", 5, zone=A), ours("cr-2", 1, zone=A, state="pending")))
    assert found.purchases == (
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
def test_refused_it_is_asked_in_the_next_zone_then_for_half(
    before: tuple[tuple[str, str, int], ...], bought: tuple[str, str, int] | None
) -> None:
    found = planned(wish(), refusals=refused(*before))
    assert buys(found) == ([bought] if bought else [])
    if bought is None:
        assert found.again == NOW + minutes(3)
        count = found.outlooks[TEAM].counts["h100"]
        assert (count.wanted, count.obtained, count.code) == (8, 0, "InsufficientInstanceCapacity")
        later = planned(wish(), refusals=refused(*before), now=NOW + minutes(3))
        assert buys(later) == [(P5, A, 8)]


@pytest.mark.covers("CAP-05")
def test_it_is_asked_again_when_the_first_of_the_refusals_ends() -> None:
    no = ProviderError("InsufficientInstanceCapacity", "no", class_=ErrorClass.CAPACITY)
    given = refused((P5, A, 1)).record(P5, B, 1, no, NOW + minutes(1))
    found = planned(wish(), refusals=given, now=NOW + minutes(2))
    assert (buys(found), found.again) == ([], NOW + minutes(3))


@pytest.mark.covers("CAP-04")
@pytest.mark.parametrize(("named", "ended"), [(("h100",), {"cr-2": 0}), (("h100", "gone"), {})])
def test_nothing_is_given_back_while_a_flavor_means_nothing(
    named: tuple[str, ...], ended: dict[str, int]
) -> None:
    """A reservation that fits no flavor today may belong to the flavor without a ResourceFlavor."""
    there = (ours("cr-1", 8), ours("cr-2", 1, kind="m5.xlarge", flavor="old"))
    assert changes(planned(wish(flavor_names=named, cancels=True), there=there)) == ended


@pytest.mark.covers("CAP-05")
def test_what_was_obtained_is_kept_and_shown_while_the_rest_is_refused() -> None:
    there = (ours("cr-1", 4, zone=B),)
    found = planned(wish(), there=there, refusals=refused((P5, A, 1), (P5, B, 1)))
    assert not found.steps
    count = found.outlooks[TEAM].counts["h100"]
    assert (count.wanted, count.obtained, count.pending) == (8, 4, 0)
    assert count.code == "InsufficientInstanceCapacity"


def test_an_accounts_limit_holds_in_every_zone_and_for_fewer_it_may_not() -> None:
    found = planned(wish(), refusals=refused((P5, A, 8), code="InstanceLimitExceeded"))
    assert buys(found) == [(P5, A, 4)]
    found = planned(wish(), refusals=refused((P5, A, 1), code="InstanceLimitExceeded"))
    assert buys(found) == []
    assert found.outlooks[TEAM].counts["h100"].code == "InstanceLimitExceeded"


def test_a_zone_that_has_not_the_type_is_not_asked_for_fewer() -> None:
    assert buys(planned(wish(), refusals=refused((P5, A, 8), code="Unsupported"))) == [(P5, B, 8)]


def test_types_of_a_flavor_are_tried_in_order_and_count_alike() -> None:
    flavor = InstanceFlavor(name="h100", instance_types=(P5, SMALL), zones=(A,))
    assert buys(planned(wish(20, flavor))) == [(P5, A, 3)]
    assert buys(planned(wish(20, flavor), refusals=refused((P5, A, 1)))) == [(SMALL, A, 20)]
    there = (ours("cr-1", 2),)
    assert buys(planned(wish(20, flavor), there=there, refusals=refused((P5, A, 1)))) == [(SMALL, A, 4)]


def test_one_call_adds_no_more_than_ec2_takes() -> None:
    assert buys(planned(wish(8 * 1500))) == [(P5, A, MOST)]


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"held": "no"}, "PurchaseSkipped"),
        ({"refused": "no"}, "PurchaseRefused"),
        ({"frozen": "no"}, "PurchaseSkipped"),
        ({"terms": PurchaseSpec(end=NOW)}, "PurchaseSkipped"),
        ({"ready": False}, None),
    ],
)
def test_nothing_is_bought_while_it_must_wait(more: dict[str, Any], reason: str | None) -> None:
    found = planned(wish(**more))
    assert not found.steps
    assert reasons(found) == ([reason] if reason else [])


def test_a_ratio_that_no_count_serves_buys_by_the_accelerator_and_says_so() -> None:
    ask = FlavorDemand(flavor=H100, nominal={GPU: 64.0, "memory": 32 * 2.0**40})
    found = planned(wish(asks={"h100": ask}))
    assert buys(found) == [(P5, A, 8)]
    assert reasons(found) == ["ResourceRatioUnsatisfiable"]


# ---- caps


@pytest.mark.covers("CAP-02")
@pytest.mark.parametrize(
    ("caps", "there", "bought", "says"),
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
            (ours("cr-1", 5, reserved=OTHER),),
            [(P5, A, 3)],
            "500.00 dollars an hour are spent in all, and --buy-dollars is 800: set it to 1300.00",
        ),
        (Caps(dollars=800.0), (ours("cr-1", 8, reserved=OTHER, state="pending"),), [], "--buy-dollars"),
        (
            Caps(dollars=1e9, instances_each=3),
            (ours("cr-1", 5, reserved=OTHER),),
            [(P5, A, 3)],
            "--buy-instances-each is 3",
        ),
        # Foreign reservations are not the broker's spending, and ended ones no longer count.
        (Caps(dollars=300.0), (theirs("cr-1", 5), ours("cr-2", 9, state="cancelled")), [(P5, A, 3)], ""),
    ],
)
def test_nothing_is_bought_beyond_the_caps_and_the_reason_has_the_numbers(
    caps: Caps, there: tuple[Odcr, ...], bought: list[tuple[str, str, int]], says: str
) -> None:
    found = planned(wish(), there=there, caps=caps)
    assert buys(found) == bought
    (told,) = found.outlooks[TEAM].problems or (None,)
    assert (told.reason if told else "", bool(told)) == ("SpendingCapReached" if says else "", bool(says))
    if told:
        assert says in told.message
        assert f"8 more {P5} are wanted for 800.00 dollars an hour, 100.00 each, and " in told.message
        assert f" {sum(each[2] for each in bought)} may be bought: " in told.message


@pytest.mark.covers("USR-05")
@pytest.mark.parametrize(
    ("gpus", "minimum", "there", "bought"),
    [
        (64, None, (), []),
        (64, 4, (), []),
        (64, 3, (), [(P5, A, 3)]),
        (64, 1, (), [(P5, A, 3)]),
        (24, None, (), [(P5, A, 3)]),
        (8, None, (), [(P5, A, 1)]),
        # Held instances count toward the minimum, and more of them is a purchase as any other.
        (64, None, (theirs("cr-1", 6),), [(P5, A, 2)]),
        (64, None, (theirs("cr-1", 4),), []),
        (64, 7, (theirs("cr-1", 4),), [(P5, A, 3)]),
        (64, 8, (theirs("cr-1", 4),), []),
    ],
)
def test_goal_beyond_a_cap_is_bought_in_part_only_from_the_minimum_on(
    gpus: int, minimum: int | None, there: tuple[Odcr, ...], bought: list[tuple[str, str, int]]
) -> None:
    found = planned(wish(gpus, minimum=minimum), there=there, caps=Caps(dollars=350.0))
    assert buys(found) == bought
    wanted = gpus // 8 - sum(each.total for each in there)
    if wanted > 3:
        (told,) = found.outlooks[TEAM].problems
        assert told.reason == "SpendingCapReached"
        whole = f"{wanted} more {P5} are wanted for {wanted}00.00 dollars an hour, 100.00 each, and 3 may be"
        assert whole in told.message
        has = sum(each.total for each in there)
        way = f'or allow a part by annotation capacity-broker.io/minimum: "{has + 3}"'
        assert (way in told.message) != bool(bought)
    else:
        assert reasons(found) == []


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
def test_purchase_is_made_when_every_cap_is_what_one_message_says(caps: Caps) -> None:
    there = (ours("cr-1", 2, reserved=OTHER),)
    (told,) = planned(wish(), there=there, caps=caps).outlooks[TEAM].problems
    raised = {name.replace("-", "_"): float(value) for name, value in _OPTION.findall(told.message)}
    assert len(raised) > 1
    found = planned(wish(), there=there, caps=replace(caps, **raised))
    assert (buys(found), reasons(found, TEAM)) == ([(P5, A, 8)], [])
    for name in raised:  # each of them was needed
        left = {other: value for other, value in raised.items() if other != name}
        assert reasons(planned(wish(), there=there, caps=replace(caps, **left)), TEAM)


def test_a_cap_is_for_all_together_and_the_first_come_first() -> None:
    found = planned(wish(), wish(reserved=OTHER), caps=Caps(dollars=1000.0))
    assert [(each.reserved, each.count) for each in found.purchases] == [(TEAM, 8), (OTHER, 2)]
    assert reasons(found, TEAM) == [] and reasons(found, OTHER) == ["SpendingCapReached"]


@pytest.mark.covers("SAF-23")
@pytest.mark.parametrize("caps", [Caps(dollars=1000.0), Caps(dollars=1e9, instances=10)])
@pytest.mark.parametrize(
    ("there", "wishes", "left"),
    [
        ((), (), 2),  # its object is deleted under Retain, or set to Observe: it has no demand left
        ((), (wish(reserved=OTHER, held="no"),), 2),
        ((), (wish(16, reserved=OTHER),), 2),  # its quota was lowered
        ((ours("cr-1", 8, reserved=OTHER, bought_by="p-1"),), (), 2),  # shown: it counts once
        ((ours("cr-1", 5, reserved=OTHER),), (), 0),  # a different purchase
    ],
)
def test_purchase_that_ec2_does_not_show_counts_whatever_happens_to_its_object(
    there: tuple[Odcr, ...], wishes: tuple[DesiredCapacity, ...], left: int, caps: Caps
) -> None:
    sent = intent("p-1", 8, reserved=OTHER, at=NOW - minutes(40))
    found = planned(wish(), *wishes, there=there, caps=caps, intents=[sent])
    bought = [each.count for each in found.purchases if each.reserved == TEAM]
    assert bought == ([left] if left else [])
    (told,) = found.outlooks[TEAM].problems
    assert told.reason == "SpendingCapReached"
    assert ("with 8 that EC2 does not show and may have" in told.message) == (not there or left == 0)


@pytest.mark.covers("SAF-23")
@pytest.mark.parametrize(
    ("asked", "repeated"),
    [
        (wish(), True),
        (wish(80), True),  # more is wanted: the sent amount, then the rest
        (wish(32), False),  # less is wanted
        (wish(terms=PurchaseSpec(match_criteria="open")), False),
        (wish(held="no"), False),
        (wish(flavor=replace(H100, zones=(B,))), False),
    ],
)
def test_purchase_of_unknown_fate_is_sent_again_only_as_it_was_and_only_if_wanted(
    asked: DesiredCapacity, repeated: bool
) -> None:
    sent = intent("p-1", 8)
    found = planned(asked, intents=[sent])
    assert found.purchases == ((sent,) if repeated else ())
    assert reasons(found) == ([] if repeated else ["PurchaseSkipped"])
    if not repeated and not asked.held:  # EC2 would show it by now: the wanted amount is bought beside it
        later = planned(asked, intents=[sent], now=NOW + LATEST_VISIBLE)
        assert [type(each) for each in later.purchases] == [Purchase]
    poor = planned(asked, intents=[sent], caps=Caps(dollars=1e9, instances=7))
    assert poor.purchases == (), "the cap was lowered meanwhile"


@pytest.mark.covers("SAF-23")
def test_growth_of_unknown_fate_counts_until_it_is_shown() -> None:
    sent = intent("p-1", 6, odcr_id="cr-1", total=8)
    small, grown = ours("cr-1", 2), ours("cr-1", 8)
    (purchase,) = planned(wish(), there=(small,), intents=[sent]).purchases
    assert purchase == sent
    ten = Caps(dollars=1e9, instances=10)
    other = wish(reserved=OTHER)
    for there, intents in (((small,), [sent]), ((grown,), [sent]), ((grown,), [])):
        found = planned(wish(16), other, there=there, intents=intents, caps=ten)
        assert [each.count for each in found.purchases if each.reserved == OTHER] == [2]


@pytest.mark.covers("SAF-07")
def test_what_was_held_and_is_not_described_is_not_bought_again_and_counts() -> None:
    gone = lost("cr-9", 8)
    found = planned(wish(), wish(reserved=OTHER), lost=[gone], caps=Caps(dollars=1e9, instances=10))
    assert [(each.reserved, each.count) for each in found.purchases] == [(OTHER, 2)]
    (told,) = found.outlooks[TEAM].problems
    assert told.reason == "PurchaseSkipped"
    assert "cr-9 was held and EC2 does not describe it at all" in told.message
    # Under another flavor's name it would still be bought again; another type is not the same.
    renamed = wish(flavor=replace(H100, name="hopper"))
    assert reasons(planned(renamed, lost=[gone])) == ["PurchaseSkipped"]
    small = InstanceFlavor(name="small", instance_types=(SMALL,), zones=(A,))
    assert buys(planned(wish(1, small), lost=[gone])) == [(SMALL, A, 1)]
    # A deleted reservation under Cancel stays until it is returned: no other object would return it.
    for policy, record, stays in (
        (True, gone, True),
        (False, gone, False),
        (True, replace(gone, bought=False), False),
    ):
        ended = wish(deleted=True, cancels=policy, groups=True)
        found = planned(ended, lost=[record])
        assert found.outlooks[TEAM].settled is not stays
        assert reasons(found) == (["ReservationNotDescribed"] if stays else [])
        assert not stays or found.outlooks[TEAM].problems[0].message.startswith("cr-9 was held and EC2")
    # A foreign reservation was never the broker's spending.
    theirs_ = lost("cr-9", 8, bought=False)
    found = planned(wish(), wish(reserved=OTHER), lost=[theirs_], caps=Caps(dollars=1e9, instances=10))
    assert [(each.reserved, each.count) for each in found.purchases] == [(OTHER, 8)]


@pytest.mark.covers("SAF-55")
def test_caps_hold_for_each_namespace() -> None:
    elsewhere = Reserved("third", "gpus")
    for caps, option in (
        (Caps(dollars=1e9, dollars_namespace=1000.0), "--buy-dollars-namespace is 1000"),
        (Caps(dollars=1e9, instances_namespace=10), "--buy-instances-namespace is 10"),
    ):
        found = planned(wish(), wish(reserved=OTHER), wish(reserved=elsewhere), caps=caps)
        assert [(each.reserved, each.count) for each in found.purchases] == [
            (TEAM, 8),
            (OTHER, 2),
            (elsewhere, 8),
        ]
        (told,) = found.outlooks[OTHER].problems
        assert option in told.message and "in namespace team" in told.message
        # Capacity left by a deleted object of the namespace counts, by the tag of its purchase.
        left = (ours("cr-1", 9, reserved=Reserved("team", "deleted")),)
        assert [each.count for each in planned(wish(), there=left, caps=caps).purchases] == [1]
    assert buys(planned(wish(), lost=[lost("cr-9", 9, reserved=OTHER)], caps=caps)) == [(P5, A, 1)]


@pytest.mark.covers("SAF-08")
@pytest.mark.parametrize(
    "terms", [PurchaseSpec(platform="Windows with SQL Server Standard"), PurchaseSpec(tenancy="dedicated")]
)
def test_price_is_that_of_platform_and_tenancy(terms: PurchaseSpec) -> None:
    plain = InstanceFlavor(name="cpu", instance_types=("m5.xlarge",), zones=(A,))
    asked = wish(
        asks={"cpu": FlavorDemand(flavor=plain, nominal={"cpu": 40.0})},
        terms=terms,
    )
    caps = Caps(dollars=2.0)
    assert buys(planned(replace(asked, terms=PurchaseSpec()), caps=caps)) == [("m5.xlarge", A, 10)]
    found = planned(asked, caps=caps)
    assert (buys(found), reasons(found)) == ([], ["PriceUnknown"])
    (told,) = found.outlooks[TEAM].problems
    assert terms.platform in told.message or terms.tenancy in told.message
    known = {terms.platform: {str(terms.tenancy): 0.5}}
    types = TYPES | {"m5.xlarge": replace(TYPES["m5.xlarge"], other_prices=known)}
    assert buys(planned(asked, caps=caps, types=types)) == [("m5.xlarge", A, 4)]
    # Held capacity of an unknown price does not count as free.
    held = ours("cr-1", 1, kind="m5.xlarge", reserved=OTHER, platform=terms.platform, tenancy=terms.tenancy)
    assert reasons(planned(wish(), there=(held,))) == ["PriceUnknown"]


def test_what_has_no_known_price_is_not_bought_under_a_cap_in_dollars() -> None:
    flavor = InstanceFlavor(name="a100", instance_types=(P4,), zones=(A,))
    found = planned(wish(8, flavor))
    assert (buys(found), reasons(found)) == ([], ["PriceUnknown"])
    assert buys(planned(wish(8, flavor), caps=Caps(dollars=float("inf")))) == [(P4, A, 1)]


def test_what_is_held_at_an_unknown_price_is_not_held_for_nothing() -> None:
    there = (ours("cr-1", 1, kind=P4, reserved=OTHER),)
    found = planned(wish(), there=there)
    assert (buys(found), reasons(found)) == ([], ["PriceUnknown"])
    assert P4 in found.outlooks[TEAM].problems[0].message
    # It belongs to another object, so a cap for each object still holds; without a cap in dollars no price is
    # needed.
    assert buys(planned(wish(), there=there, caps=Caps(dollars=float("inf"), dollars_each=1e9)))
    mine = (ours("cr-1", 1, kind=P4),)
    assert not buys(planned(wish(), there=mine, caps=Caps(dollars=float("inf"), dollars_each=1e9)))
    assert buys(planned(wish(), there=there, caps=Caps(dollars=float("inf"))))


@pytest.mark.parametrize(
    ("more", "caps", "refusals", "buying"),
    [
        ({}, RICH, None, True),
        ({}, RICH, refused((P5, A, 1), (P5, B, 1)), True),
        ({"refused": "EC2 said no"}, RICH, None, True),
        ({"ready": False}, RICH, None, True),
        ({}, Caps(), None, False),
        ({"held": "no room"}, RICH, None, False),
        ({"frozen": "not understood"}, RICH, None, False),
        ({"terms": PurchaseSpec(end=NOW)}, RICH, None, False),
    ],
)
def test_only_what_is_asked_for_is_being_bought(
    more: dict[str, Any], caps: Caps, refusals: Refusals | None, buying: bool
) -> None:
    count = planned(wish(**more), caps=caps, refusals=refusals).outlooks[TEAM].counts["h100"]
    assert (count.wanted, count.obtained, count.buying) == (8, 0, buying)


def test_what_is_there_and_begins_later_is_being_bought_and_an_unavailable_block_is_not() -> None:
    for state, pending in (("scheduled", 8), ("unavailable", 0)):
        found = planned(wish(), there=(theirs("cr-1", 8, state=state),), caps=Caps())
        count = found.outlooks[TEAM].counts["h100"]
        assert (count.obtained, count.pending, count.buying) == (0, pending, pending > 0)


def test_while_one_is_named_and_not_adopted_nothing_is_bought_for_the_flavors_that_it_fits() -> None:
    a100 = InstanceFlavor(name="a100", instance_types=("m5.xlarge",), zones=(A,))
    asks = {
        "h100": FlavorDemand(flavor=H100, nominal={GPU: 8.0}),
        "a100": FlavorDemand(flavor=a100, nominal={"cpu": 4.0}),
    }
    both = (wish(asks=asks), wish(8, reserved=OTHER))
    there = (odcr("cr-1", P5, A, total=1, free=1),)
    claimants = [
        OwnershipClaim(
            reserved=each.reserved,
            flavor_names=each.flavor_names,
            flavors={name: ask.flavor for name, ask in each.asks.items()},
            ids=frozenset({"cr-1"}),
        )
        for each in both
    ]
    found = plan(
        both,
        Inventory(odcrs={"cr-1": there[0]}, described=NOW),
        resolve_ownership(there, {}, claimants, cluster="blue"),
        types=TYPES,
        refusals=Refusals(),
        caps=RICH,
        cluster="blue",
        now=NOW,
    )
    assert [(each.reserved, each.flavor) for each in found.purchases] == [(TEAM, "a100")]
    for reserved in (TEAM, OTHER):
        (told,) = found.outlooks[reserved].problems
        assert told.reason == "PurchaseSkipped" and "cr-1" in told.message


# ---- less, changed, none


@pytest.mark.parametrize("more", [{}, {"deleted": True, "cancels": True}, {"terms": PurchaseSpec(end=NOW)}])
def test_nothing_at_all_is_changed_of_what_is_not_understood(more: dict[str, Any]) -> None:
    there = (ours("cr-1", 8), ours("cr-2", 2, zone=C))
    asked = wish(16, groups=True, frozen="the annotation is not understood", **more)
    assert planned(replace(asked, frozen=""), there=there).steps
    found = planned(asked, there=there)
    assert not found.steps and not found.outlooks[TEAM].settled
    assert "the annotation is not understood" in found.outlooks[TEAM].problems[0].message


@pytest.mark.covers("CAP-04")
@pytest.mark.parametrize(
    ("there", "debits", "left"),
    [
        ((ours("cr-1", 8),), {}, {"cr-1": 2}),
        ((ours("cr-1", 8, used=5),), {}, {"cr-1": 5}),
        # A launch that EC2 does not count yet is included.
        ((ours("cr-1", 8, used=5),), {"cr-1": 1}, {"cr-1": 6}),
        ((ours("cr-1", 8, used=8),), {}, {}),
        # The last choice for a purchase is the first to go.
        ((ours("cr-1", 2), ours("cr-2", 2, zone=B)), {}, {"cr-2": 0}),
        ((ours("cr-1", 2), ours("cr-2", 3, zone=B, used=1)), {}, {"cr-2": 1, "cr-1": 1}),
        # Foreign reservations are never changed, but count.
        ((theirs("cr-1", 8), ours("cr-2", 3)), {}, {"cr-2": 0}),
        # A reservation that is not active yet serves no claim: the other stays until then.
        ((theirs("cr-1", 8, state="scheduled"), ours("cr-2", 2)), {}, {}),
    ],
)
def test_what_is_too_much_is_given_back_never_below_what_runs(
    there: tuple[Odcr, ...], debits: dict[str, int], left: dict[str, int]
) -> None:
    found = planned(wish(16), there=there, debits=debits)
    assert (changes(found), buys(found)) == (left, [])


@pytest.mark.covers("CAP-04")
@pytest.mark.parametrize(
    "stray",
    [
        ours("cr-old", 2, zone=C),
        ours("cr-old", 2, kind=P4),
        ours("cr-old", 2, platform="Windows"),
        ours("cr-old", 2, tenancy="dedicated"),
        ours("cr-old", 2, match_criteria="open"),
    ],
    ids=["zone", "type", "platform", "tenancy", "criteria"],
)
def test_what_is_to_be_otherwise_is_made_new_before_the_old_goes(stray: Odcr) -> None:
    found = planned(wish(16), there=(stray,), caps=Caps(dollars=float("inf")))  # one price is unknown
    assert (buys(found), changes(found)) == ([(P5, A, 2)], {})
    assert found.outlooks[TEAM].counts["h100"].obtained == 0
    found = planned(wish(16), there=(stray, ours("cr-new", 2, state="pending")))
    assert not found.steps
    found = planned(wish(16), there=(stray, ours("cr-new", 2)))
    assert changes(found) == {"cr-old": 0}
    running = replace(stray, available=1)
    assert changes(planned(wish(16), there=(running, ours("cr-new", 2)))) == {"cr-old": 1}


def test_ends_are_kept_in_place() -> None:
    end = NOW + timedelta(days=7)
    found = planned(wish(16, terms=PurchaseSpec(end=end)), there=(ours("cr-1", 2),))
    assert [(each.odcr_id, each.count, each.end) for each in found.changes] == [("cr-1", 2, end)]
    there = (ours("cr-1", 2, end=end + timedelta(milliseconds=5)),)
    assert not planned(wish(16, terms=PurchaseSpec(end=end)), there=there).steps
    found = planned(wish(16), there=there)
    assert [(each.odcr_id, each.end) for each in found.changes] == [("cr-1", None)]
    assert not planned(wish(16, terms=PurchaseSpec(end=NOW)), there=(ours("cr-1", 2, end=NOW),)).steps


def test_a_flavor_that_means_nothing_today_is_left_as_it_is() -> None:
    lost = wish(asks={}, flavor_names=("h100",), cancels=True)
    assert not planned(lost, there=(ours("cr-1", 8),)).steps
    impossible = wish(8, InstanceFlavor(name="h100", instance_types=("m5.xlarge",), zones=(A,)), cancels=True)
    assert not planned(impossible, there=(ours("cr-1", 8),)).steps


@pytest.mark.covers("CAP-04")
@pytest.mark.parametrize("asked", [wish(0), wish(asks={}, flavor_names=())], ids=["zero", "no flavor"])
def test_scaled_to_nothing_it_is_given_back_only_where_the_policy_says_so(asked: DesiredCapacity) -> None:
    there = (ours("cr-1", 8), theirs("cr-2", 4))
    kept = planned(asked, there=there)
    assert not kept.steps and "Retained" in reasons(kept)
    assert changes(planned(replace(asked, cancels=True), there=there)) == {"cr-1": 0}


def test_a_flavor_that_is_gone_stays_until_what_is_there_instead_is_active() -> None:
    old = ours("cr-1", 2, flavor="a100", kind=P4, zone=C)
    assert changes(planned(wish(16, cancels=True), there=(old,))) == {}
    assert changes(planned(wish(16, cancels=True), there=(old, ours("cr-2", 2)))) == {"cr-1": 0}


@pytest.mark.covers("CAP-04")
@pytest.mark.parametrize(
    ("there", "cancels", "left", "settled"),
    [
        ((), True, {}, True),
        ((ours("cr-1", 8),), False, {}, True),
        ((ours("cr-1", 8), theirs("cr-2", 1)), True, {"cr-1": 0}, False),
        ((ours("cr-1", 8, used=3),), True, {"cr-1": 3}, False),
        ((ours("cr-1", 3, used=3),), True, {}, False),
        ((ours("cr-1", 3, state="cancelled"), theirs("cr-2", 1)), True, {}, True),
    ],
)
def test_deleted_it_is_given_back_only_where_the_policy_says_so(
    there: tuple[Odcr, ...], cancels: bool, left: dict[str, int], settled: bool
) -> None:
    found = planned(wish(deleted=True, cancels=cancels, groups=True), there=there)
    assert (changes(found), buys(found)) == (left, [])
    assert found.outlooks[TEAM].settled is settled
    if there and there[0].available < there[0].total and cancels:
        assert reasons(found) == ["InstancesRunning"]


def test_deleted_it_is_not_done_while_a_purchase_may_still_appear_or_its_group_is_there() -> None:
    gone = wish(deleted=True, cancels=True, groups=True)
    assert not planned(gone, intents=[intent("p-1", 1)]).outlooks[TEAM].settled
    assert not planned(replace(gone, groups=False)).outlooks[TEAM].settled
    found = planned(replace(gone, group=ReservationGroup(arn=GROUP, name="g")))
    assert not found.outlooks[TEAM].settled
    assert found.regroups == (GroupChange(reserved=TEAM, drop=True),)


# ---- groups


@pytest.mark.covers("CAP-03")
@pytest.mark.parametrize(
    ("members", "there", "step"),
    [
        (None, (), None),
        (None, (ours("cr-1", 8),), GroupChange(reserved=TEAM, make=True)),
        (("cr-1",), (ours("cr-1", 8),), None),
        ((), (ours("cr-1", 7), theirs("cr-2", 1)), GroupChange(reserved=TEAM, join=("cr-1", "cr-2"))),
        # Added by hand: it does not belong to the reservation.
        (("cr-1", "cr-9"), (ours("cr-1", 8), odcr("cr-9")), GroupChange(reserved=TEAM, leave=("cr-9",))),
        # EC2 removes ended reservations by itself.
        (("cr-1", "cr-8", "cr-7"), (ours("cr-1", 8), ours("cr-8", 1, state="cancelled")), None),
    ],
)
def test_the_group_has_just_what_the_reservation_holds(
    members: tuple[str, ...] | None, there: tuple[Odcr, ...], step: GroupChange | None
) -> None:
    group = None if members is None else ReservationGroup(arn=GROUP, name="g", member_ids=members)
    found = planned(wish(groups=True, group=group), there=there)
    assert found.regroups == ((step,) if step else ())
    assert planned(wish(groups=False), there=there).regroups == ()


def test_a_plan_that_has_nothing_to_do_has_no_step() -> None:
    assert not planned(wish(), there=(ours("cr-1", 8),)).steps
    assert planned(wish()).steps


@pytest.mark.covers("CAP-04", "CAP-06")
@pytest.mark.parametrize(
    ("cluster", "uid", "made"),
    [
        ("blue", "uid-of-this", True),
        ("green", "uid-of-this", True),  # the cluster was renamed
        ("blue", "uid-of-another", False),
        ("blue", None, True),
        ("green", None, False),
        (None, None, False),
    ],
)
def test_only_what_this_clusters_broker_made_is_its_to_change(
    cluster: str | None, uid: str | None, made: bool
) -> None:
    one = ours("cr-1", 8)
    tags = {key: value for key, value in one.tags.items() if key != TAG_CLUSTER}
    tags |= {TAG_CLUSTER: cluster} if cluster else {}
    tags |= {TAG_CLUSTER_UID: uid} if uid else {}
    one = replace(one, tags=tags, ownership=Owner("blue", "uid-of-this").judge(tags))
    assert made_here(one, "blue") is made
    assert not made_here(replace(one, tags={**tags, TAG_MANAGED: "terraform"}), "blue")
