"""An informer of one of Kueue's kinds, in whichever version the API server serves.

Invariant: a kind is `missing` only when it is served in none of the versions that the broker speaks, and
which one is served is found out anew with each list: Kueue may be installed, upgraded or removed while the
broker runs. Kueue has served v1beta1 alone up to 0.14 and both since (its CHANGELOG-0.15 and -0.16).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from broker.apis.kueue import VERSIONS
from broker.apis.meta import Kind, Object
from broker.kube.errors import NotFound
from broker.kube.informer import Informer

T = TypeVar("T", bound=Object)


class ServedInformer(Informer[T]):
    """`kind` is in the version that was served last: what writes to these objects are sent to."""

    _arrived: Callable[[], None] | None = None
    _left: Callable[[], None] | None = None

    def on_listed(self, reader: Callable[[], None]) -> None:
        """Calls `reader` after each complete list: the kind is served, perhaps since just now."""
        self._arrived = reader

    def on_missing(self, reader: Callable[[], None]) -> None:
        """Calls `reader` after each list that found the kind in no version: Kueue is not installed."""
        self._left = reader

    @property
    def kind(self) -> Kind:
        return self._kind

    def _list(self) -> None:
        for version in VERSIONS:
            self._kind = replace(self._kind, version=version)
            try:
                super()._list()
            except NotFound:
                if version == VERSIONS[-1]:
                    self.missing = True
                    if self._left is not None:
                        self._left()
                    raise
                continue
            if self._arrived is not None:
                self._arrived()
            return

    def _stream(self) -> None:
        try:
            super()._stream()
        except NotFound:
            # Its version is no longer served: another may be, which the next list finds out.
            self._revision = ""
