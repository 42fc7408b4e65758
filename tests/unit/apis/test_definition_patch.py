"""The patch of Karpenter's definition as a value, also of its release."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from broker.apis import crds
from broker.apis.karpenter_aws_accepted import AcceptedSpec, load
from broker.apis.karpenter_aws_definition import NAME, PROPERTY, definition, patch, property_schema
from broker.apis.reservation_spec import CapacityReservationSpec
from tests.unit.apis.cases import Json
from tests.unit.apis.karpenter_crds import stored


def version(
    name: str, *, served: bool = True, storage: bool = False, property_schema: Json | None = None
) -> Json:
    known = {} if property_schema is None else {PROPERTY: property_schema}
    spec = {"type": "object", "properties": {"role": {"type": "string"}, **known}}
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}}
    return {"name": name, "served": served, "storage": storage, "schema": schema}


def crd(*versions: Json) -> Json:
    meta = {"name": NAME, "uid": "u", "generation": 3, "resourceVersion": "7"}
    return {"metadata": meta, "spec": {"versions": [*versions]}}


def applied(raw: Json, changes: list[Json]) -> Json:
    """The result of a JSON patch (RFC 6902) of tests and additions; a test that fails raises."""
    patched = copy.deepcopy(raw)
    for change in changes:
        *way, last = change["path"].strip("/").split("/")
        place: Any = patched
        for step in way:
            place = place[int(step)] if isinstance(place, list) else place[step]
        if change["op"] == "test":
            assert place[last] == change["value"], change
        else:
            assert change["op"] == "add"
            place[last] = change["value"]
    return patched


@pytest.mark.covers("KRP-03")
def test_a_patch_adds_only_the_property_to_each_served_or_stored_version() -> None:
    raw = crd(
        version("v1", storage=True),
        version("v1beta1", served=False),
        version("v1alpha1", served=False, storage=True),
        version("v2", property_schema=property_schema()),
        version("v3", property_schema={"type": "object"}),
    )
    before = definition(raw)
    assert (before.missing, before.outdated) == (("v1", "v1alpha1"), ("v3",))
    patched = applied(raw, patch(raw))
    assert [
        PROPERTY in v["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
        for v in patched["spec"]["versions"]
    ] == [
        True,
        False,
        True,
        True,
        True,
    ]
    assert patch(patched) == []
    after = definition(patched)
    assert after.serves and not after.outdated


@pytest.mark.covers("KRP-03")
def test_a_patch_holds_only_for_the_version_that_was_read() -> None:
    changes = patch(crd(version("v1", storage=True)))
    later = crd(version("v1", storage=True))
    later["metadata"]["resourceVersion"] = "8"
    with pytest.raises(AssertionError, match="resourceVersion"):
        applied(later, changes)
    other = crd(version("v0"), version("v1", storage=True))
    with pytest.raises(AssertionError, match="/name"):
        applied(other, changes)


def test_brokers_own_definition_is_recognized() -> None:
    own = next(crd_ for crd_ in crds.load() if crd_["metadata"]["name"] == NAME)
    assert definition(own).own and definition(own).serves
    assert not definition(crd(version("v1", property_schema=property_schema()))).own


def test_the_identity_changes_with_the_definition() -> None:
    raw = crd(version("v1", storage=True))
    assert definition(raw).identity == "u/3"
    assert not definition({"metadata": {}, "spec": {"versions": []}}).serves


@pytest.mark.covers("KRP-03")
def test_a_patch_adds_only_the_property_to_karpenters_file() -> None:
    raw = stored()[NAME]
    raw["metadata"]["resourceVersion"] = "1"
    assert not definition(raw).own and definition(raw).missing == definition(raw).versions
    patched = applied(raw, patch(raw))
    for version_ in patched["spec"]["versions"]:
        assert (
            version_["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"].pop(PROPERTY)
            == property_schema()
        )
    assert patched == raw


@pytest.mark.parametrize(
    "text",
    [
        None,
        "{",
        "[]",
        '{"definition": "u/1"}',
        '{"spec": {}, "definition": "u/1"}',
        '{"spec": {"capacityReservationPreference": "maybe"}, "definition": "u/1"}',
    ],
)
def test_a_backup_that_the_broker_cannot_have_written_is_ignored(text: str | None) -> None:
    assert load(text) is None


def test_a_backup_is_read_back_unchanged() -> None:
    copied = AcceptedSpec(
        spec=CapacityReservationSpec.model_validate({"capacityReservationPreference": "None"}),
        definition="u/1",
    )
    again = load(copied.dump())
    assert again is not None and again.dump() == copied.dump()
    assert again.spec.wire() == {"capacityReservationPreference": "None"}
