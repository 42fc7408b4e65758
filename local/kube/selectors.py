"""Label and field selectors, parsed once into predicates.

Rules: k8s.io/apimachinery/pkg/labels and pkg/fields; the messages are those of these packages.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping

from local.kube.errors import StatusError, bad_request, problem
from local.kube.names import label_value, qualified
from local.kube.wire import Obj

Predicate = Callable[[Obj], bool]
_Labels = Mapping[str, str]
_Test = Callable[[_Labels], bool]
_TOKEN = re.compile(r"\s*(==|!=|=|!|\(|\)|,|<|>|[^\s=!(),<>]+)")
_SYMBOLS = frozenset({"==", "!=", "=", "!", "(", ")", ",", "<", ">", ""})
_BINARY = "in, notin, =, ==, !=, gt, lt"


def labels(text: str) -> Predicate:
    tests = _Parser(text).requirements()

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


_OPERATORS: dict[str, Callable[[str, Collection[str]], _Test]] = {
    "In": lambda key, values: lambda have: have.get(key) in values if key in have else False,
    "NotIn": lambda key, values: lambda have: have.get(key) not in values,
    "Exists": lambda key, _: lambda have: key in have,
    "DoesNotExist": lambda key, _: lambda have: key not in have,
    "Gt": lambda key, values: lambda have: _above(have.get(key), next(iter(values))),
    "Lt": lambda key, values: lambda have: _above(next(iter(values)), have.get(key)),
}
_NAMES = {"=": "In", "==": "In", "!=": "NotIn", "in": "In", "notin": "NotIn", ">": "Gt", "<": "Lt"}


def _above(left: str | None, right: str | None) -> bool:
    try:
        return int(left or "") > int(right or "")
    except ValueError:
        return False


def _wrong(why: str, *, inside: bool = False) -> StatusError:
    return bad_request(f"unable to parse requirement: {why}" if inside else why)


class _Parser:
    """`key`, `!key`, `key in (a,b)`, `key notin (a)`, `key=a`, `key!=a`, `key>1`, with commas between."""

    def __init__(self, text: str) -> None:
        self._tokens = _TOKEN.findall(text)
        self._at = 0

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self) -> str:
        token = self._peek()
        self._at += 1
        return token

    def requirements(self) -> list[_Test]:
        out: list[_Test] = []
        while (token := self._peek()) != "":
            if token in _SYMBOLS and token != "!":
                raise _wrong(f"found '{token}', expected: !, identifier, or 'end of string'")
            out.append(self._requirement())
            separator = self._take()
            if separator == "":
                break
            if separator != ",":
                raise _wrong(f"found '{separator}', expected: ',' or 'end of string'")
            following = self._peek()
            if following in _SYMBOLS and following != "!":
                raise _wrong(f"found '{following}', expected: identifier after ','")
        return out

    def _requirement(self) -> _Test:
        negated = self._peek() == "!"
        if negated:
            self._take()
        key = self._take()
        if key in _SYMBOLS:
            raise _wrong(f"found '{key}', expected: identifier", inside=True)
        _check(key, "", qualified(key))
        if negated or self._peek() in ("", ","):
            return _OPERATORS["DoesNotExist" if negated else "Exists"](key, ())
        operator = self._take()
        if operator not in _NAMES:
            raise _wrong(f"found '{operator}', expected: {_BINARY}", inside=True)
        values = self._values() if operator in ("in", "notin") else [self._value()]
        for i, value in enumerate(sorted(set(values))):
            _check(value, f"values[{i}][{key}]", label_value(value))
        if operator in "<>" and not values[0].removeprefix("-").isdigit():
            why = "for 'Gt', 'Lt' operators, the value must be an integer"
            _check(values[0], "values[0]", [why])
        return _OPERATORS[_NAMES[operator]](key, frozenset(values))

    def _value(self) -> str:
        if self._peek() in ("", ","):
            return ""
        token = self._take()
        if token in _SYMBOLS:
            raise _wrong(f"found '{token}', expected: identifier", inside=True)
        return token

    def _values(self) -> list[str]:
        token = self._take()
        if token != "(":
            raise _wrong(f"found '{token}' expected: '('", inside=True)
        if self._peek() in _SYMBOLS - {",", ")"}:
            raise _wrong(f"found '{self._peek()}', expected: ',', ')' or identifier", inside=True)
        values: list[str] = []
        while True:
            token = self._take()
            if token == ")":
                return values or [""]
            if token == ",":
                if not values:
                    values.append("")
                if self._peek() in (",", ")"):
                    values.append("")
            elif token in _SYMBOLS:
                raise _wrong(f"found '{token}', expected: ',', or identifier", inside=True)
            else:
                values.append(token)
                if self._peek() not in (",", ")"):
                    raise _wrong(f"found '{self._peek()}', expected: ',' or ')'", inside=True)


def _check(value: str, path: str, problems: Iterable[str]) -> None:
    if text := "; ".join(problems):
        raise _wrong(str(problem("invalid", path, text, value)), inside=True)


def fields(text: str, known: Mapping[str, Callable[[Obj], str]], unknown: str) -> Predicate | None:
    """`known` maps each selectable field to its reader; `unknown` makes the error for another field.

    None if the selector is empty.
    """
    tests: list[tuple[Callable[[Obj], str], str, bool]] = []
    for term in filter(None, re.split(r"(?<!\\),", text)):
        operator = re.search("!=|==|=", term)
        if operator is None:
            raise bad_request(f"invalid selector: '{text}'; can't understand '{term}'")
        name, value = term[: operator.start()], _unescaped(term[operator.end() :])
        if not name and not value:
            continue
        if name not in known:
            raise bad_request(unknown.format(name=name))
        tests.append((known[name], value, operator[0] == "!="))
    if not tests:
        return None
    return lambda obj: all((read(obj) == value) is not negated for read, value, negated in tests)


def _unescaped(text: str) -> str:
    if re.search(r"(?<!\\)[,=]", text):
        letter = re.search(r"(?<!\\)[,=]", text)
        assert letter is not None
        raise bad_request(f"invalid field selector: unescaped character in value: {ord(letter[0])}")
    return re.sub(r"\\([\\,=])", r"\1", text)


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
