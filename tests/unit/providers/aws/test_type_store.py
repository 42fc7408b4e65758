"""Instance types on disk: fetched once an hour by all commands of an account, never from another account."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from providers.aws.type_store import TypeStore, default_folder
from providers.model import Gpu, InstanceType

from .support import START

PLACE = ("http://127.0.0.1:1", "us-east-1", "123456789012")
HOUR = 3600.0

names = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=8)
types = st.builds(
    InstanceType,
    name=names,
    vcpus=st.integers(0, 999),
    memory_mib=st.integers(0, 2**40),
    architecture=st.sampled_from(["amd64", "arm64"]),
    zones=st.frozensets(names, max_size=3),
    gpus=st.lists(
        st.builds(
            Gpu, name=names, manufacturer=names, count=st.integers(0, 16), memory_mib=st.integers(0, 2**40)
        ),
        max_size=2,
    ).map(tuple),
    market_types=st.frozensets(st.sampled_from(["on-demand", "spot"])),
    on_demand_price=st.none() | st.floats(0, 1e6),
    spot_prices=st.dictionaries(names, st.floats(0, 1e6), max_size=2),
    bare_metal=st.booleans(),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("types")


@given(kept=st.lists(types, max_size=3, unique_by=lambda type_: type_.name))
def test_saved_types_are_read_back(folder: Path, kept: list[InstanceType]) -> None:
    store = TypeStore(folder, ttl=HOUR)
    by_name = {type_.name: type_ for type_ in kept}
    store.save(PLACE, by_name, now=START)
    assert store.load(PLACE, now=START) == by_name


M5 = {"m5.large": InstanceType(name="m5.large", vcpus=2, memory_mib=8192)}


def test_each_account_region_and_endpoint_has_its_own_file(tmp_path: Path) -> None:
    store = TypeStore(tmp_path, ttl=HOUR)
    store.save(PLACE, M5, now=START)
    for other in (("", *PLACE[1:]), (PLACE[0], "eu-west-1", PLACE[2]), (*PLACE[:2], "210987654321")):
        assert store.load(other, now=START) is None


def test_types_are_read_again_after_an_hour(tmp_path: Path) -> None:
    store = TypeStore(tmp_path, ttl=HOUR)
    store.save(PLACE, M5, now=START)
    assert store.load(PLACE, now=START + timedelta(seconds=3599)) == M5
    assert store.load(PLACE, now=START + timedelta(seconds=3600)) is None
    assert store.load(PLACE, now=START - timedelta(seconds=1)) is None, "a clock that went back"


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"at": "soon"}', '{"at": 1767225600, "types": [{"name": 1}]}']
)
def test_a_damaged_file_is_a_miss(tmp_path: Path, text: str) -> None:
    store = TypeStore(tmp_path, ttl=HOUR)
    store.save(PLACE, M5, now=START)
    (file,) = tmp_path.iterdir()
    file.write_text(text)
    assert store.load(PLACE, now=START) is None
    store.save(PLACE, M5, now=START)
    assert store.load(PLACE, now=START) == M5


def test_an_unwritable_folder_does_not_stop_the_provider(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    store = TypeStore(blocked / "caches", ttl=HOUR)
    store.save(PLACE, M5, now=START)
    assert store.load(PLACE, now=START) is None


def test_the_cache_folder_follows_xdg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "capacity-broker"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/user")
    assert default_folder() == Path("/home/user/.cache/capacity-broker")
