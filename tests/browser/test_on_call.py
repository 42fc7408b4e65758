"""From a real refusal of EC2 to the answers of a person on call, in a browser."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from broker.commands.explain.live import LIVE
from broker.kube.clock import SystemClock
from broker.webpage.assembly import OnCallViews
from local.in_process import InProcessTransport
from tests.browser.test_browser import PHONE, shown
from tests.cluster.account import A
from tests.cluster.objects import ON_DEMAND
from tests.cluster.stack import SETTINGS, Stack
from tests.support.definitions import defined
from tests.support.direct import local_aws_here

CODE = "InsufficientInstanceCapacity"


@pytest.fixture
def refused() -> Iterator[tuple[str, str]]:
    """The page's address after EC2 refused a launch, and an idle reservation."""
    with local_aws_here() as server:
        stack = Stack(server, InProcessTransport(defined()))
        idle = stack.aws.odcr("p5.48xlarge", count=2)
        stack.node_class(zones=(A,))
        stack.node_pool()
        broker = stack.start()
        assert stack.current is not None
        settings = replace(SETTINGS, web=True, web_port=0)
        views = OnCallViews(settings, stack.client, clock=SystemClock(), explainer=LIVE)
        views.follow(broker)
        views.start()
        try:
            stack.control.fault(
                action="CreateFleet", stage="launch", code=CODE, message="none left", times=-1
            )
            stack.claim("train-0", capacity=(ON_DEMAND,), pool="gpu")
            stack.until_waiting("train-0", "InsufficientCapacity")
            stack.until(lambda: views.history.version, "a record")
            yield views.url, idle
        finally:
            views.close()
            stack.close()


def row_with(page: webdriver.Chrome, heading: str, part: str) -> Any:
    """The first row with this text in the table of this label."""
    rows = page.find_elements(By.CSS_SELECTOR, f'[aria-label="{heading}"] tbody tr')
    return next(row for row in rows if part in row.text)


@pytest.mark.covers("CAP-16")
def test_the_person_on_call_finds_the_shortage_its_history_cost_and_way_out(
    browser: webdriver.Chrome, refused: tuple[str, str]
) -> None:
    url, idle = refused
    page = shown(browser, url)
    short = row_with(page, "Short now", CODE).text
    assert "on-demand m5.large in us-east-1a" in short and "arn:" not in page.page_source
    assert " ago" in short and "none left" in short
    assert "allow more types, zones or capacity types" in short
    row = row_with(page, "Reservations with idle slots, the dearest first", idle)
    cells = {c.get_attribute("data-label"): c.text for c in row.find_elements(By.TAG_NAME, "td")}
    assert (cells["Idle"], cells["Used"]) == ("2", "0/2")
    assert float(cells["Idle $/h"].replace(",", "")) > 10
    page.find_element(By.LINK_TEXT, "train-0").click()
    WebDriverWait(page, 40).until(lambda p: "/claims/train-0" in p.current_url)
    tried = row_with(page, "Attempts and changes, the newest first", CODE)
    assert "Next: " in tried.text and "m5.large" in tried.text
    request = tried.find_element(By.CSS_SELECTOR, 'td[data-label="Message"] a[href*="request_id"]')
    name = request.text
    request.click()
    WebDriverWait(page, 40).until(lambda p: f"request_id={name}" in p.current_url)
    assert name and row_with(page, "Attempts and changes, the newest first", name)
    page = shown(browser, f"{url}/shortages", PHONE)
    assert "on-demand m5.large in us-east-1a" in page.page_source
    assert page.execute_script("return document.documentElement.scrollWidth") <= PHONE[0]
