"""Names and ids that the server makes up, from one source of randomness that a test may seed."""

from __future__ import annotations

import uuid
from random import Random

# No vowels and no digits that look like them, so that no word appears by chance.
_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
_SUFFIX, _NAME_LIMIT = 5, 63


class Ids:
    def __init__(self, seed: int | None = None) -> None:
        self._random = Random(seed)

    def uid(self) -> str:
        return str(uuid.UUID(int=self._random.getrandbits(128), version=4))

    def name(self, prefix: str) -> str:
        return prefix[: _NAME_LIMIT - _SUFFIX] + "".join(self._random.choices(_ALPHABET, k=_SUFFIX))
