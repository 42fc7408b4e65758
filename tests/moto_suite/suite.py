"""moto's own tests, as they come in moto's source distribution, of the version that is installed here.

Only the `tests` folder is unpacked, so that only the installed moto is tested.
"""

import importlib.util
import shutil
import subprocess
import sys
import tarfile
from importlib import metadata
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
CACHE = REPOSITORY / ".cache" / "moto-suite"

# Changed by local AWS: EC2 with its fleets and launch templates, groups, shares, quotas, and Auto Scaling
# with its launches.
PARTS = (
    "tests/test_ec2",
    "tests/test_resourcegroups",
    "tests/test_autoscaling",
    "tests/test_ram",
    "tests/test_servicequotas",
)


class SuiteUnavailable(Exception):
    """The source distribution can't be had: no package index answers and none was fetched before."""


def fetch() -> Path:
    """The folder that holds moto's `tests` package, downloaded once a version."""
    version = metadata.version("moto")
    root = CACHE / version
    if not (root / "complete").exists():
        archive = _download(version)
        with tarfile.open(archive) as tar:
            # Python before 3.11.4 has no filters.
            tar.extraction_filter = getattr(tarfile, "data_filter", lambda member, _path: member)
            prefix = f"moto-{version}/"
            for member in tar.getmembers():
                if member.name.startswith(f"{prefix}tests/"):
                    member.name = member.name.removeprefix(prefix)
                    tar.extract(member, root)
        (root / "complete").touch()
    return root


def _download(version: str) -> Path:
    folder = CACHE / "sdist"
    download = ["download", "--quiet", "--no-deps", "--no-binary", "moto", "--dest", str(folder)]
    done = subprocess.run(
        [*_pip(), *download, f"moto=={version}"],
        capture_output=True,
        text=True,
        check=False,
    )
    archive = folder / f"moto-{version}.tar.gz"
    if done.returncode or not archive.exists():
        raise SuiteUnavailable(
            f"pip could not download the source of moto {version} (it holds moto's tests): "
            f"{done.stderr.strip()[-300:] or 'no such archive'}"
        )
    return archive


def _pip() -> list[str]:
    """pip, also where uv made the environment, which then has none."""
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    if uv := shutil.which("uv"):
        return [uv, "tool", "run", "--python", sys.executable, "pip"]
    raise SuiteUnavailable(
        "neither pip nor uv is here to download the source of moto, which holds moto's tests"
    )
