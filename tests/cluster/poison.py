"""Objects that are left out of a cache, as after a pass that failed on them."""

from __future__ import annotations

from typing import Any

from broker.apis.meta import Object
from broker.kube.cache import Cache, version_of
from tests.cluster.stack import Stack

POISON = "poison"


def leave_out(
    stack: Stack, cache: Cache[Any], model: type[Object], name: str, *, namespace: str | None = None
) -> None:
    """A watch takes all objects back as it opens, so it shows a manual edit first."""
    edit = {"metadata": {"annotations": {"test": "edited"}}}
    version = version_of(stack.client.patch(model.KIND, name, edit, namespace=namespace))
    stack.until(lambda: cache._progress >= version, f"the watch shows {name}")
    stack.until(
        lambda: cache.leave_out(stack.get(model, name, namespace=namespace), POISON), f"{name} is left out"
    )
