"""`errors --history` with a database that cannot be used: one line, exit code 2, and never a password.

The command creates and changes nothing, whatever the option names.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from broker.history.store import HistoryStore

from .kit import main

PASSWORD = "not-for-logs"
OTHERS = "write memory to read the cluster instead"


def failure(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The only line that `errors` prints when it has no answer."""
    assert main("errors", *arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert line.startswith("capacity-broker: --history (BROKER_HISTORY)")
    assert PASSWORD not in line
    return line


@pytest.mark.covers("USR-25")
@pytest.mark.parametrize("user", ["broker", f"broker:{PASSWORD}"])
def test_unreachable_server_is_one_line_without_the_password(
    capsys: pytest.CaptureFixture[str], user: str
) -> None:
    line = failure(capsys, "--history", f"postgresql://{user}@127.0.0.1:1/x")
    assert "@127.0.0.1:1/x: " in line and "Connection refused: check that it is up" in line
    assert line.endswith(OTHERS)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        (f"postgresql://broker@127.0.0.1:1/x?password={PASSWORD}", "Connection refused"),
        (f"postgresql://broker@127.0.0.1:1/x?password={PASSWORD}&colour=red", "colour"),
        (f"postgresql://broker:p@{PASSWORD}@127.0.0.1:1/x", "write @ in its user or password as %40"),
        (f"postgresql://127.0.0.1:{PASSWORD}/x", "not a URL of a database"),
        (f"postgres://broker:{PASSWORD}@127.0.0.1:1/x", "postgresql://USER:PASSWORD@HOST/DATABASE"),
        (f"postgresql:broker:{PASSWORD}@127.0.0.1/x", "postgresql://USER:PASSWORD@HOST/DATABASE"),
        (f"mysql://broker:{PASSWORD}@127.0.0.1:1/x", "postgresql://USER:PASSWORD@HOST/DATABASE"),
    ],
)
def test_no_form_of_a_url_shows_its_password(
    capsys: pytest.CaptureFixture[str], url: str, reason: str
) -> None:
    assert reason in failure(capsys, "--history", url)


def test_file_that_is_no_database_is_one_line_by_option_and_variable(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "hostname"
    path.write_text("node-1\n" * 100)
    line = failure(capsys, "--history", str(path))
    assert f"is '{path}': file is not a database: name the database that the broker writes" in line
    assert line.endswith(OTHERS)
    monkeypatch.setenv("BROKER_HISTORY", str(path))
    assert failure(capsys) == line


def test_path_that_cannot_be_opened_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (str(tmp_path), str(tmp_path / "file" / "history.db"), "~no-such-user/history.db"):
        assert OTHERS in failure(capsys, "--history", path)


@pytest.mark.covers("USR-25")
def test_path_without_a_file_is_no_all_clear_and_creates_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for path in (tmp_path / "history.db", tmp_path / "new" / "folder" / "history.db"):
        line = failure(capsys, "--history", str(path))
        assert f"is '{path}': there is no such file: run this where the file is" in line
        assert line.endswith(OTHERS)
    assert list(tmp_path.iterdir()) == []


def test_database_without_a_history_is_no_all_clear_and_stays_as_it_is(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    empty, other = tmp_path / "empty.db", tmp_path / "other.db"
    empty.touch()
    connection = sqlite3.connect(other)
    connection.execute("CREATE TABLE notes (text)")
    connection.close()
    before = {path: path.read_bytes() for path in (empty, other)}
    for path in before:
        assert f"is '{path}': it has no table history_" in failure(capsys, "--history", str(path))
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_history_of_an_ended_broker_is_read_and_stays_as_it_is(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "history.db"
    store = HistoryStore(str(path))
    store.open()
    store.close()
    before = path.read_bytes()
    assert main("errors", "--history", str(path)) == 0
    assert capsys.readouterr().out == "no refusal and no problem in the last 1h\n"
    assert list(tmp_path.iterdir()) == [path] and path.read_bytes() == before
