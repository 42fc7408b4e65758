"""The rights of people with the roles of OME's page and of the chart, by Kubernetes' own authorizer."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from broker.apis import names
from broker.apis.crds import load
from broker.apis.meta import Kind
from broker.apis.ome import CapacityReservation, ClusterCapacityReservation
from tests.controlplane.client import Api, Json, Reply
from tests.deploy import helm
from tests.docs.blocks import DOCS, steps
from tests.peers.programs import until

RBAC = "/apis/rbac.authorization.k8s.io/v1"
REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
USER = "ana"
# The Role that OME's page on capacity reservations gives to users of reservations, in their namespace.
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


def bind(api: Api, kind: str, role: Json, *, namespace: str = "", user: str = USER) -> None:
    """The role, for the user: in a namespace, or everywhere."""
    space = f"/namespaces/{namespace}" if namespace else ""
    plural = "roles" if kind == "Role" else "clusterroles"
    where = space if kind == "Role" else ""
    assert api.request("POST", f"{RBAC}{where}/{plural}", body=role).status == 201
    name = role["metadata"]["name"]
    body = {
        "metadata": {"name": name},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name},
    }
    bindings = "rolebindings" if namespace else "clusterrolebindings"
    assert api.request("POST", f"{RBAC}{space}/{bindings}", body=body).status == 201


def may(api: Api, verb: str, resource: str, *, namespace: str = "", user: str = USER) -> bool:
    plural, _, group = resource.partition(".")
    attributes = {"verb": verb, "group": group, "resource": plural, "namespace": namespace}
    reply = api.request("POST", REVIEWS, body={"spec": {"user": user, "resourceAttributes": attributes}})
    return bool(reply.body["status"]["allowed"])


def until_may(api: Api, verbs: Iterable[str], *resources: str, namespace: str = "", user: str = USER) -> None:
    """The authorizer reads roles by watches of its own, so a grant holds a moment after it was written."""
    until(
        lambda: all(
            may(api, verb, resource, namespace=namespace, user=user)
            for verb in verbs
            for resource in resources
        ),
        f"right of {user} to {', '.join(verbs)} {', '.join(resources)}",
    )


def may_not(api: Api, verbs: Iterable[str], *resources: str, namespace: str = "") -> bool:
    return not any(may(api, verb, resource, namespace=namespace) for verb in verbs for resource in resources)


def chart(part: str) -> Json:
    rules = yaml.safe_load((helm.CHART / "rbac" / f"users-{part}.yaml").read_text())
    return {"metadata": {"name": f"{helm.RELEASE}-reservations-{part}"}, "rules": rules}


MINE, KUEUE = "capacityreservations.ome.io", "kueue.x-k8s.io"
READ = ("get", "list", "watch")


@pytest.mark.real
@pytest.mark.covers("OME-087")
def test_page_s_role_manages_reservations_and_reads_kueue(real: Api) -> None:
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
def test_chart_s_roles_are_the_page_s_without_the_rights_that_a_role_cannot_grant(real: Api) -> None:
    for part in ("view", "edit"):
        bind(real, "ClusterRole", chart(part), namespace="default")
    all_verbs = (*READ, "create", "update", "patch", "delete")
    until_may(real, all_verbs, MINE, namespace="default")
    until_may(real, ["list"], f"localqueues.{KUEUE}", namespace="default")
    assert may_not(real, all_verbs, MINE, namespace="kube-system")
    assert may_not(real, ["create"], f"workloads.{KUEUE}", namespace="default")


ADMISSION = "/apis/admissionregistration.k8s.io/v1"
BUYER = "bo"
ADOPTING = {
    names.ADOPT_IDS: "cr-0123456789abcdef0",
    names.ADOPT_GROUP: "arn:aws:resource-groups:us-east-1:123456789012:group/theirs",
}
BUYING = dict.fromkeys(sorted(names.BUYING_TERMS - {*ADOPTING}), "Manage")


def reserved(kind: str, name: str, annotations: Json) -> Json:
    quota = {"name": "nvidia.com/gpu", "nominalQuota": 8}
    group = {"coveredResources": ["nvidia.com/gpu"], "flavors": [{"name": "h100", "resources": [quota]}]}
    return {
        "apiVersion": "ome.io/v1beta1",
        "kind": kind,
        "metadata": {"name": name, "annotations": annotations},
        "spec": {"resourceGroups": [group]},
    }


@contextmanager
def enforced(api: Api, name: str) -> Iterator[None]:
    """The chart's ValidatingAdmissionPolicy, for as long as this test runs: it holds for the whole server.

    `name`: a name of its own, which refusals have: the server enforces a deleted policy for a while.
    """
    policy = yaml.safe_load((helm.CHART / "admission" / "spending.yaml").read_text())
    binding = {"policyName": name, "validationActions": ["Deny"]}
    specs = {"validatingadmissionpolicies": policy, "validatingadmissionpolicybindings": binding}
    try:
        for plural, spec in specs.items():
            body = {"metadata": {"name": name}, "spec": spec}
            assert api.request("POST", f"{ADMISSION}/{plural}", body=body).status == 201
        yield
    finally:
        for plural in reversed(specs):
            api.request("DELETE", f"{ADMISSION}/{plural}/{name}")


@pytest.mark.real
@pytest.mark.covers("SAF-60")
@pytest.mark.parametrize(
    "kind", [CapacityReservation.KIND, ClusterCapacityReservation.KIND], ids=["own", "cluster-wide"]
)
def test_an_annotation_that_buys_or_adopts_needs_a_right_of_its_own(real: Api, kind: Kind) -> None:
    """The chart's `-edit` is not enough."""
    real.install(
        next(definition for definition in load() if definition["spec"]["names"]["kind"] == kind.kind)
    )
    namespace = "default" if kind.namespaced else ""
    inside = f"/namespaces/{namespace}" if namespace else ""
    objects = f"/apis/ome.io/v1beta1{inside}/{kind.plural}"
    assert kind.plural in chart("buy")["rules"][0]["resources"]

    def granted(name: str, *verbs: str) -> None:
        rules = [{"apiGroups": ["ome.io"], "resources": [kind.plural], "verbs": [*verbs]}]
        role = {"metadata": {"name": name}, "rules": rules}
        bind(real, "Role" if namespace else "ClusterRole", role, namespace=namespace, user=BUYER)
        until_may(real, verbs, f"{kind.plural}.ome.io", namespace=namespace, user=BUYER)

    def create(annotations: Json) -> Reply:
        dry = {"dryRun": "All"}
        headers = {"Impersonate-User": BUYER}
        return real.request("POST", objects, dry, reserved(kind.kind, "new", annotations), headers)

    def annotate(annotations: Json) -> int:
        headers = {"Content-Type": "application/merge-patch+json", "Impersonate-User": BUYER}
        body = {"metadata": {"annotations": annotations}}
        return real.request("PATCH", f"{objects}/kept", {"dryRun": "All"}, body, headers).status

    granted("edits", *chart("edit")["rules"][0]["verbs"])
    with enforced(real, kind.plural):
        until(lambda: f"'{kind.plural}'" in create(BUYING).body.get("message", ""), "the policy is enforced")
        assert create({}).status == create({"team": "blue"}).status == 201
        # The administrator of this server has every right.
        kept = reserved(kind.kind, "kept", {**BUYING, **ADOPTING})
        assert real.request("POST", objects, body=kept).status == 201
        assert annotate({"team": "blue"}) == 200
        for verb, keys in (("buy", BUYING), ("adopt", ADOPTING)):
            for key, value in keys.items():
                refused = create({key: value})
                # Without an end date, or without Cancel, a reservation is paid for longer.
                assert refused.status == annotate({key: "else"}) == annotate({key: None}) == 403
                assert (
                    key in refused.body["message"] and f"needs the verb {verb} on" in refused.body["message"]
                )
        granted("adopts", "adopt")
        until(lambda: create(ADOPTING).status == 201, "the right to adopt holds for the policy")
        assert create(BUYING).status == create({**BUYING, **ADOPTING}).status == 403
        granted("buys", *chart("buy")["rules"][0]["verbs"])
        until(lambda: create({**BUYING, **ADOPTING}).status == 201, "the right to buy holds for the policy")
        assert annotate(dict.fromkeys(BUYING, "else")) == 200


@pytest.mark.real
@pytest.mark.kubectl
@pytest.mark.covers("USR-24")
@pytest.mark.skipif(not shutil.which("kubectl"), reason="no kubectl on PATH")
def test_shown_annotation_that_buys_is_refused_as_shown(real: Api, tmp_path: Path) -> None:
    kind = CapacityReservation.KIND
    real.install(
        next(definition for definition in load() if definition["spec"]["names"]["kind"] == kind.kind)
    )
    objects = f"/apis/ome.io/v1beta1/namespaces/default/{kind.plural}"
    assert real.request("POST", objects, body=reserved(kind.kind, "gpus", {})).status == 201
    for part in ("view", "edit"):
        bind(real, "ClusterRole", chart(part), namespace="default")
    until_may(real, ["get", "create", "patch"], MINE, namespace="default")
    config = yaml.safe_load(real.kubeconfig())
    config["users"][0]["user"]["as"] = USER
    file = tmp_path / "kubeconfig"
    file.write_text(yaml.safe_dump(config))
    (step,) = (s for s in steps(DOCS / "operate/webhook.md") if s.command.startswith("kubectl annotate "))
    shown = step.output.removeprefix("error: ...").split()

    def refused() -> bool:
        dry, headers = {"dryRun": "All"}, {"Impersonate-User": USER}
        reply = real.request("POST", objects, dry, reserved(kind.kind, "new", BUYING), headers)
        return reply.status == 403 and "'shown'" in reply.body["message"]

    with enforced(real, "shown"):
        until(refused, "the policy is enforced")
        done = subprocess.run(
            ["bash", "-c", step.command],
            env={"PATH": os.environ["PATH"], "KUBECONFIG": str(file), "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert " ".join(shown) in " ".join(done.stderr.split()), done.stderr
