"""The webhook's responses: refusals and their messages, warnings, and requests that are never refused."""

from __future__ import annotations

from typing import Any

import pytest

from broker.admission.review import NotAReview, answer
from broker.admission.rules import Rules
from tests.unit.admission.asked import CPU, GPU, Json, There, asked, cluster, group, reservation, review
from tests.unit.apis.test_ome import MANIFESTS, NOTES, objects


def many(flavors: int) -> list[Json]:
    return [{"name": f"f{n}", "resources": [{"name": GPU, "nominalQuota": 1}]} for n in range(flavors)]


@pytest.mark.covers("OME-009", "OME-010", "OME-011", "OME-012", "OME-013", "OME-014")
@pytest.mark.parametrize(
    ("spec", "field", "words"),
    [
        ({"resourceGroups": []}, "spec.resourceGroups", "No resource groups specified: name at least one"),
        ({"resourceGroups": [group()] * 17}, "spec.resourceGroups", "has 17 groups; Kueue takes at most 16"),
        (
            {"resourceGroups": [group(), group(covered=(CPU, GPU))]},
            "spec.resourceGroups",
            "flavor h100 is in more than one place; keep it in one group",
        ),
        (
            {"resourceGroups": [group(), group(flavor="a100")]},
            "spec.resourceGroups",
            "resource nvidia.com/gpu is in more than one place; keep it in one group",
        ),
        ({"resourceGroups": [group("-1")]}, "spec.resourceGroups[0]", "nominalQuota -1 is negative"),
        ({"resourceGroups": [group("some")]}, "spec.resourceGroups[0]", "not a quantity: 'some'"),
        (
            {"cohort": "c", "resourceGroups": [group(8, lendingLimit="9")]},
            "spec.resourceGroups[0]",
            "lendingLimit 9 is more than nominalQuota 8; lower it",
        ),
        (
            {"resourceGroups": [{**group(), "flavors": many(64)}] * 5},
            "spec.resourceGroups",
            "has 320 flavors in all; Kueue takes at most 256",
        ),
        (
            {"resourceGroups": [{"coveredResources": [f"r{n}" for n in range(9)], "flavors": many(64)}]},
            "spec.resourceGroups[0]",
            "has 576 pairs of flavor and resource; Kueue takes at most 512 in a group: make two of it",
        ),
        ({"allowBorrowing": True}, "spec.allowBorrowing", "spec.cohort is empty: name a cohort to borrow"),
        (
            {"preemptionRule": {"borrowWithinCohort": {"policy": "Any"}}},
            "spec.preemptionRule",
            "borrowWithinCohort needs reclaimWithinCohort",
        ),
    ],
    ids=lambda each: each[:50] if isinstance(each, str) else "",
)
def test_what_has_no_meaning_is_refused_with_field_value_and_way_out(
    spec: Json, field: str, words: str
) -> None:
    for kind in ("CapacityReservation", "ClusterCapacityReservation"):
        found = asked(reservation(**spec) | {"kind": kind})
        assert not found["allowed"]
        status = found["status"]
        assert (status["code"], status["reason"]) == (422, "Invalid")
        assert words in status["message"]
        assert any(c["field"] == field and words in c["message"] for c in status["details"]["causes"])


@pytest.mark.covers("OME-006")
@pytest.mark.parametrize(
    ("nominal", "lends", "allowed"),
    [("16Ti", "16384Gi", True), ("16384Gi", "16Ti", True), ("16Ti", "16385Gi", False), (1, "1000m", True)],
)
def test_quantities_are_compared_by_value(nominal: Any, lends: str, allowed: bool) -> None:
    found = asked(reservation("r", group(nominal, lendingLimit=lends), cohort="c"))
    assert found["allowed"] is allowed


def all_of_the_page() -> list[Any]:
    return [
        pytest.param(manifest["name"], each, id=f"{manifest['line']}-{manifest['name']}")
        for manifest in MANIFESTS
        for each in objects(manifest)
    ]


@pytest.mark.covers("OME-014", "OME-039")
@pytest.mark.parametrize(("name", "obj"), all_of_the_page())
def test_the_page_s_manifests_are_taken_with_a_warning_for_all_that_is_put_right(
    name: str, obj: Json
) -> None:
    obj = {**obj, "metadata": {"namespace": "team", **obj["metadata"]}}
    wanted = () if obj["kind"] == "DedicatedAICluster" else NOTES.get(name, ())
    there = There(profiles={"large": {}, "medium": {}, "small": {}})
    lenient = asked(obj, default_cohort="shared", there=there)
    strict = asked(obj, default_cohort="shared", strict=True, there=there)
    told = [each for each in lenient.get("warnings", ()) if "DedicatedAIClusterProfile" not in each]
    assert lenient["allowed"]
    assert len(told) == len(wanted)
    assert all(any(part in each for each in told) for part in wanted)
    assert strict["allowed"] is not bool(wanted)
    if wanted:
        assert all(part in strict["status"]["message"] for part in wanted)
        assert "warnings" not in strict


WRONG = reservation("r", group(), group())


@pytest.mark.covers("OME-015")
@pytest.mark.parametrize(
    "old",
    [
        WRONG,
        reservation(allowBorrowing=True),
        reservation("r", group(64)),
        reservation("r", group(64, borrowingLimit=4)),
        reservation("r", group("some")),
        cluster(),
        cluster(profile="gone"),
    ],
    ids=str,
)
def test_an_update_of_an_unchanged_object_is_always_admitted(old: Json) -> None:
    """However it was admitted (before the webhook or before a quota), and however strict the webhook is
    now."""
    new = {**old, "metadata": {**old["metadata"], "labels": {"team": "a"}}}
    full = There(hard={GPU: "8", "ome.io/capacity-reservations": "1"}, reserved=[reservation("other")])
    for strict in (False, True):
        found = asked(new, old, there=full, strict=strict)
        assert found == {"uid": "u-1", "allowed": True}


def test_what_was_wrong_before_does_not_stand_in_the_way_of_something_else() -> None:
    assert asked({**WRONG, "spec": {**WRONG["spec"], "priorityClassName": "high"}}, WRONG)["allowed"]
    worse = {**WRONG, "spec": {**WRONG["spec"], "allowBorrowing": True}}
    found = asked(worse, WRONG)
    assert found["status"]["message"].startswith("spec.allowBorrowing is true and spec.cohort is empty")


@pytest.mark.covers("OME-016")
def test_shrinking_below_use_is_allowed_and_told() -> None:
    usage = [{"name": "h100", "resources": [{"name": GPU, "total": "48", "borrowed": "8"}]}]
    status = {"associationUsages": [{"name": "team/train", "usage": usage}]}
    old = reservation("r", group(64), status=status)
    found = asked(reservation("r", group(16), status=status), old)
    assert found["allowed"]
    assert found["warnings"] == [
        "spec.resourceGroups: nvidia.com/gpu of flavor h100 falls to 16 while 40 is in use: nothing is "
        "evicted for it, and nothing new starts"
    ]
    assert "warnings" not in asked(reservation("r", group(40), status=status), old)
    # It grows, but stays below its usage.
    less = reservation("r", group(16), status=status)
    assert asked(reservation("r", group(32), status=status), less) == {"uid": "u-1", "allowed": True}


@pytest.mark.parametrize("old", [WRONG, reservation(), cluster()], ids=str)
def test_a_delete_is_never_refused(old: Json) -> None:
    assert asked(None, old, strict=True) == {"uid": "u-1", "allowed": True}
    going = {**old, "metadata": {**old["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}}
    assert asked({**going, "spec": {}}, going, strict=True)["allowed"]


HARD = {"ome.io/capacity-reservations": "5", GPU: "128", "requests.memory": "32Ti", "requests.cpu": "2048"}


@pytest.mark.covers("OME-088")
def test_the_sixth_reservation_of_a_namespace_is_refused() -> None:
    there = There(hard=HARD, reserved=[reservation(f"r{n}") for n in range(4)])
    assert asked(reservation("fifth"), there=there)["allowed"]
    there.reserved = [*there.reserved, reservation("fifth")]
    found = asked(reservation("sixth"), there=there)
    assert (found["status"]["code"], found["status"]["reason"]) == (403, "Forbidden")
    assert found["status"]["message"].startswith(
        "ResourceQuota quota has no room for 1 of ome.io/capacity-reservations: delete another reservation"
    )
    # Quota of the whole cluster has no namespace.
    whole = {**reservation(), "kind": "ClusterCapacityReservation", "metadata": {"name": "whole"}}
    assert asked(whole, there=there)["allowed"]


@pytest.mark.covers("OME-089")
@pytest.mark.parametrize(
    ("gpus", "before", "allowed"),
    [(64, None, True), (65, None, False), (100, 96, False), (64, 32, True), (96, 128, True)],
)
def test_quota_bounds_the_sum_of_nominal_quota(gpus: int, before: int | None, allowed: bool) -> None:
    old = None if before is None else reservation("r", group(before))
    there = There(hard=HARD, reserved=[reservation("other", group(64)), *([old] if old else [])])
    found = asked(reservation("r", group(gpus)), old, there=there)
    assert found["allowed"] is allowed
    if not allowed:
        why = f"ResourceQuota quota has no room for {gpus} of nvidia.com/gpu: reserve less"
        assert why in found["status"]["message"]


@pytest.mark.covers("SAF-58")
def test_a_refusal_holds_no_number_of_the_namespace() -> None:
    there = There(hard={GPU: "127"}, reserved=[reservation("other", group(61))])
    message = asked(reservation("r", group(97)), there=there)["status"]["message"]
    assert "97" in message, "the caller's own number"
    assert not any(number in message for number in ("127", "61", "66"))


@pytest.mark.covers("USR-06")
def test_malformed_id_is_refused_and_does_not_block_other_updates() -> None:
    good, wrong = reservation(), reservation()
    wrong["metadata"]["annotations"] = {"capacity-broker.io/reservation-ids": "cr-0123456789abcdef0,cr-xyz"}
    for before in (None, good):
        refused = asked(wrong, before)
        assert not refused["allowed"]
        assert "reservation-ids has 'cr-xyz': write EC2's ids" in refused["status"]["message"]
    other = {**wrong, "metadata": {**wrong["metadata"], "labels": {"a": "b"}}}
    assert asked(other, wrong)["allowed"]


def test_an_annotation_that_means_nothing_is_told_where_it_is_new() -> None:
    wrong = reservation()
    wrong["metadata"]["annotations"] = {"capacity-broker.io/reservation-polcy": "Manage", "mine/own": "x"}
    (warning,) = asked(wrong)["warnings"]
    assert warning == (
        "metadata.annotations: annotation capacity-broker.io/reservation-polcy means nothing on a "
        "CapacityReservation: write capacity-broker.io/reservation-policy if that is meant"
    )
    assert asked(wrong, reservation())["warnings"] == [warning]
    assert "warnings" not in asked(wrong, wrong)


def test_what_cannot_be_read_is_left_to_the_controller_with_a_warning() -> None:
    found = asked(reservation("r", group(), group()), there=There(broken="no answer"))
    assert "more than one place" in found["status"]["message"]
    (warning,) = found["warnings"]
    assert warning == "not judged by ResourceQuotas, which could not be read: no answer"
    found = asked(cluster(profile="large"), there=There(broken="no answer"))
    assert (found["allowed"], found["warnings"]) == (
        True,
        ["spec.profile large was not looked for: no answer"],
    )


@pytest.mark.covers("OME-077")
@pytest.mark.parametrize(
    ("spec", "refused", "warned"),
    [
        ({}, "nothing says how large the cluster is: set resources, or a profile and a count", ""),
        ({"resources": {"requests": {}}}, "nothing says how large the cluster is", ""),
        ({"resources": {"requests": {GPU: "-8"}}}, "nvidia.com/gpu -8 is negative", ""),
        ({"resources": {"requests": {GPU: "8"}}}, "", ""),
        ({"resources": {"limits": {GPU: "8"}}}, "", ""),
        ({"resources": {"limits": {GPU: "-8"}}}, "spec.resources.limits: nvidia.com/gpu -8 is negative", ""),
        ({"count": 4}, "", ""),
        ({"count": 4, "profile": "large"}, "", ""),
        ({"profile": "huge"}, "", "there is no DedicatedAIClusterProfile huge yet"),
        ({"profile": "old"}, "DedicatedAIClusterProfile old is disabled for new clusters; name another", ""),
    ],
    ids=str,
)
def test_a_dedicated_cluster_says_how_large_it_is(spec: Json, refused: str, warned: str) -> None:
    found = asked(cluster(**spec), there=There(profiles={"large": {}, "old": {"disabled": True}}))
    assert found["allowed"] is not bool(refused)
    assert refused in found.get("status", {}).get("message", "")
    assert warned in " ".join(found.get("warnings", ()))
    assert bool(warned) == ("warnings" in found)


def test_a_profile_that_is_disabled_later_does_not_touch_who_uses_it() -> None:
    old = cluster(profile="old", count=1)
    there = There(profiles={"old": {"disabled": True}})
    assert asked(cluster(profile="old", count=2), old, there=there) == {"uid": "u-1", "allowed": True}


def test_a_kind_without_rules_and_what_a_newer_schema_took_are_admitted() -> None:
    assert asked({"kind": "Pod", "metadata": {"name": "p"}})["allowed"]
    found = asked(reservation(allowBorrowing={"upTo": 3}))
    assert found["allowed"]
    assert found["warnings"][0].startswith("not judged: spec.allowBorrowing")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ([], "an AdmissionReview is a JSON object, this is list"),
        (
            {"kind": "Pod", "apiVersion": "v1"},
            "AdmissionReview of admission.k8s.io/v1 is wanted, this is Pod",
        ),
        (
            {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1beta1"},
            "this is AdmissionReview of admission.k8s.io/v1beta1",
        ),
        ({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1"}, "request.uid is missing"),
        (review(reservation(), object="text"), "request.object is not an object: 'text'"),
    ],
    ids=lambda each: each[:40] if isinstance(each, str) else "",
)
def test_what_is_no_review_is_told(body: Any, words: str) -> None:
    with pytest.raises(NotAReview, match=words.replace("(", r"\(")):
        answer(body, Rules(reads=There()))
