"""The page about reservations has the right corrections of OME's own manifests."""

from __future__ import annotations

import re

import pytest

from broker.apis.ome import ReservationSpec
from broker.apis.ome_rules import judge
from broker.controllers.capacityreservation.metrics import TABLES
from broker.reservations.conditions import REASONS
from tests.docs.blocks import DOCS
from tests.unit.apis.test_ome import MANIFESTS, objects

PAGE = (DOCS / "use/reservations.md").read_text()


def rows(heading: str) -> dict[str, str]:
    body = PAGE[PAGE.index(f"| {heading} |") :].split("\n\n")[0].splitlines()[2:]
    cells = [re.split(r"(?<!\\)\|", line) for line in body]
    return {each[1].strip().strip("`"): " ".join(each[2:]) for each in cells}


@pytest.mark.covers("OME-100")
def test_every_manifest_that_is_put_right_is_on_the_page_and_no_other() -> None:
    told = rows("manifest")
    changed = set()
    for manifest in MANIFESTS:
        for obj in objects(manifest):
            if obj["kind"] == "DedicatedAICluster" or "apiVersion" not in obj:
                continue
            spec = ReservationSpec.model_validate(obj["spec"])
            notes = judge(spec, default_cohort="shared").notes
            name = obj["metadata"]["name"]
            if not notes or name not in manifest["text"]:
                continue  # a fragment
            changed.add(name)
            for word in ("memory", "cpu", "borrowingLimit", "LowerPriority", "cohort"):
                if any(f" {word}" in note or f"{word} " in note for note in notes):
                    assert word in told[name], (name, word)
    assert set(told) == changed
    assert "sets a `borrowingLimit` without `allowBorrowing`" in " ".join(PAGE.split())


def test_every_reason_and_every_series_is_on_the_page() -> None:
    conditions = rows("condition")
    assert set(conditions) == set(REASONS)
    for condition, reasons in REASONS.items():
        if condition in ("Ready", "DACAssociationsHealthy", "WorkloadsHealthy", "SpecNormalized"):
            missing = [
                each for each in reasons if f"`{each}`" not in conditions[condition] and each != "Creating"
            ]
            assert missing == [], condition
    assert [each.name for each in TABLES if f"`{each.name}`" not in PAGE] == []
