"""Resource Groups for moto: groups of Capacity Reservations that a launch can target.

`install()` replaces moto's own Resource Groups, for both `mock_aws` and the server. Call it once, before the
first request. The EC2 part reads `members` and `groups_of`, and registers itself with `connect`, so that a
group knows which reservations exist.
"""

import threading

from moto.core.base_backend import BackendDict
from moto.resourcegroups import urls
from moto.resourcegroups.models import resourcegroups_backends

from local.aws.groups.models import ReservationGroupsBackend
from local.aws.groups.reservations import ReservationSource, connect
from local.aws.groups.responses import ReservationGroupsResponse

__all__ = ["ReservationSource", "connect", "groups_of", "install", "members"]

NEW_PATHS = ("group-resources", "ungroup-resources", "list-group-resources", "list-grouping-statuses")

_lock = threading.Lock()


def install() -> None:
    """Swap the class inside the registry that every moto module shares, and the handler of every URL."""
    with _lock:
        if resourcegroups_backends.backend is ReservationGroupsBackend:
            return
        resourcegroups_backends.backend = ReservationGroupsBackend
        BackendDict.reset()
        for path in [*urls.url_paths, *(f"{{0}}/{name}$" for name in NEW_PATHS)]:
            urls.url_paths[path] = ReservationGroupsResponse.dispatch


def members(account_id: str, region: str, group: str) -> list[str]:
    """The ARNs of a group's reservations, by its name or ARN; LookupError if there is no such group."""
    backend = _backend(account_id, region)
    if group not in backend.groups:
        raise LookupError(f"Resource group {group} does not exist in {region} of account {account_id}")
    return backend.members(backend.groups[group])


def groups_of(account_id: str, region: str, odcr_arn: str) -> list[dict[str, str]]:
    """The account's groups that contain a reservation, as GetGroupsForCapacityReservation answers."""
    groups = _backend(account_id, region).groups_with(odcr_arn)
    return [{"GroupArn": group.arn, "OwnerId": account_id} for group in groups]


def _backend(account_id: str, region: str) -> ReservationGroupsBackend:
    backend = resourcegroups_backends[account_id][region]
    assert isinstance(backend, ReservationGroupsBackend), "call local.aws.install() first"
    return backend
