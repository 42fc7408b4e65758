"""The readers of EC2's notices, and of the health of instances."""

from __future__ import annotations

from broker.controllers.interruption.impairments import EVERY, ImpairmentReader
from broker.controllers.interruption.notices import NoticeResponder
from broker.controllers.interruption.reader import QueueReader
from broker.controllers.launch.launcher import Launcher
from broker.wiring.term import Term


def add_interruption(term: Term, launcher: Launcher) -> None:
    """Reads the health of instances, and the queue of notices if there is one."""
    impairments = ImpairmentReader(term, term.caches, term.provider)
    term.manager.singleton("impairments", impairments.run, every=EVERY, synced=term.read.synced)
    if not (queue := term.settings.interruption_queue):
        return
    notices = NoticeResponder(
        term,
        term.caches,
        term.nodeclasses,
        short=launcher.announced,
        describe=term.describe,
    )
    term.manager.run(
        QueueReader(term.provider, queue, notices.take, clock=term.clock, synced=term.read.synced)
    )
