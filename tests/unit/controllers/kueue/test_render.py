"""A reservation's objects in Kueue, as a table: names, limits, cohort, preemption, namespaces."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.apis import names
from broker.apis.kueue import ClusterQueue, LocalQueue
from broker.apis.kueue_versions import cluster_queue_spec, read_cluster_queue
from broker.apis.ome import CapacityReservation, ClusterCapacityReservation
from broker.apis.ome_rules import judge
from broker.controllers.kueue.render import (
    NO_NAMESPACES,
    cluster_queue,
    differs,
    leftover,
    local_queue,
    skeleton,
)
from broker.quota.usage import ReservationKey
from broker.reservations.kueue_checks import CHECK
from broker.reservations.kueue_objects import owner_of, queue_name, short
from broker.reservations.spec import Reservation
from providers.names import MANAGED_BY

Json = dict[str, Any]
GPU = "nvidia.com/gpu"


def reservation(
    name: str = "gpu", namespace: str = "team", *, quota: Json | None = None, **spec: Any
) -> Reservation:
    entry = {"name": GPU, "nominalQuota": "64"} | (quota or {})
    spec.setdefault(
        "resourceGroups",
        [{"coveredResources": [GPU], "flavors": [{"name": "h100", "resources": [entry]}]}],
    )
    meta = {"name": name, "uid": "u-1"}
    if not namespace:
        return ClusterCapacityReservation.decode({"metadata": meta, "spec": spec})
    return CapacityReservation.decode({"metadata": meta | {"namespace": namespace}, "spec": spec})


def rendered(reservation_: Reservation, *, default_cohort: str = "", **options: Any) -> Json:
    judged = judge(reservation_.spec, default_cohort=default_cohort)
    assert not judged.problems
    options.setdefault("namespaces", [reservation_.namespace] if reservation_.namespace else [])
    return cluster_queue(reservation_, judged.spec, **options)


def limits(body: Json) -> Json:
    (quota,) = body["spec"]["resourceGroups"][0]["flavors"][0]["resources"]
    return {key: value for key, value in quota.items() if key.endswith("Limit")}


@pytest.mark.covers("OME-034", "OME-035", "OME-036", "OME-037", "OME-038", "OME-039", "OME-041")
@pytest.mark.parametrize(
    ("allow", "cohort", "borrow", "queue_cohort", "expected"),
    [
        (True, "ai", "32", "ai", {"borrowingLimit": "32"}),
        (True, "ai", None, "ai", {}),
        (True, "", None, "serving", {}),
        (True, "", "32", "serving", {"borrowingLimit": "32"}),
        (False, "ai", None, "ai", {"borrowingLimit": "0"}),
        (False, "ai", "32", "ai", {"borrowingLimit": "0"}),
        (None, "ai", "32", "ai", {"borrowingLimit": "0"}),
        (False, "", None, None, {}),
        (False, "", "32", None, {}),
    ],
)
def test_borrowing_follows_cohort_and_allow_borrowing(
    allow: bool | None, cohort: str, borrow: str | None, queue_cohort: str | None, expected: Json
) -> None:
    given_: Json = {} if allow is None else {"allowBorrowing": allow}
    quota = {} if borrow is None else {"borrowingLimit": borrow}
    body = rendered(reservation(quota=quota, cohort=cohort, **given_), default_cohort="serving")
    assert body["spec"].get("cohortName") == queue_cohort
    assert limits(body) == expected


@pytest.mark.covers("OME-040", "OME-005")
def test_the_lending_limit_is_set_with_or_without_borrowing() -> None:
    body = rendered(reservation(quota={"lendingLimit": "16"}, cohort="ai"))
    assert limits(body) == {"borrowingLimit": "0", "lendingLimit": "16"}
    assert limits(rendered(reservation(quota={"lendingLimit": "16"}))) == {}


@pytest.mark.covers("OME-042", "OME-080")
def test_groups_keep_the_order_of_the_reservation() -> None:
    def flavor(name: str, *amounts: str) -> Json:
        resources = [
            {"name": resource, "nominalQuota": amount, "borrowingLimit": f"{n}"}
            for n, (resource, amount) in enumerate(zip((GPU, "cpu", "memory"), amounts, strict=True))
        ]
        return {"name": name, "resources": resources}

    groups = [
        {
            "coveredResources": [GPU, "cpu", "memory"],
            "flavors": [flavor("h100", "64", "1k", "16Ti"), flavor("a100", "8", "64", "1152Gi")],
        }
    ]
    body = rendered(reservation(resourceGroups=groups, cohort="ai", allowBorrowing=True))
    assert body["spec"]["resourceGroups"] == groups


@pytest.mark.covers("OME-012", "OME-014")
def test_a_covered_resource_without_quota_has_zero_quota() -> None:
    groups = [
        {
            "coveredResources": ["cpu", GPU],
            "flavors": [{"name": "h100", "resources": [{"name": GPU, "nominalQuota": "8"}]}],
        }
    ]
    body = rendered(reservation(resourceGroups=groups))
    assert body["spec"]["resourceGroups"][0]["flavors"][0]["resources"] == [
        {"name": "cpu", "nominalQuota": "0"},
        {"name": GPU, "nominalQuota": "8"},
    ]


@pytest.mark.covers("OME-046", "OME-047", "OME-048", "OME-049", "OME-050", "OME-080")
@pytest.mark.parametrize(
    ("rule", "reclaim", "within", "borrow"),
    [
        (None, "Never", "LowerPriority", {"policy": "Never"}),
        ({"reclaimWithinCohort": "Any"}, "Any", "LowerPriority", {"policy": "Never"}),
        ({"reclaimWithinCohort": "LowerPriority"}, "LowerPriority", "LowerPriority", {"policy": "Never"}),
        (
            {
                "reclaimWithinCohort": "Any",
                "borrowWithinCohort": {"policy": "LowerPriority", "maxPriorityThreshold": 100},
                "withinClusterQueue": "LowerPriority",
            },
            "Any",
            "LowerPriority",
            {"policy": "LowerPriority", "maxPriorityThreshold": 100},
        ),
        (
            {"reclaimWithinCohort": "Any", "borrowWithinCohort": {"policy": "Any"}},
            "Any",
            "LowerPriority",
            {"policy": "LowerPriority"},
        ),
        ({"withinClusterQueue": "Never"}, "Never", "Never", {"policy": "Never"}),
        (
            {"withinClusterQueue": "LowerOrNewerEqualPriority"},
            "Never",
            "LowerOrNewerEqualPriority",
            {"policy": "Never"},
        ),
        # A threshold of 0 is valid; without a policy it has no effect.
        (
            {
                "reclaimWithinCohort": "LowerPriority",
                "borrowWithinCohort": {"policy": "LowerPriority", "maxPriorityThreshold": 0},
            },
            "LowerPriority",
            "LowerPriority",
            {"policy": "LowerPriority", "maxPriorityThreshold": 0},
        ),
        (
            {"borrowWithinCohort": {"policy": "Never", "maxPriorityThreshold": 7}},
            "Never",
            "LowerPriority",
            {"policy": "Never"},
        ),
    ],
)
def test_the_preemption_rule_is_rendered(rule: Json | None, reclaim: str, within: str, borrow: Json) -> None:
    given_: Json = {} if rule is None else {"preemptionRule": rule}
    preemption = rendered(reservation(cohort="ai", **given_))["spec"]["preemption"]
    assert preemption == {
        "reclaimWithinCohort": reclaim,
        "withinClusterQueue": within,
        "borrowWithinCohort": borrow,
    }


@pytest.mark.covers("OME-079", "OME-080")
def test_only_bound_namespaces_are_selected() -> None:
    own = rendered(reservation())["spec"]["namespaceSelector"]
    values = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["team"]}
    assert own == {"matchExpressions": [values]}
    many = rendered(reservation(namespace=""), namespaces=["b", "a", "b"])["spec"]["namespaceSelector"]
    assert many["matchExpressions"][0]["values"] == ["a", "b"]
    none = rendered(reservation(namespace=""), namespaces=[])["spec"]["namespaceSelector"]
    assert none == NO_NAMESPACES and none  # neither null nor the empty selector, which admits every namespace


def test_only_a_cluster_wide_reservation_owns_its_queues() -> None:
    owned = rendered(reservation(namespace=""))["metadata"]
    assert [owner["uid"] for owner in owned["ownerReferences"]] == ["u-1"]
    held = rendered(reservation())["metadata"]
    assert "ownerReferences" not in held
    assert held["labels"][MANAGED_BY] == "capacity-broker"
    assert held["annotations"] == {names.TAG_RESERVATION: "team/gpu"}


@pytest.mark.covers("OME-045")
@pytest.mark.parametrize(
    ("name", "label"),
    [("gpu", "gpu"), ("a" * 63, "a" * 63), ("a" * 64, f"{'a' * 54}-ffe054fe")],
)
def test_a_queue_is_labelled_with_its_cohort_and_its_reservation(name: str, label: str) -> None:
    """A long name is shortened as in the labels of the reservation and of its dedicated clusters."""
    labels = rendered(reservation(name, cohort=name))["metadata"]["labels"]
    assert labels == {
        MANAGED_BY: "capacity-broker",
        names.COHORT_LABEL: label,
        names.RESERVATION_LABEL: label,
    }
    assert names.COHORT_LABEL not in rendered(reservation(name))["metadata"]["labels"]


def test_check_and_stop_policy_are_rendered() -> None:
    body = rendered(reservation(), check=CHECK, stop="HoldAndDrain")["spec"]
    assert body["admissionChecksStrategy"] == {"admissionChecks": [{"name": CHECK}]}
    assert body["stopPolicy"] == "HoldAndDrain"
    plain = rendered(reservation())["spec"]
    assert "admissionChecksStrategy" not in plain and plain["stopPolicy"] == "None"


NAME = st.from_regex(re.compile(r"[a-z0-9]([-a-z0-9]{0,80}[a-z0-9])?"), fullmatch=True)


@given(NAME, NAME)
def test_a_queues_name_fits_a_label_and_is_unique(namespace: str, name: str) -> None:
    name_ = queue_name(ReservationKey(namespace[:63].rstrip("-"), name))
    assert len(name_) <= 63
    assert re.fullmatch(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?", name_)
    assert queue_name(ReservationKey(namespace[:63].rstrip("-"), name + "x" * 60)) != name_


def test_a_long_name_keeps_its_head() -> None:
    shortened = short("a" * 62 + "--b")
    assert shortened.startswith("a" * 54 + "-") and len(shortened) == 63
    assert short("team--gpu") == "team--gpu"
    assert short("a" * 63) == "a" * 63
    assert short("a" * 70 + "b") != short("a" * 70 + "c")
    # No label ends at the cut.
    assert re.fullmatch("a{53}-[0-9a-f]{8}", short("a" * 53 + "." + "b" * 20))
    assert re.fullmatch("a{52}-[0-9a-f]{8}", short("a" * 52 + "--" + "b" * 20))


def test_a_skeleton_holds_the_queue_and_names_its_owner() -> None:
    reservation_ = reservation()
    first = skeleton(rendered(reservation_), ReservationKey("team", "gpu"))
    queue = ClusterQueue.decode(first)
    assert owner_of(queue) == ReservationKey("team", "gpu")
    assert first["spec"] == {"stopPolicy": "Hold"}
    local = skeleton(local_queue(reservation_, "team"), ReservationKey("team", "gpu"))
    assert local["spec"] == {"stopPolicy": "Hold", "clusterQueue": "team--gpu"}
    assert owner_of(ClusterQueue.decode({"metadata": {"name": "team--gpu"}})) is None


PREEMPTION = rendered(reservation())["spec"]["preemption"]
GROUPS_OF_65 = rendered(reservation(quota={"nominalQuota": "65"}))["spec"]["resourceGroups"]


def observed(desired: Json, **spec: Any) -> ClusterQueue:
    body = desired | {"spec": {**desired["spec"], **spec}}
    return ClusterQueue.decode(body)


@pytest.mark.covers("OME-006", "OME-097")
def test_an_equivalent_spec_is_no_difference() -> None:
    desired = rendered(reservation(quota={"nominalQuota": "1k"}, cohort="ai"), check=CHECK)
    groups = rendered(reservation(quota={"nominalQuota": 1000}, cohort="ai"))["spec"]["resourceGroups"]
    assert not differs(observed(desired), desired)
    assert not differs(observed(desired, resourceGroups=groups), desired)
    # Another controller's check beside the broker's, and fields that the broker does not set, stay.
    checks = {"admissionChecks": [{"name": CHECK}, {"name": "theirs"}]}
    assert not differs(
        observed(desired, admissionChecksStrategy=checks, fairSharing={"weight": "2"}), desired
    )


@pytest.mark.covers("OME-082")
@pytest.mark.parametrize(
    "edit",
    [
        {"resourceGroups": []},
        {"resourceGroups": GROUPS_OF_65},
        {"cohortName": "others"},
        {"queueingStrategy": "StrictFIFO"},
        {"namespaceSelector": {}},
        {"namespaceSelector": None},
        {"stopPolicy": "Hold"},
        {"flavorFungibility": {"whenCanBorrow": "TryNextFlavor"}},
        {"preemption": PREEMPTION | {"reclaimWithinCohort": "Any"}},
        {"preemption": PREEMPTION | {"withinClusterQueue": "Never"}},
        {"preemption": PREEMPTION | {"borrowWithinCohort": {"policy": "LowerPriority"}}},
        {"preemption": PREEMPTION | {"borrowWithinCohort": {"policy": "Never", "maxPriorityThreshold": 7}}},
        {"admissionChecksStrategy": None},
        {"admissionChecksStrategy": {"admissionChecks": [{"name": CHECK, "onFlavors": ["h100"]}]}},
    ],
    ids=lambda edit: next(iter(edit)),
)
def test_a_manual_edit_is_a_difference(edit: Json) -> None:
    desired = rendered(reservation(cohort="ai"), check=CHECK)
    assert differs(observed(desired, **edit), desired)


def test_fields_that_the_broker_does_not_set_are_removed() -> None:
    desired = rendered(reservation())
    threshold = {"policy": "Never", "maxPriorityThreshold": 7}
    edited = observed(desired, cohortName="others", preemption={"borrowWithinCohort": threshold})
    assert leftover(edited, desired) == {
        "cohortName": None,
        "preemption": {"borrowWithinCohort": {"maxPriorityThreshold": None}},
    }
    assert leftover(observed(desired), desired) == {}


def test_a_local_queue_that_is_stopped_by_hand_differs() -> None:
    desired = local_queue(reservation(), "team")
    assert not differs(LocalQueue.decode(desired), desired)
    stopped = desired | {"spec": {**desired["spec"], "stopPolicy": "Hold"}}
    assert differs(LocalQueue.decode(stopped), desired)


@pytest.mark.covers("OME-080")
def test_the_older_version_is_equivalent() -> None:
    desired = rendered(reservation(cohort="ai"), check=CHECK)
    old = cluster_queue_spec(desired["spec"], "v1beta1")
    assert old["cohort"] == "ai" and "cohortName" not in old
    assert old["flavorFungibility"] == {"whenCanBorrow": "Borrow", "whenCanPreempt": "TryNextFlavor"}
    assert cluster_queue_spec(desired["spec"], "v1beta2") == desired["spec"]
    assert not differs(ClusterQueue.decode(desired | {"spec": old}), desired)


SEARCH = st.sampled_from(["MayStopSearch", "TryNextFlavor"])


@given(cohort=st.text(max_size=5), borrow=SEARCH, preempt=SEARCH)
def test_versions_round_trip(cohort: str, borrow: str, preempt: str) -> None:
    spec = {"cohortName": cohort, "flavorFungibility": {"whenCanBorrow": borrow, "whenCanPreempt": preempt}}
    read = ClusterQueue.decode({"spec": cluster_queue_spec(spec, "v1beta1")})
    assert read.spec == ClusterQueue.decode({"spec": spec}).spec


def test_a_plain_list_of_checks_is_read_as_rules() -> None:
    read = ClusterQueue.decode(read_cluster_queue({"spec": {"admissionChecks": ["theirs"]}}))
    strategy = read.spec.admission_checks_strategy
    assert strategy is not None and [check.name for check in strategy.admission_checks] == ["theirs"]
