"""The slots of a reservation over time: figures, and a picture with a row a slot and a letter a use.

A sample is what EC2 and Kubernetes show at one moment; it holds until the next one. The picture gives each
slot a row, although EC2 does not number them: a new instance takes the row that became empty first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

OLD, DRAINS, EMPTY, KEPT, STARTS, NEW = "o", "d", ".", "k", "s", "N"
MEANINGS: Final[Mapping[str, str]] = {
    OLD: "old node",
    DRAINS: "old node that ends",
    EMPTY: "empty",
    KEPT: "empty, and kept for the successor",
    STARTS: "new node without pods",
    NEW: "new node with pods",
}
WIDTH: Final = 100  # characters of a picture's line
_LABEL: Final = 13
_TICK: Final = 20  # columns between two times
# A column shows the first of these uses that occurs in its time: none is too short to be seen.
_SHOWN: Final = (EMPTY, KEPT, DRAINS, STARTS, NEW, OLD)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotSample:
    """One moment. `reserved` and `outside`: the use of each instance, by its id. `kept`: empty slots that are
    kept for a successor. `missing`: pods of the workload that do not run.
    """

    at: float  # seconds
    reserved: Mapping[str, str]
    outside: Mapping[str, str] = field(default_factory=dict)
    kept: int = 0
    missing: int = 0

    @property
    def instances(self) -> Iterable[str]:
        return {*self.reserved, *self.outside}


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotFigures:
    """The costs of a rollout. Times are in seconds; those of slots and pods are summed over all of them."""

    seconds: float
    launches: int
    idle: float  # of slots without an instance
    outside: float  # of instances outside the reservation
    most_outside: int  # instances at once
    most_missing: int  # pods at once
    missing: float  # of pods that do not run
    idle_at_end: int  # slots
    outside_at_end: int  # instances


class SlotTimeline:
    """The samples of one rollout, the oldest first. `slots`: how many there are."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._samples: list[SlotSample] = []

    def record(self, sample: SlotSample) -> None:
        self._samples.append(sample)

    @property
    def last(self) -> SlotSample:
        return self._samples[-1]

    def figures(self) -> SlotFigures:
        first, last = self._samples[0], self._samples[-1]
        spans = [(sample, after.at - sample.at) for sample, after in pairwise(self._samples)]
        seen = {id_ for sample in self._samples for id_ in sample.instances}
        return SlotFigures(
            seconds=last.at - first.at,
            launches=len(seen.difference(first.instances)),
            idle=sum(self._idle(sample) * span for sample, span in spans),
            outside=sum(len(sample.outside) * span for sample, span in spans),
            most_outside=max(len(sample.outside) for sample in self._samples),
            most_missing=max(sample.missing for sample in self._samples),
            missing=sum(sample.missing * span for sample, span in spans),
            idle_at_end=self._idle(last),
            outside_at_end=len(last.outside),
        )

    def picture(self) -> Sequence[str]:
        """Lines of at most WIDTH characters: the slots, instances outside, missing pods, and the time."""
        began, ended = self._samples[0].at, self._samples[-1].at
        scale = max(1, math.ceil((ended - began) / (WIDTH - _LABEL)))
        columns = max(1, math.ceil((ended - began) / scale))
        cells: dict[str, list[set[str]]] = {}
        missing = [0] * columns
        for sample, (_, after), drawn in zip(self._samples, self._spans(), self._drawn(), strict=True):
            spanned = range(*_columns(sample.at - began, after - began, scale, columns))
            for label, letter in drawn.items():
                row = cells.setdefault(label, [set() for _ in range(columns)])
                for column in spanned:
                    row[column].add(letter)
            for column in spanned:
                missing[column] = max(missing[column], sample.missing)
        lines = [f"{label:<{_LABEL}}" + "".join(map(_letter, row)).rstrip() for label, row in cells.items()]
        lines.append(f"{'pods away':<{_LABEL}}" + "".join(map(_digit, missing)))
        ticks = "".join(f"{f'{column * scale} s':<{_TICK}}" for column in range(0, columns, _TICK))
        lines.append(f"{'':<{_LABEL}}" + ticks.rstrip())
        return lines

    def latest(self) -> Mapping[str, str]:
        """The use of each row of the picture now."""
        *_, last = self._drawn()
        return last

    def legend(self) -> Sequence[str]:
        """The letters that the picture has, with their meanings, two a line."""
        used = {letter for drawn in self._drawn() for letter in drawn.values()}
        shown = [f"{letter} {text}" for letter, text in MEANINGS.items() if letter in used]
        return [
            "   ".join(f"{text:<36}" for text in shown[at : at + 2]).rstrip()
            for at in range(0, len(shown), 2)
        ]

    def _idle(self, sample: SlotSample) -> int:
        return max(0, self.slots - len(sample.reserved))

    def _spans(self) -> Iterator[tuple[float, float]]:
        """The time of each sample, up to the next one."""
        times = [sample.at for sample in self._samples]
        yield from zip(times, [*times[1:], times[-1]], strict=True)

    def _drawn(self) -> Iterator[Mapping[str, str]]:
        """For each sample, the letter of each row that has one."""
        slots, outside = _Rows("slot", self.slots), _Rows("on-demand")
        for sample in self._samples:
            slots.settle(sample.reserved)
            outside.settle(sample.outside)
            empty = [*slots.empty]
            kept = dict.fromkeys(empty[: sample.kept], KEPT)
            drawn = {**dict.fromkeys(empty, EMPTY), **kept, **slots.uses(sample.reserved)}
            yield {
                **dict(sorted(drawn.items(), key=lambda item: int(item[0].rpartition(" ")[2]))),
                **outside.uses(sample.outside),
            }


class _Rows:
    """The rows of instances that follow each other. `count`: how many there are at first."""

    def __init__(self, name: str, count: int = 0) -> None:
        self._name = name
        self._rows: dict[str, str] = {}  # by instance
        self._made = count
        self.empty = [self._label(number) for number in range(1, count + 1)]  # the first one first

    def settle(self, instances: Iterable[str]) -> None:
        present = dict.fromkeys(instances)
        for id_ in [id_ for id_ in self._rows if id_ not in present]:
            self.empty.append(self._rows.pop(id_))
        for id_ in present:
            if id_ not in self._rows:
                self._rows[id_] = self._next()

    def uses(self, letters: Mapping[str, str]) -> Mapping[str, str]:
        return {self._rows[id_]: letter for id_, letter in letters.items()}

    def _next(self) -> str:
        if self.empty:
            return self.empty.pop(0)
        self._made += 1
        return self._label(self._made)

    def _label(self, number: int) -> str:
        return f"{self._name} {number}"


def _columns(began: float, ended: float, scale: int, columns: int) -> tuple[int, int]:
    """The columns that a time touches, the first and the one after the last."""
    first = min(int(began / scale), columns - 1)
    return first, min(max(first + 1, math.ceil(ended / scale)), columns)


def _letter(uses: set[str]) -> str:
    return next((letter for letter in _SHOWN if letter in uses), " ")


def _digit(missing: int) -> str:
    return "-" if not missing else str(min(missing, 9))
