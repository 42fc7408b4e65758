"""The validating webhook's objects in Kubernetes: its certificates, and its registration with API
servers.

https://kubernetes.io/docs/reference/kubernetes-api/extend-resources/validating-webhook-configuration-v1/
"""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from broker.apis.meta import Kind, Object


class Secret(Object):
    KIND: ClassVar[Kind] = Kind(group="", version="v1", kind="Secret", namespaced=True)

    data: dict[str, str] = Field(default_factory=dict)


class ValidatingWebhookConfiguration(Object):
    KIND: ClassVar[Kind] = Kind(
        group="admissionregistration.k8s.io", version="v1", kind="ValidatingWebhookConfiguration"
    )

    webhooks: tuple[dict[str, Any], ...] = ()
