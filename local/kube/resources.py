"""The served resources: Kubernetes' own from a table of data, custom ones from their definitions.

Rule: the table is Kubernetes' published discovery document (data/build.py).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING

from local.kube.data import load
from local.kube.errors import ErrorSubject
from local.kube.wire import Obj

if TYPE_CHECKING:
    from local.kube.crd.version import CustomVersion

# autoscaling/v1 is the same object in an older shape, which nothing here converts.
_LEFT_OUT = {("autoscaling", "v1", "horizontalpodautoscalers")}
_PLACES = {"nodes": "minions", "services": "services/specs", "endpoints": "services/endpoints"}
WATCHABLE = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


@dataclass(frozen=True, slots=True)
class Sub:
    """A subresource and the kind of its bodies, which may be of another group."""

    kind: str
    verbs: tuple[str, ...]
    group: str
    version: str


@dataclass(frozen=True, slots=True, eq=False)
class Resource:
    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool
    verbs: tuple[str, ...] = WATCHABLE
    singular: str = ""
    short: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    subresources: Mapping[str, Sub] = field(default_factory=dict)
    storage_hash: str = ""
    list_kind: str = ""
    custom: CustomVersion | None = None
    stored: str = ""  # the apiVersion that objects are stored with, where it is another
    convert: Callable[[Obj], Obj] | None = None  # from the stored form, where more than the version differs
    restore: Callable[[Obj], Obj] | None = None  # and back

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def storage(self) -> str:
        # Both event groups show the same objects.
        group = "" if self.plural == "events" and self.group == "events.k8s.io" else self.group
        return f"{self.plural}.{group}"

    def show(self, obj: Obj) -> Obj:
        """A stored object as this version shows it; the same object where nothing differs."""
        if self.convert is not None:
            return self.convert(obj)
        if obj.get("apiVersion") == self.api_version:
            return obj
        return {**obj, "apiVersion": self.api_version}

    def store(self, obj: Obj) -> Obj:
        """An object of this version as it is stored."""
        if self.restore is not None:
            return self.restore(obj)
        return {**obj, "apiVersion": self.stored} if self.stored else obj

    @property
    def subject(self) -> ErrorSubject:
        return ErrorSubject(self.group, self.plural, self.kind)

    @property
    def registry(self) -> str:
        """The place in etcd that the real server names in some of its errors."""
        return f"{self.group}/{self.plural}" if self.custom else _PLACES.get(self.plural, self.plural)

    @property
    def gvk(self) -> tuple[str, str, str]:
        return (self.group, self.version, self.kind)


@cache
def subresource_kind(sub: Sub, namespaced: bool) -> Resource:
    """The kind of a subresource's bodies, as if it were a resource."""
    return Resource(sub.group, sub.version, sub.kind.lower() + "s", sub.kind, namespaced)


def _builtin(raw: Obj) -> Resource:
    group, version = raw["group"], raw["version"]
    subs = {}
    for name, sub in raw.get("subresources", {}).items():
        response_kind = sub.get("responseKind", {})
        subs[name] = Sub(
            sub["kind"],
            tuple(sub["verbs"]),
            response_kind.get("group", group),
            response_kind.get("version", version),
        )
    return Resource(
        group=group,
        version=version,
        plural=raw["plural"],
        kind=raw["kind"],
        namespaced=raw["namespaced"],
        verbs=tuple(raw["verbs"]),
        singular=raw.get("singularName", ""),
        short=tuple(raw.get("shortNames", ())),
        categories=tuple(raw.get("categories", ())),
        subresources=subs,
        storage_hash=raw.get("storageVersionHash", ""),
        list_kind=raw["kind"] + "List",
    )


@cache
def builtins() -> tuple[Resource, ...]:
    served = (_builtin(raw) for raw in load("resources.json"))
    return tuple(r for r in served if (r.group, r.version, r.plural) not in _LEFT_OUT)


class Registry:
    """The resources served now, by path. Not thread-safe by itself: the cluster's lock covers it."""

    def __init__(self) -> None:
        self._served = {(r.group, r.version, r.plural): r for r in builtins()}
        self.generation = 0
        self.nonce = uuid.uuid4().hex  # part of the hash by which clients cache documents of this server
        self.documents: dict[str, Obj] = {}

    def convert(
        self,
        group: str,
        version: str,
        plural: str,
        *,
        show: Callable[[Obj], Obj],
        store: Callable[[Obj], Obj],
    ) -> None:
        """Registers that a resource's objects are stored in another form."""
        at = (group, version, plural)
        self._served[at] = replace(self._served[at], convert=show, restore=store)

    def find(self, group: str, version: str, plural: str) -> Resource | None:
        return self._served.get((group, version, plural))

    def all(self) -> list[Resource]:
        return list(self._served.values())

    def groups(self) -> dict[str, dict[str, list[Resource]]]:
        """group → version → resources, the preferred version first."""
        out: dict[str, dict[str, list[Resource]]] = {}
        for resource in self._served.values():
            out.setdefault(resource.group, {}).setdefault(resource.version, []).append(resource)
        return {
            group: dict(sorted(versions.items(), key=lambda item: version_order(item[0])))
            for group, versions in out.items()
        }

    def add(self, resource: Resource) -> None:
        self._served[resource.group, resource.version, resource.plural] = resource

    def replace(self, group: str, plural: str, versions: list[Resource]) -> None:
        """Serves exactly these versions of a custom resource; none removes it."""
        self._served = {
            at: r for at, r in self._served.items() if (r.group, r.plural) != (group, plural) or not r.custom
        }
        self._served.update({(r.group, r.version, r.plural): r for r in versions})
        self.generation += 1
        self.documents.clear()


def version_order(version: str) -> tuple[int, int, int, str]:
    """Sorts v2 before v1 before v1beta1 before v1alpha1 before anything else, as discovery does."""
    head, stage = version[1:], 0
    for number, name in ((1, "beta"), (2, "alpha")):
        if name in head:
            major, _, minor = head.partition(name)
            stage = number
            break
    else:
        major, minor = head, "0"
    if not version.startswith("v") or not major.isdigit() or not minor.isdigit():
        return (3, 0, 0, version)
    return (stage, -int(major), -int(minor), "")
