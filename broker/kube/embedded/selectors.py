"""Label and field selectors, parsed once into predicates.

Rules: k8s.io/apimachinery/pkg/labels and pkg/fields; the messages are theirs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping

from .errors import ApiError, bad_request
from .wire import Obj

Predicate = Callable[[Obj], bool]
_Labels = Mapping[str, str]
_TOKEN = re.compile(r"\s*(==|!=|=|!|\(|\)|,|<|>|[^\s=!(),<>]+)")
_NAME = re.compile(r"^[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?$")
_PREFIX = re.compile(r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$")


def labels(text: str) -> Predicate:
    tests = _requirements(text)

    def match(obj: Obj) -> bool:
        have = obj["metadata"].get("labels") or {}
        return all(test(have) for test in tests)

    return match


def matches(selector: Obj | None, have: _Labels) -> bool:
    """A LabelSelector object; None selects nothing and an empty one everything."""
    if selector is None:
        return False
    if any(have.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    for term in selector.get("matchExpressions") or ():
        key, values = term["key"], term.get("values") or ()
        if not _OPERATORS[term["operator"]](key, values)(have):
            return False
    return True


_OPERATORS: dict[str, Callable[[str, Collection[str]], Callable[[_Labels], bool]]] = {
    "In": lambda key, values: lambda have: have.get(key) in values if key in have else False,
    "NotIn": lambda key, values: lambda have: have.get(key) not in values,
    "Exists": lambda key, _: lambda have: key in have,
    "DoesNotExist": lambda key, _: lambda have: key not in have,
    "Gt": lambda key, values: lambda have: _above(have.get(key), next(iter(values))),
    "Lt": lambda key, values: lambda have: _above(next(iter(values)), have.get(key)),
}


def _above(left: str | None, right: str | None) -> bool:
    try:
        return int(left or "") > int(right or "")
    except ValueError:
        return False


def _requirements(text: str) -> list[Callable[[_Labels], bool]]:
    tokens = _TOKEN.findall(text)
    out: list[Callable[[_Labels], bool]] = []
    position = 0

    def peek() -> str:
        return tokens[position] if position < len(tokens) else ""

    def take() -> str:
        nonlocal position
        position += 1
        return tokens[position - 1] if position <= len(tokens) else ""

    if not tokens:
        return out
    while True:
        negated = peek() == "!"
        if negated:
            take()
        key = take()
        _check_key(key, text)
        if negated:
            out.append(_OPERATORS["DoesNotExist"](key, ()))
        elif peek() in ("", ","):
            out.append(_OPERATORS["Exists"](key, ()))
        else:
            out.append(_binary(take(), key, peek, take))
        separator = take()
        if not separator:
            return out
        if separator != ",":
            raise _unparsable(f"found '{separator}', expected: ',' or 'end of string'")


def _binary(
    operator: str, key: str, peek: Callable[[], str], take: Callable[[], str]
) -> Callable[[_Labels], bool]:
    if operator in ("in", "notin"):
        values = _set(operator, peek, take)
        return _OPERATORS["In" if operator == "in" else "NotIn"](key, values)
    if operator in ("=", "==", "!="):
        value = "" if peek() in ("", ",") else take()
        return _OPERATORS["NotIn" if operator == "!=" else "In"](key, (_check_value(value, key),))
    if operator in ("<", ">"):
        return _OPERATORS["Lt" if operator == "<" else "Gt"](key, (take(),))
    raise _unparsable(f"found '{operator}', expected: in, notin, =, ==, !=, gt, lt")


def _set(operator: str, peek: Callable[[], str], take: Callable[[], str]) -> list[str]:
    if take() != "(":
        raise _unparsable(f"found '{operator}', expected: '('")
    values: list[str] = []
    while True:
        token = take()
        if token == ")":
            return values or [""]
        if token == "":
            raise _unparsable("found '', expected: ',', ')' or identifier")
        if token == ",":
            if peek() in (",", ")"):
                values.append("")
            continue
        values.append(token)


def _check_key(key: str, text: str) -> None:
    prefix, slash, name = key.rpartition("/")
    if not key or key in "=!(),<>" or key == "==":
        raise _unparsable(f"found '{key}', expected: !, identifier, or 'end of string'")
    if not _NAME.match(name) or len(name) > 63 or (slash and not _PREFIX.match(prefix)):
        raise _unparsable(
            f"<nil>: Invalid value: \"{key}\": name part must consist of alphanumeric characters, '-', '_' "
            "or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  "
            "or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
        )


def _check_value(value: str, key: str) -> str:
    if value and (not _NAME.match(value) or len(value) > 63):
        raise _unparsable(
            f'values[0][{key}]: Invalid value: "{value}": a valid label must be an empty string or consist of '
            "alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character "
            "(e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
            "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
        )
    return value


def _unparsable(why: str) -> ApiError:
    return bad_request(f"unable to parse requirement: {why}")


def fields(text: str, known: Mapping[str, Callable[[Obj], str]], unknown: str) -> Predicate:
    """`known` says which fields can be selected and how each is read, `unknown` what is said of another."""
    tests: list[tuple[Callable[[Obj], str], str, bool]] = []
    for part in filter(None, text.split(",")):
        for operator in ("!=", "==", "="):
            name, found, value = part.partition(operator)
            if found:
                break
        else:
            raise bad_request(f"invalid selector: '{text}'; can't understand '{part}'")
        if not name and not value:
            continue  # says nothing
        if name not in known:
            raise bad_request(unknown.format(name=name))
        tests.append((known[name], value, operator == "!="))
    return lambda obj: all((read(obj) == value) is not negated for read, value, negated in tests)


def path_reader(path: str) -> Callable[[Obj], str]:
    """Reads `.spec.nodeName` and the like as the text that field selectors compare."""
    parts = path.lstrip(".").split(".")

    def read(obj: Obj) -> str:
        value: object = obj
        for part in parts:
            value = value.get(part) if isinstance(value, dict) else None
        if value is None:
            return ""
        return str(value).lower() if isinstance(value, bool) else str(value)

    return read
