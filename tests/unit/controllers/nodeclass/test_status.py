"""A class's status about its reservations: the broker's fields are right, other controllers' stay."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from broker.apis import names
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.meta import ConditionUpdate
from broker.capacity.model import Misfit, NodeClass, ReservationTerm, Resolved, Selection
from broker.controllers.nodeclass.resolve import LaunchClass, Surroundings, Unresolved, selection
from broker.controllers.nodeclass.shape import block_devices, kubelet
from broker.controllers.nodeclass.status import status_patch
from broker.kube.conditions import changed
from providers.model import Image, Odcr, SecurityGroup, Subnet

NOW = datetime(2026, 11, 21, 3, 0, tzinfo=UTC)
ID = "cr-0123456789abcdef0"
ODCR = Odcr(
    id=ID, instance_type="p5.48xlarge", zone="us-east-1a", total=5, available=3, owner_id="123456789012"
)


def node_class(**more: Any) -> EC2NodeClass:
    return EC2NodeClass.decode(
        {
            "metadata": {"name": "training", "generation": 2, "annotations": more.get("annotations", {})},
            "spec": more.get("spec", {}),
            "status": more.get("status", {}),
        }
    )


def resolved(source: EC2NodeClass, outcome: Resolved, chosen: Selection | None = None) -> LaunchClass:
    return LaunchClass(
        plan=NodeClass(name="training", selection=chosen or Selection(reservation_id=ID), resolved=outcome),
        surroundings=Surroundings(
            subnets=(Subnet(id="subnet-1", zone="us-east-1a"),),
            security_groups=(SecurityGroup(id="sg-1"),),
            images=(Image(id="ami-1"),),
            family="AL2023",
            instance_profile="node",
        ),
        source=source,
    )


def patch(
    source: EC2NodeClass, outcome: LaunchClass | Unresolved, *, limit: ConditionUpdate | None = None
) -> dict[str, Any]:
    return status_patch(source, outcome, limit=limit, now=NOW)


def condition(status: dict[str, Any], type_: str) -> tuple[str, str, str]:
    entry = next(c for c in status["conditions"] if c["type"] == type_)
    return entry["status"], entry["reason"], entry["message"]


@pytest.mark.covers("KRP-09")
def test_a_resolved_reservation_is_shown_with_its_counts_and_end() -> None:
    odcr = Odcr(
        id=ID,
        instance_type="p5.48xlarge",
        zone="us-east-1a",
        total=5,
        available=3,
        owner_id="123456789012",
        match_criteria="targeted",
        end=NOW + timedelta(hours=1),
    )
    status = patch(node_class(), resolved(node_class(), Resolved(usable=(odcr,))))
    assert status["capacityReservations"] == [
        {
            "id": ID,
            "availabilityZone": "us-east-1a",
            "instanceType": "p5.48xlarge",
            "instanceMatchCriteria": "targeted",
            "ownerID": "123456789012",
            "reservationType": "default",
            "interruptible": False,
            "state": "active",
            "totalInstanceCount": 5,
            "availableInstanceCount": 3,
            "endTime": "2026-11-21T04:00:00Z",
        }
    ]
    assert condition(status, names.RESERVATIONS_RESOLVED)[:2] == ("True", "ReservationsFound")
    assert "3 of 5 slots free" in condition(status, names.RESERVATIONS_RESOLVED)[2]


@pytest.mark.covers("KRP-09")
@pytest.mark.parametrize(
    ("resolution", "chosen", "expected"),
    [
        (Resolved(), Selection(preference="none"), ("True", "NotRequested")),
        (Resolved(), Selection(), ("True", "NotRequested")),
        (Resolved(), Selection(preference="open"), ("False", "ReservationsNotFound")),
        (Resolved(pending=(ODCR,)), Selection(reservation_id=ID), ("False", "ReservationsPending")),
        (
            Resolved(misfits=(Misfit(id=ID, reason="ReservationCancelled", message="m"),)),
            Selection(reservation_id=ID),
            ("False", "ReservationCancelled"),
        ),
    ],
)
def test_the_condition_is_false_with_a_reason_when_nothing_is_usable(
    resolution: Resolved, chosen: Selection, expected: tuple[str, str]
) -> None:
    status = patch(node_class(), resolved(node_class(), resolution, chosen))
    assert condition(status, names.RESERVATIONS_RESOLVED)[:2] == expected


@pytest.mark.covers("KRP-05")
def test_a_misfit_is_shown_with_its_id_and_ec2s_code() -> None:
    misfit = Misfit(
        id=ID, reason="ReservationNotFound", message="gone", code="InvalidCapacityReservationId.NotFound"
    )
    status = patch(node_class(), resolved(node_class(), Resolved(misfits=(misfit,))))
    message = condition(status, names.RESERVATIONS_RESOLVED)[2]
    assert ID in message
    assert "InvalidCapacityReservationId.NotFound" in message
    row = {"id": ID, "reason": misfit.reason, "message": "gone"}
    assert status["capacityReservationMisfits"] == [{**row, "code": misfit.code}]
    many = Resolved(misfits=tuple(replace(misfit, id=f"cr-{n}", code="") for n in range(10)))
    status = patch(node_class(), resolved(node_class(), many))
    assert status["capacityReservationMisfits"][9] == {**row, "id": "cr-9"}
    message = condition(status, names.RESERVATIONS_RESOLVED)[2]
    assert message.endswith("; cr-7: gone; and 2 more")


@pytest.mark.covers("KRP-09")
def test_karpenters_conditions_and_entries_stay() -> None:
    condition_ = {"type": "AMIsReady", "status": "True", "reason": "AMIsReady", "message": ""}
    other = {
        "id": "cr-0ther",
        "availabilityZone": "us-east-1b",
        "instanceType": "m5.large",
        "instanceMatchCriteria": "open",
        "ownerID": "123456789012",
    }
    source = node_class(
        spec={"capacityReservationSelectorTerms": [{"id": "cr-0ther"}]},
        status={"conditions": [condition_], "capacityReservations": [other, {**other, "id": ID}]},
    )
    status = patch(source, resolved(source, Resolved(usable=(ODCR,))))
    assert condition(status, "AMIsReady") == ("True", "AMIsReady", "")
    assert [row["id"] for row in status["capacityReservations"]] == [ID, "cr-0ther"]


@pytest.mark.covers("KRP-08", "KRP-09")
def test_a_reservation_that_starts_soon_is_shown_as_pending() -> None:
    soon = replace(ODCR, id="cr-1", state="scheduled", start=NOW + timedelta(hours=2))
    resolution = Resolved(usable=(ODCR, replace(ODCR, id="cr-2", start=NOW)), pending=(soon,))
    status = patch(node_class(), resolved(node_class(), resolution, Selection(preference="open")))
    assert {row["id"]: row["state"] for row in status["capacityReservations"]} == {
        ID: "active",
        "cr-1": "pending",
        "cr-2": "active",
    }
    assert condition(status, names.RESERVATIONS_RESOLVED)[2] == (
        "2 usable with 6 of 10 slots free; cr-1 is scheduled until 2026-11-21T05:00:00Z"
    )


@pytest.mark.covers("KRP-09")
def test_if_karpenter_owns_the_list_the_condition_has_the_details() -> None:
    ready = {"type": "CapacityReservationsReady", "status": "True", "reason": "Ready", "message": ""}
    source = node_class(status={"conditions": [ready]})
    ends = replace(ODCR, id="cr-2", end=NOW + timedelta(hours=1))
    status = patch(source, resolved(source, Resolved(usable=(ODCR, ends))))
    assert set(status) == {"conditions"}
    assert condition(status, names.RESERVATIONS_RESOLVED)[2] == (
        f"2 usable with 6 of 10 slots free: {ID} p5.48xlarge us-east-1a 3/5, "
        "cr-2 p5.48xlarge us-east-1a 3/5 until 2026-11-21T04:00:00Z"
    )


@pytest.mark.covers("KRP-09")
def test_the_list_is_kept_while_aws_is_unavailable() -> None:
    source = node_class()
    outcome = Unresolved("RequestLimitExceeded", "slow down")
    status = status_patch(source, outcome, limit=None, now=NOW, keep=True)
    assert set(status) == {"conditions"}
    assert condition(status, names.RESERVATIONS_RESOLVED)[:2] == ("Unknown", "RequestLimitExceeded")


@pytest.mark.covers("KRP-09")
@pytest.mark.parametrize(
    ("chosen", "described", "kind"),
    [
        (Selection(preference="open"), "preference open", "open reservation"),
        (
            Selection(group_arn="arn:aws:resource-groups:us-east-1:123456789012:group/gpus"),
            "group gpus",
            "reservation",
        ),
        (
            Selection(terms=(ReservationTerm(tags={"a": "b"}),)),
            "capacityReservationSelectorTerms",
            "reservation",
        ),
    ],
)
def test_a_selection_without_a_result_is_named(chosen: Selection, described: str, kind: str) -> None:
    status = patch(node_class(), resolved(node_class(), Resolved(), chosen))
    assert condition(status, names.RESERVATIONS_RESOLVED) == (
        "False",
        "ReservationsNotFound",
        f"{described} finds no {kind} in this region",
    )


def test_without_terms_an_old_entry_is_removed() -> None:
    old = {"id": "cr-0ld", "availabilityZone": "z", "instanceType": "t", "ownerID": "123456789012"}
    source = node_class(status={"capacityReservations": [old]})
    status = patch(source, resolved(source, Resolved(usable=(ODCR,))))
    assert [row["id"] for row in status["capacityReservations"]] == [ID]


def test_an_equal_result_changes_nothing() -> None:
    source = node_class()
    status = patch(source, resolved(source, Resolved(usable=(ODCR,))))
    source = node_class(status=status)
    again = status_patch(
        source,
        resolved(source, Resolved(usable=(ODCR,))),
        limit=None,
        now=NOW + timedelta(minutes=1),
    )
    assert not changed(source.status.wire(), again)


@pytest.mark.covers("KRP-24")
def test_the_limit_is_written_only_when_its_status_changes() -> None:
    def limit_update(message: str, reason: str = "LimitExceeded") -> ConditionUpdate:
        return ConditionUpdate(
            type=names.CAPACITY_RESERVATION,
            status="True" if reason == "Available" else "False",
            reason=reason,
            message=message,
        )

    source = node_class()
    outcome = resolved(source, Resolved(usable=(ODCR,)))
    first = patch(source, outcome, limit=limit_update("claim-1"))
    assert condition(first, names.CAPACITY_RESERVATION) == ("False", "LimitExceeded", "claim-1")
    second = patch(node_class(status=first), outcome, limit=limit_update("claim-2"))
    assert condition(second, names.CAPACITY_RESERVATION)[2] == "claim-1"
    third = patch(node_class(status=second), outcome, limit=limit_update("claim-3", "Available"))
    assert condition(third, names.CAPACITY_RESERVATION) == ("True", "Available", "claim-3")


@pytest.mark.covers("KRP-04")
@pytest.mark.parametrize(
    ("spec", "annotation", "words"),
    [
        (
            {"capacityReservationSpec": {"capacityReservationPreference": "maybe"}},
            None,
            ("capacityReservationPreference", "'maybe'"),
        ),
        ({}, "{", ("annotations", "is not JSON")),
        ({}, '{"capacityReservationTarget": {}}', ("annotations", "capacityReservationTarget is empty")),
    ],
)
def test_an_invalid_spec_selects_nothing_and_names_the_field(
    spec: dict[str, Any], annotation: str | None, words: tuple[str, ...]
) -> None:
    source = node_class(spec=spec, annotations={names.RESERVATION_SPEC: annotation} if annotation else {})
    with pytest.raises(Unresolved) as refused:
        selection(source)
    status = patch(source, refused.value)
    state, reason, message = condition(status, names.RESERVATION_SPEC_VALID)
    assert (state, reason) == ("False", "InvalidCapacityReservationSpec")
    for word in words:
        assert word in message
    assert condition(status, names.LAUNCHABLE)[0] == "False"


@pytest.mark.covers("KRP-03")
def test_the_field_wins_over_the_annotation() -> None:
    both = node_class(
        spec={"capacityReservationSpec": {"capacityReservationPreference": "None"}},
        annotations={names.RESERVATION_SPEC: '{"capacityReservationPreference": "open"}'},
    )
    assert selection(both) == Selection(preference="none")
    alone = node_class(annotations={names.RESERVATION_SPEC: '{"capacityReservationPreference": "open"}'})
    assert selection(alone) == Selection(preference="open")


def test_volumes_are_those_of_class_or_family_in_whole_gib() -> None:
    assert [d.volume_size_gib for d in block_devices(node_class(), "Bottlerocket")] == [4, 20]
    assert block_devices(node_class(), "Custom") == ()
    own = node_class(
        spec={"blockDeviceMappings": [{"deviceName": "/dev/xvda", "ebs": {"volumeSize": "100G"}}]}
    )
    assert [d.volume_size_gib for d in block_devices(own, "AL2023")] == [94]


def test_the_class_sets_the_root_volume_and_the_initialization_rate() -> None:
    ebs = {"volumeSize": "80Gi", "snapshotID": "snap-1", "volumeInitializationRate": 200}
    own = node_class(
        spec={
            "blockDeviceMappings": [
                {"deviceName": "/dev/xvda"},
                {"deviceName": "/dev/xvdz", "rootVolume": True, "ebs": ebs},
            ]
        }
    )
    devices = block_devices(own, "AL2023")
    assert [(d.device_name, d.root, d.initialization_rate) for d in devices] == [
        ("/dev/xvda", False, None),
        ("/dev/xvdz", True, 200),
    ]


def test_kubelet_thresholds_are_amounts_or_percentages() -> None:
    settings = kubelet(
        node_class(
            spec={
                "kubelet": {
                    "maxPods": 20,
                    "systemReserved": {"cpu": "100m"},
                    "evictionHard": {"memory.available": "5%", "nodefs.available": "1Gi"},
                }
            }
        )
    )
    assert settings.max_pods == 20
    assert settings.system_reserved == {"cpu": 0.1}
    assert settings.eviction_hard["memory.available"].percent == 5.0
    assert settings.eviction_hard["nodefs.available"].amount == 2**30
