"""The time of a command before it does anything: CPU and wall time of its imports.

A new Python imports the command's modules. The best of some runs counts, since a shared machine only ever
adds. The baseline is a Python with the two SDKs, boto3 and kubernetes, imported and nothing else.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence

from benchmarks.figures import Figure, run
from benchmarks.processes import ROOT

COMMANDS = {
    "--help and mistakes": "import broker.cli",
    "plan": "import broker.cli, broker.commands.plan.claims, broker.commands.manifests, providers.aws",
    "explain claim": "import broker.cli, broker.commands.explain.claims, broker.kube.transports",
    "inventory": "import broker.cli, broker.commands.inventory.inventory, providers.aws",
    "run": "import broker.cli, broker.run, broker.kube.transports, providers.aws",
}
SDKS = "import boto3, kubernetes"


def measure(*, small: bool) -> Sequence[Figure]:
    """Start-up of each command beside the two SDKs alone."""
    times = 1 if small else 5
    wall, cpu = _best(SDKS, times)
    rows = []
    for command, imports in COMMANDS.items():
        took, used = _best(imports, times)
        of = "boto3 and kubernetes imported"
        rows += [
            Figure(name=f"{command}: CPU time", measured=used, unit="s", baseline=cpu, of=of),
            Figure(name=f"{command}: wall time", measured=took, unit="s", baseline=wall, of=of),
        ]
    return rows


def _best(code: str, times: int) -> tuple[float, float]:
    """Wall and CPU time of the quickest run."""
    runs = [_once(code) for _ in range(times)]
    return min(wall for wall, _ in runs), min(cpu for _, cpu in runs)


def _once(code: str) -> tuple[float, float]:
    began, before = time.monotonic(), os.times()
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
    after = os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return time.monotonic() - began, used


if __name__ == "__main__":
    run(measure)
