"""The only writer of NodePool conditions.

Why: Karpenter 1.6 has them as one atomic list, in which server-side apply of one condition removes all
others. So the whole list is patched, with the resourceVersion of its read.
"""

from __future__ import annotations

from datetime import datetime

import structlog

from broker.apis.karpenter import NodePool
from broker.apis.meta import ConditionUpdate
from broker.kube.cache import Cache
from broker.kube.client import Client
from broker.kube.conditions import condition_body, remove_condition, set_conditions
from broker.kube.conflicts import after_conflicts
from broker.kube.errors import ApiError

_log = structlog.get_logger("nodepools")


def write_conditions(
    client: Client,
    pools: Cache[NodePool],
    pool: NodePool,
    *updates: ConditionUpdate | None,
    now: datetime,
    without: str = "",
) -> bool:
    """Whether the conditions were changed, beginning with those in the cache. `without`: the type of one to
    remove if there is no update. Raises ApiError.

    After another writer it reads the pool and tries again, three times at most.
    """
    cached = pools.get(pool.name)
    changes = [update for update in updates if update is not None]

    def write(current: NodePool) -> bool:
        before = current.status.conditions
        after = set_conditions(before, *changes, now=now, observed_generation=current.metadata.generation)
        after = after if changes else remove_condition(after, without)
        if after == before:
            return False
        body = {
            "metadata": {"resourceVersion": current.metadata.resource_version},
            "status": {"conditions": [condition_body(item) for item in after]},
        }
        pools.observe(client.patch(NodePool.KIND, pool.name, body, subresource="status"))
        return True

    def read_again() -> NodePool | None:
        # The broker's role has `list` on NodePools, but not `get`.
        listed, _ = client.list(NodePool.KIND, field_selector=f"metadata.name={pool.name}")
        for raw in listed:
            pools.observe(raw)
        return pools.get(pool.name) if listed else None  # also None if it cannot be decoded any more

    first = cached if cached is not None and cached.uid == pool.uid else pool
    return after_conflicts(write, first, read_again)


def try_conditions(
    client: Client,
    pools: Cache[NodePool],
    pool: NodePool,
    *updates: ConditionUpdate | None,
    now: datetime,
    without: str = "",
) -> bool:
    """As `write_conditions`; a refused write is logged, and the next pass of the caller repeats it."""
    try:
        return write_conditions(client, pools, pool, *updates, now=now, without=without)
    except ApiError as error:
        _log.warning("conditions of a pool not written", nodepool=pool.name, error=str(error))
        return False
