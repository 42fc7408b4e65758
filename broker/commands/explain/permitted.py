"""What the caller of a command may read: a kind that is not served or not permitted counts as empty."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from broker.apis.meta import Object
from broker.capacity.shortages import Shortages
from broker.controllers.launch.published import read_shortages
from broker.controllers.provisioning.published import read_reports, read_types
from broker.kube.client import Client
from broker.kube.errors import Forbidden, NotFound
from broker.oncall.pod_reports import PodReport
from providers.model import InstanceType

T = TypeVar("T", bound=Object)


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


def published_shortages(client: Client) -> tuple[Shortages, str]:
    """The shortages that the running broker published; none, and why, if the caller may not read them."""
    try:
        return read_shortages(client), ""
    except Forbidden as error:
        return Shortages(), f"current shortages are left out: {error}"


def published_types(client: Client, unread: list[str]) -> Mapping[str, InstanceType]:
    """The types that the running broker published; none if the caller may not read them."""
    try:
        return read_types(client)
    except Forbidden as error:
        unread.append(f"instance types are left out, so whether they have room for a pod: {error}")
        return {}


def published_reports(client: Client, unread: list[str]) -> Mapping[str, PodReport]:
    """The reports that the running broker published; none if the caller may not read them."""
    try:
        return read_reports(client)
    except Forbidden as error:
        unread.append(f"the broker's reasons are left out, so those whose event is over: {error}")
        return {}
