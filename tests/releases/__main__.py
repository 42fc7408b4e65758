"""Records the state that the present broker leaves behind: `python -m tests.releases VERSION COMMIT`."""

from __future__ import annotations

import json
import os
import sys

from broker.commands.crds.install import text
from local.in_process import InProcessTransport
from local.kube import Cluster
from tests.cluster.stack import Stack
from tests.releases.world import FOLDER, live, record
from tests.simulation.world import ENVIRONMENT
from tests.support.direct import local_aws_here


def main(version: str, commit: str) -> None:
    os.environ.update(ENVIRONMENT)
    cluster = Cluster()
    with local_aws_here() as server:
        stack = Stack(server, InProcessTransport(cluster))
        try:
            live(stack)
            stack.stop()
            state = record(cluster, stack.aws)
        finally:
            stack.close()
    folder = FOLDER / version
    folder.mkdir(exist_ok=True)
    (folder / "state.json").write_text(
        json.dumps({"commit": commit, **state}, indent=1, sort_keys=True) + "\n"
    )
    (folder / "definitions.yaml").write_text(text())


if __name__ == "__main__":
    main(*sys.argv[1:])
