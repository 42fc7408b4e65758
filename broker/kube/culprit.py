"""Finds in a traceback the object that the code worked on where it failed."""

from __future__ import annotations

import ast
import linecache
import textwrap
from collections.abc import Iterator
from dataclasses import is_dataclass
from types import FrameType, TracebackType

from broker.apis.meta import Object


def culprit(trace: TracebackType | None) -> object | None:
    """The object that the code worked on where it failed: an Object, or a value that has its uid.

    In the innermost frame that has any, those named by the expression that failed come first; of several,
    the one that the frame met last.
    """
    frames: list[tuple[FrameType, int]] = []
    while trace is not None:
        frames.append((trace.tb_frame, trace.tb_lasti))
        trace = trace.tb_next
    for frame, at in reversed(frames):
        suspects = {name: value for name, value in frame.f_locals.items() if _is_suspect(value)}
        if suspects:
            named = [suspects[name] for name in _names(frame, at) if name in suspects]
            found: object = (named or [*suspects.values()])[-1]
            return found
    return None


def _is_suspect(value: object) -> bool:
    if isinstance(value, Object):
        return bool(value.metadata.name)
    uid = getattr(value, "uid", "") if is_dataclass(value) and not isinstance(value, type) else ""
    return isinstance(uid, str) and bool(uid)


def _names(frame: FrameType, at: int) -> Iterator[str]:
    """The variables in the source of the instruction at this offset."""
    positions = [*frame.f_code.co_positions()]
    first, last, begin, end = positions[at // 2] if at // 2 < len(positions) else (None,) * 4
    if first is None or last is None or begin is None or end is None:
        return
    lines = [linecache.getline(frame.f_code.co_filename, line) for line in range(first, last + 1)]
    if not all(lines):
        return
    lines[-1] = lines[-1].encode()[:end].decode(errors="ignore")
    lines[0] = lines[0].encode()[begin:].decode(errors="ignore")
    try:
        tree = ast.parse(f"({textwrap.dedent(''.join(lines))})", mode="eval")
    except (SyntaxError, ValueError):
        return
    yield from (node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
