"""Tables on a narrow terminal: no word is broken."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from rich.console import Console

from broker.commands import output
from broker.commands.inventory import inventory
from broker.commands.output import Format, show

ROW: dict[str, Any] = {
    "id": "cr-0123456789abcdef0",
    "type": "p5.48xlarge",
    "zone": "us-east-1a",
    "free_of": "1/4",
    "state": "active",
    "usd_hour": "55.04",
    "owner": "research/gpus (not in this cluster)",
    "end": None,
    "kind": "default",
    "match": "targeted",
}
WORDS = {word for value in ROW.values() if value for word in value.split()} - {"default", "targeted"}


@pytest.mark.parametrize("width", range(40, 130, 5))
def test_no_word_of_the_inventory_is_broken(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output, "console", lambda: Console(width=width, color_system=None, highlight=False))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    rows = [ROW, ROW | {"id": "cr-0fedcba9876543210", "usd_hour": "unknown"}]
    columns = {key: heading for key, heading in inventory.COLUMNS.items() if key != "lent_text"}
    show(rows, columns=columns, extra=inventory.EXTRA, format_=Format.TABLE)
    shown = capsys.readouterr().out
    assert {*shown.split()} >= WORDS | {"cr-0fedcba9876543210", "unknown"}
    assert max(map(len, shown.splitlines())) <= max(width, 52)
