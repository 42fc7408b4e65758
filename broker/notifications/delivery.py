"""One POST to a receiver, with few retries and bounded time.

Invariant: a URL may hold a token or a password, so neither the log nor an error has more of it than the host.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import orjson
import tenacity
import urllib3
from urllib3.exceptions import HTTPError
from urllib3.util import make_headers, parse_url

CONNECT: Final = 3.0
READ: Final = 5.0
ATTEMPTS: Final = 3
_RETRYABLE: Final = frozenset({408, 425, 429, 500, 502, 503, 504})


class DeliveryError(Exception):
    """A message was not accepted. `retryable`: whether the same message may be accepted later."""

    def __init__(self, text: str, *, retryable: bool) -> None:
        super().__init__(text)
        self.retryable = retryable


def _retryable(error: BaseException) -> bool:
    return isinstance(error, DeliveryError) and error.retryable


class Receiver:
    """An address that takes JSON. `sleep` waits between two attempts."""

    def __init__(self, url: str, *, sleep: Callable[[float], None]) -> None:
        parsed = parse_url(url)
        self.host = parsed.host or ""
        headers = {"Content-Type": "application/json", "User-Agent": "capacity-broker"}
        if parsed.auth:
            headers |= make_headers(basic_auth=parsed.auth)
        self._url, self._headers = parsed._replace(auth=None).url, headers
        self._pool = urllib3.PoolManager(
            timeout=urllib3.Timeout(connect=CONNECT, read=READ), retries=False, maxsize=1
        )
        self._retrying = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(ATTEMPTS),
            wait=tenacity.wait_random_exponential(multiplier=0.5, max=5),
            retry=tenacity.retry_if_exception(_retryable),
            sleep=sleep,
            reraise=True,
        )

    def send(self, body: Any) -> None:
        """Raises DeliveryError after the last attempt."""
        self._retrying(self._post, orjson.dumps(body))

    def close(self) -> None:
        self._pool.clear()

    def _post(self, body: bytes) -> None:
        try:
            response = self._pool.request(
                "POST", self._url, body=body, headers=self._headers, redirect=False, preload_content=False
            )
        except HTTPError as error:  # its text has the path of the URL
            raise DeliveryError(
                f"{self.host} gave no answer: {type(error).__name__}", retryable=True
            ) from None
        response.close()  # the body is not read: it may be large
        if response.status >= 300:
            raise DeliveryError(
                f"{self.host} answered {response.status}", retryable=response.status in _RETRYABLE
            )
