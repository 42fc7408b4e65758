"""How a cluster is found, how credentials are renewed, and the effect of a socket's faults on a request."""

from __future__ import annotations

import gzip
import json
import sys
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from broker.apis.core import Node
from broker.kube.client import Client, Request, Watch
from broker.kube.errors import ApiError, Conflict, Forbidden, TooManyRequests, Unavailable
from broker.kube.transports import ConfigurationError, HttpTransport
from tests.support.scripted_http import Web, begin_stream, chunk, dead_port, respond

GET = Request(method="GET", path="/version")


def kubeconfig(folder: Path, url: str, *, user: dict[str, Any] | None = None, context: str = "here") -> Path:
    path = folder / "kubeconfig"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": context,
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": user or {}}],
        "contexts": [{"name": context, "context": {"cluster": "c", "user": "u"}}],
    }
    path.write_text(json.dumps(config))
    return path


def guarded(tokens: set[str]) -> Any:
    """A response that accepts only these tokens."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        allowed = handler.headers.get("Authorization", "").removeprefix("Bearer ") in tokens
        respond(handler, 200 if allowed else 401, {"ok": allowed})

    return answer


def test_a_token_is_sent(tmp_path: Path) -> None:
    with Web(guarded({"secret"})) as web:
        transport = HttpTransport.from_kubeconfig(kubeconfig(tmp_path, web.url, user={"token": "secret"}))
        assert Client(transport).raw("GET", "/version", {"a": "b c"}) == {"ok": True}
        assert web.seen == [("/version?a=b+c", "Bearer secret")]


def test_a_token_that_was_replaced_in_its_file_is_read_again_when_refused(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old")
    tokens = {"old"}
    with Web(guarded(tokens)) as web:
        transport = HttpTransport.from_kubeconfig(
            kubeconfig(tmp_path, web.url, user={"tokenFile": str(token)})
        )
        client = Client(transport)
        client.raw("GET", "/version")
        tokens.clear()
        tokens.add("new")
        token.write_text("new")
        client.raw("GET", "/version")
        assert [authorization for _, authorization in web.seen] == ["Bearer old", "Bearer old", "Bearer new"]
        tokens.clear()
        with pytest.raises(Forbidden) as refused:
            client.raw("GET", "/version")
        assert refused.value.status == 401


def test_an_exec_plugin_is_run_for_its_token_and_again_when_that_expires(tmp_path: Path) -> None:
    """Like `aws eks get-token` for EKS."""
    runs = tmp_path / "runs"
    plugin = tmp_path / "plugin.py"
    plugin.write_text(
        f"n = open({str(runs)!r}, 'a+'); n.write('x'); n.seek(0); count = len(n.read())\n"
        "import json; print(json.dumps({'apiVersion': 'client.authentication.k8s.io/v1',\n"
        " 'kind': 'ExecCredential', 'status': {'token': f't{count}',\n"
        " 'expirationTimestamp': '2020-01-01T00:00:00Z' if count == 1 else '2100-01-01T00:00:00Z'}}))\n"
    )
    user = {
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": sys.executable,
            "args": [str(plugin)],
            "interactiveMode": "Never",
        }
    }
    with Web(guarded({"t2"})) as web:
        client = Client(HttpTransport.from_kubeconfig(kubeconfig(tmp_path, web.url, user=user)))
        for _ in range(3):
            client.raw("GET", "/version")
        assert runs.read_text() == "xx"
        assert {authorization for _, authorization in web.seen} == {"Bearer t2"}


@pytest.mark.parametrize(
    ("make", "context", "message"),
    [
        (lambda path: None, None, "kubeconfig"),
        (lambda path: path.write_text("a: [b"), None, "kubeconfig"),
        (lambda path: kubeconfig(path.parent, "http://x"), "elsewhere", "context 'elsewhere'"),
        (lambda path: path.write_text("{}"), None, "current-context"),
    ],
)
def test_an_unusable_kubeconfig_is_an_error_with_its_path(
    tmp_path: Path, make: Any, context: str | None, message: str
) -> None:
    path = tmp_path / "kubeconfig"
    make(path)
    with pytest.raises(ConfigurationError) as error:
        HttpTransport.from_kubeconfig(path, context=context)
    assert message in str(error.value)
    assert str(path) in str(error.value)


def test_the_order_of_cluster_configurations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ConfigurationError, match=r"none is configured: .*--kubeconfig"):
        HttpTransport.from_kubeconfig()
    folder = tmp_path / ".kube"
    folder.mkdir()
    kubeconfig(folder, "http://home").rename(folder / "config")
    assert HttpTransport.from_kubeconfig().url == "http://home"
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path, "http://named")))
    assert HttpTransport.from_kubeconfig().url == "http://named"
    monkeypatch.delenv("KUBECONFIG")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    with pytest.raises(ConfigurationError, match="the pod's service account"):
        HttpTransport.from_kubeconfig()


def test_a_refused_connection_is_unavailable(tmp_path: Path) -> None:
    transport = HttpTransport.from_kubeconfig(kubeconfig(tmp_path, f"http://127.0.0.1:{dead_port()}"))
    with pytest.raises(Unavailable, match="no answer from the API server") as error:
        transport.request(GET, timeout=60)
    assert error.value.status == 0
    assert error.value.__cause__ is not None


def test_a_response_after_the_timeout_is_unavailable(tmp_path: Path) -> None:
    done = threading.Event()

    def answer(handler: BaseHTTPRequestHandler) -> None:
        done.wait(60)

    with Web(answer) as web:
        transport = HttpTransport.from_kubeconfig(kubeconfig(tmp_path, web.url))
        with pytest.raises(Unavailable, match="timed out"):
            transport.request(GET, timeout=0.05)
        done.set()


def watch(tmp_path: Path, web: Web, *, silence: float = 60) -> Any:
    transport = HttpTransport.from_kubeconfig(kubeconfig(tmp_path, web.url))
    return Watch(transport.stream(GET, timeout=silence))


def test_events_are_complete_for_any_chunks(tmp_path: Path) -> None:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        begin_stream(handler)
        text = b'{"type":"ADDED","object":{"n":1}}\n\n{"type":"MODIFIED","object":{"n":2}}\n{"type":"DEL'
        for at in range(0, len(text), 7):
            chunk(handler, text[at : at + 7])
        chunk(handler, b"")

    with Web(answer) as web, watch(tmp_path, web) as events:
        assert list(events) == [("ADDED", {"n": 1}), ("MODIFIED", {"n": 2})]


def test_a_known_change_becomes_a_bookmark(tmp_path: Path) -> None:
    def event(kind: str, version: int, **more: Any) -> bytes:
        body = {"metadata": {"resourceVersion": str(version)}, **more}
        return json.dumps({"type": kind, "object": body}, separators=(",", ":")).encode() + b"\n"

    embedded = '{"resourceVersion":"1"}'

    def answer(handler: BaseHTTPRequestHandler) -> None:
        begin_stream(handler)
        chunk(handler, event("ADDED", 1) + event("MODIFIED", 1, text=embedded) + event("MODIFIED", 2))
        chunk(handler, event("MODIFIED", 1, of={"resourceVersion": "1"}) + event("DELETED", 1))
        chunk(handler, b"")

    with Web(answer) as web:
        client = Client(HttpTransport.from_kubeconfig(kubeconfig(tmp_path, web.url)))
        with client.watch(Node.KIND, resource_version="0", known=lambda version: version == 1) as events:
            assert [(kind, "text" in body or "of" in body) for kind, body in events] == [
                ("ADDED", False),
                ("BOOKMARK", False),
                ("MODIFIED", False),
                ("MODIFIED", True),
                ("DELETED", False),
            ]


def test_a_stream_without_chunks_is_read_at_once(tmp_path: Path) -> None:
    more = threading.Event()

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Connection", "close")
        handler.end_headers()
        handler.wfile.write(b'{"type":"ADDED","object":{}}\n')
        handler.wfile.flush()
        more.wait(60)
        handler.close_connection = True

    with Web(answer) as web, watch(tmp_path, web) as events:
        assert next(events) == ("ADDED", {})  # before the stream ends
        more.set()
        assert list(events) == []


def test_a_stream_that_breaks_off_is_unavailable(tmp_path: Path) -> None:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        begin_stream(handler)
        handler.wfile.write(b"ff\r\n{")
        handler.close_connection = True

    with Web(answer) as web, watch(tmp_path, web) as events, pytest.raises(Unavailable):
        list(events)


def test_a_refusal_of_a_stream_that_breaks_off_is_unavailable(tmp_path: Path) -> None:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(503)
        handler.send_header("Content-Length", "99")
        handler.end_headers()
        handler.wfile.write(b"{")
        handler.close_connection = True

    with Web(answer) as web, pytest.raises(Unavailable, match="no answer from the API server"):
        watch(tmp_path, web)


def opened(tmp_path: Path, web: Web) -> tuple[Any, Any]:
    """A watch with the shortest silence limit that this machine, however busy, meets for the first event."""
    for silence in (0.05, 0.5, 5.0, 50.0):
        with suppress(Unavailable):
            events = watch(tmp_path, web, silence=silence)
            return events, next(events)
    raise AssertionError("the first event never came")


def test_a_half_open_stream_is_closed_after_the_longest_silence(tmp_path: Path) -> None:
    done = threading.Event()

    def answer(handler: BaseHTTPRequestHandler) -> None:
        begin_stream(handler)
        chunk(handler, b'{"type":"ADDED","object":{}}\n')
        done.wait(60)

    with Web(answer) as web:
        events, first = opened(tmp_path, web)
        assert first == ("ADDED", {})
        with pytest.raises(Unavailable, match="timed out"):
            next(events)
        done.set()


def test_closing_wakes_a_reader(tmp_path: Path) -> None:
    done, began = threading.Event(), threading.Event()

    def answer(handler: BaseHTTPRequestHandler) -> None:
        begin_stream(handler)
        chunk(handler, b'{"type":"ADDED","object":{}}\n')
        done.wait(60)

    with Web(answer) as web:
        events = watch(tmp_path, web)
        seen: list[Any] = []

        def read() -> None:
            for event in events:
                seen.append(event)
                began.set()

        reader = threading.Thread(target=read)
        reader.start()
        assert began.wait(60)
        events.close()
        events.close()
        reader.join(60)
        assert not reader.is_alive()
        assert seen == [("ADDED", {})]
        done.set()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"<html>proxy</html>\n", "<html>proxy"),
        (b"[]\n", "which is no event"),
        (b'{"type":"ADDED"}\n', "ADDED"),
    ],
)
def test_an_invalid_event_is_unavailable_and_shown(tmp_path: Path, line: bytes, message: str) -> None:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        begin_stream(handler)
        chunk(handler, line)
        chunk(handler, b"")

    with Web(answer) as web, watch(tmp_path, web) as events, pytest.raises(Unavailable, match=message):
        next(events)


def test_a_response_of_a_proxy_has_an_error_class(tmp_path: Path) -> None:
    with Web(lambda handler: respond(handler, 503, b"<html>upstream is away</html>")) as web:
        client = Client(HttpTransport.from_kubeconfig(kubeconfig(tmp_path, web.url)))
        with pytest.raises(Unavailable, match="upstream is away") as error:
            client.raw("GET", "/version")
        assert error.value.status == 503
        with pytest.raises(Unavailable, match="upstream is away"):
            client.watch(Node.KIND, resource_version="1")


def test_retry_after_is_read_from_the_header(tmp_path: Path) -> None:
    with Web(lambda handler: respond(handler, 429, {"kind": "Status", "code": 429}, Retry_After="7")) as web:
        client = Client(HttpTransport.from_kubeconfig(kubeconfig(tmp_path, web.url)))
        with pytest.raises(TooManyRequests) as error:
            client.raw("GET", "/version")
        assert error.value.retry_after == 7


def test_an_uncompressed_response_is_requested(tmp_path: Path) -> None:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        """Like a proxy that compresses unless the client declines."""
        plain = handler.headers.get("Accept-Encoding") == "identity"
        respond(handler, 200, {"ok": True} if plain else gzip.compress(b"{}"))

    with Web(answer) as web:
        client = Client(HttpTransport.from_kubeconfig(kubeconfig(tmp_path, web.url)))
        assert client.raw("GET", "/version") == {"ok": True}


def test_a_redirect_is_not_followed(tmp_path: Path) -> None:
    with Web(lambda handler: respond(handler, 302, b"", Location="http://127.0.0.1:1/")) as web:
        client = Client(HttpTransport.from_kubeconfig(kubeconfig(tmp_path, web.url)))
        with pytest.raises(ApiError) as error:
            client.raw("GET", "/version")
        assert (error.value.status, isinstance(error.value, Conflict)) == (302, False)


def test_credentials_that_cannot_be_reloaded_are_unavailable(tmp_path: Path) -> None:
    with Web(guarded(set())) as web:
        path = kubeconfig(tmp_path, web.url, user={"token": "old"})
        transport = HttpTransport.from_kubeconfig(path)
        path.unlink()
        with pytest.raises(Unavailable, match="kubeconfig"):
            transport.request(GET, timeout=60)
