"""A cluster with unapplied manifests, of which only a part can be read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
import pytest

from broker.apis.kueue import ResourceFlavor
from broker.commands.plan.drafts import drafted
from broker.kube.client import Client, Reply, Request, Stream
from broker.kube.errors import Unavailable

FLAVOR: Mapping[str, Any] = {
    "apiVersion": ResourceFlavor.KIND.api_version,
    "kind": "ResourceFlavor",
    "metadata": {"name": "mine"},
}


class Cluster:
    """Has nothing, and answers to a look for flavors with `status`."""

    def __init__(self, status: int) -> None:
        self._status = status

    def request(self, request: Request, *, timeout: float) -> Reply:
        if request.path == ResourceFlavor.KIND.path():
            return Reply(status=self._status, body=b"{}")
        return Reply(status=200, body=orjson.dumps({"metadata": {}, "items": []}))

    def stream(self, request: Request, *, timeout: float) -> Stream:
        raise NotImplementedError


def test_unreachable_cluster_is_not_treated_as_empty() -> None:
    client, alone = drafted([FLAVOR], lambda: Client(Cluster(503)))
    assert not alone
    with pytest.raises(Unavailable):
        client.list(ResourceFlavor.KIND)


@pytest.mark.parametrize("status", [403, 404])
def test_a_cluster_that_has_or_shows_none_leaves_those_of_the_files(status: int) -> None:
    client, _ = drafted([FLAVOR], lambda: Client(Cluster(status)))
    items, _ = client.list(ResourceFlavor.KIND)
    assert [item["metadata"]["name"] for item in items] == ["mine"]


class Paged:
    """Answers a list in two pages, the second one with the flavor of the files."""

    def request(self, request: Request, *, timeout: float) -> Reply:
        last = "continue" in request.query
        name = "mine" if last else "theirs"
        kept = {"name": name, "uid": f"uid-{name}", "labels": {"kept": "yes"}, "resourceVersion": "1"}
        metadata = {} if last else {"continue": "next"}
        return Reply(status=200, body=orjson.dumps({"metadata": metadata, "items": [{"metadata": kept}]}))

    def stream(self, request: Request, *, timeout: float) -> Stream:
        raise NotImplementedError


def test_object_of_the_files_keeps_the_identity_of_the_clusters_on_any_page() -> None:
    new = {**FLAVOR, "metadata": {"name": "new", "labels": {"a": "b"}}}
    changed = {
        **FLAVOR,
        "metadata": {"name": "mine", "labels": {"a": "b"}},
        "spec": {"nodeLabels": {"x": "y"}},
    }
    client, _ = drafted([new, changed], lambda: Client(Paged()))
    items, _ = client.list(ResourceFlavor.KIND)
    assert [(item["metadata"]["name"], item["metadata"]["uid"]) for item in items] == [
        ("theirs", "uid-theirs"),
        ("mine", "uid-mine"),
        ("new", "ResourceFlavor//new"),
    ]
    assert items[1]["metadata"]["labels"] == {"kept": "yes", "a": "b"}
    assert items[1]["spec"] == {"nodeLabels": {"x": "y"}}
