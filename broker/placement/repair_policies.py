"""The table of repairs: the signs of a broken node, how long each is tolerated, and the repair that follows.

Sources: Karpenter's AWS provider (pkg/cloudprovider/cloudprovider.go, RepairPolicies), the families of
NVIDIA's XID errors as the EKS node monitoring agent writes them in reasons, and the status checks of EC2.
A NodePool changes the table with the annotation REPAIR, and switches repair off with `off`.

Invariant: a row without XIDs holds for the reasons that no other row of the same sign names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final, Literal

from broker.apis import names
from broker.apis.karpenter import NodePool
from broker.text import InvalidText, decode_duration, decode_whole, nearest, shortened

RepairAction = Literal["reboot", "replace"]
_ACTIONS: Final[tuple[RepairAction, ...]] = ("reboot", "replace")
_OFF: Final = "off"
# EC2 User Guide, "Status checks": the checks run every minute, and one may fail by chance.
_CHECKS: Final = timedelta(seconds=120)
_XID: Final = re.compile(r"XID\D?([0-9]+)", re.IGNORECASE)


_FIVE, _TEN, _THIRTY = (timedelta(minutes=count) for count in (5, 10, 30))


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairPolicy:
    """One row: a condition of the Node, or of the claim for a sign of EC2's, with this status.

    `xids`: only reasons with one of these errors. `drain`: the bound of the drain; None without one.
    `ends_first`: the node ends before its successor is launched, also if another slot is free: nothing runs
    on it any more. `counts`: the node is broken now, so it counts for REPAIR_AT_MOST.
    """

    sign: str
    status: str = "False"
    xids: frozenset[int] = frozenset()
    tolerated: timedelta = _THIRTY
    drain: timedelta | None = _TEN
    action: RepairAction = "replace"
    ends_first: bool = False
    counts: bool = True

    def names_reason(self, reason: str) -> bool:
        """Whether the reason has one of the row's errors."""
        return any(int(number[:9]) in self.xids for number in _XID.findall(reason))


_ACCELERATOR: Final = "AcceleratedHardwareReady"
_REBOOTED: Final = frozenset({46, 48, 54, 62, 63, 95, 109, 110, 136, 140, 143, 155, 156, 158})
_REPLACED: Final = frozenset({64, 74, 79, 119, 120})
_FAILED_CHECK: Final = RepairPolicy(
    sign=names.INSTANCE_IMPAIRED, status="True", tolerated=_CHECKS, drain=timedelta(), ends_first=True
)
TABLE: Final[tuple[RepairPolicy, ...]] = (
    RepairPolicy(sign=names.READY, ends_first=True),
    RepairPolicy(sign=names.READY, status="Unknown", ends_first=True),
    RepairPolicy(sign=_ACCELERATOR, xids=_REBOOTED, tolerated=_TEN, drain=_FIVE, action="reboot"),
    RepairPolicy(sign=_ACCELERATOR, xids=_REPLACED, tolerated=_TEN, drain=_FIVE),
    RepairPolicy(sign=_ACCELERATOR),
    RepairPolicy(sign="StorageReady"),
    RepairPolicy(sign="NetworkingReady"),
    RepairPolicy(sign="KernelReady"),
    RepairPolicy(sign="ContainerRuntimeReady"),
    _FAILED_CHECK,
    replace(_FAILED_CHECK, sign=names.SYSTEM_IMPAIRED),
    RepairPolicy(sign=names.EVENT_SCHEDULED, status="True", tolerated=timedelta(), drain=None, counts=False),
)
SIGNS: Final = tuple(dict.fromkeys(row.sign for row in TABLE))
AT_MOST: Final = "20%"


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairRules:
    """The table of one pool, without the rows that are off. `problem`: why its annotation is not read."""

    rows: tuple[RepairPolicy, ...] = TABLE
    on: bool = True
    problem: str = ""

    def matching(self, sign: str, status: str, reason: str) -> Iterator[RepairPolicy]:
        """The rows of a sign: those that name the reason, else the one for all other reasons."""
        rows = [row for row in self.rows if (row.sign, row.status) == (sign, status)]
        named = [row for row in rows if row.names_reason(reason)]
        return iter(named or [row for row in rows if not row.xids])


DEFAULT: Final = RepairRules()


def rules_of(pool: NodePool) -> RepairRules:
    """The rules of a pool. If its annotation cannot be read, the table holds as it is."""
    text = pool.annotations.get(names.REPAIR, "").strip()
    try:
        return _changed(text)
    except InvalidText as error:
        field_ = f"metadata.annotations[{names.REPAIR}]"
        return RepairRules(problem=f"{field_} is {shortened(text)}: {error}; the default table holds")


def most_broken(text: str, nodes: int) -> int:
    """How many of so many nodes may be broken: a share, rounded up, or a number. Raises InvalidText."""
    text = text.strip()
    try:
        if text.endswith("%"):
            return -(-nodes * decode_whole(text[:-1], least=0, most=100) // 100)
        return decode_whole(text, least=0)
    except InvalidText as error:
        field_ = f"metadata.annotations[{names.REPAIR_AT_MOST}]"
        raise InvalidText(f"{field_} is {shortened(text)}: write a share such as 20%, or a number") from error


@dataclass(frozen=True, slots=True)
class _Change:
    """A change of the rows of one sign; None keeps a value."""

    tolerated: timedelta | None = None
    action: RepairAction | None = None
    off: bool = False


def _changed(text: str) -> RepairRules:
    """Raises InvalidText."""
    if text in ("", "on"):
        return DEFAULT
    if text == _OFF:
        return RepairRules(on=False)
    changes = dict(map(_change, text.split(",")))
    return RepairRules(rows=tuple(_rows(TABLE, changes)))


def _rows(table: Iterable[RepairPolicy], changes: Mapping[str, _Change]) -> Iterator[RepairPolicy]:
    for row in table:
        change = changes.get(row.sign)
        if change is None:
            yield row
        elif not change.off:
            tolerated = row.tolerated if change.tolerated is None else change.tolerated
            yield replace(row, tolerated=tolerated, action=change.action or row.action)


def _change(item: str) -> tuple[str, _Change]:
    """`SIGN=off`, `SIGN=5m`, `SIGN=reboot` or `SIGN=5m/reboot`. Raises InvalidText."""
    sign, equal, value = (part.strip() for part in item.partition("="))
    if sign not in SIGNS:
        raise InvalidText(
            f"{shortened(sign)} is no sign, write one of {', '.join(SIGNS)}{nearest(sign, SIGNS)}"
        )
    if not equal:
        raise InvalidText(
            f"{sign} has no value: write {sign}=5m, {sign}=reboot, {sign}=5m/reboot or {sign}=off"
        )
    if value == _OFF:
        return sign, _Change(off=True)
    first, _, second = (part.strip() for part in value.partition("/"))
    action = next((known for known in _ACTIONS if known == (second or first)), None)
    if second and action is None:
        raise InvalidText(f"{sign} has the action {shortened(second)}: write reboot or replace")
    if action is not None and not second:
        return sign, _Change(action=action)
    tolerated = decode_duration(first)
    if tolerated < timedelta():
        raise InvalidText(f"{sign} has the duration {shortened(first)}: write 0s or more")
    return sign, _Change(tolerated=tolerated, action=action)
