"""The webhook's responses: refusals and their messages, warnings, and requests that are never refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from broker.admission.review import NotAReview, ReviewResult, answer
from broker.admission.rules import KINDS, Rules
from tests.unit.admission.reviews import (
    CPU,
    GPU,
    FakeReads,
    Json,
    cluster,
    group,
    reservation,
    response_to,
    review,
)
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
            "has 576 pairs of flavor and resource; Kueue takes at most 512 in a group: split it in two",
        ),
        ({"allowBorrowing": True}, "spec.allowBorrowing", "spec.cohort is empty: name a cohort to borrow"),
        (
            {"preemptionRule": {"borrowWithinCohort": {"policy": "Any"}}},
            "spec.preemptionRule",
            "borrowWithinCohort needs reclaimWithinCohort",
        ),
    ],
    ids=lambda value: value[:50] if isinstance(value, str) else "",
)
def test_an_invalid_spec_is_refused_with_field_value_and_remedy(spec: Json, field: str, words: str) -> None:
    for kind in ("CapacityReservation", "ClusterCapacityReservation"):
        response = response_to(reservation(**spec) | {"kind": kind})
        assert not response["allowed"]
        status = response["status"]
        assert (status["code"], status["reason"]) == (422, "Invalid")
        assert words in status["message"]
        assert any(c["field"] == field and words in c["message"] for c in status["details"]["causes"])


@pytest.mark.covers("OME-006")
@pytest.mark.parametrize(
    ("nominal", "lends", "allowed"),
    [("16Ti", "16384Gi", True), ("16384Gi", "16Ti", True), ("16Ti", "16385Gi", False), (1, "1000m", True)],
)
def test_quantities_are_compared_by_value(nominal: Any, lends: str, allowed: bool) -> None:
    response = response_to(reservation("r", group(nominal, lendingLimit=lends), cohort="c"))
    assert response["allowed"] is allowed


@pytest.mark.covers("OME-014")
@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("nvidia.com/gpus", GPU),
        ("nvdia.com/gpu", GPU),
        ("nvidia.com/GPU", GPU),
        ("Memory", "memory"),
        ("cpus", "cpu"),
        *((name, "") for name in (GPU, "nvidia.com/mig-1g.5gb", "nvidia.com/gpu.shared", "nvidia.com/vgpu")),
        *((name, "") for name in ("nvidia.com/hca", "example.com/licences", "intel.com/gpu", "tokens")),
    ],
)
def test_misspelt_resource_is_refused_and_one_of_a_device_plugin_is_not(name: str, meant: str) -> None:
    quotas = {"name": "h100", "resources": [{"name": name, "nominalQuota": "8"}]}
    response = response_to(reservation("r", {"coveredResources": [name], "flavors": [quotas]}))
    assert response["allowed"] is not bool(meant)
    if meant:
        text = f"spec.resourceGroups[0].coveredResources: no instance has {name!r}: write {meant}"
        assert text in response["status"]["message"]


def all_of_the_page() -> list[Any]:
    return [
        pytest.param(manifest["name"], obj, id=f"{manifest['line']}-{manifest['name']}")
        for manifest in MANIFESTS
        for obj in objects(manifest)
    ]


@pytest.mark.covers("OME-014", "OME-039")
@pytest.mark.parametrize(("name", "obj"), all_of_the_page())
def test_manifests_of_the_ome_page_are_admitted_with_a_warning_for_each_correction(
    name: str, obj: Json
) -> None:
    obj = {**obj, "metadata": {"namespace": "team", **obj["metadata"]}}
    expected = () if obj["kind"] == "DedicatedAICluster" else NOTES.get(name, ())
    reads = FakeReads(profiles={"large": {}, "medium": {}, "small": {}})
    lenient = response_to(obj, default_cohort="shared", reads=reads)
    strict = response_to(obj, default_cohort="shared", strict=True, reads=reads)
    warnings = [
        warning for warning in lenient.get("warnings", ()) if "DedicatedAIClusterProfile" not in warning
    ]
    assert lenient["allowed"]
    assert len(warnings) == len(expected)
    assert all(any(part in warning for warning in warnings) for part in expected)
    assert strict["allowed"] is not bool(expected)
    if expected:
        assert all(part in strict["status"]["message"] for part in expected)
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
    full_quota = FakeReads(
        hard={GPU: "8", "ome.io/capacity-reservations": "1"}, reserved=[reservation("other")]
    )
    for strict in (False, True):
        response = response_to(new, old, reads=full_quota, strict=strict)
        assert response == {"uid": "u-1", "allowed": True}


def test_an_existing_problem_does_not_block_an_unrelated_update() -> None:
    assert response_to({**WRONG, "spec": {**WRONG["spec"], "priorityClassName": "high"}}, WRONG)["allowed"]
    worse = {**WRONG, "spec": {**WRONG["spec"], "allowBorrowing": True}}
    response = response_to(worse, WRONG)
    assert response["status"]["message"].startswith("spec.allowBorrowing is true and spec.cohort is empty")


@pytest.mark.covers("OME-016")
def test_shrinking_below_use_is_allowed_with_a_warning() -> None:
    usage = [{"name": "h100", "resources": [{"name": GPU, "total": "48", "borrowed": "8"}]}]
    status = {"associationUsages": [{"name": "team/train", "usage": usage}]}
    old = reservation("r", group(64), status=status)
    response = response_to(reservation("r", group(16), status=status), old)
    assert response["allowed"]
    assert response["warnings"] == [
        "spec.resourceGroups: nvidia.com/gpu of flavor h100 falls to 16 while 40 is in use: nothing is "
        "evicted for it, and nothing new starts"
    ]
    assert "warnings" not in response_to(reservation("r", group(40), status=status), old)
    # It grows, but stays below its usage.
    less = reservation("r", group(16), status=status)
    assert response_to(reservation("r", group(32), status=status), less) == {"uid": "u-1", "allowed": True}


@pytest.mark.parametrize("old", [WRONG, reservation(), cluster()], ids=str)
def test_a_delete_is_never_refused(old: Json) -> None:
    assert response_to(None, old, strict=True) == {"uid": "u-1", "allowed": True}
    going = {**old, "metadata": {**old["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}}
    assert response_to({**going, "spec": {}}, going, strict=True)["allowed"]


HARD = {"ome.io/capacity-reservations": "5", GPU: "128", "requests.memory": "32Ti", "requests.cpu": "2048"}


@pytest.mark.covers("OME-088")
def test_the_sixth_reservation_of_a_namespace_is_refused() -> None:
    reads = FakeReads(hard=HARD, reserved=[reservation(f"r{n}") for n in range(4)])
    assert response_to(reservation("fifth"), reads=reads)["allowed"]
    reads.reserved = [*reads.reserved, reservation("fifth")]
    response = response_to(reservation("sixth"), reads=reads)
    assert (response["status"]["code"], response["status"]["reason"]) == (403, "Forbidden")
    assert response["status"]["message"].startswith(
        "ResourceQuota quota has no room for 1 of ome.io/capacity-reservations: delete another reservation"
    )
    # Quota of the whole cluster has no namespace.
    whole = {**reservation(), "kind": "ClusterCapacityReservation", "metadata": {"name": "whole"}}
    assert response_to(whole, reads=reads)["allowed"]


@pytest.mark.covers("OME-089")
@pytest.mark.parametrize(
    ("gpus", "before", "allowed"),
    [(64, None, True), (65, None, False), (100, 96, False), (64, 32, True), (96, 128, True)],
)
def test_quota_bounds_the_sum_of_nominal_quota(gpus: int, before: int | None, allowed: bool) -> None:
    old = None if before is None else reservation("r", group(before))
    reads = FakeReads(hard=HARD, reserved=[reservation("other", group(64)), *([old] if old else [])])
    response = response_to(reservation("r", group(gpus)), old, reads=reads)
    assert response["allowed"] is allowed
    if not allowed:
        why = f"ResourceQuota quota has no room for {gpus} of nvidia.com/gpu: reserve less"
        assert why in response["status"]["message"]


@pytest.mark.covers("SAF-58")
def test_a_refusal_holds_no_number_of_the_namespace() -> None:
    reads = FakeReads(hard={GPU: "127"}, reserved=[reservation("other", group(61))])
    message = response_to(reservation("r", group(97)), reads=reads)["status"]["message"]
    assert "97" in message, "the caller's own number"
    assert not any(number in message for number in ("127", "61", "66"))


@pytest.mark.covers("USR-06")
def test_malformed_id_is_refused_and_does_not_block_other_updates() -> None:
    good, wrong = reservation(), reservation()
    wrong["metadata"]["annotations"] = {"capacity-broker.io/reservation-ids": "cr-0123456789abcdef0,cr-xyz"}
    for before in (None, good):
        refused = response_to(wrong, before)
        assert not refused["allowed"]
        assert "reservation-ids has 'cr-xyz': write EC2's ids" in refused["status"]["message"]
    other = {**wrong, "metadata": {**wrong["metadata"], "labels": {"a": "b"}}}
    assert response_to(other, wrong)["allowed"]


def test_a_new_unknown_annotation_gives_a_warning() -> None:
    wrong = reservation()
    wrong["metadata"]["annotations"] = {"capacity-broker.io/reservation-polcy": "Manage", "mine/own": "x"}
    (warning,) = response_to(wrong)["warnings"]
    assert warning == (
        "metadata.annotations: annotation capacity-broker.io/reservation-polcy means nothing on a "
        "CapacityReservation: write capacity-broker.io/reservation-policy if that is meant"
    )
    assert response_to(wrong, reservation())["warnings"] == [warning]
    assert "warnings" not in response_to(wrong, wrong)


def test_unreadable_objects_give_a_warning_and_no_refusal() -> None:
    response = response_to(reservation("r", group(), group()), reads=FakeReads(broken="no answer"))
    assert "more than one place" in response["status"]["message"]
    (warning,) = response["warnings"]
    assert warning == "not judged by ResourceQuotas, which could not be read: no answer"
    response = response_to(cluster(profile="large"), reads=FakeReads(broken="no answer"))
    assert (response["allowed"], response["warnings"]) == (
        True,
        ["spec.profile large could not be read: no answer"],
    )


@pytest.mark.covers("OME-077")
@pytest.mark.parametrize(
    ("spec", "refused", "warned"),
    [
        ({}, "the cluster's size is not set: set resources, or a profile and a count", ""),
        ({"resources": {"requests": {}}}, "the cluster's size is not set", ""),
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
def test_a_dedicated_cluster_must_state_its_size(spec: Json, refused: str, warned: str) -> None:
    response = response_to(
        cluster(**spec), reads=FakeReads(profiles={"large": {}, "old": {"disabled": True}})
    )
    assert response["allowed"] is not bool(refused)
    assert refused in response.get("status", {}).get("message", "")
    assert warned in " ".join(response.get("warnings", ()))
    assert bool(warned) == ("warnings" in response)


def test_disabling_a_profile_does_not_affect_its_clusters() -> None:
    old = cluster(profile="old", count=1)
    reads = FakeReads(profiles={"old": {"disabled": True}})
    assert response_to(cluster(profile="old", count=2), old, reads=reads) == {"uid": "u-1", "allowed": True}


def test_kinds_without_rules_and_fields_of_newer_schemas_are_admitted() -> None:
    assert response_to({"kind": "Pod", "metadata": {"name": "p"}})["allowed"]
    response = response_to(reservation(allowBorrowing={"upTo": 3}))
    assert response["allowed"]
    assert response["warnings"][0].startswith("not judged: spec.allowBorrowing")


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ([], "an AdmissionReview is a JSON object, this is list"),
        (
            {"kind": "Pod", "apiVersion": "v1"},
            "AdmissionReview of admission.k8s.io/v1 is required, this is Pod",
        ),
        (
            {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1beta1"},
            "this is AdmissionReview of admission.k8s.io/v1beta1",
        ),
        ({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1"}, "request.uid is missing"),
        (review(reservation(), object="text"), "request.object is not an object, it is str"),
        (review(reservation(), uid=nested(101)), "is nested deeper than 100 levels"),
        ({"kind": nested(900), "apiVersion": "v1"}, "is nested deeper than 100 levels"),
        (review(reservation(), object=nested(1000)), "request.object is not an object, it is list"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_a_body_that_is_no_review_is_rejected_with_the_reason(body: Any, words: str) -> None:
    with pytest.raises(NotAReview, match=words.replace("(", r"\(")):
        answer(body, Rules(reads=FakeReads()))


JUNK: tuple[Any, ...] = (None, [], [1], "text", 5, -1.5, True, {}, {"a": None}, [[]], "x" * 100_000)


def at(obj: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy with another value at the path."""
    if not path:
        return value
    copy = list(obj) if isinstance(obj, list) else dict(obj)
    copy[path[0]] = at(obj[path[0]], path[1:], value)
    return copy


def paths(obj: Any) -> Iterator[tuple[Any, ...]]:
    items = obj.items() if isinstance(obj, dict) else enumerate(obj) if isinstance(obj, list) else ()
    for key, value in items:
        yield (key,)
        yield from ((key, *rest) for rest in paths(value))


def subjects() -> Iterator[Json]:
    """An object of each kind with rules."""
    status = {"associationUsages": [{"usage": [{"name": "h100", "resources": []}]}]}
    meta = {"namespace": "team", "annotations": {"a": "b"}, "labels": {"c": "d"}, "deletionTimestamp": ""}
    named = {"name": "r", "uid": "u", "resourceVersion": "1", **meta}
    limits: Json = {"min": {"cpu": "1"}, "max": {"cpu": "2"}, "namespaces": ["team"]}
    for kind in KINDS:
        if kind == "DedicatedAICluster":
            yield {**cluster(count=1, profile="p", resources={"requests": {"cpu": "1"}}), "metadata": named}
        elif kind.endswith("ElasticQuota"):
            api = {"apiVersion": "nos.nebuly.com/v1alpha1", "kind": kind}
            yield {**api, "metadata": named, "spec": limits}
        else:
            yield {**reservation(status=status, cohort="c"), "kind": kind, "metadata": named}


@pytest.mark.covers("FLT-67")
def test_any_body_is_answered_and_unreadable_metadata_is_refused() -> None:
    for subject in subjects():
        for path in paths(subject):
            if path == ("kind",):
                continue
            for junk in JUNK:
                wrong = at(subject, path, junk)
                for new, old in ((wrong, None), (wrong, subject), (subject, wrong), (None, wrong)):
                    body = review(subject)
                    body["request"] |= {"object": new, "oldObject": old}
                    response = answer(body, Rules(reads=FakeReads()))["response"]
                    assert response["uid"] == "u-1"
                    if path == ("metadata",) and new is wrong and not isinstance(junk, dict):
                        assert (response["allowed"], response["status"]["code"]) == (False, 422)
                        (cause,) = response["status"]["details"]["causes"]
                        assert cause["field"] == "metadata" and "no object" in cause["message"]
                    if new is None:
                        assert response["allowed"]  # a delete


@pytest.mark.covers("FLT-67")
@pytest.mark.parametrize("depth", [101, 300, 1000])
def test_an_object_that_is_nested_deep_is_refused(depth: int) -> None:
    """JSON may be nested deeper than Python prints it, and than it is written again."""
    for subject in subjects():
        for path in paths(subject):
            body = review(subject)
            body["request"]["object"] = at(subject, path, nested(depth))
            response = answer(body, Rules(reads=FakeReads()))["response"]
            assert not response["allowed"]
            assert f"{path[0]}: it is nested deeper than 100 levels" in response["status"]["message"]


@pytest.mark.covers("FLT-67")
def test_a_line_of_a_message_has_no_line_breaks() -> None:
    result = ReviewResult(problems=("metadata.annotations: a\nb\r\nc",), warnings=("d\ne",))
    response = answer(review(reservation()), lambda _: result)["response"]
    assert response["status"]["message"] == "metadata.annotations: a b c"
    assert response["warnings"] == ["d e"]


@pytest.mark.covers("FLT-67")
@pytest.mark.parametrize("count", [1, 20, 21, 3000])
@pytest.mark.parametrize("length", [10, 300, 100_000])
def test_messages_and_warnings_have_at_most_20_lines_and_4_kilobytes(count: int, length: int) -> None:
    long = tuple(f"spec.x[{n}]: {'ü' * length}" for n in range(count))
    for result in (ReviewResult(problems=long), ReviewResult(no_room=long), ReviewResult(warnings=long)):
        response = answer(review(reservation()), lambda _: result)["response"]  # noqa: B023
        status = response.get("status", {"message": ""})
        causes = [cause["message"] for cause in status.get("details", {}).get("causes", [])]
        for lines in (response.get("warnings", []), status["message"].split("; "), causes):
            assert len(lines) <= 20
            assert len("; ".join(lines).encode()) <= 4096
        answered = response.get("warnings") or status["message"].split("; ")
        shown = len(answered) - (answered[-1].endswith(" more"))
        assert shown == count or answered[-1] == f"{count - shown} more"
        assert answered[0].startswith("spec.x[0]: üüüü")
