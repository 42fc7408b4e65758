"""`python -m benchmarks.fixture`: a Kubernetes API and an AWS at rest, as cheap as can be, in one process.

Kubernetes is the embedded API server, with a store that is filled without its checks. AWS is local AWS
behind a front. The front remembers each response to a read until something is written, and shows the
instances itself. So the broker under measurement does not wait for these two. `GET /count` on the front
returns the number of calls to either.
"""

from __future__ import annotations

import gc
import json
import re
import signal
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qs, urlencode

import typer
import urllib3

from benchmarks import resting
from benchmarks.processes import own_credentials
from benchmarks.recording import offer_only
from benchmarks.resting import Place
from broker.apis.core import Node
from broker.apis.crds import load as load_crds
from broker.apis.karpenter import NodeClaim
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.meta import Kind
from broker.kube.client import Client
from local.aws import LocalAws
from local.in_process import InProcessTransport
from local.kube import ApiServer, Cluster
from local.kube.wire import ApiRequest, Response
from providers.aws import AwsProvider
from providers.model import Odcr
from tests.cluster import objects
from tests.cluster.account import CLUSTER, POOL, REGION, Account

LIST = re.compile(r"^(Describe|Get|List)")
TAKEN = re.compile(rb"<availableInstanceCount>(\d+)</availableInstanceCount>")
_TYPED = {"apiVersion": EC2NodeClass.KIND.api_version, "kind": EC2NodeClass.KIND.kind}
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


class CountingCluster(Cluster):
    """Counts the writes to each resource that are no Lease's."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: Counter[str] = Counter()

    def handle(self, request: ApiRequest) -> Response:
        if request.method not in ("GET", "HEAD") and "/leases" not in request.path:
            self.writes[f"{request.method} {request.path}"] += 1
        return super().handle(request)


class Front:
    """The front before local AWS."""

    def __init__(
        self, endpoint: str, places: Sequence[Place], cluster: CountingCluster, *, types: Collection[str] = ()
    ) -> None:
        self.calls: Counter[str] = Counter()
        self._endpoint = endpoint
        self._pool = urllib3.PoolManager(maxsize=32)
        self._kept: dict[bytes, tuple[int, dict[str, str], bytes]] = {}
        self._shown = {place.instance: resting.described(place) for place in places}
        self._listed = [*self._shown.values()]
        self._cluster = cluster
        self._types = types  # all that the Region offers; empty: as many as local AWS knows
        self._lock = threading.Lock()

    def count(self) -> dict[str, Any]:
        with self._lock:
            return {"aws": dict(self.calls), "writes": dict(self._cluster.writes)}

    def answer(self, path: str, headers: Mapping[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        fields = parse_qs(body.decode()) if body.startswith(b"Action=") else {}
        action = fields["Action"][0] if fields else path.partition("?")[0].strip("/")
        with self._lock:
            self.calls[f"{action} DryRun" if fields.get("DryRun") == ["true"] else action] += 1
        if action == "DescribeInstances":
            return self._instances(fields, headers, body)
        if not (LIST.match(action) or action.startswith(("list-", "get-"))):
            self._kept.clear()
            return self._forwarded(path, headers, body)
        if action == "DescribeInstanceTypes" and self._types:
            type_fields = {f"InstanceType.{place}": name for place, name in enumerate(self._types, 1)}
            body = urlencode({"Action": action, "Version": fields["Version"][0], **type_fields}).encode()
        key = path.encode() + b"\n" + body
        if key not in self._kept:
            self._kept[key] = self._forwarded(path, headers, body)
        return self._kept[key]

    def _forwarded(
        self, path: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        sent = {k: v for k, v in headers.items() if k.lower() not in ("connection", "content-length")}
        answer = self._pool.request("POST", self._endpoint + path, body=body, headers=sent, retries=False)
        kept = {k: v for k, v in answer.headers.items() if k.lower() in ("content-type", "x-amzn-requestid")}
        # Each reservation has as many instances here as local AWS does not know of.
        data = TAKEN.sub(
            lambda match: (
                b"<availableInstanceCount>%d</availableInstanceCount>" % max(0, int(match[1]) - resting.SLOTS)
            ),
            answer.data,
        )
        return answer.status, kept, data

    def _instances(
        self, fields: Mapping[str, list[str]], headers: Mapping[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        """The fixture's instances by id, or all of them; local AWS shows the instances that it launched."""
        values = [value[0] for name, value in fields.items() if ".Value." in name]
        ids = [value for value in values if value.startswith("i-")]
        if ids and not all(id_ in self._shown for id_ in ids):
            return self._forwarded("/", headers, body)
        chosen = [self._shown[id_] for id_ in ids] if ids else self._listed
        start, size = int(fields.get("NextToken", ["0"])[0]), int(fields.get("MaxResults", ["1000"])[0])
        following = f"<nextToken>{start + size}</nextToken>" if start + size < len(chosen) else ""
        text = (
            '<?xml version="1.0" encoding="UTF-8"?>'
            '<DescribeInstancesResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"><requestId>'
            f"8f7724cf-496f-496e-8fe3-example{start}</requestId><reservationSet>"
            f"{''.join(chosen[start : start + size])}</reservationSet>{following}</DescribeInstancesResponse>"
        )
        return 200, {"Content-Type": "text/xml"}, text.encode()


def serve(front: Front) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._send(200, {"Content-Type": "application/json"}, json.dumps(front.count()).encode())

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            self._send(*front.answer(self.path, dict(self.headers), body))

        def _send(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002, ARG002 - http.server's name
            return

    class Server(ThreadingHTTPServer):
        daemon_threads = True

    server = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, name="front", daemon=True).start()
    return server


def fill(cluster: Cluster, aws: LocalAws, *, claims: int, nodes: int, odcrs: int) -> list[Place]:
    """Reservations, groups and classes by the servers' own APIs; claims and nodes into the store."""
    account = Account(aws)
    for number in range(odcrs):
        kind = resting.TYPES[number % len(resting.TYPES)]
        zone = resting.ZONES[number // len(resting.TYPES) % len(resting.ZONES)]
        aws.control.reservation(
            InstanceType=kind,
            InstancePlatform="Linux/UNIX",
            AvailabilityZone=zone,
            InstanceCount=resting.SLOTS,
            InstanceMatchCriteria="targeted",
        )
    provider = AwsProvider(cluster=CLUSTER, region=REGION, endpoint_url=aws.endpoint)
    reservations = list(provider.reservations())
    for crd in load_crds():
        cluster.create(CRDS, crd)
    _classes(cluster, account, reservations)
    offer_only(provider, resting.TYPES)
    types = provider.instance_types()
    placed = list(resting.places(reservations, nodes))
    with cluster.state.store.lock:
        for place in placed:
            claim, node = resting.running(place, types[place.odcr.instance_type])
            _put(cluster, NodeClaim.KIND, claim)
            _put(cluster, Node.KIND, node)
        for number in range(claims - nodes):
            _put(cluster, NodeClaim.KIND, resting.waiting(number, reservations))
    _listed(cluster, {NodeClaim.KIND: claims, Node.KIND: nodes, EC2NodeClass.KIND: _count(reservations)})
    return placed


def _classes(cluster: Cluster, account: Account, reservations: Sequence[Odcr]) -> None:
    for number in range(_count(reservations)):
        name = resting.class_name(number)
        members = [odcr for place, odcr in enumerate(reservations) if resting.class_name(place) == name]
        arn = str(account.groups.create_group(Name=name, Configuration=POOL)["Group"]["GroupArn"])
        for start in range(0, len(members), 10):
            arns = [odcr.arn for odcr in members[start : start + 10]]
            account.groups.group_resources(Group=name, ResourceArns=arns)
        body = objects.node_class(
            name,
            image=account.image,
            subnets=[account.subnets[zone] for zone in resting.ZONES],
            security_group=account.security_group,
            spec=objects.reservation_spec(group=arn),
        )
        cluster.create(
            EC2NodeClass.KIND.path(),
            _TYPED | body,
        )


def _count(odcrs: Sequence[Odcr]) -> int:
    """Classes, each of which has reservations."""
    return min(resting.CLASSES, len(odcrs))


def _put(cluster: Cluster, kind: Kind, obj: dict[str, Any]) -> None:
    served = cluster.state.registry.find(kind.group, kind.version, kind.plural)
    if served is None:
        raise LookupError(f"the API server does not serve {kind.resource}")
    cluster.state.put(served, ("", obj["metadata"]["name"]), obj)


def _listed(cluster: Cluster, expected: Mapping[Kind, int]) -> None:
    """Raises RuntimeError unless the API server lists as many objects of each kind."""
    client = Client(InProcessTransport(cluster))
    for kind, many in expected.items():
        shown = len(client.list(kind)[0])
        if shown != many:
            raise RuntimeError(f"{many} {kind.plural} were put into the store, {shown} are listed")


def main(
    claims: Annotated[int, typer.Option()] = 10_000,
    nodes: Annotated[int, typer.Option()] = 5_000,
    odcrs: Annotated[int, typer.Option()] = 1_000,
    few_types: Annotated[bool, typer.Option(help="A Region of few types.")] = False,
) -> None:
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    with own_credentials(), tempfile.TemporaryDirectory() as folder, LocalAws() as aws:
        cluster = CountingCluster()
        gc.disable()  # a million objects that stay: scanning them again and again would take most of the time
        placed = fill(cluster, aws, claims=claims, nodes=nodes, odcrs=odcrs)
        gc.freeze()
        gc.enable()
        with ApiServer(cluster) as api:
            front = serve(Front(aws.endpoint, placed, cluster, types=resting.TYPES if few_types else ()))
            url = f"http://127.0.0.1:{front.server_port}"
            # The longest responses are remembered before any client waits for them.
            warm = AwsProvider(cluster=CLUSTER, region=REGION, endpoint_url=url)
            warm.instance_types()
            warm.reservations()
            file = Path(folder) / "kubeconfig"
            file.write_text(api.kubeconfig())
            endpoints = {"kubeconfig": str(file), "aws": url}
            sys.stdout.write(f"fixture {json.dumps(endpoints)}\n")
            sys.stdout.flush()
            stopped.wait()


if __name__ == "__main__":
    typer.run(main)
