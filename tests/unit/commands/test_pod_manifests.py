"""The pods that manifests would create beside those that their workloads have already."""

from __future__ import annotations

from typing import Any

import pytest

from broker.apis.core import Pod
from broker.commands.plan.pod_manifests import pods_of, remarks


def workload(kind: str, name: str = "web", **spec: Any) -> dict[str, Any]:
    return {"kind": kind, "metadata": {"name": name, "namespace": "n"}, "spec": spec}


def pod(name: str, owner: tuple[str, str] = ("", ""), *, phase: str = "Running", jobset: str = "") -> Pod:
    owners = [{"apiVersion": "v1", "kind": owner[0], "name": owner[1], "uid": "u"}]
    labels = {"jobset.sigs.k8s.io/jobset-name": jobset} if jobset else {}
    meta = {"name": name, "namespace": "n", "ownerReferences": owners, "labels": labels}
    return Pod.decode({"metadata": meta, "status": {"phase": phase}})


PARTS = [{"name": "w", "template": {"spec": {"parallelism": 3}}}]


@pytest.mark.covers("USR-01")
@pytest.mark.parametrize(
    ("document", "existing", "new"),
    [
        (workload("Deployment", replicas=3), [pod("web-5d9-x", ("ReplicaSet", "web-5d9"))], 2),
        (workload("Deployment", replicas=3), [pod("web-api-5d9-x", ("ReplicaSet", "web-api-5d9"))], 3),
        (workload("Deployment", replicas=3), [pod("o", ("ReplicaSet", "web-5d9"), phase="Failed")], 3),
        (workload("Job", parallelism=3), [pod("web-x", ("Job", "web"), phase="Succeeded")], 2),
        (workload("JobSet", replicatedJobs=PARTS), [pod("web-w-0-x", ("Job", "web-w-0"), jobset="web")], 2),
        (workload("StatefulSet", replicas=2), [pod("web-0", ("StatefulSet", "web"))], 2),
    ],
    ids=["deployment", "of another deployment", "failed", "done", "jobset", "known by its name"],
)
def test_pods_of_a_running_workload_are_not_counted_twice(
    document: dict[str, Any], existing: list[Pod], new: int
) -> None:
    assert len(pods_of([document], existing)) == new


def test_remark_counts_the_pods_that_exist() -> None:
    existing = [pod(f"web-5d9-{n}", ("ReplicaSet", "web-5d9")) for n in range(2)]
    (line,) = remarks([workload("Deployment", replicas=3)], existing)
    assert line == "Deployment n/web: 2 pods of it exist already, and only the others are planned"
