"""The overview of the night in a real Chromium: its order, its size, and whole words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By

from tests.browser.test_browser import PHONE, shown
from tests.support import night, night_page

DESKTOP, BROAD = (1280, 900), (1600, 900)
# Words of visible text whose characters are on more than one line.
BROKEN_WORDS = """
const broken = [];
const walker = document.createTreeWalker(document.getElementById("main"), NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const node = walker.currentNode;
  const parent = node.parentElement;
  if (!parent.checkVisibility() || parent.closest("details:not([open]) > :not(summary)")) continue;
  for (const match of node.data.matchAll(/\\S+/g)) {
    const range = document.createRange();
    range.setStart(node, match.index);
    range.setEnd(node, match.index + match[0].length);
    const lines = new Set([...range.getClientRects()].filter(r => r.width > 0).map(r => Math.round(r.top)));
    if (lines.size > 1) broken.push(match[0]);
  }
}
return broken;
"""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with night_page.served() as address:
        yield address


def cells(page: webdriver.Chrome, label: str) -> list[dict[str, str]]:
    """The rows of the table of this label: the text by column."""
    rows = page.find_elements(By.CSS_SELECTOR, f'[aria-label="{label}"] tbody tr')
    return [
        {str(cell.get_attribute("data-label")): cell.text for cell in row.find_elements(By.TAG_NAME, "td")}
        for row in rows
    ]


@pytest.mark.covers("ONC-06")
@pytest.mark.parametrize(("size", "screens"), [(DESKTOP, 2), (PHONE, 5)], ids=["desktop", "phone"])
def test_the_night_fits_two_screens_and_five_of_a_phone(
    browser: webdriver.Chrome, url: str, size: tuple[int, int], screens: int
) -> None:
    page = shown(browser, url, size)
    counts = [tile.text for tile in page.find_elements(By.CSS_SELECTOR, ".figures strong")]
    assert counts[:4] == ["1", "3", "6", "5"]
    assert page.execute_script("return document.documentElement.scrollHeight") <= screens * size[1]
    assert page.execute_script("return document.documentElement.scrollWidth") <= size[0]


@pytest.mark.covers("ONC-06")
@pytest.mark.parametrize("size", [PHONE, DESKTOP, BROAD], ids=lambda size: str(size[0]))
def test_no_word_and_no_id_is_broken(browser: webdriver.Chrome, url: str, size: tuple[int, int]) -> None:
    page = shown(browser, url, size)
    text = page.find_element(By.ID, "main").text
    for word in (night.FULL, "ip-10-0-a2.ec2.internal", *night.CLAIMS, night.ICE):
        assert word in text
    assert page.execute_script(BROKEN_WORDS) == []
    sideways = "return [...document.querySelectorAll('.table')].filter(t => t.checkVisibility() && "
    sideways += "t.scrollWidth > t.clientWidth + 1 && !t.closest('details')).map(t => t.ariaLabel)"
    assert page.execute_script(sideways) == []


@pytest.mark.covers("ONC-06")
def test_failures_are_first_with_their_severity_in_words_and_colour(
    browser: webdriver.Chrome, url: str
) -> None:
    page = shown(browser, url, DESKTOP)
    tiles = page.find_elements(By.CSS_SELECTOR, ".figures li")
    words = [re.sub(r"\s+", " ", tile.text).lower() for tile in tiles]
    assert words[:4] == [
        "1 node is broken critical",
        "3 pods wait warning",
        "6 pools are short warning",
        "5 claims wait warning",
    ]
    assert not any("warning" in word or "critical" in word for word in words[4:])
    tables = ("Broken", "Pods that wait", "Short now", "Waiting", "What you can do", "Idle", "Problems")
    headings = [heading.text for heading in page.find_elements(By.TAG_NAME, "h2")]
    places = [next(n for n, text in enumerate(headings) if text.startswith(name)) for name in tables]
    assert places == sorted(places)
    assert page.find_elements(By.CSS_SELECTOR, ".slot")[0].get_attribute("class") == "slot broken"
    colours = [tag.value_of_css_property("color") for tag in page.find_elements(By.CLASS_NAME, "severity")]
    assert len({*colours[:2]}) == 2


@pytest.mark.covers("ONC-06")
def test_equal_rows_of_several_zones_are_one(browser: webdriver.Chrome, url: str) -> None:
    page = shown(browser, url, DESKTOP)
    short = cells(page, "Short now")
    assert [row["Pool"].replace("\n", " ") for row in short] == [
        "on-demand p5.48xlarge in us-east-1a, 1b, 1c",
        f"{night.FULL} (p5.48xlarge, us-east-1a)",
        "spot p5.48xlarge in us-east-1b",
        "the account's on-demand limit of G instances",
    ]
    (together, alone) = cells(page, "The oldest waiting claims and why, those of one pool and cause together")
    assert [name for name in night.CLAIMS if name in together["Claim"]] == [*night.CLAIMS[:4]]
    assert alone["Claim"] == night.CLAIMS[4]


@pytest.mark.covers("ONC-06")
def test_times_are_relative_with_the_utc_time_at_hand(browser: webdriver.Chrome, url: str) -> None:
    page = shown(browser, url, DESKTOP)
    cell: Any = page.find_element(By.CSS_SELECTOR, '[aria-label="Short now"] td[data-label="Since"] time')
    assert cell.text == "42m ago"
    assert cell.get_attribute("datetime") == "2026-03-01T03:18:00+00:00"
    assert cell.get_attribute("title") == "2026-03-01 03:18:00 UTC"
    relative = page.find_elements(By.CSS_SELECTOR, "td time")
    assert relative and all(re.fullmatch(r"in .+|.+ ago|(\d+[dhms] ?)+", time.text) for time in relative)


@pytest.mark.covers("ONC-06")
def test_columns_without_values_are_dropped(browser: webdriver.Chrome, url: str) -> None:
    page = shown(browser, url, DESKTOP)
    (idle,) = cells(page, "Reservations with idle slots, the dearest first")
    assert "Idle" in idle and not {"Owner", "End", "24 hours"} & {*idle}
    for table in page.find_elements(By.CSS_SELECTOR, "table.cards"):
        rows = [
            row.find_elements(By.TAG_NAME, "td") for row in table.find_elements(By.CSS_SELECTOR, "tbody tr")
        ]
        heads = table.find_elements(By.TAG_NAME, "th")
        for column in range(len(heads)):
            assert any(row[column].text for row in rows), heads[column].text
