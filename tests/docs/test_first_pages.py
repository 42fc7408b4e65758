"""README and CONTRIBUTING: what a new reader looks for."""

from __future__ import annotations

import re

import pytest

from tests.docs.blocks import ROOT, blocks

README = (ROOT / "README.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()


@pytest.mark.covers("ONC-11")
def test_readme_is_short_and_leads_on() -> None:
    assert len(README.splitlines()) <= 150
    opening = README.partition("##")[0]
    assert "On-Demand Capacity Reservations" in opening and "platform engineers" in opening
    assert len(re.findall(r"^!\[", README, re.MULTILINE)) == 1
    first = [block.splitlines()[0] for block in blocks(ROOT / "README.md", "console")]
    assert first[:2] == ["$ make demo ONCE=1", "$ make test"]
    pages = ("use/quickstart-eks.md", "use/demos.md", "operate/production.md")
    for page in ("CONTRIBUTING.md", *(f"docs/{page}" for page in pages)):
        assert f"({page})" in README, page


@pytest.mark.covers("ONC-11")
def test_contributing_maps_rooms_and_tests_and_names_the_generators() -> None:
    rooms = {path.name for path in (ROOT / "broker").iterdir() if (path / "__init__.py").exists()}
    suites = {path.name for path in (ROOT / "tests").iterdir() if [*path.glob("test_*.py")]}
    assert not {room for room in rooms if f"broker/{room}/" not in CONTRIBUTING}
    assert not {suite for suite in suites if f"`tests/{suite}`" not in CONTRIBUTING}
    for command in ("local.generators.crdgen", "local.generators.fielddocs", "local.generators.monitoring"):
        assert command in CONTRIBUTING
    assert "make screenshots" in CONTRIBUTING
