"""The four parts, the entry page, the glossary, the pictures, the symptoms and the field reference."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from local.generators import fielddocs
from tests.docs.blocks import DOCS, ROOT, blocks, pages

PARTS = ("Use", "Operate", "Reference", "Contribute", "Runbooks")
TERMS = (
    "OME",
    "CapacityReservation",
    "ODCR",
    "slot",
    "claim",
    "flavor",
    "cohort",
    "pool",
    "shortage",
    "plan",
)
# Each picture: its page, and a word of it.
PICTURES = {
    "the origin of claims": ("README.md", "NodeClaims"),
    "borrowing before": ("docs/use/borrowing.md", "speech-2, borrowed"),
    "borrowing after": ("docs/use/borrowing.md", "vision-1, reclaimed"),
    "the life of a reservation": ("docs/use/reservations.md", "Creating --> Active"),
    "the packages": ("docs/contribute/architecture.md", "controllers"),
}
HEADERS = ("flowchart TD", "flowchart LR", "stateDiagram-v2", "sequenceDiagram")
MANAGED_BY_KUBERNETES = frozenset(("apiVersion", "kind", "metadata"))


def balanced(diagram: str) -> bool:
    """True if brackets match, quotes pair up, and every subgraph has its end."""
    stack: list[str] = []
    outside_quotes = re.sub(r'"[^"\n]*"', "", diagram)
    for character in re.sub(r"-+\.?->|--+|\[\*\]", "", outside_quotes):
        if character in "([{":
            stack.append(character)
        elif character in ")]}" and (not stack or stack.pop() + character not in ("()", "[]", "{}")):
            return False
    lines = [line.strip() for line in diagram.splitlines()]
    opened = sum(line.startswith("subgraph ") for line in lines)
    return not stack and '"' not in outside_quotes and opened == lines.count("end")


def schema_paths(schema: dict[str, Any], path: str = "") -> Iterator[str]:
    """The path of every field below a schema, as the reference writes it."""
    for name, child in schema.get("properties", {}).items():
        if path or name not in MANAGED_BY_KUBERNETES:
            child_path = f"{path}.{name}" if path else name
            yield child_path
            yield from schema_paths(child, child_path)
    if "items" in schema:
        yield from schema_paths(schema["items"], f"{path}[]")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from schema_paths(schema["additionalProperties"], f"{path}.*")


@pytest.mark.covers("USR-30")
def test_the_index_has_its_parts_in_order_and_their_folders() -> None:
    index = (DOCS / "README.md").read_text()
    assert re.findall(r"^## (.+)$", index, re.MULTILINE) == list(PARTS)
    assert sorted(path.name for path in DOCS.iterdir() if path.is_dir()) == sorted(p.lower() for p in PARTS)
    operate = index.split("## Operate")[1].split("## Reference")[0]
    assert re.findall(r"\]\((\S+)\)", operate)[0] == "operate/troubleshooting.md"


@pytest.mark.covers("USR-30")
def test_the_glossary_defines_the_terms() -> None:
    glossary = (DOCS / "glossary.md").read_text()
    defined = dict(re.findall(r"^\| (.+?) \| (.+) \|$", glossary, re.MULTILINE))
    assert [term for term in TERMS if not defined.get(term)] == []
    assert "Open Model Engine" in defined["OME"]
    assert "](glossary.md)" in (DOCS / "README.md").read_text()


@pytest.mark.covers("USR-30")
def test_one_entry_page_leads_to_every_page_about_reservations() -> None:
    entry = (DOCS / "use" / "reservations.md").read_text().split("```yaml")[0]
    linked = set(re.findall(r"\]\(([\w-]+\.md)\)", entry))
    assert linked == {page.name for page in (DOCS / "use").glob("*.md")} - {"reservations.md"}


@pytest.mark.covers("USR-30")
def test_the_reference_has_every_field_of_every_definition() -> None:
    assert fielddocs.drift(fielddocs.FOLDER) == []
    definitions = [yaml.safe_load(path.read_text()) for path in sorted((ROOT / "crds").glob("*.yaml"))]
    assert len(definitions) == 12
    for definition in definitions:
        text = (fielddocs.FOLDER / fielddocs.page_name(definition)).read_text()
        for version in definition["spec"]["versions"]:
            section = text.split(f"\n## {version['name']}\n")[1].split("\n## ")[0]
            documented = set(re.findall(r"^\| `(\S+)` \|", section, re.MULTILINE))
            assert documented == set(schema_paths(version["schema"]["openAPIV3Schema"]))


@pytest.mark.covers("USR-30")
def test_troubleshooting_is_sorted_by_symptom() -> None:
    text = (DOCS / "operate" / "troubleshooting.md").read_text()
    symptoms = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert symptoms[0] == "A pod waits" and len(symptoms) > 5
    for section in text.split("\n## ")[1:-1]:
        assert "| reason or sign | cause and remedy |" in section


@pytest.mark.covers("USR-30")
@pytest.mark.parametrize("picture", PICTURES)
def test_the_picture_is_on_its_page(picture: str) -> None:
    page, word = PICTURES[picture]
    assert [diagram for diagram in blocks(ROOT / page, "mermaid") if word in diagram]


@pytest.mark.covers("USR-30")
def test_every_picture_parses() -> None:
    diagrams = [diagram for page in pages() for diagram in blocks(page, "mermaid")]
    assert len(diagrams) >= len(PICTURES)
    for diagram in diagrams:
        assert diagram.splitlines()[0] in HEADERS and balanced(diagram), diagram


@pytest.mark.parametrize("diagram", ["a[b", 'a["b]', "subgraph x\na --> b", "a(b]"])
def test_a_broken_picture_is_found(diagram: str) -> None:
    assert not balanced(diagram)


@pytest.mark.covers("USR-20")
def test_second_paragraph_names_the_makers_of_claims_and_when_to_use_each() -> None:
    _, _, paragraph, *_ = (ROOT / "README.md").read_text().split("\n\n")
    ways = " ".join(paragraph.split()).split(": use it if ")
    assert len(ways) == 4
    for way, words in zip(
        ways,
        (
            ("NodeClaim", "Karpenter makes claims from pods", "advisor"),
            ("The broker makes claims from pods", "capacity-broker.io"),
            ("People", "other controllers", "dedicated clusters", "make claims"),
        ),
        strict=False,
    ):
        assert [word for word in words if word not in way] == []
