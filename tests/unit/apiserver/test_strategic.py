"""Strategic merge patches: lists by key, directives, and the order that kubectl sets."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from local.kube.errors import StatusError
from local.kube.shape import builtin
from local.kube.strategic import strategic

Obj = dict[str, Any]


def patched(kind: str, spec: Obj, patch: Obj, *, group: str = "", version: str = "v1") -> Obj:
    shape = builtin(group, version, kind)
    assert shape is not None
    document = {"spec": spec}
    before = copy.deepcopy(document)
    out = strategic(document, {"spec": patch}, shape)
    assert document == before
    patched_spec: Obj = out["spec"]
    return patched_spec


def containers(*names: str, **more: Any) -> list[Obj]:
    return [{"name": name, **more} for name in names]


def test_a_new_container_comes_before_those_the_patch_does_not_name() -> None:
    out = patched("Pod", {"containers": containers("a")}, {"containers": [{"name": "b"}]})
    assert [container["name"] for container in out["containers"]] == ["b", "a"]


def test_a_list_is_replaced_by_directive() -> None:
    patch = {"containers": [{"name": "z"}, {"$patch": "replace"}]}
    assert patched("Pod", {"containers": containers("a", "b")}, patch)["containers"] == containers("z")


def test_null_removes() -> None:
    assert patched("Pod", {"nodeName": "n", "hostname": "h"}, {"nodeName": None}) == {"hostname": "h"}


def test_entries_get_the_order_of_the_patch() -> None:
    patch = {"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}]}
    out = patched("Pod", {"containers": containers("a", "b")}, patch)
    assert [container["name"] for container in out["containers"]] == ["b", "a"]


def test_entries_of_the_server_keep_their_place_in_an_order() -> None:
    patch = {"$setElementOrder/containers": [{"name": "a"}, {"name": "c"}], "containers": [{"name": "c"}]}
    out = patched("Pod", {"containers": containers("a", "injected", "c")}, patch)
    assert [container["name"] for container in out["containers"]] == ["a", "injected", "c"]


def test_only_retained_keys_stay() -> None:
    patch = {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}
    out = patched("Deployment", {"strategy": strategy}, patch, group="apps")
    assert out["strategy"] == {"type": "Recreate"}


@pytest.mark.parametrize(
    "patch",
    [
        {"containers": [{"image": "i"}]},
        {"containers": [{"$patch": "frob", "name": "a"}]},
        {"$patch": "frob"},
        {"$setElementOrder/containers": [{"name": "a"}], "containers": [{"name": "b"}]},
        {"$retainKeys": ["a"], "hostname": "h"},
    ],
)
def test_an_invalid_patch_is_an_error(patch: Obj) -> None:
    with pytest.raises(StatusError):
        patched("Pod", {"containers": containers("a")}, patch)


entries = st.lists(st.sampled_from("abcd"), unique=True)


@given(have=entries, patched_names=entries)
def test_a_keyed_list_is_the_union(have: list[str], patched_names: list[str]) -> None:
    out = patched(
        "Pod", {"containers": containers(*have)}, {"containers": containers(*patched_names, image="new")}
    )
    shown = {container["name"]: container.get("image") for container in out["containers"]}
    assert shown == {name: "new" if name in patched_names else None for name in {*have, *patched_names}}
    assert len(out["containers"]) == len(shown)
