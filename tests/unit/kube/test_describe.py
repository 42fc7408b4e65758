"""Events under an object in kubectl's output."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from broker.apis.core import Node
from broker.kube.client import Client
from broker.kube.clock import SystemClock
from broker.kube.events import Recorder
from broker.kube.transports import HttpTransport
from tests.controlplane.client import Api

KUBECTL = shutil.which("kubectl") or ""


@pytest.mark.kubectl
@pytest.mark.skipif(not KUBECTL, reason="no kubectl on the PATH")
def test_kubectl_describe_shows_the_brokers_events_with_their_count(api: Api, tmp_path: Path) -> None:
    config = tmp_path / "kubeconfig"
    config.write_text(api.kubeconfig())
    client = Client(HttpTransport.from_kubeconfig(config))
    node = Node.decode(client.create(Node.KIND, {"metadata": {"name": "n"}}))
    recorder = Recorder(client, "capacity-broker", SystemClock())
    for _ in range(3):
        recorder.event(node, "Warning", "ReservationFull", "cr-0123 has no free slot")
    assert recorder.flush()
    described = subprocess.run(
        [KUBECTL, "describe", "node", "n"],
        env={**os.environ, "KUBECONFIG": str(config), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    (line,) = [line for line in described.splitlines() if "ReservationFull" in line]
    assert line.split()[:2] == ["Warning", "ReservationFull"]
    assert "(x3 over" in line
    assert line.endswith("capacity-broker  cr-0123 has no free slot")
