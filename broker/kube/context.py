"""The values that all controllers that write to Kubernetes share during one term of leadership."""

from __future__ import annotations

from dataclasses import dataclass

from broker.kube.client import Client
from broker.kube.clock import Clock
from broker.kube.events import Recorder


@dataclass(frozen=True, kw_only=True)
class ControllerContext:
    """The guarded client, the recorder of events, and the time."""

    client: Client
    recorder: Recorder
    clock: Clock
