"""Runs moto's own tests with local AWS installed: `python -m tests.moto_suite.run [pytest arguments]`.

Invariant: local AWS takes nothing away from moto. A test may fail with it only if it fails without it, after
the same tests in the same order; so there is no list of excused tests to keep. The order counts: moto's reset
may leave an EC2 backend of the test before (one that Auto Scaling's reset made), with that test's settings.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.moto_suite.suite import PARTS, REPOSITORY, fetch

PLUGIN = Path(__file__).with_name("plugin")


@dataclass(frozen=True, kw_only=True)
class Report:
    ec2_backend: str
    passed: Sequence[str]
    failed: Mapping[str, str]
    order: Sequence[Sequence[str]]  # by worker

    def replays(self) -> Iterator[Sequence[str]]:
        """For each worker with failures, its tests in their order up to the last one that failed."""
        never_started = [test for test in self.failed if not any(test in worker for worker in self.order)]
        for ran in (*self.order, never_started):
            last = max((at for at, test in enumerate(ran) if test in self.failed), default=None)
            if last is not None:
                yield ran[: last + 1]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The tests that local AWS broke, and those that were broken before."""

    ran: int
    ec2_backend: str
    broken: Mapping[str, str]
    excused: Sequence[str]


def run(selection: Sequence[str], *, extended: bool, workers: int = 2) -> Report:
    root = fetch()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        environment |= {
            "PYTHONPATH": os.pathsep.join([str(PLUGIN), str(REPOSITORY)]),
            "MOTO_SUITE_EXTENDED": "1" if extended else "0",
            "MOTO_SUITE_REPORT": str(report),
        }
        command = [sys.executable, "-m", "pytest", "-p", "moto_suite_plugin", "-p", "no:cacheprovider", "-q"]
        command += [
            "-c",
            os.devnull,
            f"--rootdir={root}",
            f"--confcutdir={root}",
            "-W",
            "ignore",
            "--tb=short",
        ]
        if workers > 1:
            command += ["-n", str(workers)]
        done = subprocess.run(
            [*command, *selection], cwd=root, env=environment, capture_output=True, text=True, check=False
        )
        if not report.exists() or done.returncode not in (0, 1):
            raise RuntimeError(
                f"pytest did not get to the end:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
            )
        return Report(**json.loads(report.read_text()))


def compare(selection: Sequence[str] = PARTS) -> Comparison:
    extended = run(selection, extended=True)
    stock_failed: set[str] = set()
    for replay in extended.replays():
        stock_failed |= run(replay, extended=False, workers=1).failed.keys()
    return Comparison(
        ran=len(extended.passed) + len(extended.failed),
        ec2_backend=extended.ec2_backend,
        broken={name: text for name, text in extended.failed.items() if name not in stock_failed},
        excused=[name for name in extended.failed if name in stock_failed],
    )


def main() -> int:
    result = compare(sys.argv[1:] or PARTS)
    for name, text in result.broken.items():
        print(f"--- {name}\n{text}\n")
    print(
        f"{result.ran} tests of moto's own ran on {result.ec2_backend}: "
        f"{len(result.broken)} broken by it, {len(result.excused)} fail without it as well"
    )
    return 1 if result.broken else 0


if __name__ == "__main__":
    sys.exit(main())
