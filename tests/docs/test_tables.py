"""The tables on the pages match the code."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from providers.aws import errors
from providers.errors import CLASSES, ErrorClass
from tests.docs import tables
from tests.docs.blocks import DOCS
from tests.unit.apis import test_ome


@pytest.mark.parametrize("page", tables.pages(), ids=lambda page: page.name)
def test_page_has_the_current_tables_of_the_code(page: Path) -> None:
    assert page.read_text() == tables.regenerated(page.read_text()), "run python -m tests.docs.tables"


def test_every_table_is_on_some_page() -> None:
    shown = {match[2] for page in tables.pages() for match in tables.BLOCK.finditer(page.read_text())}
    assert shown == set(tables.BLOCKS)


def rows(page: str, heading: str) -> Mapping[str, list[str]]:
    """The cells of the table under these first headings, by the first cell."""
    text = (DOCS / page).read_text()
    body = text[text.index(f"| {heading}") :].split("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in body]
    return {row_cells[0].strip("`"): row_cells[1:] for row_cells in cells}


@pytest.mark.covers("KRP-18")
def test_every_code_leads_to_a_class_and_every_class_to_an_answer() -> None:
    codes, answers = (
        rows("reference/errors.md", "code | class |"),
        rows("reference/errors.md", "class | remembered"),
    )
    assert {code: CLASSES[cells[0].strip("`")] for code, cells in codes.items()} == errors.TABLE
    assert set(answers) == {str(class_) for class_ in ErrorClass}
    for class_, cells in answers.items():
        assert cells[3].strip("`") == CLASSES[class_].policy.reason
    assert codes["ReservationCapacityExceeded"] == ["`reservation-full`"]
    assert answers["subnet"][0] == answers["subnet"][0].replace("reservation", "")
    assert answers["throttling"][0] == "nothing"


@pytest.mark.covers("OME-100")
def test_corrections_of_ome_s_examples_are_documented() -> None:
    page_text = (DOCS / "operate/webhook.md").read_text()
    for name, notes in test_ome.NOTES.items():
        assert [note for note in notes if note not in page_text] == []
        assert (f"| {name}, line " in page_text) is bool(notes)


def test_a_changed_table_is_found() -> None:
    page = (DOCS / "reference/errors.md").read_text()
    assert tables.regenerated(page.replace("`VcpuLimitExceeded`", "`VcpuLimit`")) == page
    with pytest.raises(KeyError):
        tables.regenerated("<!-- generated: nothing -->\n<!-- end -->")
