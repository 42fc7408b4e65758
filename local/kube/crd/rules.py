"""x-kubernetes-validations: CEL rules of a structural schema, with transition rules and message expressions.

Rule: https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#validation-rules
The CEL interpreter is imported with the first definition that has rules; it checks types when a rule runs,
not when it is written. A rule reads only its values, so it is not evaluated again on the same ones.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from hashlib import blake2b
from typing import Any

import orjson

from local.kube.crd.functions import EXTENSIONS, as_duration
from local.kube.errors import FieldError, problem
from local.kube.times import parse
from local.kube.wire import Obj

_OLD_SELF = re.compile(r"\boldSelf\b")
_REASONS = {
    "FieldValueForbidden": "forbidden",
    "FieldValueRequired": "required",
    "FieldValueDuplicate": "duplicate",
}
_RESERVED = frozenset(
    [
        "true",
        "false",
        "null",
        "in",
        "as",
        "break",
        "const",
        "continue",
        "else",
        "for",
        "function",
        "if",
        "import",
        "let",
        "loop",
        "package",
        "namespace",
        "return",
        "var",
        "void",
        "while",
    ]
)
_SYMBOLS = {".": "__dot__", "-": "__dash__", "/": "__slash__"}
_REMEMBERED = 512  # cached values that satisfy the rules at one place
FAILURES = (TypeError, ValueError, KeyError, IndexError, ZeroDivisionError, RuntimeError, OverflowError)


@dataclass(frozen=True, slots=True)
class CelRule:
    source: str
    program: Any
    message: str
    message_program: Any
    reason: str
    field_path: str
    transition: bool
    optional_old: bool


@dataclass(slots=True)
class CelRuleNode:
    """The rules at one place of a schema, and below it."""

    schema: Obj
    rules: list[CelRule] = field(default_factory=list)
    properties: dict[str, CelRuleNode] = field(default_factory=dict)
    more: CelRuleNode | None = None
    items: CelRuleNode | None = None
    all_of: list[CelRuleNode] = field(default_factory=list)
    root: bool = False
    holds: set[bytes] = field(default_factory=set)  # digests of values that satisfy all rules here

    @property
    def empty(self) -> bool:
        return not (self.rules or self.properties or self.more or self.items or self.all_of)


def compiled(schema: Obj) -> CelRuleNode | None:
    """None when the schema has no rules. Raises ValueError for a rule that is no CEL; see `problems`."""
    return _node(schema, root=True)


def _node(schema: Any, *, root: bool = False) -> CelRuleNode | None:
    if not isinstance(schema, dict):
        return None
    node = CelRuleNode(schema, root=root or bool(schema.get("x-kubernetes-embedded-resource")))
    node.rules = [_rule(raw) for raw in schema.get("x-kubernetes-validations") or ()]
    for name, inner in (schema.get("properties") or {}).items():
        if (child := _node(inner)) is not None:
            node.properties[name] = child
    node.more, node.items = _node(schema.get("additionalProperties")), _node(schema.get("items"))
    node.all_of = [child for inner in schema.get("allOf") or () if (child := _node(inner)) is not None]
    return None if node.empty else node


def _rule(raw: Obj) -> CelRule:
    source, expression = raw["rule"], raw.get("messageExpression", "")
    return CelRule(
        source,
        program(source),
        raw.get("message", "").strip(),
        program(expression) if expression else None,
        raw.get("reason") or "",
        raw.get("fieldPath", ""),
        bool(_OLD_SELF.search(source)),
        bool(raw.get("optionalOldSelf")),
    )


@cache
def program(source: str) -> Any:
    import cel

    return cel.compile(source)


@cache
def _context() -> Callable[[Obj], Any]:
    import cel

    def make(variables: Obj) -> Any:
        context = cel.Context(variables)
        cel.stdlib.add_stdlib_to_context(context)
        for name, function in EXTENSIONS.items():
            context.add_function(name, function)
        return context

    return make


def evaluate(source: str, variables: Obj) -> Any:
    """The value of an expression. Raises one of FAILURES."""
    return program(source).execute(_context()(variables))


def check(node: CelRuleNode, new: Any, old: Any, path: str = "") -> list[FieldError]:
    """The violations of the rules by a value; `old` is the value that it replaces, or None."""
    return list(_check(node, new, old, path, False))


def _check(node: CelRuleNode, new: Any, old: Any, path: str, same: bool) -> Iterator[FieldError]:
    if new is None:
        return
    # An update is not refused for a value that it does not change.
    same = same or (old is not None and new == old)
    yield from _expressions(node, new, old, path, same)
    for inner in node.all_of:
        yield from _check(inner, new, old, path, False)
    if isinstance(new, list) and node.items is not None:
        before = _correlated(node.schema, old)
        for i, item in enumerate(new):
            yield from _check(node.items, item, before(item), f"{path}[{i}]", same)
    elif isinstance(new, dict):
        was = old if isinstance(old, dict) else {}
        for key, value in new.items():
            if key in node.properties:
                where = f"{path}.{key}" if path else key
                yield from _check(node.properties[key], value, was.get(key), where, same)
            elif node.more is not None and key not in (node.schema.get("properties") or {}):
                yield from _check(node.more, value, was.get(key), f"{path}[{key}]", same)


def _correlated(schema: Obj, old: Any) -> Callable[[Any], Any]:
    """Entries of a map list are compared with the entry of the same keys; of other lists with nothing."""
    keys = schema.get("x-kubernetes-list-map-keys") or ()
    if schema.get("x-kubernetes-list-type") != "map" or not isinstance(old, list):
        return lambda _: None
    index = {tuple(repr(entry.get(key)) for key in keys): entry for entry in old if isinstance(entry, dict)}
    return lambda entry: (
        index.get(tuple(repr(entry.get(key)) for key in keys)) if isinstance(entry, dict) else None
    )


def _expressions(node: CelRuleNode, new: Any, old: Any, path: str, same: bool) -> Iterator[FieldError]:
    if not node.rules:
        return
    digest = _digest(node, new, old, same)
    if digest in node.holds:
        return
    errors = list(_evaluated(node, new, old, path, same))
    yield from errors
    if digest and not errors:
        if len(node.holds) >= _REMEMBERED:
            node.holds.clear()
        node.holds.add(digest)


def _digest(node: CelRuleNode, new: Any, old: Any, same: bool) -> bytes:
    """The digest of all inputs of the rules here; empty if they cannot be serialized."""
    reads = [new, old if any(rule.transition for rule in node.rules) else None, same]
    try:
        return blake2b(orjson.dumps(reads), digest_size=16).digest()
    except TypeError:
        return b""


def _evaluated(node: CelRuleNode, new: Any, old: Any, path: str, same: bool) -> Iterator[FieldError]:
    kind = node.schema.get("type", "")
    variables: Obj = {"self": _bound(new, node.schema, root=node.root)}
    for rule in node.rules:
        if rule.transition:
            if old is None and not rule.optional_old:
                continue
            variables["oldSelf"] = _old(old, node, optional=rule.optional_old)
        context = _context()(variables)
        try:
            outcome = rule.program.execute(context)
        except FAILURES as error:
            yield problem(
                "invalid", path, f"{_failure(error)} evaluating rule: {rule.message or rule.source}", kind
            )
            continue
        if outcome is True or (same and not rule.transition):
            continue
        detail = _message(rule, context)
        where = path + rule.field_path if path else rule.field_path.lstrip(".")
        value = new if kind not in ("object", "array") else None
        yield _error(rule, where, detail, value, structural=kind in ("object", "array"))


def _error(rule: CelRule, path: str, detail: str, value: Any, *, structural: bool) -> FieldError:
    kind = _REASONS.get(rule.reason, "invalid")
    if kind == "duplicate":
        detail = ""
    if structural and kind in ("invalid", "duplicate"):
        label = "Invalid value" if kind == "invalid" else "Duplicate value"
        reason = "FieldValueInvalid" if kind == "invalid" else "FieldValueDuplicate"
        return FieldError(reason, path or "<nil>", f"{label}: {detail}" if detail else label)
    return problem(kind, path, detail, value)


def _failure(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"no such key: {error.args[0]}"
    if isinstance(error, ZeroDivisionError):
        return "division by zero"
    return str(error.args[0] if error.args else error).splitlines()[0]


def _message(rule: CelRule, context: Any) -> str:
    if rule.message_program is not None:
        try:
            text = rule.message_program.execute(context)
        except FAILURES:
            text = None
        if isinstance(text, str) and text.strip() and "\n" not in text.strip():
            return text.strip()
    return rule.message or f"failed rule: {rule.source}"


def _old(old: Any, node: CelRuleNode, *, optional: bool) -> Any:
    bound = _bound(old, node.schema, root=node.root) if old is not None else None
    if not optional:
        return bound
    import cel

    return cel.OptionalValue.none() if old is None else cel.OptionalValue.of(bound)


def _bound(value: Any, schema: Any, *, root: bool = False) -> Any:
    """A value as rules see it: times and durations typed, field names escaped, only names of the metadata."""
    if not isinstance(schema, dict):
        return value
    if isinstance(value, dict):
        properties, more = schema.get("properties") or {}, schema.get("additionalProperties")
        if root:
            meta = {key: value.get("metadata", {}).get(key) for key in ("name", "generateName")}
            value = {**value, "metadata": {key: item for key, item in meta.items() if item is not None}}
        return {
            (escaped(key) if key in properties else key): _bound(item, properties.get(key, more))
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [_bound(item, schema.get("items")) for item in value]
    if isinstance(value, str) and (form := schema.get("format")):
        if form in ("date-time", "date"):
            return parse(value) or value
        if form == "duration":
            return as_duration(value)
    if isinstance(value, int) and schema.get("type") == "number" and not isinstance(value, bool):
        return float(value)
    return value


@cache
def escaped(name: str) -> str:
    """A property's name as an identifier of CEL."""
    if name in _RESERVED:
        return f"__{name}__"
    out = name.replace("__", "__underscores__")
    for symbol, word in _SYMBOLS.items():
        out = out.replace(symbol, word)
    return out


def broken(schema: Any, path: str) -> list[FieldError]:
    """The rules of a definition that are no CEL."""
    out: list[FieldError] = []
    if not isinstance(schema, dict):
        return out
    for i, raw in enumerate(schema.get("x-kubernetes-validations") or ()):
        for part in ("rule", "messageExpression"):
            if not (source := raw.get(part)):
                continue
            try:
                program(source)
            except ValueError as error:
                where = f"{path}.x-kubernetes-validations[{i}].{part}"
                out.append(problem("invalid", where, f"compilation failed: {error}", source))
    for name, inner in (schema.get("properties") or {}).items():
        out += broken(inner, f"{path}.properties[{name}]")
    for part in ("items", "additionalProperties"):
        out += broken(schema.get(part), f"{path}.{part}")
    for i, inner in enumerate(schema.get("allOf") or ()):
        out += broken(inner, f"{path}.allOf[{i}]")
    return out
