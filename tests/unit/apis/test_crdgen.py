"""The CRD files: equal to the models, structural, and found from a checkout and from a wheel."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from broker.apis import crds
from broker.apis.names import LAUNCHABLE, RESERVATIONS_RESOLVED
from broker.apis.ome import CapacityReservation
from local.generators import crdgen
from tests.unit.apis.cases import Json

CHECKOUT = crdgen.CHECKOUT


def test_crd_files_equal_the_models() -> None:
    assert crdgen.drift(CHECKOUT) == []
    assert crdgen.drift(crdgen.CHART) == []


def test_drift_from_the_models_is_reported_by_file(tmp_path: Path) -> None:
    crdgen.write(tmp_path)
    assert crdgen.drift(tmp_path) == []
    edited = tmp_path / "karpenter.sh_nodepools.yaml"
    edited.write_text(edited.read_text().replace("maximum: 100", "maximum: 10", 1))
    (tmp_path / "karpenter.sh_nodeclaims.yaml").unlink()
    (tmp_path / "extra.yaml").write_text("")
    assert crdgen.drift(tmp_path) == [
        "extra.yaml: is not generated from any model",
        "karpenter.sh_nodeclaims.yaml: is missing",
        "karpenter.sh_nodepools.yaml: differs from the models",
    ]
    crdgen.write(tmp_path)
    assert crdgen.drift(tmp_path) == []


def test_check_fails_on_drift_and_names_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(crdgen, "CHECKOUT", tmp_path / "crds")
    monkeypatch.setattr(crdgen, "CHART", tmp_path / "chart")
    assert crdgen.main([]) == 0
    assert crdgen.main(["--check"]) == 0
    (tmp_path / "crds" / "karpenter.sh_nodepools.yaml").write_text("")
    assert crdgen.main(["--check"]) == 1
    assert "differs from the models; run python -m local.generators.crdgen" in capsys.readouterr().err
    assert crdgen.main(["--chekc"]) == 2
    assert "usage" in capsys.readouterr().err


def test_load_gives_the_definitions() -> None:
    assert [crd["metadata"]["name"] for crd in crds.load()] == [
        "ondemandcapacityreservations.capacity-broker.io",
        "ec2nodeclasses.karpenter.k8s.aws",
        "nodeclaims.karpenter.sh",
        "nodepools.karpenter.sh",
        "compositeelasticquotas.nos.nebuly.com",
        "elasticquotas.nos.nebuly.com",
        "capacityreservations.ome.io",
        "clustercapacityreservations.ome.io",
        "dedicatedaiclusterprofiles.ome.io",
        "dedicatedaiclusters.ome.io",
        "reservations.scheduling.godel.kubewharf.io",
        "reservations.scheduling.koordinator.sh",
    ]


def test_a_wheel_contains_the_definitions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = tmp_path / "site-packages" / "broker"
    (installed / "apis").mkdir(parents=True)
    (installed / "crds").mkdir()
    crdgen.write(installed / "crds")
    monkeypatch.setattr(crds, "__file__", str(installed / "apis" / "crds.py"))
    assert crds.folder() == installed / "crds"
    for path in (installed / "crds").iterdir():
        path.unlink()
    with pytest.raises(FileNotFoundError, match="install capacity-broker again"):
        crds.load()


def versions() -> Iterator[Any]:
    for crd in crds.load():
        for version in crd["spec"]["versions"]:
            name = f"{crd['metadata']['name']}/{version['name']}"
            yield pytest.param(version, id=name)


def walk(schema: Json, path: str = "") -> Iterator[tuple[str, Json]]:
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from walk(child, f"{path}.{name}")
    if "items" in schema:
        yield from walk(schema["items"], f"{path}[]")
    if "additionalProperties" in schema:
        yield from walk(schema["additionalProperties"], f"{path}{{}}")


@pytest.mark.parametrize("version", list(versions()))
def test_schemas_are_structural_and_explained(version: Json) -> None:
    for path, schema in walk(version["schema"]["openAPIV3Schema"]):
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            assert ("type" in schema) != bool(schema.get("x-kubernetes-int-or-string")), path
        if path and not path.endswith(("[]", "{}", ".metadata")):
            assert schema.get("description"), f"{path} has no words for kubectl explain"
        for rule in schema.get("x-kubernetes-validations", ()):
            assert rule["message"], path


@pytest.mark.covers("KRP-01")
@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_both_versions_have_the_reservation_spec(version: str) -> None:
    (crd,) = (crd for crd in crds.load() if crd["spec"]["names"]["kind"] == "EC2NodeClass")
    (definition,) = (candidate for candidate in crd["spec"]["versions"] if candidate["name"] == version)
    assert definition["served"]
    assert definition["storage"] == (version == "v1")
    spec = definition["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"][
        "capacityReservationSpec"
    ]
    assert {path for path, _ in walk(spec)} == {
        "",
        ".capacityReservationPreference",
        ".capacityReservationTarget",
        ".capacityReservationTarget.capacityReservationId",
        ".capacityReservationTarget.capacityReservationResourceGroupArn",
    }


def test_conditions_are_merged_as_karpenter_merges_them() -> None:
    kinds = {}
    for crd in crds.load():
        properties = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
        if "status" not in properties:
            continue
        conditions = properties["status"]["properties"]["conditions"]
        kinds[crd["spec"]["names"]["kind"]] = conditions.get("x-kubernetes-list-type", "atomic")
    assert kinds.pop("EC2NodeClass") == "atomic"
    assert kinds and set(kinds.values()) == {"map"}


def test_a_type_without_a_schema_is_refused() -> None:
    from broker.apis.meta import Model

    class Odd(Model):
        """Has a field that JSON cannot hold."""

        field: complex = 0j

    with pytest.raises(TypeError, match="complex"):
        crdgen.structural(Odd)


def test_files_are_plain_yaml() -> None:
    for text in crds.texts().values():
        assert text.startswith("# Generated")
        assert "&id" not in text
        assert yaml.safe_load(text)["apiVersion"] == "apiextensions.k8s.io/v1"


def test_kubectl_columns_of_a_class_show_the_brokers_conditions() -> None:
    """Not Karpenter's Ready, which is empty without Karpenter; `-o wide` shows that too."""
    (crd,) = [crd_ for crd_ in crds.load() if crd_["spec"]["names"]["kind"] == "EC2NodeClass"]
    for version in crd["spec"]["versions"]:
        shown = [
            column["jsonPath"] for column in version["additionalPrinterColumns"] if not column.get("priority")
        ]
        condition_paths = [path for path in shown if path.startswith(".status.conditions")]
        assert condition_paths == [
            f'.status.conditions[?(@.type=="{condition}")].status'
            for condition in (LAUNCHABLE, RESERVATIONS_RESOLVED)
        ]


def _unlimited(schema: dict[str, Any], where: str) -> Iterator[str]:
    """The fields without a limit on their length."""
    limits = {"string": "maxLength", "array": "maxItems"}
    limit = "maxLength" if schema.get("x-kubernetes-int-or-string") else limits.get(schema.get("type", ""))
    if "additionalProperties" in schema:
        limit = "maxProperties"
    if limit and limit not in schema and "enum" not in schema:
        yield where
    for name, field in schema.get("properties", {}).items():
        yield from _unlimited(field, f"{where}.{name}")
    for name in ("items", "additionalProperties"):
        if name in schema:
            yield from _unlimited(schema[name], f"{where}[]")


@pytest.mark.covers("SAF-51")
def test_every_user_field_of_the_brokers_kinds_has_a_limit() -> None:
    unlimited = [
        field
        for entry in crdgen.DEFINITIONS
        for version in crdgen.definition(entry)["spec"]["versions"]
        if entry.versions[0].KIND.group in crdgen.OWN
        for name, schema in version["schema"]["openAPIV3Schema"]["properties"].items()
        if name == "spec"
        for field in _unlimited(schema, f"{entry.versions[0].KIND.kind}.spec")
    ]
    assert unlimited == []


@pytest.mark.covers("SAF-51")
def test_a_quantity_of_65_characters_is_refused_by_the_definition() -> None:
    [entry] = [
        definition for definition in crdgen.DEFINITIONS if definition.versions[0] is CapacityReservation
    ]
    schema = crdgen.definition(entry)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    flavor = schema["spec"]["properties"]["resourceGroups"]["items"]["properties"]["flavors"]["items"]
    quota = flavor["properties"]["resources"]["items"]["properties"]["nominalQuota"]
    assert quota["maxLength"] == 64
