"""A pytest plugin for moto's tests: installs local AWS first, and writes failures and the tests before them.

It stands in a folder of its own, since moto's tests are a package called `tests` as well.
"""

import json
import os
from pathlib import Path

import pytest

EXTENDED = os.environ.get("MOTO_SUITE_EXTENDED") == "1"
REPORT = Path(os.environ["MOTO_SUITE_REPORT"])

_failed: dict[str, str] = {}
_passed: set[str] = set()
_order: dict[str, list[str]] = {}  # by worker: the tests as they ran


def pytest_configure(config: pytest.Config) -> None:
    if EXTENDED:
        from local.aws import install

        install()
    for name in ("aws_verified", "network", "requires_docker", "requires_clean_slate"):
        config.addinivalue_line("markers", f"{name}: moto's own")


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        _failed[report.nodeid] = report.longreprtext


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "setup":
        _order.setdefault(getattr(report, "worker_id", "main"), []).append(report.nodeid)
    if report.failed:
        _failed[report.nodeid] = report.longreprtext
    elif report.when == "call" and report.passed:
        _passed.add(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workerinput"):
        return
    from moto.ec2.models import ec2_backends

    REPORT.write_text(
        json.dumps(
            {
                "ec2_backend": f"{ec2_backends.backend.__module__}.{ec2_backends.backend.__name__}",
                "passed": sorted(_passed - _failed.keys()),
                "failed": _failed,
                "order": list(_order.values()),
            }
        )
    )
