"""The Secret that all replicas serve from, and the configuration by which API servers find them.

Invariant: replicas share one Secret and do not fight. Each writes only due parts, if the Secret still has
the version that it read, and uses the writes of others. The configuration is written after the Secret and
as of a version read before it, so no replica replaces a newer bundle by an older one. Only objects of the
broker are written: a foreign one of the same name is left alone, and reported.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import structlog
from tenacity import retry, retry_if_exception_type, stop_after_attempt

from broker.admission import certificates
from broker.admission.certificates import StoredCertificates
from broker.apis import names
from broker.apis.admission import Secret, ValidatingWebhookConfiguration
from broker.apis.meta import Json
from broker.apis.nos import GROUP as NOS
from broker.apis.ome import OME
from broker.kube.client import Client
from broker.kube.clock import Clock
from broker.kube.conditions import changed
from broker.kube.errors import AlreadyExists, ApiError, Conflict, NotFound
from providers.names import MANAGED_BY

NAME: Final = "capacity-broker"
SECRET: Final = "capacity-broker-webhook"
WEBHOOK: Final = "reservations.capacity-broker.io"
PATH: Final = "/validate"
# A new spec, or an annotation of the broker's that was not there before.
CHANGES: Final = (
    "oldObject == null || object.spec != oldObject.spec || (has(object.metadata.annotations) && "
    f"object.metadata.annotations.exists(key, key.startsWith('{names.BROKER}/') && "
    "(!has(oldObject.metadata.annotations) || !(key in oldObject.metadata.annotations))))"
)
SECONDS: Final = 5  # that an API server waits for an answer
BROKER_LABELS: Final = {MANAGED_BY: NAME}
ATTEMPTS: Final = 5

log = structlog.get_logger(__name__)


class Foreign(ApiError):
    """An object with the broker's name belongs to another owner."""


@dataclass(frozen=True, kw_only=True)
class WebhookRegistration:
    """`address` is the clientConfig without its bundle: how an API server reaches a server of names `dns`."""

    client: Client
    namespace: str
    dns: Sequence[str]
    address: Mapping[str, Any]
    clock: Clock

    # Again after another replica was faster.
    @retry(
        retry=retry_if_exception_type((Conflict, AlreadyExists)),
        stop=stop_after_attempt(ATTEMPTS),
        reraise=True,
    )
    def keep(self) -> StoredCertificates:
        """One round: returns the certificates to serve with. Raises ApiError."""
        existing = self._configuration()
        kept = self._secret()
        webhooks = [webhook(self.address, kept.bundle)]
        if existing is not None and not changed(existing, {"webhooks": webhooks}):
            return kept
        meta: Json = {"name": NAME, "labels": BROKER_LABELS}
        if existing is not None:
            meta["resourceVersion"] = existing["metadata"]["resourceVersion"]
        self.client.apply(ValidatingWebhookConfiguration.KIND, {"metadata": meta, "webhooks": webhooks})
        log.info("the webhook is registered", configuration=NAME, authorities=len(kept.authorities))
        return kept

    def _configuration(self) -> Json | None:
        try:
            existing = self.client.get(ValidatingWebhookConfiguration.KIND, NAME)
        except NotFound:
            return None
        return _require_own("ValidatingWebhookConfiguration", existing)

    def _secret(self) -> StoredCertificates:
        meta: Json = {"name": SECRET, "namespace": self.namespace, "labels": BROKER_LABELS}
        try:
            existing = self.client.get(Secret.KIND, SECRET, namespace=self.namespace)
        except NotFound:
            due = self._turned(StoredCertificates())
            self.client.create(Secret.KIND, {"metadata": meta, "data": certificates.write(due)})
            return due
        kept = self._read(_require_own("Secret", existing))
        due = self._turned(kept)
        if due is not kept:
            log.info(
                "certificates renewed", secret=SECRET, serving_until=str(due.serving and due.serving.ends)
            )
            meta["resourceVersion"] = existing["metadata"]["resourceVersion"]
            self.client.update(Secret.KIND, {"metadata": meta, "data": certificates.write(due)})
        return due

    def _read(self, secret: Json) -> StoredCertificates:
        try:
            return certificates.read(secret.get("data") or {})
        except certificates.UnusableCertificates as error:
            log.warning("certificates made anew: the Secret is unusable", secret=SECRET, error=str(error))
            return StoredCertificates()

    def _turned(self, kept: StoredCertificates) -> StoredCertificates:
        return certificates.turn(kept, names=self.dns, now=self.clock.now())


def webhook(address: Mapping[str, Any], bundle: bytes) -> Json:
    """The webhook's configuration for API servers. Unanswered requests are admitted: the controllers check
    them again.
    """
    return {
        "name": WEBHOOK,
        "admissionReviewVersions": ["v1"],
        "clientConfig": {**address, "caBundle": b64encode(bundle).decode()},
        "failurePolicy": "Ignore",
        "matchPolicy": "Equivalent",
        # Most writes are of labels and finalizers, also by the controllers: they skip the webhook.
        "matchConditions": [{"name": "spec-changes", "expression": CHANGES}],
        "sideEffects": "None",
        "timeoutSeconds": SECONDS,
        "rules": [
            {
                "apiGroups": [OME],
                "apiVersions": ["v1beta1"],
                "operations": ["CREATE", "UPDATE"],
                "resources": ["capacityreservations", "clustercapacityreservations", "dedicatedaiclusters"],
                "scope": "*",
            },
            {
                "apiGroups": [NOS],
                "apiVersions": ["v1alpha1"],
                "operations": ["CREATE", "UPDATE"],
                "resources": ["elasticquotas", "compositeelasticquotas"],
                "scope": "*",
            },
        ],
    }


def service(name: str, namespace: str) -> tuple[Json, tuple[str, ...]]:
    """Address and certificate names of a webhook behind a Service."""
    address = {"service": {"name": name, "namespace": namespace, "path": PATH, "port": 443}}
    return address, (f"{name}.{namespace}.svc",)


def _require_own(kind: str, obj: Json) -> Json:
    labels = obj["metadata"].get("labels") or {}
    if any(labels.get(name) != value for name, value in BROKER_LABELS.items()):
        name = obj["metadata"]["name"]
        raise Foreign(
            409,
            "Foreign",
            f"{kind} {name} is not the broker's (no label {BROKER_LABELS}): delete or rename it",
        )
    return obj
