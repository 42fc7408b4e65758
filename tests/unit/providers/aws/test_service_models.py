"""The reduced SDK has all calls of the provider, each as AWS describes it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from botocore import xform_name
from botocore.model import Shape, StructureShape

import providers.aws
from providers.aws.service_models import USED, LeanFiles, lean_loader

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


def test_a_missing_file_is_none() -> None:
    assert LeanFiles().load_file("/nowhere/ec2/2016-11-15/service-2") is None
