"""Programs beside the tests: started, waited for by output or response, and ended.

Invariant: leaving the context leaves no process. A program that ends early, or never becomes ready, is
reported with the end of its log.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

PATIENCE = 120.0
POLL = 0.05
# No configuration, and no credentials but those that are given.
NO_CREDENTIALS = {
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_EC2_METADATA_DISABLED": "true",
}


class ProgramError(RuntimeError):
    """A program ended or never became ready; the text ends with its log."""


class Program:
    """One process with its output in `FOLDER/NAME.log`."""

    def __init__(
        self, name: str, command: Sequence[str], *, folder: Path, environment: Mapping[str, str]
    ) -> None:
        self.name = name
        self._log = folder / f"{name}.log"
        # Where util-linux is, a killed test run does not leave its servers behind.
        mortal = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*mortal, *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env=clean(environment),
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Kills at once: its own clean-up would be thrown away."""
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        """Ends the program by its own way out: SIGTERM."""
        self._process.terminate()
        self._process.wait(timeout=PATIENCE)

    def cpu_seconds(self) -> float:
        """User and system time of the process so far."""
        times = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(times[11]) + int(times[12])) / os.sysconf("SC_CLK_TCK")

    def lines(self) -> list[str]:
        return self._log.read_text(errors="replace").splitlines()

    def until(self, ready: Callable[[], bool], goal: str) -> None:
        """Returns when `ready()`. Raises ProgramError when the program ends before, or patience does."""
        deadline = time.monotonic() + PATIENCE
        while not ready():
            if (code := self._process.poll()) is not None:
                raise ProgramError(f"{self.name} ended with exit code {code}\n{self._end()}")
            if time.monotonic() > deadline:
                raise ProgramError(f"{self.name} is not {goal} after {PATIENCE} s\n{self._end()}")
            time.sleep(POLL)

    def _end(self) -> str:
        return "\n".join(self.lines()[-20:])


def clean(environment: Mapping[str, str]) -> dict[str, str]:
    """This process's environment, without its accounts and clusters, with `environment`."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "KUBE", "BROKER_"))
    }
    return {**kept, **NO_CREDENTIALS, **environment}


def until(
    done: Callable[[], object], goal: str, *, patience: float = PATIENCE, interval: float = POLL
) -> None:
    """Returns when `done()`; after `patience` raises AssertionError with `goal`."""
    deadline = time.monotonic() + patience
    while not done():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {patience:.0f} s: {goal}")
        time.sleep(interval)
