"""Deletions of objects as they were read."""

from __future__ import annotations

import pytest

from broker.apis.core import Node
from broker.kube.cache import Cache
from broker.kube.client import Client
from broker.kube.errors import Conflict
from broker.kube.removal import remove
from local.in_process import InProcessTransport
from local.kube.cluster import Cluster


@pytest.fixture
def client() -> Client:
    return Client(InProcessTransport(Cluster()))


def created(client: Client, *finalizers: str) -> Node:
    return Node.decode(client.create(Node.KIND, {"metadata": {"name": "n", "finalizers": [*finalizers]}}))


@pytest.mark.covers("FLT-70")
def test_a_newer_object_of_the_same_name_is_not_removed(client: Client) -> None:
    read = created(client)
    assert remove(client, read)
    newer = created(client)
    with pytest.raises(Conflict):
        remove(client, read)
    assert client.get(Node.KIND, "n")["metadata"]["uid"] == newer.uid != read.uid


@pytest.mark.covers("FLT-70")
def test_object_that_has_changed_is_removed_unless_it_must_be_unchanged(client: Client) -> None:
    read = created(client)
    client.patch(Node.KIND, "n", {"metadata": {"labels": {"a": "1"}}})
    with pytest.raises(Conflict):
        remove(client, read, unchanged=True)
    assert remove(client, read)
    assert not remove(client, read)  # it is gone already


@pytest.mark.covers("FLT-70")
def test_cache_shows_at_once_that_an_object_with_a_finalizer_is_being_deleted(client: Client) -> None:
    cache = Cache(Node)
    read = created(client, "example.com/keep")
    cache.observe(client.get(Node.KIND, "n"))
    assert remove(client, read, cache)
    cached = cache.get("n")
    assert cached is not None and cached.deleting
