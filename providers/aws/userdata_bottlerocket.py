"""Bottlerocket's user data: TOML settings.

Invariant: every setting of the user that the broker does not decide is in the result, with its value;
taints and labels of the node class are there whatever the user's text says (Bottlerocket settings
reference, settings.kubernetes; the bootstrap command for instance storage is `apiclient
ephemeral-storage`).
"""

from __future__ import annotations

import tomllib
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import tomli_w

from providers.aws.userdata_common import refused, taint
from providers.model import Bootstrap

_BOUND = ["/var/lib/containerd", "/var/lib/kubelet", "/var/log/pods"]


def _same(value: Any) -> Any:
    return value


def _first(value: Any) -> Any:
    return value[0]


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
}


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
            kubernetes[setting] = convert(value)
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
        one = taint(text)
        taints[one["key"]].append(f"{one.get('value', '')}:{one['effect']}")
    return dict(taints)


def _parsed(custom: str) -> dict[str, Any]:
    try:
        document = tomllib.loads(custom)
    except tomllib.TOMLDecodeError as error:
        raise refused(f"userData is not TOML, which Bottlerocket needs: {error}") from error
    settings = document.get("settings", {})
    if not isinstance(settings, dict) or not isinstance(settings.get("kubernetes", {}), dict):
        raise refused("userData: settings and settings.kubernetes must be tables")
    return document
