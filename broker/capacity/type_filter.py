"""The types that match a claim: a requirement is tested once per label value, a request once per amount.

Invariant: the result equals a test of each type by itself. It is a boolean for each type, in order, so a
thousand different claims take a few array operations each.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from broker.capacity.requirements import Requirements

Mask = NDArray[np.bool_]


class TypeFilter:
    """`labels` and `amounts` are those of the types, in order."""

    def __init__(self, labels: Sequence[Mapping[str, str]], amounts: Sequence[Mapping[str, float]]) -> None:
        self._labels = labels
        self._amounts = amounts
        self._values: dict[str, dict[str | None, Mask]] = {}
        self._room: dict[str, NDArray[np.float64]] = {}

    def matches_labels(self, requirements: Requirements, *, among: Collection[str]) -> Mask:
        """The types with labels that satisfy the requirements on the keys `among` these."""
        mask = np.ones(len(self._labels), dtype=bool)
        for key in requirements:
            if key not in among:
                continue
            values = self._of(key)
            listed = requirements.values(key)
            possible = (*listed, None) if listed is not None else (*values, None)
            allowed = [
                values[value] for value in possible if value in values and requirements.allows(key, value)
            ]
            mask &= np.logical_or.reduce(allowed) if allowed else False
        return mask

    def fits(self, requests: Mapping[str, float]) -> Mask:
        """The types that have room for the requests."""
        mask = np.ones(len(self._amounts), dtype=bool)
        for resource, amount in requests.items():
            if amount > 0:
                if resource not in self._room:
                    self._room[resource] = np.array([amounts.get(resource, 0.0) for amounts in self._amounts])
                mask &= self._room[resource] >= amount
        return mask

    def _of(self, key: str) -> Mapping[str | None, Mask]:
        """The types of each value of a label; types without the label under None."""
        if key not in self._values:
            masks: dict[str | None, Mask] = {}
            for place, labels in enumerate(self._labels):
                value = labels.get(key)
                if value not in masks:
                    masks[value] = np.zeros(len(self._labels), dtype=bool)
                masks[value][place] = True
            self._values[key] = masks
        return self._values[key]
