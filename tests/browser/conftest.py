"""Debian's Chromium without a window, and axe-core from its package."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver

from tests.browser.browsers import chrome

AXE = "4.14.1"
CACHE = Path(__file__).parents[2] / ".cache" / "browser"


def missing(name: str) -> None:
    """Skips; where CI_REQUIRE_BROWSER is set it fails."""
    assert not os.environ.get("CI_REQUIRE_BROWSER"), f"{name} is not installed"
    pytest.skip(f"{name} is not installed: apt-get install chromium chromium-driver npm")


@pytest.fixture(scope="session")
def chromium() -> Iterator[webdriver.Chrome]:
    if shutil.which("chromedriver") is None:
        missing("chromedriver")
    with chrome() as opened:
        yield opened


@pytest.fixture
def browser(chromium: webdriver.Chrome) -> Iterator[webdriver.Chrome]:
    """Leaves no page open that would read itself anew until the end of the run."""
    yield chromium
    chromium.get("about:blank")


@pytest.fixture(scope="session")
def axe() -> str:
    """The source of axe-core."""
    script = CACHE / "package" / "axe.min.js"
    if not script.exists():
        if shutil.which("npm") is None:
            missing("npm")
        CACHE.mkdir(parents=True, exist_ok=True)
        subprocess.run(["npm", "pack", "--silent", f"axe-core@{AXE}"], cwd=CACHE, check=True)
        subprocess.run(["tar", "-xzf", f"axe-core-{AXE}.tgz"], cwd=CACHE, check=True)
    return script.read_text()
