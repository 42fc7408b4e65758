"""AWS's descriptions of its services as the SDK reads them, without operations that are never called here.

Invariant: a kept operation is described in full: its own shapes, and those that they refer to. The SDK keeps
every operation of a service, with its documentation, for as long as the process lives. For EC2 that is 28
MB, and a thirtieth of the operations is used; of its list of endpoints, a thirtieth of the services. A loader
reads files by its `file_loader` (botocore, loaders.py); documentation is for its own manual. Services by
which the SDK itself gets credentials are read whole.
"""

from __future__ import annotations

import gzip
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import orjson
from botocore.loaders import JSONFileLoader, Loader

Json = dict[str, Any]

USED: Mapping[str, Collection[str]] = {
    "ec2": (
        "CancelCapacityReservation",
        "CreateCapacityReservation",
        "CreateFleet",
        "CreateLaunchTemplate",
        "CreateTags",
        "DeleteLaunchTemplate",
        "DeleteTags",
        "DescribeCapacityBlockExtensionHistory",
        "DescribeCapacityReservations",
        "DescribeImages",
        "DescribeInstanceStatus",
        "DescribeInstanceTypeOfferings",
        "DescribeInstanceTypes",
        "DescribeInstances",
        "DescribeLaunchTemplates",
        "DescribePlacementGroups",
        "DescribeSecurityGroups",
        "DescribeSpotPriceHistory",
        "DescribeSubnets",
        "DescribeTags",
        "ModifyCapacityReservation",
        "RebootInstances",
        "RunInstances",
        "TerminateInstances",
    ),
    "eks": ("DescribeCluster",),
    "iam": (
        "AddRoleToInstanceProfile",
        "CreateInstanceProfile",
        "DeleteInstanceProfile",
        "GetInstanceProfile",
        "ListInstanceProfiles",
        "ListInstanceProfilesForRole",
        "RemoveRoleFromInstanceProfile",
        "TagInstanceProfile",
    ),
    "ssm": ("GetParameters",),
}
# The others that are called, here or by the SDK for credentials, by their names in the list of endpoints.
OTHERS = ("api.pricing", "oidc", "portal.sso", "resource-groups", "sqs", "sts")


class LeanFiles(JSONFileLoader):
    """Reads files for a loader."""

    def load_file(self, file_path: str) -> Json | None:
        """The file of that path without its ending; None where there is none."""
        content = _content(Path(file_path))
        if content is None:
            return None
        model: Json = orjson.loads(content)
        *_, service, _date, name = Path(file_path).parts
        if name == "service-2" and service in USED:
            return cut(model, USED[service])
        if name == "endpoints":
            for partition in model["partitions"]:
                services = partition["services"]
                partition["services"] = {key: services[key] for key in (*USED, *OTHERS) if key in services}
        return model


@cache
def lean_loader(paths: tuple[str, ...]) -> Loader:
    """One loader for all sessions of the process: it keeps the files that it read, which never change."""
    return Loader(extra_search_paths=[*paths], file_loader=LeanFiles(), include_default_search_paths=False)


def cut(model: Json, operations: Collection[str]) -> Json:
    """A service's description with these operations only, and without documentation."""
    kept_operations = {
        name: described for name, described in model["operations"].items() if name in operations
    }
    pending = [*_referred(kept_operations)]
    shapes: Json = {}
    while pending:
        name = pending.pop()
        if name not in shapes:
            shapes[name] = _terse(model["shapes"][name])
            pending += _referred(shapes[name])
    return {**model, "operations": _terse(kept_operations), "shapes": shapes}


def _content(path: Path) -> bytes | None:
    """Finds, of the endings that the SDK knows, the first that is there."""
    for ending, opened in ((".json", open), (".json.gz", gzip.open)):
        whole = path.with_name(path.name + ending)
        if whole.is_file():
            with opened(whole, "rb") as file:
                return bytes(file.read())
    return None


def _referred(described: Any) -> Iterator[str]:
    """The shapes that are named anywhere in a description."""
    if isinstance(described, dict):
        name = described.get("shape")
        if isinstance(name, str):
            yield name
        for inner in described.values():
            yield from _referred(inner)
    elif isinstance(described, list):
        for inner in described:
            yield from _referred(inner)


def _terse(described: Any) -> Any:
    """Without documentation, which is a text; a member of that name is an object."""
    if isinstance(described, dict):
        return {
            key: _terse(inner)
            for key, inner in described.items()
            if key != "documentation" or not isinstance(inner, str)
        }
    return [_terse(inner) for inner in described] if isinstance(described, list) else described
