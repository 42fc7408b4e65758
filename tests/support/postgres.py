"""A PostgreSQL server of Debian's package, for tests: on a socket in a folder of its own, gone at the end."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

INSTALLED = sorted(Path("/usr/lib/postgresql").glob("*/bin"))


@contextmanager
def postgres() -> Iterator[str]:
    """The URL of a new, empty server. It refuses to run as root, so then it runs as the package's user."""
    with tempfile.TemporaryDirectory(prefix="history-") as folder:
        root = os.geteuid() == 0
        if root:
            shutil.chown(folder, "postgres")
        Path(folder).chmod(0o755)
        data = f"{folder}/data"
        prefix = ["runuser", "-u", "postgres", "--"] if root else []
        tools = INSTALLED[-1]

        def run(*command: str) -> None:
            done = subprocess.run(
                [*prefix, *command],
                cwd=folder,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                check=False,
            )
            assert done.returncode == 0, done.stderr.decode()

        run(f"{tools}/initdb", "--no-sync", "--auth=trust", "--username=postgres", f"--pgdata={data}")
        options = f"-k {folder} -c listen_addresses='' -c fsync=off"
        run(f"{tools}/pg_ctl", "-D", data, "-o", options, "-l", f"{folder}/log", "-w", "start")
        try:
            yield f"postgresql://postgres@/postgres?host={folder}"
        finally:
            run(f"{tools}/pg_ctl", "-D", data, "-m", "immediate", "stop")
