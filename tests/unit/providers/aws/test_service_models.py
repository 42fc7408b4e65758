"""The reduced SDK has all calls of the provider, each as AWS describes it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from botocore import xform_name
from botocore.loaders import create_loader
from botocore.model import Shape, StructureShape
from botocore.regions import EndpointResolver

import providers.aws
from providers.aws.service_models import OTHERS, USED, LeanFiles, lean_loader

CALLED = re.compile(r"aws\.(ec2|eks|iam|ssm)\.([a-z]+_[a-z_]+)")


def _sources() -> str:
    folder = Path(providers.aws.__file__).parent
    return "\n".join(path.read_text() for path in sorted(folder.glob("*.py")))


def _described(shape: Shape | None, seen: frozenset[str] = frozenset()) -> Any:
    """A shape with all its parts, as plain values; a recursive shape is only named."""
    if shape is None or shape.name in seen:
        return shape and shape.name
    inner = seen | {shape.name}
    below = shape.members if isinstance(shape, StructureShape) else {}
    parts = {name: _described(member, inner) for name, member in below.items()}
    others = [_described(getattr(shape, part, None), inner) for part in ("member", "key", "value")]
    return shape.type_name, shape.name, shape.serialization, shape.metadata, parts, others


def test_only_called_operations_are_kept() -> None:
    called = {(service, method) for service, method in CALLED.findall(_sources())}
    kept = {(service, xform_name(name)) for service, names in USED.items() for name in names}
    assert kept == called


@pytest.mark.parametrize("service", USED)
def test_an_operation_equals_that_of_the_sdk(service: str) -> None:
    whole, lean = botocore.session.Session(), botocore.session.Session()
    paths = tuple(whole.get_component("data_loader").search_paths)
    lean.register_component("data_loader", lean_loader(paths))
    model, reduced = whole.get_service_model(service), lean.get_service_model(service)
    assert set(reduced.operation_names) == set(USED[service])
    assert reduced.metadata == model.metadata
    for name in USED[service]:
        expected, actual = model.operation_model(name), reduced.operation_model(name)
        assert actual.http == expected.http
        assert _described(actual.input_shape) == _described(expected.input_shape)
        assert _described(actual.output_shape) == _described(expected.output_shape)


@pytest.mark.parametrize("service", [*USED, *OTHERS])
def test_an_endpoint_equals_that_of_the_sdk(service: str) -> None:
    paths = tuple(botocore.session.Session().get_component("data_loader").search_paths)
    loaders = (create_loader(), lean_loader(paths))
    resolver, lean = (EndpointResolver(loader.load_data("endpoints")) for loader in loaders)
    for partition in resolver.get_available_partitions():
        for region in ("new-region-1", *resolver.get_available_endpoints("ec2", partition)):
            expected = resolver.construct_endpoint(service, region, partition)
            assert lean.construct_endpoint(service, region, partition) == expected


def test_endpoints_of_other_services_are_left_out() -> None:
    path = Path(botocore.__file__).parent / "data" / "endpoints"
    partitions = (LeanFiles().load_file(str(path)) or {})["partitions"]
    assert {name for partition in partitions for name in partition["services"]} == {*USED, *OTHERS}


def test_a_missing_file_is_none() -> None:
    assert LeanFiles().load_file("/nowhere/ec2/2016-11-15/service-2") is None
