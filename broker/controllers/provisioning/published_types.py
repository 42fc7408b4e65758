"""EC2's instance types in a ConfigMap, so that commands judge room by the types that the leader judges by.

Invariant: it has the types without their prices, and is written only if these differ from the written ones. A
value that the broker cannot have written counts as none.
"""

from __future__ import annotations

import gzip
import zlib
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import orjson
import structlog

from broker.apis.core import ConfigMap
from broker.kube.client import Client
from broker.kube.errors import ApiError, NotFound
from broker.kube.identity import NAMESPACE
from providers.model import InstanceType
from providers.type_text import decode_types

NAME: Final = "capacity-broker-types"
KEY: Final = "types"  # JSON, gzip, base64: a thousand types take 30 KiB

_log = structlog.get_logger("provisioning")


class PublishedTypes:
    """For the provisioning loop alone."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._seen: Mapping[str, InstanceType] | None = None
        self._written: str | None = None

    def publish(self, types: Mapping[str, InstanceType]) -> None:
        """A failed write is repeated by the next run."""
        if types is self._seen:
            return
        text = encode(types)
        try:
            if self._written is None:
                self._written = _read(self._client)
            if text != self._written:
                metadata = {"name": NAME, "namespace": NAMESPACE}
                self._client.apply(ConfigMap.KIND, {"metadata": metadata, "data": {KEY: text}})
        except ApiError as error:
            _log.warning("instance types not published", configmap=NAME, error=str(error))
            return
        self._seen, self._written = types, text


def encode(types: Mapping[str, InstanceType]) -> str:
    bare = [
        replace(types[name], on_demand_price=None, other_prices={}, spot_prices={}) for name in sorted(types)
    ]
    return b64encode(gzip.compress(orjson.dumps(bare, default=sorted), mtime=0)).decode()


def read_types(client: Client) -> dict[str, InstanceType]:
    """The published types; none if they are not published. Raises ApiError."""
    try:
        return decode_types(orjson.loads(gzip.decompress(b64decode(_read(client)))))
    except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError):
        return {}


def _read(client: Client) -> str:
    """The published text; empty without any."""
    try:
        data = client.get(ConfigMap.KIND, NAME, namespace=NAMESPACE).get("data") or {}
    except NotFound:
        return ""
    return str(data.get(KEY, ""))
