"""The lines that a demo prints to paste: with them, commands see the reservations as the demo's broker
does.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from local.demo import account as demo_account
from local.demo.stage import hints


def test_lines_to_paste_name_the_demos_cluster() -> None:
    text = hints(
        Path("/tmp/of-the-demo"),
        "http://127.0.0.1:1",
        "capacity-broker inventory",
        page="http://127.0.0.1:2/",
    )
    assert "with a web page at http://127.0.0.1:2/. In another terminal" in text
    lines = [shlex.split(line) for line in text.splitlines() if line.strip().startswith("export ")]
    assert len(lines) == 3, "the README counts them"
    variables = dict(word.split("=", 1) for line in lines for word in line[1:])
    assert variables["KUBECONFIG"] == "/tmp/of-the-demo"
    assert variables["AWS_ENDPOINT_URL"] == "http://127.0.0.1:1"
    assert variables["CLUSTER_NAME"] == demo_account.CLUSTER
    assert variables["AWS_REGION"] == variables["AWS_DEFAULT_REGION"] == demo_account.REGION
