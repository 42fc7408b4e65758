"""The commands of a project's documentation, run one after another, and their output beside the page's.

A command that reads is repeated until its output is the page's, as a reader would repeat it. Names, times and
addresses that a cluster chooses by itself are compared as such, and spaces as one.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

FOLDER: Final = Path(__file__).parent
PATIENCE: Final = 60.0
_FENCE: Final = re.compile(r"^```(yaml|console)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_COMMAND: Final = re.compile(r"^\$ ", re.MULTILINE)
_CREATED: Final = re.compile(r"create -f (\S+)")
_HERE: Final = re.compile(r"<<EOF\n.*?^EOF\n", re.DOTALL | re.MULTILINE)
# Words that a cluster chooses by itself.
_CHOSEN: Final = (
    (re.compile(r"^\d+s$|^\d+m(\d+s)?$|^<invalid>$"), "AGE"),
    (re.compile(r"^(\d+\.){3}\d+$|^<none>$"), "ADDRESS"),
    (re.compile(r"-[0-9a-f]{8,10}-[a-z0-9]{5}(?=-placeholder$|$)"), "-POD"),
    (re.compile(r"^(\d{4}|YYYY)-(\d\d|MM)-(\d\d|DD)T[\d:]+Z$"), "TIME"),
    (re.compile(r"^([0-9a-z]+-){3,4}[0-9a-z]{12}$"), "UID"),
    (re.compile(r"^godel-demo-default-worker2?$"), "NODE"),
)


@dataclass(frozen=True, slots=True)
class Shown:
    """A command, and the output that the page shows; empty if it shows none."""

    command: str
    output: str


def steps(page: str) -> Iterator[Shown]:
    """The commands of the page. A manifest is written to the file that the next command creates from, or
    applied at once.
    """
    blocks = [(match[1], match[2]) for match in _FENCE.finditer((FOLDER / page).read_text())]
    for number, (language, text) in enumerate(blocks):
        if language == "yaml":
            following = blocks[number + 1][1] if number + 1 < len(blocks) else ""
            created = _CREATED.search(following.partition("\n")[0])
            target = f"> {created[1]}" if created else "| kubectl apply -f -"
            yield Shown(f"cat <<'EOF' {target}\n{text}EOF\n", "")
            continue
        for part in _COMMAND.split(text)[1:]:
            here = _HERE.search(part)
            end = here.end() if here else part.index("\n") + 1
            yield Shown(part[:end].rstrip("\n"), part[end:])


def run(command: str, folder: Path, environment: Mapping[str, str]) -> str:
    """The output of a command, with its errors."""
    done = subprocess.run(
        ["bash", "-c", f'k() {{ kubectl "$@"; }}\n{command}'],
        cwd=folder,
        env=dict(environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    return done.stdout


def follow(step: Shown, folder: Path, environment: Mapping[str, str]) -> None:
    """Runs a step. Raises AssertionError if its output is not the page's."""
    reads = bool(re.match(r"(kubectl|k) (get|describe)", step.command))
    deadline = time.monotonic() + PATIENCE
    while True:
        printed = run(step.command, folder, environment)
        if not step.output or _same(step.output, printed):
            return
        if not reads or time.monotonic() > deadline:
            raise AssertionError(f"$ {step.command}\n{printed}\nthe page shows:\n{step.output}")
        time.sleep(0.2)


def _same(shown: str, printed: str) -> bool:
    if shown.startswith("apiVersion:"):
        try:
            return _within(yaml.safe_load(shown.replace("  ...\n", "")), yaml.safe_load(printed))
        except yaml.YAMLError:
            return False
    expected = [_words(line) for line in shown.splitlines() if line.strip() not in ("", "...")]
    return expected == [_words(line) for line in printed.splitlines() if line.strip()]


def _within(shown: Any, printed: Any) -> bool:
    """Whether each value that the page shows is there; lists have the same length."""
    if isinstance(shown, dict):
        return isinstance(printed, dict) and all(
            key in printed and _within(value, printed[key]) for key, value in shown.items()
        )
    if isinstance(shown, list):
        same = isinstance(printed, list) and len(shown) == len(printed)
        return same and all(map(_within, shown, printed))
    return _words(str(shown)) == _words(str(printed))


def _words(line: str) -> list[str]:
    return [_chosen(word) for word in line.split()]


def _chosen(word: str) -> str:
    for pattern, constant in _CHOSEN:
        word = pattern.sub(constant, word)
    return word
