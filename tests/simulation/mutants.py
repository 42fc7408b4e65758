"""`python -m tests.simulation.mutants`: deliberate faults in the broker, each to be found within some seeds.

A mutant is a change of one module's source as it is imported, in a process of its own. A change that no
longer applies is reported as such: the table is only as good as its texts.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import time
from collections.abc import Sequence
from itertools import count, islice
from types import CodeType, ModuleType

from tests.simulation.full_mutants import FULL_MUTANTS
from tests.simulation.mutant import Mutant

SEEDS = 200
# No mutant is in these modules, and they take longest to import.
SHARED = ("boto3", "kubernetes.client", "moto.ec2.models", "moto.moto_server.werkzeug_app", "pydantic")


_LAUNCH = "broker.controllers.launch"
_LIFECYCLE = "broker.controllers.lifecycle"
_KUBE = "broker.kube"
_PROVISIONING = "broker.controllers.provisioning"
MUTANTS: Sequence[Mutant] = (
    Mutant(
        "claim without a finalizer",
        "broker.controllers.claim_status",
        '    return {"finalizers": [*claim.metadata.finalizers, names.TERMINATION_FINALIZER]}',
        "    return {}",
    ),
    Mutant(
        "claim released before its instance ended",
        f"{_LIFECYCLE}.termination",
        "            if self._alive(claim, nodes):\n                return Result(requeue_after=RECHECK)\n",
        "            self._alive(claim, nodes)\n",
    ),
    Mutant(
        "no drain before the end",
        f"{_LIFECYCLE}.termination",
        "if any(self._drain(claim, node) for node in nodes):",
        "if False:",
    ),
    Mutant(
        "fleet calls are not recorded",
        f"{_LAUNCH}.execute",
        "            self.calls.record(call)\n",
        "            pass\n",
    ),
    Mutant(
        "instances without a claim never end",
        "broker.controllers.instances",
        "i for i in orphans if now - self._unclaimed_since.get(i.id, now) >= self._grace.total_seconds()",
        "i for i in orphans if False",
    ),
    Mutant(
        "every instance counts as without a claim",
        "broker.controllers.instances",
        "if i.alive and i.id not in claimed_ids]",
        "if i.alive]",
    ),
    Mutant(
        "launched claims are launched again",
        "broker.controllers.claim_caches",
        "{c.uid: c for c in self.owned() if c.waits}",
        "{c.uid: c for c in self.owned() if not c.deleting}",
    ),
    Mutant(
        "a new token for a repeated call",
        "providers.aws.fleet",
        "client_token(request.token)",
        "__import__('uuid').uuid4().hex",
    ),
    Mutant(
        "purchases are not recorded",
        "broker.controllers.odcr.executor",
        "        self._ledger.flush()\n        return intent\n",
        "        return intent\n",
    ),
    Mutant(
        "a call's answer is given to claims twice",
        f"{_LAUNCH}.execute",
        "if i.alive and i.id not in claimed_ids)",
        "if True)",
    ),
    Mutant(
        "launches are not written on their claims",
        f"{_LAUNCH}.execute",
        '{"annotations": {names.LAUNCH: launch}}',
        "{}",
    ),
    Mutant(
        "no cap on what is bought",
        "broker.reservations.spending",
        "        return min(room for room, _, _ in self._rooms(reserved, product, 0))",
        "        return 99",
    ),
    Mutant(
        "what is bought is not counted",
        "broker.reservations.spending",
        "            self._instances[scope] += count\n",
        "",
    ),
    Mutant(
        "reservation without a finalizer",
        "broker.controllers.owned_metadata",
        '"finalizers": [names.RESERVED_FINALIZER],',
        '"finalizers": [],',
    ),
    Mutant(
        "reservation never released",
        "broker.controllers.owned_metadata",
        "body = remove_finalizer(obj, names.RESERVED_FINALIZER)",
        "body = None",
    ),
    Mutant(
        "class never released",
        "broker.controllers.nodeclass.finalizer",
        "body = remove_finalizer(node_class, names.CLASS_FINALIZER)",
        "body = None",
    ),
    Mutant(
        "reservations in use are given back",
        "providers.aws.reservation_changes",
        "    if count < seen.used and not seen.over:",
        "    if False:",
    ),
    Mutant(
        "deletions are not seen",
        f"{_KUBE}.cache",
        '            if event == "DELETED":\n                self._remove(key)\n            elif',
        '            if event == "DELETED":\n                pass\n            elif',
    ),
    Mutant(
        "failures are not tried again",
        f"{_KUBE}.controller",
        "self.queue.retry(key, at_least=outcome.wait)",
        "self.queue.forget(key)",
    ),
    Mutant(
        "every write counts as a change",
        f"{_KUBE}.conditions",
        "    return any(not _holds((old or {}).get(key), value) for key, value in new.items())",
        "    return True",
    ),
    Mutant(
        "the Lease is taken from its holder",
        f"{_KUBE}.tenure",
        "if holder and self._clock.monotonic() < self._seen_at + lasts:",
        "if False:",
    ),
    Mutant(
        "an expired watch is not listed again",
        f"{_KUBE}.informer",
        "if isinstance(error, Expired) or self._refused >= REFUSALS:",
        "if False:",
    ),
    Mutant(
        "the description is never made anew",
        "broker.controllers.inventory",
        "            self._inventory = Inventory(odcrs=odcrs, groups=groups, described=began)",
        "            if self._inventory.described is None:\n"
        "                self._inventory = Inventory(odcrs=odcrs, groups=groups, described=began)",
    ),
    Mutant(
        "nodes stay without their claims' labels",
        f"{_LIFECYCLE}.registration",
        '"labels": {**claim.labels, names.REGISTERED: "true"},',
        '"labels": {},',
    ),
    Mutant(
        "machines that are gone keep their claims",
        "broker.controllers.instances",
        "if id_ in by_id and not by_id[id_].alive\n",
        "if False\n",
    ),
    Mutant(
        "another cluster's instances may be ended",
        "broker.controllers.instances",
        '.ownership == "owned"',
        '.ownership != ""',
        2,
    ),
    Mutant(
        "Karpenter's claims are the broker's",
        f"{_LIFECYCLE}.takeover",
        "return group == names.BROKER",
        "return True",
    ),
    Mutant(
        "preference is never dropped",
        f"{_PROVISIONING}.preferences",
        "    decision = decide(drops)\n    best",
        "    return decide(drops)\n    best",
        about="pools",
    ),
    Mutant(
        "limits do not count claims in flight",
        f"{_PROVISIONING}.usage",
        "if claim.node_pool in limited)",
        "if claim.node_pool in limited and claim.status.provider_id)",
        about="pools",
    ),
    Mutant(
        "pods have no place on claims in flight",
        f"{_PROVISIONING}.existing",
        "            claim.name not in name_of\n            and not claim.deleting",
        "            False",
        about="pools",
    ),
    *FULL_MUTANTS,
)


class _Patched(importlib.machinery.SourceFileLoader):
    def __init__(self, fullname: str, path: str, mutant: Mutant) -> None:
        super().__init__(fullname, path)
        self._mutant = mutant

    def get_code(self, fullname: str) -> CodeType:
        source = self.get_data(self.path).decode()
        if (times := source.count(self._mutant.old)) != self._mutant.times:
            raise LookupError(f"{self._mutant.name}: {fullname} has that text {times} times")
        changed = source.replace(self._mutant.old, self._mutant.new)
        return compile(changed, self.path, "exec", dont_inherit=True)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._mutant.module:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.origin is None:
            return None
        loader = _Patched(fullname, spec.origin, self._mutant)
        return importlib.util.spec_from_file_location(fullname, spec.origin, loader=loader)


def trial(mutant: Mutant, seeds: int) -> str:
    """The result of a mutant, as a row of the table; in this process, which imports it."""
    sys.meta_path.insert(0, _Finder(mutant))
    began = time.monotonic()
    try:
        from tests.simulation.run import run
        from tests.simulation.schedule import ABOUT
        from tests.simulation.world import Lab
    except LookupError as error:
        return f"| {mutant.name} | does not apply | {error} |"
    with Lab() as lab:
        for seed in islice(filter(ABOUT[mutant.about], count()), seeds):
            report = run(lab, seed)
            if report.violation:
                violation = report.violation.replace("|", "/")[:90]
                return f"| {mutant.name} | seed {seed}, {time.monotonic() - began:.0f} s | {violation} |"
    return f"| {mutant.name} | not found in {seeds} seeds | |"


def _apart(mutant: Mutant, seeds: int) -> str:
    """The trial in a child of this process, which has imported nothing of the broker."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        code = 0
        try:
            os.write(write, trial(mutant, seeds).encode())
        except BaseException as error:  # noqa: BLE001  a mutant may break anything
            os.write(write, f"| {mutant.name} | broke | {type(error).__name__}: {error} |".encode())
            code = 1
        os._exit(code)
    os.close(write)
    with os.fdopen(read) as answers:
        row = answers.read()
    os.waitpid(child, 0)
    return row


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.mutants", description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS, help="seeds that each mutant is tried with")
    parser.add_argument("--only", default="", help="mutants with this in their name")
    parser.add_argument("--part", default="0/1", help="the k-th of n parts, for several processes")
    options = parser.parse_args()
    for name in SHARED:
        importlib.import_module(name)
    part, _, parts = options.part.partition("/")
    chosen = [m for m in MUTANTS if options.only in m.name][int(part) :: int(parts)]
    missed = 0
    print("| fault | found | what was seen |\n| --- | --- | --- |", flush=True)
    for mutant in chosen:
        row = _apart(mutant, options.seeds)
        missed += "| seed " not in row
        print(row, flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
