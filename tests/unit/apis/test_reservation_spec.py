"""The broker's own validation of `capacityReservationSpec`, for specs that no API server checked."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.names import RESERVATION_SPEC
from broker.apis.reservation_spec import ANNOTATION, CapacityReservationSpec, validate_reservation_spec
from tests.unit.apis.cases import ARN, ID, MALFORMED, RESERVATION_SPECS, Case, preference, target

pytestmark = pytest.mark.covers("KRP-02", "KRP-04")


def named(cases: tuple[Case, ...]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", cases, ids=lambda case: case.name)


@named(RESERVATION_SPECS + MALFORMED)
def test_validation_agrees_with_the_api_server(case: Case) -> None:
    problems = validate_reservation_spec(case.given)
    messages = " ".join(map(str, problems))
    assert bool(problems) == bool(case.refused), messages
    for word in case.refused:
        assert word in messages


@named(tuple(case for case in RESERVATION_SPECS if case.refused))
def test_a_decoded_spec_gets_the_same_problems(case: Case) -> None:
    decoded = CapacityReservationSpec.model_validate(case.given)
    assert [p.message for p in validate_reservation_spec(decoded)] == [
        p.message for p in validate_reservation_spec(case.given)
    ]


def test_a_problem_names_field_value_and_remedy() -> None:
    (problem,) = validate_reservation_spec(target(capacityReservationId="i-1"))
    assert str(problem) == (
        "spec.capacityReservationSpec.capacityReservationTarget.capacityReservationId: "
        "capacityReservationId must be the id that EC2 gave the reservation, such as cr-0123456789abcdef0; "
        "got 'i-1'"
    )


@pytest.mark.parametrize(
    ("spec", "meaning"),
    [
        (preference("open"), ("open", "", "")),
        (preference("none"), ("none", "", "")),
        (preference("None"), ("none", "", "")),
        (preference("capacity-reservations-only"), ("capacity-reservations-only", "", "")),
        (target(capacityReservationId=ID), (None, ID, "")),
        (target(capacityReservationResourceGroupArn=ARN), (None, "", ARN)),
    ],
)
def test_both_spellings_of_none_mean_none(spec: Any, meaning: tuple[Any, str, str]) -> None:
    decoded = CapacityReservationSpec.model_validate(spec)
    assert (decoded.preference, decoded.reservation_id, decoded.group_arn) == meaning


PREFERENCE, TARGET = "capacityReservationPreference", "capacityReservationTarget"


def node_class(*, field: Any = None, annotation: str | None = None) -> EC2NodeClass:
    return EC2NodeClass.decode(
        {
            "metadata": {
                "name": "gpu",
                "annotations": {} if annotation is None else {RESERVATION_SPEC: annotation},
            },
            "spec": {} if field is None else {"capacityReservationSpec": field},
        }
    )


def test_class_without_a_spec_requests_no_reservation() -> None:
    settings = node_class().reservation_settings
    assert (settings.spec, settings.problems) == (None, ())


def test_the_annotation_is_used_if_there_is_no_field() -> None:
    settings = node_class(annotation=json.dumps(target(capacityReservationId=ID))).reservation_settings
    assert settings.spec is not None
    assert settings.spec.reservation_id == ID


def test_the_field_wins_over_the_annotation() -> None:
    settings = node_class(
        field=preference("open"), annotation=json.dumps(preference("none"))
    ).reservation_settings
    assert settings.spec is not None
    assert settings.spec.preference == "open"


def test_the_annotation_does_not_replace_an_invalid_field() -> None:
    settings = node_class(
        field=preference("any"), annotation=json.dumps(preference("none"))
    ).reservation_settings
    assert settings.spec is None
    assert settings.problems[0].field == "spec.capacityReservationSpec.capacityReservationPreference"


@pytest.mark.parametrize(
    ("annotation", "message"),
    [
        ("open", "is not JSON"),
        ("", "is not JSON"),
        ('"open"', "is not a JSON object"),
        ("[]", "is not a JSON object"),
        ("null", "is not a JSON object"),
        ('{"capacityReservationPreference": "any"}', "must be open, none or"),
        ('{"capacityReservationTarget": 7}', "has the wrong type"),
    ],
)
def test_an_invalid_annotation_is_a_problem_that_names_it(annotation: str, message: str) -> None:
    settings = node_class(annotation=annotation).reservation_settings
    assert settings.spec is None
    assert message in settings.problems[0].message
    assert settings.problems[0].field.startswith(f"metadata.annotations[{RESERVATION_SPEC}]")


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=8), inner, max_size=2),
    max_leaves=4,
)
MAYBE_SPECS = st.fixed_dictionaries(
    {},
    optional={
        "capacityReservationPreference": st.sampled_from(["open", "none", "None", "any"]) | ANY_JSON,
        "capacityReservationTarget": st.fixed_dictionaries(
            {},
            optional={
                "capacityReservationId": st.just(ID) | ANY_JSON,
                "capacityReservationResourceGroupArn": st.just(ARN) | ANY_JSON,
            },
        )
        | ANY_JSON,
    },
)


@given(MAYBE_SPECS)
def test_any_annotation_gives_one_choice_or_a_problem(raw: Any) -> None:
    settings = node_class(annotation=json.dumps(raw)).reservation_settings
    assert (settings.spec is None) == bool(settings.problems)
    if settings.spec is not None:
        chosen = [settings.spec.preference, settings.spec.reservation_id, settings.spec.group_arn]
        assert len([choice for choice in chosen if choice]) == 1


@pytest.mark.covers("FLT-53")
@pytest.mark.parametrize(
    ("spec", "field", "key", "nearest"),
    [
        ({"capacityReservationPrefrence": "open"}, "", "capacityReservationPrefrence", PREFERENCE),
        ({"CapacityReservationPreference": "open"}, "", "CapacityReservationPreference", PREFERENCE),
        ({"capacity_reservation_preference": "open"}, "", "capacity_reservation_preference", PREFERENCE),
        ({PREFERENCE: "open", "capacityReservationTargets": {}}, "", "capacityReservationTargets", TARGET),
        (
            {TARGET: {"capacityReservationID": ID}},
            f".{TARGET}",
            "capacityReservationID",
            "capacityReservationId",
        ),
        (
            {TARGET: {"capacityReservationResourceGroupARN": "arn"}},
            f".{TARGET}",
            "capacityReservationResourceGroupARN",
            "capacityReservationResourceGroupArn",
        ),
    ],
)
def test_an_unknown_key_of_the_annotation_is_refused_with_the_nearest_name(
    spec: Any, field: str, key: str, nearest: str
) -> None:
    settings = node_class(annotation=json.dumps(spec)).reservation_settings
    assert settings.spec is None
    (problem,) = settings.problems
    assert (problem.field, problem.value) == (f"{ANNOTATION}{field}", repr(key))
    assert f"the nearest name is {nearest}" in problem.message


@pytest.mark.covers("FLT-53")
def test_a_wrong_arn_is_shown_in_full() -> None:
    arn = f"arn:aws:resource-groups:us-east-1:123456789012:groups/{'long-name-' * 12}"
    (problem,) = node_class(
        annotation=json.dumps({TARGET: {"capacityReservationResourceGroupArn": arn}})
    ).reservation_settings.problems
    assert arn in str(problem)
