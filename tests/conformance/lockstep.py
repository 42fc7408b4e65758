"""Sends one sequence to two servers, request by request, and reports where their responses differ.

After a difference the sequence goes on while both servers still hold the same object. Otherwise all later
responses would differ too, and the sequence ends.
"""

import re
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson
import urllib3

from tests.conformance.mask import Mask
from tests.conformance.steps import History, Sequence, Step, Stream
from tests.controlplane.client import Answer, Api, Watch

SILENCE = 60.0  # seconds after which a watch that ought to have an event counts as silent
LAST = "zz-last"
MISSING = "(nothing)"


@dataclass
class Side:
    """One server in one sequence."""

    api: Api
    mask: Mask = field(default_factory=Mask)
    history: History = field(default_factory=History)
    _starts: dict[str, str] = field(default_factory=dict)
    _live: dict[int, Watch] = field(default_factory=dict)

    def send(self, step: Step) -> dict[str, Any]:
        body = self.history.resolve(step.body)
        data = body.encode() if isinstance(body, str) else None if body is None else orjson.dumps(body)
        headers = {"Accept": step.accept} | ({"Content-Type": step.content} if data is not None else {})
        answer = self.api.send(step.method, step.path, self.history.resolve(dict(step.query)), data, headers)
        self.history.record(step, answer.status, answer.body)
        return self._masked(answer)

    def _masked(self, answer: Answer) -> dict[str, Any]:
        out = {"status": answer.status, "body": self.mask.value(answer.body)}
        if answer.warnings:
            out["warnings"] = [self.mask.message(w) for w in answer.warnings]
        return out

    def open(self, streams: tuple[Stream, ...]) -> None:
        for path in sorted({stream.path for stream in streams}):
            self._starts[path] = self.api.request("GET", path).body["metadata"]["resourceVersion"]
        for index, stream in enumerate(streams):
            if stream.live:
                self._live[index] = self._watch(stream)

    def close(self) -> None:
        for watch in self._live.values():
            watch.close()

    def events(self, streams: tuple[Stream, ...]) -> list[Any]:
        """The events of each watch, up to the object that is created now."""
        for path, last in {stream.path: stream.last for stream in streams}.items():
            self.api.request("POST", path, body=last)
        return [self._read(self._live.get(i) or self._watch(stream)) for i, stream in enumerate(streams)]

    def _watch(self, stream: Stream) -> Watch:
        query = {"resourceVersion": self._starts[stream.path], **stream.query}
        return self.api.watch(stream.path, query, patience=SILENCE)

    def _read(self, watch: Watch) -> Any:
        seen = []
        with watch:
            try:
                while (event := watch.next()) is not None:
                    if _plain_bookmark(event):
                        continue
                    seen.append(self.mask.value(event))
                    if (event["object"].get("metadata") or {}).get("name") == LAST:
                        break
            except urllib3.exceptions.ReadTimeoutError:
                seen.append({"type": f"nothing for {SILENCE} s"})
        return {"status": watch.status, "events": seen}

    def peek(self, path: str) -> Any:
        answer = self.api.send("GET", path)
        return {"status": answer.status, "body": self.mask.value(answer.body)}


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One request with different responses; `embedded` and `real` are masked."""

    sequence: Sequence
    index: int
    request: Step | Stream
    embedded: Any
    real: Any
    parted: bool

    def changes(self) -> list[tuple[str, Any, Any]]:
        return list(changes(self.real, self.embedded))


def run(
    sequence: Sequence, embedded: Api, real: Api, *, ignore: frozenset[str] = frozenset()
) -> Generator[Difference]:
    """The differences of two servers over one sequence; keys in `ignore` are not compared."""
    sides = tuple(Side(api, Mask(ignore=ignore)) for api in (embedded, real))
    for side in sides:
        side.open(sequence.streams)
    try:
        for index, step in enumerate(sequence.steps):
            embedded_answer, real_answer = (side.send(step) for side in sides)
            if embedded_answer == real_answer:
                continue
            parted = _parted(step, *sides)
            yield Difference(
                sequence=sequence,
                index=index,
                request=step,
                embedded=embedded_answer,
                real=real_answer,
                parted=parted,
            )
            if parted:
                return
        seen = [side.events(sequence.streams) for side in sides]
        for stream, embedded_answer, real_answer in zip(sequence.streams, *seen, strict=True):
            if embedded_answer != real_answer:
                yield Difference(
                    sequence=sequence,
                    index=len(sequence.steps),
                    request=stream,
                    embedded=embedded_answer,
                    real=real_answer,
                    parted=False,
                )
    finally:
        for side in sides:
            side.close()


def _plain_bookmark(event: Any) -> bool:
    """A bookmark comes at any time, except the one that ends the initial events."""
    return event.get("type") == "BOOKMARK" and not event["object"]["metadata"].get("annotations")


def _parted(step: Step, left: Side, right: Side) -> bool:
    """Whether the two servers hold different objects after a request with different responses."""
    if step.method == "GET":
        # Both are read again, so that versions which only one has shown so far get their names.
        for side in (left, right):
            side.peek(step.path)
        return False
    item = re.sub(r"/(status|scale|binding|eviction)$", "", step.path)
    collection = item if step.method == "POST" and item == step.path else item.rpartition("/")[0]
    return bool(left.peek(item) != right.peek(item) or left.peek(collection) != right.peek(collection))


def changes(old: Any, new: Any, at: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The differences of two values: path, old, new; MISSING if one has none."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            yield from changes(old.get(key, MISSING), new.get(key, MISSING), f"{at}.{key}" if at else key)
    elif isinstance(old, list) and isinstance(new, list):
        for index in range(max(len(old), len(new))):
            left, right = (side[index] if index < len(side) else MISSING for side in (old, new))
            yield from changes(left, right, f"{at}[{index}]")
    elif type(old) is not type(new) or old != new:
        yield at, old, new
