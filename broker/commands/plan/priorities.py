"""The priorities that admission would give to the pods of files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from pydantic import ValidationError

from broker.apis.core import Pod
from broker.apis.kueue import PriorityClass
from broker.commands.explain.permitted import listed
from broker.commands.manifests import BadManifest
from broker.kube.client import Client
from broker.lists import lists_by_key
from broker.text import abridged, nearest

MOST_NAMED: Final = 5
# The API server makes these itself, and no others with the prefix.
_SYSTEM: Final = ("system-cluster-critical", "system-node-critical")


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityClasses:
    """The priority classes of the cluster and the files. `unread`: why those of the cluster are missing."""

    values: Mapping[str, int]
    unread: Sequence[str] = ()

    @classmethod
    def read(cls, client: Client, documents: Iterable[Mapping[str, Any]]) -> Self:
        """Raises BadManifest, ApiError."""
        unread: list[str] = []
        classes = [*listed(client, PriorityClass, unread), *_given(documents)]
        values = {item.name: item.value for item in classes}
        # Admission gives this to a new pod without a class; of several, the lowest.
        values[""] = min((item.value for item in classes if item.global_default), default=0)
        return cls(values=values, unread=tuple(unread))

    def of(self, pod: Pod) -> int:
        """The priority of a new pod."""
        return pod.spec.priority or self.values.get(pod.spec.priority_class_name, 0)

    def unknown(self, pods: Iterable[Pod]) -> Iterator[str]:
        """A line for each class that pods name and that does not exist: the API server refuses such pods."""
        if self.unread:
            return
        named = lists_by_key((pod.spec.priority_class_name, pod.key) for pod in pods)
        for name in sorted(named.keys() - self.values.keys() - {*_SYSTEM}):
            yield (
                f"pod {abridged(named[name], MOST_NAMED)}: spec.priorityClassName is {name!r}, and there is "
                "no PriorityClass of that name: create it, or the API server refuses the pod. It is planned "
                f"with priority 0{nearest(name, self.values.keys() - {''})}"
            )


def _given(documents: Iterable[Mapping[str, Any]]) -> Iterator[PriorityClass]:
    for document in documents:
        if document["kind"] == PriorityClass.KIND.kind:
            try:
                yield PriorityClass.decode(dict(document))
            except ValidationError as error:
                raise BadManifest(f"PriorityClass cannot be read: {error}") from error
