"""The broker's own validation of `capacityReservationSpec`, for specs that no API server checked."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.names import RESERVATION_SPEC
from broker.apis.reservation_spec import CapacityReservationSpec, validate_reservation_spec
from tests.unit.apis.cases import ARN, ID, MALFORMED, RESERVATION_SPECS, Case, preference, target

pytestmark = pytest.mark.covers("KRP-02", "KRP-04")


def named(cases: tuple[Case, ...]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", cases, ids=lambda case: case.name)


@named(RESERVATION_SPECS + MALFORMED)
def test_a_spec_is_judged_as_the_api_server_judges_it(case: Case) -> None:
    problems = validate_reservation_spec(case.given)
    said = " ".join(map(str, problems))
    assert bool(problems) == bool(case.refused), said
    for word in case.refused:
        assert word in said


@named(tuple(case for case in RESERVATION_SPECS if case.refused))
def test_a_decoded_spec_gets_the_same_problems(case: Case) -> None:
    decoded = CapacityReservationSpec.model_validate(case.given)
    assert [p.message for p in validate_reservation_spec(decoded)] == [
        p.message for p in validate_reservation_spec(case.given)
    ]


def test_a_problem_names_field_value_and_way_out() -> None:
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


def asked(*, field: Any = None, annotation: str | None = None) -> EC2NodeClass:
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
    ask = asked().reservation_settings
    assert (ask.spec, ask.problems) == (None, ())


def test_the_annotation_is_read_where_there_is_no_field() -> None:
    ask = asked(annotation=json.dumps(target(capacityReservationId=ID))).reservation_settings
    assert ask.spec is not None
    assert ask.spec.reservation_id == ID


def test_the_field_wins_over_the_annotation() -> None:
    ask = asked(field=preference("open"), annotation=json.dumps(preference("none"))).reservation_settings
    assert ask.spec is not None
    assert ask.spec.preference == "open"


def test_a_wrong_field_is_not_replaced_by_the_annotation() -> None:
    ask = asked(field=preference("any"), annotation=json.dumps(preference("none"))).reservation_settings
    assert ask.spec is None
    assert ask.problems[0].field == "spec.capacityReservationSpec.capacityReservationPreference"


@pytest.mark.parametrize(
    ("annotation", "said"),
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
def test_a_wrong_annotation_is_a_problem_that_names_it(annotation: str, said: str) -> None:
    ask = asked(annotation=annotation).reservation_settings
    assert ask.spec is None
    assert said in ask.problems[0].message
    assert ask.problems[0].field.startswith(f"metadata.annotations[{RESERVATION_SPEC}]")


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
def test_whatever_the_annotation_holds_a_spec_is_one_choice_or_there_is_none(raw: Any) -> None:
    ask = asked(annotation=json.dumps(raw)).reservation_settings
    assert (ask.spec is None) == bool(ask.problems)
    if ask.spec is not None:
        chosen = [ask.spec.preference, ask.spec.reservation_id, ask.spec.group_arn]
        assert len([choice for choice in chosen if choice]) == 1
