"""One call of one webhook: over TLS, by its configuration, within its timeout.

Rule: k8s.io/apiserver/pkg/util/webhook (clients, the wording of failures) and
pkg/admission/plugin/webhook/request (the form of a response).
"""

from __future__ import annotations

import base64
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

import orjson
import urllib3

from local.kube.errors import quoted
from local.kube.wire import Obj

API_VERSION = "admission.k8s.io/v1"
SECONDS = 10  # the default of the configuration
# (namespace, name, port) of a Service → host and port where it is served
Services = Mapping[tuple[str, str, int], tuple[str, int]]


class CallFailed(Exception):
    """The webhook gave no valid response; the text is the cause."""


@dataclass(frozen=True, slots=True)
class WebhookResponse:
    allowed: bool
    status: Obj
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WebhookAddress:
    url: str
    host: str
    port: int
    name: str  # that the certificate must be for


def call_webhook(hook: Obj, review: Obj, services: Services) -> WebhookResponse:
    """Raises CallFailed."""
    place = _place(hook["clientConfig"], services)
    seconds = int(hook.get("timeoutSeconds") or SECONDS)
    split = urlsplit(place.url)
    try:
        with urllib3.HTTPSConnectionPool(
            place.host,
            place.port,
            ssl_context=_trust(hook["clientConfig"].get("caBundle")),
            server_hostname=place.name,
            assert_hostname=place.name,
        ) as pool:
            response = pool.urlopen(
                "POST",
                f"{split.path or '/'}?timeout={seconds}s",
                body=orjson.dumps(review),
                headers={"Content-Type": "application/json", "Accept": "application/json"},
                timeout=urllib3.Timeout(total=seconds),
                retries=False,
                redirect=False,
            )
    except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
        raise CallFailed(
            f"failed to call webhook: Post {quoted(f'{place.url}?timeout={seconds}s')}: {error}"
        ) from error
    if response.status != 200:
        text = response.data[:200].decode(errors="replace").strip()
        raise CallFailed(f"failed to call webhook: the server answered {response.status}: {text}")
    return _answer(response.data, review["request"]["uid"])


def _place(config: Obj, services: Services) -> WebhookAddress:
    if url := config.get("url"):
        split = urlsplit(url)
        return WebhookAddress(url, split.hostname or "", split.port or 443, split.hostname or "")
    service = config["service"]
    namespace, name, port = service["namespace"], service["name"], service.get("port") or 443
    address = services.get((namespace, name, port))
    if address is None:
        raise CallFailed(
            f"failed to call webhook: nothing is known to serve {namespace}/{name} on port {port}"
        )
    host = f"{name}.{namespace}.svc"
    return WebhookAddress(f"https://{host}:{port}{service.get('path') or '/'}", *address, host)


def _trust(bundle: str | None) -> ssl.SSLContext:
    """Raises ValueError or OSError for a bundle that is none."""
    if not bundle:
        return ssl.create_default_context()
    return ssl.create_default_context(cadata=base64.b64decode(bundle).decode())


def _answer(raw: bytes, uid: str) -> WebhookResponse:
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise CallFailed(f"failed to call webhook: it answered no JSON: {error}") from error
    kind = (body.get("apiVersion"), body.get("kind")) if isinstance(body, dict) else (None, None)
    if kind != (API_VERSION, "AdmissionReview"):
        raise CallFailed(
            f"expected webhook response of {API_VERSION}, Kind=AdmissionReview, got {kind[0]}, Kind={kind[1]}"
        )
    response = body.get("response")
    if not isinstance(response, dict):
        raise CallFailed("webhook response was absent")
    if response.get("uid") != uid:
        raise CallFailed(f"expected response.uid={quoted(uid)}, got {quoted(str(response.get('uid') or ''))}")
    warnings = tuple(str(warning) for warning in response.get("warnings") or ())
    return WebhookResponse(bool(response.get("allowed")), response.get("status") or {}, warnings)
