"""Messages have names that users wrote, and whole dates: checked in the source, and in messages of a plan."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from broker.capacity.attempts import Attempt, Outcome
from broker.capacity.model import Pool
from broker.controllers.launch.report import limit
from broker.text import format_time, plain
from broker.webpage.heat import heat_map
from providers.errors import ErrorClass
from tests.docs.blocks import ROOT

# Where messages for people are made: conditions, events, status, commands, the web page.
PACKAGES = (
    "capacity",
    "controllers",
    "reservations",
    "quota",
    "placement",
    "commands",
    "webpage",
    "oncall",
    "history",
)
# An f-string with one of these attributes would show an ARN, or an id that no user wrote.
INTERNAL = frozenset({"pool", "arn", "group_arn"})
# Text that no user reads: keys, and errors of a programmer.
NOT_MESSAGES = frozenset({"template.py", "launches.py", "shortages.py"})
# Attributes of the same name that are names which users wrote: a NodePool, a pool of Ceph.
NAMES = (" sort.pool", " rbd.pool")
GROUP = "arn:aws:resource-groups:us-east-1:123456789012:group/h100"


def strings() -> Iterator[tuple[Path, ast.FormattedValue]]:
    for package in PACKAGES:
        for path in (ROOT / "broker" / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.FormattedValue):
                    yield path, node


def test_no_message_shows_an_internal_spelling() -> None:
    lines = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node.value)}"
        for path, node in strings()
        if isinstance(node.value, ast.Attribute)
        and node.value.attr in INTERNAL
        and path.name not in NOT_MESSAGES
    ]
    assert [line for line in lines if not line.endswith(NAMES)] == []


def test_a_time_in_a_message_is_written_with_its_date_and_year_by_one_function() -> None:
    formats = [(path, ast.unparse(node.format_spec)) for path, node in strings() if node.format_spec]
    assert [f"{path.name}: {text}" for path, text in formats if "%H" in text or "%d" in text] == []
    assert format_time(datetime(2027, 1, 31, 8, tzinfo=UTC)) == "2027-01-31T08:00:00Z"


def test_a_group_is_shown_by_its_name_in_a_pool_and_alone_by_its_arn() -> None:
    pool = Pool(capacity_type="reserved", instance_type="p5.48xlarge", zone="us-east-1a", reservation=GROUP)
    assert pool.shown == "group h100 (p5.48xlarge, us-east-1a)"
    assert plain(f"{GROUP} is unknown") == f"{GROUP} is unknown"
    for outcome in (Outcome.LAUNCHED, Outcome.REFUSED):
        refused = Attempt(
            claim="train-0",
            node_class="training",
            pool=pool,
            outcome=outcome,
            at=datetime(2026, 11, 21, tzinfo=UTC),
            class_=ErrorClass.RESERVATION_FULL,
            code="ReservationCapacityExceeded",
        )
        update = limit(refused)
        assert update is not None
        assert "group h100" in update.message
        assert "arn:" not in update.message
    map_ = heat_map([(0, str(pool), 3)], first=0, last=300, width=300)
    assert [row.pool for row in map_.rows] == [pool.shown]
