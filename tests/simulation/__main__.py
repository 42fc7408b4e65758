"""`python -m tests.simulation --seeds N --start S`: runs that many seeds, and shrinks failing ones."""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from itertools import count

from tests.simulation.run import Report, run
from tests.simulation.schedule import ABOUT, parse, shown
from tests.simulation.shrink import shrink
from tests.simulation.world import Lab

EVERY = 10.0  # seconds between two lines of progress


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=0, help="how many seeds (0: as many as --seconds allow)")
    parser.add_argument(
        "--seconds", type=float, default=0.0, help="how long new seeds are begun (0: no limit)"
    )
    parser.add_argument(
        "--start", type=int, default=-1, help="the first seed (default: a random one, printed)"
    )
    parser.add_argument("--about", choices=[*ABOUT], default="all", help="only the seeds of this part")
    parser.add_argument("--schedule", default="", help="operations to carry out instead of the seed's own")
    parser.add_argument("--trace", action="store_true", help="print the end of each failing run's trace")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first failing seed")
    parser.add_argument("--no-shrink", action="store_true", help="print failing schedules as they are")
    options = parser.parse_args(argv)
    start = options.start if options.start >= 0 else random.SystemRandom().randrange(10**9)
    if not options.seeds and not options.seconds:
        options.seeds = 1
    with Lab() as lab:
        return _runs(lab, start, options)


def _runs(lab: Lab, start: int, options: argparse.Namespace) -> int:
    began = last_report = time.monotonic()
    done = calls = 0
    faults: Counter[str] = Counter()
    failed: list[Report] = []
    print_line(f"seeds from {start}")
    seeds = filter(ABOUT[options.about], count(start))
    while not options.seeds or done < options.seeds:
        if options.seconds and time.monotonic() - began >= options.seconds:
            break
        operations = parse(options.schedule) if options.schedule else None
        report = run(lab, next(seeds), operations)
        done, calls = done + 1, calls + report.calls
        faults.update(report.faults)
        if report.violation:
            failed.append(report)
            _report(lab, report, options)
            if not options.keep_going:
                break
        if time.monotonic() - last_report >= EVERY:
            last_report = time.monotonic()
            _progress(done, faults, calls, failed, last_report - began)
    _progress(done, faults, calls, failed, time.monotonic() - began)
    print_line("faults by kind: " + ", ".join(f"{kind} {count}" for kind, count in sorted(faults.items())))
    return 1 if failed else 0


def _progress(done: int, faults: Counter[str], calls: int, failed: list[Report], seconds: float) -> None:
    rate = 60 * done / max(seconds, 0.001)
    counted = f"{faults.total()} faults, {calls} calls, {len(failed)} violations"
    print_line(f"{done} seeds in {seconds:.0f} s ({rate:.0f} a minute), {counted}")


def _report(lab: Lab, report: Report, options: argparse.Namespace) -> None:
    print_line(f"seed {report.seed}: {report.violation}")
    if not options.no_shrink:
        report = shrink(lab, report)
        print_line(f"  shrunk to {len(report.operations)} operations: {report.violation}")
    again = f"--start {report.seed} --schedule '{shown(report.operations)}' --trace"
    print_line(f"  again: python -m tests.simulation {again}")
    if options.trace:
        for line in report.lines[-120:]:
            print_line(f"    {line}")


def print_line(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
