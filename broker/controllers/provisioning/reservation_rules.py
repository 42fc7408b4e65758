"""The rules of a claim about the reservation that it launches into, from the rules of its pods.

Why: a launch by group or by open match may land in any reservation of its type and zone, and the node gets
the reservation's labels only then. A claim with a rule launches by id where EC2 could miss it.

Invariant: no reservation that the claim allows makes a node that its pods do not accept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from broker.apis import names
from broker.capacity.requirements import Requirements
from broker.placement.machines import topology_keys
from broker.placement.model import PodInfo
from broker.placement.packing_model import MachineOption
from broker.placement.selectors import DOES_NOT_EXIST, IN, NOT_IN, SelectorRequirement

Json = dict[str, Any]


def keys_read(pods: Iterable[PodInfo]) -> set[str]:
    """The labels of nodes that the pods' selectors, affinity and spreading read."""
    keys: set[str] = set()
    for pod in pods:
        keys |= {item.key for item in (*pod.node_selector, *_expressions(pod))} | topology_keys(pod)
    return keys


def reservation_rules(
    pods: Sequence[PodInfo], fitting: Sequence[MachineOption], offered: Sequence[MachineOption]
) -> list[Json]:
    """The requirements on labels of reservations. `fitting`: of the machines `offered`, those to list."""
    rules = [rule for key in names.RESERVATION_LABELS for rule in _rules(key, pods, fitting, offered)]
    allowed = Requirements.of((rule["key"], rule["operator"], rule.get("values", ())) for rule in rules)
    types, zones = {item.instance_type for item in fitting}, {item.zone for item in fitting}
    barred = {
        item.source
        for item in offered
        if item.source
        and item.instance_type in types
        and item.zone in zones
        and not allowed.unmet(item.node.labels)
    } - {item.source for item in fitting}
    return [*rules, *([_rule(names.RESERVATION_ID, NOT_IN, barred)] if barred else [])]


def _rules(
    key: str, pods: Sequence[PodInfo], fitting: Sequence[MachineOption], offered: Sequence[MachineOption]
) -> Iterator[Json]:
    """The pods' own rules on a label; where they leave a choice between terms, by the machines that fit."""
    for item in {item: None for pod in pods for item in _plain(pod) if item.key == key}:
        yield _rule(key, item.operator, item.values)
    chosen = [pod for pod in pods if len(pod.node_terms or ()) > 1]
    spread = any(key in topology_keys(pod) for pod in pods)
    if not spread and not any(item.key == key for pod in chosen for item in _expressions(pod)):
        return
    values = {machine.node.labels.get(key) for machine in fitting}
    present = values - {None}
    if None not in values:
        yield _rule(key, IN, present)
        return
    if not present:
        yield _rule(key, DOES_NOT_EXIST)
        return
    others = {machine.node.labels.get(key) for machine in (*fitting, *offered)}
    named = {v for pod in chosen for item in _expressions(pod) if _bars(item, key) for v in item.values}
    if barred := (others | named) - values:
        yield _rule(key, NOT_IN, barred)


def _bars(item: SelectorRequirement, key: str) -> bool:
    return item.key == key and item.operator == NOT_IN


def _plain(pod: PodInfo) -> Iterator[SelectorRequirement]:
    """The tests that the pod's node passes in any case."""
    yield from pod.node_selector
    if len(pod.node_terms or ()) == 1:
        yield from _expressions(pod)


def _expressions(pod: PodInfo) -> Iterator[SelectorRequirement]:
    return (item for term in pod.node_terms or () for item in term.expressions)


def _rule(key: str, operator: str, values: Iterable[str | None] = ()) -> Json:
    rule: Json = {"key": key, "operator": operator}
    if listed := sorted(value for value in values if value is not None):
        rule["values"] = listed
    return rule
