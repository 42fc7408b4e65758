"""Selector terms as values: their owner, the wanted terms, and the end of the broker's control."""

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
from broker.controllers.advisor.pools import beyond_reserved, class_of, of_karpenter, without_reserved
from broker.controllers.advisor.terms import (
    FORGOTTEN,
    MOST,
    OPEN,
    PATIENCE,
    TAG_KEY,
    Advice,
    Record,
    Term,
    advise,
    asked,
    load,
    noticed,
    same,
    split,
    tag_key,
    tag_prefix,
    tag_term,
    written,
)
from broker.kube.conditions import timestamp
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


def found(own: int, foreign: int = 0) -> Resolved:
    return Resolved(
        usable=tuple(odcr(n) for n in range(own)) + tuple(odcr(n + 500, OTHER) for n in range(foreign))
    )


def users(count: int) -> list[Term]:
    return [{"tags": {"team": f"t-{n}"}} for n in range(count)]


def advice(spec: CapacityReservationSpec | None, what: Resolved, theirs: list[Term], **more: Any) -> Any:
    return advise(spec, what, theirs, tag=TAG, account_id=ACCOUNT, **more)


@pytest.mark.covers("KRP-31")
@pytest.mark.parametrize(
    ("own", "foreign", "theirs", "form", "by_tag", "by_id", "left_out"),
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
def test_ids_while_they_fit_else_one_tag_and_the_ids_of_other_accounts(
    own: int, foreign: int, theirs: int, form: str, by_tag: int, by_id: int, left_out: int
) -> None:
    made = advice(GROUP, found(own, foreign), users(theirs))
    assert made.form == form
    assert len(made.by_tag) == by_tag
    assert len([term for term in made.terms if "id" in term]) == by_id
    assert len(made.left_out) == left_out
    assert (TAG in made.terms) is (form == "tag")


@pytest.mark.covers("KRP-31")
@pytest.mark.parametrize(
    ("spec", "theirs", "terms"),
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
def test_the_terms_of_each_spec(spec: CapacityReservationSpec | None, theirs: list[Term], terms: Any) -> None:
    assert advice(spec, found(2), theirs).terms == terms


@pytest.mark.covers("KRP-31")
def test_a_list_that_is_full_has_no_room_for_the_open_term() -> None:
    made = advice(preference("open"), found(2), users(MOST))
    assert (made.form, made.terms, made.left_out) == ("open", (), ("open",))
    made = advice(preference("open"), found(2), users(MOST - 1))
    assert (made.form, made.terms, made.left_out) == ("open", (OPEN,), ())


def test_what_starts_soon_and_what_karpenter_drains_itself_stay_selected() -> None:
    ending = Misfit(id="cr-777", reason="CapacityBlockEnding", message="")
    gone = Misfit(id="cr-888", reason="ReservationExpired", message="")
    what = Resolved(usable=(odcr(1),), pending=(odcr(2),), misfits=(ending, gone))
    assert [term["id"] for term in advice(GROUP, what, []).terms] == ["cr-001", "cr-002", "cr-777"]


def test_those_that_cannot_be_tagged_are_given_by_id() -> None:
    made = advice(GROUP, found(31), [], untaggable={"cr-004"})
    assert made.terms == (TAG, {"id": "cr-004"}) and len(made.by_tag) == 30


TERMS = st.lists(st.sampled_from([*({"id": f"cr-{n:03}"} for n in range(6)), *users(4), OPEN]), max_size=12)


@pytest.mark.covers("KRP-31")
@given(theirs=TERMS, count=st.integers(0, 40), foreign=st.integers(0, 40), before=st.integers(0, 40))
def test_users_terms_always_stay_and_ours_are_always_known(
    theirs: list[Term], count: int, foreign: int, before: int
) -> None:
    """Whatever the set was and becomes, the list holds a user's entries and the record's, 30 at most."""
    record, listed = Record(), theirs
    for what in (found(before), found(count, foreign), Resolved()):
        mine, gone = split(listed, record)
        assert mine == theirs and gone == []
        made = advice(GROUP, what, mine)
        listed = [*mine, *made.terms]
        record = load(written(Record(asked=ARN), made.terms).dump()) or Record()
        assert len(listed) <= MOST
        assert listed[: len(theirs)] == theirs
        assert not [term for term in made.terms if term in theirs]
        covered = {term.get("id") for term in listed} | {*made.by_tag} | {*made.left_out}
        assert {o.id for o in what.usable} <= covered
    assert same(listed, theirs)


def test_a_term_of_ours_that_a_user_repeats_is_the_user_s_from_then_on() -> None:
    record = Record(terms=({"id": "cr-000"},), asked=ARN)
    mine, gone = split([{"id": "cr-000"}, {"id": "cr-000"}], record)
    assert mine == [{"id": "cr-000"}] and gone == []
    assert advice(GROUP, found(1), mine).terms == ()


@pytest.mark.covers("KRP-31")
def test_removals_are_counted_only_near_each_other_and_for_one_ask() -> None:
    term: Term = {"id": "cr-000"}
    record = Record(terms=(term,), asked="a", at=timestamp(NOW))
    for count in range(1, PATIENCE + 1):
        record = noticed(record, [term], asked_for="a", now=NOW)
        assert record.removed == count
    assert record.yielded
    assert noticed(record, [term], asked_for="a", now=NOW) == record
    assert not noticed(record, [term], asked_for="b", now=NOW).yielded
    once = Record(terms=(term,), asked="a", removed=2, at=timestamp(NOW))
    assert noticed(once, [term], asked_for="a", now=NOW + FORGOTTEN + timedelta(seconds=1)).removed == 1
    assert noticed(once, [], asked_for="a", now=NOW) == once


@pytest.mark.parametrize("text", [None, "", "{", "[]", '{"terms": 3}', '{"terms": ["x"]}', '"x"', "null"])
def test_a_record_that_cannot_be_read_is_none(text: str | None) -> None:
    assert load(text) is None


def test_an_empty_record_is_a_record() -> None:
    assert load("{}") == Record()


@pytest.mark.covers("KRP-31")
def test_what_a_record_says_is_read_back_by_any_broker() -> None:
    whole = Record(terms=({"id": "cr-1"},), asked=ARN, removed=2, by="argocd", at=timestamp(NOW))
    assert load(whole.dump()) == whole
    assert written(whole, []) == replace(whole, terms=())  # the removing manager is kept
    assert written(replace(whole, removed=0), []) == Record()


@pytest.mark.covers("KRP-31")
def test_what_somebody_removed_is_noticed() -> None:
    record = Record(terms=({"id": "cr-1"}, {"id": "cr-2"}), asked=ARN)
    assert split([*users(1), {"id": "cr-2"}], record) == (users(1), [{"id": "cr-1"}])


@given(st.text("abc-", min_size=1, max_size=100), st.text("abc-.", min_size=1, max_size=253))
@example("c" * 100, "x" * 252)
def test_a_tag_fits_ec2_and_begins_as_its_cluster_s_do(cluster: str, node_class: str) -> None:
    key = tag_key(cluster, node_class)
    assert len(key) <= TAG_KEY and key.startswith(tag_prefix(cluster))
    assert tag_key(cluster, node_class + "x") != key


@pytest.mark.covers("KRP-31")
def test_the_tag_of_a_class_names_it() -> None:
    assert tag_term("blue", "gpu") == {"tags": {f"{names.TAG_ADVISED}/blue/gpu": "gpu"}}


@pytest.mark.covers("KRP-31")
def test_a_record_names_what_was_asked_for() -> None:
    by_id = CapacityReservationSpec(
        capacity_reservation_target=CapacityReservationTarget(capacity_reservation_id="cr-1")
    )
    assert [*map(asked, (preference("None"), by_id, GROUP))] == ["none", "cr-1", ARN]


def node_pool(*requirements: dict[str, Any], group: str = "karpenter.k8s.aws", **labels: str) -> NodePool:
    template = {
        "metadata": {"labels": labels},
        "spec": {
            "nodeClassRef": {"group": group, "kind": "EC2NodeClass", "name": "gpu"},
            "requirements": [{"key": "karpenter.sh/capacity-type", **each} for each in requirements],
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
def test_a_class_is_told_which_pools_leave_its_reservations_idle(
    without: list[str], beyond: list[str], only: bool, reason: str, words: str
) -> None:
    said = allowed(without, beyond, only=only)
    assert (said.type, said.status, said.reason) == (
        names.RESERVED_ALLOWED,
        "True" if reason == "Allowed" else "False",
        reason,
    )
    assert words in said.message


@pytest.mark.covers("KRP-31")
@pytest.mark.parametrize(
    ("made", "more", "status", "reason", "words"),
    [
        (Advice(form="none"), {}, "True", "NotRequested", "asks for no reservation"),
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
def test_what_became_of_the_terms_is_said(
    made: Advice, more: dict[str, Any], status: str, reason: str, words: str
) -> None:
    said = advised(made, **{"usable": 3, **more})
    assert (said.type, said.status, said.reason) == (names.RESERVATIONS_ADVISED, status, reason)
    assert words in said.message


@pytest.mark.covers("KRP-31")
def test_a_list_that_others_keep_is_offered_the_term() -> None:
    said = yielded(TAG, "argocd", held=False)
    assert (said.status, said.reason) == ("False", "ListKeptByOthers")
    assert "argocd removed" in said.message and orjson.dumps(TAG).decode() in said.message
    assert yielded(TAG, "argocd", held=True).status == "True"


@pytest.mark.covers("KRP-31")
def test_conditions_are_written_when_they_change_and_go_when_nothing_is_to_be_said() -> None:
    theirs = {"type": "Ready", "status": "True", "reason": "Ready", "message": ""}
    node_class = EC2NodeClass.decode({"metadata": {"name": "gpu"}, "status": {"conditions": [theirs]}})
    told = [advised(Advice(form="open"), usable=0)]
    first = conditions_patch(node_class, told, now=NOW)
    assert first is not None
    assert [c["type"] for c in first["conditions"]] == ["Ready", names.RESERVATIONS_ADVISED]
    then = EC2NodeClass.decode({"metadata": {"name": "gpu"}, "status": first})
    assert conditions_patch(then, told, now=NOW + timedelta(hours=1)) is None
    last = conditions_patch(then, [], now=NOW)
    assert last is not None and [c["type"] for c in last["conditions"]] == ["Ready"]
    assert conditions_patch(node_class, [], now=NOW) is None


def test_only_karpenter_s_pools_are_looked_at() -> None:
    going = node_pool()
    going = NodePool.decode(
        {**going.wire(), "metadata": {"name": "p", "deletionTimestamp": "2026-01-01T00:00:00Z"}}
    )
    both = [going, node_pool(group="capacity-broker.io"), node_pool()]
    assert of_karpenter(both, "gpu") == [node_pool()] and of_karpenter(both, "web") == []
    assert class_of(node_pool()) == "gpu" and class_of(node_pool(group="capacity-broker.io")) == ""
