"""The reboots of a claim's instance, as the claim's annotation REBOOTS has them.

Why on the claim: RebootInstances has no client token. A reboot is on the claim before the call is made, with
the boot id before it, so that the next process compares boot ids instead of rebooting again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final, Literal, get_args

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.text import InvalidText, decode_time, format_time, shortened

RebootPhase = Literal["Draining", "Requested", "Succeeded", "Failed"]
# As in Karpenter (pkg/controllers/disruption/repair_history.go; pkg/controllers/nodeclaim/reboot).
MOST: Final = 2
WINDOW: Final = timedelta(hours=24)
OBSERVED: Final = timedelta(minutes=20)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reboot:
    """One reboot. `began`: when its present phase began, and once it is over when it was requested.

    `boot_id`: before the reboot. `until`: of a drain its bound, and of a reboot that is over its end.
    """

    phase: RebootPhase
    began: datetime
    boot_id: str = ""
    until: datetime | None = None

    @property
    def over(self) -> bool:
        return self.phase in ("Succeeded", "Failed")

    @property
    def deadline(self) -> datetime:
        """When a requested reboot has failed."""
        return self.began + OBSERVED

    def ended(self, phase: RebootPhase, now: datetime) -> Reboot:
        return replace(self, phase=phase, until=now)

    def __str__(self) -> str:
        until = format_time(self.until) if self.until is not None else ""
        return "/".join((self.phase, format_time(self.began), self.boot_id, until))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reboots:
    """All reboots of a claim that count, the oldest first. `problem`: why they cannot be read."""

    known: tuple[Reboot, ...] = ()
    problem: str = ""

    @property
    def last(self) -> Reboot | None:
        return self.known[-1] if self.known else None

    @property
    def current(self) -> Reboot | None:
        """The reboot that is under way."""
        return None if self.last is None or self.last.over else self.last

    def left(self, now: datetime) -> int:
        """How many more may be made now."""
        recent = (reboot for reboot in self.known if now - reboot.began < WINDOW)
        count = sum(reboot.phase != "Draining" for reboot in recent)
        return 0 if self.problem else max(0, MOST - count)

    def begin(self, reboot: Reboot, now: datetime) -> Reboots:
        """With a new one; those that no longer count are left out."""
        return Reboots(known=(*(r for r in self.known if now - r.began < WINDOW), reboot))

    def updated(self, reboot: Reboot) -> Reboots:
        """With another state of the last one."""
        return Reboots(known=(*self.known[:-1], reboot))

    def without_last(self) -> Reboots:
        return Reboots(known=self.known[:-1])

    def __str__(self) -> str:
        return ",".join(map(str, self.known))


def reboots_of(claim: NodeClaim) -> Reboots:
    """The reboots of a claim. If the annotation was changed by hand, its instance is not rebooted again."""
    text = claim.annotations.get(names.REBOOTS, "")
    try:
        return Reboots(known=tuple(_decoded(text)))
    except InvalidText as error:
        field = f"metadata.annotations[{names.REBOOTS}]"
        return Reboots(problem=f"{field} is {shortened(text)}: {error}; remove it to allow reboots again")


def _decoded(text: str) -> Iterator[Reboot]:
    for entry in filter(None, text.split(",")):
        word, _, rest = entry.partition("/")
        phase = next((known for known in get_args(RebootPhase) if known == word), None)
        began, _, rest = rest.partition("/")
        boot_id, _, until = rest.rpartition("/")
        if phase is None:
            raise InvalidText(f"{shortened(word)} is none of {', '.join(get_args(RebootPhase))}")
        yield Reboot(
            phase=phase,
            began=decode_time(began),
            boot_id=boot_id,
            until=decode_time(until) if until else None,
        )
