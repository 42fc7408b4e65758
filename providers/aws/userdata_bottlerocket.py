"""Bottlerocket's user data: TOML settings.

Invariant: every setting of the user that the broker does not decide is in the result, with its value. Taints
and labels of the node class are in it with any text of the user (Bottlerocket settings reference,
settings.kubernetes; the bootstrap command for instance storage is `apiclient ephemeral-storage`).
"""

from __future__ import annotations

import tomllib
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from typing import Any

import tomli_w

from providers.aws.userdata_common import refused, taint
from providers.launch import Bootstrap

_TABLES = (
    ("settings", "kubernetes", "node-labels"),
    ("settings", "bootstrap-commands"),
)
_BOUND = ["/var/lib/containerd", "/var/lib/kubelet", "/var/log/pods"]


def _same(value: Any) -> Any:
    return value


def _first(value: Any) -> Any:
    return value[0]


def _chosen(value: Any) -> Any:
    """The names of the options that are on: Bottlerocket lists these."""
    return [key for key, on in value.items() if str(on).lower() == "true"]


def _texts(value: Any) -> Any:
    return {key: str(item) for key, item in value.items()}


# KubeletConfiguration field -> Bottlerocket's setting and how its value is written there.
_KUBELET: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "maxPods": ("max-pods", int),
    "clusterDNS": ("cluster-dns-ip", _first),
    "systemReserved": ("system-reserved", _texts),
    "kubeReserved": ("kube-reserved", _texts),
    "evictionHard": ("eviction-hard", _texts),
    "evictionSoft": ("eviction-soft", _texts),
    "evictionSoftGracePeriod": ("eviction-soft-grace-period", _texts),
    "evictionMaxPodGracePeriod": ("eviction-max-pod-grace-period", int),
    "imageGCHighThresholdPercent": ("image-gc-high-threshold-percent", str),
    "imageGCLowThresholdPercent": ("image-gc-low-threshold-percent", str),
    "cpuCFSQuota": ("cpu-cfs-quota-enforced", _same),
    "allowedUnsafeSysctls": ("allowed-unsafe-sysctls", _same),
    "clusterDomain": ("cluster-domain", _same),
    "containerLogMaxFiles": ("container-log-max-files", int),
    "containerLogMaxSize": ("container-log-max-size", _same),
    "containerLogMaxWorkers": ("container-log-max-workers", int),
    "containerLogMonitorInterval": ("container-log-monitor-interval", _same),
    "cpuManagerPolicy": ("cpu-manager-policy", _same),
    "cpuManagerPolicyOptions": ("cpu-manager-policy-options", _chosen),
    "cpuManagerReconcilePeriod": ("cpu-manager-reconcile-period", _same),
    "eventBurst": ("event-burst", int),
    "eventRecordQPS": ("event-qps", int),
    "kubeAPIBurst": ("kube-api-burst", int),
    "kubeAPIQPS": ("kube-api-qps", int),
    "podPidsLimit": ("pod-pids-limit", int),
    "registryBurst": ("registry-burst", int),
    "registryPullQPS": ("registry-qps", int),
    "seccompDefault": ("seccomp-default", _same),
    "serverTLSBootstrap": ("server-tls-bootstrap", _same),
    "shutdownGracePeriod": ("shutdown-grace-period", _same),
    "shutdownGracePeriodCriticalPods": ("shutdown-grace-period-for-critical-pods", _same),
    "singleProcessOOMKill": ("single-process-oom-kill", _same),
    "topologyManagerPolicy": ("topology-manager-policy", _same),
    "topologyManagerScope": ("topology-manager-scope", _same),
}


def not_applied(kubelet: Collection[str]) -> list[str]:
    """The fields for which Bottlerocket has no setting."""
    return sorted(set(kubelet) - _KUBELET.keys())


def bottlerocket(bootstrap: Bootstrap, custom: str) -> str:
    """The user's settings with the node's own over them."""
    document = _parsed(custom)
    settings = document.setdefault("settings", {})
    kubernetes = settings.setdefault("kubernetes", {})
    kubernetes |= {"cluster-name": bootstrap.cluster_name, "api-server": bootstrap.endpoint}
    if bootstrap.ca_bundle:
        kubernetes["cluster-certificate"] = bootstrap.ca_bundle
    if bootstrap.labels:
        kubernetes["node-labels"] = {**kubernetes.get("node-labels", {}), **bootstrap.labels}
    # Taints are the claim's alone: a user's own would keep its pods off the node.
    kubernetes.pop("node-taints", None)
    if bootstrap.taints:
        kubernetes["node-taints"] = _taints(bootstrap.taints)
    for field, (setting, convert) in _KUBELET.items():
        value = bootstrap.kubelet.get(field)
        # False and 0 are settings; nothing, an empty list and an empty map are not.
        if value is not None and value != [] and value != {}:
            try:
                kubernetes[setting] = convert(value)
            except (TypeError, ValueError, AttributeError, IndexError, KeyError) as error:
                raise refused(
                    f"spec.kubelet.{field} {value!r} does not fit Bottlerocket's {setting}"
                ) from error
    if bootstrap.instance_store_raid0:
        settings.setdefault("bootstrap-commands", {})["000-mount-instance-storage"] = {
            "commands": [
                ["apiclient", "ephemeral-storage", "init"],
                ["apiclient", "ephemeral-storage", "bind", "--dirs", *_BOUND],
            ],
            "mode": "always",
            "essential": True,
        }
    return tomli_w.dumps(document)


def _taints(texts: tuple[str, ...]) -> dict[str, list[str]]:
    taints: defaultdict[str, list[str]] = defaultdict(list)
    for text in texts:
        parsed = taint(text)
        taints[parsed["key"]].append(f"{parsed.get('value', '')}:{parsed['effect']}")
    return dict(taints)


def _parsed(custom: str) -> dict[str, Any]:
    try:
        document = tomllib.loads(custom)
    except (
        ValueError,
        RecursionError,
    ) as error:
        raise refused(f"userData is not TOML, which Bottlerocket needs: {error}") from error
    for path in _TABLES:
        table: Any = document
        for name in path:
            table = table.get(name, {})
            if not isinstance(table, dict):
                raise refused(f"userData: {'.'.join(path)} must be a table")
    return document
