"""The page in a real Chromium: live, with 10,000 rows, on a phone, and for screen readers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from broker.history.demand import UseLevel, pulse
from broker.history.recorder import HistoryRecorder
from broker.history.store import HistoryStore
from broker.history.tables import Batch
from broker.webpage.server import WebPage
from tests.browser.screenshots import IMAGES, take
from tests.docs.blocks import ROOT
from tests.unit.history.facts import event, fill, launch, refusal
from tests.unit.webpage.samples import DETAILS
from tests.unit.webpage.world import CLOCK, OPEN, state

PATHS = (
    "/",
    "/record",
    "/waiting",
    "/reservations",
    "/cohorts",
    "/shortages",
    "/claims/train-1",
    "/odcrs/cr-1",
    "/advice",
    "/nodes",
    "/pods/team/worker-0",
    "/pods/team/waits-0",
    "/reservations/team/gpus",
    "/namespaces/team",
)
PAGES = (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))
PHONE, WIDE = (390, 844), (1440, 900)


@pytest.fixture(scope="module")
def world() -> Iterator[tuple[str, HistoryRecorder]]:
    """The address of a page with 10,000 attempts, 2,700 waiting claims and 1,000 reservations."""
    store = HistoryStore()
    fill(store, *(refusal(n) for n in range(10_000)), launch(10_001), event())
    for age in range(24, 0, -3):
        at = int(CLOCK.now().timestamp()) - age * 3600
        levels = [
            UseLevel(at, f"cr-{n}", "p5.48xlarge", "us-east-1a", "Linux/UNIX", 8, 5, 0, 55_040_000)
            for n in range(1_000)
        ]
        store.write(Batch(levels=[*levels, pulse(at)]))
    recorder, live = HistoryRecorder(store, clock=CLOCK), state(claims=2_700, odcrs=1_000)
    page = WebPage(
        recorder,
        lambda: live,
        OPEN,
        clock=CLOCK,
        host="127.0.0.1",
        port=0,
        cluster="blue",
        details=lambda: DETAILS,
    )
    page.start()
    yield page.url, recorder
    page.close()


def shown(browser: webdriver.Chrome, url: str, size: tuple[int, int] = WIDE) -> webdriver.Chrome:
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size == PHONE},
    )
    browser.get(url)
    return browser


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_fault_and_the_console_is_empty(
    browser: webdriver.Chrome, axe: str, world: tuple[str, HistoryRecorder], scheme: str
) -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    for path in PATHS:
        shown(browser, world[0] + path)
        browser.execute_script(axe)
        # Contrast is the same in each row.
        options = {"exclude": [["tbody tr:nth-child(n+4)"]]}
        faults: list[Any] = browser.execute_async_script(
            "axe.run(arguments[0]).then(r => arguments[1](r.violations.map("
            "v => [v.id, v.nodes.slice(0, 2).map(n => n.html)])))",
            options,
        )
        assert faults == [], path
        untyped: Any = browser
        assert untyped.get_log("browser") == [], path


@pytest.mark.covers("CAP-16")
def test_a_phone_shows_the_page_without_scrolling_sideways(
    browser: webdriver.Chrome, world: tuple[str, HistoryRecorder]
) -> None:
    for path in PATHS:
        page = shown(browser, world[0] + path, PHONE)
        assert page.execute_script("return document.documentElement.scrollWidth") <= PHONE[0], path


@pytest.mark.covers("CAP-16")
def test_a_page_of_10_000_attempts_has_few_rows(
    browser: webdriver.Chrome, world: tuple[str, HistoryRecorder]
) -> None:
    for path in ("/", "/record", "/reservations"):
        page = shown(browser, world[0] + path)
        assert 0 < len(page.find_elements(By.CSS_SELECTOR, "tbody tr")) <= 300, path


@pytest.mark.covers("CAP-16")
def test_a_new_refusal_appears_by_itself_and_keeps_the_focus(
    browser: webdriver.Chrome, world: tuple[str, HistoryRecorder]
) -> None:
    url, recorder = world
    page = shown(browser, f"{url}/record?name=train-live")
    assert "Nothing is recorded." in page.page_source
    page.find_element(By.LINK_TEXT, "Waiting").send_keys(Keys.NULL)
    page.execute_script("document.querySelector('nav a').focus()")
    fill(recorder.store, refusal(3, claim="train-live", request_id="req-live"))
    recorder.version += 1
    WebDriverWait(page, 40).until(lambda p: "req-live" in p.page_source)
    assert page.execute_script("return document.activeElement.textContent") == "Overview"


def test_the_keyboard_reaches_content_and_filters(
    browser: webdriver.Chrome, world: tuple[str, HistoryRecorder]
) -> None:
    page = shown(browser, f"{world[0]}/record")
    page.find_element(By.TAG_NAME, "body").send_keys(Keys.TAB)
    assert page.execute_script("return document.activeElement.textContent") == "Skip to content"
    page.switch_to.active_element.send_keys(Keys.ENTER)
    assert page.execute_script("return document.activeElement.id") == "main"
    page.find_element(By.TAG_NAME, "summary").send_keys(Keys.ENTER)
    page.find_element(By.NAME, "request_id").send_keys("req-77", Keys.ENTER)
    WebDriverWait(page, 40).until(lambda p: "request_id=req-77" in p.current_url)
    rows = page.find_elements(By.CSS_SELECTOR, "tbody tr")
    assert 0 < len(rows) <= 100 and all("req-77" in row.text for row in rows[:3])


@pytest.mark.covers("ONC-04")
@pytest.mark.parametrize("size", [PHONE, (1280, 900), (1600, 900)], ids=lambda size: str(size[0]))
def test_a_slot_shows_its_holder_to_keyboard_and_mouse(
    browser: webdriver.Chrome, world: tuple[str, HistoryRecorder], size: tuple[int, int]
) -> None:
    page = shown(browser, world[0], size)
    picture = page.find_element(By.CLASS_NAME, "capacity")
    mark = picture.find_element(By.CSS_SELECTOR, "a.slot.lent")
    tip = mark.find_element(By.CLASS_NAME, "tip")
    assert mark.text == "L" and not tip.is_displayed()
    page.execute_script("arguments[0].focus({focusVisible: true})", mark)
    assert tip.is_displayed()
    for part in ("train-2", "team/worker-of-train-2", "draws from other/research", "1h", "55.04 $/h"):
        assert part in tip.text
    assert page.execute_script("return document.documentElement.scrollWidth") <= size[0]
    assert {link.text for link in picture.find_elements(By.TAG_NAME, "h3")} >= {"team/gpus", "other/research"}


@pytest.mark.covers("ONC-04")
@pytest.mark.parametrize("size", [PHONE, (1280, 900), (1600, 900)], ids=lambda size: str(size[0]))
def test_charts_have_axes_and_a_table(
    browser: webdriver.Chrome, world: tuple[str, HistoryRecorder], size: tuple[int, int]
) -> None:
    page = shown(browser, world[0], size)
    slots, dollars = page.find_elements(By.CSS_SELECTOR, "figure.chart")
    for chart, heights in ((slots, {"0", "5000", "10000"}), (dollars, {"0", "100000", "200000"})):
        labels = {label.text for label in chart.find_elements(By.TAG_NAME, "text")}
        assert heights <= labels and len({label for label in labels if label.endswith(":00")}) == 4
        assert chart.find_elements(By.CSS_SELECTOR, "rect.idle")
        table = chart.find_element(By.TAG_NAME, "table")
        assert not table.is_displayed()
        chart.find_element(By.TAG_NAME, "summary").send_keys(Keys.ENTER)
        assert table.is_displayed() and len(table.find_elements(By.CSS_SELECTOR, "tbody tr")) == 24
    assert page.execute_script("return document.documentElement.scrollWidth") <= size[0]


@pytest.mark.covers("ONC-11")
def test_pictures_of_the_pages_are_made_by_one_command(browser: webdriver.Chrome, tmp_path: Path) -> None:
    taken = {path.name for path in take(browser, tmp_path)}
    shown_images = {name for page in PAGES for name in re.findall(r"images/(\S+\.png)", page.read_text())}
    assert taken == shown_images == {path.name for path in IMAGES.iterdir()}
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in tmp_path.iterdir())
