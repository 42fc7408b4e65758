"""What is being asked of EC2, written on the claims that it is for.

Invariant: everything that a fleet call says stands on one of its claims, the last that is marked, before the
call is sent, and stays there until the answer is known and each of its instances has its claim. So whoever
comes after a lost answer can make exactly that call again: the same token with the same parameters gives the
same instances, however late EC2 describes them (EC2 API Reference, "Ensuring idempotency in Amazon EC2 API
requests"). A claim with a launch id that no claim has the parameters of was never asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from pydantic import TypeAdapter, ValidationError

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from providers.model import LaunchRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """One fleet call: of whom, from which class as it was when, into which reservations.

    `request` is None where it cannot be read, as one that another version wrote.
    """

    launch: str
    claims: tuple[str, ...] = ()  # uids
    node_class: str = ""
    generation: int = 0
    odcrs: tuple[str, ...] = ()
    request: LaunchRequest | None = None


_INTENT = TypeAdapter(Intent)


def written(intent: Intent) -> dict[str, str]:
    """The annotation that carries it."""
    return {names.LAUNCH_REQUEST: _INTENT.dump_json(intent, exclude_defaults=True).decode()}


def carried(claim: NodeClaim) -> Intent | None:
    """The call that this claim has the parameters of."""
    text = claim.annotations.get(names.LAUNCH_REQUEST)
    if text is None:
        return None
    try:
        return _INTENT.validate_json(text)
    except ValidationError:
        return Intent(launch=claim.annotations.get(names.LAUNCH, ""))


class Intents:
    """What this process knows of the calls: which were answered, and whose instances have their claims."""

    def __init__(self) -> None:
        self._answered: set[str] = set()
        self._done: set[str] = set()

    def answered(self, launch: str) -> None:
        """EC2's answer was seen, or can no longer come: the same claims may be asked for anew."""
        self._answered.add(launch)

    def done(self, launch: str) -> None:
        """Every instance of the answer has its claim."""
        self._done.add(launch)

    def open(self, claims: Iterable[NodeClaim]) -> list[Intent]:
        """Calls that some claim without an instance still waits for."""
        waiting: dict[str, list[str]] = {}
        found: dict[str, Intent] = {}
        for claim in claims:
            launch = claim.annotations.get(names.LAUNCH, "")
            if launch and not claim.status.provider_id and launch not in self._answered:
                waiting.setdefault(launch, []).append(claim.uid)
            if (intent := carried(claim)) is not None:
                found[intent.launch] = intent
        return [
            # One that cannot be read is of whoever has its id.
            replace(found[launch], claims=found[launch].claims or tuple(uids))
            for launch, uids in sorted(waiting.items())
            if launch in found
        ]

    def over(self, claims: Iterable[NodeClaim]) -> list[NodeClaim]:
        """Claims that carry a call of which nobody waits any more."""
        claims = list(claims)
        waiting = {c.annotations.get(names.LAUNCH) for c in claims if not c.status.provider_id}
        return [c for c in claims if (intent := carried(c)) is not None and intent.launch not in waiting]

    def needed(self, claim: NodeClaim, claims: Iterable[NodeClaim]) -> bool:
        """Whether others wait for an instance of the call that this claim carries."""
        intent = carried(claim)
        if intent is None or intent.launch in self._done:
            return False
        return any(
            each.annotations.get(names.LAUNCH) == intent.launch and not each.status.provider_id
            for each in claims
            if each.uid != claim.uid
        )

    def unfinished(self) -> frozenset[str]:
        """Calls that were answered, and whose instances did not all get their claims when they were to."""
        return frozenset(self._answered - self._done)

    def settled(self, claim: NodeClaim) -> Mapping[str, None]:
        """The annotation to take off a claim whose call needs no repeat."""
        intent = carried(claim)
        return {names.LAUNCH_REQUEST: None} if intent and intent.launch in self._done else {}

    def keep(self, launches: Iterable[str]) -> None:
        """Forgets all others."""
        kept = set(launches)
        self._answered &= kept
        self._done &= kept
