"""Which change starts which loop: the declarations of `broker/wiring`, as a broker makes them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final
from unittest.mock import patch

from broker.app import Broker
from broker.kube.cache import Cache
from broker.kube.client import Client
from broker.kube.watches import Signal, Watches
from broker.scheduler import Scheduler
from broker.settings import Settings
from local.in_process import InProcessTransport
from local.kube import Cluster
from tests.support.clock import FakeClock

# What calls the handlers that `Watches.on` registers.
CALLS: Final[Mapping[str, str]] = {
    "InventoryCache.on_change": "a new description of EC2's reservations",
    "InstanceView.on_listing": "a new description of the instances",
    "NodeClassController.on_change": "a class that launches in another way, or no more",
    "SnapshotBuilder.on_odcrs": "an ODCR with another owner",
    "SnapshotBuilder.on_queue_problems": "a problem of a reservation's Kueue queues",
    "UnattributedUsageReader.on_change": "instances in a reservation that are no claims",
    "ServedInformer.on_listed": "a kind of Kueue that is installed now",
    "ServedInformer.on_missing": "a kind of Kueue that is installed no more",
}
SIGNALS: Final[Mapping[str, str]] = {
    "describe": "a call for a new description of EC2's reservations",
    "described": "the first description of EC2's reservations",
    "replan": "a call for a new plan of the waiting claims",
    "reconcile_class": "a call to resolve a class again",
    "instance_changed": "an instance that ends",
    "owner_changed": "claims that are taken over from Karpenter, or given back",
    "template_limit": "the limit of launch templates",
    "decided_now": "a decision about the slot of a claim that ends",
    "nominated": "a plan that nominates an occupied slot",
    "failed": "an AdmissionCheck that cannot be written",
}


def triggers() -> Mapping[str, Sequence[str]]:
    """The loops that each change starts: first changes of objects, by their resource, then other calls."""
    declared: list[tuple[str, Any]] = []
    watches, on = Watches.watches, Watches.on

    def watches_objects(loop: Any, source: Any, *more: Any, **named: Any) -> Any:
        declared.append((loop.name, source if isinstance(source, Cache) else source.cache))
        return watches(loop, source, *more, **named)

    def follows_calls(loop: Any, subscribe: Any, *more: Any, **named: Any) -> Any:
        declared.append((loop.name, subscribe))
        return on(loop, subscribe, *more, **named)

    absent: Any = None
    client, clock, settings = Client(InProcessTransport(Cluster())), FakeClock(), Settings()
    with patch.object(Watches, "watches", watches_objects), patch.object(Watches, "on", follows_calls):
        broker = Broker(client, absent, settings, clock=clock)
        Scheduler(client, settings, clock=clock)
    signals = {
        **vars(broker.signals),
        "nominated": broker.slots.nominated,
        "failed": broker.check.failed,
        "decided_now": broker._term.successions.decided_now,
    }
    words = {id(signal): SIGNALS[name] for name, signal in signals.items()}
    woken: dict[tuple[bool, str], dict[str, None]] = defaultdict(dict)
    for loop, source in declared:
        if isinstance(source, Cache):
            woken[False, f"`{source.resource}`"][loop] = None
        else:
            owner = source.__self__
            word = words[id(owner)] if isinstance(owner, Signal) else CALLS[source.__qualname__]
            woken[True, word][loop] = None
    return {change: [*loops] for (_, change), loops in sorted(woken.items())}
