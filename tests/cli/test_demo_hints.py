"""The lines that a demo prints to paste: with them, commands see the reservations as the demo's broker
does.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from broker.demo import world
from broker.demo.stage import hints


def test_the_lines_to_paste_name_the_cluster_whose_reservations_these_are() -> None:
    told = hints(
        Path("/tmp/of-the-demo"),
        "http://127.0.0.1:1",
        "capacity-broker inventory",
        page="http://127.0.0.1:2/",
    )
    assert "with a web page at http://127.0.0.1:2/. In another terminal" in told
    lines = [shlex.split(each) for each in told.splitlines() if each.strip().startswith("export ")]
    assert len(lines) == 3, "the README counts them"
    said = dict(word.split("=", 1) for line in lines for word in line[1:])
    assert said["KUBECONFIG"] == "/tmp/of-the-demo"
    assert said["AWS_ENDPOINT_URL"] == "http://127.0.0.1:1"
    assert said["CLUSTER_NAME"] == world.CLUSTER
    assert said["AWS_REGION"] == said["AWS_DEFAULT_REGION"] == world.REGION
