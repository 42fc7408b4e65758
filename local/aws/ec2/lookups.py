"""moto's look-ups by id, without a scan of everything.

The results are moto's; only the search is shorter. moto scans all instances for one id and all tags of
all resources for one resource's tags, several times a launch, so that each launch is slower than the one
before. It also makes a Region's 1,300 images for each account, with a volume and a snapshot each.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar, cast

from moto import settings
from moto.ec2.models import EC2Backend
from moto.ec2.models.amis import Ami
from moto.ec2.models.elastic_block_store import Snapshot, Volume
from moto.ec2.models.instances import Instance
from moto.ec2.utils import EC2_PREFIX_TO_RESOURCE, generic_filter, get_prefix

WILDCARDS = frozenset("*?[\\")
Stored = TypeVar("Stored", Ami, Snapshot)


@dataclass(frozen=True, slots=True)
class Stock:
    """A Region's images and their snapshots as an account first sees them; accounts change copies."""

    amis: Mapping[str, Ami]
    snapshots: Mapping[str, Snapshot]
    tags: Mapping[str, Mapping[str, str]]


@lru_cache
def _stock(region_name: str, account_id: str) -> Stock:
    backend = EC2Backend(region_name, account_id)
    snapshots = {ami.ebs_snapshot.id: ami.ebs_snapshot for ami in backend.amis.values()}
    return Stock(
        backend.amis, snapshots, {id_: backend.tags[id_] for id_ in backend.amis if backend.tags.get(id_)}
    )


class Copies(MutableMapping[str, Stored]):
    """A stock that one account may change. A thing is copied when it is first read: most never are."""

    def __init__(self, ids: Iterable[str], copied: Callable[[str], Stored]) -> None:
        self._things: dict[str, Stored | None] = dict.fromkeys(ids)
        self._copy: Callable[[str], Stored] = copied
        self._lock = threading.Lock()

    def __getitem__(self, id_: str) -> Stored:
        if (stored := self._things[id_]) is not None:
            return stored
        with self._lock:
            stored = self._things[id_]
            if stored is None:
                stored = self._things[id_] = self._copy(id_)
            return stored

    def __setitem__(self, id_: str, resource: Stored) -> None:
        self._things[id_] = resource

    def __delitem__(self, id_: str) -> None:
        del self._things[id_]

    def __contains__(self, id_: object) -> bool:
        return id_ in self._things

    def __iter__(self) -> Iterator[str]:
        return iter(self._things)

    def __len__(self) -> int:
        return len(self._things)

    def copy(self) -> dict[str, Stored]:
        return dict(self)


def _copied(original: Stored, backend: Any, **other: Any) -> Stored:
    copied: Any = type(original).__new__(type(original))
    vars(copied).update(vars(original), ec2_backend=backend, **other)
    return cast(Stored, copied)


class QuickLookups(EC2Backend):
    def __init__(self, region_name: str, account_id: str):
        self.instances_by_id: dict[str, Instance] = {}
        super().__init__(region_name, account_id)

    def reset(self) -> None:
        """Start anew at the next use: moto resets each backend twice a test and throws it away at once."""
        self.__dict__ = {"_reset": (self.region_name, self.account_id)}

    def __getattr__(self, name: str) -> Any:
        begin_with = self.__dict__.pop("_reset", None)
        if begin_with is None:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        self.__init__(*begin_with)  # type: ignore[misc]
        return getattr(self, name)

    def _load_amis(self) -> None:
        if "MOTO_AMIS_PATH" in os.environ or not settings.ec2_load_default_amis():
            super()._load_amis()
            return
        stock = _stock(self.region_name, self.account_id)

        def ami(id_: str) -> Ami:
            original = stock.amis[id_]
            return _copied(
                original,
                self,
                ebs_snapshot=self.snapshots[original.ebs_snapshot.id],
                launch_permissions=[dict(permission) for permission in original.launch_permissions],
                product_codes=copy(original.product_codes),
            )

        def snapshot(id_: str) -> Snapshot:  # its volume is gone, and cannot be changed
            return _copied(
                stock.snapshots[id_],
                self,
                create_volume_permission_groups=set(),
                create_volume_permission_userids=set(),
            )

        # moto names dictionaries, and uses no more of them than these have.
        self.amis = cast("dict[str, Ami]", Copies(stock.amis, ami))
        self.snapshots = cast("dict[str, Snapshot]", Copies(stock.snapshots, snapshot))
        for id_, tags in stock.tags.items():
            self.tags[id_] = dict(tags)

    def get_instance(self, instance_id: str) -> Instance:
        return self._known(instance_id) or super().get_instance(instance_id)

    def get_instance_by_id(self, instance_id: str) -> Instance | None:
        return self._known(instance_id) or super().get_instance_by_id(instance_id)

    def _known(self, instance_id: str) -> Instance | None:
        """Finds an instance by the index, or in the current launch: moto looks up each that it makes."""
        instance = self.instances_by_id.get(instance_id)
        if instance is None and self.reservations:
            newest = next(reversed(self.reservations.values()))
            instance = next(
                (candidate for candidate in newest.instances if candidate.id == instance_id), None
            )
        return instance

    def get_multi_instances_by_id(self, instance_ids: list[str], filters: Any = None) -> list[Instance]:
        instances = [self.instances_by_id.get(instance_id) for instance_id in instance_ids]
        if None in instances:
            return super().get_multi_instances_by_id(instance_ids, filters)
        return [instance for instance in instances if instance is not None and instance.applies(filters)]

    def describe_images(
        self,
        ami_ids: list[str] | None = None,
        filters: dict[str, Any] | None = None,
        exec_users: list[str] | None = None,
        owners: list[str] | None = None,
    ) -> list[Ami]:
        image_ids = (filters or {}).get("image-id") or ()
        wanted = {image_ids} if isinstance(image_ids, str) else set(image_ids)
        exact = not any(WILDCARDS.intersection(image_id) for image_id in wanted)
        if filters and wanted and exact and not (ami_ids or exec_users or owners):
            images = [self.amis[id_] for id_ in self.amis if id_ in wanted]
            return generic_filter({name: filters[name] for name in filters if name != "image-id"}, images)
        return super().describe_images(ami_ids, filters, exec_users, owners)

    def describe_tags(self, filters: dict[str, list[str]] | None = None) -> list[dict[str, str]]:
        if filters and list(filters) == ["resource-id"]:
            ids = filters["resource-id"]
            if len(ids) == 1 and not WILDCARDS.intersection(ids[0]):
                kind = EC2_PREFIX_TO_RESOURCE.get(get_prefix(ids[0]), "")
                return [
                    {"resource_id": ids[0], "key": key, "value": value, "resource_type": kind}
                    for key, value in self.tags.get(ids[0], {}).items()
                ]
        return super().describe_tags(filters)

    def describe_volumes(self, volume_ids: list[str] | None = None, filters: Any = None) -> list[Volume]:
        if volume_ids and len(volume_ids) == 1 and not filters and volume_ids[0] in self.volumes:
            return [self.volumes[volume_ids[0]]]
        return super().describe_volumes(volume_ids, filters)
