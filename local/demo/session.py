"""The beginning and the end of a demo as its user sees them.

It imports nothing slow, so that the first line appears before the SDKs are imported.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from rich.console import Console

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def session(out: Console) -> Iterator[None]:
    """Announces the demo, and reports at its end that nothing is left of it.

    The first signal raises KeyboardInterrupt. Further ones are ignored, so that everything is stopped.
    """

    def interrupted(_number: int, _frame: FrameType | None) -> None:
        for signal_ in _SIGNALS:
            signal.signal(signal_, signal.SIG_IGN)
        out.print("\nstopping", soft_wrap=True)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupted) for number in _SIGNALS}
    try:
        out.print("starting local AWS, a Kubernetes API and the broker on this machine; nothing leaves it")
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        out.print("local AWS, the Kubernetes API, the broker and their files are gone", soft_wrap=True)


def until_interrupted() -> None:
    """Waits for the signal that raises KeyboardInterrupt."""
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        return
