"""Informers on the embedded API server, in process and over HTTP, through any order of changes and faults."""

from __future__ import annotations

from contextlib import ExitStack

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule
from kubernetes.client import Configuration

from broker.apis.core import Node
from broker.kube.client import Client
from broker.kube.errors import ApiError
from broker.kube.informer import Informer
from broker.kube.transports import HttpTransport
from local.in_process import InProcessTransport
from local.kube import ApiServer, Cluster
from tests.support.clock import FakeClock

NAMES = st.sampled_from("abcd")


class Following(RuleBasedStateMachine):
    """Two informers, one of them narrowed by a selector; without faults, both show the server's objects."""

    over_http = False

    def __init__(self) -> None:
        super().__init__()
        self.exit = ExitStack()
        self.cluster, self.clock = Cluster(), FakeClock()
        self.operator = Client(InProcessTransport(self.cluster))
        client = self.operator
        if self.over_http:
            server = self.exit.enter_context(ApiServer(self.cluster))
            client = Client(HttpTransport(lambda: Configuration(host=server.url)))
        self.all = Informer(client, Node, clock=self.clock)
        self.closed = Informer(client, Node, clock=self.clock, field_selector="spec.unschedulable=true")
        for informer in (self.all, self.closed):
            informer.start()
            self.exit.callback(informer.stop)

    @rule(name=NAMES, closed=st.booleans())
    def put(self, name: str, closed: bool) -> None:
        answer = self.operator.apply(
            Node.KIND, {"metadata": {"name": name}, "spec": {"unschedulable": closed}}
        )
        self.all.cache.observe(answer)
        self.closed.cache.observe(answer)

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        try:
            self.operator.delete(Node.KIND, name)
        except ApiError as error:
            assert error.status == 404

    @rule()
    def drop(self) -> None:
        self.cluster.faults.drop_watches()

    @rule()
    def forget(self) -> None:
        self.cluster.compact()
        self.cluster.faults.drop_watches()

    @rule(verb=st.sampled_from(["list", "watch"]), code=st.sampled_from([500, 503, 429, 410]))
    def refuse(self, verb: str, code: int) -> None:
        self.cluster.faults.fail(verb=verb, resource="nodes", code=code, reason="Ordered")
        self.cluster.faults.drop_watches()

    @rule(seconds=st.sampled_from([0.1, 5.0]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def agree(self) -> bool:
        stored = {
            item["metadata"]["name"]: bool(item["spec"].get("unschedulable"))
            for item in self.operator.list(Node.KIND)[0]
        }
        closed = {name: True for name, unschedulable in stored.items() if unschedulable}
        return (self.shown(self.all), self.shown(self.closed)) == (stored, closed)

    @staticmethod
    def shown(informer: Informer[Node]) -> dict[str, bool]:
        return {node.name: node.spec.unschedulable for node in informer.cache.list()}

    def teardown(self) -> None:
        with self.exit:
            self.cluster.faults.clear()
            self.clock.until(lambda: self.all.synced and self.closed.synced and self.agree(), step=0.5)


class FollowingOverHttp(Following):
    over_http = True


TestInProcess = Following.TestCase
TestInProcess.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)
TestOverHttp = FollowingOverHttp.TestCase
TestOverHttp.settings = settings(max_examples=10, stateful_step_count=20, deadline=None)
