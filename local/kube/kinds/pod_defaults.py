"""Defaults of a pod's spec, and fields that exist in two forms.

Rule: k8s.io/kubernetes/pkg/apis/core/v1 (defaults and conversion).
"""

from __future__ import annotations

from collections.abc import Iterator

from local.kube.kinds.nodes import first_of
from local.kube.wire import Obj

_SPEC = {
    "dnsPolicy": "ClusterFirst",
    "restartPolicy": "Always",
    "terminationGracePeriodSeconds": 30,
    "schedulerName": "default-scheduler",
    "enableServiceLinks": True,
}
_PROBE = {"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}
_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
_MODES = {"configMap": 0o644, "secret": 0o644, "downwardAPI": 0o644, "projected": 0o644}


def default(obj: Obj) -> None:
    spec, status = obj.setdefault("spec", {}), obj.get("status") or {}
    spec_defaults(spec)
    spec.setdefault("enableServiceLinks", True)
    for container in _containers(spec, "containers", "initContainers"):
        resources = container.setdefault("resources", {})
        if resources.get("limits"):
            resources["requests"] = {**resources["limits"], **(resources.get("requests") or {})}
        if spec.get("hostNetwork"):
            for port in container.get("ports") or ():
                port["hostPort"] = port.get("hostPort") or port.get("containerPort", 0)
    first_of(status, single_key="podIP", list_key="podIPs", key="ip")


def spec_defaults(spec: Obj) -> None:
    """The defaults that pod templates get too."""
    for name, value in _SPEC.items():
        if name != "enableServiceLinks" and spec.get(name) in (None, ""):
            spec[name] = value
    spec.setdefault("securityContext", {})
    account = spec.get("serviceAccountName") or spec.get("serviceAccount")
    if account:
        spec["serviceAccountName"] = spec["serviceAccount"] = account
    for container in _containers(spec, "containers", "initContainers", "ephemeralContainers"):
        _container(container)
    for volume in spec.get("volumes") or ():
        _volume(volume)


def _containers(spec: Obj, *lists: str) -> Iterator[Obj]:
    for name in lists:
        yield from spec.get(name) or ()


def _container(container: Obj) -> None:
    if not container.get("imagePullPolicy"):
        container["imagePullPolicy"] = pull_policy(container.get("image", ""))
    container["terminationMessagePath"] = container.get("terminationMessagePath") or "/dev/termination-log"
    container["terminationMessagePolicy"] = container.get("terminationMessagePolicy") or "File"
    for port in container.get("ports") or ():
        port["protocol"] = port.get("protocol") or "TCP"
    for variable in container.get("env") or ():
        if reference := (variable.get("valueFrom") or {}).get("fieldRef"):
            reference["apiVersion"] = reference.get("apiVersion") or "v1"
    for name in _PROBES:
        if probe := container.get(name):
            for part, value in _PROBE.items():
                probe[part] = probe.get(part) or value
            _http(probe)
            if probe.get("grpc"):
                probe["grpc"].setdefault("service", "")
    for handler in (container.get("lifecycle") or {}).values():
        if isinstance(handler, dict):
            _http(handler)


def _http(handler: Obj) -> None:
    if get := handler.get("httpGet"):
        get["path"], get["scheme"] = get.get("path") or "/", get.get("scheme") or "HTTP"


def pull_policy(image: str) -> str:
    """An image with the tag latest, or with neither tag nor digest, is pulled each time."""
    if not image or "@" in image:
        return "IfNotPresent"
    tag = image.rpartition("/")[2].partition(":")[2]
    return "Always" if tag in ("", "latest") else "IfNotPresent"


def _volume(volume: Obj) -> None:
    if not any(value is not None for name, value in volume.items() if name != "name"):
        volume["emptyDir"] = {}
    for name, mode in _MODES.items():
        if (source := volume.get(name)) is not None:
            source.setdefault("defaultMode", mode)
    if (path := volume.get("hostPath")) is not None:
        path.setdefault("type", "")
    for source in (volume.get("projected") or {}).get("sources") or ():
        if token := source.get("serviceAccountToken"):
            token.setdefault("expirationSeconds", 3600)
