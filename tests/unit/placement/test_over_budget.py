"""Pods that a PodDisruptionBudget keeps if all are evicted one after another."""

from __future__ import annotations

from typing import Any

from broker.apis.core import Pod
from broker.apis.policy import PodDisruptionBudget
from broker.placement.disruption_pods import over_budget


def pod(name: str, app: str, namespace: str = "a") -> Pod:
    return Pod.decode(
        {"metadata": {"name": name, "namespace": namespace, "uid": name, "labels": {"app": app}}}
    )


def budget(name: str, app: str, allowed: int, **spec: Any) -> PodDisruptionBudget:
    body = {"selector": {"matchLabels": {"app": app}}, **spec}
    meta = {"name": name, "namespace": "a"}
    status = {"disruptionsAllowed": allowed}
    return PodDisruptionBudget.decode({"metadata": meta, "spec": body, "status": status})


def test_two_pods_share_the_last_disruption_of_a_budget() -> None:
    pods = [pod("1", "web"), pod("2", "web"), pod("3", "db"), pod("4", "web", "b")]
    assert [kept.name for kept in over_budget(pods, [budget("web", "web", 1)])] == ["2"]
    assert over_budget(pods, [budget("web", "web", 2)]) == []
    both = [budget("web", "web", 2), budget("db", "db", 0)]
    assert [kept.name for kept in over_budget(pods, both)] == ["3"]


def test_unhealthy_pod_is_evicted_if_its_budget_allows_it() -> None:
    allows = budget("web", "web", 0, unhealthyPodEvictionPolicy="AlwaysAllow")
    unready = pod("1", "web").wire() | {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}
    assert over_budget([Pod.decode(unready)], [allows]) == []
