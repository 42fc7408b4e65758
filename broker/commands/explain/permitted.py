"""What the caller of a command may read: a kind that is not served or not permitted counts as empty."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from broker.apis.meta import Object
from broker.capacity.shortages import Shortages
from broker.controllers.launch.published import read_odds, read_shortages
from broker.controllers.provisioning.published import read_reports, read_types
from broker.kube.client import Client
from broker.kube.errors import Forbidden, NotFound
from broker.oncall.pod_reports import PodReport
from providers.model import InstanceType

T = TypeVar("T", bound=Object)
V = TypeVar("V")


@dataclass(frozen=True)
class PublishedFact(Generic[V]):
    """A value that the running broker publishes. `left_out`: the words for a caller who may not read it."""

    read: Callable[[Client], V]
    nothing: V
    left_out: str


SHORTAGES = PublishedFact(read_shortages, Shortages(), "current shortages are left out")
ODDS = PublishedFact[Mapping[str, int]](read_odds, {}, "the ranks of pools are left out")
TYPES = PublishedFact[Mapping[str, InstanceType]](
    read_types, {}, "instance types are left out, so whether they have room for a pod"
)
REPORTS = PublishedFact[Mapping[str, PodReport]](
    read_reports, {}, "the broker's reasons are left out, so those whose event is over"
)


def listed(
    client: Client, model: type[T], unread: list[str] | None = None, *, required: bool = False
) -> list[T]:
    """The objects of a kind; empty if it is not served, or the caller may not list it. `unread` gets the
    reason. Raises ApiError, as NotFound for a `required` kind.
    """
    try:
        return [model.decode(raw) for raw in client.list(model.KIND)[0]]
    except NotFound:
        if required:
            raise
    except Forbidden as error:
        if unread is not None:
            unread.append(f"{model.KIND.plural} are left out: {error}")
    return []


def published(client: Client, value: PublishedFact[V], unread: list[str] | None = None) -> V:
    """The value; nothing if the caller may not read it. `unread` gets the reason. Raises other ApiErrors."""
    try:
        return value.read(client)
    except Forbidden as error:
        if unread is not None:
            unread.append(f"{value.left_out}: {error}")
        return value.nothing
