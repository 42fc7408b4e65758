"""Whether a Lease of another program is held: its record is renewed on the broker's own clock."""

from __future__ import annotations

from collections.abc import Iterable

from broker.apis.coordination import Lease

DURATION = 15  # seconds, if the Lease has no duration

Record = tuple[object, ...]


class LeaseHolders:
    """Whether one of the Leases is held, without comparing the clocks of two machines.

    A Lease is alive until its record stayed unchanged for its duration on the broker's monotonic clock, as in
    client-go's tools/leaderelection. renewTime is by the holder's clock, which may be hours off. A Lease that
    is given back or gone stays alive as long: in a rollout, that happens between two holders.
    """

    def __init__(self) -> None:
        self._seen: dict[str, tuple[Record, float]] = {}
        self._missed: float | None = None  # the time since which there is none

    def alive(self, leases: Iterable[Lease], *, now: float) -> bool:
        """Whether one of the Leases, as the API server returned them, is held; `now` is monotonic."""
        before, self._seen = self._seen, {}
        alive = False
        for lease in leases:
            record, known = _record(lease), before.get(lease.key)
            since = known[1] if known and known[0] == record else now
            self._seen[lease.key] = record, since
            lasts = lease.spec.lease_duration_seconds or DURATION
            alive = alive or now < since + lasts
        if self._seen:
            self._missed = None
            return alive
        self._missed = now if self._missed is None else self._missed
        return now < self._missed + DURATION

    def moved(self, leases: Iterable[Lease]) -> bool:
        """Whether a Lease is held by a record that `alive` has not seen."""
        return any(
            lease.spec.holder_identity and self._seen.get(lease.key, ((), 0.0))[0] != _record(lease)
            for lease in leases
        )


def _record(lease: Lease) -> Record:
    spec = lease.spec
    return spec.holder_identity, spec.acquire_time, spec.renew_time, spec.lease_transitions
