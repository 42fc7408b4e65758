"""Unmodified koord-scheduler, as `make koordinator` builds it from its Go module.

The configuration has the Reservation plugin alone beside the defaults. It is named under `reserve` too.
Koordinator's own example leaves it out there, and its pods never become owners.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

Json = dict[str, Any]
BUILT = Path(__file__).resolve().parents[3] / ".cache" / "peers" / "bin"
PROGRAM = BUILT / "koord-scheduler"
# Device is listed at the start even if its plugin is off: without it the start hangs silently.
FILES = ("scheduling.koordinator.sh_reservations.yaml", "scheduling.koordinator.sh_devices.yaml")
ALL: Json = {"disabled": [{"name": "*"}]}
RESERVATION: Json = {"name": "Reservation"}


def missing() -> str:
    """Why koord-scheduler cannot run here; empty when it can."""
    if not os.access(PROGRAM, os.X_OK):
        return f"no koord-scheduler in {BUILT}: run `make koordinator` (it needs Go)"
    return ""


def crds() -> list[Json]:
    """The definitions of the same release."""
    return [yaml.safe_load((BUILT / "koordinator-crds" / name).read_text()) for name in FILES]


def configuration(kubeconfig: Path) -> Json:
    plugins: Json = {
        point: {"enabled": [RESERVATION]} for point in ("preFilter", "filter", "preScore", "reserve")
    }
    plugins["score"] = {"enabled": [{**RESERVATION, "weight": 5000}]}
    plugins["postFilter"] = ALL | {"enabled": [RESERVATION, {"name": "DefaultPreemption"}]}
    plugins["queueSort"] = ALL | {"enabled": [{"name": "PrioritySort"}]}
    plugins["preBind"] = {"enabled": [RESERVATION, {"name": "DefaultPreBind"}]}
    plugins["bind"] = ALL | {"enabled": [RESERVATION, {"name": "DefaultBinder"}]}
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": str(kubeconfig), "qps": 5000, "burst": 5000},
        "profiles": [{"schedulerName": "koord-scheduler", "plugins": plugins}],
    }


def command(kubeconfig: Path, folder: Path) -> Sequence[str]:
    """Writes the configuration into `folder`; the program with its options."""
    config = folder / "koord-scheduler.json"
    config.write_text(json.dumps(configuration(kubeconfig)))
    return (
        str(PROGRAM),
        f"--config={config}",
        "--authentication-skip-lookup=true",
        "--bind-address=127.0.0.1",
        "--secure-port=0",
        "--port=0",
    )
