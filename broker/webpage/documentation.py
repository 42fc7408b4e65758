"""The documentation that the image and the wheel carry, as pages: `runbook_url` of each alert is one of them.

Links between its files work as they are, because a page has the path of its file. A link to a file that is
not carried keeps its text alone.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

FIRST: Final = "README.md"
_EXTERNAL: Final = re.compile(r"[a-z]+:|#")


@cache
def documents() -> Mapping[str, Path]:
    """The pages and pictures by their paths in the documentation; none if the package lacks it."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "docs", package.parent / "docs"):
        if (folder / "runbooks").is_dir():
            files = sorted(path for path in folder.rglob("*") if path.suffix in (".md", ".png"))
            return {path.relative_to(folder).as_posix(): path for path in files}
    return {}


def picture(path: str) -> bytes | None:
    file = documents().get(path)
    return file.read_bytes() if file is not None and file.suffix == ".png" else None


def document(path: str) -> Mapping[str, Any] | None:
    """Title and HTML of a page, or title and pages of a folder; None for any other path."""
    files = documents()
    path = path.strip("/") or FIRST
    if path in files and path.endswith(".md"):
        return _page(path)
    inside = [name for name in files if posixpath.dirname(name) == path and name.endswith(".md")]
    return {"title": path, "html": "", "pages": {name: _title(name) for name in inside}} if inside else None


@cache
def _page(path: str) -> Mapping[str, Any]:
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = parser.parse(documents()[path].read_text())
    title, seen = path, dict[str, int]()
    for opened, inline in pairwise(tokens):
        if opened.type == "heading_open":
            text = "".join(child.content for child in inline.children or ())
            opened.attrSet("id", _anchor(text, seen))
            title = text if opened.tag == "h1" else title
    for token in tokens:
        _unlink(token.children or (), path)
    body = [*_without_title(tokens)]
    html = Markup(parser.renderer.render(body, parser.options, {}))  # the parser escapes HTML in the files
    return {"title": title, "html": html, "pages": {}}


def _title(path: str) -> str:
    return str(_page(path)["title"])


def _without_title(tokens: Iterable[Token]) -> Iterable[Token]:
    inside = False
    for token in tokens:
        inside = inside or (token.type == "heading_open" and token.tag == "h1")
        if not inside:
            yield token
        inside = inside and token.type != "heading_close"


def _anchor(text: str, seen: dict[str, int]) -> str:
    """The anchor that GitHub gives a heading, which the links in the files name."""
    slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
    seen[slug] = seen.get(slug, -1) + 1
    return f"{slug}-{seen[slug]}" if seen[slug] else slug


def _unlink(tokens: Iterable[Token], path: str) -> None:
    """Makes text of the links to files that are not carried."""
    dead = False
    for token in tokens:
        if token.type == "link_open":
            dead = not _carried(str(token.attrGet("href")), path)
        if dead and token.type in ("link_open", "link_close"):
            token.tag, token.attrs = "span", {}


def _carried(link: str, path: str) -> bool:
    target = posixpath.normpath(posixpath.join(posixpath.dirname(path), link.partition("#")[0]))
    return bool(_EXTERNAL.match(link)) or any(f"{name}/".startswith(f"{target}/") for name in documents())
