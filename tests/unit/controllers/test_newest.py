"""Objects as the API server has them, in the version that it serves."""

from __future__ import annotations

from typing import Any

import pytest

from broker.apis.kueue import ResourceFlavor
from broker.apis.meta import Kind
from broker.controllers.newest import unchanged
from broker.kube.errors import NotFound

META: dict[str, Any] = {"name": "h100", "uid": "u-1", "generation": 2}
READ = ResourceFlavor.decode({"metadata": META})


class Server:
    """Serves a flavor in one version."""

    def __init__(self, version: str, **changed: object) -> None:
        self.version, self.meta = version, {**META, **changed}

    def list(self, kind: Kind, **_: object) -> tuple[list[dict[str, Any]], str]:
        if kind.version != self.version:
            raise NotFound(404, "NotFound", kind.api_version)
        return [{"metadata": self.meta}], "1"


@pytest.mark.parametrize("version", ["v1beta1", "v1beta2"])
def test_flavor_is_compared_in_the_version_that_kueue_serves(version: str) -> None:
    same: Any = Server(version)
    other: Any = Server(version, generation=3)
    assert unchanged(same, [READ])
    assert not unchanged(other, [READ])


def test_kind_that_is_served_in_no_known_version_is_an_error() -> None:
    newer: Any = Server("v2")
    with pytest.raises(NotFound):
        unchanged(newer, [READ])
