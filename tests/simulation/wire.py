"""The calls of a process to the API server and to AWS: traced, counted, and made to fail.

Invariant: every call of a process passes `Gate.before` and `Gate.after`, those of the world itself do not. A
fault, a kill or another event is armed for the n-th call from now.
"""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import boto3
import orjson

from broker.kube.client import READS, Reply, Request, Stream
from broker.kube.errors import Unavailable, from_reply
from local.kube import Cluster, wire
from local.kube.watch import WatchStream
from providers.aws import clients
from tests.simulation.chance import Time

When = Literal["before", "after"]
ApiFault = Literal["away", "lost", "slow down"]
WatchFault = Literal["dropped", "gone"]
AWS_READS = ("Describe", "Get", "List", "Search", "Receive", "Simulate")
KEPT = 400  # lines of a trace that are kept to be printed
SHOWN = 200  # characters of a call's body
TOO_MANY = orjson.dumps(
    {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "reason": "TooManyRequests",
        "message": "the simulated API server is busy",
        "code": 429,
    }
)


EXPIRED = orjson.dumps(
    {
        "type": "ERROR",
        "object": {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "reason": "Expired",
            "message": "too old resource version",
            "code": 410,
        },
    }
)


class Killed(BaseException):
    """The process is no more; no handler of its own may go on from here."""


@dataclass
class Armed:
    """Something that happens at a call: `left` calls from now."""

    left: int
    when: When
    does: Callable[[], None]
    of: str = ""  # only calls with this in their name or path count
    kind: str = ""  # of the fault, for the report


@dataclass
class Gate:
    """Counts and traces the calls of the process that acts."""

    time: Time
    endpoint: str = ""  # of local AWS, which has another port in each process
    acting: str = ""  # the process that takes a step; empty for the world's own calls
    armed: list[Armed] = field(default_factory=list)
    api_faults: deque[ApiFault] = field(default_factory=deque)
    watch_faults: deque[WatchFault] = field(default_factory=deque)
    late: dict[str, float] = field(default_factory=dict)  # until when watches of a plural bring nothing
    api_gone_until: float = 0.0  # of the world's time
    api_slow_until: float = 0.0
    api_seconds: float = 0.0  # that a call takes while the API server is slow
    calls: int = 0
    faults: Counter[str] = field(default_factory=Counter)  # that were injected, by kind
    api_writes: list[str] = field(default_factory=list)  # of processes, the Lease's left out
    aws_writes: list[str] = field(default_factory=list)
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=KEPT))
    watchers: list[Callable[[str, Mapping[str, Any]], None]] = field(default_factory=list)
    api_watchers: list[Callable[[str, str, bytes], None]] = field(default_factory=list)
    _hash: Any = field(default_factory=lambda: hashlib.blake2b(digest_size=16))

    def trace(self, text: str, sent: str = "") -> None:
        """One line; only the beginning of `sent` is kept to be printed."""
        line, sent = f"{self.time.seconds:9.3f} {text}", sent.replace(self.endpoint or "\0", "http://aws")
        self._hash.update(f"{line} {sent}\n".encode())
        self.lines.append(f"{line} {sent[:SHOWN]}".rstrip())

    @property
    def digest(self) -> str:
        """The same for two runs that did the same in the same order at the same times."""
        return str(self._hash.hexdigest())

    def before(self, call: str) -> None:
        self.calls += 1
        self._fire("before", call)

    def after(self, call: str) -> None:
        self._fire("after", call)

    def injected(self, kind: str) -> None:
        """Counts a fault."""
        self.faults[kind] += 1

    def arm(
        self, calls: int, when: When, does: Callable[[], None], *, of: str = "", kind: str = "meanwhile"
    ) -> None:
        self.armed.append(Armed(calls, when, does, of, kind))

    def _fire(self, when: When, call: str) -> None:
        for armed_fault in [*self.armed]:
            if armed_fault.when != when or armed_fault.of not in call:
                continue
            armed_fault.left -= 1
            if armed_fault.left <= 0 and armed_fault in self.armed:
                self.armed.remove(armed_fault)
                self.injected(armed_fault.kind)
                with self.world_acts():
                    armed_fault.does()

    @property
    def gone(self) -> bool:
        """Whether the API server cannot be reached."""
        return self.time.seconds < self.api_gone_until

    def late_by(self, plural: str) -> float:
        """For how many seconds from now watches of the kind bring nothing."""
        return max(0.0, self.late.get(plural, 0.0) - self.time.seconds)

    def delayed(self) -> None:
        """A call to a slow API server takes its time."""
        if self.time.seconds < self.api_slow_until:
            self.time.advance(self.api_seconds)

    @contextmanager
    def world_acts(self) -> Iterator[None]:
        """Calls made inside are not calls of the process."""
        acting, self.acting = self.acting, ""
        try:
            yield
        finally:
            self.acting = acting

    @contextmanager
    def process_acts(self, name: str) -> Iterator[None]:
        acting, self.acting = self.acting, name
        try:
            yield
        finally:
            self.acting = acting

    # ---- AWS

    def aws_before(self, operation: str, params: Mapping[str, Any]) -> None:
        if not self.acting:
            return
        self.trace(f"{self.acting} {operation}", str(params))
        self.before(operation)
        if not operation.startswith(AWS_READS) and not params.get("DryRun"):
            self.aws_writes.append(f"{operation} {_short(params)}")
            for watcher in self.watchers:
                watcher(operation, params)

    def aws_after(self, operation: str, status: int) -> None:
        if self.acting:
            self.trace(f"{self.acting} {operation} {status}")
            self.after(operation)


def _short(params: Mapping[str, Any]) -> str:
    return str({key: value for key, value in params.items() if "Id" in key or "Count" in key})[:300]


class Wire:
    """One process's way to the API server."""

    def __init__(self, cluster: Cluster, gate: Gate, process: str, *, events: Callable[[], int]) -> None:
        """`events`: how many events a watch brings before it ends."""
        self._cluster, self._gate, self._process, self._events = cluster, gate, process, events

    def request(self, request: Request, *, timeout: float) -> Reply:
        """A request that hangs for longer than `timeout` does not arrive; an answer that does is not read."""
        gate, call = self._gate, f"{request.method} {request.path}"
        until = gate.time.seconds + timeout
        if not gate.acting:  # a killed process sends nothing more
            raise Killed(call)
        gate.trace(f"{self._process} {call}", f"{request.query} {(request.body or b'').decode()}")
        gate.delayed()
        gate.before(call)
        if gate.time.seconds > until:
            raise Unavailable(0, "Lost", f"{call} was given up")
        asks = "dryRun" in request.query or b'"dryRun"' in (request.body or b"")
        write = request.method not in READS and not asks
        leased = "/leases/" in request.path or request.path.endswith("/leases")
        fault = gate.api_faults.popleft() if gate.api_faults and not leased else ""
        if gate.gone:
            fault = "away"
        if fault:
            gate.injected(f"api {fault}")
            gate.trace(f"{self._process} {call} {fault}")
        if fault == "slow down":
            return Reply(status=429, headers={"Retry-After": "1"}, body=TOO_MANY)
        if fault == "away":
            raise Unavailable(0, "Lost", f"{call} did not arrive")
        for watcher in gate.api_watchers if write else ():
            watcher(request.method, request.path, request.body or b"")
        answer = self._cluster.handle(_served(request))
        if write and not leased and answer.status < 300:
            gate.api_writes.append(call)
        if write:
            gate.trace(f"{self._process} {call} {answer.status}")
        gate.after(call)
        if fault == "lost" or gate.time.seconds > until:
            raise Unavailable(0, "Lost", f"the answer to {call} was lost")
        return Reply(status=answer.status, headers=answer.headers, body=answer.body)

    def stream(self, request: Request, *, timeout: float) -> Stream:
        del timeout
        if self._gate.gone:
            raise Unavailable(0, "Lost", f"{request.path} cannot be watched")
        answer = self._cluster.handle(_served(request))
        if not isinstance(answer.stream, WatchStream):
            raise from_reply(answer.status, answer.body, answer.headers)
        gate = self._gate
        fault = gate.watch_faults.popleft() if gate.watch_faults else ""
        if fault:
            gate.injected(f"watch {fault}")
            gate.trace(f"{self._process} {request.path} {fault}")
        return _Piece(answer.stream, 1 if fault else self._events(), fault)


def _served(request: Request) -> wire.ApiRequest:
    return wire.ApiRequest(request.method, request.path, request.query, request.headers, request.body)


class _Piece:
    """The events of a watch until it ends: a few of those that are there, without a wait for more.

    With a fault it ends by a lost connection, or by 410 Gone.
    """

    def __init__(self, stream: WatchStream, events: int, fault: WatchFault | Literal[""] = "") -> None:
        self._stream, self._left, self._fault = stream, events, fault

    def __iter__(self) -> Iterator[bytes]:
        while self._left > 0 and (chunk := self._stream.poll()):
            for line in chunk.splitlines(keepends=True):
                if self._left > 0:
                    self._left -= 1
                    yield line
        if self._fault == "gone":
            yield EXPIRED + b"\n"
        elif self._fault:
            raise Unavailable(0, "Lost", "the watch was cut off")

    def close(self) -> None:
        self._stream.close()


class Session:
    """boto3's, with one client a service for all runs: making one takes longer than a run."""

    gate: Gate | None = None

    def __init__(self, **given: Any) -> None:
        self._given = given

    def client(self, service: str, *, endpoint_url: str, config: Any, **more: Any) -> Any:
        key = (service, str({**self._given, **more}.get("region_name")), endpoint_url)
        if key not in _clients:
            new_client: Any = boto3.Session(**self._given).client(  # type: ignore[call-overload]
                service, endpoint_url=endpoint_url, config=config, **more
            )
            new_client.meta.events.register("before-parameter-build", _before)
            new_client.meta.events.register("after-call", _after)
            _clients[key] = new_client
        return _clients[key]


_clients: dict[tuple[str, ...], Any] = {}
core = clients._core


def _before(params: Mapping[str, Any], model: Any, **_: Any) -> None:
    if Session.gate is not None:
        Session.gate.aws_before(model.name, params)


def _after(http_response: Any, model: Any, **_: Any) -> None:
    if Session.gate is not None:
        Session.gate.aws_after(model.name, http_response.status_code)
