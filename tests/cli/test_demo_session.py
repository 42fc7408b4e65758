"""The first and the last output of a demo."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

MAKEFILE = Path(__file__).parents[2]
END = "local AWS, the Kubernetes API, the broker and their files are gone\n"


@pytest.mark.covers("USR-26")
@pytest.mark.parametrize(
    ("option", "output"),
    [((), "starting local AWS"), ((), "broker ready"), (("--teams",), "starting local AWS")],
)
def test_interrupt_ends_the_whole_demo_and_reports_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: tuple[str, ...], output: str
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    # With `-m`, Python ends by SIGINT itself if the signal came within an `exec` of an import.
    command = [str(Path(sys.executable).with_name("capacity-broker")), "demo", *option]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None and demo.stderr is not None
        lines = [demo.stdout.readline()]
        while output not in lines[-1]:
            lines.append(demo.stdout.readline())
            assert lines[-1], demo.stderr.read()
        demo.send_signal(signal.SIGINT)
        rest = demo.stdout.readlines()
        assert demo.stderr.read() == ""
    assert demo.returncode == 128 + signal.SIGINT
    assert lines[0].startswith("starting local AWS, a Kubernetes API and the broker on this machine")
    assert (rest[-1], "stopping\n" in rest) == (END, True)
    for url in re.findall(r"https?://\S+", "".join(lines)):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((urlsplit(url).hostname, urlsplit(url).port), timeout=5).close()
    assert not [*tmp_path.iterdir()]


@pytest.mark.covers("USR-26")
@pytest.mark.parametrize("uv", ["", "/bin/uv"])
def test_first_thing_that_make_demo_does_is_to_report_its_installation(tmp_path: Path, uv: str) -> None:
    result = subprocess.run(
        ["make", "--no-print-directory", "-n", "demo", f"VENV={tmp_path}/new", f"UV={uv}"],
        cwd=MAKEFILE,
        capture_output=True,
        text=True,
        check=True,
    )
    first, *_, last = result.stdout.splitlines()
    assert first.startswith('echo "Installing the packages of requirements.lock')
    assert last.split()[-2:] == [f"{tmp_path}/new/bin/capacity-broker", "demo"]
