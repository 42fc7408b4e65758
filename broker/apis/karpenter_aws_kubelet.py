"""karpenter.k8s.aws: `spec.kubelet` of an EC2NodeClass, which the API server keeps unread, and its check.

The field is an open object, as in Karpenter's AWS provider 1.15, so an invalid value reaches the broker; the
checks here are Karpenter's (pkg/apis/v1/kubeletconfiguration_validation.go). The fields are those of
https://kubernetes.io/docs/reference/config-api/kubelet-config.v1beta1/; those without a check are passed to
the nodes unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from pydantic import ConfigDict, Field

from broker.apis.meta import Model
from broker.apis.schema import crd
from broker.text import InvalidText, decode_duration, quantity, shortened

KUBELET: Final = crd(
    "The kubelet's configuration: any field of KubeletConfiguration. The broker reads maxPods, podsPerCore, "
    "kubeReserved, systemReserved and evictionHard, and passes all fields to the nodes. An invalid "
    "value makes the class not launchable.",
    type="object",
    additionalProperties={"x-kubernetes-preserve-unknown-fields": True},
    x_kubernetes_preserve_unknown_fields=True,
)
INVALID: Final = "InvalidKubeletConfiguration"
EXPRESSION: Final = "KubeletExpressionsDisabled"
SIGNALS: Final = (
    "memory.available",
    "nodefs.available",
    "nodefs.inodesFree",
    "imagefs.available",
    "imagefs.inodesFree",
    "pid.available",
)
RESERVABLE: Final = ("cpu", "memory", "ephemeral-storage", "pid")
_LARGEST: Final = 2**31 - 1
# A check yields the reason and the text of each problem of a value.
Check = Callable[[Any], Iterator[tuple[str, str]]]


class KubeletConfiguration(Model):
    """The kubelet's configuration on the nodes, as written. `problems` checks the values.

    The named fields are those that Karpenter maps.
    """

    model_config = ConfigDict(extra="allow")

    cluster_dns: Any = Field(default=None, alias="clusterDNS")
    cpu_cfs_quota: Any = Field(default=None, alias="cpuCFSQuota")
    max_pods: Any = None
    pods_per_core: Any = None
    kube_reserved: Any = None
    system_reserved: Any = None
    eviction_hard: Any = None
    eviction_soft: Any = None
    eviction_soft_grace_period: Any = None
    eviction_max_pod_grace_period: Any = None
    image_gc_high_threshold_percent: Any = Field(default=None, alias="imageGCHighThresholdPercent")
    image_gc_low_threshold_percent: Any = Field(default=None, alias="imageGCLowThresholdPercent")


def problems(kubelet: KubeletConfiguration | None) -> list[tuple[str, str]]:
    """The reason and the message of each invalid value; the message names the field."""
    fields = kubelet.wire() if kubelet else {}
    invalid = [
        (reason, f"spec.kubelet.{name}{text}")
        for name, check in _CHECKS.items()
        if name in fields
        for reason, text in check(fields[name])
    ]
    return invalid or [(INVALID, f"spec.kubelet.{text}") for text in _contradictions(fields)]


def _whole(most: int) -> Check:
    def check(value: Any) -> Iterator[tuple[str, str]]:
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
            yield INVALID, f" {shortened(value)} must be a whole number from 0 to {most}"

    return check


def _pods(value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield (
            EXPRESSION,
            f" {shortened(value)} is an expression, which the broker does not evaluate: write a number",
        )
    else:
        yield from _whole(_LARGEST)(value)


def _kind(type_: type, words: str) -> Check:
    def check(value: Any) -> Iterator[tuple[str, str]]:
        if not isinstance(value, type_):
            yield INVALID, f" {shortened(value)} must be {words}"

    return check


def _map(known: tuple[str, ...], check_value: Check) -> Check:
    """A check of a map of texts with known keys."""

    def check(value: Any) -> Iterator[tuple[str, str]]:
        if not isinstance(value, Mapping):
            yield INVALID, f" {shortened(value)} must be a map"
            return
        for key, item in sorted(value.items()):
            if key not in known:
                yield INVALID, f" has an unknown key {shortened(key)}; known are {', '.join(known)}"
            elif not isinstance(item, str):
                yield INVALID, f"[{key}] {shortened(item)} must be text: put it in quotes"
            else:
                yield from ((reason, f"[{key}]{text}") for reason, text in check_value(item))

    return check


def _reserved(text: str) -> Iterator[tuple[str, str]]:
    if text.startswith("-"):
        yield INVALID, f" {shortened(text)} must not be negative"
    elif _unreadable(quantity, text):
        words = "is an expression, which the broker does not evaluate: write a quantity such as 100m or 1Gi"
        yield EXPRESSION, f" {shortened(text)} {words}"


def _threshold(text: str) -> Iterator[tuple[str, str]]:
    percent = text.endswith("%")
    number = text.removesuffix("%") if percent else text
    if _unreadable(_percent if percent else _amount, number):
        yield (
            INVALID,
            f" {shortened(text)} must be a percentage from 0% to 100% or a quantity of zero or more",
        )


def _grace(text: str) -> Iterator[tuple[str, str]]:
    if _unreadable(decode_duration, text) or text.startswith("-"):
        yield INVALID, f" {shortened(text)} must be a duration of zero or more, such as 90s"


def _owned(_: Any) -> Iterator[tuple[str, str]]:
    yield INVALID, " is set from the taints of the NodeClaim: remove it"


def _unreadable(read: Callable[[str], object], text: str) -> bool:
    try:
        read(text)
    except ValueError:
        return True
    return False


def _percent(text: str) -> float:
    number = float(text)
    if not 0 <= number <= 100:
        raise InvalidText(text)
    return number


def _amount(text: str) -> float:
    amount = quantity(text)
    if amount < 0:
        raise InvalidText(text)
    return amount


def _contradictions(fields: Mapping[str, Any]) -> Iterator[str]:
    """The pairs of valid values that exclude each other."""
    soft, grace = (fields.get(name, {}) for name in ("evictionSoft", "evictionSoftGracePeriod"))
    for name, keys, other, counterparts in (
        ("evictionSoft", soft, "evictionSoftGracePeriod", grace),
        ("evictionSoftGracePeriod", grace, "evictionSoft", soft),
    ):
        if missing := sorted(keys.keys() - counterparts.keys()):
            yield f"{name}[{missing[0]}] has no counterpart in {other}: add it there"
    high, low = (fields.get(f"imageGC{name}ThresholdPercent") for name in ("High", "Low"))
    if high is not None and low is not None and high <= low:
        yield "imageGCHighThresholdPercent must be greater than imageGCLowThresholdPercent"


_CHECKS: Final[Mapping[str, Check]] = {
    "clusterDNS": _kind(list, "a list of addresses"),
    "cpuCFSQuota": _kind(bool, "true or false"),
    "maxPods": _pods,
    "podsPerCore": _whole(_LARGEST),
    "kubeReserved": _map(RESERVABLE, _reserved),
    "systemReserved": _map(RESERVABLE, _reserved),
    "evictionHard": _map(SIGNALS, _threshold),
    "evictionSoft": _map(SIGNALS, _threshold),
    "evictionMinimumReclaim": _map(SIGNALS, _threshold),
    "evictionSoftGracePeriod": _map(SIGNALS, _grace),
    "evictionMaxPodGracePeriod": _whole(_LARGEST),
    "imageGCHighThresholdPercent": _whole(100),
    "imageGCLowThresholdPercent": _whole(100),
    "registerWithTaints": _owned,
}
