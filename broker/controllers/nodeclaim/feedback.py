"""Reports the findings of launches to classes and NodePools."""

from __future__ import annotations

from collections.abc import Callable

from broker.apis import names
from broker.capacity.model import Attempt
from broker.controllers.nodeclaim.caches import ClaimCaches
from broker.controllers.nodeclaim.report import Reporter, limit
from broker.controllers.nodeclass.controller import NodeClassController
from broker.controllers.nodeclass.resolve import LaunchClass


class ClassFeedback:
    """Used by the launch loop.

    `launched` is called after each launch from a class, `template_limit` if EC2 makes no further template.
    """

    def __init__(
        self,
        caches: ClaimCaches,
        nodeclasses: NodeClassController,
        reporter: Reporter,
        *,
        reconcile_class: Callable[[str], None],
        describe: Callable[[], None],
        launched: Callable[[LaunchClass], None],
        template_limit: Callable[[], None],
    ) -> None:
        """`describe` has EC2's reservations described again."""
        self.launched = launched
        self.template_limit = template_limit
        self._claims = caches.claims
        self._nodeclasses = nodeclasses
        self._reporter = reporter
        self._reconcile_class = reconcile_class
        self._describe = describe

    def doubt(self, name: str) -> None:
        """Reads a class and the reservations again, since EC2 refused something that the class names."""
        self._nodeclasses.doubt(name)
        self._reconcile_class(name)
        self._describe()

    def limit(self, attempt: Attempt) -> None:
        """Writes the attempt's result about reservations to its class and its NodePool."""
        change = limit(attempt)
        if change is None:
            return
        self._nodeclasses.limit(attempt.node_class, change)
        self._reconcile_class(attempt.node_class)
        claim = self._claims.get(attempt.claim)
        if claim is not None and (pool := claim.labels.get(names.NODEPOOL)):
            self._reporter.pool_limit(pool, change)
