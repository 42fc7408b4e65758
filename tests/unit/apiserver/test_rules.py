"""Validation rules of a definition: CEL over self and oldSelf, and the texts of refusals."""

from __future__ import annotations

from typing import Any

import pytest

from local.kube.crd import rules

Obj = dict[str, Any]
NONE = object()


def violations(rule: str | Obj, new: Any, old: Any = NONE, **properties: str) -> list[str]:
    """The violations of a rule at `spec` by a new value, or by a change from an old one."""
    validation = {"rule": rule} if isinstance(rule, str) else rule
    typed = {name: {"type": kind} for name, kind in properties.items()}
    node = rules.compiled({"type": "object", "properties": typed, "x-kubernetes-validations": [validation]})
    assert node is not None
    return [str(violation) for violation in rules.check(node, new, None if old is NONE else old, "spec")]


@pytest.mark.parametrize(
    ("rule", "value", "holds"),
    [
        ("self.a > 1", {"a": 2}, True),
        ("self.a > 1", {"a": 1}, False),
        ("has(self.a)", {}, False),
        ("!has(self.a) || self.a == 'x'", {}, True),
        ("self.l.all(x, x > 0)", {"l": [1, 2]}, True),
        ("self.l.exists(x, x == 3)", {"l": [1, 2]}, False),
        ("size(self.l) <= 2", {"l": [1, 2, 3]}, False),
        ("self.s.startsWith('ab')", {"s": "abc"}, True),
        ("self.s.matches('^[a-z]+$')", {"s": "A"}, False),
        ("self.l.filter(x, x > 1).size() == 1", {"l": [1, 2]}, True),
        ("self.m.all(k, self.m[k] != '')", {"m": {"a": ""}}, False),
        ("quantity(self.q).isGreaterThan(quantity('1Gi'))", {"q": "2Gi"}, True),
        ("self.s in ['a', 'b']", {"s": "c"}, False),
        ("self.l.isSorted()", {"l": [2, 1]}, False),
        ("self.a == 1 ? self.s == 'x' : true", {"a": 1, "s": "x"}, True),
        ("duration(self.s) > duration('1m')", {"s": "2m"}, True),
        ("self.s.find('[0-9]+') == '12'", {"s": "ab12"}, True),
    ],
)
def test_a_rule_is_evaluated(rule: str, value: Obj, holds: bool) -> None:
    violation = violations(rule, value)
    assert (violation == []) is holds
    assert all("failed rule: " + rule in violation for violation in violation)


def test_a_message_replaces_the_rule() -> None:
    (violation,) = violations({"rule": "false", "message": "never"}, {})
    assert violation == "spec: Invalid value: never"


def test_a_message_is_computed() -> None:
    rule = {"rule": "self.a < 5", "messageExpression": "'a is ' + string(self.a)"}
    (violation,) = violations(rule, {"a": 7}, a="integer")
    assert violation.endswith(": a is 7")


def test_reason_and_field_are_reported() -> None:
    rule = {"rule": "false", "message": "m", "reason": "FieldValueForbidden", "fieldPath": ".a"}
    (violation,) = violations(rule, {"a": 1}, a="integer")
    assert violation == "spec.a: Forbidden: m"


def test_a_transition_is_checked_on_a_change_only() -> None:
    rule = "self.a >= oldSelf.a"
    assert violations(rule, {"a": 1}) == []
    assert violations(rule, {"a": 2}, {"a": 1}) == []
    assert violations(rule, {"a": 0}, {"a": 1})


def test_failing_rule_is_reported() -> None:
    (violation,) = violations("self.a > 1", {})
    assert "no such key: a evaluating rule: self.a > 1" in violation


def test_reserved_cel_names_are_escaped() -> None:
    assert violations("self.__namespace__ == 'x'", {"namespace": "x"}, namespace="string") == []
    assert violations("self.a__dash__b == 'x'", {"a-b": "x"}, **{"a-b": "string"}) == []
