"""10,000 claims, 5,000 nodes and 1,000 reservations at rest: the cost of an idle broker.

The broker is `capacity-broker run` in a process of its own, and it alone is measured. Memory and CPU time
are Linux's counts; AWS calls and Kubernetes writes are counted by the servers. The baseline of the calls is
one describe a reservation at each poll.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence

from benchmarks.figures import Figure, run
from benchmarks.rest import broker, grouped, resting

POLL = 30.0  # the broker's default: a change in EC2 shows within twice that
MEMORY, PROCESSOR = 240.0, 2.0
WINDOW = float(os.environ.get("BENCH_SECONDS", "180"))


def measure(*, small: bool) -> Sequence[Figure]:
    """The broker beside a big cluster in which nothing changes: writes, calls, memory, CPU."""
    claims, odcrs = (40, 4) if small else (10_000, 1_000)
    seconds = 2.0 if small else WINDOW
    with resting(small=small) as cluster, broker(cluster) as running:
        running.wait_until_idle(cluster, passes=0 if small else 2)
        first = grouped(cluster.counts().writes)
        sys.stderr.write(f"written until then: {first}\n")
        before, used, began = cluster.counts(), running.usage(), time.monotonic()
        time.sleep(seconds)
        during, after, passed = cluster.counts().since(before), running.usage(), time.monotonic() - began
    calls = sum(during.aws.values())
    sys.stderr.write(f"AWS calls: {dict(during.aws)}\nwrites: {grouped(during.writes)}\n")
    polls = passed / POLL
    return [
        Figure(name="claims, of which half run and half wait", measured=claims),
        Figure(name="measured for", measured=passed, unit="s"),
        Figure(name="Kubernetes writes", measured=sum(during.writes.values()), most=0),
        Figure(
            name="DescribeCapacityReservations calls a minute",
            measured=during.aws["DescribeCapacityReservations"] / passed * 60,
            # One a poll, and one more if the window begins just before one.
            most=(polls + 1) / passed * 60,
            baseline=odcrs * 60 / POLL,
            of="a call a reservation a poll",
        ),
        Figure(name="all AWS calls a minute", measured=calls / passed * 60),
        Figure(name="memory (RSS)", measured=after.rss, unit="MB", most=MEMORY),
        Figure(name="memory at most since the start", measured=after.peak, unit="MB"),
        Figure(
            name="CPU of one core",
            measured=(after.cpu - used.cpu) / passed * 100,
            unit="%",
            most=PROCESSOR,
        ),
    ]


if __name__ == "__main__":
    run(measure)
