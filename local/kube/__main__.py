"""`python -m local.kube --port N [--kubeconfig FILE]`: an API server for kubectl, by itself."""

from __future__ import annotations

import argparse
import gc
import signal
import sys
import threading
from pathlib import Path

from local.kube.cluster import Cluster
from local.kube.collector import Collector
from local.kube.http import ApiServer

# A server makes thousands of objects and few cycles: the default thresholds cost a quarter of its time.
COLLECTOR = (50_000, 20, 100)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m local.kube", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument(
        "--port", type=int, default=8001, help="port to listen on, 0 for a free one (default: %(default)s)"
    )
    parser.add_argument("--kubeconfig", type=Path, help="write a kubeconfig for this server to a file")
    parser.add_argument(
        "--bare",
        action="store_true",
        help="an API server alone: no garbage collection, and namespaces never end",
    )
    options = parser.parse_args(arguments)
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    gc.set_threshold(*COLLECTOR)
    cluster = Cluster()
    collector = Collector(cluster)
    try:
        server = ApiServer(cluster, host=options.host, port=options.port).start()
    except OSError as error:
        sys.stderr.write(f"cannot listen on {options.host}:{options.port}: {error.strerror}; try --port 0\n")
        return 1
    if options.kubeconfig:
        options.kubeconfig.write_text(server.kubeconfig())
    sys.stdout.write(f"serving on {server.url}\n")
    sys.stdout.flush()
    if not options.bare:
        collector.start()
    stopped.wait()
    server.stop()
    collector.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
