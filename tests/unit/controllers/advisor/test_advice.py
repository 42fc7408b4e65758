"""Selector terms as values: their owner, the desired terms, and the end of the broker's control."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from broker.apis import names
from broker.apis.karpenter import NodePool
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.reservation_spec import CapacityReservationSpec, CapacityReservationTarget
from broker.capacity.model import Misfit, Resolved
from broker.controllers.advisor.conditions import advised, allowed, conditions_patch, yielded
from broker.controllers.advisor.pools import beyond_reserved, class_of, karpenter_pools, without_reserved
from broker.controllers.advisor.terms import (
    MOST_TERMS,
    OPEN,
    PATIENCE,
    REMOVAL_MEMORY,
    TAG_KEY,
    Advice,
    Record,
    Term,
    advise,
    checked,
    load,
    request_of,
    same,
    split,
    tag_key,
    tag_prefix,
    tag_term,
    written,
)
from broker.text import format_time
from providers.model import Odcr

NOW = datetime(2026, 11, 21, 3, 0, tzinfo=UTC)
ACCOUNT, OTHER = "123456789012", "999999999999"
TAG = tag_term("blue", "gpu")
ARN = f"arn:aws:resource-groups:us-east-1:{ACCOUNT}:group/team"
GROUP = CapacityReservationSpec(
    capacity_reservation_target=CapacityReservationTarget(capacity_reservation_resource_group_arn=ARN)
)


def preference(word: str) -> CapacityReservationSpec:
    return CapacityReservationSpec(capacity_reservation_preference=word)


def odcr(number: int, owner: str = ACCOUNT) -> Odcr:
    return Odcr(
        id=f"cr-{number:03}", instance_type="m5.large", zone="z", total=1, available=1, owner_id=owner
    )


def resolved(own: int, foreign: int = 0) -> Resolved:
    return Resolved(
        usable=tuple(odcr(n) for n in range(own)) + tuple(odcr(n + 500, OTHER) for n in range(foreign))
    )


def users(count: int) -> list[Term]:
    return [{"tags": {"team": f"t-{n}"}} for n in range(count)]


def advice(
    spec: CapacityReservationSpec | None, reservations: Resolved, user_terms: list[Term], **more: Any
) -> Any:
    return advise(spec, reservations, user_terms, tag=TAG, account_id=ACCOUNT, **more)


@pytest.mark.covers("KRP-31")
@pytest.mark.parametrize(
    ("own", "foreign", "user_terms", "form", "by_tag", "by_id", "left_out"),
    [
        (30, 0, 0, "ids", 0, 30, 0),
        (31, 0, 0, "tag", 31, 0, 0),
        (20, 0, 11, "tag", 20, 0, 0),
        (25, 6, 0, "tag", 25, 6, 0),
        (25, 6, 24, "tag", 25, 5, 1),
        (0, 31, 0, "full", 0, 30, 1),
        (1, 0, 30, "full", 0, 0, 1),
        (2, 0, 29, "tag", 2, 0, 0),
    ],
)
def test_terms_are_ids_if_they_fit_else_one_tag_and_foreign_ids(
    own: int, foreign: int, user_terms: int, form: str, by_tag: int, by_id: int, left_out: int
) -> None:
    result = advice(GROUP, resolved(own, foreign), users(user_terms))
    assert result.form == form
    assert len(result.by_tag) == by_tag
    assert len([term for term in result.terms if "id" in term]) == by_id
    assert len(result.left_out) == left_out
    assert (TAG in result.terms) is (form == "tag")


@pytest.mark.covers("KRP-31")
@pytest.mark.parametrize(
    ("spec", "user_terms", "terms"),
    [
        (None, [], ()),
        (preference("none"), [], ()),
        (preference("None"), [], ()),
        (preference("open"), [], (OPEN,)),
        (preference("open"), [OPEN], ()),
        (preference("capacity-reservations-only"), [], (OPEN,)),
        (GROUP, [{"id": "cr-000"}], ({"id": "cr-001"},)),
        (GROUP, [TAG], ()),
    ],
)
def test_the_terms_of_each_spec(
    spec: CapacityReservationSpec | None, user_terms: list[Term], terms: Any
) -> None:
    assert advice(spec, resolved(2), user_terms).terms == terms


@pytest.mark.covers("KRP-31")
def test_a_full_list_has_no_room_for_the_open_term() -> None:
    result = advice(preference("open"), resolved(2), users(MOST_TERMS))
    assert (result.form, result.terms, result.left_out) == ("open", (), ("open",))
    result = advice(preference("open"), resolved(2), users(MOST_TERMS - 1))
    assert (result.form, result.terms, result.left_out) == ("open", (OPEN,), ())


def test_pending_and_ending_reservations_stay_selected() -> None:
    ending = Misfit(id="cr-777", reason="CapacityBlockEnding", message="")
    gone = Misfit(id="cr-888", reason="ReservationExpired", message="")
    reservations = Resolved(usable=(odcr(1),), pending=(odcr(2),), misfits=(ending, gone))
    assert [term["id"] for term in advice(GROUP, reservations, []).terms] == ["cr-001", "cr-002", "cr-777"]


def test_untaggable_reservations_are_selected_by_id() -> None:
    result = advice(GROUP, resolved(31), [], untaggable={"cr-004"})
    assert result.terms == (TAG, {"id": "cr-004"}) and len(result.by_tag) == 30


TERMS = st.lists(st.sampled_from([*({"id": f"cr-{n:03}"} for n in range(6)), *users(4), OPEN]), max_size=12)


@pytest.mark.covers("KRP-31")
@given(user_terms=TERMS, count=st.integers(0, 40), foreign=st.integers(0, 40), before=st.integers(0, 40))
def test_user_terms_always_stay_and_recorded_terms_are_always_known(
    user_terms: list[Term], count: int, foreign: int, before: int
) -> None:
    """For any earlier and later set, the list holds a user's entries and the record's, 30 at most."""
    record, listed = Record(), user_terms
    for reservations in (resolved(before), resolved(count, foreign), Resolved()):
        kept, gone = split(listed, record)
        assert kept == user_terms and gone == []
        result = advice(GROUP, reservations, kept)
        listed = [*kept, *result.terms]
        record = load(written(Record(request=ARN), result.terms).dump()) or Record()
        assert len(listed) <= MOST_TERMS
        assert listed[: len(user_terms)] == user_terms
        assert not [term for term in result.terms if term in user_terms]
        covered = {term.get("id") for term in listed} | {*result.by_tag} | {*result.left_out}
        assert {o.id for o in reservations.usable} <= covered
    assert same(listed, user_terms)


def test_a_recorded_term_that_a_user_repeats_becomes_the_users() -> None:
    record = Record(terms=({"id": "cr-000"},), request=ARN)
    kept, gone = split([{"id": "cr-000"}, {"id": "cr-000"}], record)
    assert kept == [{"id": "cr-000"}] and gone == []
    assert advice(GROUP, resolved(1), kept).terms == ()


@pytest.mark.covers("KRP-31")
def test_removals_are_counted_only_within_a_time_and_for_one_request() -> None:
    term: Term = {"id": "cr-000"}
    record = Record(terms=(term,), request="a", at=format_time(NOW))
    for count in range(1, PATIENCE + 1):
        record = checked(record, [term], request="a", now=NOW)
        assert record.removed == count
    assert record.yielded
    assert checked(record, [term], request="a", now=NOW) == record
    assert not checked(record, [term], request="b", now=NOW).yielded
    once = Record(terms=(term,), request="a", removed=2, at=format_time(NOW))
    assert checked(once, [term], request="a", now=NOW + REMOVAL_MEMORY + timedelta(seconds=1)).removed == 1
    assert checked(once, [], request="a", now=NOW) == once


@pytest.mark.parametrize("text", [None, "", "{", "[]", '{"terms": 3}', '{"terms": ["x"]}', '"x"', "null"])
def test_an_unreadable_record_is_none(text: str | None) -> None:
    assert load(text) is None


def test_an_empty_record_is_a_record() -> None:
    assert load("{}") == Record()


@pytest.mark.covers("KRP-31")
def test_a_record_round_trips() -> None:
    whole = Record(terms=({"id": "cr-1"},), request=ARN, removed=2, by="argocd", at=format_time(NOW))
    assert load(whole.dump()) == whole
    assert written(whole, []) == replace(whole, terms=())  # the removing manager is kept
    assert written(replace(whole, removed=0), []) == Record()


@pytest.mark.covers("KRP-31")
def test_a_removed_term_is_detected() -> None:
    record = Record(terms=({"id": "cr-1"}, {"id": "cr-2"}), request=ARN)
    assert split([*users(1), {"id": "cr-2"}], record) == (users(1), [{"id": "cr-1"}])


@given(st.text("abc-", min_size=1, max_size=100), st.text("abc-.", min_size=1, max_size=253))
@example("c" * 100, "x" * 252)
def test_a_tag_fits_ec2_and_has_its_clusters_prefix(cluster: str, node_class: str) -> None:
    key = tag_key(cluster, node_class)
    assert len(key) <= TAG_KEY and key.startswith(tag_prefix(cluster))
    assert tag_key(cluster, node_class + "x") != key


@pytest.mark.covers("KRP-31")
def test_the_tag_of_a_class_names_it() -> None:
    assert tag_term("blue", "gpu") == {"tags": {f"{names.TAG_ADVISED}/blue/gpu": "gpu"}}


@pytest.mark.covers("KRP-31")
def test_a_record_names_the_request() -> None:
    by_id = CapacityReservationSpec(
        capacity_reservation_target=CapacityReservationTarget(capacity_reservation_id="cr-1")
    )
    assert [*map(request_of, (preference("None"), by_id, GROUP))] == ["none", "cr-1", ARN]


def node_pool(*requirements: dict[str, Any], group: str = "karpenter.k8s.aws", **labels: str) -> NodePool:
    template = {
        "metadata": {"labels": labels},
        "spec": {
            "nodeClassRef": {"group": group, "kind": "EC2NodeClass", "name": "gpu"},
            "requirements": [
                {"key": "karpenter.sh/capacity-type", **requirement} for requirement in requirements
            ],
        },
    }
    return NodePool.decode({"metadata": {"name": "p"}, "spec": {"template": template}})


@pytest.mark.covers("KRP-32")
@pytest.mark.parametrize(
    ("requirements", "without"),
    [
        ([], []),
        ([{"operator": "In", "values": ["reserved"]}], []),
        ([{"operator": "In", "values": ["reserved", "spot"]}], []),
        ([{"operator": "Exists"}], []),
        ([{"operator": "NotIn", "values": ["spot"]}], []),
        ([{"operator": "In", "values": ["on-demand", "spot"]}], ["p"]),
        ([{"operator": "NotIn", "values": ["reserved"]}], ["p"]),
        ([{"operator": "DoesNotExist"}], ["p"]),
        ([{"operator": "In", "values": ["reserved"]}, {"operator": "NotIn", "values": ["reserved"]}], ["p"]),
    ],
)
def test_pools_without_reserved(requirements: list[dict[str, Any]], without: list[str]) -> None:
    assert without_reserved([node_pool(*requirements)]) == without


def test_a_pool_s_label_counts_as_its_requirement() -> None:
    assert without_reserved([node_pool(**{"karpenter.sh/capacity-type": "spot"})]) == ["p"]


@pytest.mark.covers("KRP-32")
@pytest.mark.parametrize(
    ("values", "beyond"),
    [(["reserved"], []), (["reserved", "spot"], ["p"]), (["reserved", "on-demand"], ["p"])],
)
def test_pools_that_allow_more_than_reserved(values: list[str], beyond: list[str]) -> None:
    assert beyond_reserved([node_pool({"operator": "In", "values": values})]) == beyond


@pytest.mark.covers("KRP-32")
@pytest.mark.parametrize(
    ("without", "beyond", "only", "reason", "words"),
    [
        ([], [], True, "Allowed", ""),
        ([], ["a"], False, "Allowed", ""),
        (["a"], ["a"], True, "ReservedNotAllowed", "NodePool a: karpenter.sh/capacity-type does not allow"),
        (["a", "b"], [], False, "ReservedNotAllowed", "NodePools a, b: "),
        ([*"abcdefghij"], [], False, "ReservedNotAllowed", "g, h and 2 more: "),
        ([], ["a"], True, "MoreThanReserved", "NodePool a: karpenter.sh/capacity-type allows more"),
    ],
)
def test_the_condition_names_pools_that_leave_reservations_idle(
    without: list[str], beyond: list[str], only: bool, reason: str, words: str
) -> None:
    update = allowed(without, beyond, only=only)
    assert (update.type, update.status, update.reason) == (
        names.RESERVED_ALLOWED,
        "True" if reason == "Allowed" else "False",
        reason,
    )
    assert words in update.message


@pytest.mark.covers("KRP-31")
@pytest.mark.parametrize(
    ("result", "more", "status", "reason", "words"),
    [
        (Advice(form="none"), {}, "True", "NotRequested", "requests no reservation"),
        (Advice(form="open"), {}, "True", "OpenTerm", "every open reservation"),
        (Advice(form="ids"), {"usable": 0}, "True", "NothingToSelect", "no reservation is usable"),
        (Advice(form="ids"), {}, "True", "TermsWritten", "selects 3 reservations by id"),
        (Advice(form="tag"), {}, "True", "TermsWritten", "selects 3 reservations by one tag"),
        (Advice(form="tag"), {"waiting": ["cr-1"]}, "False", "TaggingReservations", "no tag yet on cr-1"),
        (Advice(form="full", left_out=("cr-1",)), {}, "False", "NoRoom", "left for cr-1: remove terms"),
        (
            Advice(form="full", left_out=("cr-1",)),
            {"refused": {"cr-1": "CreateTags: UnauthorizedOperation"}},
            "False",
            "TaggingRefused",
            "left for cr-1; CreateTags: UnauthorizedOperation",
        ),
    ],
)
def test_the_condition_reports_the_written_terms(
    result: Advice, more: dict[str, Any], status: str, reason: str, words: str
) -> None:
    update = advised(result, **{"usable": 3, **more})
    assert (update.type, update.status, update.reason) == (names.RESERVATIONS_ADVISED, status, reason)
    assert words in update.message


@pytest.mark.covers("KRP-31")
def test_a_list_of_another_manager_gets_the_term_as_advice() -> None:
    update = yielded(TAG, "argocd", held=False)
    assert (update.status, update.reason) == ("False", "ListKeptByOthers")
    assert "argocd removed" in update.message and orjson.dumps(TAG).decode() in update.message
    assert yielded(TAG, "argocd", held=True).status == "True"


@pytest.mark.covers("KRP-31")
def test_conditions_are_written_only_on_change_and_removed_when_obsolete() -> None:
    ready = {"type": "Ready", "status": "True", "reason": "Ready", "message": ""}
    node_class = EC2NodeClass.decode({"metadata": {"name": "gpu"}, "status": {"conditions": [ready]}})
    updates = [advised(Advice(form="open"), usable=0)]
    first = conditions_patch(node_class, updates, now=NOW)
    assert first is not None
    assert [c["type"] for c in first["conditions"]] == ["Ready", names.RESERVATIONS_ADVISED]
    then = EC2NodeClass.decode({"metadata": {"name": "gpu"}, "status": first})
    assert conditions_patch(then, updates, now=NOW + timedelta(hours=1)) is None
    last = conditions_patch(then, [], now=NOW)
    assert last is not None and [c["type"] for c in last["conditions"]] == ["Ready"]
    assert conditions_patch(node_class, [], now=NOW) is None


def test_only_karpenters_pools_are_read() -> None:
    going = node_pool()
    going = NodePool.decode(
        {**going.wire(), "metadata": {"name": "p", "deletionTimestamp": "2026-01-01T00:00:00Z"}}
    )
    both = [going, node_pool(group="capacity-broker.io"), node_pool()]
    assert karpenter_pools(both, "gpu") == [node_pool()] and karpenter_pools(both, "web") == []
    assert class_of(node_pool()) == "gpu" and class_of(node_pool(group="capacity-broker.io")) == ""
