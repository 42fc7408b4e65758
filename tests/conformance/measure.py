"""Measures how far the embedded server is from the real one, and groups what differs by what it looks like.

python -m tests.conformance.measure --sequences 300 --seed 0 > differences.md
"""

import argparse
import json
import re
import time
from collections import defaultdict

from tests.conformance.builtin_kinds import ALL
from tests.conformance.definitions import GIZMOS, WIDGETS
from tests.conformance.generate import sequence
from tests.conformance.kinds import Kind
from tests.conformance.lockstep import Difference, run
from tests.conformance.steps import Step
from tests.controlplane.client import Api
from tests.controlplane.server import ControlPlane
from tests.servers import empty, over_embedded, over_real


def signature(difference: Difference) -> str:
    request = difference.request
    at = request.path if isinstance(request, Step) else "WATCH " + request.path
    sub = re.search(r"/(status|scale|binding|eviction)$", at)
    plural = re.sub(r".*/namespaces/\w+/|.*/v\w+/", "", at).split("/")[0]
    content = (
        request.content.split("/")[-1].split("-")[0]
        if isinstance(request, Step) and request.method == "PATCH"
        else ""
    )
    method = request.method if isinstance(request, Step) else "WATCH"
    paths = sorted({re.sub(r"\[\d+\]", "[]", path) for path, _, _ in difference.changes()})
    return f"{method} {plural}{sub[0] if sub else ''} {content} :: {' '.join(paths[:6])}"


def report(difference: Difference, *, width: int = 400) -> str:
    lines = [str(difference.request)]
    for path, theirs, ours in difference.changes()[:12]:
        for who, value in (("real", theirs), ("ours", ours)):
            lines.append(f"  {who} {path}: {json.dumps(value)[:width]}")
    return "\n".join(lines)


def measure(
    ours: Api, theirs: Api, seeds: range, kinds: tuple[Kind, ...] = ALL
) -> dict[str, list[Difference]]:
    for api in (ours, theirs):
        for definition in (WIDGETS, GIZMOS):
            if definition["spec"]["names"]["kind"] in {kind.kind for kind in kinds}:
                api.install(definition)
    found: dict[str, list[Difference]] = defaultdict(list)
    for seed in seeds:
        for difference in run(sequence(seed, kinds=kinds), ours, theirs):
            found[signature(difference)].append(difference)
        empty(ours)
        empty(theirs)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequences", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--examples", type=int, default=1, help="examples shown of each group")
    every = ",".join(kind.kind for kind in ALL)
    parser.add_argument("--kinds", default=every, help=f"only these of {every}")
    options = parser.parse_args()
    kinds = tuple(kind for kind in ALL if kind.kind in options.kinds.split(","))
    began = time.monotonic()
    with ControlPlane() as plane, over_embedded() as ours:
        seeds = range(options.seed, options.seed + options.sequences)
        found = measure(ours, over_real(plane), seeds, kinds)
    groups = sorted(found.items(), key=lambda group: -len(group[1]))
    bad = {difference.sequence.seed for group in found.values() for difference in group}
    print(f"{options.sequences} sequences, {len(bad)} with a difference, {time.monotonic() - began:.0f} s\n")
    for name, group in groups:
        ends = sum(difference.parted for difference in group)
        print(f"## {len(group)}x {name}" + (f" (the objects part {ends}x)" if ends else ""))
        for difference in group[: options.examples]:
            print(f"seed {difference.sequence.seed}, request {difference.index}")
            print(f"```\n{report(difference)}\n```\n")


if __name__ == "__main__":
    main()
