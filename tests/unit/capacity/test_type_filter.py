"""The type filter over arrays, compared with a test of each type alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.capacity.requirements import Requirements
from broker.capacity.type_filter import TypeFilter
from broker.capacity.types import lacking

KEYS = ("arch", "cpu", "gpu")
VALUES = ("2", "4", "x", "y")
OPERATORS: st.SearchStrategy[tuple[str, list[str]]] = st.one_of(
    st.tuples(st.sampled_from(["In", "NotIn"]), st.lists(st.sampled_from(VALUES), min_size=1, unique=True)),
    st.tuples(st.sampled_from(["Exists", "DoesNotExist"]), st.just([])),
    st.tuples(st.sampled_from(["Gt", "Lt"]), st.sampled_from([["2"], ["3"]])),
)
LABELS = st.lists(st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES)), max_size=6)
REQUIRED = st.lists(st.tuples(st.sampled_from(KEYS), OPERATORS), max_size=4)


@given(LABELS, REQUIRED, st.sets(st.sampled_from(KEYS)))
def test_labels_match_as_for_each_type_alone(
    labels: list[dict[str, str]], required: list[tuple[str, tuple[str, list[str]]]], among: set[str]
) -> None:
    requirements = Requirements.of((key, operator, values) for key, (operator, values) in required)
    type_filter = TypeFilter(labels, [{}] * len(labels))
    for _ in range(2):  # the second time from the kept arrays
        got = type_filter.matches_labels(requirements, among=among).tolist()
        assert got == [not requirements.unmet(type_labels, among=among) for type_labels in labels]


AMOUNTS = st.dictionaries(st.sampled_from(["cpu", "memory"]), st.sampled_from([0.0, 1.0, 2.5]))


@given(st.lists(AMOUNTS, max_size=6), AMOUNTS)
def test_requests_fit_as_for_each_type_alone(
    amounts: list[dict[str, float]], requests: dict[str, float]
) -> None:
    got = TypeFilter([{}] * len(amounts), amounts).fits(requests).tolist()
    assert got == [not lacking(requests, type_amounts) for type_amounts in amounts]
