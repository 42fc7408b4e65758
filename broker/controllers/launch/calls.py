"""Fleet calls in flight: each is recorded before it is sent, in ConfigMaps of the broker's own.

Invariant: a record is deleted only when each instance of the answer has its claim, or when EC2 must have
shown every instance. So a call survives its claims, and a later process can recover a lost answer. The same
token with the same parameters gives the same instances, however late EC2 describes them (EC2 API Reference,
"Ensuring idempotency in Amazon EC2 API requests"). A user with write access to claims or classes cannot write
here: no annotation defines a call. For a claim with a launch id and no record, EC2 was never called.

The records are in the namespace of the Lease, wherever the broker is started. There are several ConfigMaps,
since one holds 1 MiB; their names are fixed, since Kubernetes limits rights by name.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final
from zlib import crc32

import structlog
from pydantic import TypeAdapter, ValidationError

from broker.apis import names
from broker.apis.core import ConfigMap
from broker.apis.karpenter import NodeClaim
from broker.kube.client import Client
from broker.kube.errors import NotFound
from broker.kube.identity import NAMESPACE
from broker.kube.published import read_data
from broker.text import InvalidText, decode_json
from providers.launch import LaunchRequest
from providers.model import CapacityType

RECORDS: Final = tuple(f"capacity-broker-launches-{number}" for number in range(8))

_log = structlog.get_logger("launch")


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetCall:
    """One fleet call: its claims, its class as it was then, and its pools.

    `closed`: outside reservations, where EC2 must count its instances in none later either.

    `claims` are uids. `reservation` is the reservation of its pools (`capacity.model.Pool`), `odcrs` are the
    reservations that it may run in. `request` is None if the record cannot be read: another version may have
    written it.
    """

    launch: str
    claims: tuple[str, ...] = ()
    node_class: str = ""
    generation: int = 0
    capacity_type: CapacityType = "on-demand"
    reservation: str = ""
    odcrs: tuple[str, ...] = ()
    closed: bool = False
    request: LaunchRequest | None = None


_CALL = TypeAdapter(FleetCall)


class FleetCalls:
    """The records of this term of leadership, and the state of their answers; for any thread."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._turns = {name: threading.Lock() for name in RECORDS}
        self._loaded = False
        self._calls: dict[str, FleetCall] = {}
        self._doubtful: set[str] = set()  # launch ids of unsent calls that may have a record
        self._answered: set[str] = set()
        self._done: set[str] = set()

    def load(self) -> None:
        """Reads the records of earlier processes, once. Raises ApiError."""
        if self._loaded:
            return
        for name in RECORDS:
            stored = read_data(self._client, name)
            self._calls |= {launch: _read(launch, text, name) for launch, text in stored.items()}
        self._loaded = True

    def record(self, call: FleetCall) -> None:
        """Records the call before it is sent. Raises ApiError: then nothing may be sent."""
        with self._lock:
            self._doubtful.add(call.launch)
        self._write(call.launch, _CALL.dump_json(call, exclude_defaults=True).decode())
        with self._lock:
            self._calls[call.launch] = call
            self._doubtful.discard(call.launch)

    def answered(self, launch: str) -> None:
        """EC2's answer is known, or can no longer come: a new call for the same claims is allowed."""
        with self._lock:
            self._answered.add(launch)

    def done(self, launch: str) -> None:
        """Every instance of the answer has its claim."""
        with self._lock:
            self._done.add(launch)

    def open(self, claims: Iterable[NodeClaim]) -> list[FleetCall]:
        """Calls without a known answer, for which a claim without an instance waits or a claim is gone.

        A claim that is gone may have left an instance behind. An unreadable record belongs to the claims that
        name it.
        """
        with self._lock:
            unanswered = [
                call for launch, call in sorted(self._calls.items()) if launch not in self._answered
            ]
        known = {claim.uid: claim for claim in claims} if unanswered else {}
        return [
            call if call.claims else replace(call, claims=_naming(call.launch, known.values()))
            for call in unanswered
            if not _served(call, known)
        ]

    def waiting(self, claims: Iterable[NodeClaim]) -> frozenset[str]:
        """Uids of the claims that an open call may have given an instance."""
        claims = list(claims)
        open_uids = {uid for call in self.open(claims) for uid in call.claims}
        if not open_uids:
            return frozenset()  # the usual case, for all claims at each pass
        return frozenset(
            claim.uid for claim in claims if claim.uid in open_uids and not claim.status.provider_id
        )

    def by_claim(self) -> Mapping[str, frozenset[str]]:
        """Lists by the uid of a claim the launch ids of its recorded calls."""
        by_uid: dict[str, set[str]] = {}
        with self._lock:
            for launch, call in self._calls.items():
                for uid in call.claims:
                    by_uid.setdefault(uid, set()).add(launch)
        return {uid: frozenset(launches) for uid, launches in by_uid.items()}

    def unfinished(self) -> frozenset[str]:
        """Answered calls with an instance that did not get its claim."""
        with self._lock:
            return frozenset(self._calls.keys() & self._answered - self._done)

    def obsolete(self, claims: Iterable[NodeClaim]) -> list[str]:
        """Launch ids of records that are no longer needed."""
        known = {claim.uid: claim for claim in claims}
        with self._lock:
            ended = [
                launch for launch, call in self._calls.items() if launch in self._done or _served(call, known)
            ]
            return [*ended, *self._doubtful]

    def forget(self, launch: str) -> None:
        """Deletes a record. Raises ApiError."""
        with suppress(NotFound):
            self._write(launch, None)
        with self._lock:
            self._calls.pop(launch, None)
            for launch_ids in (self._doubtful, self._answered, self._done):
                launch_ids.discard(launch)

    def _write(self, launch: str, text: str | None) -> None:
        """Writes one record, without reading the others of its ConfigMap."""
        name = RECORDS[crc32(launch.encode()) % len(RECORDS)]
        with self._turns[name]:
            try:
                self._client.patch(ConfigMap.KIND, name, {"data": {launch: text}}, namespace=NAMESPACE)
            except NotFound:
                if text is None:
                    raise
                metadata = {"name": name, "namespace": NAMESPACE}
                self._client.create(ConfigMap.KIND, {"metadata": metadata, "data": {launch: text}})


def _naming(launch: str, claims: Iterable[NodeClaim]) -> tuple[str, ...]:
    return tuple(
        claim.uid
        for claim in claims
        if claim.annotations.get(names.LAUNCH) == launch and not claim.status.provider_id
    )


def _served(call: FleetCall, known: Mapping[str, NodeClaim]) -> bool:
    """Whether all claims of a call exist and have an instance each."""
    return bool(call.claims) and all(
        (claim := known.get(uid)) is not None and claim.status.provider_id for uid in call.claims
    )


def _read(launch: str, text: str, name: str) -> FleetCall:
    try:
        call = _CALL.validate_python(decode_json(text))
        if call.launch != launch:
            raise InvalidText(f"it is the record of launch {call.launch!r}")
    except (InvalidText, ValidationError) as error:
        _log.warning(
            "record of a fleet call is not understood", configmap=name, launch=launch, error=str(error)
        )
        return FleetCall(launch=launch)
    return call
