"""What the webhook asks the API server while it judges: read anew each time, since a cache lags behind the
create before, and reservations are created rarely."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from pydantic import ValidationError

from broker.admission.rules import Unknown
from broker.apis.core import ResourceQuota
from broker.apis.meta import Object
from broker.apis.ome import CapacityReservation
from broker.apis.ome_clusters import DedicatedAIClusterProfile
from broker.kube.client import Client
from broker.kube.errors import ApiError, NotFound

O = TypeVar("O", bound=Object)  # noqa: E741


class LiveReads:
    """`client` should give up before the API server gives up on the webhook."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def quotas(self, namespace: str) -> Sequence[ResourceQuota]:
        return self._all(ResourceQuota, namespace)

    def reservations(self, namespace: str) -> Sequence[CapacityReservation]:
        return self._all(CapacityReservation, namespace)

    def profile(self, name: str) -> DedicatedAIClusterProfile | None:
        try:
            raw = self._client.get(DedicatedAIClusterProfile.KIND, name)
        except NotFound:
            return None
        except ApiError as error:
            raise Unknown(str(error)) from error
        return _decoded(DedicatedAIClusterProfile, raw)

    def _all(self, model: type[O], namespace: str) -> Sequence[O]:
        try:
            items, _ = self._client.list(model.KIND, namespace=namespace)
        except ApiError as error:
            raise Unknown(str(error)) from error
        return [_decoded(model, item) for item in items]


def _decoded(model: type[O], raw: dict[str, object]) -> O:
    try:
        return model.decode(raw)
    except ValidationError as error:
        raise Unknown(f"{model.KIND.kind} cannot be read: {error}") from error
