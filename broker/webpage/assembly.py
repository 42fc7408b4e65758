"""The history and the web page of a process, over all terms of its leadership."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from broker.app import Broker
from broker.history.counts import OutsideCounts, WaitingDemand, demands, levels
from broker.history.demand import UseLevel
from broker.history.recorder import HistoryRecorder
from broker.history.store import HistoryStore
from broker.kube.client import Client
from broker.kube.clock import Clock
from broker.kube.derived import Derived
from broker.scheduler import Scheduler
from broker.settings import Settings
from broker.webpage.access import AccessRules, PageAccess
from broker.webpage.details import NO_DETAILS, Details, Explainer, live_details
from broker.webpage.live import LiveState, live_state
from broker.webpage.nodes import PodAmounts
from broker.webpage.server import WebPage


class OnCallViews:
    """`follow` each broker that begins to lead. The history stays between them."""

    def __init__(
        self,
        settings: Settings,
        client: Client,
        *,
        clock: Clock,
        explainer: Explainer,
    ) -> None:
        """`client` makes the reviews of rights; a standby needs it, too. `explainer`: that of `explain`."""
        self._explainer = explainer
        self._requests, self._outside = PodAmounts(), OutsideCounts()
        self._broker: Broker | None = None
        self._started = False
        self.history = HistoryRecorder(
            HistoryStore(settings.history, mebibytes=settings.history_mebibytes),
            clock=clock,
            days=settings.history_days,
            entries=settings.history_entries,
        )
        self.page: WebPage | None = None
        if settings.web:
            self.page = WebPage(
                self.history,
                self.live,
                PageAccess(AccessRules.of(settings), client, clock=clock),
                clock=clock,
                host=settings.web_host,
                port=settings.web_port,
                cluster=settings.cluster_name,
                details=self.details,
            )

    @property
    def url(self) -> str:
        """The page's address; empty without one."""
        return self.page.url if self.page is not None else ""

    def follow(self, broker: Broker | None) -> None:
        """Records the actions of this broker from now on and shows its state; None: no broker leads here."""
        self._broker = broker
        if broker is None:
            return
        self.history.sample_anew()  # another leader may have written since this process led
        inventory = broker.inventory
        inventory.odds = self.history.odds
        broker.journal.subscribe(self.history.attempt)
        broker.recorder.subscribe(self.history.event)
        inventory.on_change(lambda: self.history.use(inventory.snapshot().odcrs))
        caches = broker.caches
        waiting = Derived(lambda: demands(caches.waiting().values()), caches.claims, also=caches.taken)
        sample = partial(self.history.sample, partial(self._levels, broker, waiting))
        inventory.on_change(sample)
        broker.instances.on_listing(sample)

    def _levels(
        self, broker: Broker, waiting: Callable[[], Mapping[WaitingDemand, int]]
    ) -> Iterable[UseLevel] | None:
        """The demand; None if EC2's counts are old: a time without them is no record."""
        if broker is not self._broker or broker.inventory.unreadable or not broker.inventory.described:
            return None
        listing = broker.instances.listing
        outside = self._outside(listing.instances if listing is not None else {})
        classes = broker.read.classes.cache.list()
        odcrs = broker.inventory.snapshot().odcrs
        return levels(
            odcrs, outside, waiting(), classes, broker.types(), broker.nodeclasses.plan, broker.account()
        )

    def record(self, scheduler: Scheduler | None) -> None:
        """Records the actions of this scheduler from now on."""
        if scheduler is not None:
            scheduler.recorder.subscribe(self.history.event)

    def start(self) -> None:
        """Raises OSError naming the address when the page's port is taken."""
        self._started = True
        self.history.start()
        if self.page is not None:
            self.page.start()

    def close(self) -> None:
        if not self._started:
            return
        if self.page is not None:
            self.page.close()
        self.history.close()

    def live(self) -> LiveState | None:
        """The present state; None while no broker leads here."""
        broker = self._broker
        return live_state(broker) if broker is not None else None

    def details(self) -> Details:
        """What single pages show; nothing while no broker leads here."""
        broker = self._broker
        if broker is None:
            return NO_DETAILS
        return live_details(broker, self._explainer, self._requests)
