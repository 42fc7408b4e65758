"""Endpoint and CA of a cluster, as EKS describes them."""

from __future__ import annotations

import boto3
import pytest

from local.aws import LocalAws
from providers.aws import AwsProvider
from providers.errors import ErrorClass, ProviderError

REGION = "us-east-1"


@pytest.mark.covers("USR-22")
def test_provider_reads_local_eks() -> None:
    with LocalAws() as aws:
        session = boto3.Session(aws_access_key_id="x", aws_secret_access_key="x", region_name=REGION)
        eks = session.client("eks", endpoint_url=aws.endpoint)
        eks.create_cluster(name="blue", roleArn="arn:aws:iam::123456789012:role/x", resourcesVpcConfig={})
        described = eks.describe_cluster(name="blue")["cluster"]
        facts = AwsProvider(cluster="blue", region=REGION, endpoint_url=aws.endpoint).cluster_facts()
        assert facts.endpoint == described["endpoint"]
        assert facts.ca_bundle == described["certificateAuthority"]["data"]
        with pytest.raises(ProviderError) as missing:
            AwsProvider(cluster="red", region=REGION, endpoint_url=aws.endpoint).cluster_facts()
        assert missing.value.class_ is ErrorClass.NOT_FOUND
