"""Measures of plain English over docstrings and Markdown, by package.

`python -m tests.docs.language` prints every package; with names of packages, also the sentences to mend.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tests.docs.blocks import ROOT

CODE_ROOTS = ("broker", "providers", "local", "tests", "benchmarks")
PAGE_ROOTS = ("docs", "terraform", "deploy")
PERSONS = frozenset(("nobody", "somebody", "whoever", "whose", "who"))
SPEECH = frozenset(("told", "tells", "says", "said"))
MAX_WORDS = 30
# Names of locals that name nothing.
EMPTY_NAMES = frozenset(("each", "one", "found", "said", "told", "mine", "made"))

_WORD = re.compile(r"[A-Za-z][A-Za-z'’-]*")
_FENCE = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_LINK = re.compile(r"\]\([^)]*\)")
_URL = re.compile(r"https?://\S+")
_INLINE = re.compile(r"`+[^`]*`+")
_PARAGRAPH = re.compile(r"\n\s*\n|\n\s*(?:[-*#|]|\d+\.)|\s\|")
_SENTENCE = re.compile(r"(?<=[.!?:])\s+")


class Figures(NamedTuple):
    """Per 1,000 words: the pronoun of noun clauses, words for persons, verbs of speech. Long sentences in
    per cent.
    """

    what: float
    persons: float
    speech: float
    long: float

    def above(self, ceiling: Figures) -> list[str]:
        return [
            f"{name} {value:.1f} > {limit:.1f}"
            for name, value, limit in zip(self._fields, self, ceiling, strict=True)
            if value > limit
        ]


LIMITS = Figures(what=5, persons=1.5, speech=2, long=5)


def empty_names(source: str) -> Iterator[tuple[int, str]]:
    """The line and the name of each local, parameter and loop variable that names nothing."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) if name in EMPTY_NAMES:
                yield node.lineno, name
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) if name in EMPTY_NAMES:
                yield node.lineno, name


def plain(text: str) -> str:
    """The text without fenced code, comments, addresses; inline code counts as one word."""
    text = _COMMENT.sub("", _FENCE.sub("", text))
    return _INLINE.sub("code", _URL.sub("", _LINK.sub("]", text)))


def sentences(text: str) -> Iterator[str]:
    """The sentences of a text. A table's cell, a list's item and a heading end a sentence."""
    for paragraph in _PARAGRAPH.split(plain(text)):
        for sentence in _SENTENCE.split(paragraph.strip()):
            if _WORD.search(sentence):
                yield " ".join(sentence.split())


def words(text: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(text)]


def measure(texts: Iterable[str]) -> Figures:
    """The figures of these texts together."""
    all_sentences = [words(sentence) for text in texts for sentence in sentences(text)]
    all_words = [word for sentence in all_sentences for word in sentence]
    if not all_words:
        return Figures(0, 0, 0, 0)

    def per_thousand(count: int) -> float:
        return 1000 * count / len(all_words)

    return Figures(
        what=per_thousand(all_words.count("what")),
        persons=per_thousand(sum(word in PERSONS for word in all_words)),
        speech=per_thousand(sum(word in SPEECH for word in all_words)),
        long=100 * sum(len(sentence) > MAX_WORDS for sentence in all_sentences) / len(all_sentences),
    )


def docstrings(source: str) -> Iterator[str]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, kinds) and (text := ast.get_docstring(node)):
            yield text


def package(path: Path) -> str:
    """The package that a file counts for, such as `broker/kube`, `docs/use`, `README.md`."""
    folders = path.relative_to(ROOT).parts[:-1]
    return "/".join(folders[: 3 if folders[1:2] == ("controllers",) else 2]) or path.name


def files_by_package() -> Mapping[str, list[Path]]:
    """The modules and pages."""
    files: dict[str, list[Path]] = defaultdict(list)
    modules = [path for top in CODE_ROOTS for path in sorted((ROOT / top).rglob("*.py"))]
    pages = [path for top in PAGE_ROOTS for path in sorted((ROOT / top).rglob("*.md"))]
    for path in (*modules, ROOT / "README.md", ROOT / "CHANGELOG.md", *pages):
        files[package(path)].append(path)
    return files


def texts(paths: Iterable[Path]) -> list[str]:
    """The docstrings of the modules, and the pages."""
    result: list[str] = []
    for path in paths:
        result += docstrings(path.read_text()) if path.suffix == ".py" else [path.read_text()]
    return result


def offences(all_texts: Iterable[str]) -> Iterator[str]:
    """The sentences that a measure counts."""
    listed = PERSONS | SPEECH | {"what"}
    for text in all_texts:
        for sentence in sentences(text):
            counted = words(sentence)
            if len(counted) > MAX_WORDS or listed.intersection(counted):
                yield f"{len(counted):3} {sentence}"


def main(names: list[str]) -> None:
    files = files_by_package()
    for name in names or files:
        package_texts = texts(files[name])
        figures = measure(package_texts)
        over = "over" if figures.above(LIMITS) else ""
        print(f"{name:36} " + " ".join(f"{value:5.1f}" for value in figures), over)
        if names:
            print(*offences(package_texts), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
