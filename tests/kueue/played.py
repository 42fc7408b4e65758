"""A stand-in for Kueue: the statuses, finalizers and evictions that Kueue writes, and nothing else.

Observed with a real one: its first write to a ClusterQueue makes it a manager of the whole spec; an
AdmissionCheck without Active=True makes each queue that names it inactive; quota is reserved before
checks are evaluated. The rules of workloads are those of Kueue v0.19.2
(pkg/controller/core/workload_controller.go, pkg/workload/evict/evict.go,
pkg/controller/jobframework/reconciler.go, pkg/cache/queue/cluster_queue.go):

- `Retry` evicts, unless `requeueAfterSeconds` or `status.requeueState.requeueAt` is a time that is still
  to come: then the reconciler returns before it evicts, and the workload keeps its quota until that time.
- An evicted workload keeps `status.admission` until the reconciler of its job clears it. A Workload without a
  job keeps it. Admitted stays True until then.
- An evicted workload queues again once `requeueAt` is gone or past, and is queued at once without one. If
  another manager applied `requeueAt`, Kueue cannot remove it by its own apply: the workload stays out of the
  queue until that manager removes the field.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from broker.apis import names
from broker.apis.kueue import (
    ACTIVE,
    ADMITTED,
    EVICTED,
    FINISHED,
    QUOTA_RESERVED,
    REQUEUED,
    VERSIONS,
    AdmissionCheck,
    ClusterQueue,
    LocalQueue,
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
RESET = "Reset to Pending after eviction. Previously: "
UNRESERVED = (
    False,
    "NoReservationUnsatisfiedChecks",
    "The workload has no reservation and not all checks ready",
)


class Kueue:
    """Each method performs one of Kueue's actions. `now`: Kueue's clock."""

    def __init__(
        self,
        transport: Transport,
        *,
        version: str = VERSIONS[0],
        now: Callable[[], datetime] = lambda: datetime.fromisoformat(WHEN),
    ) -> None:
        self.client = Client(transport, field_manager="kueue")
        self._version = version
        self._now = now

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
        """Its finalizer on each flavor, until a deleted one is named by no ClusterQueue (Kueue's
        pkg/controller/core/resourceflavor_controller.go)."""
        queues = [ClusterQueue.decode(raw) for raw in self.client.list(self.kind(ClusterQueue))[0]]
        groups = [group for queue in queues for group in queue.spec.resource_groups]
        used = {flavor.name for group in groups for flavor in group.flavors}
        for body in self.client.list(self.kind(ResourceFlavor))[0]:
            meta = body["metadata"]
            held, needed = IN_USE in meta.get("finalizers", ()), True
            if meta.get("deletionTimestamp"):
                needed = held and meta["name"] in used
            if held != needed:
                others = [finalizer for finalizer in meta.get("finalizers", ()) if finalizer != IN_USE]
                meta["finalizers"] = [*others, IN_USE] if needed else others
                self.client.update(self.kind(ResourceFlavor), body)

    # ---- ClusterQueues

    def takes(self, name: str) -> None:
        """Its finalizer, by an update of the whole object as Kueue's controller makes it."""
        while True:
            body = self.raw(ClusterQueue, name)
            body["metadata"].setdefault("finalizers", []).append(IN_USE)
            with suppress(Conflict):  # as in a controller: repeated after a conflict
                self.client.update(self.kind(ClusterQueue), body)
                return

    def judges(self, name: str) -> str:
        """Whether the queue is active; returns Kueue's reason."""
        queue = self.queue(name)
        assert queue is not None
        reason, message = self._judged(queue)
        active = {
            "type": ACTIVE,
            "status": "True" if reason == "Ready" else "False",
            "reason": reason,
            "message": message,
            "lastTransitionTime": WHEN,
        }
        self.client.patch(
            self.kind(ClusterQueue), name, {"status": {"conditions": [active]}}, subresource="status"
        )
        return reason

    def counts(self, name: str) -> Mapping[tuple[str, str], int]:
        """The reserved quota of the queue in its status, by flavor and resource, less released quota."""
        total = self._used(name)
        flavors: dict[str, list[Json]] = {}
        for (flavor, resource), value in sorted(total.items()):
            flavors.setdefault(flavor, []).append({"name": resource, "total": written(resource, value)})
        reservation = [{"name": flavor, "resources": resources} for flavor, resources in flavors.items()]
        status = {"status": {"flavorsReservation": reservation}}
        self.client.patch(self.kind(ClusterQueue), name, status, subresource="status")
        return total

    def _used(self, name: str) -> Counter[tuple[str, str]]:
        total: Counter[tuple[str, str]] = Counter()
        for raw in self.client.list(self.kind(Workload))[0]:
            workload = Workload.decode(raw)
            admission = workload.status.admission
            if admission is None or admission.cluster_queue != name or _is(workload, FINISHED):
                continue
            back = {pods.name: pods.count for pods in workload.status.reclaimable_pods}
            for assignment in admission.pod_set_assignments:
                left = (assignment.count or 1) - back.get(assignment.name, 0)
                for resource, amount in assignment.resource_usage.items():
                    used = units(resource, amount) * left // (assignment.count or 1)
                    total[assignment.flavors[resource], resource] += used
        return total

    def releases(self, name: str) -> None:
        """Releases all quota of the queue."""
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
            active = condition(check.status.conditions, ACTIVE)
            if active is None or active.status != "True":
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
        """Reserves quota for one pod set, main: flavor → resource → amount; the queue's checks wait."""
        assigned = {resource: flavor for flavor, amounts in usage.items() for resource in amounts}
        amounts = {
            resource: amount
            for amounts_by_resource in usage.values()
            for resource, amount in amounts_by_resource.items()
        }
        assignment = {"name": "main", "flavors": assigned, "resourceUsage": amounts, "count": pods}
        self._reserve(self.workload(name, namespace), queue, [assignment])

    def _reserve(self, workload: Workload, queue: str, assignments: list[Json]) -> None:
        """The scheduler's reservation, only for workloads in its queue."""
        assert self.is_queued(workload), f"{workload.key} is not in Kueue's queue"
        cluster_queue = self.queue(queue)
        assert cluster_queue is not None
        strategy = cluster_queue.spec.admission_checks_strategy
        raw = self.raw(Workload, workload.name, workload.namespace)
        before = {check["name"]: check for check in raw.get("status", {}).get("admissionChecks", ())}
        checks = [
            before.get(rule.name)
            or {"name": rule.name, "state": "Pending", "message": "", "lastTransitionTime": self._when()}
            for rule in (strategy.admission_checks if strategy else ())
        ]
        conditions = {QUOTA_RESERVED: (True, QUOTA_RESERVED, f"Quota reserved in ClusterQueue {queue}")}
        for type_ in (EVICTED, "Preempted"):
            if (was := condition(workload.status.conditions, type_)) is not None and was.status == "True":
                conditions[type_] = (False, QUOTA_RESERVED, f"Previously: {was.message}")
        status: Json = {
            "admission": {"clusterQueue": queue, "podSetAssignments": assignments},
            "admissionChecks": checks,
        }
        self._status(workload.name, workload.namespace, status, **conditions)

    def is_queued(self, workload: Workload) -> bool:
        """Whether the workload is in the scheduler's queue."""
        status = workload.status
        return not (
            workload.deleting
            or status.admission is not None
            or _is(workload, FINISHED)
            or not workload.spec.active
            or _has_status(workload, REQUEUED, "False")
            or self._backs_off(workload)
        )

    def decides(self, name: str, *, namespace: str = "default") -> str:
        """The reconciler of workloads: admits, evicts, requeues, or waits.

        Quota stays reserved until the job `stops`; a Workload without a job has it until it is
        deleted.
        """
        workload = self.workload(name, namespace)
        checks = workload.status.admission_checks
        pod_sets = sorted(pod_set.name for pod_set in workload.spec.pod_sets)
        for check in checks:
            updated = sorted(pod_set.name for pod_set in check.pod_set_updates)
            assert updated in ([], pod_sets), "Kueue's webhook requires an update for each pod set, or none"
        if (until := self._retry_time(workload)) is not None:
            self._status(
                name, namespace, {"requeueState": {"requeueAt": until.strftime("%Y-%m-%dT%H:%M:%SZ")}}
            )
            return "waits"
        if self._backs_off(workload):
            return "waits"
        if _has_status(workload, REQUEUED, "False") and self._requeue(workload):
            return "requeued"
        if workload.status.admission is None or _is(workload, EVICTED):
            return "waits"
        states = {check.state for check in checks}
        if states <= {"Ready"}:
            if not _is(workload, ADMITTED):
                self._status(name, namespace, {}, Admitted=(True, ADMITTED, "The workload is admitted"))
            return "admitted"
        retried = sorted((check for check in checks if check.state == "Retry"), key=lambda check: check.name)
        if not retried:
            return "waits"
        why = "; ".join(
            f'"{check.name}" ({check.message})' if check.message else f'"{check.name}"' for check in retried
        )
        noun = "AdmissionChecks" if len(retried) > 1 else "AdmissionCheck"
        self._evict(workload, "AdmissionCheck", f"Evicted due to {noun} in Retry state: {why}")
        return "evicted"

    def evicts(self, name: str, reason: str, message: str, *, namespace: str = "default") -> None:
        """For another workload. The job ends its pods, and then gives the quota back."""
        self._evict(self.workload(name, namespace), "Preempted", message, Preempted=(True, reason, message))

    def stops(self, name: str, *, namespace: str = "default") -> None:
        """The reconciler of the evicted one's job: its pods have ended, and its quota is free."""
        workload = self.workload(name, namespace)
        evicted = condition(workload.status.conditions, EVICTED)
        assert evicted is not None and evicted.status == "True"
        more: Json = {"admission": None}
        if was := _is(workload, ADMITTED):
            more["accumulatedPastExecutionTimeSeconds"] = 0
        self._status(
            name,
            namespace,
            more,
            Requeued=(evicted.reason == "Preempted", evicted.reason, evicted.message),
            QuotaReserved=(False, "Pending", evicted.message),
            **({"Admitted": UNRESERVED} if was else {}),
        )

    def turns(self, *, namespace: str = "default") -> None:
        """All of Kueue's own actions, until nothing more follows.

        Workloads are reconciled, evicted jobs stop, and the scheduler reserves free quota.
        Workloads of the broker have no job.
        """
        before = None
        while (now := self.client.list(self.kind(Workload))[0]) != before:
            before = now
            for workload in map(Workload.decode, now):
                self.decides(workload.name, namespace=namespace)
            for workload in map(Workload.decode, self.client.list(self.kind(Workload))[0]):
                has_job = names.DEDICATED not in workload.labels
                if has_job and _is(workload, EVICTED) and workload.status.admission is not None:
                    self.stops(workload.name, namespace=namespace)
            self._schedule(namespace)

    def _schedule(self, namespace: str) -> None:
        """Reserves quota in the order of priority and age, as BestEffortFIFO: a workload that does not
        fit blocks none."""
        locals_ = {
            local_queue["metadata"]["name"]: local_queue
            for local_queue in self.client.list(self.kind(LocalQueue))[0]
        }
        waiting = [Workload.decode(raw) for raw in self.client.list(self.kind(Workload))[0]]
        for workload in sorted(waiting, key=lambda workload_: (-workload_.spec.priority, workload_.name)):
            local = locals_.get(workload.spec.queue_name)
            queue = self.queue(local["spec"]["clusterQueue"]) if local else None
            if queue is None or not self.is_queued(workload) or self._judged(queue)[0] != "Ready":
                continue
            if assignments := self._assign(workload, queue):
                self._reserve(workload, queue.name, assignments)

    def _assign(self, workload: Workload, queue: ClusterQueue) -> list[Json]:
        """Each pod set in the first flavor of each group that has room; empty: the workload does not fit."""
        used = self._used(queue.name)
        assignments = []
        raw = self.raw(Workload, workload.name, workload.namespace)
        for pods in raw["spec"]["podSets"]:
            total: Counter[str] = Counter()
            for container in pods["template"]["spec"].get("containers", ()):
                for name, amount in container.get("resources", {}).get("requests", {}).items():
                    total[name] += units(name, amount) * pods["count"]
            flavors: dict[str, str] = {}
            for group in queue.spec.resource_groups:
                amounts = {name: total[name] for name in group.covered_resources if total[name]}
                for flavor in group.flavors if amounts else ():
                    room = {
                        resource.name: units(resource.name, resource.nominal_quota)
                        for resource in flavor.resources
                    }
                    if all(used[flavor.name, name] + value <= room[name] for name, value in amounts.items()):
                        flavors |= dict.fromkeys(amounts, flavor.name)
                        break
            if set(flavors) != {name for name, value in total.items() if value}:
                return []
            for name, flavor_name in flavors.items():
                used[flavor_name, name] += total[name]
            usage = {name: written(name, total[name]) for name in flavors}
            assignments.append(
                {"name": pods["name"], "flavors": flavors, "resourceUsage": usage, "count": pods["count"]}
            )
        return assignments

    def finishes(self, name: str, *, namespace: str = "default") -> None:
        self._status(name, namespace, {}, Finished=(True, "Succeeded", "Job finished successfully"))

    def workload(self, name: str, namespace: str = "default") -> Workload:
        return Workload.decode(self.raw(Workload, name, namespace))

    def _evict(
        self, workload: Workload, reason: str, message: str, **conditions: tuple[bool, str, str]
    ) -> None:
        checks = []
        for raw in self.raw(Workload, workload.name, workload.namespace)["status"].get("admissionChecks", ()):
            if raw["state"] != "Pending":
                again: Json = {
                    "name": raw["name"],
                    "state": "Pending",
                    "message": f"{RESET}{raw['state']}",
                    "lastTransitionTime": self._when(),
                }
                if "requeueAfterSeconds" in raw:
                    again["requeueAfterSeconds"] = raw["requeueAfterSeconds"]
                if raw["state"] == "Retry":
                    again["retryCount"] = raw.get("retryCount", 0) + 1
                raw = again
            checks.append(raw)
        more = {"admissionChecks": checks}
        self._status(workload.name, workload.namespace, more, Evicted=(True, reason, message), **conditions)

    def _requeue(self, workload: Workload) -> bool:
        """Whether a workload that a check or its pods' time-out evicted may queue again, and now does."""
        was = condition(workload.status.conditions, REQUEUED)
        if was is None or was.reason not in ("AdmissionCheck", "PodsReadyTimeout"):
            return False
        state = workload.status.requeue_state
        if state is not None and state.requeue_at is not None:
            if self._is_anothers(workload):
                return False
            self._status(workload.name, workload.namespace, {"requeueState": None})
        requeued = (True, "BackoffFinished", "The workload backoff was finished")
        self._status(workload.name, workload.namespace, {}, Requeued=requeued)
        return True

    def _is_anothers(self, workload: Workload) -> bool:
        """Whether another manager than Kueue wrote requeueAt: Kueue's apply leaves it unchanged then."""
        meta = self.raw(Workload, workload.name, workload.namespace)["metadata"]
        return any(
            not entry["manager"].startswith("kueue")
            and "f:requeueState" in entry.get("fieldsV1", {}).get("f:status", {})
            for entry in meta.get("managedFields", ())
        )

    def _backs_off(self, workload: Workload) -> bool:
        state = workload.status.requeue_state
        return state is not None and state.requeue_at is not None and state.requeue_at > self._now()

    def _retry_time(self, workload: Workload) -> datetime | None:
        """The retry time of the checks with Retry, if Kueue has not recorded it yet."""
        times = [
            check.last_transition_time + timedelta(seconds=check.requeue_after_seconds)
            for check in workload.status.admission_checks
            if check.state == "Retry"
            and check.requeue_after_seconds is not None
            and check.last_transition_time
        ]
        state = workload.status.requeue_state
        known = state.requeue_at if state is not None else None
        latest = max(times, default=None)
        if latest is None or latest <= self._now() or (known is not None and known >= latest):
            return None
        return latest

    def _when(self) -> str:
        return self._now().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def _status(self, name: str, namespace: str, more: Json, **conditions: tuple[bool, str, str]) -> None:
        known = self.raw(Workload, name, namespace).get("status", {}).get("conditions", [])
        status = {condition_["type"]: condition_["status"] for condition_ in known}
        since = {condition_["type"]: condition_["lastTransitionTime"] for condition_ in known}
        changed = [
            {
                "type": kind,
                "status": str(true),
                "reason": reason,
                "message": message,
                "lastTransitionTime": since[kind] if status.get(kind) == str(true) else self._when(),
            }
            for kind, (true, reason, message) in conditions.items()
        ]
        kept = [condition_ for condition_ in known if condition_["type"] not in conditions]
        self.client.patch(
            self.kind(Workload),
            name,
            {"status": {**more, "conditions": [*kept, *changed]}},
            namespace=namespace,
            subresource="status",
        )


def _is(workload: Workload, type_: str) -> bool:
    return _has_status(workload, type_, "True")


def _has_status(workload: Workload, type_: str, status: str) -> bool:
    condition_ = condition(workload.status.conditions, type_)
    return condition_ is not None and condition_.status == status
