"""The NodeClaim of a NodePool's template, as Karpenter writes one (nodeclaimtemplate.go, ToNodeClaim)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any, Final

from broker.apis import names
from broker.apis.hashes import pool_stamp
from broker.apis.karpenter import NodeClaim, NodePool
from broker.kube.conditions import owner_reference
from broker.placement.claims import minimums
from broker.placement.quantities import CPU

MOST_TYPES: Final = 60  # in one claim, as in Karpenter (pkg/controllers/provisioning/scheduling)

Json = dict[str, Any]


def pool_claim(
    pool: NodePool,
    name: str,
    *,
    requirements: Sequence[Json],
    requests: Mapping[str, int],
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str | None] | None = None,
) -> Json:
    """The claim's body. `requests` are as placement counts them: CPU in thousandths of a core.

    `labels` and `annotations` come before those of the template; None removes an annotation.
    """
    template = pool.spec.template
    stamp = {**pool_stamp(pool), **_relaxed(pool, requirements)}
    annotated = {**template.metadata.annotations, **stamp, **(annotations or {})}
    return {
        "apiVersion": NodeClaim.KIND.api_version,
        "kind": NodeClaim.KIND.kind,
        "metadata": {
            "name": name,
            "labels": {**template.metadata.labels, **(labels or {}), names.NODEPOOL: pool.name},
            "annotations": {key: value for key, value in annotated.items() if value is not None},
            "ownerReferences": [owner_reference(pool, controller=False)],
        },
        "spec": {
            **template.spec.wire(),
            "requirements": [*requirements],
            "resources": {"requests": _quantities(requests)},
        },
    }


def one_of(key: str, values: Iterable[str]) -> Json:
    """The requirement that a label has one of these values."""
    return {"key": key, "operator": "In", "values": [*values]}


def listed_types(
    ordered: Sequence[str], least: Mapping[str, int], values: Mapping[str, Mapping[str, Set[str]]]
) -> list[str]:
    """The first types of the order that one claim can list, with the number of values that `least` requires.

    The types beyond the limit are left out, except those that are needed for the values. `values`: of each
    type, the values that a machine can have for each key.
    """
    if len(ordered) <= MOST_TYPES:
        return [*ordered]
    needed: dict[str, None] = {}
    for key, count in least.items():
        seen: set[str] = set()
        for name in ordered:
            new = values.get(name, {}).get(key, frozenset()) - seen
            if new and len(seen) < count:
                seen |= new
                needed[name] = None
    kept = {*[*needed][:MOST_TYPES]}
    for name in ordered:
        if len(kept) == MOST_TYPES:
            break
        kept.add(name)
    return [name for name in ordered if name in kept]


def _relaxed(pool: NodePool, requirements: Sequence[Json]) -> dict[str, str]:
    """Karpenter's annotation: whether the claim allows fewer values than minValues of its pool asks for.

    Source: sigs.k8s.io/karpenter pkg/controllers/provisioning/scheduling/scheduler.go.
    """
    least = dict(minimums(pool.spec.template.spec.requirements))
    allowed = dict.fromkeys(least, 0)
    for item in requirements:
        if (key := item["key"]) in least:
            listed = len(item["values"]) if item["operator"] == "In" else 0
            allowed[key] = max(allowed[key], item.get("minValues") or listed)
    relaxed = any(allowed[key] < count for key, count in least.items())
    return {names.MIN_VALUES_RELAXED: "true" if relaxed else "false"} if least else {}


def _quantities(requests: Mapping[str, int]) -> dict[str, str]:
    return {
        name: f"{amount}m" if name == CPU else str(amount)
        for name, amount in sorted(requests.items())
        if amount
    }
