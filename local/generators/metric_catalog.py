"""The metric definitions as data: reference page, dashboards and rules are generated from them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase

from broker.oncall.metrics import GaugeTable

Kind = Literal["counter", "gauge", "histogram"]

# Labels that Prometheus adds, and those that a function adds.
TARGET_LABELS: Final = frozenset({"job", "instance", "namespace", "pod", "le"})
_STRING: Final = re.compile(r'"[^"]*"')
_NAME: Final = re.compile(r"\b(?:capacity_broker|capacity_reservation)_[a-z_]+")
_SELECTOR: Final = re.compile(r"\b((?:capacity_broker|capacity_reservation)_[a-z_]+)\{([^}]*)\}")
_GROUPING: Final = re.compile(r"\b(?:by|on)\s*\(([^)]*)\)")


class UnknownSeries(ValueError):
    """An expression names a series or a label that no metric defines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """One metric. `name` is the series as a query names it; a histogram's has no suffix."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    meaning: str

    @property
    def series(self) -> tuple[str, ...]:
        """Every name that a query may use for it."""
        if self.kind == "histogram":
            return tuple(f"{self.name}_{end}" for end in ("bucket", "count", "sum"))
        return (self.name,)

    @property
    def unit(self) -> str:
        """Grafana's unit, by the suffix of Prometheus' naming conventions."""
        for suffix, unit in _UNITS.items():
            if self.name.removesuffix("_total").endswith(suffix):
                return unit
        return "short"


_UNITS: Final[Mapping[str, str]] = {
    "_timestamp_seconds": "dateTimeFromNow",
    "_dollars_per_hour": "currencyUSD",
    "_seconds": "s",
    "_bytes": "bytes",
    "_gap": "percentunit",
}

Catalog = Mapping[str, Definition]


def definitions(registries: Iterable[CollectorRegistry]) -> Catalog:
    """Every metric of the broker in these registries, by name."""
    all_metrics = (metric for registry in registries for metric in _definitions(registry))
    return {metric.name: metric for metric in sorted(all_metrics, key=lambda metric: metric.name)}


def _definitions(registry: CollectorRegistry) -> Iterator[Definition]:
    for collector in registry._collector_to_names:
        match collector:
            case GaugeTable():
                yield Definition(
                    name=collector.name,
                    kind="gauge",
                    labels=collector.labels,
                    meaning=collector.documentation,
                )
            case MetricWrapperBase():
                kind: Kind = collector._type  # type: ignore[assignment]
                yield Definition(
                    name=collector._name + ("_total" if kind == "counter" else ""),
                    kind=kind,
                    labels=tuple(collector._labelnames),
                    meaning=collector._documentation,
                )


def check(expr: str, catalog: Catalog) -> None:
    """Raises UnknownSeries if the PromQL expression names a series or a label that is not defined."""
    series = {name: metric for metric in catalog.values() for name in metric.series}
    named = {*_NAME.findall(_STRING.sub('""', expr))}
    if unknown := named - series.keys():
        raise UnknownSeries(f"{', '.join(sorted(unknown))} in {expr}")
    for name, selector in _SELECTOR.findall(expr):
        _labels(re.findall(r"(\w+)\s*[=!]", _STRING.sub('""', selector)), {*series[name].labels}, expr)
    known = {label for name in named for label in series[name].labels}
    for labels in _GROUPING.findall(expr):
        _labels(re.findall(r"\w+", labels), known, expr)


def _labels(used: Iterable[str], known: set[str], expr: str) -> None:
    if unknown := {*used} - known - TARGET_LABELS:
        raise UnknownSeries(f"label {', '.join(sorted(unknown))} in {expr}")
