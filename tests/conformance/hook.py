"""A webhook with responses set by the test, served over TLS with a certificate of its own."""

from __future__ import annotations

import asyncio
import ssl
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson
from aiohttp import web

from broker.admission.certificates import StoredCertificates, chain, turn
from broker.web import WebServer
from tests.conformance.calls import GIZMOS, PATIENCE, gizmo
from tests.conformance.definitions import GROUP
from tests.controlplane.client import Api, Json

CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
NAME = "conformance"


def allow(review: Json, **more: Any) -> Json:
    response = {"uid": review["request"]["uid"], "allowed": True, **more}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}


def deny(review: Json, *, warnings: list[str] | None = None, **status: Any) -> Json:
    more = {"warnings": warnings} if warnings else {}
    return allow(review, allowed=False, status=status, **more)


@dataclass
class Hook:
    """`answer` returns the body for a review; `seen` are the requests so far, in order."""

    answer: Callable[[Json], Any] = allow
    seen: list[Json] = field(default_factory=list)
    noticed: int = 0  # canaries
    bundle: bytes = b""
    url: str = ""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def reply(self, review: Json) -> Any:
        with self._lock:
            if review["request"]["resource"]["resource"] == "gizmos":
                self.noticed += 1
                return allow(review)
            self.seen.append(review["request"])
        return self.answer(review)

    def rule(self, **more: Any) -> Json:
        """Applies to widgets by default."""
        rule = {
            "apiGroups": [GROUP],
            "apiVersions": ["v1"],
            "operations": more.pop("operations", ["CREATE", "UPDATE", "DELETE"]),
            "resources": more.pop("resources", ["widgets"]),
        }
        return {
            "name": "asked.conformance.capacity-broker.io",
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "timeoutSeconds": 10,
            "clientConfig": {"url": self.url, "caBundle": _text(self.bundle)},
            "rules": [rule],
            **more,
        }


@contextmanager
def served() -> Iterator[Hook]:
    hook = Hook()

    async def review(request: web.Request) -> web.Response:
        answer = await asyncio.to_thread(hook.reply, orjson.loads(await request.read()))
        if isinstance(answer, int):
            return web.Response(status=answer, text="no")
        return web.json_response(body=answer if isinstance(answer, bytes) else orjson.dumps(answer))

    kept = turn(StoredCertificates(), names=["127.0.0.1"], now=datetime.now(UTC))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with TemporaryDirectory() as folder:
        file = Path(folder) / "serving.pem"
        file.write_bytes(b"".join(chain(kept)))
        tls.load_cert_chain(file)
    server = WebServer([web.post("/hook", review)], host="127.0.0.1", port=0, name="hook", tls=tls)
    server.start()
    hook.bundle, hook.url = kept.bundle, server.url + "/hook"
    try:
        yield hook
    finally:
        server.close()


@contextmanager
def registered(api: Api, hook: Hook, *webhooks: Json) -> Iterator[None]:
    """Registers these webhooks for the duration; the real server applies a configuration a moment later."""
    canary = hook.rule(
        name="canary.conformance.capacity-broker.io", resources=["gizmos"], failurePolicy="Ignore"
    )
    body = {"metadata": {"name": NAME}, "webhooks": [*webhooks, canary]}
    reply = api.request("POST", CONFIGURATIONS, body=body)
    assert reply.status == 201, reply.body
    try:
        _until(api, lambda before: hook.noticed > before, hook)
        yield
    finally:
        api.request("DELETE", f"{CONFIGURATIONS}/{NAME}")
        _until(api, lambda before: hook.noticed == before, hook)


def _until(api: Api, happened: Callable[[int], bool], hook: Hook) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        before = hook.noticed
        api.request("POST", GIZMOS, {"dryRun": "All"}, gizmo("canary"))
        if happened(before):
            return
        assert time.monotonic() < deadline, "the server never read the configuration"


def _text(raw: bytes) -> str:
    return b64encode(raw).decode()
