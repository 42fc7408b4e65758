"""The pages by path."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from broker.webpage import pages
from broker.webpage.pages import PageNotFound, PageRequest

# By path: the template, and the function of its values.
PAGES: Final[Mapping[str, tuple[str, Callable[[PageRequest], Mapping[str, Any]]]]] = {
    "/": ("overview.html", pages.overview),
    "/record": ("record.html", pages.record),
    "/shortages": ("shortages.html", pages.shortages),
    "/reservations": ("reservations.html", pages.reservations),
    "/reservations/{namespace}/{name}": ("reservation.html", pages.reservation),
    "/cohorts": ("cohorts.html", pages.cohorts),
    "/rooms": ("rooms.html", pages.rooms),
    "/waiting": ("waiting.html", pages.waiting),
    "/advice": ("advice.html", pages.advice),
    "/claims/{name}": ("claim.html", pages.claim),
    "/classes/{name}": ("owner.html", pages.node_class),
    "/pools/{name}": ("owner.html", pages.node_pool),
    "/odcrs/{name}": ("odcr.html", pages.odcr),
    "/nodes": ("nodes.html", pages.nodes),
    "/pods/{namespace}/{name}": ("pod.html", pages.pod),
    "/namespaces/{name}": ("namespace.html", pages.namespace),
}


def no_page(request: PageRequest) -> Mapping[str, Any]:
    """Raises PageNotFound for a path without a page."""
    raise PageNotFound(f"This server has no page {request.path}.")
