"""The longest names of AWS beside each other: every column of a table is on a small desktop screen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from selenium import webdriver

from broker.history.store import HistoryStore
from providers.errors import ErrorClass
from tests.browser.test_browser import shown
from tests.unit.history.facts import POOL, fill, refusal
from tests.unit.webpage.samples import DETAILS
from tests.unit.webpage.world import page, state

GROUP = "arn:aws:resource-groups:us-east-1:123456789012:group/inference-of-the-research-team"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    pool = replace(POOL, instance_type="p5en.48xlarge", zone="ap-northeast-1c")
    store = HistoryStore()
    refused = refusal(
        claim="inference-4f2c9a1b",
        node_class="inference-otherregion",
        pool=pool,
        code="InvalidLaunchConfiguration",
        class_=ErrorClass.CONFIGURATION,
        message=f"The resource group '{GROUP}' does not exist in this Region, or is not shared",
        request_id="d59c516b-389c-4913-985e-d15daf0b6415",
    )
    fill(store, refused)
    with page(store, state(claims=3, odcrs=2), details=DETAILS) as address:
        yield address


@pytest.mark.covers("ONC-06")
@pytest.mark.parametrize("path", ["/", "/record", "/claims/inference-4f2c9a1b"])
def test_no_column_is_out_of_view(browser: webdriver.Chrome, url: str, path: str) -> None:
    seen = shown(browser, url + path, (1280, 900))
    assert "d59c516b-389c-4913-985e-d15daf0b6415" in seen.page_source
    sideways = "return [...document.querySelectorAll('.table')].filter(t => t.checkVisibility() && "
    sideways += "t.scrollWidth > t.clientWidth + 1 && !t.closest('details'))"
    sideways += ".map(t => [t.ariaLabel, t.scrollWidth, t.clientWidth])"
    assert seen.execute_script(sideways) == []
