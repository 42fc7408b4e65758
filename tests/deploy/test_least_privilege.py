"""The broker's token is no way to run code: what the chart's roles leave out, whichever values are set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml

from tests.deploy import helm

pytestmark = pytest.mark.covers("FLT-65")
Rule = Mapping[str, Any]
FILES = sorted(path.stem for path in (helm.CHART / "rbac").glob("*.yaml"))
WRITES = {"create", "update", "patch", "delete", "deletecollection"}
# All writes to pods that the broker may make; none of them replaces an image or makes a pod.
OF_PODS = {("pods/binding", "create"), ("pods/eviction", "create"), ("pods/status", "patch")}
# Each makes pods, runs code in them, or gives rights.
RUNS_CODE = {
    "": {"pods/exec", "pods/attach", "pods/ephemeralcontainers", "pods/resize", "nodes/proxy",
         "serviceaccounts", "serviceaccounts/token", "replicationcontrollers"},
    "apps": {"deployments", "daemonsets", "statefulsets", "replicasets"},
    "batch": {"jobs", "cronjobs"},
    "rbac.authorization.k8s.io": {"roles", "rolebindings", "clusterroles", "clusterrolebindings"},
}  # fmt: skip
FULL: Mapping[str, Any] = {
    **helm.GIVEN,
    "advise": True,
    "keepDefinition": True,
    "webhook": {"enabled": True},
    "scheduler": {"separate": True},
    "web": {"enabled": True, "tokens": True},
}


def granted(rules: list[Rule]) -> Iterator[tuple[str, str, str]]:
    """Group, resource and verb of everything that the rules allow."""
    for rule in rules:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                yield from ((group, resource, verb) for verb in rule["verbs"])


def violations(rules: list[Rule]) -> Iterator[str]:
    for group, resource, verb in granted(rules):
        named = f"{verb} {resource}.{group}"
        if "*" in (group, resource, verb) or verb in ("impersonate", "escalate", "bind"):
            yield named
        if resource.partition("/")[0] == "pods" and verb in WRITES and (resource, verb) not in OF_PODS:
            yield named
        if resource in RUNS_CODE.get(group, ()) and verb in WRITES:
            yield named


@pytest.mark.parametrize("file", FILES)
def test_no_rule_of_the_chart_writes_a_pod_or_runs_code(file: str) -> None:
    rules = yaml.safe_load((helm.CHART / "rbac" / f"{file}.yaml").read_text())
    assert [*violations(rules)] == []


@pytest.mark.parametrize("values", [helm.GIVEN, FULL], ids=["default", "everything"])
def test_no_rendered_role_writes_a_pod_or_runs_code(values: Mapping[str, Any]) -> None:
    roles = [item for item in helm.render(values) if item["kind"] in ("ClusterRole", "Role")]
    assert roles
    assert {role["metadata"]["name"]: [*violations(role.get("rules") or [])] for role in roles} == {
        role["metadata"]["name"]: [] for role in roles
    }


def test_no_rule_for_the_cluster_reads_secrets() -> None:
    """The webhook's certificate is in the release's namespace, and that rule names it."""
    for file in FILES:
        if file == "webhook-namespace":
            continue
        rules = yaml.safe_load((helm.CHART / "rbac" / f"{file}.yaml").read_text())
        assert [item for item in granted(rules) if item[1] == "secrets"] == [], file


@pytest.mark.parametrize(
    "rule",
    [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["patch"]},
        {"apiGroups": ["*"], "resources": ["pods/status"], "verbs": ["patch"]},
        {"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["update"]},
    ],
)
def test_wider_rule_is_found(rule: Rule) -> None:
    assert [*violations([rule])]
