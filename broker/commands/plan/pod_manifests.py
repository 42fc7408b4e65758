"""The pods that manifests would create: of Pods and of workloads.

A workload's controller would create them in a moment; a CronJob is expanded to one run. Pods of the workload
that exist already are not created again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from pydantic import ValidationError

from broker.apis.core import Pod
from broker.apis.workloads import PodTemplate
from broker.commands.manifests import BadManifest
from broker.commands.plan.volumes import with_own_claims
from broker.placement.gangs import JOBSET
from broker.text import counted

Json = Mapping[str, Any]
MOST_PODS: Final = 100_000
# The kind of the owner of a workload's pods, if their names do not follow from its document.
_OWNERS: Final = {"Deployment": "ReplicaSet", "ReplicaSet": "ReplicaSet", "Job": "Job", "JobSet": "Job"}
# Kinds that make pods, and are not expanded.
UNREAD: Final = frozenset(
    {"ReplicationController", "PyTorchJob", "MPIJob", "RayCluster", "RayJob", "LeaderWorkerSet"}
)


def pods_of(documents: Iterable[Json], existing: Sequence[Pod] = ()) -> list[Pod]:
    """The pods that the documents would create beside those that exist. Raises BadManifest."""
    pods: list[Pod] = []
    for document in documents:
        meta = document.get("metadata") or {}
        try:
            every = _expanded(document, str(meta.get("namespace") or "default"), str(meta.get("name") or ""))
            pods += islice(every, len(existing_pods(document, existing)), None)
        except (ValidationError, AttributeError, TypeError, ValueError, KeyError) as error:
            raise BadManifest(
                f"{document['kind']} {meta.get('name')}: its pods cannot be read: {error}"
            ) from error
        if len(pods) > MOST_PODS:
            raise BadManifest(f"the files have more than {MOST_PODS} pods: plan fewer at once")
    return pods


def existing_pods(document: Json, pods: Iterable[Pod]) -> list[Pod]:
    """The pods of a workload that exist, run or have succeeded.

    A Deployment's pods belong to a ReplicaSet with its name and a hash. The pods of a StatefulSet have the
    names that its document gives, and count by these.
    """
    kind, meta = document["kind"], document.get("metadata") or {}
    namespace, name = meta.get("namespace") or "default", str(meta.get("name") or "")
    if kind not in _OWNERS:
        return []

    def owns(pod: Pod) -> bool:
        if kind == "JobSet":
            return pod.labels.get(JOBSET) == name
        owners = [owner.name for owner in pod.metadata.owner_references if owner.kind == _OWNERS[kind]]
        return any((owner.rpartition("-")[0] if kind == "Deployment" else owner) == name for owner in owners)

    return [
        pod
        for pod in pods
        if pod.namespace == namespace
        and not pod.deleting
        and (not pod.ended or (kind in ("Job", "JobSet") and pod.status.phase == "Succeeded"))
        and owns(pod)
    ]


def remarks(documents: Iterable[Json], existing: Sequence[Pod] = ()) -> list[str]:
    """Lines about workloads of which not all pods, or none, are planned. `there`: the pods that exist."""
    lines = []
    for document in documents:
        kind, meta = document["kind"], document.get("metadata") or {}
        name = f"{kind} {meta.get('namespace') or 'default'}/{meta.get('name')}"
        if count := len(existing_pods(document, existing)):
            lines.append(
                f"{name}: {counted(count, 'pod')} of it exist already, and only the others are planned"
            )
        if kind == "CronJob":
            lines.append(f"{name}: one run of it is planned")
        elif kind in UNREAD:
            lines.append(f"{name}: its pods are not planned; give its Pods or Jobs instead")
        elif kind in ("Job", "JobSet") and (document.get("spec") or {}).get("suspend"):
            lines.append(f"{name}: it is suspended, and is planned as if it were not")
    return lines


def _expanded(document: Json, namespace: str, name: str) -> Iterator[Pod]:
    kind, spec = document["kind"], document.get("spec") or {}
    if kind == "Pod" and document.get("apiVersion") == "v1":
        pod = Pod.decode(document)
        yield _named(pod, namespace, name, pod.labels)
    elif kind in ("Deployment", "ReplicaSet", "StatefulSet"):
        replicas = spec.get("replicas")
        copies = _copies(spec, 1 if replicas is None else int(replicas), namespace, name, {})
        yield from (with_own_claims(pod, spec) for pod in copies) if kind == "StatefulSet" else copies
    elif kind == "Job":
        yield from _copies(spec, _parallel(spec), namespace, name, {})
    elif kind == "CronJob":
        job = spec["jobTemplate"].get("spec") or {}
        yield from _copies(job, _parallel(job), namespace, f"{name}-run", {})
    elif kind == "JobSet":
        label = {JOBSET: name}
        for part in spec.get("replicatedJobs") or ():
            job = part["template"]["spec"]
            for number in range(int(part.get("replicas", 1))):
                yield from _copies(job, _parallel(job), namespace, f"{name}-{part['name']}-{number}", label)


def _parallel(job: Json) -> int:
    """The pods of a Job that run at once."""
    parallelism, completions = job.get("parallelism"), job.get("completions")
    most = 1 if parallelism is None else int(parallelism)
    return most if completions is None else min(most, int(completions))


def _copies(spec: Json, count: int, namespace: str, name: str, labels: Mapping[str, str]) -> Iterator[Pod]:
    template = PodTemplate.model_validate(spec.get("template") or {})
    for number in range(min(count, MOST_PODS + 1)):
        pod = template.pod(f"{name}-{number}", namespace)
        yield _named(pod, namespace, pod.name, {**pod.labels, **labels})


def _named(pod: Pod, namespace: str, name: str, labels: Mapping[str, str]) -> Pod:
    meta = {"namespace": namespace, "name": name, "uid": f"{namespace}/{name}", "labels": dict(labels)}
    return pod.model_copy(update={"metadata": pod.metadata.model_copy(update=meta)})
