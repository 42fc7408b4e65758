"""`advise`: the table, the what-ifs, too little record, and a record that cannot be read."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml

from broker.history.demand import UseLevel, pulse
from broker.history.store import HistoryStore
from broker.history.tables import Batch

from .kit import main, run

HOUR = 3600
TYPE = "p5.48xlarge"
ID = "cr-0123456789abcdef0"
USD = 55_040_000


def record(path: Path, days: int) -> str:
    """Two slots with one in use; two more claims wait half of the time. Another pool is short, too."""
    store = HistoryStore(str(path))
    store.open()
    now = int((datetime.now(UTC) - timedelta(days=days)).timestamp())
    for hour in range(days * 24):
        at = now + hour * HOUR
        waiting = 3 * (hour % 2)
        of_pool = UseLevel(at, "", TYPE, "us-east-1b", "Linux/UNIX", 0, 0, waiting, USD)
        used = UseLevel(at, ID, TYPE, "us-east-1a", "Linux/UNIX", 2, 1, waiting, USD)
        store.write(Batch(levels=[used, of_pool, pulse(at)]))
    store.close()
    return str(path)


@pytest.mark.covers("ONC-10")
def test_table_has_number_dollars_hours_and_demand_of_each_row(tmp_path: Path) -> None:
    path = record(tmp_path / "history.db", days=3)
    result = run("advise", "--history", path)
    assert result.exit_code == 0
    head, model, columns, *rows = result.stdout.splitlines()
    assert head == "3.0 days of record"
    assert model.startswith("A slot costs as much as on demand, used or idle; a slot-hour short")
    assert columns.split()[:7] == ["RESERVATION", "OR", "POOL", "DAYS", "SLOTS", "BEST", "REPLAYED"]
    assert [row.split("  ")[0] for row in rows if row.strip()] == [ID, f"{TYPE} in us-east-1b"]
    assert rows[0].split()[1:5] == ["3.0", "2", "4", "4"]
    assert "72 -> 0" in rows[0] and "█" in rows[0] and rows[0].rstrip().endswith(" 4")
    assert max(map(len, result.stdout.splitlines())) <= 100


@pytest.mark.covers("ONC-10")
def test_what_if_replays_the_record(tmp_path: Path) -> None:
    path = record(tmp_path / "history.db", days=3)
    whole = json.loads(run("advise", ID, "--history", path, "-o", "json").stdout)
    assert whole["days"] == pytest.approx(3.0, abs=0.01)
    (row,) = whole["rows"]
    assert row["best"] == row["count"] == 4 and row["saved"] > 0 and row["usd_hour"] > 0
    assert row["demand"][0]["demand"] == 1
    less = yaml.safe_load(run("advise", ID, "--history", path, "--count", "1", "-o", "yaml").stdout)
    assert less["rows"][0]["count"] == 1 and less["rows"][0]["saved"] < 0
    by_day = json.loads(run("advise", ID, "--history", path, "--hours", "8-18", "-o", "json").stdout)["rows"][
        0
    ]
    # At night there are no slots: in every second hour, four are short.
    assert by_day["short_hours_then"] == pytest.approx(3 * 14 / 2 * 4, abs=8)
    assert "from 8:00 to 18:00 UTC" in run("advise", "--history", path, "--hours", "8-18").stdout
    cheap = json.loads(run("advise", ID, "--history", path, "--short-cost", "0", "-o", "json").stdout)
    assert cheap["rows"][0]["best"] == 0


@pytest.mark.covers("ONC-10")
def test_below_two_days_there_is_no_advice(tmp_path: Path) -> None:
    result = run("advise", "--history", record(tmp_path / "history.db", days=1), "--count", "3")
    assert result.exit_code == 0
    assert result.stdout.startswith("1.0 days of record: no advice below 2 days\n")
    assert result.stdout.splitlines()[2].split()[1:6] == ["1.0", "2", "-", "-", "-"]
    empty = HistoryStore(str(tmp_path / "empty.db"))
    empty.open()
    empty.close()
    result = run("advise", "--history", str(tmp_path / "empty.db"))
    assert (result.exit_code, result.stdout) == (0, "0.0 days of record: no advice below 2 days\n")


def test_database_of_an_older_broker_has_no_advice_and_serves_the_other_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = record(tmp_path / "history.db", days=2)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP TABLE history_levels")
    assert main("advise", "--history", path) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "it has no table history_levels: the broker that writes it is older: upgrade the broker" in line
    assert main("errors", "--history", path) == 0


def test_unknown_reservation_and_unreadable_options_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = record(tmp_path / "history.db", days=2)
    assert "no reservation and no short pool cr-9" in run("advise", "cr-9", "--history", path).stdout
    assert main("advise", "--history", path, "--hours", "soon") == 2
    assert "write hours of the day in UTC such as 8-18" in capsys.readouterr().err
    assert main("advise") == 2
    assert "its page /advice" in capsys.readouterr().err
