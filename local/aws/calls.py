"""Calls to local AWS: a count for each action, dry runs apart, and a log of the latest calls."""

from __future__ import annotations

import threading
from collections import Counter, deque
from datetime import datetime
from typing import Any


class CallRecorder:
    def __init__(self, *, keep: int = 10_000) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._log: deque[dict[str, Any]] = deque(maxlen=keep)

    def record(
        self,
        action: str,
        *,
        at: datetime,
        status: int,
        code: str | None,
        request_id: str | None,
        access_key: str,
        params: dict[str, Any],
    ) -> None:
        entry = {
            "action": action,
            "at": at.isoformat(),
            "status": status,
            "code": code,
            "request_id": request_id,
            "access_key": access_key,
            "params": params,
        }
        with self._lock:
            self._counts[f"{action} DryRun" if params.get("DryRun") else action] += 1
            self._log.append(entry)

    def counts(self) -> dict[str, int]:
        with self._lock:
            return dict(self._counts)

    def log(self, action: str | None = None) -> list[dict[str, Any]]:
        with self._lock:
            return [call for call in self._log if action in (None, call["action"])]

    def clear(self) -> None:
        with self._lock:
            self._counts.clear()
            self._log.clear()
