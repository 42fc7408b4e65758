"""Programs that run beside a benchmark, and the resources of each, as Linux counts them (proc(5)).

Invariant: a program ends with its `with` block, whatever happened in it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).resolve().parents[1]
PATIENCE = 1800.0
INTERVAL = 0.05  # seconds between two checks
# The benchmarks never use a real account, whatever is configured.
CREDENTIALS: Mapping[str, str] = {
    "AWS_ACCESS_KEY_ID": "benchmark",
    "AWS_SECRET_ACCESS_KEY": "benchmark",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_EC2_METADATA_DISABLED": "true",
}
_TICKS = os.sysconf("SC_CLK_TCK")

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Usage:
    """Seconds of CPU time since the process began, and MB that it keeps in memory now and kept at most."""

    cpu: float
    rss: float
    peak: float


class Program:
    """A child process of this Python. Its output goes to a file, which `output` reads."""

    def __init__(self, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
        self._log = tempfile.TemporaryFile("w+b")  # noqa: SIM115 - `end` closes it
        self.began = time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env={**_plain_environment(), **CREDENTIALS, **(environment or {})},
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def output(self) -> str:
        return os.pread(self._log.fileno(), 1 << 24, 0).decode(errors="replace")

    def wait_for_output(self, pattern: str) -> str:
        """Waits for the pattern in the output and returns its first group. Raises RuntimeError if the program
        ends before.
        """

        def search() -> re.Match[str] | None:
            return re.search(pattern, self.output())

        match = until(lambda: search() or self._ended(), f"{pattern!r} in a program's output")
        if not isinstance(match, re.Match):
            raise RuntimeError(f"a program ended before it printed {pattern!r}:\n{self.output()[-4000:]}")
        return match[1]

    def usage(self) -> Usage:
        return usage(self.pid)

    def end(self, *, kill: bool = False) -> None:
        if self._process.poll() is None:
            self._process.kill() if kill else self._process.terminate()
        try:
            self._process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def _ended(self) -> bool:
        return self._process.poll() is not None


@contextmanager
def program(*arguments: str, environment: Mapping[str, str] | None = None) -> Iterator[Program]:
    child = Program(*arguments, environment=environment)
    try:
        yield child
    finally:
        child.end()


@contextmanager
def local_aws() -> Iterator[tuple[Program, str]]:
    """Local AWS in a process of its own, and its endpoint."""
    with program("-m", "local.aws", "--port", "0") as child:
        yield child, child.wait_for_output(r"AWS_ENDPOINT_URL=(\S+)")


@contextmanager
def kubernetes_api() -> Iterator[tuple[Program, Path]]:
    """An API server in a process of its own, and a kubeconfig for it."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kubeconfig"
        with program("-m", "local.kube", "--port", "0", "--kubeconfig", str(file)) as child:
            child.wait_for_output(r"serving on (\S+)")
            yield child, file


@contextmanager
def own_credentials() -> Iterator[None]:
    """Keeps this process, too, from any real account."""
    before = dict(os.environ)
    for name in [*os.environ]:
        if name.startswith("AWS_"):
            del os.environ[name]
    os.environ.update(CREDENTIALS)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def usage(pid: int | str = "self") -> Usage:
    folder = Path("/proc") / str(pid)
    # The name in parentheses may hold spaces; the fields after it do not.
    fields = (folder / "stat").read_text().rpartition(")")[2].split()
    status = dict(
        line.split(":", 1) for line in (folder / "status").read_text().splitlines() if line.startswith("Vm")
    )
    return Usage(
        cpu=(int(fields[11]) + int(fields[12])) / _TICKS,
        rss=_megabytes(status["VmRSS"]),
        peak=_megabytes(status["VmHWM"]),
    )


def until(
    happened: Callable[[], V], expected: str, *, patience: float = PATIENCE, interval: float = INTERVAL
) -> V:
    """Waits until `happened` is true and returns its result. Raises TimeoutError."""
    deadline = time.monotonic() + patience
    pause = threading.Event()
    while not (result := happened()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"after {patience:.0f} s there is still no {expected}")
        pause.wait(interval)
    return result


def _megabytes(text: str) -> float:
    return int(text.split()[0]) * 1024 / 1e6


def _plain_environment() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if not key.startswith("AWS_")}
