"""Kueue's part, played: the statuses, finalizers and evictions that Kueue writes, and nothing of its own.

Seen with a real one: its first write to a ClusterQueue makes it a manager of the whole spec; an
AdmissionCheck without Active=True makes each queue that names it inactive; quota is reserved before checks
are asked; a check that says Retry evicts, and is counted; who is evicted keeps `status.admission` until its
job's own reconciler clears it, and who has no job keeps it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from broker.apis.kueue import (
    ACTIVE,
    ADMITTED,
    QUOTA_RESERVED,
    VERSIONS,
    AdmissionCheck,
    ClusterQueue,
    ResourceFlavor,
    Workload,
)
from broker.apis.meta import Kind, condition
from broker.apis.units import units, written
from broker.kube.client import Client, Transport
from broker.kube.errors import Conflict, NotFound

Json = dict[str, Any]
WHEN = "2026-01-01T00:00:00Z"
IN_USE = "kueue.x-k8s.io/resource-in-use"
NOT_CHECKED = (False, "UnsatisfiedChecks", "The workload has not all checks ready")


class Kueue:
    """Call a method, and Kueue has done it."""

    def __init__(self, transport: Transport, *, version: str = VERSIONS[0]) -> None:
        self.client = Client(transport, field_manager="kueue")
        self._version = version

    def kind(self, model: type[Any]) -> Kind:
        kind: Kind = model.KIND
        return replace(kind, version=self._version)

    def queue(self, name: str) -> ClusterQueue | None:
        try:
            return ClusterQueue.decode(self.client.get(self.kind(ClusterQueue), name))
        except NotFound:
            return None

    def raw(self, model: type[Any], name: str, namespace: str | None = None) -> Json:
        return self.client.get(self.kind(model), name, namespace=namespace)

    # ---- ResourceFlavors

    def keeps_flavors(self) -> None:
        """Its finalizer on each, until one is deleted that no ClusterQueue names (Kueue's
        pkg/controller/core/resourceflavor_controller.go).
        """
        queues = [ClusterQueue.decode(each) for each in self.client.list(self.kind(ClusterQueue))[0]]
        groups = [group for queue in queues for group in queue.spec.resource_groups]
        used = {flavor.name for group in groups for flavor in group.flavors}
        for body in self.client.list(self.kind(ResourceFlavor))[0]:
            meta = body["metadata"]
            held, wanted = IN_USE in meta.get("finalizers", ()), True
            if meta.get("deletionTimestamp"):
                wanted = held and meta["name"] in used
            if held != wanted:
                others = [each for each in meta.get("finalizers", ()) if each != IN_USE]
                meta["finalizers"] = [*others, IN_USE] if wanted else others
                self.client.update(self.kind(ResourceFlavor), body)

    # ---- ClusterQueues

    def takes(self, name: str) -> None:
        """Its finalizer, by an update of the whole object as Kueue's controller makes it."""
        while True:
            body = self.raw(ClusterQueue, name)
            body["metadata"].setdefault("finalizers", []).append(IN_USE)
            with suppress(Conflict):  # as a controller does it: again, where somebody wrote meanwhile
                self.client.update(self.kind(ClusterQueue), body)
                return

    def judges(self, name: str) -> str:
        """Whether the queue is active; the reason that Kueue gives."""
        queue = self.queue(name)
        assert queue is not None
        reason, message = self._judged(queue)
        said = {
            "type": ACTIVE,
            "status": "True" if reason == "Ready" else "False",
            "reason": reason,
            "message": message,
            "lastTransitionTime": WHEN,
        }
        self.client.patch(
            self.kind(ClusterQueue), name, {"status": {"conditions": [said]}}, subresource="status"
        )
        return reason

    def counts(self, name: str) -> Mapping[tuple[str, str], int]:
        """What it says that is reserved of the queue: by flavor and resource, less what was given back."""
        total: Counter[tuple[str, str]] = Counter()
        for raw in self.client.list(self.kind(Workload))[0]:
            each = Workload.decode(raw)
            if each.status.admission is None or each.status.admission.cluster_queue != name:
                continue
            back = {one.name: one.count for one in each.status.reclaimable_pods}
            for some in each.status.admission.pod_set_assignments:
                left = (some.count or 1) - back.get(some.name, 0)
                for resource, amount in some.resource_usage.items():
                    used = units(resource, amount) * left // (some.count or 1)
                    total[some.flavors[resource], resource] += used
        flavors: dict[str, list[Json]] = {}
        for (flavor, resource), value in sorted(total.items()):
            flavors.setdefault(flavor, []).append({"name": resource, "total": written(resource, value)})
        said = [{"name": flavor, "resources": resources} for flavor, resources in flavors.items()]
        status = {"status": {"flavorsReservation": said}}
        self.client.patch(self.kind(ClusterQueue), name, status, subresource="status")
        return total

    def releases(self, name: str) -> None:
        """Nobody holds its quota any more."""
        self.client.patch(self.kind(ClusterQueue), name, {"metadata": {"finalizers": None}})

    def _judged(self, queue: ClusterQueue) -> tuple[str, str]:
        if queue.deleting:
            return "Terminating", "Can't admit new workloads; clusterQueue is terminating"
        if queue.spec.stop_policy != "None":
            return "Stopped", "Can't admit new workloads: is stopped."
        for group in queue.spec.resource_groups:
            for flavor in group.flavors:
                if not self._has(ResourceFlavor, flavor.name):
                    return (
                        "FlavorNotFound",
                        f"Can't admit new workloads: references missing ResourceFlavor(s): {flavor.name}.",
                    )
        strategy = queue.spec.admission_checks_strategy
        for rule in strategy.admission_checks if strategy else ():
            if not self._has(AdmissionCheck, rule.name):
                return "AdmissionCheckNotFound", f"references missing AdmissionCheck(s): {rule.name}."
            check = AdmissionCheck.decode(self.raw(AdmissionCheck, rule.name))
            said = condition(check.status.conditions, ACTIVE)
            if said is None or said.status != "True":
                return "AdmissionCheckInactive", f"references inactive AdmissionCheck(s): {rule.name}."
        return "Ready", "Can admit new workloads"

    def _has(self, model: type[Any], name: str) -> bool:
        try:
            self.raw(model, name)
        except NotFound:
            return False
        return True

    # ---- Workloads

    def reserves(
        self,
        name: str,
        queue: str,
        usage: Mapping[str, Mapping[str, str]],
        *,
        namespace: str = "default",
        pods: int = 1,
    ) -> None:
        """Quota for one pod set, main: flavor → resource → amount; and its queue's checks are asked."""
        assigned = {resource: flavor for flavor, amounts in usage.items() for resource in amounts}
        amounts = {resource: amount for each in usage.values() for resource, amount in each.items()}
        cluster_queue = self.queue(queue)
        assert cluster_queue is not None
        strategy = cluster_queue.spec.admission_checks_strategy
        before = {each.name: each for each in self.workload(name, namespace).status.admission_checks}
        checks = []
        for rule in strategy.admission_checks if strategy else ():
            entry: Json = {
                "name": rule.name,
                "state": "Pending",
                "message": "",
                "lastTransitionTime": WHEN,
            }
            if rule.name in before and before[rule.name].retry_count:
                entry["retryCount"] = before[rule.name].retry_count
            checks.append(entry)
        self._status(
            name,
            namespace,
            {
                "admission": {
                    "clusterQueue": queue,
                    "podSetAssignments": [
                        {"name": "main", "flavors": assigned, "resourceUsage": amounts, "count": pods}
                    ],
                },
                "admissionChecks": checks,
            },
            QuotaReserved=(True, QUOTA_RESERVED, f"Quota reserved in ClusterQueue {queue}"),
            Evicted=(False, QUOTA_RESERVED, "Previously: nothing"),
        )

    def settles(self, name: str, *, namespace: str = "default") -> str:
        """What follows from the checks' states: admitted, evicted, or nothing yet. Quota stays reserved
        until whoever runs it `stops`; a Workload that no job runs has it until it is deleted."""
        workload = self.workload(name, namespace)
        checks = workload.status.admission_checks
        asked = sorted(each.name for each in workload.spec.pod_sets)
        for check in checks:
            updated = sorted(each.name for each in check.pod_set_updates)
            assert updated in ([], asked), "Kueue's webhook wants an update for each pod set, or none"
        states = {each.state for each in checks}
        if "Retry" in states:
            counted = [
                {
                    "name": each.name,
                    "state": "Pending",
                    "message": "Reset to Pending after eviction. Previously: Retry",
                    "lastTransitionTime": WHEN,
                    "retryCount": each.retry_count + 1,
                }
                for each in checks
            ]
            self._status(
                name,
                namespace,
                {"admissionChecks": counted},
                Evicted=(True, "AdmissionCheck", "At least one admission check is false"),
            )
            return "evicted"
        if states <= {"Ready"}:
            self._status(name, namespace, {}, Admitted=(True, ADMITTED, "The workload is admitted"))
            return "admitted"
        return "waits"

    def evicts(self, name: str, reason: str, message: str, *, namespace: str = "default") -> None:
        """For another one: whoever runs it ends it, and gives its quota back."""
        self._status(
            name,
            namespace,
            {},
            Evicted=(True, "Preempted", message),
            Preempted=(True, reason, message),
            **({"Admitted": NOT_CHECKED} if self._is_admitted(name, namespace) else {}),
        )

    def stops(self, name: str, *, namespace: str = "default") -> None:
        """The job of an evicted one has ended its pods: its quota is free, and it queues again."""
        self._status(
            name,
            namespace,
            {"admission": None},
            QuotaReserved=(False, "Pending", "At least one admission check is false"),
            **({"Admitted": NOT_CHECKED} if self._is_admitted(name, namespace) else {}),
        )

    def _is_admitted(self, name: str, namespace: str) -> bool:
        """Kueue says of none that it is not admitted, but where it was."""
        said = condition(self.workload(name, namespace).status.conditions, ADMITTED)
        return said is not None and said.status == "True"

    def finishes(self, name: str, *, namespace: str = "default") -> None:
        self._status(name, namespace, {}, Finished=(True, "Succeeded", "Job finished successfully"))

    def workload(self, name: str, namespace: str = "default") -> Workload:
        return Workload.decode(self.raw(Workload, name, namespace))

    def _status(self, name: str, namespace: str, more: Json, **said: tuple[bool, str, str]) -> None:
        known = self.raw(Workload, name, namespace).get("status", {}).get("conditions", [])
        made = [
            {
                "type": kind,
                "status": "True" if true else "False",
                "reason": reason,
                "message": message,
                "lastTransitionTime": WHEN,
            }
            for kind, (true, reason, message) in said.items()
        ]
        kept = [each for each in known if each["type"] not in said]
        self.client.patch(
            self.kind(Workload),
            name,
            {"status": {**more, "conditions": [*kept, *made]}},
            namespace=namespace,
            subresource="status",
        )
