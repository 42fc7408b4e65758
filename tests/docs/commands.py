"""The commands of the pages, one by one."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Final

from tests.docs.blocks import ROOT, pages, parts, step_list

# Lines that only change the shell, for the commands after them.
_SHELL: Final = re.compile(r"(export |\. |\w+=)")

# A command without these ends with its line: a bash process for each takes a second.
_OPENS: Final = re.compile(r"[\"'`(){<]|\b(if|for|while|until|case|do)\b")


@dataclass(frozen=True, slots=True)
class Command:
    """A command of a block, and the lines that set up its shell."""

    page: str  # from the root of the checkout
    language: str
    text: str
    shell: str = ""
    output: str = ""


@cache
def commands() -> tuple[Command, ...]:
    """Every command of every `sh` and `console` block, in the order of the pages."""
    return tuple(_commands())


def _commands() -> Iterator[Command]:
    for page in pages():
        name = str(page.relative_to(ROOT))
        for language, text in parts(page):
            if language == "console":
                for step in step_list([_joined(text)]):
                    yield Command(name, language, step.command, "", step.output)
            elif language == "sh":
                yield from _lines(name, text)


def _joined(block: str) -> str:
    """The block with the continued lines of its commands in one."""
    return re.sub(r"\\\n +", "", block)


def _lines(page: str, block: str) -> Iterator[Command]:
    shell, begun = "", ""
    for line in block.splitlines():
        begun += line + "\n"
        if line.endswith("\\") or not _is_whole(begun):
            continue
        text, begun = begun.rstrip("\n"), ""
        yield Command(page, "sh", text, shell)
        if _SHELL.match(text):
            shell += text + "\n"
    assert not begun, f"{page}: {begun} is not a whole command"


def _is_whole(text: str) -> bool:
    if not _OPENS.search(text):
        return True
    return not subprocess.run(["bash", "-n", "-c", text], capture_output=True, check=False).returncode
