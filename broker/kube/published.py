"""A value of the leader in a ConfigMap, for the commands: JSON, gzip, base64.

Invariant: the ConfigMap is written only if the value differs from the written one. It is empty while the
value is too large: no value is better than an old one. A text that the broker cannot have written counts as
none.
"""

from __future__ import annotations

import gzip
import zlib
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any, Final

import orjson
import structlog

from broker.apis.core import ConfigMap
from broker.kube.client import Client
from broker.kube.errors import ApiError, NotFound
from broker.kube.identity import NAMESPACE

# A ConfigMap has room for 1 MiB (https://kubernetes.io/docs/concepts/configuration/configmap/).
LARGEST: Final = 900_000

_log = structlog.get_logger("published")


class PublishedValue:
    """One ConfigMap with one key, written by one loop."""

    def __init__(self, client: Client, name: str, key: str) -> None:
        self._client, self._name, self._key = client, name, key
        self._written: str | None = None

    def publish(self, value: Any) -> bool:
        """Whether the ConfigMap has the value now, or is empty for one that is too large.

        It is empty, too, for a value without content, for which none is made.
        """
        text = encode(value) if value else ""
        if len(text) > LARGEST:
            _log.warning("not published: too large", configmap=self._name, bytes=len(text))
            text = ""
        try:
            if self._written is None:
                self._written = read_data(self._client, self._name).get(self._key, "")
            if text == self._written:
                return True
            write_data(self._client, self._name, {self._key: text})
        except ApiError as error:
            _log.warning("not published", configmap=self._name, error=str(error))
            return False
        self._written = text
        return True


def encode(value: Any) -> str:
    return b64encode(gzip.compress(orjson.dumps(value, default=sorted), mtime=0)).decode()


def read_published(client: Client, name: str, key: str) -> Any:
    """The published value; None without one. Raises ApiError."""
    try:
        return orjson.loads(gzip.decompress(b64decode(read_data(client, name).get(key, ""))))
    except (OSError, EOFError, zlib.error, ValueError):
        return None


def read_data(client: Client, name: str) -> dict[str, str]:
    """The data of the broker's ConfigMap of that name; empty without it. Raises ApiError."""
    try:
        return dict(client.get(ConfigMap.KIND, name, namespace=NAMESPACE).get("data") or {})
    except NotFound:
        return {}


def write_data(client: Client, name: str, data: Mapping[str, str]) -> None:
    """Makes this all that the broker's ConfigMap of that name has. Raises ApiError."""
    client.apply(ConfigMap.KIND, {"metadata": {"name": name, "namespace": NAMESPACE}, "data": data})
