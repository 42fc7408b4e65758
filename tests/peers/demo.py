"""`make karpenter-demo`: Karpenter as released launches by the broker's terms, on this machine.

Everything is real but AWS, which is local, and the machines, which are played. It prints events as they
happen. With --once it ends by itself, with exit code 0 only if everything ended as expected.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console

from broker import logs
from broker.apis import names
from broker.apis.core import Pod
from broker.apis.karpenter import NodeClaim
from broker.apis.karpenter_aws import EC2NodeClass
from broker.apis.meta import condition, is_true
from broker.commands.output import console, table
from tests.cluster.account import CLUSTER, REGION, A, B, C
from tests.cluster.objects import reservation_spec
from tests.peers import objects
from tests.peers.objects import ON_DEMAND, RESERVED, Json
from tests.peers.programs import until
from tests.peers.stage import Stage, missing

COLUMNS = {
    "class": "CLASS",
    "claim": "NODECLAIM",
    "by": "LAUNCHED BY",
    "type": "TYPE",
    "zone": "ZONE",
    "capacity": "CAPACITY",
    "odcr": "EC2 COUNTS IT IN",
    "pods": "PODS",
}
BOTH = (RESERVED, ON_DEMAND)
# Of each class, how many of its instances should run in a reservation in the end, and how many should not.
EXPECTED = {"by-id": (2, 0), "by-group": (2, 1), "by-open": (1, 0), "own": (1, 0)}
PODS = {"by-id": 3, "by-group": 2, "by-open": 1}
CPU = {"by-id": "100", "by-group": "30", "by-open": "5"}  # a node each


def main(
    once: Annotated[bool, typer.Option(help="End by itself; exit 0 only if all went as expected.")] = False,
) -> None:
    """Karpenter, as it is released, beside the broker on local AWS."""
    if reason := missing():
        sys.exit(reason)
    logs.configure(level="error", format_="console")
    out, began = console(), time.monotonic()

    def log(text: str) -> None:
        out.print(f"[dim]{time.monotonic() - began:6.1f}s[/dim]  {text}")

    log("starting etcd, kube-apiserver, kube-scheduler, local AWS, Karpenter and the broker")
    with Stage() as stage:
        log(f"all ready: Kubernetes at {stage.plane.url}, AWS at {stage.endpoint}")
        Story(stage, log).play()
        good = _closing(stage, out)
        if not once:
            out.print(_hints(stage), soft_wrap=True)
            _until_interrupted()
    raise typer.Exit(0 if good else 1)


class Story:
    """A team's requests, and each result, printed once."""

    def __init__(self, stage: Stage, log: Callable[[str], None]) -> None:
        self._stage = stage
        self._log = log
        self._reported: set[str] = set()

    def play(self) -> None:
        aws = self._stage.aws
        p5 = aws.odcr("p5.48xlarge", A, 2)
        g6 = [aws.odcr("g6.12xlarge", zone) for zone in (A, B, C)]
        aws.odcr("m5.2xlarge", A, criteria="open")
        own = aws.odcr("m5.xlarge", B)
        group = aws.group(*g6, name="inference")

        # The classes use the broker's words; Karpenter reads selector terms only.
        self._offer("by-id", reservation_spec(id_=p5), "p5.48xlarge", capacity=[RESERVED])
        self._offer("by-group", reservation_spec(group=group), "g6.12xlarge")
        self._offer("by-open", reservation_spec(preference="open"), "m5.2xlarge")
        self._until(lambda: all(map(self._found, PODS)), "Karpenter has found the reservations")

        self._log(
            "three pods for by-id, which is reserved-only with two slots, two for by-group, one for by-open"
        )
        for pool, count in PODS.items():
            for number in range(count):
                self._pod(pool, number)
        self._log("and a NodeClaim that is the broker's to launch")
        self._stage.create(
            objects.node_class("own", aws, spec=reservation_spec(id_=own)),
            objects.claim("own-0", node_class="own", types=["m5.xlarge"], capacity=[RESERVED]),
        )
        self._until(lambda: self._ready() == 6, "a node for each that can have one")

        left = next(odcr for odcr in g6 if aws.free(odcr))
        self._log(f"{left} is cancelled with a free slot; by-group gets a third pod")
        aws.ec2.cancel_capacity_reservation(CapacityReservationId=left)
        self._until(lambda: left not in self._terms("by-group"), "the broker takes its term away")
        self._until(lambda: left not in self._shown("by-group"), "Karpenter forgets it")
        self._pod("by-group", 2)
        self._until(lambda: self._ready() == 7, "a node for the last pod")

    def _offer(self, name: str, spec: Json | None, kind: str, *, capacity: Sequence[str] = BOTH) -> None:
        self._stage.offer(
            objects.node_class(name, self._stage.aws, spec=spec),
            objects.node_pool(name, node_class=name, types=[kind], capacity=capacity),
        )

    def _pod(self, pool: str, number: int) -> None:
        self._stage.create(objects.pod(f"{pool}-{number}", pool=pool, requests={"cpu": CPU[pool]}))

    def _until(self, done: Callable[[], bool], goal: str) -> None:
        def observed() -> bool:
            self._observe()
            return done()

        until(observed, goal, interval=0.5)
        self._observe()

    def _observe(self) -> None:
        """Prints the news since the last call."""
        for class_ in map(EC2NodeClass.decode, self._stage.client.list(EC2NodeClass.KIND)[0]):
            if advised := condition(class_.status.conditions, names.RESERVATIONS_ADVISED):
                self._once(f"class {class_.name:<9} {advised.reason}: {advised.message}")
        for claim in self._stage.claims():
            if claim.status.provider_id:
                labels = (names.CAPACITY_TYPE, names.INSTANCE_TYPE, names.RESERVATION_ID)
                where = " ".join(claim.labels.get(label, "") for label in labels)
                self._once(f"[green]{claim.name:<15}[/green] launched by {_launcher(claim)}: {where}")

    def _once(self, text: str) -> None:
        if text not in self._reported:
            self._reported.add(text)
            self._log(text)

    def _ready(self) -> int:
        return sum(is_true(claim, names.READY) for claim in self._stage.claims())

    def _class(self, name: str) -> Json:
        return self._stage.client.get(EC2NodeClass.KIND, name)

    def _terms(self, name: str) -> str:
        return str(self._class(name)["spec"].get("capacityReservationSelectorTerms"))

    def _shown(self, name: str) -> str:
        return str(self._class(name)["status"].get("capacityReservations", ""))

    def _found(self, name: str) -> bool:
        return bool(self._shown(name))


def _closing(stage: Stage, out: Console) -> bool:
    """The closing table; whether EC2 counts every instance where it should."""
    pods = [pod for pool in PODS for pod in stage.pods(pool)]
    rows = [_row(stage, claim, pods) for claim in stage.claims()]
    rows.sort(key=lambda row: (row["class"], row["zone"]))
    out.print()
    out.print(table("", rows, columns=COLUMNS))
    counts = {
        name: tuple(
            sum((row["odcr"] != "-") is reserved for row in rows if row["class"] == name)
            for reserved in (True, False)
        )
        for name in EXPECTED
    }
    bought = sum(on_demand for _, on_demand in counts.values())
    waiting = [pod.name for pod in pods if not pod.spec.node_name]
    out.print(
        f"\n{len(rows) - bought} in reservations, {bought} on demand; "
        f"{', '.join(waiting) or 'no pod'} waits for a slot, since its NodePool allows nothing else."
    )
    errors = [
        error
        for error in stage.karpenter_errors() + stage.broker_errors()
        if error.get("Pod", {}).get("name") not in waiting  # which Karpenter logs as an error
    ]
    for error in errors:
        out.print(error)
    return counts == EXPECTED and not errors


def _row(stage: Stage, claim: NodeClaim, pods: Sequence[Pod]) -> dict[str, Any]:
    instance = stage.aws.instance(claim.instance_id)
    return {
        "class": claim.spec.node_class_ref.name,
        "claim": claim.name,
        "by": _launcher(claim),
        "type": instance["InstanceType"],
        "zone": instance["Placement"]["AvailabilityZone"],
        "capacity": claim.labels.get(names.CAPACITY_TYPE, ""),
        "odcr": instance.get("CapacityReservationId", "-"),
        "pods": " ".join(pod.name for pod in pods if pod.spec.node_name == claim.status.node_name),
    }


def _launcher(claim: NodeClaim) -> str:
    return "broker" if claim.spec.node_class_ref.group == names.BROKER else "Karpenter"


def _hints(stage: Stage) -> str:
    return (
        "\nIt stays up until Ctrl-C. In another terminal, in this folder:\n"
        f"  export KUBECONFIG={stage.kubeconfig()} CLUSTER_NAME={CLUSTER}\n"
        f"  export AWS_ENDPOINT_URL={stage.endpoint} AWS_REGION={REGION} AWS_DEFAULT_REGION={REGION}\n"
        "  export AWS_ACCESS_KEY_ID=demo AWS_SECRET_ACCESS_KEY=demo\n"
        "  kubectl get nodeclaims,nodepools,ec2nodeclasses,odcr\n"
        "  kubectl get ec2nodeclass by-group -o yaml\n"
        "  .venv/bin/capacity-broker inventory\n"
    )


def _until_interrupted() -> None:
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: stopped.set())
    stopped.wait()


if __name__ == "__main__":
    typer.run(main)
