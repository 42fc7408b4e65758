"""Queues and workloads in the shape of Kueue's large-scale test, and plain implementations of the decisions.

Its generator (test/performance/scheduler): cohorts of equal queues, each with 20 cores of its own and 100 to
borrow. They reclaim from any queue and preempt lower priority among their own. Of ten workloads seven request
for 1 core at priority 50 and run 0.2 s, two for 5 at 100 and 0.5 s, one for 20 at 200 and 1 s. Each queue
gets a small one every 0.1 s, a middling one every 0.5 s and a large one every 1.2 s.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from broker.quota.cycle import Head
from broker.quota.flavors import Flavor, FlavorRequest
from broker.quota.ledger import QuotaLedger
from broker.quota.model import (
    AdmittedWorkload,
    FlavorGroup,
    FlavorResource,
    Preemption,
    Queue,
    Quota,
    QuotaRequest,
)
from broker.quota.slot_model import OwnedSlots, SlotHolder
from broker.quota.tree import QuotaNode, Tree

KEY = FlavorResource("default", "cpu")
FLAVORS = {"default": Flavor(name="default")}
# Cores, priority, seconds that one runs, seconds between two, share of ten.
SHAPES = ((1, 50, 0.2, 0.1, 7), (5, 100, 0.5, 0.5, 2), (20, 200, 1.0, 1.2, 1))
SECONDS = {shape[0]: shape[2] for shape in SHAPES}


_Item = tuple[tuple[int, float, str], Head]


class WaitingHeads:
    """Every waiting workload, under the queues of a tree.

    A head that could not be admitted is set aside until its cohort tree changes, so that those behind it have
    their turn. The rule is Kueue's (pkg/cache/queue).
    """

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._heaps: dict[str, list[_Item]] = {}
        self._aside: dict[str, dict[str, Head]] = {}
        # Queues with something set aside, by the root of their tree.
        self._stuck: dict[QuotaNode, set[str]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._heaps.values())) + sum(map(len, self._aside.values()))

    def push(self, head: Head) -> None:
        heapq.heappush(self._heaps.setdefault(head.queue, []), (head.rank, head))

    def heads(self) -> Iterator[Head]:
        """Takes each queue's head out; the caller pushes it again, sets it aside, or drops it."""
        for heap in self._heaps.values():
            if heap:
                yield heapq.heappop(heap)[1]

    def set_aside(self, head: Head) -> None:
        """Sets aside a head that could not be admitted."""
        node = self._tree.queues.get(head.queue)
        self._aside.setdefault(head.queue, {})[head.name] = head
        if node is not None:
            self._stuck.setdefault(node.root(), set()).add(head.queue)

    def wake(self, queues: Iterable[str]) -> None:
        """After quota was given back in these queues: tries all of their trees again."""
        for root in dict.fromkeys(n.root() for name in sorted(queues) if (n := self._tree.queues.get(name))):
            for name in sorted(self._stuck.pop(root, ())):
                for head in self._aside.pop(name).values():
                    self.push(head)


def queues(cohorts: int, per_cohort: int, *, cores: int = 20) -> list[Queue]:
    return [
        Queue(
            name=f"queue-{cohort:02}-{number:03}",
            cohort=f"cohort-{cohort:02}",
            groups=(FlavorGroup(frozenset(("cpu",)), ("default",)),),
            quotas={KEY: Quota(nominal=cores * 1000, borrowing_limit=100_000)},
            preemption=Preemption(within="LowerPriority", reclaim="Any"),
        )
        for cohort in range(cohorts)
        for number in range(per_cohort)
    ]


def heads(queues: Sequence[Queue], per_queue: int) -> Iterator[Head]:
    """`per_queue` workloads for each queue; each waits from the moment at which it is created."""
    for queue in queues:
        number = 0
        for cores, priority, _, every, of_ten in SHAPES:
            for turn in range(per_queue * of_ten // 10):
                yield Head(
                    name=f"{queue.name}-{number:04}",
                    queue=queue.name,
                    request=FlavorRequest(requests={"cpu": cores * 1000}),
                    priority=priority,
                    queued=(turn + 1) * every,
                )
                number += 1


def admitted(cohorts: int, per_cohort: int, workloads: int) -> QuotaLedger:
    """A full cluster: half of each cohort's queues borrow the idle quota of the other half."""
    cluster_queues = queues(cohorts, per_cohort)
    ledger = QuotaLedger(Tree(cluster_queues))
    per_queue = workloads // len(cluster_queues)
    for number, queue in enumerate(cluster_queues):
        # An even queue holds twice as many as an odd one, of a size with which the cohort is just full.
        count = per_queue + (per_queue // 3 if number % 2 == 0 else -(per_queue // 3))
        for index in range(count):
            ledger.admit(
                AdmittedWorkload(
                    name=f"{queue.name}-{index:04}",
                    queue=queue.name,
                    usage={KEY: 20_000 // per_queue},
                    priority=(50, 100, 200)[index % 3],
                    queued=float(index),
                    reserved=float((index * 7919 + number) % 10_007),
                )
            )
    return ledger


def plain_preempt(ledger: QuotaLedger, request: QuotaRequest) -> list[str]:
    """`preempt` without an index: reads every workload and sums usage anew at each step.

    For cohorts of one layer and one resource, as measured here.
    """
    tree = ledger.tree
    cohort = tree.queues[request.queue].parent
    members = {node.name for node in cohort.queues} if cohort else {request.queue}
    quota = sum(tree.queues[name].quota(KEY) for name in members)
    gone: set[str] = set()
    requested = request.amounts[KEY]

    def used() -> dict[str, int]:
        usage: dict[str, int] = defaultdict(int)
        for workload in ledger.workloads.values():
            if workload.queue in members and workload.name not in gone:
                usage[workload.queue] += workload.usage[KEY]
        return usage

    held = used()
    candidates = [
        workload
        for workload in ledger.workloads.values()
        if (
            workload.queue in members
            and workload.queue != request.queue
            and held[workload.queue] > tree.queues[workload.queue].quota(KEY)
        )
        or (workload.queue == request.queue and workload.priority < request.priority)
    ]
    candidates.sort(
        key=lambda workload: (
            workload.queue == request.queue,
            workload.priority,
            -workload.reserved,
            workload.name,
        )
    )
    taken: list[str] = []
    for workload in candidates:
        held = used()
        if workload.queue != request.queue and held[workload.queue] <= tree.queues[workload.queue].quota(KEY):
            continue
        gone.add(workload.name)
        taken.append(workload.name)
        if requested <= quota - sum(used().values()):
            for name in taken[-2::-1]:
                gone.remove(name)
                if requested <= quota - sum(used().values()):
                    taken.remove(name)
                else:
                    gone.add(name)
            return taken
    return []


def plain_admit(workloads: Sequence[AdmittedWorkload], queues: Sequence[Queue], head: Head) -> bool:
    """Whether a head fits, by summing the usage of its whole cohort."""
    by_name = {queue.name: queue for queue in queues}
    cohort = by_name[head.queue].cohort
    members = {queue.name for queue in queues if queue.cohort == cohort}
    used = sum(workload.usage[KEY] for workload in workloads if workload.queue in members)
    quota = sum(queue.quotas[KEY].nominal for queue in queues if queue.cohort == cohort)
    return used + head.request.requests["cpu"] <= quota


def lent_slots(many: int) -> tuple[list[OwnedSlots], list[SlotHolder]]:
    """Each queue owns four slots of one EC2 reservation: it holds two, and others the two that it lends."""
    owned = [OwnedSlots(owner=f"q{n:04}", flavor="f", slots={f"cr-{n:04}": 4}, quota=4) for n in range(many)]
    holders = [
        SlotHolder(
            name=f"h{n:04}-{slot}",
            queue=f"q{(n if slot < 2 else (n * 7 + slot) % many):04}",
            odcr_id=f"cr-{n:04}",
            priority=slot % 3,
            since=float(n % 101),
        )
        for n in range(many)
        for slot in range(4)
    ]
    return owned, holders
