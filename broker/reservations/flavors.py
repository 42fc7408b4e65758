"""The flavors that reservations name, and the instances that each stands for.

Invariant: a flavor is Kueue's ResourceFlavor of that name. Without Kueue its name is an instance type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from broker.apis import names
from broker.apis.kueue import ResourceFlavor, ResourceFlavorSpec
from broker.apis.meta import ObjectMeta
from broker.reservations.sizing import FlavorProblem, InstanceFlavor, flavor_of
from providers.model import InstanceType

Flavors = Callable[[str], InstanceFlavor | FlavorProblem]


@dataclass(frozen=True, slots=True, eq=False)
class FlavorCatalog:
    """`listed`: Kueue's ResourceFlavors by name; None if Kueue is not installed.

    Two catalogs are equal only if they are the same object, so that one can be part of a cache's key.
    """

    listed: Mapping[str, ResourceFlavor] | None = None

    def labels(self, name: str) -> Mapping[str, str] | None:
        """Node labels of a flavor; None if there is no such flavor."""
        if self.listed is None:
            return {names.INSTANCE_TYPE: name}
        flavor = self.listed.get(name)
        return None if flavor is None else flavor.spec.node_labels

    def usable(self, named: Iterable[str]) -> Mapping[str, ResourceFlavor]:
        """Every ResourceFlavor; without Kueue one for each of these names."""
        if self.listed is not None:
            return self.listed
        return {
            name: ResourceFlavor(
                metadata=ObjectMeta(name=name), spec=ResourceFlavorSpec(node_labels=self.labels(name) or {})
            )
            for name in named
        }

    def instances(
        self, types: Mapping[str, InstanceType], zones: Sequence[str], *, ignored: str = ""
    ) -> Flavors:
        """Resolves flavors to instances, each once. `zones` apply to flavors without a zone label.

        A label with the key `ignored` is not considered.
        """

        @cache
        def flavor(name: str) -> InstanceFlavor | FlavorProblem:
            labels = self.labels(name)
            if labels is None:
                return FlavorProblem(
                    reason="FlavorNotFound",
                    message=f"there is no ResourceFlavor {name}: make one with the nodeLabels "
                    f"{names.INSTANCE_TYPE} and {names.ZONE}",
                )
            used = {key: value for key, value in labels.items() if key != ignored}
            return flavor_of(name, used, types, zones)

        return flavor


NO_FLAVORS = FlavorCatalog({})
