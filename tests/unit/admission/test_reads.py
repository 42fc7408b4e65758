"""How often the webhook reads the API server."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from broker.admission.reads import RATE, RecentReads
from broker.admission.review import answer
from broker.admission.rules import Rules
from broker.apis.core import ResourceQuota
from broker.apis.meta import Kind
from tests.support.clock import FakeClock
from tests.unit.admission.reviews import Json, group, reservation


class Api:
    """Namespaces with one ResourceQuota each, and the reservations that a test stores."""

    def __init__(self, hard: Json) -> None:
        self.quota = {"metadata": {"name": "quota", "namespace": "team"}, "spec": {"hard": hard}}
        self.stored: list[Json] = []
        self.lists: Counter[tuple[str, str]] = Counter()

    def list(self, kind: Kind, *, namespace: str) -> tuple[list[Json], str]:
        self.lists[kind.kind, namespace] += 1
        return ([self.quota] if kind == ResourceQuota.KIND else self.stored), ""


def review(body: Json, *, namespace: str = "team") -> Json:
    kind = {"kind": "CapacityReservation"}
    request = {"uid": "u", "operation": "CREATE", "kind": kind, "namespace": namespace, "object": body}
    envelope = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
    return {**envelope, "request": request}


def rate_limited_rules(hard: Json) -> tuple[Api, FakeClock, Rules]:
    api, clock = Api(hard), FakeClock()
    client: Any = api
    return api, clock, Rules(reads=RecentReads(client, clock=clock))


@pytest.mark.covers("SAF-58")
def test_a_flood_of_reviews_reads_the_api_server_at_a_bounded_rate() -> None:
    api, clock, rules = rate_limited_rules({"nvidia.com/gpu": "8"})
    refused = [
        answer(review(reservation(f"r{n}", group(16))), rules)["response"]["allowed"] for n in range(200)
    ]
    assert not any(refused), "the last reads hold for those beyond the rate"
    assert api.lists.total() == RATE
    clock.advance(1)
    answer(review(reservation("r", group(16))), rules)
    assert api.lists.total() == RATE + 2


@pytest.mark.covers("SAF-58")
def test_reviews_of_invented_namespaces_do_not_exceed_the_read_rate() -> None:
    api, _, rules = rate_limited_rules({"nvidia.com/gpu": "8"})
    for number in range(200):
        response = answer(review(reservation("r"), namespace=f"n{number}"), rules)["response"]
        assert response["allowed"], "the controllers decide about unread objects"
    assert api.lists.total() == RATE
    assert "too many reviews at once" in response["warnings"][0]


def test_below_the_rate_each_review_reads_again() -> None:
    api, _, rules = rate_limited_rules({"nvidia.com/gpu": "8"})
    assert answer(review(reservation("a", group(8))), rules)["response"]["allowed"]
    api.stored = [reservation("a", group(8))]
    assert not answer(review(reservation("b", group(8))), rules)["response"]["allowed"]
    api.stored = []
    assert answer(review(reservation("b", group(8))), rules)["response"]["allowed"]
