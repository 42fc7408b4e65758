"""Scripted failures, at the three stages where a call to AWS can fail.

`request`: EC2 refuses the call before it does anything (throttling, permissions, a bad parameter).
`launch`: one pool of a launch is refused; RunInstances fails with it, CreateFleet lists it under `Errors`.
`response`: the work is done and the reply is lost: the connection drops, or a 5xx is returned.

A delay is real time; at the launch stage it holds up every other launch as well.

A rule applies `times` times (-1: for ever) and only to calls that `match`: at the request and response
stage each key is looked up anywhere in the request, at the launch stage in the facts of the pool
(`InstanceType`, `AvailabilityZone`, `AvailabilityZoneId`, `SubnetId`, `ImageId`, `MarketType`,
`CapacityType`, `CapacityReservationId`, `CapacityReservationResourceGroupArn`, `LaunchTemplateId`,
`LaunchTemplateName`). A list as a value means any of them.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

Stage = Literal["request", "launch", "response"]
STAGES: tuple[Stage, ...] = ("request", "launch", "response")


@dataclass(slots=True, kw_only=True)
class InjectedFault:
    id: str = ""
    action: str
    stage: str
    code: str | None
    message: str | None
    status: int | None
    match: dict[str, Any]
    times: int
    delay_s: float
    hits: int = 0

    def applies(self, action: str, stage: Stage, facts: Mapping[str, Any]) -> bool:
        return (
            self.times != 0
            and self.stage == stage
            and self.action in (action, "*")
            and all(_holds(facts, key, expected) for key, expected in self.match.items())
        )


class InjectedFaults:
    def __init__(self) -> None:
        self._rules: list[InjectedFault] = []
        self._lock = threading.Lock()
        self._ids = itertools.count(1)

    def add(self, rule: InjectedFault) -> str:
        if rule.stage not in STAGES:
            raise ValueError(f"stage: {rule.stage!r} is none of {', '.join(STAGES)}")
        if rule.stage == "launch" and not rule.code:
            raise ValueError("code: a fault at the launch stage needs one, e.g. InsufficientInstanceCapacity")
        if rule.stage == "request" and not rule.code and not rule.delay_s:
            raise ValueError("code: a fault at the request stage needs a code or a delay_s")
        with self._lock:
            rule.id = f"fault-{next(self._ids)}"
            self._rules.append(rule)
            return rule.id

    def remove(self, fault_id: str) -> bool:
        with self._lock:
            before = len(self._rules)
            self._rules = [rule for rule in self._rules if rule.id != fault_id]
            return len(self._rules) < before

    def clear(self) -> None:
        with self._lock:
            self._rules.clear()

    def list(self) -> list[dict[str, Any]]:
        with self._lock:
            return [asdict(rule) for rule in self._rules]

    def take(self, action: str, stage: Stage, facts: Mapping[str, Any]) -> InjectedFault | None:
        """The first rule that applies, spent once; its delay has passed when this returns."""
        with self._lock:
            rule = next((r for r in self._rules if r.applies(action, stage, facts)), None)
            if rule is None:
                return None
            rule.hits += 1
            if rule.times > 0:
                rule.times -= 1
        if rule.delay_s:
            time.sleep(rule.delay_s)
        return rule


def _holds(facts: Mapping[str, Any], key: str, expected: Any) -> bool:
    accepted = expected if isinstance(expected, list | tuple | set) else [expected]
    texts = {str(value) for value in accepted}
    return any(str(fact) in texts for fact in _find(facts, key))


def _find(node: Any, key: str) -> Iterator[Any]:
    """Every value that `key` has anywhere in a request; the elements of a list one by one."""
    if isinstance(node, Mapping):
        for name, value in node.items():
            if name == key:
                yield from value if isinstance(value, list | tuple) else [value]
            yield from _find(value, key)
    elif isinstance(node, list | tuple):
        for item in node:
            yield from _find(item, key)
