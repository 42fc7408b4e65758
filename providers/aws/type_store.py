"""Instance types on disk, so that a command does not read a thousand types from EC2 at each run.

Invariant: a hit was written by this version for the same endpoint, Region and account (a zone's name is the
account's own), and is no older than required; anything else is a miss. Writing is atomic. A folder that
cannot be written to means no store: it never fails a command.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import tempfile
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

import orjson
import structlog

from providers.model import InstanceType
from providers.type_text import decode_types

_log = structlog.get_logger("aws.types")
_FIELDS = sorted(field.name for field in dataclasses.fields(InstanceType))
# Raised when the same answers of EC2 would make other values than before.
FORMAT = 2


def default_folder() -> Path:
    """Where a person's caches are (XDG Base Directory Specification)."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(named) if named else Path.home() / ".cache") / "capacity-broker"


class TypeStore:
    """One file for each place that types were read from."""

    def __init__(self, folder: Path, *, ttl: float) -> None:
        self._folder = folder
        self._ttl = ttl

    def load(self, place: tuple[str, ...], *, now: datetime) -> dict[str, InstanceType] | None:
        """The types of a place; None where there are none that are fresh."""
        try:
            stored = orjson.loads(self._file(place).read_bytes())
            age = now.timestamp() - stored["at"]
            if not 0 <= age < self._ttl:
                return None
            return decode_types(stored["types"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def save(self, place: tuple[str, ...], types: Mapping[str, InstanceType], *, now: datetime) -> None:
        body = orjson.dumps({"at": now.timestamp(), "types": [*types.values()]}, default=sorted)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(dir=self._folder)
            with os.fdopen(descriptor, "wb") as file:
                file.write(body)
            Path(name).replace(self._file(place))
        except OSError as error:
            _log.debug("instance types are not kept on disk", folder=str(self._folder), error=str(error))

    def _file(self, place: tuple[str, ...]) -> Path:
        text = orjson.dumps([FORMAT, _FIELDS, *place])
        return self._folder / f"types-{hashlib.sha256(text).hexdigest()[:20]}.json"
