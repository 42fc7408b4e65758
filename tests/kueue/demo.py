"""`make kueue-demo`: Kueue has quota for two jobs, and EC2 has a reserved instance for one of them.

The broker, its queues and its admission check are the real ones, on local AWS. Kueue's scheduler and
controllers are simulated (tests.kueue.played). With --once it ends by itself, with exit code 0 only if both
jobs were admitted in their turn.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Final

import typer

from broker.apis import names
from broker.apis.kueue import (
    ADMITTED,
    QUOTA_RESERVED,
    ClusterQueue,
    LocalQueue,
    Namespace,
    ResourceFlavor,
    Workload,
)
from broker.apis.meta import condition
from broker.apis.ome import CapacityReservation
from broker.commands.output import console, table
from broker.kube.errors import NotFound
from broker.quota.usage import ReservationKey
from broker.reservations.kueue_checks import CHECK
from broker.settings import Settings
from local.demo import account
from local.demo.session import session
from local.demo.story import Scene, open_scene
from local.in_process import InProcessTransport
from tests.kueue.definitions import install
from tests.kueue.played import Kueue

TEAM, QUEUE, TYPE, GPU = "team", "team--gpu", "p5.48xlarge", "nvidia.com/gpu"
JOBS: Final = ("train-a", "train-b")
POLL: Final = 2.0  # seconds between two descriptions of the reservations
COLUMNS: Final = {
    "job": "WORKLOAD",
    "gpus": "GPUS",
    "kueue": "KUEUE",
    "check": "CHECK OF THE BROKER",
    "slot": "RUNS IN",
    "as": "OK",
}


def main(
    once: Annotated[bool, typer.Option(help="End by itself; exit 0 only if all went as expected.")] = False,
) -> None:
    """Kueue beside the broker on local AWS."""
    settings = replace(Settings(), poll_seconds=POLL)
    with session(console()), open_scene(settings, make=one_instance) as running_scene:
        good = Story(running_scene).play()
        if not once:
            running_scene.stay("kubectl get clusterqueues,localqueues,workloads,admissionchecks -A")
    sys.exit(0 if good else 1)


def one_instance(endpoint: str) -> account.ExampleIds:
    """The account of one team, with one reserved instance for its CapacityReservation."""
    ids = account.plain(endpoint)
    tags = [{"Key": names.TAG_RESERVATION, "Value": f"{TEAM}/gpu"}]
    reply = account.client("ec2", endpoint).create_capacity_reservation(
        InstanceType=TYPE,
        InstancePlatform="Linux/UNIX",
        AvailabilityZone="us-east-1a",
        InstanceCount=1,
        InstanceMatchCriteria="targeted",
        TagSpecifications=[{"ResourceType": "capacity-reservation", "Tags": tags}],
    )
    return account.ExampleIds(
        names={**ids.names, "gpu": reply["CapacityReservation"]["CapacityReservationId"]}
    )


class Story:
    """Two jobs, and the way of each through Kueue and the broker's check."""

    def __init__(self, running_scene: Scene) -> None:
        self._scene, self._client = running_scene, running_scene.user
        self._kueue = Kueue(InProcessTransport(running_scene.stage.api.cluster), now=running_scene.clock.now)
        self._odcr = running_scene.stage.ids.names["gpu"]

    def play(self) -> bool:
        """True if both jobs were admitted, each once its instance was free."""
        running_scene = self._scene
        running_scene.report(f"EC2 has one {TYPE} for team/gpu so far, in {self._odcr}")
        install(self._client)
        self._offer()
        running_scene.report(
            "Kueue is installed, with a flavor h100 and a CapacityReservation team/gpu of 16 GPUs"
        )
        if not running_scene.until(self._queued):
            return False
        running_scene.report(f"the broker made ClusterQueue {QUEUE}, LocalQueue gpu and the check {CHECK}")
        self._kueue.takes(QUEUE)
        for job in JOBS:
            self._submit(job)
        running_scene.report("two jobs of 8 GPUs each are submitted: Kueue has quota for both")
        running_scene.until(lambda: self._turn() and self._admitted("train-a") and self._message("train-b"))
        good = self._table("with one reserved instance", {"train-a": True, "train-b": False})
        running_scene.report(f"{self._odcr} gets its second instance")
        ec2 = account.client("ec2", running_scene.stage.aws.endpoint)
        ec2.modify_capacity_reservation(CapacityReservationId=self._odcr, InstanceCount=2)
        running_scene.until(lambda: self._turn() and self._admitted("train-b"))
        good &= self._table("with two", dict.fromkeys(JOBS, True))
        text = "As expected: no job was admitted before its reserved instance was there."
        running_scene.out.print(f"\n{text if good else 'Not as expected.'}")
        return good

    def _offer(self) -> None:
        self._client.create(Namespace.KIND, {"metadata": {"name": TEAM}})
        labels = {names.INSTANCE_TYPE: TYPE, names.ZONE: "us-east-1a"}
        flavor = {"metadata": {"name": "h100"}, "spec": {"nodeLabels": labels}}
        self._client.create(ResourceFlavor.KIND, flavor)
        quota = {"name": "h100", "resources": [{"name": GPU, "nominalQuota": "16"}]}
        spec = {"resourceGroups": [{"coveredResources": [GPU], "flavors": [quota]}]}
        body = {"metadata": {"name": "gpu", "namespace": TEAM}, "spec": spec}
        self._client.create(CapacityReservation.KIND, body)

    def _submit(self, job: str) -> None:
        pod = {"containers": [{"name": "c", "image": "i", "resources": {"requests": {GPU: "8"}}}]}
        pods = [{"name": "main", "count": 1, "template": {"spec": pod}}]
        body = {
            "metadata": {"name": job, "namespace": TEAM},
            "spec": {"queueName": "gpu", "podSets": pods},
        }
        self._client.create(Workload.KIND, body)

    # ---- the state as a user sees it

    def _queued(self) -> bool:
        """Whether the queues are there, with the slots behind them known."""
        queue = self._kueue.queue(QUEUE)
        try:
            self._client.get(LocalQueue.KIND, "gpu", namespace=TEAM)
        except NotFound:
            return False
        snapshot = self._scene.stage.broker.reads.snapshot()
        return _open(queue) and any(snapshot.odcrs.owned.of(ReservationKey(TEAM, "gpu")).values())

    def _turn(self) -> bool:
        """Kueue acts until nothing more follows."""
        self._kueue.turns(namespace=TEAM)
        return True

    def _admitted(self, job: str) -> bool:
        return self._is_true(job, ADMITTED)

    def _is_true(self, job: str, type_: str) -> bool:
        condition_ = condition(self._kueue.workload(job, TEAM).status.conditions, type_)
        return condition_ is not None and condition_.status == "True"

    def _message(self, job: str) -> str:
        """The broker's reason why the job waits; none while it is admitted or not yet checked."""
        checks = self._kueue.workload(job, TEAM).status.admission_checks
        texts = [check.message for check in checks if check.name == CHECK and check.state != "Ready"]
        return "" if self._is_true(job, QUOTA_RESERVED) else next(iter(texts), "")

    def _selector(self, job: str) -> Mapping[str, str]:
        """The node labels that the broker gives the pods of the job."""
        checks = self._kueue.workload(job, TEAM).status.admission_checks
        updates = [update for check in checks for update in check.pod_set_updates]
        return updates[0].node_selector if updates else {}

    def _table(self, title: str, expected: Mapping[str, bool]) -> bool:
        """Prints both jobs; whether those are admitted that should be."""
        rows = [self._row(job, admitted) for job, admitted in expected.items()]
        self._scene.out.print()
        self._scene.out.print(table(title, rows, columns=COLUMNS))
        return all(row["as"] == "yes" for row in rows)

    def _row(self, job: str, expected: bool) -> dict[str, Any]:
        admitted = self._admitted(job)
        slot = self._selector(job).get(names.RESERVATION_ID, "-") if admitted else "-"
        good = admitted == expected and slot == (self._odcr if expected else "-")
        return {
            "job": job,
            "gpus": 8,
            "kueue": "admitted" if admitted else "waits",
            "check": "Ready" if admitted else self._message(job),
            "slot": slot,
            "as": "yes" if good else "NO",
        }


def _open(queue: ClusterQueue | None) -> bool:
    return queue is not None and queue.spec.stop_policy == "None"


if __name__ == "__main__":
    typer.run(main)
