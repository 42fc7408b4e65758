"""1,000 claims in 10 shapes over 20 reservations of which a third is full or refuses, on local AWS.

Local AWS and the Kubernetes API are processes of their own. The broker runs here, so that its calls to AWS
are recorded as the SDK gets them. The clock runs from the broker's start, with the claims waiting and the
instance types read, to the last claim that has its instance. The baseline makes the very same calls to an
account of the same kind, one after another.
"""

from __future__ import annotations

import threading
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from benchmarks.figures import Figure, run
from benchmarks.processes import PATIENCE, Program, kubernetes_api, local_aws, own_credentials, usage
from benchmarks.recording import Call, Ids, RecordingProvider, learn, offer_only, replay
from broker import logs
from broker.apis.crds import KIND as CRD
from broker.apis.crds import load as load_crds
from broker.apis.karpenter import NodeClaim
from broker.apis.karpenter_aws import EC2NodeClass
from broker.app import Broker
from broker.kube.client import Client
from broker.kube.clock import SystemClock
from broker.kube.transports import HttpTransport
from broker.memory import collect_seldom
from broker.settings import Settings
from local.aws import LocalAws
from local.aws.control import Control
from tests.cluster import objects
from tests.cluster.account import CLUSTER, REGION, Account

TYPES = (
    "m5.large",
    "m5.xlarge",
    "m5.2xlarge",
    "m5.4xlarge",
    "c5.xlarge",
    "c5.2xlarge",
    "c5.4xlarge",
    "r5.xlarge",
    "r5.2xlarge",
    "r5.4xlarge",
)
ZONES = ("us-east-1a", "us-east-1b")
CALLS = 60
WALL = 1.5
# Of each three reservations: one that EC2 describes as full, or that refuses though it shows free slots.
FULL, REFUSES = (0, 6, 12, 18), (3, 9, 15)


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """An account with its reservations, and the mapping of its ids to those of another of the same kind."""

    account: Account
    odcrs: tuple[str, ...]
    group: str
    refusing: tuple[str, ...]
    description: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """`cpu` is that of each process, by its name."""

    wall: float
    cpu: Mapping[str, float]
    calls: list[Call]


def measure(*, small: bool) -> Sequence[Figure]:
    """1,000 claims at once: reserved slots first, few calls, little slower than the calls themselves."""
    claims = 20 if small else 1000
    slots = 2 if small else 60
    with own_credentials(), local_aws() as (aws, endpoint), kubernetes_api() as (api, kubeconfig):
        world = _world(endpoint, slots)
        free = sum(_free(world).values())
        servers = {"local AWS": aws, "the Kubernetes API": api}
        result = _launch(world, kubeconfig, claims, servers)
        left = sum(_free(world).values())
        reserved, early = _order(result.calls, world)
        _reset(endpoint)
        again = _world(endpoint, slots)
        ids: Ids = {}
        learn(world.description, again.description, ids)
        began, spent = time.monotonic(), _spent({"local AWS": aws})
        replay(result.calls, endpoint=endpoint, region=REGION, ids=ids)
        bare, bare_cpu = time.monotonic() - began, _since(spent, {"local AWS": aws})
    mutating = [call for call in result.calls if not call.reads]
    return [
        Figure(name="claims launched", measured=claims, unit="claims"),
        Figure(name="free reserved slots before", measured=free, unit="slots"),
        Figure(
            name="reserved slots left unused", measured=left, most=0 if claims >= free else None, unit="slots"
        ),
        Figure(name="launched into reservations", measured=reserved, unit="instances"),
        Figure(name="on-demand launches before the last reserved one", measured=early, most=0),
        Figure(
            name="mutating EC2 calls",
            measured=len(mutating),
            most=CALLS,
            baseline=claims,
            of="a call a claim",
        ),
        Figure(name="all AWS calls", measured=len(result.calls)),
        Figure(
            name="wall time", measured=result.wall, unit="s", baseline=bare, of="the same calls, bare boto3"
        ),
        Figure(name="wall time, times the baseline", measured=result.wall / bare, most=WALL, unit="x"),
        *(
            Figure(
                name=f"CPU time of {name}",
                measured=cpu,
                unit="s",
                baseline=bare_cpu.get(name),
                of="the same calls, bare boto3" if name in bare_cpu else "",
            )
            for name, cpu in result.cpu.items()
        ),
    ]


def _launch(world: World, kubeconfig: Path, count: int, servers: Mapping[str, Program]) -> Run:
    """Creates the claims, then starts a broker."""
    logs.configure(level="error", format_="json")
    collect_seldom()
    transport = HttpTransport.from_kubeconfig(kubeconfig)
    client = Client(transport, field_manager="benchmark")
    for crd in load_crds():
        client.create(CRD, crd)
    aws = world.account
    body = objects.node_class(
        "batch",
        image=aws.image,
        subnets=[aws.subnets[zone] for zone in ZONES],
        security_group=aws.security_group,
        spec=objects.reservation_spec(group=world.group),
    )
    client.create(EC2NodeClass.KIND, body)
    for number in range(count):
        client.create(NodeClaim.KIND, _claim(number))
    settings = Settings(
        cluster_name=CLUSTER, cluster_endpoint="https://blue.example", region=REGION, leader_election=False
    )
    provider = RecordingProvider(cluster=CLUSTER, region=REGION, endpoint_url=aws.server.endpoint)
    offer_only(provider, TYPES)
    provider.instance_types()
    provider.forget()
    broker = Broker(Client(transport), provider, settings, clock=SystemClock())
    launched, all_launched = set[str](), threading.Event()

    def changed(_: NodeClaim | None, claim: NodeClaim | None) -> None:
        if claim is not None and claim.status.provider_id:
            launched.add(claim.name)
            if len(launched) == count:
                all_launched.set()

    broker.read.claims.cache.on_change(changed)
    began, spent = time.monotonic(), _spent(servers)
    broker.start()
    try:
        if not all_launched.wait(PATIENCE):
            raise TimeoutError(f"{len(launched)} of {count} claims launched after {PATIENCE:.0f} s")
        wall, cpu = time.monotonic() - began, _since(spent, servers)
        calls = [*provider.calls]
    finally:
        broker.stop()
    return Run(wall=wall, cpu=cpu, calls=calls)


def _spent(servers: Mapping[str, Program]) -> dict[str, float]:
    """CPU time so far of this process and the others: all of them share the machine."""
    return {"the broker": usage().cpu, **{name: program.usage().cpu for name, program in servers.items()}}


def _since(before: Mapping[str, float], servers: Mapping[str, Program]) -> dict[str, float]:
    return {name: now - before[name] for name, now in _spent(servers).items()}


def _claim(number: int) -> dict[str, Any]:
    """Shape n takes its own type or the next bigger one; the ten shapes have ten priorities."""
    shape = number % len(TYPES)
    return objects.claim(
        f"c-{number:04}",
        node_class="batch",
        types=(TYPES[shape], TYPES[(shape + 1) % len(TYPES)]),
        capacity=(objects.RESERVED, objects.ON_DEMAND),
        zones=ZONES,
        priority=shape,
    )


def _world(endpoint: str, slots: int) -> World:
    server = cast(LocalAws, SimpleNamespace(endpoint=endpoint, control=Control(endpoint)))
    account = Account(server)
    odcrs = tuple(account.odcr(kind, zone, slots) for kind in TYPES for zone in ZONES)
    for place in FULL:
        account.rival(odcrs[place], slots)
    group = account.group(*odcrs)
    for place in REFUSES:
        kind, zone = TYPES[place // len(ZONES)], ZONES[place % len(ZONES)]
        server.control.fault(
            action="CreateFleet",
            stage="launch",
            code="ReservationCapacityExceeded",
            message="the reservation has no capacity",
            match={
                "InstanceType": kind,
                "AvailabilityZone": zone,
                "CapacityReservationResourceGroupArn": group,
            },
            times=-1,
        )
    described = account.ec2.describe_capacity_reservations(CapacityReservationIds=[*odcrs])
    listed = {item["CapacityReservationId"]: item for item in described["CapacityReservations"]}
    return World(
        account=account,
        odcrs=odcrs,
        group=group,
        refusing=tuple(odcrs[place] for place in REFUSES),
        description={
            "odcrs": [listed[odcr] for odcr in odcrs],
            "subnets": dict(account.subnets),
            "group": account.security_group,
        },
    )


def _free(world: World) -> dict[str, int]:
    """Slots that EC2 would give, by reservation."""
    described = world.account.ec2.describe_capacity_reservations(CapacityReservationIds=[*world.odcrs])
    return {
        item["CapacityReservationId"]: int(item["AvailableInstanceCount"])
        for item in described["CapacityReservations"]
        if item["CapacityReservationId"] not in world.refusing
    }


def _order(calls: Sequence[Call], world: World) -> tuple[int, int]:
    """Instances that EC2 counts in a reservation, and those that it does not though launched before these."""
    counted = {
        item["InstanceId"]: bool(item.get("CapacityReservationId")) for item in world.account.instances()
    }
    fleets = [
        [counted[id_] for given in call.answer.get("Instances", ()) for id_ in given["InstanceIds"]]
        for call in calls
        if call.operation == "CreateFleet"
    ]
    last = max((place for place, fleet in enumerate(fleets) if any(fleet)), default=0)
    return sum(map(sum, fleets)), sum(fleet.count(False) for fleet in fleets[:last])


def _reset(endpoint: str) -> None:
    request = urllib.request.Request(f"{endpoint}/moto-api/reset", data=b"", method="POST")
    urllib.request.urlopen(request, timeout=60).close()


if __name__ == "__main__":
    run(measure)
