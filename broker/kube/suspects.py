"""Which objects the code may have failed on, read out of a traceback."""

from __future__ import annotations

import ast
import linecache
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from types import FrameType, TracebackType

from broker.apis.meta import Object

# Frames of the loops: their variables name the loop, not the object that it failed on.
LOOPS = frozenset({"broker.kube.controller", "broker.kube.singleton"})
LONGEST = 512  # characters of a text that may be the name of an object


@dataclass(frozen=True, slots=True, eq=False)
class Panic:
    """`where` is the same for panics of the same code with the same type of exception.

    `suspects`, the likeliest first: Objects, values that have the uid of one, and texts that may name one.
    `nearest` is how many objects are in the innermost frame that has any.
    """

    error: str
    where: tuple[object, ...]
    suspects: tuple[object, ...] = ()
    nearest: int = 0


class CulpritFound(Exception):
    """The code has found the object that it fails on; raise it `from` the error."""

    def __init__(self, suspect: object) -> None:
        super().__init__(f"with this and not without it: {suspect}")
        self.suspect = suspect


class DeferredPanic(Exception):
    """A panic that was guarded until its pass had done the rest, and is raised then."""

    def __init__(self, panic: Panic) -> None:
        super().__init__(panic.error)
        self.panic = panic


def panic_of(error: Exception) -> Panic:
    """The panic behind an exception; nothing in it holds a frame."""
    if isinstance(error, DeferredPanic):
        return error.panic
    cause = error.__cause__ if isinstance(error, CulpritFound) else error
    error_text = str(cause) or type(cause).__name__
    try:
        return _read(error, type(cause).__name__, error_text)
    except Exception:  # noqa: BLE001 an error in reading the variables must not hide the failure itself
        return Panic(error=error_text, where=(type(cause).__name__,))


def _read(error: Exception, type_: str, error_text: str) -> Panic:
    frames = [*_frames(error.__traceback__)]
    first: tuple[object, ...] = ()
    suspects_and_texts: list[object] = [error.suspect] if isinstance(error, CulpritFound) else []
    nearest = len(suspects_and_texts)
    for frame, at in frames:
        values = frame.f_locals
        suspects = {name: value for name, value in values.items() if _is_suspect(value)}
        if suspects and not first:
            first = (frame.f_code.co_filename, frame.f_code.co_name)
        nearest = nearest or len({id(value) for value in suspects.values()})
        suspects_and_texts += [suspects[name] for name in reversed([*_names(frame, at)]) if name in suspects]
        suspects_and_texts += reversed(suspects.values())
        for value in reversed(values.values()):
            suspects_and_texts += _texts(value)
    if not first and frames:
        first = (frames[0][0].f_code.co_filename, frames[0][0].f_code.co_name)
    unique = {suspect if isinstance(suspect, str) else id(suspect): suspect for suspect in suspects_and_texts}
    return Panic(error=error_text, where=(type_, *first), suspects=tuple(unique.values()), nearest=nearest)


def _frames(trace: TracebackType | None) -> Iterator[tuple[FrameType, int]]:
    """The innermost first."""
    frames: list[tuple[FrameType, int]] = []
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__") not in LOOPS:
            frames.append((trace.tb_frame, trace.tb_lasti))
        trace = trace.tb_next
    # Of an endless recursion the first and the last calls suffice.
    return reversed(frames if len(frames) <= 60 else [*frames[:30], *frames[-30:]])


def _is_suspect(value: object) -> bool:
    if isinstance(value, Object):
        return bool(value.metadata.name)
    uid = getattr(value, "uid", "") if _is_record(value) else ""
    return isinstance(uid, str) and bool(uid)


def _is_record(value: object) -> bool:
    return is_dataclass(value) and not isinstance(value, type)


def _texts(value: object) -> Iterator[str]:
    """Texts in it that may name an object."""
    if isinstance(value, str):
        if 0 < len(value) <= LONGEST:
            yield value
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            inner = getattr(value, field.name, None)
            if isinstance(inner, str):
                yield from _texts(inner)
            elif _is_record(inner) and "__str__" in vars(type(inner)):
                yield from _texts(str(inner))
        if "__str__" in vars(type(value)):
            yield from _texts(str(value))


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
