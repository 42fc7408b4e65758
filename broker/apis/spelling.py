"""Finds annotations of the broker's own domain that have no effect on their object.

Invariant: no such annotation is ignored silently. One that is unknown, or belongs to another kind, is
reported with the nearest name that has an effect there, if one is near: a distant name is no typing
error. Kubernetes accepts any key
(https://kubernetes.io/docs/concepts/overview/working-with-objects/annotations/), so only the broker can
report it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from broker.apis import names
from broker.text import similar

PREFIX: Final = f"{names.BROKER}/"
REASON: Final = "UnknownAnnotation"
NEAR: Final = 0.75  # of difflib's ratio; `tenant` is so near to `tenancy`, `permission` to `admission` is not


@dataclass(frozen=True, slots=True, kw_only=True)
class Misspelt:
    """An annotation without effect. `meant`: the nearest name for this kind; empty if none is near."""

    key: str
    meant: str
    message: str


def misspelt(kind: str, annotations: Mapping[str, str]) -> tuple[Misspelt, ...]:
    """The annotations of an object of this kind that have no effect on it, by name."""
    known = names.ANNOTATIONS.get(kind)
    if known is None:
        return ()
    return tuple(
        _misspelt(kind, key, known)
        for key in sorted(annotations)
        if key.startswith(PREFIX) and key not in known
    )


def of_pool(own: Iterable[str], template: Mapping[str, str]) -> tuple[Misspelt, ...]:
    """Those of a NodePool. Its claims get its template's annotations; on the pool, OF_THE_POOL are read."""
    misplaced = names.OF_THE_POOL & {*template}
    rest = {key: value for key, value in template.items() if key not in misplaced}
    return (*_beside_the_template(own), *map(_for_the_pool, sorted(misplaced)), *misspelt("NodePool", rest))


def _misspelt(kind: str, key: str, known: tuple[str, ...]) -> Misspelt:
    writable = [name for name in known if name not in names.WRITTEN_BY_BROKER.get(kind, ())]
    words = {name.removeprefix(PREFIX): name for name in writable}
    meant = words.get(similar(key.removeprefix(PREFIX), words, ratio=NEAR), "")
    elsewhere = [name for name, keys in names.ANNOTATIONS.items() if key in keys]
    if elsewhere:
        way = f"it is read on {' and '.join(elsewhere)}"
        meant = ""
    elif meant:
        way = f"write {meant} if that is meant"
    else:
        way = f"the keys of a {kind} are {', '.join(sorted(writable))}"
    return Misspelt(key=key, meant=meant, message=f"annotation {key} means nothing on a {kind}: {way}")


def _for_the_pool(key: str) -> Misspelt:
    return Misspelt(
        key=key,
        meant=key,
        message=f"annotation {key} in spec.template.metadata.annotations of a NodePool means nothing: write "
        "it in metadata.annotations",
    )


def _beside_the_template(own: Iterable[str]) -> Iterator[Misspelt]:
    for key in sorted(own):
        if key in names.ANNOTATIONS["NodePool"] and key not in names.OF_THE_POOL:
            yield Misspelt(
                key=key,
                meant=key,
                message=f"annotation {key} in metadata.annotations of a NodePool means nothing: write it in "
                "spec.template.metadata.annotations, which its NodeClaims get",
            )
