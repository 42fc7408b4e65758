"""The broker's writes to classes that Karpenter launches, beside a played Karpenter."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from broker.apis import names
from broker.apis.karpenter import NodePool
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.meta import Json
from broker.controllers.advisor.terms import PATIENCE, load, tag_key
from broker.kube.client import Client
from tests.cluster.account import CLUSTER, B, tags
from tests.cluster.karpenter import (
    LIST,
    NODECLASS_FINALIZER,
    Karpenter,
    conditions,
    ids,
    pool,
    requirements,
    terms,
    until_terms,
)
from tests.cluster.objects import ON_DEMAND, RESERVED
from tests.cluster.stack import Stack
from tests.cluster.taps import writes_of

ADVISED = names.RESERVATIONS_ADVISED
ALLOWED = names.RESERVED_ALLOWED
OPEN = {"instanceMatchCriteria": "open"}
KEY = tag_key(CLUSTER, "gpu")
TAG = {"tags": {KEY: "gpu"}}


def record(stack: Stack, name: str = "gpu") -> str | None:
    return stack.get(EC2NodeClass, name).annotations.get(names.ADVISED)


def tagged(stack: Stack) -> set[str]:
    """The reservations that carry the class's tag, as EC2 shows them."""
    reply = stack.aws.ec2.describe_capacity_reservations()["CapacityReservations"]
    return {odcr["CapacityReservationId"] for odcr in reply if tags(odcr).get(KEY) == "gpu"}


def written(stack: Stack) -> list[tuple[str, str]]:
    """The broker's writes to classes themselves, not to their status."""
    path = EC2NodeClass.KIND.path()
    return [w for w in stack.tap.writes() if w[1].startswith(path) and not w[1].endswith("/status")]


def until_quiet(stack: Stack) -> None:
    """Returns when the broker has described EC2 anew, twice, and processed every class afterwards."""
    stack.polls(2)
    stack.passes()


def listing(user_terms: list[Json]) -> Any:
    """Selector terms that a user wrote, for `Stack.node_class`."""
    return {LIST: user_terms}


# ---- the term for each reservation


@pytest.mark.covers("KRP-31")
def test_an_id_becomes_a_term_once_a_pool_of_karpenter_s_uses_the_class(stack: Stack) -> None:
    odcr = stack.aws.odcr()
    stack.start()
    stack.node_class(id_=odcr)
    stack.node_pool("ours")
    until_quiet(stack)
    assert terms(stack) == [] and record(stack) is None
    pool(stack)
    until_terms(stack, {"id": odcr})
    assert stack.until_class(ADVISED, "True", reason="TermsWritten").message.endswith(
        "Karpenter selects 1 reservation by id"
    )


@pytest.mark.covers("KRP-31")
def test_the_terms_follow_the_members_of_a_group(stack: Stack) -> None:
    first, second = stack.aws.odcr(), stack.aws.odcr("m5.xlarge", B)
    group = stack.aws.group(first)
    stack.start()
    stack.node_class(group=group)
    pool(stack)
    until_terms(stack, {"id": first})
    stack.aws.join("team", second)
    until_terms(stack, *ids(first, second))
    stack.aws.ec2.cancel_capacity_reservation(CapacityReservationId=first)
    until_terms(stack, {"id": second})
    stack.aws.ec2.cancel_capacity_reservation(CapacityReservationId=second)
    until_terms(stack)
    stack.until_class(ADVISED, "True", reason="NothingToSelect")


@pytest.mark.covers("KRP-31")
@pytest.mark.parametrize("preference", ["open", "capacity-reservations-only"])
def test_open_becomes_the_term_for_open_reservations(stack: Stack, preference: str) -> None:
    stack.start()
    stack.node_class(preference=preference)
    pool(stack, capacity=(RESERVED,))
    until_terms(stack, OPEN)
    stack.until_class(ADVISED, "True", reason="OpenTerm")


@pytest.mark.covers("KRP-31")
def test_none_takes_the_broker_s_terms_away_and_leaves_the_user_s(stack: Stack) -> None:
    odcr, other = stack.aws.odcr(), stack.aws.odcr("c5.large")
    stack.start()
    stack.node_class(id_=odcr, **listing([{"id": other}]))
    pool(stack)
    until_terms(stack, {"id": other}, {"id": odcr})
    none = {"capacityReservationTarget": None, "capacityReservationPreference": "none"}
    stack.edit(EC2NodeClass, "gpu", {"spec": {"capacityReservationSpec": none}})
    until_terms(stack, {"id": other})
    stack.until_class(ADVISED, "True", reason="NotRequested")


@pytest.mark.covers("KRP-31")
def test_a_spec_that_is_removed_takes_terms_record_and_conditions_with_it(stack: Stack) -> None:
    odcr = stack.aws.odcr()
    stack.start()
    stack.node_class(id_=odcr)
    pool(stack)
    until_terms(stack, {"id": odcr})
    stack.until_class(ADVISED, "True")
    stack.edit(EC2NodeClass, "gpu", {"spec": {"capacityReservationSpec": None}})
    stack.until(lambda: stack.class_condition(ADVISED) is None, "the condition is gone")
    assert LIST not in stack.client.get(EC2NodeClass.KIND, "gpu")["spec"]
    assert record(stack) is None and stack.class_condition(ALLOWED) is None


# ---- the owners of terms


@pytest.mark.covers("KRP-31")
def test_a_user_s_terms_stay_in_their_place_and_are_not_repeated(stack: Stack) -> None:
    first, second = stack.aws.odcr(), stack.aws.odcr("m5.xlarge", B)
    user_terms: list[Json] = [{"tags": {"team": "a"}}, {"id": second}]
    stack.start()
    stack.node_class(group=stack.aws.group(first, second), **listing(user_terms))
    pool(stack)
    until_terms(stack, *user_terms, {"id": first})
    own = load(record(stack))
    assert own is not None and own.terms == ({"id": first},)
    stack.edit(EC2NodeClass, "gpu", {"spec": {LIST: [{"id": first}]}})
    until_terms(stack, *ids(first, second))


@pytest.mark.covers("KRP-31")
def test_a_broker_that_starts_anew_knows_its_own_terms(stack: Stack) -> None:
    first, second = stack.aws.odcr(), stack.aws.odcr("m5.xlarge", B)
    stack.start()
    stack.node_class(id_=first, **listing([{"tags": {"team": "a"}}]))
    pool(stack)
    until_terms(stack, {"tags": {"team": "a"}}, {"id": first})
    stack.stop()
    target = {"capacityReservationTarget": {"capacityReservationId": second}}
    stack.edit(EC2NodeClass, "gpu", {"spec": {"capacityReservationSpec": target}})
    stack.start()
    until_terms(stack, {"tags": {"team": "a"}}, {"id": second})


@pytest.mark.covers("KRP-31")
def test_terms_never_overwrite_a_concurrent_write(stack: Stack) -> None:
    odcr = stack.aws.odcr()
    stack.start()
    stack.node_class(id_=odcr)
    stack.until_class(names.RESERVATIONS_RESOLVED, "True")
    karpenter, user_term = Karpenter(stack), {"tags": {"team": "a"}}

    def meanwhile(_: object) -> None:
        stack.edit(EC2NodeClass, "gpu", {"spec": {LIST: [user_term]}})
        karpenter.reconcile()

    stack.tap.on(writes_of("ec2nodeclasses", "gpu"), meanwhile)
    pool(stack)
    until_terms(stack, user_term, {"id": odcr})
    assert stack.get(EC2NodeClass, "gpu").metadata.finalizers == (NODECLASS_FINALIZER,)
    assert {*Karpenter.CONDITIONS} <= {*conditions(stack)}


@pytest.mark.covers("KRP-31")
def test_list_that_a_user_keeps_applying_is_left_alone_and_the_tag_term_is_reported(stack: Stack) -> None:
    odcr = stack.aws.odcr()
    stack.start()
    stack.node_class(id_=odcr)
    pool(stack)
    until_terms(stack, {"id": odcr})
    stack.tap.forget()
    user_term = {"tags": {"team": "a"}}
    gitops = GitOps(stack)
    for _ in range(PATIENCE - 1):
        gitops.apply(user_term)
        until_terms(stack, user_term, {"id": odcr})
    gitops.apply(user_term)
    condition = stack.until_class(ADVISED, "False", reason="ListKeptByOthers")
    assert "argocd" in condition.message and f'{{"tags":{{"{KEY}":"gpu"}}}}' in condition.message
    stack.until_event("gpu", "ListKeptByOthers", kind="EC2NodeClass")
    stack.until(lambda: tagged(stack) == {odcr}, "the reservation carries the tag that is offered")

    stack.tap.forget()
    gitops.apply(user_term)
    stack.stop()
    stack.start()
    gitops.apply(user_term)
    until_quiet(stack)
    assert written(stack) == [] and terms(stack) == [user_term]

    gitops.apply(user_term, TAG)
    stack.until_class(ADVISED, "True", reason="TermsHeld")
    assert terms(stack) == [user_term, TAG] and tagged(stack) == {odcr}


@pytest.mark.covers("KRP-31")
@pytest.mark.both_servers
def test_broker_writes_again_once_the_list_is_given_back(stack: Stack) -> None:
    odcr = stack.aws.odcr()
    stack.start()
    stack.node_class(id_=odcr)
    pool(stack)
    for _ in range(PATIENCE):
        until_terms(stack, {"id": odcr})
        stack.edit(EC2NodeClass, "gpu", {"spec": {LIST: None}})
    stack.until_class(ADVISED, "False", reason="ListKeptByOthers")
    stack.edit(EC2NodeClass, "gpu", {"metadata": {"annotations": {names.ADVISED: "{}"}}})
    until_terms(stack, {"id": odcr})
    stack.until_class(ADVISED, "True", reason="TermsWritten")


@pytest.mark.covers("KRP-31")
def test_replacement_of_the_whole_object_is_not_reverted_either(stack: Stack) -> None:
    odcr = stack.aws.odcr()
    stack.start()
    stack.node_class(id_=odcr)
    pool(stack)
    for _ in range(PATIENCE):
        until_terms(stack, {"id": odcr})
        stack.edit(
            EC2NodeClass, "gpu", {"metadata": {"annotations": {names.ADVISED: None}}, "spec": {LIST: None}}
        )
    stack.until_class(ADVISED, "False", reason="ListKeptByOthers")
    stack.tap.forget()
    stack.edit(EC2NodeClass, "gpu", {"metadata": {"annotations": {names.ADVISED: None}}})
    until_quiet(stack)
    assert written(stack) == [] and terms(stack) == []


class GitOps:
    """Applies the class's list from a manifest, over whatever is there."""

    def __init__(self, stack: Stack) -> None:
        self.client = Client(stack.client.transport, field_manager="argocd")

    def apply(self, *listed: Json) -> None:
        body: Json = {"metadata": {"name": "gpu"}, "spec": {LIST: [*listed]}}
        self.client.apply(EC2NodeClass.KIND, body)


# ---- more than the list holds


@pytest.mark.covers("KRP-31")
def test_more_than_30_are_selected_by_one_tag_until_they_are_fewer(stack: Stack) -> None:
    odcrs = [stack.aws.odcr("m5.large", B) for _ in range(31)]
    stack.start()
    stack.node_class(group=stack.aws.group(*odcrs))
    pool(stack)
    until_terms(stack, TAG)
    assert tagged(stack) == {*odcrs}
    assert stack.calls("CreateTags") == 1
    stack.until_class(ADVISED, "True", reason="TermsWritten")
    stack.aws.ec2.cancel_capacity_reservation(CapacityReservationId=odcrs[0])
    until_terms(stack, *ids(*odcrs[1:]))
    stack.until(lambda: tagged(stack) == set(), "the tag is taken off")


@pytest.mark.covers("KRP-31")
def test_the_tag_term_is_written_only_when_ec2_shows_the_tag_on_all(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    user_terms = [{"tags": {"team": f"t-{n}"}} for n in range(29)]
    first, second = stack.aws.odcr(), stack.aws.odcr("m5.xlarge", B)
    group = stack.aws.group(first)
    stack.start()
    stack.node_class(group=group, **listing(user_terms))
    pool(stack)
    until_terms(stack, *user_terms, {"id": first})
    assert stack.current is not None
    shown = stack.current.reservations
    with monkeypatch.context() as patched:
        patched.setattr(stack.current, "reservations", lambda: [replace(odcr, tags={}) for odcr in shown()])
        stack.aws.join("team", second)
        stack.until(lambda: stack.calls("CreateTags") > 0, "the tag is requested")
        stack.until_class(ADVISED, "False", reason="TaggingReservations")
        until_quiet(stack)
        assert terms(stack) == [*user_terms, {"id": first}]
    until_terms(stack, *user_terms, TAG)


@pytest.mark.covers("KRP-31")
def test_forbidden_tag_is_reported_and_takes_nothing_away(stack: Stack) -> None:
    user_terms = [{"tags": {"team": f"t-{n}"}} for n in range(29)]
    odcrs = [stack.aws.odcr(), stack.aws.odcr("m5.xlarge", B)]
    stack.control.fault(action="CreateTags", code="UnauthorizedOperation", status=403, times=-1)
    stack.start()
    stack.node_class(group=stack.aws.group(*odcrs), **listing(user_terms))
    pool(stack)
    condition = stack.until_class(ADVISED, "False", reason="TaggingRefused")
    assert "UnauthorizedOperation" in condition.message and max(odcrs) in condition.message
    assert terms(stack) == [*user_terms, {"id": min(odcrs)}]


@pytest.mark.covers("KRP-31")
def test_full_list_of_user_terms_is_reported(stack: Stack) -> None:
    user_terms = [{"tags": {"team": f"t-{n}"}} for n in range(30)]
    odcr = stack.aws.odcr()
    stack.start()
    stack.node_class(id_=odcr, **listing(user_terms))
    pool(stack)
    assert odcr in stack.until_class(ADVISED, "False", reason="NoRoom").message
    assert terms(stack) == user_terms and tagged(stack) == set()


@pytest.mark.covers("KRP-31")
def test_the_tags_of_a_deleted_class_are_taken_off_also_after_a_restart(stack: Stack) -> None:
    odcrs = [stack.aws.odcr("m5.large", B) for _ in range(31)]
    stack.start()
    stack.node_class(group=stack.aws.group(*odcrs))
    pool(stack)
    until_terms(stack, TAG)
    stack.aws.ec2.create_tags(Resources=odcrs[:1], Tags=[{"Key": "team", "Value": "a"}])
    stack.stop()
    stack.delete(EC2NodeClass, "gpu")
    stack.start()
    stack.until(lambda: tagged(stack) == set(), "the tag is taken off")
    assert tags(stack.aws.reservation(odcrs[0])) == {"team": "a"}


# ---- unwanted terms


@pytest.mark.covers("KRP-31")
def test_terms_stay_while_the_group_cannot_be_read(stack: Stack) -> None:
    odcr = stack.aws.odcr()
    stack.start()
    stack.node_class(group=stack.aws.group(odcr))
    pool(stack)
    until_terms(stack, {"id": odcr})
    stack.stop()
    stack.control.fault(action="ListGroupResources", code="ThrottlingException", status=429, times=-1)
    stack.start()
    stack.until_class(ADVISED, "Unknown", reason="GroupUnreadable")
    assert terms(stack) == [{"id": odcr}]
    stack.control.clear_faults()
    stack.until_class(ADVISED, "True", reason="TermsWritten")


@pytest.mark.covers("KRP-31")
def test_a_class_that_only_karpenter_can_launch_is_advised_all_the_same(stack: Stack) -> None:
    odcr = stack.aws.odcr()
    stack.start()
    stack.node_class(id_=odcr, amiFamily="AL2")
    pool(stack)
    until_terms(stack, {"id": odcr})
    stack.until_class(names.RESERVATIONS_RESOLVED, "True", reason="ReservationsFound")
    stack.until_class(names.LAUNCHABLE, "False", reason="FieldNotSupported")


@pytest.mark.covers("KRP-31")
@pytest.mark.parametrize(
    ("family", "platform"), [("AL2", "Linux/UNIX"), ("Windows2022", "Windows")], ids=["al2", "windows2022"]
)
def test_class_with_unknown_images_is_advised_all_the_same(stack: Stack, family: str, platform: str) -> None:
    fitting = stack.aws.odcr(platform=platform)
    other = stack.aws.odcr(platform="Windows" if platform == "Linux/UNIX" else "Linux/UNIX")
    stack.start()
    group = stack.aws.group(fitting, other)
    alias = {"alias": f"{family.lower()}@latest"}
    stack.node_class(group=group, amiFamily=family, amiSelectorTerms=[alias])
    pool(stack)
    until_terms(stack, {"id": fitting})
    stack.until_class(names.LAUNCHABLE, "False")


@pytest.mark.covers("KRP-31")
def test_class_with_an_unreadable_profile_is_advised_all_the_same(stack: Stack) -> None:
    odcr = stack.aws.odcr()
    stack.control.fault(action="ListInstanceProfilesForRole", code="AccessDenied", status=403, times=-1)
    stack.start()
    stack.node_class(id_=odcr, role="node", instanceProfile=None)
    pool(stack)
    until_terms(stack, {"id": odcr})
    stack.until_class(names.LAUNCHABLE, "False")


@pytest.mark.covers("KRP-31")
def test_a_steady_class_is_written_no_more(stack: Stack) -> None:
    odcr = stack.aws.odcr()
    stack.start()
    stack.node_class(id_=odcr)
    pool(stack)
    until_terms(stack, {"id": odcr})
    stack.until_class(ADVISED, "True")
    until_quiet(stack)
    stack.tap.forget()
    for reason in ("Resolved", "Again"):
        Karpenter(stack).reconcile(listed=(entry(odcr),), reason=reason)
        until_quiet(stack)
    path = EC2NodeClass.KIND.path()
    # If Karpenter keeps the list itself, the message names the slots once.
    assert [w for w in stack.tap.writes() if w[1].startswith(path)] in (
        [],
        [("PATCH", EC2NodeClass.KIND.path(name="gpu", subresource="status"))],
    )
    assert conditions(stack)["AMIsReady"]["reason"] == "Again"


@pytest.mark.covers("KRP-31")
def test_disabled_advice_writes_no_class(stack: Stack) -> None:
    odcr = stack.aws.odcr()
    stack.start(advise=False)
    stack.node_class(id_=odcr)
    pool(stack)
    stack.until_class(names.RESERVATIONS_RESOLVED, "True")
    until_quiet(stack)
    assert written(stack) == [] and stack.class_condition(ADVISED) is None


# ---- the class's status


def entry(odcr: str) -> Json:
    """A row of Karpenter's own."""
    return {
        "id": odcr,
        "availabilityZone": "us-east-1a",
        "instanceType": "m5.large",
        "instanceMatchCriteria": "targeted",
        "ownerID": "123456789012",
    }


@pytest.mark.covers("KRP-09")
def test_a_list_that_karpenter_keeps_is_left_to_it_and_the_message_has_the_slots(stack: Stack) -> None:
    odcr, other = stack.aws.odcr(count=3), stack.aws.odcr("c5.large")
    stack.node_class(id_=odcr)
    karpenter = Karpenter(stack)
    karpenter.reconcile(listed=(entry(other),))
    stack.start()
    pool(stack)
    until_terms(stack, {"id": odcr})
    karpenter.reconcile(listed=(entry(other), entry(odcr)))
    until_quiet(stack)
    status: Any = stack.client.get(EC2NodeClass.KIND, "gpu")["status"]
    assert [row["id"] for row in status["capacityReservations"]] == [other, odcr]
    condition = stack.until_class(names.RESERVATIONS_RESOLVED, "True", reason="ReservationsFound")
    assert f"{odcr} m5.large us-east-1a 3/3" in condition.message
    stack.aws.rival(odcr)
    stack.until(
        lambda: (
            f"{odcr} m5.large us-east-1a 2/3" in (stack.class_condition(condition.type) or condition).message
        ),
        "the slots are reported anew",
    )
    assert {*Karpenter.CONDITIONS} <= {*conditions(stack)}


@pytest.mark.covers("KRP-32")
def test_pools_that_do_not_allow_reserved_are_named(stack: Stack) -> None:
    odcr = stack.aws.odcr()
    stack.start()
    stack.node_class(id_=odcr)
    pool(stack, "good")
    pool(stack, "silent", capacity=())
    pool(stack, "worse", capacity=(ON_DEMAND,))
    pool(stack, "worst", capacity=("spot",))
    pool(stack, "other", node_class="other", capacity=("spot",))
    stack.until(
        lambda: "NodePools worse, worst:" in getattr(stack.class_condition(ALLOWED), "message", ""),
        "both are named",
    )
    stack.until_class(ALLOWED, "False", reason="ReservedNotAllowed")
    for name in ("worse", "worst"):
        template = {"spec": {"requirements": requirements(RESERVED)}}
        stack.edit(NodePool, name, {"spec": {"template": template}})
    stack.until_class(ALLOWED, "True", reason="Allowed")


@pytest.mark.covers("KRP-32")
def test_a_pool_that_may_leave_the_reservations_is_named_where_the_class_excludes_it(stack: Stack) -> None:
    stack.start()
    stack.node_class(preference="capacity-reservations-only")
    pool(stack)
    assert "NodePool gpu" in stack.until_class(ALLOWED, "False", reason="MoreThanReserved").message
