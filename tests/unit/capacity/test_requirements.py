"""Requirements: each operator, their intersection, impossible ones, and the reported text."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.capacity.requirements import OPERATORS, InvalidRequirement, Requirement, Requirements

Written = tuple[str, str, Sequence[str]]

UNIVERSE: tuple[str | None, ...] = (None, "", "a", "b", "c", "0", "1", "2", "3", "4", "5")


def _meant(operator: str, values: Sequence[str], label: str | None) -> bool:
    """Kubernetes' and Karpenter's meaning of one operator, spelled out."""
    number = int(label) if label and label.isdigit() else None
    match operator:
        case "In":
            return label is not None and label in values
        case "NotIn":
            return label is None or label not in values
        case "Exists":
            return label is not None
        case "DoesNotExist":
            return label is None
        case "Gt":
            return number is not None and number > int(values[0])
        case "Lt":
            return number is not None and number < int(values[0])
        case "Gte":
            return number is not None and number >= int(values[0])
        case _:
            return number is not None and number <= int(values[0])


@st.composite
def _written(draw: st.DrawFn, key: str = "k") -> Written:
    operator = draw(st.sampled_from(OPERATORS))
    if operator in ("Exists", "DoesNotExist"):
        return key, operator, ()
    if operator in ("Gt", "Lt", "Gte", "Lte"):
        return key, operator, [draw(st.sampled_from("012345"))]
    values = [value for value in UNIVERSE if value]
    return key, operator, draw(st.lists(st.sampled_from(values), min_size=operator == "In", unique=True))


@given(st.lists(_written(), max_size=4))
def test_several_requirements_on_one_key_intersect(written: list[Written]) -> None:
    requirements = Requirements.of(written)
    for label in UNIVERSE:
        meant = all(_meant(operator, values, label) for _, operator, values in written)
        assert requirements.allows("k", label) == meant, (written, label)
        labels = {} if label is None else {"k": label}
        assert (requirements.accepts(labels) is None) == meant
        assert (requirements.unmet(labels) == []) == meant


@given(st.lists(_written(), max_size=4))
def test_problem_is_reported_exactly_if_no_value_and_no_absence_satisfies(written: list[Written]) -> None:
    wide = [None, "a", "b", "c", "x", *map(str, range(12))]
    possible = any(all(_meant(op, values, label) for _, op, values in written) for label in wide)
    assert (Requirements.of(written).problems() == []) == possible, written


@given(st.lists(_written("k") | _written("j"), max_size=5), st.randoms(use_true_random=False))
def test_order_and_grouping_do_not_matter(written: list[Written], random: object) -> None:
    shuffled = list(written)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    whole = Requirements.of(written)
    assert whole == Requirements.of(shuffled)
    assert hash(whole) == hash(Requirements.of(shuffled))
    for cut in range(len(written) + 1):
        both = Requirements.of(written[:cut]) & Requirements.of(written[cut:])
        assert both == whole
        assert hash(both) == hash(whole)


_TWO_KEYS = st.lists(_written("k") | _written("j"), max_size=4)


@given(_TWO_KEYS, _TWO_KEYS)
def test_either_of_two_allows_what_one_of_them_allows(left: list[Written], right: list[Written]) -> None:
    first, second = Requirements.of(left), Requirements.of(right)
    either = first | second
    for k, j in itertools.product(UNIVERSE, repeat=2):
        labels = {key: value for key, value in (("k", k), ("j", j)) if value is not None}
        if first.accepts(labels) is None or second.accepts(labels) is None:
            assert either.accepts(labels) is None
    assert (first | first).values("k") == first.values("k")


def test_listed_values_of_either_are_those_of_both() -> None:
    first = Requirements.of([("k", "In", ["a"])])
    second = Requirements.of([("k", "In", ["b", "c"]), ("j", "Exists", ())])
    assert (first | second) == Requirements.of([("k", "In", ["a", "b", "c"])])


@given(st.lists(_written(), max_size=4))
def test_listed_values_are_those_allowed(written: list[Written]) -> None:
    requirements = Requirements.of(written)
    values = requirements.values("k")
    if values is not None:
        assert values == {
            label for label in UNIVERSE if label is not None and requirements.allows("k", label)
        }
    choices = requirements.choices("k")
    assert all(requirements.allows("k", value) for value in choices)
    assert bool(choices) == (not requirements.allows("k", None) and not requirements.problems())
    single = requirements.single("k")
    if single is not None:
        assert values == frozenset({single})
        assert not requirements.allows("k", None)
        assert requirements.labels() == {"k": single}


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ([("k", "In", ["a"]), ("k", "In", ["b"])], "k: no value satisfies In [a] and In [b]"),
        ([("cpu", "Gt", ["5"]), ("cpu", "Lt", ["3"])], "cpu: no value satisfies Gt [5] and Lt [3]"),
        ([("k", "Exists", ()), ("k", "DoesNotExist", ())], "k: no value satisfies Exists and DoesNotExist"),
        ([("k", "In", ["a"]), ("k", "NotIn", ["a"])], "k: no value satisfies In [a] and NotIn [a]"),
        ([("k", "In", ["x"]), ("k", "Gte", ["1"])], "k: no value satisfies In [x] and Gte [1]"),
        ([("cpu", "Lt", ["0"])], "cpu: no value satisfies Lt [0]"),
        ([("cpu", "Gte", ["9"]), ("cpu", "Lte", ["8"])], "cpu: no value satisfies Gte [9] and Lte [8]"),
        ([("cpu", "Gt", ["8"]), ("cpu", "Lt", ["9"])], "cpu: no value satisfies Gt [8] and Lt [9]"),
        (
            [("k", "Gt", ["1"]), ("k", "Lt", ["3"]), ("k", "NotIn", ["2"])],
            "k: no value satisfies Gt [1] and Lt [3] and NotIn [2]",
        ),
    ],
)
def test_impossible_requirements_are_reported_with_all_conflicts(
    written: list[Written], problem: str
) -> None:
    assert Requirements.of(written).problems() == [problem]


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (("k", "Near", ["a"]), "operator is unknown; use one of In, NotIn"),
        (("k", "In", []), "In needs at least one value"),
        (("k", "Exists", ["a"]), "Exists takes no values"),
        (("k", "Gt", ["many"]), "Gt takes one whole number"),
        (("k", "Lte", ["1", "2"]), "Lte takes one whole number"),
        (("k", "Gte", ["-1"]), "Gte takes one whole number, zero or more"),
        (("", "Exists", []), "the key is empty"),
    ],
)
def test_a_malformed_requirement_is_refused_by_name(written: Written, message: str) -> None:
    with pytest.raises(InvalidRequirement, match=message):
        Requirements.of([written])


@pytest.mark.parametrize(
    ("written", "labels", "reason"),
    [
        ([("cpu", "Gt", ["8"])], {"cpu": "4"}, "cpu is 4, needs at least 9"),
        (
            [("cpu", "Gte", ["8"]), ("cpu", "Lt", ["32"])],
            {"cpu": "32"},
            "cpu is 32, needs at least 8 and at most 31",
        ),
        ([("zone", "In", ["b", "a"])], {"zone": "c"}, "zone is c, needs one of a, b"),
        ([("gpu", "Exists", ())], {}, "gpu is not set, needs present"),
        ([("gpu", "DoesNotExist", ())], {"gpu": "t4"}, "gpu is t4, needs absent"),
        ([("zone", "NotIn", ["a"])], {"zone": "a"}, "zone is a, needs none of a"),
        ([("zone", "NotIn", ["a"])], {}, None),
    ],
)
def test_unmet_requirements_are_reported_with_both_values(
    written: list[Written], labels: dict[str, str], reason: str | None
) -> None:
    assert Requirements.of(written).accepts(labels) == reason


def test_requirements_on_labels_that_the_claim_brings_itself_are_left_to_it() -> None:
    requirements = Requirements.of([("example.com/team", "In", ["a"]), ("cpu", "In", ["4"])])
    assert requirements.accepts({"cpu": "4"}) == "example.com/team is not set, needs one of a"
    assert requirements.accepts({"cpu": "4"}, among={"cpu"}) is None
    assert requirements.labels() == {"example.com/team": "a", "cpu": "4"}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone"),
        ("failure-domain.beta.kubernetes.io/region", "topology.kubernetes.io/region"),
        ("topology.ebs.csi.aws.com/zone", "topology.kubernetes.io/zone"),
        ("beta.kubernetes.io/arch", "kubernetes.io/arch"),
        ("beta.kubernetes.io/os", "kubernetes.io/os"),
        ("beta.kubernetes.io/instance-type", "node.kubernetes.io/instance-type"),
    ],
)
def test_other_names_of_a_label_mean_the_same(old: str, new: str) -> None:
    requirements = Requirements.of([(old, "In", ["a", "b"]), (new, "In", ["b", "c"])])
    assert list(requirements) == [new]
    assert requirements.values(new) == frozenset({"b"})


def test_node_selector_requires_one_value_for_each_key() -> None:
    assert Requirements.of_labels({"a": "1", "b": "2"}) == Requirements(
        Requirement(key, "In", (value,)) for key, value in (("b", "2"), ("a", "1"))
    )


def test_long_lists_are_cut_in_words_but_not_in_meaning() -> None:
    names = [f"m{n}.large" for n in range(20)]
    requirements = Requirements.of([("type", "In", names)])
    assert requirements.describe("type").endswith("and 12 more")
    assert all(requirements.allows("type", name) for name in names)


def test_every_pair_of_operators_has_an_intersection() -> None:
    sample = {"In": ["2"], "NotIn": ["2"], "Exists": (), "DoesNotExist": ()}
    for first, second in itertools.product(OPERATORS, repeat=2):
        written = [("k", op, sample.get(op, ["2"])) for op in (first, second)]
        requirements = Requirements.of(written)
        for label in (None, "1", "2", "3"):
            assert requirements.allows("k", label) == all(_meant(o, v, label) for _, o, v in written)
