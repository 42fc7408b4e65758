"""The alerts that the webhook has, in a ConfigMap, so that the next leader sends none a second time.

Invariant: an alert is recorded after its message was accepted. A crash between the two repeats the message,
with the same id, and never loses it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import orjson

from broker.kube.client import Client
from broker.kube.published import read_data, write_data
from broker.notifications.alerts import FiringAlert
from broker.text import decode_object, decode_time, format_time

NAME: Final = "capacity-broker-notifications"
KEY: Final = "firing"


def read(client: Client) -> dict[str, FiringAlert]:
    """Reads the alerts by id. An entry that the broker cannot have written is ignored. Raises ApiError."""
    try:
        entries = decode_object(read_data(client, NAME).get(KEY) or "{}")
    except ValueError:
        return {}
    return {alert.id: alert for alert in _decoded(entries.values())}


def write(client: Client, firing: Mapping[str, FiringAlert]) -> None:
    """Raises ApiError."""
    entries = {
        id_: {
            "labels": dict(alert.labels),
            "description": alert.description,
            "since": format_time(alert.since),
        }
        for id_, alert in sorted(firing.items())
    }
    write_data(client, NAME, {KEY: orjson.dumps(entries, option=orjson.OPT_INDENT_2).decode()})


def _decoded(entries: Iterable[Any]) -> Iterable[FiringAlert]:
    for entry in entries:
        try:
            labels = {str(key): str(value) for key, value in entry["labels"].items()}
            alert = FiringAlert(
                labels=labels, description=str(entry["description"]), since=decode_time(entry["since"])
            )
            alert.body(alert.since)
        except (KeyError, TypeError, ValueError, AttributeError):
            continue
        yield alert
