"""Makes a release in this checkout: `make release VERSION=1.2.3`.

Writes the version, turns the changelog's "Unreleased" into a section, and records the state that the next
release is tried on. Then it builds all files into dist/, tries the wheel, commits and tags. It pushes
nothing: the last lines of its output do. With `--dry-run` it builds the same files and leaves no commit.

A failure leaves the checkout as it was, apart from dist/.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
CHARTS = ("capacity-broker", "capacity-broker-crds")
VERSION = re.compile(r"\d+\.\d+\.\d+")
UNRELEASED = "## Unreleased\n"
# The files that carry the version, and the line of each that does.
VERSIONED = {
    "pyproject.toml": r'(?m)^version = "(.*)"$',
    **{f"deploy/chart/{chart}/Chart.yaml": r"(?m)^version: (.*)$" for chart in CHARTS},
}
APP_VERSION = r"(?m)^appVersion: (.*)$"


class Refused(Exception):
    """The release cannot be made; the text has the way out."""


def run(*command: str, cwd: Path = ROOT, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        command, cwd=cwd, env={**os.environ, **(env or {})}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise Refused(
            f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}".rstrip()
        )
    return done.stdout


def check(version: str) -> None:
    """Raises Refused unless the version is new, its changes are listed, and nothing is uncommitted."""
    if not VERSION.fullmatch(version):
        raise Refused(f"VERSION is {version!r}: write three numbers, such as 1.2.3")
    if run("git", "status", "--porcelain", "--untracked-files=no"):
        raise Refused("this checkout has uncommitted changes: commit them first")
    tags = run("git", "tag", "--list", "v*").split()
    numbers = [_numbers(tag[1:]) for tag in tags if VERSION.fullmatch(tag[1:])]
    if numbers and _numbers(version) <= max(numbers):
        newest = ".".join(map(str, max(numbers)))
        raise Refused(f"VERSION is {version}, and {newest} is released already: choose a higher one")
    if not changes((ROOT / "CHANGELOG.md").read_text()):
        raise Refused(f"CHANGELOG.md lists no changes under {UNRELEASED.strip()!r}: write them first")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def changes(changelog: str) -> str:
    """The text under "Unreleased"."""
    _, found, rest = changelog.partition(UNRELEASED)
    return re.split(r"(?m)^## ", rest)[0].strip() if found else ""


def write(version: str, *, today: str) -> None:
    """The version in every file that carries it, and the changelog's section."""
    for name, line in VERSIONED.items():
        path = ROOT / name
        text = _replaced(path, line, path.read_text(), version)
        if name.endswith("Chart.yaml"):
            text = _replaced(path, APP_VERSION, text, version)
        path.write_text(text)
    log = ROOT / "CHANGELOG.md"
    log.write_text(log.read_text().replace(UNRELEASED, f"{UNRELEASED}\n## {version} ({today})\n", 1))


def _replaced(path: Path, line: str, text: str, version: str) -> str:
    if not (found := re.search(line, text)):
        raise Refused(f"{path.relative_to(ROOT)} has no line {line}")
    return text[: found.start(1)] + version + text[found.end(1) :]


def record(version: str, commit: str) -> None:
    """The definitions and objects of this version, on which the next one is tried (tests/releases)."""
    run(sys.executable, "-m", "tests.releases", version, commit)


def build(version: str) -> list[Path]:
    """The wheels of the broker and of its local parts, the packages of both charts, the bill of materials and
    the checksums, in dist/.
    """
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    for project in (ROOT, ROOT / "local"):
        build_wheel = ("hatchling", "build", "--target", "wheel", "--directory", str(DIST))
        run(sys.executable, "-m", *build_wheel, cwd=project)
    helm = run("sh", "deploy/helm.sh", "--find").strip()
    for chart in CHARTS:
        run(helm, "package", f"deploy/chart/{chart}", "--destination", str(DIST))
    bill = DIST / f"capacity-broker-{version}.cdx.json"
    bill.write_text(run(sys.executable, "deploy/sbom.py", version))
    files = sorted(path for path in DIST.iterdir() if not path.name.startswith("."))
    sums = "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)
    (DIST / "SHA256SUMS").write_text(sums)
    return [*files, DIST / "SHA256SUMS"]


def try_wheel(version: str) -> None:
    """Runs the demo from the wheels, in a new environment beside the locked packages of this one."""
    wheels = sorted(map(str, DIST.glob("*.whl")))
    packages = run(sys.executable, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    with tempfile.TemporaryDirectory() as folder:
        run(sys.executable, "-m", "venv", folder)
        python = str(Path(folder) / "bin" / "python")
        run(python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", *wheels)
        own = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
        (Path(own) / "locked.pth").write_text(packages + "\n")
        program = str(Path(folder) / "bin" / "capacity-broker")
        given = run(program, "--version", cwd=Path(folder)).strip()
        if given != f"capacity-broker {version}":
            raise Refused(f"the wheel calls itself {given!r}")
        run(program, "demo", "--once", cwd=Path(folder))


def image(version: str) -> str:
    """Builds the image if a Docker daemon answers. Returns its name, or nothing."""
    docker = shutil.which("docker")
    if not docker or subprocess.run([docker, "info"], capture_output=True, check=False).returncode:
        return ""
    name = f"capacity-broker:{version}"
    run(docker, "build", "--file", "deploy/Dockerfile", "--tag", name, ".")
    return name


def release(version: str, *, dry_run: bool, demo: bool) -> None:
    check(version)
    head = run("git", "rev-parse", "HEAD").strip()
    recording = ROOT / "tests" / "releases" / version
    changed = [*VERSIONED, "CHANGELOG.md"]
    try:
        write(version, today=f"{datetime.now(UTC):%Y-%m-%d}")
        record(version, head)
        files = build(version)
        if demo:
            try_wheel(version)
        built = image(version)
        if not dry_run:
            run("git", "add", "--", *changed, str(recording))
            run("git", "commit", "--quiet", "--message", f"Release {version}")
            run("git", "tag", "--annotate", f"v{version}", "--message", f"capacity-broker {version}")
    except BaseException:
        _restore(head, changed, recording)
        raise
    if dry_run:
        _restore(head, changed, recording)
    _report(version, files, built, dry_run=dry_run)


def _restore(head: str, changed: list[str], recording: Path) -> None:
    run("git", "reset", "--quiet", "--soft", head)  # a refused tag leaves the commit behind
    run("git", "reset", "--quiet", head, "--", *changed)
    run("git", "checkout", "--quiet", head, "--", *changed)
    kept = run("git", "ls-tree", head, "--", str(recording)).strip()
    if kept:
        run("git", "checkout", "--quiet", head, "--", str(recording))
    else:
        shutil.rmtree(recording, ignore_errors=True)


def _report(version: str, files: list[Path], built: str, *, dry_run: bool) -> None:
    lines = [f"dist/{path.name}" for path in files]
    lines.append(
        f"image {built}" if built else "no Docker daemon answers here, so build the image elsewhere:"
    )
    if not built:
        lines.append(f"  docker build --file deploy/Dockerfile --tag REPOSITORY/capacity-broker:{version} .")
    if dry_run:
        lines.append("a dry run: nothing is committed or tagged")
    else:
        lines.append(f"committed and tagged v{version}. To publish it:")
        lines.append(f"  git push origin HEAD v{version}")
    sys.stdout.write("\n".join(lines) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(prog="make release", description=__doc__)
    parser.add_argument("version", metavar="VERSION")
    parser.add_argument("--dry-run", action="store_true", help="build all files, but commit and tag nothing")
    parser.add_argument("--no-demo", action="store_true", help="do not run the demo from the wheel")
    given = parser.parse_args()
    try:
        release(given.version, dry_run=given.dry_run, demo=not given.no_demo)
    except Refused as error:
        sys.stderr.write(f"release: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
