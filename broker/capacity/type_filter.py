"""The types that match a claim: a requirement is tested once per label value, a request once per amount.

Invariant: the result equals a test of each type by itself. It is a boolean for each type, in order, so a
thousand different claims take a few array operations each.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from broker.capacity.requirements import Requirements

Yes = NDArray[np.bool_]


class TypeFilter:
    """`labels` and `amounts` are those of the types, in order."""

    def __init__(self, labels: Sequence[Mapping[str, str]], amounts: Sequence[Mapping[str, float]]) -> None:
        self._labels = labels
        self._amounts = amounts
        self._values: dict[str, dict[str | None, Yes]] = {}
        self._room: dict[str, NDArray[np.float64]] = {}

    def matches_labels(self, requirements: Requirements, *, among: Collection[str]) -> Yes:
        """The types with labels that satisfy the requirements on the keys `among` these."""
        yes = np.ones(len(self._labels), dtype=bool)
        for key in requirements:
            if key not in among:
                continue
            values = self._of(key)
            listed = requirements.values(key)
            some = (*listed, None) if listed is not None else (*values, None)
            allowed = [values[value] for value in some if value in values and requirements.allows(key, value)]
            yes &= np.logical_or.reduce(allowed) if allowed else False
        return yes

    def fits(self, requests: Mapping[str, float]) -> Yes:
        """The types that have room for the requests."""
        yes = np.ones(len(self._amounts), dtype=bool)
        for resource, amount in requests.items():
            if amount > 0:
                if resource not in self._room:
                    self._room[resource] = np.array([each.get(resource, 0.0) for each in self._amounts])
                yes &= self._room[resource] >= amount
        return yes

    def _of(self, key: str) -> Mapping[str | None, Yes]:
        """The types of each value of a label; types without the label under None."""
        if key not in self._values:
            found: dict[str | None, Yes] = {}
            for place, labels in enumerate(self._labels):
                value = labels.get(key)
                if value not in found:
                    found[value] = np.zeros(len(self._labels), dtype=bool)
                found[value][place] = True
            self._values[key] = found
        return self._values[key]
