"""The page of the night: its state from the caches of a broker, and its history."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

from broker.apis import names
from broker.app import Broker
from broker.capacity.inventory import Inventory
from broker.capacity.shortages import Shortages
from broker.commands.explain.situation import Situation
from broker.controllers.snapshot import Snapshot
from broker.history.demand import UseLevel, pulse
from broker.history.recorder import batch_of
from broker.history.store import HistoryStore
from broker.history.tables import Batch
from broker.oncall.slot_marks import SlotRow, slot_rows
from broker.placement.holds_ledger import HoldLedger
from broker.reservations.odcr_status import OdcrSnapshot
from broker.reservations.ownership import Ownership
from broker.reservations.spec import reserved_of
from broker.webpage.live import LiveState, live_state
from local.kube import Cluster
from providers.aws.prices import PRICES
from providers.base import AccountFacts
from providers.model import Odcr
from tests.support.night import CLAIMS, FULL, P5, ago, attempts, cluster, situation
from tests.unit.webpage.world import NOW, page


def live(seen: Situation) -> LiveState:
    """The page's state, from the objects that the commands read."""
    return caches(seen)()


def caches(seen: Situation) -> Callable[[], LiveState]:
    """Reads the page's state from caches with these objects."""

    def cache(rows: Any) -> SimpleNamespace:
        return SimpleNamespace(cache=SimpleNamespace(list=lambda: [*rows]))

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
    snapshot = Snapshot(
        version=1,
        reservations={reserved_of(reservation): reservation for reservation in seen.reservations},
        odcrs=OdcrSnapshot(ownership=Ownership(owner=seen.slot_owners)),
        namespaces=seen.namespaces,
    )
    inventory = Inventory(odcrs=odcrs, described=ago(0.2))
    broker: Any = SimpleNamespace(
        inventory=SimpleNamespace(snapshot=lambda: inventory, unreadable=None),
        read=SimpleNamespace(
            claims=cache(seen.claims),
            classes=cache(seen.classes),
            pools=cache(seen.pools),
            pods=cache(seen.pods),
            nodes=cache(seen.nodes),
        ),
        mirrors=cache(seen.mirrors).cache,
        reads=SimpleNamespace(snapshot=lambda: snapshot, namespaces=cache(seen.namespaces)),
        launcher=SimpleNamespace(shortages=Shortages({s.scope: s for s in seen.shortages})),
        occupancy=SimpleNamespace(ledger=lambda _: HoldLedger()),
        caches=SimpleNamespace(owns=lambda claim: claim.spec.node_class_ref.group == names.BROKER),
        waiting_pods=lambda: seen.waiting_pods,
        slot_rows=lambda: slots(seen),
        types=dict,
        node_prices=lambda: seen.price_of,
        instances=SimpleNamespace(listing=()),
        outside_cost=lambda: {("p5.48xlarge", "us-east-1a"): 55.04},
    )
    provider: Any = SimpleNamespace(account_id=lambda: "123456789012")
    return lambda: live_state(cast(Broker, broker), cast(AccountFacts, provider), NOW)


def slots(seen: Situation) -> list[SlotRow]:
    """The picture's rows."""
    broken = {node.claim for node in seen.broken}
    prices = PRICES["us-east-1"]
    return slot_rows(seen.slot_uses.values(), broken=broken, price=lambda use: prices.get(use.type))


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
