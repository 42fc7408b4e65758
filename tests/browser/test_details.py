"""The pages of nodes, slots, claims, pods and teams in a real Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from broker.history.store import HistoryStore
from tests.browser.test_browser import PHONE, shown
from tests.browser.test_on_call import row_with
from tests.unit.webpage.samples import DETAILS
from tests.unit.webpage.world import page, state

SIZES = [PHONE, (1280, 900), (1600, 900)]
PATHS = (
    "/nodes",
    "/odcrs/cr-1",
    "/claims/train-1",
    "/pods/team/worker-0",
    "/pods/team/waits-0",
    "/reservations/team/gpus",
    "/namespaces/team",
)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with page(HistoryStore(), state(claims=2), details=DETAILS) as address:
        yield address


def cells(row: Any) -> dict[str, str]:
    return {cell.get_attribute("data-label"): cell.text for cell in row.find_elements(By.TAG_NAME, "td")}


@pytest.mark.covers("ONC-05")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES, ids=lambda size: str(size[0]))
def test_pages_are_accessible_and_fit_the_screen(
    browser: webdriver.Chrome, axe: str, url: str, size: tuple[int, int], scheme: str
) -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    for path in PATHS:
        shown(browser, url + path, size)
        assert browser.execute_script("return document.documentElement.scrollWidth") <= size[0], path
        browser.execute_script(axe)
        faults: list[Any] = browser.execute_async_script(
            "axe.run().then(r => arguments[0](r.violations.map("
            "v => [v.id, v.nodes.slice(0, 2).map(n => n.html)])))"
        )
        assert faults == [], path


@pytest.mark.covers("ONC-05")
@pytest.mark.parametrize("size", SIZES, ids=lambda size: str(size[0]))
def test_a_person_finds_the_fill_of_a_node(
    browser: webdriver.Chrome, url: str, size: tuple[int, int]
) -> None:
    opened = shown(browser, url, size)
    opened.find_element(By.LINK_TEXT, "Nodes").send_keys(Keys.ENTER)
    WebDriverWait(opened, 40).until(lambda p: p.current_url.endswith("/nodes"))
    row = row_with(opened, "Nodes", "ip-train-1")
    shown_cells = cells(row)
    assert "CPU 48.5/192" in shown_cells["Requested"] and "GPU 6/8" in shown_cells["Requested"]
    bar = row.find_element(By.CSS_SELECTOR, 'meter[aria-label^="GPU"]')
    assert bar.is_displayed() and float(bar.get_attribute("value")) == 0.75
    assert (shown_cells["Pods"], shown_cells["$/h"], shown_cells["Age"]) == ("2", "55.04", "1h")
    assert shown_cells["Reserved"].split() == ["cr-1", "of", "team/gpus"]
    assert cells(row_with(opened, "Nodes", "ip-web-1"))["Reserved"] == "no, on-demand"


@pytest.mark.covers("ONC-05")
@pytest.mark.parametrize("size", SIZES, ids=lambda size: str(size[0]))
def test_a_person_finds_who_holds_a_slot_and_the_pods_in_it(
    browser: webdriver.Chrome, url: str, size: tuple[int, int]
) -> None:
    opened = shown(browser, f"{url}/odcrs/cr-1", size)
    holder = row_with(opened, "Holders of its slots", "train-2")
    slot_cells = cells(holder)
    assert "lent" in slot_cells["Slot"] and slot_cells["Draws from"] == "other/research"
    assert (slot_cells["Since"], slot_cells["$/h"]) == ("1h", "55.04")
    assert holder.find_element(By.LINK_TEXT, "team/worker-of-train-2").is_displayed()
    assert row_with(opened, "Holders of its slots", "of no claim of this cluster")
    holder.find_element(By.LINK_TEXT, "train-2").send_keys(Keys.ENTER)
    WebDriverWait(opened, 40).until(lambda p: p.current_url.endswith("/claims/train-2"))


@pytest.mark.covers("ONC-05")
@pytest.mark.parametrize("size", SIZES, ids=lambda size: str(size[0]))
def test_a_person_goes_from_a_claim_to_its_pod_its_reservation_and_its_team(
    browser: webdriver.Chrome, url: str, size: tuple[int, int]
) -> None:
    opened = shown(browser, f"{url}/claims/train-1", size)
    option = cells(row_with(opened, "Its options, in the broker's order", "skipped"))
    assert "cr-1" in option["Option"] and "SlotsTaken" in option["Why not"]
    opened.find_element(By.LINK_TEXT, "team/worker-0").send_keys(Keys.ENTER)
    WebDriverWait(opened, 40).until(lambda p: p.current_url.endswith("/pods/team/worker-0"))
    facts = opened.find_element(By.CLASS_NAME, "facts")
    assert "reserved, 55.04 $/h" in facts.text and facts.find_element(By.LINK_TEXT, "cr-1").is_displayed()
    facts.find_element(By.LINK_TEXT, "team/gpus").send_keys(Keys.ENTER)
    WebDriverWait(opened, 40).until(lambda p: p.current_url.endswith("/reservations/team/gpus"))
    assert cells(row_with(opened, "Its pods", "team/worker-0"))["$/h"] == "41.28"
    assert "other/research" in row_with(opened, "Lent slots", "train-8").text
    assert "Cost of its pods" in opened.page_source
