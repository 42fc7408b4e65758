"""Makes a sequence that shows a difference as short as it gets: first halves, then single requests go."""

from collections.abc import Callable
from dataclasses import replace

from tests.conformance.steps import Sequence


def shrink(sequence: Sequence, shows: Callable[[Sequence], bool]) -> Sequence:
    """The shortest sequence found for which `shows` is still true; it must be true of the given one."""
    size = max(len(sequence.steps) // 2, 1)
    while size >= 1:
        at = 0
        while at < len(sequence.steps):
            shorter = replace(sequence, steps=sequence.steps[:at] + sequence.steps[at + size :])
            if shows(shorter):
                sequence = shorter
            else:
                at += size
        size //= 2
    for stream in sequence.streams:
        shorter = replace(sequence, streams=tuple(s for s in sequence.streams if s is not stream))
        if shows(shorter):
            sequence = shorter
    return sequence
