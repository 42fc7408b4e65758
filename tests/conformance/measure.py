"""Measures the difference of the embedded server from the real one, grouped by appearance.

python -m tests.conformance.measure --sequences 300 --seed 0 > differences.md
"""

import argparse
import json
import re
import sys
import time
from collections import defaultdict

from tests.conformance.builtin_kinds import ALL
from tests.conformance.definitions import GIZMOS, WIDGETS
from tests.conformance.differences import defects, unexplained
from tests.conformance.generate import sequence
from tests.conformance.kinds import Kind
from tests.conformance.lockstep import Difference, run
from tests.conformance.steps import Step
from tests.controlplane.client import Api, Json
from tests.controlplane.server import ControlPlane
from tests.support.servers import empty, over_embedded, over_real


def signature(difference: Difference) -> str:
    """The common features of differences with one cause."""
    request = difference.request
    method, content = "WATCH", ""
    if isinstance(request, Step):
        method = request.method
        content = request.content.split("/")[-1].split("+")[0] + " " if method == "PATCH" else ""
    subresource = re.search(r"/(status|scale|binding|eviction)$", request.path)
    plural = re.sub(r".*/namespaces/\w+/|.*/v\w+/", "", request.path).split("/")[0]
    texts = [_text(answer) for answer in (difference.real, difference.embedded)]
    if texts[0] != texts[1]:
        summary = " | ".join(re.sub(r'"[^"]*"', '"…"', text)[:90] for text in texts)
    else:
        summary = " ".join(
            sorted({re.sub(r"\[\d+\]", "[]", path) for path, _, _ in difference.changes()})[:8]
        )
    return f"{method} {plural}{subresource[0] if subresource else ''} {content}: {summary}"


def _text(answer: Json) -> str:
    """The status, with the message of a failure."""
    body = answer.get("body")
    if isinstance(body, dict) and body.get("status") == "Failure":
        return f"{answer['status']} {body.get('message', '')}"
    return str(answer["status"]) + (f" {body}" if isinstance(body, str) else "")


def report(difference: Difference, *, width: int = 300) -> str:
    lines = [str(difference.request)]
    texts = [_text(answer) for answer in (difference.real, difference.embedded)]
    if texts[0] != texts[1]:
        return "\n".join([*lines, f"  real: {texts[0]}", f"  embedded: {texts[1]}"])
    for path, real, embedded in unexplained(difference)[:12]:
        lines.append(f"  {path}")
        lines.append(f"    real: {json.dumps(real)[:width]}")
        lines.append(f"    embedded: {json.dumps(embedded)[:width]}")
    return "\n".join(lines)


def measure(
    embedded: Api,
    real: Api,
    seeds: range,
    kinds: tuple[Kind, ...] = ALL,
    ignore: frozenset[str] = frozenset(),
) -> dict[str, list[Difference]]:
    for api in (embedded, real):
        for definition in (WIDGETS, GIZMOS):
            if definition["spec"]["names"]["kind"] in {kind.kind for kind in kinds}:
                api.install(definition)
    groups: dict[str, list[Difference]] = defaultdict(list)
    for seed in seeds:
        print(f"\r{seed}", end="", file=sys.stderr, flush=True)
        for difference in defects(run(sequence(seed, kinds=kinds), embedded, real, ignore=ignore)):
            groups[signature(difference)].append(difference)
        for api in (embedded, real):
            empty(api, tuple(kind.collection for kind in kinds))
    return groups


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequences", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--examples", type=int, default=1, help="examples shown of each group")
    every = ",".join(kind.kind for kind in ALL)
    parser.add_argument("--kinds", default=every, help=f"only these of {every}")
    parser.add_argument("--ignore", default="", help="keys that are not compared, with commas")
    options = parser.parse_args()
    kinds = tuple(kind for kind in ALL if kind.kind in options.kinds.split(","))
    began = time.monotonic()
    with ControlPlane() as plane, over_embedded() as embedded:
        seeds = range(options.seed, options.seed + options.sequences)
        groups_by_signature = measure(
            embedded, over_real(plane), seeds, kinds, frozenset(options.ignore.split(","))
        )
    groups = sorted(groups_by_signature.items(), key=lambda group: -len(group[1]))
    bad = {difference.sequence.seed for group in groups_by_signature.values() for difference in group}
    print(f"{options.sequences} sequences, {len(bad)} with a difference, {time.monotonic() - began:.0f} s\n")
    for name, group in groups:
        ends = sum(difference.parted for difference in group)
        print(f"## {len(group)}x {name}" + (f" (the objects part {ends}x)" if ends else ""))
        for difference in group[: options.examples]:
            print(f"seed {difference.sequence.seed}, request {difference.index}")
            print(f"```\n{report(difference)}\n```\n")


if __name__ == "__main__":
    main()
