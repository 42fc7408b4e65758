"""The broker's scheduler in a process of its own, without EC2; the argument is a kubeconfig.

It is the scheduler of `capacity-broker run` with its controllers and informers. It runs until it is killed.
"""

from __future__ import annotations

import sys
import threading

from broker.kube.transports import HttpTransport
from tests.cluster.rooms import Rooms

if __name__ == "__main__":
    Rooms(crds=(), server=HttpTransport.from_kubeconfig(sys.argv[1])).start()
    threading.Event().wait()
