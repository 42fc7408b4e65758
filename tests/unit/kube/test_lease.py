"""One leader at a time after any failure: the protocol against a model, and the threads around it."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from broker.kube.client import Client, Reply, Request
from broker.kube.errors import ApiError
from broker.kube.lease import Elector, LeaseLost, NotLeading
from broker.kube.tenure import LEASE, Candidate
from tests.support.clock import FakeClock
from tests.support.examples import examples
from tests.support.kube_server import NO_ANSWER, Json, Server, Thing, thing

NAME, NAMESPACE = "broker", "kube-system"


def elector(server: Server, clock: FakeClock, identity: str) -> Elector:
    return Elector(server.client, NAME, NAMESPACE, identity, clock, random=lambda: 0.5, ids=lambda: "id")


def spec(server: Server) -> Json:
    (lease,) = (obj for path, obj in server.objects.items() if "/leases/" in path)
    fields: Json = lease["spec"]
    return fields


class Run:
    """An elector in a thread, and the terms of its `lead`."""

    def __init__(
        self, elector_: Elector, clock: FakeClock, lead: Callable[[threading.Event], None] | None = None
    ) -> None:
        self.elector = elector_
        self.clock = clock
        self.terms: list[LeaseLost] = []
        self.ended = 0
        self._lead = lead
        self.thread = threading.Thread(target=elector_.run, args=(self.lead,))
        self.thread.start()

    def lead(self, lost: LeaseLost) -> None:
        self.terms.append(lost)
        if self._lead is None:
            self.clock.wait(lost)
        else:
            self._lead(lost)
        self.ended += 1

    @property
    def leads(self) -> bool:
        return len(self.terms) > self.ended

    def stop(self) -> None:
        self.elector.stop()
        self.thread.join()


def a_minute(server: Server, clock: FakeClock, *, threads: int) -> None:
    """Passes a minute, until the lease was renewed after it; each second waits for this many waiting
    threads."""
    while spec(server)["renewTime"] <= "2026-01-01T00:01:00":
        clock.until(lambda: len(vars(clock)["_waiting"]) == threads)
        clock.advance(1)


def test_the_first_elector_leads_and_the_lease_names_it() -> None:
    server, clock = Server(), FakeClock()
    first = Run(elector(server, clock, "one"), clock)
    clock.until(lambda: first.leads)
    assert spec(server) == {
        "holderIdentity": "one_id",
        "leaseDurationSeconds": 15,
        "acquireTime": "2026-01-01T00:00:00.000000Z",
        "renewTime": "2026-01-01T00:00:00.000000Z",
        "leaseTransitions": 0,
    }
    a_minute(server, clock, threads=3)  # its work, its renewals and its watchdog
    assert (first.leads, len(first.terms), spec(server)["acquireTime"][17:19]) == (True, 1, "00")
    first.stop()


def test_a_clean_exit_hands_over_without_waiting() -> None:
    server, clock = Server(), FakeClock()
    first = Run(elector(server, clock, "one"), clock)
    clock.until(lambda: first.leads)
    second = Run(elector(server, clock, "two"), clock)
    clock.threads(4)  # the leader, its renewals and watchdog, and the standby
    first.stop()
    assert "holderIdentity" not in spec(server)
    clock.threads(1, within=3)
    clock.advance(3)  # one try of the standby, far shorter than the lease
    clock.until(lambda: second.leads)
    assert (spec(server)["holderIdentity"], spec(server)["leaseTransitions"]) == ("two_id", 1)
    second.stop()


def test_while_lead_winds_down_the_lease_is_kept() -> None:
    """Work in progress ends under the Lease, however long it takes; then the Lease is released."""
    server, clock = Server(), FakeClock()
    losing, finish = threading.Event(), threading.Event()

    def lead(lost: threading.Event) -> None:
        clock.wait(lost)
        losing.set()
        finish.wait(300)

    first = Run(elector(server, clock, "one"), clock, lead=lead)
    clock.until(lambda: first.leads)
    first.elector.stop()
    assert losing.wait(60)
    a_minute(server, clock, threads=1)  # its renewals
    assert first.elector.leading
    finish.set()
    first.thread.join()
    assert "holderIdentity" not in spec(server)


def test_the_lease_is_released_when_lead_returns() -> None:
    server, clock = Server(), FakeClock()
    first = Run(elector(server, clock, "one"), clock, lead=lambda lost: None)
    first.thread.join()
    assert "holderIdentity" not in spec(server)


def test_the_lease_is_released_when_lead_raises() -> None:
    server, clock = Server(), FakeClock()

    def lead(lost: threading.Event) -> None:
        raise KeyError("a bug")

    with pytest.raises(KeyError):
        elector(server, clock, "one").run(lead)
    assert "holderIdentity" not in spec(server)


def test_an_elector_that_lost_the_lease_competes_again() -> None:
    server, clock = Server(), FakeClock()
    first = Run(elector(server, clock, "one"), clock)
    clock.until(lambda: first.leads)
    server.client.patch(LEASE, NAME, {"spec": {"holderIdentity": "thief"}}, namespace=NAMESPACE)
    clock.until(lambda: first.ended == 1, step=0.5)
    assert not first.elector.leading
    clock.until(lambda: first.leads, step=0.5)  # the thief never renews
    assert (spec(server)["holderIdentity"], spec(server)["leaseTransitions"]) == ("one_id", 1)
    first.stop()


def test_only_one_of_two_processes_with_the_same_name_leads() -> None:
    server, clock = Server(), FakeClock()
    first, second = (Run(Elector(server.client, NAME, NAMESPACE, "same", clock), clock) for _ in range(2))
    clock.until(lambda: first.leads or second.leads)
    a_minute(server, clock, threads=4)  # three of the leader, one of the other
    assert first.leads + second.leads == 1
    assert spec(server)["holderIdentity"].startswith("same_")
    first.stop()
    second.stop()


@pytest.mark.covers("FLT-70")
def test_a_holder_stops_a_margin_before_another_may_start() -> None:
    """A write that was sent just before the end has arrived, or was given up, when another begins."""
    server, clock = Server(), FakeClock()
    holder, standby = (
        Candidate(server.client, NAME, NAMESPACE, identity, clock, duration=15) for identity in ("one", "two")
    )
    assert holder.contend() and not standby.contend()
    leading = []
    for seconds in (9.9, 0.2):
        clock.advance(seconds)
        leading.append(holder.leading)
    assert leading == [True, False] and not standby.contend()
    clock.advance(4.8)
    assert not standby.contend()
    clock.advance(0.2)
    assert standby.contend()


def test_a_duration_too_short_to_be_renewed_is_refused() -> None:
    with pytest.raises(ValueError, match="too short to be renewed every 2"):
        Elector(Server().client, NAME, NAMESPACE, "one", FakeClock(), duration=5)


def test_writes_without_the_lease_are_refused_and_reads_are_not() -> None:
    server, clock = Server(), FakeClock()
    run = Run(elector(server, clock, "one"), clock)
    clock.until(lambda: run.leads)
    client = server.client.replace(guard=run.terms[0].guard)
    client.create(Thing.KIND, thing("a"))
    run.stop()
    with pytest.raises(NotLeading, match="this term of the Lease 'broker' is over"):
        client.delete(Thing.KIND, "a", namespace="default")
    assert [obj["metadata"]["name"] for obj in client.list(Thing.KIND)[0]] == ["a"]


def test_writes_of_an_earlier_term_are_refused_while_the_same_process_leads_again() -> None:
    """A thread that hung in a call of AWS beyond the end of its term must not go on beside the next."""
    server, clock = Server(), FakeClock()
    run = Run(elector(server, clock, "one"), clock)
    clock.until(lambda: run.leads)
    run.terms[0].set()
    clock.until(lambda: len(run.terms) == 2)
    earlier, later = (server.client.replace(guard=term.guard) for term in run.terms)
    with pytest.raises(NotLeading):
        earlier.check()
    later.check()
    run.stop()


class Slow:
    """A transport to the server with chosen delays and losses of requests and replies."""

    def __init__(self, server: Server, clock: FakeClock) -> None:
        self.server, self.clock = server, clock
        self.request_delay = self.reply_delay = 0.0
        self.lost = ""
        self.meanwhile: Callable[[], object] = lambda: None

    def request(self, request: Request, *, timeout: float) -> Reply:
        self.clock.advance(self.request_delay)
        if self.lost == "request":
            raise NO_ANSWER
        reply = self.server.request(request, timeout=timeout)
        self.meanwhile()
        self.clock.advance(self.reply_delay)
        if self.lost == "reply":
            raise NO_ANSWER
        return reply

    def stream(self, request: Request, *, timeout: float) -> object:
        raise AssertionError("a lease is not watched")


@pytest.mark.covers("FLT-70")
@pytest.mark.parametrize(("written", "left"), [("two", "two"), ("one", None)])
def test_release_of_a_lease_that_was_written_since_gives_back_no_others(
    written: str, left: str | None
) -> None:
    server = Server()
    holder = Candidate(server.client, NAME, NAMESPACE, "one", FakeClock(), duration=15)
    assert holder.contend()
    body = {"spec": {"holderIdentity": written}}
    server.client.patch(LEASE, NAME, body, namespace=NAMESPACE)
    holder.release()
    assert spec(server).get("holderIdentity") == left


@pytest.mark.covers("FLT-70")
def test_a_holder_whose_time_is_over_does_not_renew() -> None:
    """Another process may have led since: it contends like any other."""
    server, clock = Server(), FakeClock()
    holder = Candidate(server.client, NAME, NAMESPACE, "one", clock, duration=15)
    assert holder.contend()
    assert holder.renew()
    clock.advance(10)
    before = spec(server)
    renewed = holder.renew()
    assert not renewed and spec(server) == before


def act(candidate: Candidate) -> bool:
    return candidate.renew() if candidate.leading else candidate.contend()


class LeaseModel(RuleBasedStateMachine):
    """Three candidates, any delays, losses and pauses."""

    @initialize()
    def begin(self) -> None:
        self.clock = FakeClock()
        self.server = Server()
        self.wires = [Slow(self.server, self.clock) for _ in range(3)]
        self.candidates = [
            Candidate(Client(wire), NAME, NAMESPACE, name, self.clock, duration=15)  # type: ignore[arg-type]
            for wire, name in zip(self.wires, ("one", "two", "three"), strict=True)
        ]

    @rule(
        acting=st.integers(0, 2),
        request_delay=st.sampled_from([0.0, 0.0, 3.0, 9.0, 20.0]),
        reply_delay=st.sampled_from([0.0, 0.0, 3.0, 9.0, 20.0]),
        lost=st.sampled_from(["", "", "", "request", "reply"]),
        other=st.integers(0, 2),
    )
    def step(self, acting: int, request_delay: float, reply_delay: float, lost: str, other: int) -> None:
        """One candidate acts; while its reply is on the way, another acts."""
        wire = self.wires[acting]
        wire.request_delay, wire.reply_delay, wire.lost = request_delay, reply_delay, lost
        if other != acting:
            self.wires[other].request_delay = self.wires[other].reply_delay = 0.0
            self.wires[other].lost = ""
            wire.meanwhile = lambda: act(self.candidates[other])
        try:
            act(self.candidates[acting])
        except ApiError:
            assert lost
        finally:
            wire.meanwhile = lambda: None

    @rule(seconds=st.sampled_from([0.5, 2.0, 5.0, 8.0, 10.0, 14.9, 15.0]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(acting=st.integers(0, 2), lost=st.sampled_from(["", "reply"]))
    def release(self, acting: int, lost: str) -> None:
        self.wires[acting].request_delay = self.wires[acting].reply_delay = 0.0
        self.wires[acting].lost = lost
        try:
            self.candidates[acting].release()
        except ApiError:
            assert lost

    @rule()
    def touch_lease(self) -> None:
        if self.server.objects:
            body = {"metadata": {"annotations": {"touched": str(self.clock.monotonic())}}}
            self.server.client.patch(LEASE, NAME, body, namespace=NAMESPACE)

    @invariant()
    def one_leads_at_most(self) -> None:
        if hasattr(self, "candidates"):
            assert sum(candidate.leading for candidate in self.candidates) <= 1

    def teardown(self) -> None:
        """Without further faults, one candidate leads within one duration and a try or two."""
        if not hasattr(self, "candidates"):
            return
        for wire in self.wires:
            wire.request_delay = wire.reply_delay = 0.0
            wire.lost = ""
        for _ in range(10):
            for candidate in self.candidates:
                act(candidate)
            self.clock.advance(2)
        assert sum(candidate.leading for candidate in self.candidates) == 1


TestLeaseModel = LeaseModel.TestCase
TestLeaseModel.settings = examples(75)
