"""Tables of each kind: a pod's state in a word, the cells, and JSONPath in columns."""

from __future__ import annotations

from typing import Any

import pytest

from local.kube import Cluster
from local.kube.jsonpath import compiled
from local.kube.podstatus import summary

from .objects import NODES, NOW, PODS, Clock, configmap, pod, send

Obj = dict[str, Any]
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
CORE, APPS = "/api/v1/namespaces/default", "/apis/apps/v1/namespaces/default"


def rows(cluster: Cluster, path: str) -> list[Obj]:
    """The rows of a table, each as column → cell."""
    table = send(cluster, "GET", path, Accept=TABLE).json()
    heads = [column["name"] for column in table["columnDefinitions"]]
    return [dict(zip(heads, row["cells"], strict=True)) for row in table["rows"]]


def container(name: str = "c", *, ready: bool = False, restarts: int = 0, **state: Any) -> Obj:
    return {"name": name, "ready": ready, "restartCount": restarts, "state": state}


def shown(status: Obj, *, deleted: bool = False, **spec: Any) -> tuple[str, str, str]:
    meta = {"name": "p", **({"deletionTimestamp": "2023-11-14T22:13:20Z"} if deleted else {})}
    return summary({"metadata": meta, "spec": {"containers": [{"name": "c"}], **spec}, "status": status}, NOW)


RUNNING = container(ready=True, running={})


@pytest.mark.parametrize(
    ("status", "spec", "text"),
    [
        ({"phase": "Pending"}, {}, ("0/1", "Pending", "0")),
        ({"phase": "Running", "containerStatuses": [RUNNING]}, {}, ("1/1", "Running", "0")),
        (
            {"phase": "Pending", "containerStatuses": [container(waiting={"reason": "ImagePullBackOff"})]},
            {},
            ("0/1", "ImagePullBackOff", "0"),
        ),
        (
            {"phase": "Failed", "containerStatuses": [container(terminated={"exitCode": 3})]},
            {},
            ("0/1", "ExitCode:3", "0"),
        ),
        (
            {"phase": "Failed", "containerStatuses": [container(terminated={"signal": 9, "exitCode": 137})]},
            {},
            ("0/1", "Signal:9", "0"),
        ),
        (
            {
                "phase": "Succeeded",
                "containerStatuses": [container(terminated={"reason": "Completed", "exitCode": 0})],
            },
            {},
            ("0/1", "Completed", "0"),
        ),
        (
            {"phase": "Pending", "initContainerStatuses": [container("i", running={})]},
            {"initContainers": [{"name": "i"}, {"name": "j"}]},
            ("0/1", "Init:0/2", "0"),
        ),
        (
            {
                "phase": "Pending",
                "initContainerStatuses": [container("i", terminated={"exitCode": 1}, restarts=2)],
            },
            {"initContainers": [{"name": "i"}]},
            ("0/1", "Init:ExitCode:1", "2"),
        ),
        (
            {
                "phase": "Pending",
                "conditions": [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}],
            },
            {},
            ("0/1", "SchedulingGated", "0"),
        ),
        ({"phase": "Failed", "reason": "Evicted"}, {}, ("0/1", "Evicted", "0")),
    ],
)
def test_a_pods_state_is_its_status_column(status: Obj, spec: Obj, text: tuple[str, str, str]) -> None:
    assert shown(status, **spec) == text


def test_a_deleted_pod_is_terminating_unless_it_has_ended() -> None:
    assert shown({"phase": "Running", "containerStatuses": [RUNNING]}, deleted=True)[1] == "Terminating"
    assert shown({"phase": "Succeeded"}, deleted=True)[1] == "Succeeded"


def test_restarts_show_the_time_since_the_last() -> None:
    ended = {"terminated": {"finishedAt": "2023-11-14T22:12:20Z"}}
    again = {**container(ready=True, restarts=2, running={}), "lastState": ended}
    assert shown({"phase": "Running", "containerStatuses": [again]})[2] == "2 (60s ago)"


def test_pods_and_their_wide_columns(cluster: Cluster, clock: Clock) -> None:
    cluster.create(PODS, pod("a", node="n1"))
    clock.now += 125
    (row,) = rows(cluster, PODS)
    assert row == {
        "Name": "a",
        "Ready": "0/1",
        "Status": "Pending",
        "Restarts": "0",
        "Age": "2m5s",
        "IP": "<none>",
        "Node": "n1",
        "Nominated Node": "<none>",
        "Readiness Gates": "<none>",
    }


def test_a_succeeded_pod_has_the_row_condition_completed(cluster: Cluster) -> None:
    cluster.create(PODS, pod("a"))
    cluster.patch(f"{PODS}/a/status", {"status": {"phase": "Succeeded"}})
    table = send(cluster, "GET", f"{PODS}/a", Accept=TABLE).json()
    assert table["rows"][0]["conditions"][0]["type"] == "Completed"


@pytest.mark.parametrize(
    ("spec", "conditions", "status"),
    [
        ({}, [], "Unknown"),
        ({}, [{"type": "Ready", "status": "True"}], "Ready"),
        ({}, [{"type": "Ready", "status": "False"}], "NotReady"),
        ({"unschedulable": True}, [{"type": "Ready", "status": "True"}], "Ready,SchedulingDisabled"),
    ],
)
def test_nodes(cluster: Cluster, spec: Obj, conditions: list[Obj], status: str) -> None:
    labels = {"node-role.kubernetes.io/worker": "", "kubernetes.io/role": "edge"}
    addresses = [{"type": "InternalIP", "address": "10.0.0.1"}]
    node_status = {"conditions": conditions, "addresses": addresses}
    cluster.create(NODES, {"metadata": {"name": "n", "labels": labels}, "spec": spec, "status": node_status})
    (row,) = rows(cluster, NODES)
    assert (row["Status"], row["Roles"], row["Internal-IP"]) == (status, "edge,worker", "10.0.0.1")


POD_SPEC = {"containers": [{"name": "c", "image": "i:1"}, {"name": "d", "image": "j:2"}]}
WORKLOAD = {
    "metadata": {"name": "w"},
    "spec": {
        "replicas": 2,
        "selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": POD_SPEC},
    },
}
ONCE = {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}}


@pytest.mark.parametrize(
    ("path", "obj", "cells"),
    [
        (
            f"{APPS}/deployments",
            WORKLOAD,
            {"Ready": "0/2", "Containers": "c,d", "Images": "i:1,j:2", "Selector": "a=b"},
        ),
        (f"{APPS}/replicasets", WORKLOAD, {"Desired": 2, "Current": 0, "Ready": 0}),
        (f"{APPS}/statefulsets", WORKLOAD, {"Ready": "0/2"}),
        (f"{APPS}/daemonsets", WORKLOAD, {"Desired": 0, "Node Selector": "<none>"}),
        (f"{CORE}/configmaps", configmap("w", a="1", b="2"), {"Data": 2}),
        (
            f"{CORE}/secrets",
            {"metadata": {"name": "w"}, "stringData": {"a": "b"}},
            {"Type": "Opaque", "Data": 1},
        ),
        (
            f"{CORE}/services",
            {"metadata": {"name": "w"}, "spec": {"clusterIP": "10.96.0.9", "ports": [{"port": 80}]}},
            {"Type": "ClusterIP", "Cluster-IP": "10.96.0.9", "External-IP": "<none>", "Port(s)": "80/TCP"},
        ),
        (
            "/apis/batch/v1/namespaces/default/jobs",
            {"metadata": {"name": "w"}, "spec": ONCE},
            {"Status": "Running", "Completions": "0/1"},
        ),
        (
            "/apis/batch/v1/namespaces/default/cronjobs",
            {"metadata": {"name": "w"}, "spec": {"schedule": "@daily", "jobTemplate": {"spec": ONCE}}},
            {"Schedule": "@daily", "Suspend": "False", "Active": 0, "Last Schedule": "<none>"},
        ),
        (
            "/apis/policy/v1/namespaces/default/poddisruptionbudgets",
            {"metadata": {"name": "w"}, "spec": {"maxUnavailable": "50%"}},
            {"Min Available": "N/A", "Max Unavailable": "50%", "Allowed Disruptions": 0},
        ),
        (
            "/apis/coordination.k8s.io/v1/namespaces/default/leases",
            {"metadata": {"name": "w"}, "spec": {"holderIdentity": "me"}},
            {"Holder": "me"},
        ),
        (
            "/apis/storage.k8s.io/v1/storageclasses",
            {
                "metadata": {
                    "name": "w",
                    "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
                },
                "provisioner": "p",
            },
            {"Name": "w (default)", "ReclaimPolicy": "Delete", "VolumeBindingMode": "Immediate"},
        ),
        (
            "/apis/networking.k8s.io/v1/namespaces/default/ingresses",
            {"metadata": {"name": "w"}, "spec": {"rules": [{"host": name} for name in "abcde"]}},
            {"Class": "<none>", "Hosts": "a,b,c + 2 more...", "Ports": "80"},
        ),
        ("/api/v1/namespaces", {"metadata": {"name": "w"}}, {"Status": "Active"}),
        (
            "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
            {
                "metadata": {"name": "w"},
                "roleRef": {"kind": "ClusterRole", "name": "r"},
                "subjects": [{"kind": "ServiceAccount", "name": "s", "namespace": "n"}],
            },
            {"Role": "ClusterRole/r", "ServiceAccounts": "n/s"},
        ),
    ],
)
def test_the_cells_of_a_kind(cluster: Cluster, path: str, obj: Obj, cells: Obj) -> None:
    cluster.create(path, obj)
    (row,) = [listed for listed in rows(cluster, path) if listed["Name"].startswith("w")]
    assert {name: row[name] for name in cells} == cells


def test_a_kind_without_columns_shows_its_creation_time(cluster: Cluster) -> None:
    path = "/apis/storage.k8s.io/v1/csidrivers"
    cluster.create(path, {"metadata": {"name": "d"}, "spec": {}})
    assert rows(cluster, path) == [{"Name": "d", "Created At": "2023-11-14T22:13:20Z"}]


DOCUMENT = {
    "spec": {"list": [{"type": "A", "v": 1}, {"type": "B", "v": 2}], "dotted.name": "x", "map": {"k": "v"}}
}


@pytest.mark.parametrize(
    ("path", "values"),
    [
        (".spec.list[0].v", [1]),
        (".spec.list[-1].v", [2]),
        (".spec.list[*].v", [1, 2]),
        (".spec.list[9].v", []),
        (".spec.list[?(@.type=='B')].v", [2]),
        ('.spec.list[?(@.type=="C")].v', []),
        (".spec.dotted\\.name", ["x"]),
        (".spec['dotted.name']", ["x"]),
        (".spec.map.*", ["v"]),
        (".spec.none.deeper", []),
        ("spec[", []),
    ],
)
def test_json_paths(path: str, values: list[Any]) -> None:
    assert compiled(path)(DOCUMENT) == values
