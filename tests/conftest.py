"""Shared by every suite: hypothesis profiles and no route to a real account."""

from __future__ import annotations

import gc
import os

import pytest
import structlog
from hypothesis import HealthCheck, settings

from broker.memory import collect_seldom
from tests.support.examples import DEEP, QUICK

pytest_plugins = ["tests.support.servers"]
collect_seldom()

# The same examples in every run: a failure is the same on each machine. `deep` looks for new ones.
settings.register_profile(
    "quick",
    max_examples=QUICK,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("deep", max_examples=DEEP, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

# The programs in Go beside the tests live shortly: they take more memory and search less for garbage.
os.environ.setdefault("GOGC", "400")

# Tracebacks with all variables, as on a terminal, take a second each.
structlog.configure(
    processors=[
        *structlog.get_config()["processors"][:-1],
        structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback),
    ]
)

_LOGS = structlog.get_config()
_NO_ACCOUNT = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}

# The longest tests begin first, so that at the end of a run no process waits for another's long test.
LONGEST = ("tests/peers/", "tests/benchmarks/", "tests/faults/", "tests/cluster/", "tests/cli/", "tests/aws/")
REAL_SERVER = 1.5  # those of the real API server stay together: each process that runs one starts a server


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--lag", type=float, help="EC2 shows changes so many seconds late")
    parser.addoption("--all-real", action="store_true", help="every cluster test on the real API server too")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_rank)


def _rank(item: pytest.Item) -> float:
    rank = next((n for n, folder in enumerate(LONGEST) if item.nodeid.startswith(folder)), len(LONGEST))
    return REAL_SERVER if rank > REAL_SERVER and item.get_closest_marker("real") else rank


def pytest_collection_finish() -> None:
    """Freezes imported and collected objects: walking them for garbage was a twelfth of a run."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Removes changes of the process by earlier tests. A fixture would cost more time than most tests.

    A level of the logs would hide lines, and a test that forgets its endpoint must fail, not spend money.
    """
    structlog.configure(**_LOGS)
    for name in ("AWS_PROFILE", "AWS_ENDPOINT_URL", "KUBECONFIG", "CLUSTER_NAME"):
        os.environ.pop(name, None)
    os.environ.update(_NO_ACCOUNT)
