"""What the webhook asks the API server while it judges: read anew each time, since a cache lags behind the
create before, and reservations are created rarely."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from pydantic import ValidationError

from broker.admission.rules import Unknown
from broker.apis.core import ResourceQuota
from broker.apis.meta import Object
from broker.apis.ome import CapacityReservation
from broker.apis.ome_clusters import DedicatedAIClusterProfile
from broker.kube.client import Client
from broker.kube.errors import ApiError, NotFound

Json = dict[str, Any]
O = TypeVar("O", bound=Object)  # noqa: E741


class LiveReads:
    """`client` should give up before the API server gives up on the webhook."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def quotas(self, namespace: str) -> Sequence[ResourceQuota]:
        return _read(lambda: self._client.list(ResourceQuota.KIND, namespace=namespace)[0], ResourceQuota)

    def reservations(self, namespace: str) -> Sequence[CapacityReservation]:
        return _read(
            lambda: self._client.list(CapacityReservation.KIND, namespace=namespace)[0], CapacityReservation
        )

    def profile(self, name: str) -> DedicatedAIClusterProfile | None:
        def ask() -> list[Json]:
            try:
                return [self._client.get(DedicatedAIClusterProfile.KIND, name)]
            except NotFound:
                return []

        return next(iter(_read(ask, DedicatedAIClusterProfile)), None)


def _read(ask: Callable[[], list[Json]], model: type[O]) -> Sequence[O]:
    """Raises Unknown."""
    try:
        return [model.decode(each) for each in ask()]
    except ApiError as error:
        raise Unknown(str(error)) from error
    except ValidationError as error:
        raise Unknown(f"a {model.KIND.kind} cannot be read: {error}") from error
