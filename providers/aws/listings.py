"""Long listings that are read repeatedly: unchanged items are not decoded again.

Invariant: the result is equal to the SDK's decoding of the same response. An item is known by a digest of
its own bytes, so an item that changed in any way is decoded anew, and so is a page. The SDK gets the response
without the known items. EC2 answers in XML whose lists are `<item>` elements (EC2 API Reference, "Making API
requests"). The SDK takes a millisecond for an instance, so 5,000 of them every minute would be a tenth of a
core.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Generic, TypeVar

from providers.aws.clients import Aws

V = TypeVar("V")
Digest = bytes

_BEGIN, _END = b"<item>", b"</item>"
# The key under which the hook passes the page's digest and those of its items to the reader.
_LISTED = "ListedItems"


class ListOperation(Generic[V]):
    """One operation that lists with `MaxResults` and `NextToken`.

    `element` is the list's name in XML, `member` in the SDK; `decode` makes values of one item of it.
    """

    def __init__(
        self,
        aws: Aws,
        operation: str,
        *,
        element: str,
        member: str,
        decode: Callable[[Any], Sequence[V]],
    ) -> None:
        self._aws = aws
        self._method = next(m for m, o in aws.ec2.meta.method_to_api_mapping.items() if o == operation)
        self._set = re.compile(rb"<%s>(.*)</%s>" % (element.encode(), element.encode()), re.DOTALL)
        self._member = member
        self._decode = decode
        self._known: dict[Digest, Sequence[V]] = {}
        self._pages: dict[Digest, Sequence[Digest]] = {}  # the items of each page, all of them known
        self._lock = threading.Lock()
        self._reading = threading.local()  # other calls of the operation pass the hook untouched
        aws.ec2.meta.events.register(f"before-parse.ec2.{operation}", self._cut)

    def read(self, **parameters: Any) -> list[V]:
        """Every value of every page. Raises ProviderError."""
        all_values: list[V] = []
        seen: dict[Digest, Sequence[V]] = {}
        pages: dict[Digest, Sequence[Digest]] = {}
        with self._lock:
            self._reading.now = True
            try:
                for page in self._aws.pages(getattr(self._aws.ec2, self._method), **parameters):
                    new = iter(page[self._member])
                    whole, digests = page.get(_LISTED, (b"", ()))
                    pages[whole] = digests
                    for digest in digests:
                        known = self._known.get(digest)
                        seen[digest] = values = self._decode(next(new)) if known is None else known
                        all_values += values
                    for item in new:  # of an answer that the hook could not take apart
                        all_values += self._decode(item)
            finally:
                self._reading.now = False
            self._known, self._pages = seen, pages
        return all_values

    def _cut(
        self, *, response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: object
    ) -> None:
        """Takes the known items out of the answer before the SDK decodes it."""
        if not getattr(self._reading, "now", False) or response_dict["status_code"] >= 300:
            return
        body: bytes = response_dict["body"]
        listed = self._set.search(body)
        if listed is None:
            return
        whole, left = _digest(listed[1]), b""
        digests = self._pages.get(whole)
        if digests is None:
            by_digest = [(_digest(item), item) for item in items(listed[1])]
            digests = [digest for digest, _ in by_digest]
            left = b"".join(item for digest, item in by_digest if digest not in self._known)
        response_dict["body"] = body[: listed.start(1)] + left + body[listed.end(1) :]
        customized_response_dict[_LISTED] = whole, digests


def leave_out(aws: Aws, operation: str, elements: Collection[str]) -> None:
    """Cuts unread elements out of every response to the operation, before the SDK decodes it.

    Make a listing of the same operation before: it knows its items by their whole bytes.
    """
    names = b"|".join(name.encode() for name in elements)
    unread = re.compile(rb"<(%s)>.*?</\1>" % names, re.DOTALL)

    def cut(*, response_dict: dict[str, Any], **_: object) -> None:
        if response_dict["status_code"] < 300:
            response_dict["body"] = unread.sub(b"", response_dict["body"])

    aws.ec2.meta.events.register(f"before-parse.ec2.{operation}", cut)


def items(listed: bytes) -> Iterator[bytes]:
    """The outermost `<item>` elements."""
    depth = start = end = 0
    for part in listed.split(_END):
        depth += part.count(_BEGIN) - 1
        end += len(part) + len(_END)
        if not depth:
            yield listed[listed.find(_BEGIN, start) : end]
            start = end


def _digest(content: bytes) -> Digest:
    return hashlib.blake2b(content, digest_size=16).digest()
