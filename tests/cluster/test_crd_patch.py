"""Karpenter's own definition of EC2NodeClass: the property is added, lost by an upgrade, and restored; no
user's value is lost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from broker.apis import names
from broker.apis.crds import KIND as CRD
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.karpenter_aws_accepted import load
from broker.apis.karpenter_aws_definition import NAME, PROPERTY
from broker.apis.meta import Json
from broker.commands.crds.install import complete, patch
from broker.controllers.advisor.definition import PATIENCE
from broker.kube.client import Client, Request
from broker.kube.errors import Conflict
from broker.oncall.metrics import REGISTRY
from tests.cluster.karpenter import (
    apply_definition,
    installed,
    pool,
    served,
    shipped_definition,
    terms,
    until_terms,
)
from tests.cluster.stack import Stack
from tests.cluster.taps import writes_of

SERVED = names.SPEC_SERVED


@pytest.fixture(autouse=True)
def definition(stack: Stack) -> Iterator[None]:
    """Karpenter's definition is installed, without the property."""
    with installed(stack):
        yield


def add_property(stack: Stack) -> None:
    patch(stack.client)
    stack.until(lambda: served(stack), "the property is served")


def upgrade(stack: Stack) -> None:
    """A chart of Karpenter's applies its definition again."""
    apply_definition(stack, shipped_definition())


def field(stack: Stack, name: str = "gpu") -> Json | None:
    spec: Json = stack.client.get(EC2NodeClass.KIND, name)["spec"]
    return spec.get(PROPERTY)


def by_id(odcr: str) -> Json:
    return {"capacityReservationTarget": {"capacityReservationId": odcr}}


def touch(stack: Stack, name: str = "gpu") -> None:
    """A write by any user: the API server then stores only the fields that the present definition knows."""
    stack.edit(EC2NodeClass, name, {"metadata": {"labels": {"team": "a"}}})


def until_copied(stack: Stack, spec: Json, name: str = "gpu") -> None:
    """Returns when the copy names the present definition."""
    meta = stack.client.get(CRD, NAME)["metadata"]

    def copied() -> bool:
        copy = load(stack.get(EC2NodeClass, name).annotations.get(names.ACCEPTED_SPEC))
        if copy is None or copy.spec.wire() != spec:
            return False
        return copy.definition == f"{meta['uid']}/{meta['generation']}"

    stack.until(copied, "the spec is copied", step=1.0)


def missing() -> float:
    return REGISTRY.get_sample_value("capacity_broker_definition_missing") or 0.0


@pytest.mark.covers("KRP-03")
def test_one_command_adds_the_property_and_touches_nothing_else(stack: Stack) -> None:
    before = stack.client.get(CRD, NAME)["spec"]
    assert patch(stack.client, check=True) == [{"version": "v1", "property": "missing"}]
    assert not complete(patch(stack.client, check=True))
    assert stack.client.get(CRD, NAME)["spec"] == before
    assert patch(stack.client) == [{"version": "v1", "property": "added"}]
    after = stack.client.get(CRD, NAME)["spec"]
    for version in after["versions"]:
        del version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"][PROPERTY]
    assert after == before
    version = stack.client.get(CRD, NAME)["metadata"]["resourceVersion"]
    assert patch(stack.client) == [{"version": "v1", "property": "there"}]
    assert complete(patch(stack.client, check=True))
    assert stack.client.get(CRD, NAME)["metadata"]["resourceVersion"] == version
    stack.until(lambda: served(stack), "the property is served")


@pytest.mark.covers("KRP-03")
@pytest.mark.both_servers
def test_a_definition_that_changed_meanwhile_is_read_again(stack: Stack) -> None:
    client = Client(stack.tap)

    def meanwhile(_: object) -> None:
        stack.client.patch(CRD, NAME, {"spec": {"names": {"shortNames": ["ec2nc"]}}})

    stack.tap.on(writes_of("customresourcedefinitions", NAME), meanwhile)
    assert patch(client) == [{"version": "v1", "property": "added"}]
    stored = stack.client.get(CRD, NAME)
    assert stored["spec"]["names"]["shortNames"] == ["ec2nc"]
    assert complete(patch(client, check=True))


@pytest.mark.covers("KRP-03")
def test_older_property_is_reported_and_replaced(stack: Stack) -> None:
    old = shipped_definition()
    schema = old["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    schema[PROPERTY] = {"type": "object", "properties": {"capacityReservationPreference": {"type": "string"}}}
    apply_definition(stack, old)
    assert patch(stack.client, check=True) == [{"version": "v1", "property": "outdated"}]
    assert patch(stack.client) == [{"version": "v1", "property": "updated"}]
    assert complete(patch(stack.client, check=True))


@pytest.mark.covers("KRP-03")
def test_the_annotation_is_read_where_the_definition_may_not_be_changed(stack: Stack) -> None:
    odcr = stack.aws.odcr()
    stack.start()
    text = f'{{"capacityReservationTarget": {{"capacityReservationId": "{odcr}"}}}}'
    stack.node_class(annotations={names.RESERVATION_SPEC: text})
    pool(stack)
    until_terms(stack, {"id": odcr})
    stack.until(lambda: missing() == 1.0, "the missing property is counted")
    assert field(stack) is None


@pytest.mark.covers("KRP-03")
def test_the_broker_goes_on_with_its_copy_and_writes_it_back(stack: Stack) -> None:
    first, second = stack.aws.odcr(), stack.aws.odcr("m5.xlarge")
    group = stack.aws.group(first)
    spec = {"capacityReservationTarget": {"capacityReservationResourceGroupArn": group}}
    add_property(stack)
    stack.start()
    stack.node_class(group=group)
    pool(stack)
    until_terms(stack, {"id": first})
    until_copied(stack, spec)

    upgrade(stack)
    touch(stack)
    assert field(stack) is None
    condition = stack.until_class(SERVED, "False", reason="PropertyMissing")
    assert "crds patch" in condition.message
    stack.until(lambda: missing() == 1.0, "the missing property is counted")
    stack.aws.join("team", second)
    stack.until(lambda: len(terms(stack)) == 2, "the group is still followed")

    add_property(stack)
    stack.until(lambda: field(stack) == spec, "the value is back in its field", step=1.0)
    until_copied(stack, spec)
    stack.until(lambda: stack.class_condition(SERVED) is None, "nothing is missing any more")
    stack.until_event("gpu", "SpecRestored", kind="EC2NodeClass")
    stack.until(lambda: missing() == 0.0, "no property is counted as missing")


@pytest.mark.covers("KRP-03")
def test_a_field_that_the_user_removed_stays_removed(stack: Stack) -> None:
    odcr = stack.aws.odcr()
    add_property(stack)
    stack.start()
    stack.node_class(id_=odcr)
    pool(stack)
    until_copied(stack, by_id(odcr))
    until_terms(stack, {"id": odcr})
    stack.edit(EC2NodeClass, "gpu", {"spec": {PROPERTY: None}})
    stack.until(
        lambda: names.ACCEPTED_SPEC not in stack.get(EC2NodeClass, "gpu").annotations,
        "the copy goes as well",
        step=1.0,
    )
    until_terms(stack)
    upgrade(stack)
    add_property(stack)
    stack.advance(60)
    stack.polls(2)
    stack.passes()
    assert field(stack) is None and terms(stack) == []


@pytest.mark.covers("KRP-03")
def test_a_value_that_was_written_back_is_still_its_user_s_to_remove(stack: Stack) -> None:
    odcr = stack.aws.odcr()
    add_property(stack)
    stack.start()
    stack.node_class(id_=odcr)
    stack.edit(EC2NodeClass, "gpu", {"spec": {PROPERTY: None}})
    argocd = Client(stack.client.transport, field_manager="argocd")
    manifest: Json = {"metadata": {"name": "gpu"}, "spec": {PROPERTY: by_id(odcr)}}
    argocd.apply(EC2NodeClass.KIND, manifest)
    until_copied(stack, by_id(odcr))
    upgrade(stack)
    touch(stack)
    add_property(stack)
    stack.until(lambda: field(stack) == by_id(odcr), "the value is back in its field", step=1.0)
    until_copied(stack, by_id(odcr))
    argocd.apply(EC2NodeClass.KIND, manifest)
    argocd.apply(EC2NodeClass.KIND, {**manifest, "spec": {}})
    stack.until(
        lambda: names.ACCEPTED_SPEC not in stack.get(EC2NodeClass, "gpu").annotations,
        "the copy goes as well",
        step=1.0,
    )
    assert field(stack) is None


@pytest.mark.covers("KRP-03")
@pytest.mark.both_servers
def test_a_conflict_while_ownership_is_given_up_leaves_the_value_to_its_user(stack: Stack) -> None:
    odcr = stack.aws.odcr()
    add_property(stack)
    stack.start()
    argocd = Client(stack.client.transport, field_manager="argocd")
    stack.node_class(id_=odcr)
    stack.edit(EC2NodeClass, "gpu", {"spec": {PROPERTY: None}})
    manifest: Json = {"metadata": {"name": "gpu"}, "spec": {PROPERTY: by_id(odcr)}}
    argocd.apply(EC2NodeClass.KIND, manifest)
    until_copied(stack, by_id(odcr))
    upgrade(stack)
    stack.until(lambda: not served(stack), "the property is not served")
    touch(stack)

    def given_up(request: Request) -> bool:
        return own_class(request) and b"managedFields" in (request.body or b"")

    own_class, conflicts = writes_of("ec2nodeclasses", "gpu"), [1, 2]

    def conflict(_: object) -> None:
        conflicts.pop()
        raise Conflict(409, "Conflict", "the object has been modified")

    stack.tap.on(given_up, conflict, times=2)
    add_property(stack)
    stack.until(lambda: field(stack) == by_id(odcr), "the value is back in its field", step=1.0)
    until_copied(stack, by_id(odcr))
    assert not conflicts
    argocd.apply(EC2NodeClass.KIND, manifest)
    argocd.apply(EC2NodeClass.KIND, {**manifest, "spec": {}})
    stack.until(
        lambda: names.ACCEPTED_SPEC not in stack.get(EC2NodeClass, "gpu").annotations,
        "the copy goes as well",
        step=1.0,
    )
    assert field(stack) is None


@pytest.mark.covers("KRP-03")
def test_no_value_is_lost_while_no_broker_runs(stack: Stack) -> None:
    odcr = stack.aws.odcr()
    add_property(stack)
    stack.start()
    stack.node_class(id_=odcr)
    until_copied(stack, by_id(odcr))
    stack.stop()
    upgrade(stack)
    touch(stack)
    add_property(stack)
    assert field(stack) is None
    stack.start()
    stack.until(lambda: field(stack) == by_id(odcr), "the value is back in its field", step=1.0)


@pytest.mark.covers("KRP-03")
def test_a_changed_spec_is_copied_anew(stack: Stack) -> None:
    odcr = stack.aws.odcr()
    add_property(stack)
    stack.start()
    stack.node_class(id_=odcr)
    until_copied(stack, by_id(odcr))
    changed = {"capacityReservationPreference": "open"}
    stack.edit(EC2NodeClass, "gpu", {"spec": {PROPERTY: {**changed, "capacityReservationTarget": None}}})
    until_copied(stack, changed)
    upgrade(stack)
    touch(stack)
    add_property(stack)
    stack.until(lambda: field(stack) == changed, "the last value is back in its field", step=1.0)


@pytest.mark.covers("KRP-03")
def test_enabled_broker_puts_the_property_back_but_not_for_ever(stack: Stack) -> None:
    odcr = stack.aws.odcr()
    stack.start(keep_definition=True)
    stack.until(lambda: served(stack), "the property is added")
    stack.node_class(id_=odcr)
    until_copied(stack, by_id(odcr))
    for _ in range(PATIENCE - 1):
        stack.client.patch(CRD, NAME, [removal()], type="json")
        stack.until(lambda: complete(patch(stack.client, check=True)), "it is put back")
    stack.client.patch(CRD, NAME, [removal()], type="json")
    stack.tap.forget()
    stack.until(lambda: missing() == 1.0, "the broker saw it")
    touch(stack)
    stack.until_class(SERVED, "False", reason="PropertyMissing")
    assert [path for _, path in stack.tap.writes() if "customresourcedefinitions" in path] == []
    stack.until(lambda: field(stack) == by_id(odcr), "an hour later it is put back", step=60.0)


def removal() -> Json:
    place = f"/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/{PROPERTY}"
    return {"op": "remove", "path": place}
