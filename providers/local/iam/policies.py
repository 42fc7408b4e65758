"""What policy documents say of one action on one resource.

Invariant: a Deny that applies wins, then an Allow; what nothing allows is denied. A statement applies when
its action, its resource and every one of its conditions match (IAM User Guide, "Policy evaluation logic",
"IAM JSON policy elements: Condition operators", "Set operators for multivalued context keys"). An operator
that is not known here is an error, never a guess.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

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
    acts = _either(statement, "Action", lambda pattern: _like(pattern.lower(), action.lower()))
    if not acts or not _either(statement, "Resource", lambda pattern: _like(pattern, resource)):
        return False
    return all(
        _holds(operator, key, _list(wanted), context)
        for operator, keys in (statement.get("Condition") or {}).items()
        for key, wanted in keys.items()
    )


def _either(statement: Statement, element: str, matches: Callable[[str], bool]) -> bool:
    """By the element, or by what is to be all but `Not...`."""
    if (besides := statement.get(f"Not{element}")) is not None:
        return not any(map(matches, _list(besides)))
    return any(map(matches, _list(statement.get(element))))


def _holds(operator: str, key: str, wanted: Sequence[Any], context: Context) -> bool:
    quantifier, _, plain = operator.rpartition(":")
    plain, optional = plain.removesuffix("IfExists"), plain.endswith("IfExists")
    given = context.get(key.lower())
    asked = [_text(value) for value in wanted]
    if plain == "Null":
        return any((given is None) == (value == "true") for value in asked)
    if plain not in _OPERATORS:
        raise UnknownOperator(f"condition operator {operator} is not known to local AWS")
    test, negated = _OPERATORS[plain]
    if given is None and (optional or quantifier == "ForAllValues"):
        return True
    values = given or ()
    one = [any(test(pattern, value) for pattern in asked) != negated for value in values]
    if quantifier == "ForAllValues":
        return all(one)
    return any(one) or (negated and not values and quantifier != "ForAnyValue")


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _like(pattern: str, value: str) -> bool:
    return _compiled(pattern).fullmatch(value) is not None


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    """`*` is any text, `?` one character; nothing else means anything."""
    return re.compile(
        "".join({"*": ".*", "?": "."}.get(letter, re.escape(letter)) for letter in pattern), re.DOTALL
    )


def _same(pattern: str, value: str) -> bool:
    return pattern == value


def _same_in_any_case(pattern: str, value: str) -> bool:
    return pattern.lower() == value.lower()


# operator -> how a value is compared, and whether it holds for those that do not match
_OPERATORS: Mapping[str, tuple[Callable[[str, str], bool], bool]] = {
    "StringEquals": (_same, False),
    "StringNotEquals": (_same, True),
    "StringEqualsIgnoreCase": (_same_in_any_case, False),
    "StringNotEqualsIgnoreCase": (_same_in_any_case, True),
    "StringLike": (_like, False),
    "StringNotLike": (_like, True),
    "ArnEquals": (_like, False),
    "ArnNotEquals": (_like, True),
    "ArnLike": (_like, False),
    "ArnNotLike": (_like, True),
    "Bool": (_same_in_any_case, False),
}


def _list(value: Any) -> Sequence[Any]:
    if value is None:
        return ()
    return value if isinstance(value, list | tuple) else (value,)
