"""The decision of policy documents about one action on one resource.

Invariant: an applicable Deny wins, then an Allow; without either the call is denied. A statement applies when
its action, its resource and every one of its conditions match (IAM User Guide, "Policy evaluation logic",
"IAM JSON policy elements: Condition operators", "Set operators for multivalued context keys"). An unknown
operator is an error, never a guess.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from local.aws.iam.operators import OPERATORS, like

Context = Mapping[str, Sequence[str]]  # key -> its values; a key that is not there was not in the request
Statement = Mapping[str, Any]


class UnknownOperator(ValueError):
    """A condition that this evaluation does not understand."""


def allows(
    documents: Iterable[Mapping[str, Any]], action: str, resource: str, context: Context
) -> tuple[bool, bool]:
    """Whether the action is allowed, and whether an explicit Deny is why not."""
    lowered = {key.lower(): values for key, values in context.items()}
    effects = {
        statement.get("Effect")
        for document in documents
        for statement in _list(document.get("Statement"))
        if _applies(statement, action, resource, lowered)
    }
    denied = "Deny" in effects
    return "Allow" in effects and not denied, denied


def _applies(statement: Statement, action: str, resource: str, context: Context) -> bool:
    acts = _either(statement, "Action", lambda pattern: like(pattern.lower(), action.lower()))
    if not acts or not _either(statement, "Resource", lambda pattern: like(pattern, resource)):
        return False
    return all(
        _holds(operator, key, _list(expected), context)
        for operator, keys in (statement.get("Condition") or {}).items()
        for key, expected in keys.items()
    )


def _either(statement: Statement, element: str, matches: Callable[[str], bool]) -> bool:
    """Matches the element, or the complement of its `Not...` form."""
    if (besides := statement.get(f"Not{element}")) is not None:
        return not any(map(matches, _list(besides)))
    return any(map(matches, _list(statement.get(element))))


def _holds(operator: str, key: str, expected: Sequence[Any], context: Context) -> bool:
    quantifier, _, plain = operator.rpartition(":")
    plain, optional = plain.removesuffix("IfExists"), plain.endswith("IfExists")
    request_values = context.get(key.lower())
    patterns = [_text(value) for value in expected]
    if plain == "Null":
        return any((request_values is None) == (value == "true") for value in patterns)
    if plain not in OPERATORS:
        raise UnknownOperator(f"condition operator {operator} is not known to local AWS")
    test, negated = OPERATORS[plain]
    if request_values is None and (optional or quantifier == "ForAllValues"):
        return True
    values = request_values or ()
    matches = [any(test(pattern, value) for pattern in patterns) != negated for value in values]
    if quantifier == "ForAllValues":
        return all(matches)
    return any(matches) or (negated and not values and quantifier != "ForAnyValue")


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _list(value: Any) -> Sequence[Any]:
    if value is None:
        return ()
    return value if isinstance(value, list | tuple) else (value,)
