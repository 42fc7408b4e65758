"""`make screenshots`: the pictures of the documentation, of the present page."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from selenium import webdriver

from broker.history.demand import UseLevel, pulse
from broker.history.store import HistoryStore
from broker.history.tables import Batch
from broker.oncall.slot_holders import SlotUse, SlotUser
from broker.oncall.slot_marks import SlotRow, slot_rows
from broker.reservations.odcr_view import OdcrView
from broker.webpage.live import LiveState
from providers.model import Odcr
from tests.browser.browsers import chrome
from tests.unit.history.facts import event, fill, launch, refusal
from tests.unit.webpage.samples import DETAILS
from tests.unit.webpage.world import NOW, holder, page, state

IMAGES: Final = Path(__file__).parents[2] / "docs" / "operate" / "images"
# By the name of the image: the page, and its height in pixels.
PICTURES: Final = {
    "overview.png": ("/", 1000),
    "shortages.png": ("/shortages", 420),
    "advice.png": ("/advice", 620),
    "nodes.png": ("/nodes", 560),
}
WIDTH: Final = 1280
_SLOTS: Final = 24
_DAYS: Final = 3
_PRICE: Final = 55_040_000


def take(browser: webdriver.Chrome, folder: Path) -> list[Path]:
    """Writes the pictures into the folder."""
    taken = []
    with filled() as url:
        for name, (path, height) in PICTURES.items():
            metrics = {"width": WIDTH, "height": height, "deviceScaleFactor": 1, "mobile": False}
            browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
            browser.get(url + path)
            browser.save_screenshot(str(folder / name))
            taken.append(folder / name)
    return taken


@contextmanager
def filled() -> Iterator[str]:
    """The address of a page with three days of record."""
    store = HistoryStore()
    fill(store, *(refusal(n) for n in range(40)), launch(41), event())
    drawn = random.Random("screenshots")
    for quarter in range(_DAYS * 96):
        at = int(NOW.timestamp()) - (_DAYS * 96 - quarter) * 900
        wanted = round(18 + 9 * drawn.random() + (4 if 8 <= quarter // 4 % 24 < 18 else -4))
        used, beyond = min(wanted, _SLOTS), max(0, wanted - _SLOTS)
        levels = [_level(at, "cr-0f1e2d3c4b5a69788", _SLOTS, used), _level(at, "", 0, beyond, beyond // 2)]
        store.write(Batch(levels=[*levels, pulse(at)]))
    with page(store, two_teams(), details=DETAILS) as url:
        yield url


def two_teams() -> LiveState:
    """Two teams share accelerators; one node is broken, one ends, and one slot is kept."""
    rows = _rows()
    return replace(state(claims=3), slots=rows, odcrs=[*map(_view, rows)], outside=110.08)


def _view(row: SlotRow) -> OdcrView:
    free = row.count("idle") + row.count("held")
    total = len(row.marks)
    odcr = Odcr(id=row.id, instance_type=row.type, zone=row.zone, total=total, available=free)
    return OdcrView(odcr=odcr, owner=row.owner, owned=bool(row.owner), cost=free * (row.usd_hour or 0.0))


def _rows() -> list[SlotRow]:
    gpus = [holder(f"train-{n}") for n in range(1, 14)]
    gpus[1] = holder("research-1", "other/research")
    gpus[2] = holder("research-2", "other/research", ends="it gives the slot back")
    own = [holder(f"batch-{n}", "other/research") for n in range(5)]
    web = [holder(f"web-{n}", "") for n in range(14)]
    uses = [
        _use("cr-0f1e2d3c4b5a69788", "p5.48xlarge", "us-east-1a", 16, 1, gpus, "team/gpus", kept=1),
        _use("cr-1a2b3c4d5e6f70811", "p5.48xlarge", "us-east-1b", 8, 1, own, "other/research"),
        _use("cr-2b3c4d5e6f7081122", "g6.12xlarge", "us-east-1c", 20, 4, web, ""),
    ]
    prices = {"p5.48xlarge": 55.04, "g6.12xlarge": 4.6}
    return slot_rows(uses, broken={"train-9"}, price=lambda use: prices[use.type])


def _use(
    id_: str, type_: str, zone: str, total: int, free: int, holders: list[SlotUser], owner: str, kept: int = 0
) -> SlotUse:
    return SlotUse(
        id=id_,
        type=type_,
        zone=zone,
        state="active",
        total=total,
        free=free,
        kept=kept,
        owner=owner,
        node_classes=frozenset(),
        holders=tuple(holders),
    )


def _level(at: int, reservation: str, total: int, used: int, waiting: int = 0) -> UseLevel:
    place = ("p5.48xlarge", "us-east-1a", "Linux/UNIX")
    return UseLevel(at, reservation, *place, total, used, waiting, _PRICE)


if __name__ == "__main__":
    with chrome() as opened:
        for path in take(opened, IMAGES):
            print(path)
