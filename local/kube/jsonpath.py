"""The JSONPath that definitions use: fields, indices, `[*]` and `[?(@.type=='Ready')]`, compiled once.

Rule: k8s.io/client-go/util/jsonpath with missing keys allowed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

_PART = re.compile(
    r"(?P<all>\[\*\]|\.\*)|\.(?P<name>(?:\\.|[^.\[\\])+)|\['(?P<quoted>[^']*)'\]|\[(?P<index>-?\d+)\]"
    r"|\[\?\(@\.(?P<key>[\w.]+)\s*==\s*['\"](?P<value>[^'\"]*)['\"]\)\]"
)
_Step = Callable[[Any], Iterable[Any]]


def dig(obj: Any, path: str) -> Any:
    """The value at a path such as `.spec.replicas`; None if there is none."""
    for part in path.strip(".").split("."):
        obj = obj.get(part) if isinstance(obj, dict) else None
    return obj


def _field(name: str) -> _Step:
    return lambda node: (node[name],) if isinstance(node, dict) and name in node else ()


def _item(index: int) -> _Step:
    def step(node: Any) -> Iterable[Any]:
        return (node[index],) if isinstance(node, list) and -len(node) <= index < len(node) else ()

    return step


def _every(node: Any) -> Iterable[Any]:
    return node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()


def _where(path: str, value: str) -> _Step:
    def step(node: Any) -> Iterable[Any]:
        return [entry for entry in node if dig(entry, path) == value] if isinstance(node, list) else ()

    return step


@cache
def compiled(path: str) -> Callable[[Any], list[Any]]:
    """A function that finds all values at a path; a path that makes no sense finds nothing."""
    steps: list[_Step] = []
    position = 0
    while position < len(path):
        match = _PART.match(path, position)
        if match is None:
            return lambda _: []
        position = match.end()
        if match["all"]:
            steps.append(_every)
        elif match["index"] is not None:
            steps.append(_item(int(match["index"])))
        elif match["key"] is not None:
            steps.append(_where(match["key"], match["value"]))
        else:
            name = match["quoted"] if match["name"] is None else re.sub(r"\\(.)", r"\1", match["name"])
            steps.append(_field(name))

    def find(value: Any) -> list[Any]:
        nodes = [value]
        for step in steps:
            nodes = [value for node in nodes for value in step(node)]
        return nodes

    return find
