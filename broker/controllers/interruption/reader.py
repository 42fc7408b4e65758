"""Receives EC2's notices from the queue, in a thread.

Invariant: a message is deleted only after it was handled, so a failed one is received again. No message is
handled before the caches are complete, or after `stop` has returned. `stop` does not wait for the long poll:
its messages stay in the queue for the next leader.
"""

from __future__ import annotations

import random as random_module
import threading
from collections.abc import Callable, Sequence

from prometheus_client import Counter

from broker.kube.backoff import Backoff, Random
from broker.kube.clock import Clock
from broker.kube.controller import Result, attempt
from broker.kube.errors import ApiError
from broker.oncall.metrics import REGISTRY
from providers.base import NoticeQueue
from providers.errors import ProviderError
from providers.notices import QueueMessage

NAME = "interruption"
FIRST, LONGEST = 1.0, 60.0  # seconds of back-off
SYNC_POLL = 0.1
LONG_POLL = 20  # seconds; SQS's maximum, which SQS recommends

_DELETED = Counter(
    "capacity_broker_interruption_messages_deleted",
    "Messages deleted from the interruption queue after they were handled.",
    registry=REGISTRY,
)


class QueueReader:
    """Receives from `queue` and gives each message to `take`, in its own thread."""

    def __init__(
        self,
        provider: NoticeQueue,
        queue: str,
        take: Callable[[QueueMessage], None],
        *,
        clock: Clock,
        synced: Callable[[], bool],
        random: Random = random_module.random,
    ) -> None:
        self._provider = provider
        self._queue = queue
        self._take = take
        self._clock = clock
        self._synced = synced
        self._backoff = Backoff(first=FIRST, longest=LONGEST, random=random)
        self._stop = threading.Event()
        self._acting = threading.Lock()
        self._thread = threading.Thread(target=self._loop, name=NAME, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Waits for a message that is being handled; no other is begun."""
        self._stop.set()
        with self._acting:
            return

    def _loop(self) -> None:
        while not self._synced():
            if self._clock.wait(self._stop, SYNC_POLL):
                return
        while not self._stop.is_set():
            outcome = attempt(
                NAME, self.step, clock=self._clock, expected=(ProviderError, ApiError), queue=self._queue
            )
            if outcome.failed:
                self._clock.wait(self._stop, self._backoff.next(at_least=outcome.wait))
            else:
                self._backoff.reset()

    def step(self) -> Result | None:
        """Makes one long poll, and handles its messages.

        Raises ProviderError; ApiError after every message was handled.
        """
        messages = self._provider.receive(self._queue, wait=LONG_POLL)
        with self._acting:
            if not self._stop.is_set():
                self._handle_all(messages)
        return None

    def _handle_all(self, messages: Sequence[QueueMessage]) -> None:
        handled: list[QueueMessage] = []
        failed: ApiError | None = None
        for message in messages:
            refused = self._handle(message)
            failed = failed or refused
            if refused is None:
                handled.append(message)
        if handled:
            self._provider.delete_messages(self._queue, handled)
            _DELETED.inc(len(handled))
        if failed is not None:
            raise failed

    def _handle(self, message: QueueMessage) -> ApiError | None:
        """The error for which the message must be received again.

        A message that causes a panic is not received again: it would stay in the queue for ever.
        """
        refused: list[ApiError] = []

        def take() -> None:
            refused.clear()
            try:
                self._take(message)
            except ApiError as error:
                refused.append(error)

        attempt(
            f"{NAME} message",
            take,
            clock=self._clock,
            expected=(),
            body=message.body[:1000],
        )
        return refused.pop() if refused else None
