"""600 claims for GPUs and no capacity for 30 simulated minutes; then it returns.

The claims take a reservation group or on demand, over 2 types in 3 zones. Every slot is taken and every
on-demand pool is empty. After 30 minutes half of the slots are free and the on-demand pools are open. Time
is simulated: it moves on in steps, and between two steps the broker has done its due work. The baseline
requests each claim by itself every three minutes, and deletes and makes anew each claim that was refused.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import cast

from benchmarks.figures import Figure, run
from benchmarks.processes import local_aws, own_credentials, until, usage
from benchmarks.recording import offer_only
from broker import logs
from broker.apis.crds import KIND as CRD
from broker.apis.crds import load as load_crds
from broker.apis.karpenter import NodeClaim
from broker.apis.karpenter_aws import EC2NodeClass
from broker.app import Broker
from broker.kube.client import Client
from broker.memory import collect_seldom
from broker.settings import Settings
from local.aws import LocalAws
from local.aws.control import Control
from local.in_process import InProcessTransport
from local.kube import Cluster
from providers.aws import AwsProvider
from tests.cluster import objects
from tests.cluster.account import CLUSTER, REGION, Account
from tests.cluster.clocks import HastyClock, MovableClock

TYPES = ("p5.48xlarge", "g6.12xlarge")
ZONES = ("us-east-1a", "us-east-1b", "us-east-1c")
MINUTES = 30
STEP = 10.0
# The settings' own: a poll sees free slots within it.
POLL = 30.0
BASELINE_EVERY = 180.0


class Storm:
    """A broker in simulated time, beside local AWS in a process of its own."""

    def __init__(self, endpoint: str, claims: int) -> None:
        self.control = Control(endpoint)
        self.account = Account(cast(LocalAws, SimpleNamespace(endpoint=endpoint, control=self.control)))
        self.clock = MovableClock()
        self.client = Client(InProcessTransport(Cluster()), field_manager="benchmark")
        self.claims = claims
        self.rivals: list[str] = []
        self.began = self.clock.monotonic()
        provider = AwsProvider(
            cluster=CLUSTER, region=REGION, endpoint_url=endpoint, clock=HastyClock(self.clock)
        )
        offer_only(provider, TYPES)
        provider.instance_types()
        settings = Settings(
            cluster_name=CLUSTER, cluster_endpoint="https://blue.example", region=REGION, poll_seconds=POLL
        )
        for crd in load_crds():
            self.client.create(CRD, crd)
        self._create_objects()
        self.broker = Broker(self.client, provider, settings, clock=self.clock)

    def _create_objects(self) -> None:
        """Reservations for half of the claims, all of them taken; no other instance is available."""
        slots_per_odcr = self.claims // 2 // (len(TYPES) * len(ZONES))
        odcrs = [self.account.odcr(kind, zone, slots_per_odcr) for kind in TYPES for zone in ZONES]
        for odcr in odcrs:
            self.rivals += self.account.rival(odcr, slots_per_odcr)
        self.close_pools()
        body = objects.node_class(
            "gpu",
            image=self.account.image,
            subnets=[self.account.subnets[zone] for zone in ZONES],
            security_group=self.account.security_group,
            spec=objects.reservation_spec(group=self.account.group(*odcrs)),
        )
        self.client.create(EC2NodeClass.KIND, body)
        for number in range(self.claims):
            claim = objects.claim(
                f"gpu-{number:03}",
                node_class="gpu",
                types=(TYPES[number % len(TYPES)],),
                capacity=(objects.RESERVED, objects.ON_DEMAND),
                requests={"nvidia.com/gpu": "4"},
            )
            self.client.create(NodeClaim.KIND, claim)

    def close_pools(self) -> None:
        for kind in TYPES:
            for zone in ZONES:
                self.control.pool(instance_type=kind, zone=zone, size=0)

    def uids(self) -> Mapping[str, str]:
        return {
            item["metadata"]["name"]: item["metadata"]["uid"] for item in self.client.list(NodeClaim.KIND)[0]
        }

    def launched(self) -> int:
        return sum(1 for claim in self.broker.read.claims.cache.list() if claim.status.provider_id)

    def step(self, seconds: float) -> None:
        """Moves time on; returns when the broker has done its due work."""
        self.control.advance(seconds)
        self.clock.advance(seconds)
        self.idle()

    def idle(self) -> None:
        """Returns when several reads in a row show no work: no call to AWS, no CPU time used."""
        seen: tuple[object, ...] = ()
        calm = 0

        def quiet() -> bool:
            nonlocal seen, calm
            now = (sum(self.control.calls().values()), self.launched(), round(usage().cpu, 1))
            calm = calm + 1 if now == seen else 0
            seen = now
            return calm >= 5

        until(quiet, "broker that is done")


@contextmanager
def running(storm: Storm) -> Iterator[None]:
    storm.broker.start()
    try:
        yield
    finally:
        storm.broker.stop()


def measure(*, small: bool) -> Sequence[Figure]:
    """A night without GPUs: refused calls, remade claims, and the time to recover."""
    claims, minutes = (12, 3) if small else (600, MINUTES)
    logs.configure(level="error", format_="json")
    collect_seldom()
    with own_credentials(), local_aws() as (_, endpoint):
        storm = Storm(endpoint, claims)
        before, spent, real = storm.uids(), usage().cpu, time.monotonic()
        with running(storm):
            storm.idle()
            for _ in range(int(minutes * 60 / STEP)):
                storm.step(STEP)
            night = storm.control.calls()
            used, passed = usage().cpu - spent, time.monotonic() - real
            storm.control.clear_pools()
            storm.account.ec2.terminate_instances(InstanceIds=storm.rivals)
            returned = storm.clock.monotonic()
            first = _after(storm, returned, lambda: storm.launched() > 0)
            last = _after(storm, returned, lambda: storm.launched() == claims)
            calls = storm.control.calls()
            kept = storm.uids()
    rounds = int(minutes * 60 / BASELINE_EVERY)
    remade = sum(1 for name, uid in before.items() if kept.get(name) != uid)
    return [
        Figure(name="claims", measured=claims),
        Figure(name="simulated time without capacity", measured=minutes, unit="min"),
        Figure(
            name="refused launch calls",
            measured=night.get("CreateFleet", 0),
            most=12,
            baseline=claims * rounds,
            of="a call a claim every 3 min",
        ),
        Figure(name="all AWS calls in that time", measured=sum(night.values())),
        Figure(
            name="claims deleted and remade",
            measured=remade,
            most=0,
            baseline=claims * rounds,
            of="remade when refused",
        ),
        Figure(name="from return to the first launched", measured=first, unit="s simulated"),
        Figure(name="from return to all launched", measured=last, unit="s simulated", most=240),
        Figure(
            name="launch calls after the return",
            measured=calls.get("CreateFleet", 0) - night.get("CreateFleet", 0),
            baseline=claims,
            of="a call a claim",
        ),
        Figure(name="CPU time for the night", measured=used, unit="s"),
        Figure(name="wall time for the night", measured=passed, unit="s"),
    ]


def _after(storm: Storm, since: float, happened: Callable[[], bool]) -> float:
    """Simulated seconds until it has happened."""
    while not happened():
        storm.step(STEP / 2)
        if storm.clock.monotonic() - since > 3600:
            raise TimeoutError("an hour after capacity returned there are claims that wait")
    return storm.clock.monotonic() - since


if __name__ == "__main__":
    run(measure)
