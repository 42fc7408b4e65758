"""How slots are counted: one that no claim holds is unattributed after a while; limits are in instances."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.apis.kueue import ResourceFlavor
from broker.apis.ome import CapacityReservation
from broker.apis.ome_rules import judge
from broker.controllers.assumed import CONVERGENCE, UnattributedSlots
from broker.controllers.slots.builder import draw_requests, drawn
from broker.quota.model import Quota
from broker.quota.usage import ReservationKey
from broker.reservations.desired import FlavorDemand
from broker.reservations.drawing import DrawRights
from broker.reservations.flavors import FlavorCatalog
from broker.reservations.sizing import InstanceFlavor
from broker.reservations.slots import (
    ReservationSlots,
    SlotQuotaReader,
    reservation_slots,
    slot_quota,
    why_barred,
)
from broker.reservations.spec import reserved_of
from providers.model import Gpu, InstanceType

NOW = datetime(2026, 11, 1, tzinfo=UTC)
LATER = NOW + CONVERGENCE
GPU = "nvidia.com/gpu"
P5 = InstanceType(
    name="p5.48xlarge",
    vcpus=192,
    memory_mib=2 * 1024 * 1024,
    zones=frozenset({"us-east-1a"}),
    gpus=(Gpu(name="H100", manufacturer="NVIDIA", count=8, memory_mib=81559),),
    max_pods=100,
)
P5_FLAVOR = ResourceFlavor.decode({"spec": {"nodeLabels": {names.INSTANCE_TYPE: P5.name}}})


def test_a_slot_without_a_known_instance_is_unattributed_after_the_convergence_time() -> None:
    unattributed = UnattributedSlots()
    assert unattributed.count({"cr-1": 2}, NOW) == {"cr-1": 0}
    assert unattributed.count({"cr-1": 3}, LATER) == {"cr-1": 2}
    assert unattributed.count({"cr-1": 0}, LATER) == {}
    assert unattributed.count({"cr-1": 1}, LATER) == {"cr-1": 0}


@pytest.mark.parametrize(
    ("nominal", "borrowing", "lending", "expected"),
    [
        ({GPU: 64}, {GPU: 32}, {GPU: None}, Quota(nominal=8, borrowing_limit=4)),
        ({GPU: 20}, {GPU: 15}, {GPU: 7}, Quota(nominal=3, borrowing_limit=1, lending_limit=0)),
        ({GPU: 0}, {GPU: 16}, {GPU: None}, Quota(nominal=0, borrowing_limit=2)),
        ({GPU: 0}, {GPU: None}, {GPU: None}, Quota(nominal=0, borrowing_limit=None)),
        ({GPU: 0}, {GPU: 0}, {GPU: None}, Quota(nominal=0, borrowing_limit=0)),
        ({GPU: 64, "cpu": 10}, {GPU: None, "cpu": 0}, {}, Quota(nominal=8, borrowing_limit=None)),
    ],
)
def test_quota_and_limits_in_instances(
    nominal: Mapping[str, float],
    borrowing: Mapping[str, float | None],
    lending: Mapping[str, float | None],
    expected: Quota,
) -> None:
    flavor = InstanceFlavor(name="h100", instance_types=("p5.48xlarge",), zones=("us-east-1a",))
    demand = FlavorDemand(flavor=flavor, nominal=nominal)
    assert slot_quota(demand, {"p5.48xlarge": P5}, borrowing=borrowing, lending=lending) == expected


def reservation_of(name: str = "r", *, deleted: bool = False, **spec: Any) -> CapacityReservation:
    """A reservation for eight H100 machines."""
    quota = {"name": GPU, "nominalQuota": "64", "borrowingLimit": "16", "lendingLimit": "8"}
    plain = {"name": "cpu", "nominalQuota": "384", "borrowingLimit": "1000", "lendingLimit": "0"}
    groups = [
        {"coveredResources": [GPU], "flavors": [{"name": "h100", "resources": [quota]}]},
        {"coveredResources": ["cpu"], "flavors": [{"name": "plain", "resources": [plain]}]},
    ]
    meta = {"name": name, "namespace": "a", "uid": name} | ({"deletionTimestamp": NOW} if deleted else {})
    return CapacityReservation.decode({"metadata": meta, "spec": {"resourceGroups": groups, **spec}})


def flavor(name: str) -> InstanceFlavor:
    return InstanceFlavor(name=name, instance_types=("p5.48xlarge",), zones=("us-east-1a",))


def slots_of(**spec: Any) -> ReservationSlots:
    reservation = reservation_of(**spec)
    return reservation_slots(reservation, judge(reservation.spec), flavor, {"p5.48xlarge": P5})


@pytest.mark.covers("OME-036", "OME-037", "OME-040", "OME-042")
def test_borrowing_and_lending_limits_are_counted_in_slots() -> None:
    both = slots_of(cohort="c", allowBorrowing=True)
    assert both.flavors == {
        "h100": Quota(nominal=8, borrowing_limit=2, lending_limit=1),
        "plain": Quota(nominal=2, borrowing_limit=5, lending_limit=0),
    }
    assert both.member.borrowing_limit == {"h100": 2, "plain": 5}
    lends = slots_of(cohort="c")
    assert {name: quota.lending_limit for name, quota in lends.flavors.items()} == {"h100": 1, "plain": 0}
    assert (lends.member.cohort, lends.member.borrowing_limit) == ("c", {})
    alone = slots_of()
    assert (alone.member.cohort, alone.member.borrowing_limit) == ("", {})
    assert {quota.nominal for quota in alone.flavors.values()} == {8, 2}


@pytest.mark.parametrize(
    ("deleted", "problems", "refusals", "why"),
    [
        (False, (), (), ""),
        (True, ("spec.cohort is empty",), (), "it is being deleted"),
        (False, ("spec.a is 1", "spec.b is 2"), ("full",), "its spec is not valid: spec.a is 1; spec.b is 2"),
        (False, (), ("quota q has 3 left",), "its namespace has no room for it: quota q has 3 left"),
    ],
)
def test_a_barred_reservation_has_one_reason(
    deleted: bool, problems: tuple[str, ...], refusals: tuple[str, ...], why: str
) -> None:
    assert why_barred(reservation_of(deleted=deleted), problems, refusals) == why


def test_claim_waits_for_the_reason_of_its_own_pods() -> None:
    def claim(uid: str, pods: str) -> NodeClaim:
        annotations = {names.DRAWS_FROM: "team/gpus", names.PODS: pods}
        return NodeClaim.decode({"metadata": {"name": uid, "uid": uid, "annotations": annotations}})

    rights = DrawRights({ReservationKey("team", "gpus"): reservation_of()})
    claims = [claim("r", "red/p"), claim("b", "blue/p"), claim("o", "team/p")]
    draws, barred, written = drawn(draw_requests(claims), rights)
    assert "namespace red:" in barred[draws["r"]] and "namespace blue:" in barred[draws["b"]]
    assert written[draws["r"]] == written[draws["b"]] == "team/gpus"
    assert draws["o"] == ReservationKey("team", "gpus").queue


def test_a_barred_reservation_grants_no_slots_and_the_others_keep_theirs() -> None:
    barred, other = reservation_of(cohort="c"), reservation_of("other", cohort="c")
    read = SlotQuotaReader().read(
        {reserved_of(item): item for item in (barred, other)},
        lambda item: judge(item.spec),
        {reserved_of(barred): "it is being deleted"},
        FlavorCatalog(dict.fromkeys(("h100", "plain"), P5_FLAVOR)),
        {"p5.48xlarge": P5},
        (),
    )
    assert [(slots.barred, slots.member.cohort, {*slots.flavors}) for slots in read] == [
        ("it is being deleted", "", set()),
        ("", "c", {"h100", "plain"}),
    ]
