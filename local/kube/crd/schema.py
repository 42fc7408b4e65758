"""Validation of a value against an OpenAPI v3 schema, in the API server's words.

A schema is compiled once into nested functions. Rule: k8s.io/kube-openapi/pkg/validation/validate (the
checks, their order and their messages), apiextensions-apiserver for how failures become causes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import orjson

from local.kube.crd.formats import CHECKS, effective
from local.kube.errors import FieldError, problem, shown, supported
from local.kube.wire import Obj

_INT32, _INT64 = (-(2**31), 2**31 - 1), (-(2**63), 2**63 - 1)


@dataclass(slots=True)
class CheckResult:
    """Problems, and how many checks passed: the alternative that passed most is the one to complain about."""

    problems: list[FieldError] = field(default_factory=list)
    matches: int = 0

    def add(self, other: CheckResult) -> None:
        self.problems += other.problems
        self.matches += other.matches


Check = Callable[[Any, str, CheckResult], None]


def compiled(schema: Obj) -> Callable[[Any, str], list[FieldError]]:
    check = _compile(schema)

    def run(value: Any, path: str) -> list[FieldError]:
        outcome = CheckResult()
        check(value, path, outcome)
        return outcome.problems

    return run


def _compile(schema: Obj) -> Check:
    checks = [check for make in _MAKERS if (check := make(schema)) is not None]

    def run(value: Any, path: str, outcome: CheckResult) -> None:
        for check in checks:
            check(value, path, outcome)

    return run


def json_type(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer"
    return {str: "string", float: "number", list: "array", dict: "object"}.get(type(value), "null")


def _bad_type(path: str, expected: str, given: str) -> FieldError:
    return problem("type", path, f'{path} in body must be of type {expected}: "{given}"', given)


_NUMBER_FORMATS = {"integer": "int64", "number": "float64"}


def _type(schema: Obj) -> Check | None:
    kind, form = schema.get("type", ""), effective(schema)
    expected: tuple[str, ...] = (kind,) if kind else ()
    if schema.get("x-kubernetes-int-or-string"):
        expected = ("integer", "string")
    elif not kind and not form:
        return None
    nullable, name = bool(schema.get("nullable")), ",".join(expected)

    def check(value: Any, path: str, outcome: CheckResult) -> None:
        if value is None:
            if expected and not nullable:
                outcome.problems.append(_bad_type(path, name, "null"))
                return
        else:
            given = json_type(value)
            whole = given == "number" and "integer" in expected and float(value).is_integer()
            if form and given in ("string", "array") and not {"number", "integer"} & set(expected):
                outcome.matches += 1
                return
            fits = given in expected or whole or (given == "integer" and "number" in expected)
            if form and not fits and given not in ("string", "array"):
                # A format is named in place of the type, on both sides.
                outcome.problems.append(_bad_type(path, form, _NUMBER_FORMATS.get(given, "")))
                return
            if expected and not fits:
                outcome.problems.append(_bad_type(path, name, given))
                return
        outcome.matches += 1

    return check


def _combinations(schema: Obj) -> Check | None:
    parts = {
        key: [_compile(check_) for check_ in schema.get(key) or ()] for key in ("anyOf", "oneOf", "allOf")
    }
    forbidden = _compile(schema["not"]) if schema.get("not") else None
    if not any(parts.values()) and forbidden is None:
        return None

    def check(value: Any, path: str, outcome: CheckResult) -> None:
        def attempt(check_: Check) -> CheckResult:
            out = CheckResult()
            check_(value, path, out)
            return out

        if parts["anyOf"]:
            _any_of(parts["anyOf"], attempt, path, outcome)
        if parts["oneOf"]:
            _one_of(parts["oneOf"], attempt, path, outcome)
        if parts["allOf"]:
            results = [attempt(check_) for check_ in parts["allOf"]]
            for result in results:
                outcome.add(result)
            valid = sum(not result.problems for result in results)
            if valid != len(results):
                none = ". None validated" if valid == 0 else ""
                outcome.problems.append(_combined(path, f"must validate all the schemas (allOf){none}"))
        if forbidden is not None and not attempt(forbidden).problems:
            outcome.problems.append(_combined(path, "must not validate the schema (not)"))
        outcome.matches += 1

    return check


def _any_of(
    checks: list[Check], attempt: Callable[[Check], CheckResult], path: str, outcome: CheckResult
) -> None:
    best: CheckResult | None = None
    for check in checks:
        result = attempt(check)
        if not result.problems:
            outcome.add(result)
            return
        if best is None or result.matches > best.matches:
            best = result
    outcome.problems.append(_combined(path, "must validate at least one schema (anyOf)"))
    if best is not None:
        outcome.add(best)


def _one_of(
    checks: list[Check], attempt: Callable[[Check], CheckResult], path: str, outcome: CheckResult
) -> None:
    results = [attempt(check) for check in checks]
    valid = [result for result in results if not result.problems]
    if len(valid) == 1:
        outcome.add(valid[0])
        return
    how = "Found none valid" if not valid else f"Found {len(valid)} valid alternatives"
    outcome.problems.append(_combined(path, f"must validate one and only one schema (oneOf). {how}"))
    if not valid:
        best = results[0]
        for result in results[1:]:
            best = result if result.matches > best.matches else best
        outcome.add(best)


def _combined(path: str, why: str) -> FieldError:
    return problem("invalid", path, f'"{path}" {why}', "")


def _array(schema: Obj) -> Check | None:
    items = _compile(schema["items"]) if isinstance(schema.get("items"), dict) else None
    low, high = schema.get("minItems"), schema.get("maxItems")
    unique = schema.get("uniqueItems")

    def check(value: Any, path: str, outcome: CheckResult) -> None:
        if type(value) is not list:
            return
        if items is not None:
            for i, item in enumerate(value):
                items(item, f"{path}[{i}]", outcome)
        size = len(value)
        if low is not None and size < low:
            why = f"{path} in body should have at least {low} items"
            outcome.problems.append(problem("invalid", path, why, size))
        if high is not None and size > high:
            outcome.problems.append(too_many(path, size, high))
        if unique and len({orjson.dumps(item, option=orjson.OPT_SORT_KEYS) for item in value}) < size:
            outcome.problems.append(
                problem("invalid", path, f"{path} in body shouldn't contain duplicates", "")
            )
        outcome.matches += 1

    return check if items is not None or low is not None or high is not None or unique else None


def too_many(path: str, size: int, limit: int) -> FieldError:
    return FieldError(
        "FieldValueTooMany", path, f"Too many: {size}: must have at most {limit} {_items(limit)}"
    )


def _items(count: int) -> str:
    return "item" if count == 1 else "items"


def _string(schema: Obj) -> Check | None:
    low, high, pattern = schema.get("minLength"), schema.get("maxLength"), schema.get("pattern")
    if low is None and high is None and not pattern:
        return None
    matcher = re.compile(go_pattern(pattern)) if pattern else None

    def check(value: Any, path: str, outcome: CheckResult) -> None:
        if type(value) is not str:
            return
        if high is not None and len(value) > high:
            unit = "byte" if high == 1 else "bytes"
            outcome.problems.append(problem("too_long", path, f"may not be more than {high} {unit}"))
        elif low is not None and len(value) < low:
            why = f"{path} in body should be at least {low} chars long"
            outcome.problems.append(problem("invalid", path, why, value))
        elif matcher is not None and not matcher.search(value):
            why = f"{path} in body should match '{pattern}'"
            outcome.problems.append(problem("invalid", path, why, value))

    return check


def go_pattern(pattern: str) -> str:
    """Go's RE2 as Python reads it: `$` ends the text, and POSIX classes are spelled out."""
    out = pattern.replace(r"\z", r"\Z")
    for name, characters in _POSIX.items():
        out = out.replace(f"[:{name}:]", characters)
    return re.sub(r"(?<!\\)\$$", r"\\Z", re.sub(r"(?<!\\)\$\)", r"\\Z)", out))


_POSIX = {
    "alpha": "A-Za-z",
    "digit": "0-9",
    "alnum": "A-Za-z0-9",
    "upper": "A-Z",
    "lower": "a-z",
    "space": r"\s",
    "xdigit": "0-9A-Fa-f",
}


def _format(schema: Obj) -> Check | None:
    name = effective(schema)
    good = CHECKS.get(name.replace("-", ""))
    if good is None:
        return None

    def check(value: Any, path: str, outcome: CheckResult) -> None:
        if type(value) is not str:
            return
        if not good(value):
            why = f'{path} in body must be of type {name}: "{value}"'
            outcome.problems.append(problem("type", path, why, value))
        else:
            outcome.matches += 1

    return check


def _number(schema: Obj) -> Check | None:
    low, high, factor = schema.get("minimum"), schema.get("maximum"), schema.get("multipleOf")
    above, below = bool(schema.get("exclusiveMinimum")), bool(schema.get("exclusiveMaximum"))
    limits = {"int32": _INT32, "int64": _INT64}.get(schema.get("format", ""))
    kind, form = schema.get("type", ""), schema.get("format", "")
    whole = kind == "integer"
    if low is None and high is None and factor is None and limits is None and not whole:
        return None

    def check(value: Any, path: str, outcome: CheckResult) -> None:
        if type(value) not in (int, float):
            return

        def wrong(why: str) -> None:
            outcome.problems.append(problem("invalid", path, f"{path} in body should be {why}", value))

        if (limits and not limits[0] <= value <= limits[1]) or (whole and value != int(value)):
            how = f"with format {form}" if form else "(default format)"
            outcome.problems.append(
                problem("invalid", "", f"Checked value must be of type {kind} {how} in {path}", "")
            )
        if factor is not None and value % factor:
            wrong(f"a multiple of {shown(factor)}")
        if high is not None and (value >= high if below else value > high):
            wrong(f"less than {shown(high)}" if below else f"less than or equal to {shown(high)}")
        if low is not None and (value <= low if above else value < low):
            wrong(f"greater than {shown(low)}" if above else f"greater than or equal to {shown(low)}")
        outcome.matches += 1

    return check


def _enum(schema: Obj) -> Check | None:
    values = schema.get("enum")
    if not values:
        return None
    names = [value if isinstance(value, str) else orjson.dumps(value).decode() for value in values]

    def check(value: Any, path: str, outcome: CheckResult) -> None:
        # In Python True is 1 and 1.0 is 1; in JSON only the latter.
        if not any(
            value == allowed and isinstance(value, bool) is isinstance(allowed, bool) for allowed in values
        ):
            outcome.problems.append(supported(path, value, names))

    return check


def _object(schema: Obj) -> Check | None:
    properties = {key: _compile(inner) for key, inner in (schema.get("properties") or {}).items()}
    more = schema.get("additionalProperties")
    additional = _compile(more) if isinstance(more, dict) else None
    required = schema.get("required") or ()
    low, high = schema.get("minProperties"), schema.get("maxProperties")
    if not properties and additional is None and not required and low is None and high is None:
        return None

    def check(value: Any, path: str, outcome: CheckResult) -> None:
        if type(value) is not dict:
            return
        if low is not None and len(value) < low:
            why = f"{path} in body should have at least {low} properties"
            outcome.problems.append(problem("invalid", path, why, len(value)))
        if high is not None and len(value) > high:
            outcome.problems.append(too_many(path, len(value), high))
        prefix = f"{path}." if path else ""
        for key, inner in value.items():
            known = properties.get(key, additional)
            if known is not None:
                known(inner, prefix + key, outcome)
        for key in required:
            if key not in value:
                outcome.problems.append(problem("required", prefix + key))

    return check


_MAKERS = (_type, _combinations, _string, _format, _number, _array, _enum, _object)
