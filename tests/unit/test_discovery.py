"""Endpoint and CA of the cluster: explicit values first, then the pod's own, then EKS's description."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path

import pytest

from broker import run
from broker.settings import Settings
from providers.errors import ErrorClass, ProviderError
from providers.model import EksCluster

REGION = "us-east-1"
FACTS = EksCluster(endpoint="https://eks.example", ca_bundle="Y2E=")


def unasked() -> EksCluster:
    raise AssertionError("EKS is called although no value is missing")


@pytest.mark.covers("USR-22")
def test_explicit_values_need_no_description() -> None:
    given = Settings(cluster_name="blue", cluster_endpoint="https://own.example", cluster_ca="b3du")
    assert run.discovered(given, unasked) == given


@pytest.mark.covers("USR-22")
def test_eks_describes_the_missing_values() -> None:
    settings = run.discovered(Settings(cluster_name="blue", cluster_ca="b3du"), lambda: FACTS)
    assert (settings.cluster_endpoint, settings.cluster_ca) == ("https://eks.example", "b3du")
    settings = run.discovered(Settings(cluster_name="blue"), lambda: FACTS)
    assert (settings.cluster_endpoint, settings.cluster_ca) == ("https://eks.example", "Y2E=")


@pytest.mark.covers("USR-22")
def test_pod_has_the_ca_of_its_service_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ca.crt").write_text("own")
    monkeypatch.setattr(run, "SERVICE_ACCOUNT_CA", tmp_path / "ca.crt")
    own = b64encode(b"own").decode()
    assert run.discovered(Settings(cluster_name="blue"), lambda: FACTS).cluster_ca == own
    given = Settings(cluster_name="blue", cluster_endpoint="https://own.example")
    assert run.discovered(given, unasked).cluster_ca == own


@pytest.mark.covers("USR-22")
def test_refusal_names_the_right_and_the_options() -> None:
    def refuse() -> EksCluster:
        raise ProviderError("AccessDeniedException", "not authorized", class_=ErrorClass.PERMISSION)

    with pytest.raises(ValueError, match="eks:DescribeCluster") as refused:
        run.discovered(Settings(cluster_name="blue"), refuse)
    text = str(refused.value)
    assert all(
        word in text for word in ("AccessDeniedException", "CLUSTER_NAME", "CLUSTER_ENDPOINT", "AWS_REGION")
    )
