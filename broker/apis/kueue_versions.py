"""Converts between Kueue's v1beta1 and v1beta2, on the wire.

Invariant: a ClusterQueue written in one version reads the same in the other. v1beta1 names the cohort
`cohort`, uses `Borrow` and `Preempt` in place of `MayStopSearch`, and may list its admission checks by
name (apis/kueue/v1beta1/clusterqueue_types.go, clusterqueue_conversion.go). Without the conversion, a
field of the other version would be pruned silently, and the queue would be in no cohort.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from broker.apis.meta import Json

OLD: Final = "v1beta1"
_TO_OLD: Final = {
    ("whenCanBorrow", "MayStopSearch"): "Borrow",
    ("whenCanPreempt", "MayStopSearch"): "Preempt",
}
_TO_NEW: Final = {"Borrow": "MayStopSearch", "Preempt": "MayStopSearch"}


def read_cluster_queue(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """A ClusterQueue of either version, in the fields of v1beta2."""
    spec = raw.get("spec")
    if not isinstance(spec, Mapping):
        return raw
    changed: Json = {}
    if "cohort" in spec:
        changed["cohortName"] = spec["cohort"]
    search = spec.get("flavorFungibility")
    if isinstance(search, Mapping) and any(value in _TO_NEW for value in search.values()):
        changed["flavorFungibility"] = {key: _TO_NEW.get(value, value) for key, value in search.items()}
    if checks := spec.get("admissionChecks"):
        changed["admissionChecksStrategy"] = {"admissionChecks": [{"name": name} for name in checks]}
    return {**raw, "spec": {**spec, **changed}} if changed else raw


def cluster_queue_spec(spec: Mapping[str, Any], version: str) -> Json:
    """Converts a spec from the fields of v1beta2 to those of `version`."""
    if version != OLD:
        return dict(spec)
    converted = dict(spec)
    if "cohortName" in converted:
        converted["cohort"] = converted.pop("cohortName")
    if search := converted.get("flavorFungibility"):
        converted["flavorFungibility"] = {
            key: _TO_OLD.get((key, value), value) for key, value in search.items()
        }
    return converted
