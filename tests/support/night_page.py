"""The page of the night: its state from the caches of a broker, and its history."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from broker.history.demand import UseLevel, pulse
from broker.history.recorder import batch_of
from broker.history.store import HistoryStore
from broker.history.tables import Batch
from broker.oncall.situation import Situation
from broker.webpage.live import LiveState, shown_state
from local.kube import Cluster
from providers.aws.prices import PRICES
from providers.model import InstanceType, Odcr
from tests.support.night import CLAIMS, FULL, P5, ago, attempts, cluster, situation
from tests.unit.webpage.world import NOW, page


def live(seen: Situation) -> LiveState:
    """The page's state, from the objects that the commands read and EC2's reservations of the mirrors."""
    prices = PRICES["us-east-1"]
    odcrs = {
        mirror.name: Odcr(
            id=mirror.name,
            instance_type=mirror.status.type,
            zone=mirror.status.zone,
            total=mirror.status.total,
            available=mirror.status.available,
        )
        for mirror in seen.mirrors
    }
    types = {
        name: InstanceType(name=name, vcpus=0, memory_mib=0, on_demand_price=prices.get(name))
        for name in {odcr.instance_type for odcr in odcrs.values()}
    }
    inventory = replace(seen.inventory, odcrs=odcrs, described=ago(0.2))
    return shown_state(replace(seen, inventory=inventory, types=types), account="123456789012", outside=55.04)


def history() -> HistoryStore:
    """The attempts of the night, and three days of use."""
    store = HistoryStore()
    store.open()
    store.write(batch_of([attempt for name in CLAIMS for attempt in attempts(name)]))
    for quarter in range(3 * 96):
        at = int(NOW.timestamp()) - (3 * 96 - quarter) * 900
        outside = max(0, quarter % 96 - 60) // 6
        levels = [
            UseLevel(at, FULL, P5, "us-east-1a", "Linux/UNIX", 4, 4 - quarter % 3, 0, 55_040_000),
            UseLevel(at, "", P5, "us-east-1a", "Linux/UNIX", 0, outside, outside // 2, 55_040_000),
        ]
        store.write(Batch(levels=[*levels, pulse(at)]))
    return store


@contextmanager
def served(of: Cluster | None = None) -> Iterator[str]:
    """The address of a page that shows the night."""
    with page(history(), live(situation(of or cluster()))) as url:
        yield url
