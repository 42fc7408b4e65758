"""What people may do with the roles of OME's page and of the chart, as Kubernetes' own authorizer decides."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import yaml

from tests.controlplane.client import Api, Json
from tests.deploy import helm
from tests.peers.programs import until

RBAC = "/apis/rbac.authorization.k8s.io/v1"
REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
USER = "ana"
# The Role that OME's page on capacity reservations gives to those who use them, in their namespace.
PAGE = """
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: capacity-reservation-user
rules:
- apiGroups: ["ome.io"]
  resources: ["capacityreservations"]
  verbs: ["get", "list", "watch", "create", "update", "patch"]
- apiGroups: ["kueue.x-k8s.io"]
  resources: ["clusterqueues", "localqueues", "workloads"]
  verbs: ["get", "list", "watch"]
"""


def bind(api: Api, kind: str, role: Json, *, namespace: str = "") -> None:
    """The role, for the user: in a namespace, or everywhere."""
    space = f"/namespaces/{namespace}" if namespace else ""
    plural = "roles" if kind == "Role" else "clusterroles"
    where = space if kind == "Role" else ""
    assert api.request("POST", f"{RBAC}{where}/{plural}", body=role).status == 201
    name = role["metadata"]["name"]
    body = {
        "metadata": {"name": name},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": USER}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name},
    }
    bindings = "rolebindings" if namespace else "clusterrolebindings"
    assert api.request("POST", f"{RBAC}{space}/{bindings}", body=body).status == 201


def may(api: Api, verb: str, resource: str, *, namespace: str = "") -> bool:
    plural, _, group = resource.partition(".")
    asks = {"verb": verb, "group": group, "resource": plural, "namespace": namespace}
    reply = api.request("POST", REVIEWS, body={"spec": {"user": USER, "resourceAttributes": asks}})
    return bool(reply.body["status"]["allowed"])


def until_may(api: Api, verbs: Iterable[str], *resources: str, namespace: str = "") -> None:
    """The authorizer reads roles by watches of its own, so a grant holds a moment after it was written."""
    until(
        lambda: all(may(api, verb, each, namespace=namespace) for verb in verbs for each in resources),
        f"right of {USER} to {', '.join(verbs)} {', '.join(resources)}",
    )


def may_not(api: Api, verbs: Iterable[str], *resources: str, namespace: str = "") -> bool:
    return not any(may(api, verb, each, namespace=namespace) for verb in verbs for each in resources)


def chart(part: str) -> Json:
    rules = yaml.safe_load((helm.CHART / "rbac" / f"users-{part}.yaml").read_text())
    return {"metadata": {"name": f"{helm.RELEASE}-reservations-{part}"}, "rules": rules}


MINE, KUEUE = "capacityreservations.ome.io", "kueue.x-k8s.io"
READ = ("get", "list", "watch")


@pytest.mark.real
@pytest.mark.covers("OME-087")
def test_who_has_the_page_s_role_keeps_reservations_and_reads_kueue(real: Api) -> None:
    bind(real, "Role", yaml.safe_load(PAGE), namespace="default")

    until_may(real, (*READ, "create", "update", "patch"), MINE, namespace="default")
    until_may(real, READ, f"localqueues.{KUEUE}", f"workloads.{KUEUE}", namespace="default")
    assert may_not(real, READ, MINE, namespace="kube-system")
    # A Role grants nothing that has no namespace, although the page's lists it.
    assert may_not(real, READ, f"clusterqueues.{KUEUE}", "clustercapacityreservations.ome.io")
    bind(real, "ClusterRole", chart("cluster"))
    until_may(
        real,
        READ,
        *(f"{plural}.{KUEUE}" for plural in ("clusterqueues", "cohorts", "resourceflavors")),
        *(f"{plural}.ome.io" for plural in ("clustercapacityreservations", "dedicatedaiclusters")),
    )
    assert may_not(real, ("create", "patch", "delete"), "clustercapacityreservations.ome.io", MINE)


@pytest.mark.real
def test_the_chart_s_roles_are_the_page_s_without_what_a_role_cannot_grant(real: Api) -> None:
    for part in ("view", "edit"):
        bind(real, "ClusterRole", chart(part), namespace="default")
    all_verbs = (*READ, "create", "update", "patch", "delete")
    until_may(real, all_verbs, MINE, namespace="default")
    until_may(real, ["list"], f"localqueues.{KUEUE}", namespace="default")
    assert may_not(real, all_verbs, MINE, namespace="kube-system")
    assert may_not(real, ["create"], f"workloads.{KUEUE}", namespace="default")
