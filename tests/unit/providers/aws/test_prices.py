"""Prices: the shipped table, AWS's list, spot prices, and the kept values if one of them is unavailable."""

from __future__ import annotations

import json
from typing import Any

import pytest
from botocore.stub import Stubber

from providers.aws import AwsProvider
from providers.aws.clients import price_list_region
from providers.aws.prices import PRICES
from providers.aws.pricing import FAMILIES, PRODUCT
from providers.aws.provider import CatalogSources
from providers.errors import ErrorClass, ProviderError

from .support import ManualClock, Wire, answer, provider, refusal

TYPES = answer(
    "DescribeInstanceTypes",
    "<instanceTypeSet>"
    + "".join(
        f"<item><instanceType>{name}</instanceType><processorInfo><supportedArchitectures><item>x86_64</item>"
        "</supportedArchitectures></processorInfo></item>"
        for name in ("m5.large", "c5.metal", "x99.large")
    )
    + "</instanceTypeSet>",
)
OFFERED = answer("DescribeInstanceTypeOfferings", "<instanceTypeOfferingSet/>")


def spot(*rows: tuple[str, str, str]) -> str:
    items = "".join(
        f"<item><instanceType>{kind}</instanceType><availabilityZone>{zone}</availabilityZone>"
        f"<spotPrice>{price}</spotPrice></item>"
        for kind, zone, price in rows
    )
    return answer("DescribeSpotPriceHistory", f"<spotPriceHistorySet>{items}</spotPriceHistorySet>")


def product(name: str, price: str, currency: str = "USD") -> str:
    dimension = {"unit": "Hrs", "pricePerUnit": {currency: price}}
    return json.dumps(
        {
            "product": {"attributes": {"instanceType": name}},
            "terms": {"OnDemand": {"sku.term": {"priceDimensions": {"sku.term.rate": dimension}}}},
        }
    )


def products_request(family: str, tenancy: str, **more: Any) -> dict[str, Any]:
    fields = PRODUCT | {"regionCode": "us-east-1", "productFamily": family, "tenancy": tenancy}
    return {
        "ServiceCode": "AmazonEC2",
        "Filters": [{"Type": "TERM_MATCH", "Field": key, "Value": value} for key, value in fields.items()],
        "MaxResults": 100,
        **more,
    }


def listed(aws: AwsProvider, *pages: list[str]) -> Stubber:
    """AWS's price list: these pages for shared tenancy, and a bare metal type."""
    stub = Stubber(aws._aws.pricing)
    for number, page in enumerate(pages):
        following = {"NextToken": str(number + 1)} if number + 1 < len(pages) else {}
        more = {"NextToken": str(number)} if number else {}
        stub.add_response(
            "get_products", {"PriceList": page, **following}, products_request(*FAMILIES[0], **more)
        )
    stub.add_response(
        "get_products", {"PriceList": [product("c5.metal", "4.08")]}, products_request(*FAMILIES[1])
    )
    return stub


def wired(aws: AwsProvider) -> Wire:
    wire = Wire(aws)
    wire.reply("DescribeInstanceTypes", (200, TYPES))
    wire.reply("DescribeInstanceTypeOfferings", (200, OFFERED))
    wire.reply("DescribeSpotPriceHistory", (200, spot(("m5.large", "us-east-1a", "0.0371"))))
    return wire


@pytest.fixture
def aws() -> AwsProvider:
    provider_ = provider()
    wired(provider_)
    return provider_


@pytest.mark.parametrize(
    ("kind", "price"),
    [("m5.large", 0.096), ("p5.48xlarge", 55.04), ("c6a.48xlarge", 7.344), ("t3.nano", 0.0052)],
)
def test_shipped_prices(kind: str, price: float) -> None:
    assert PRICES["us-east-1"][kind] == price


def test_before_a_refresh_prices_are_those_of_the_shipped_table(aws: AwsProvider) -> None:
    types = aws.instance_types()
    assert (types["m5.large"].on_demand_price, types["m5.large"].spot_prices) == (0.096, {})
    assert types["x99.large"].on_demand_price is None
    assert aws.instance_types() is types, "unchanged is the same object"


def test_a_region_without_a_shipped_table_has_no_prices() -> None:
    elsewhere = AwsProvider(
        cluster="blue", region="eu-west-1", endpoint_url="http://127.0.0.1:1", clock=ManualClock()
    )
    wired(elsewhere)
    assert elsewhere.instance_types()["m5.large"].on_demand_price is None


def test_a_refresh_brings_the_list_s_prices_and_each_zone_s_spot_price(aws: AwsProvider) -> None:
    before = aws.instance_types()
    with listed(aws, [product("m5.large", "0.0900000000")], [product("x99.large", "12.5")]) as stub:
        aws.refresh_prices()
        stub.assert_no_pending_responses()
    types = aws.instance_types()
    assert {name: type_.on_demand_price for name, type_ in types.items()} == {
        "m5.large": 0.09,
        "x99.large": 12.5,
        "c5.metal": 4.08,
    }
    assert types["m5.large"].spot_prices == {"us-east-1a": 0.0371}
    assert before["m5.large"].on_demand_price == 0.096, "a returned table is not changed"


def test_an_isolated_vpc_reads_only_spot_prices() -> None:
    aws = provider(catalog=CatalogSources(isolated_vpc=True))
    wired(aws)
    with Stubber(aws._aws.pricing):  # any call would be an error
        aws.refresh_prices()
    assert aws.instance_types()["m5.large"].on_demand_price == 0.096
    assert aws.instance_types()["m5.large"].spot_prices == {"us-east-1a": 0.0371}


def test_unavailable_prices_stay_and_the_others_are_refreshed(aws: AwsProvider) -> None:
    with Stubber(aws._aws.pricing) as stub:
        stub.add_client_error("get_products", "AccessDeniedException", "pricing:GetProducts", 403)
        with pytest.raises(ProviderError, match="pricing:GetProducts") as caught:
            aws.refresh_prices()
    assert caught.value.class_ is ErrorClass.PERMISSION
    assert aws.instance_types()["m5.large"].on_demand_price == 0.096
    assert aws.instance_types()["m5.large"].spot_prices == {"us-east-1a": 0.0371}


def test_without_spot_prices_the_list_is_still_read() -> None:
    aws = provider()
    wired(aws).reply("DescribeSpotPriceHistory", (403, refusal("UnauthorizedOperation")))
    with listed(aws, [product("m5.large", "0.09")]), pytest.raises(ProviderError) as caught:
        aws.refresh_prices()
    assert caught.value.class_ is ErrorClass.PERMISSION
    assert aws.instance_types()["m5.large"].on_demand_price == 0.09


def test_a_zero_price_or_another_currency_is_ignored(aws: AwsProvider) -> None:
    """The list has rows with price zero for capacity that is paid elsewhere."""
    page = [product("m5.large", "0.0000000000"), product("x99.large", "3", "CNY")]
    with listed(aws, page):
        aws.refresh_prices()
    assert aws.instance_types()["m5.large"].on_demand_price == 0.096
    assert aws.instance_types()["x99.large"].on_demand_price is None


@pytest.mark.parametrize(
    ("region", "api_region"),
    [("eu-west-1", "us-east-1"), ("us-gov-west-1", "us-east-1"), ("cn-north-1", "cn-northwest-1")],
)
def test_the_price_list_has_its_own_regions(region: str, api_region: str) -> None:
    assert price_list_region(region) == api_region
    aws = AwsProvider(cluster="blue", region=region, clock=ManualClock(), endpoint_url="http://127.0.0.1:1")
    assert aws._aws.pricing.meta.region_name == api_region


@pytest.mark.covers("SAF-08")
def test_prices_are_by_platform_and_tenancy_and_may_be_unknown() -> None:
    offers = {
        ("Windows with SQL Server Standard", "default"),
        ("Linux/UNIX", "dedicated"),
        ("BeOS", "default"),
    }
    aws = provider(catalog=CatalogSources(offers=offers | {("Linux/UNIX", "default")}))
    wired(aws)
    bare = {"productFamily": FAMILIES[1][0], "tenancy": FAMILIES[1][1]}
    plain = {"productFamily": FAMILIES[0][0], "tenancy": "Shared"}
    windows = {"operatingSystem": "Windows", "preInstalledSw": "SQL Std"}
    licensed = {"licenseModel": "No License required"}
    with Stubber(aws._aws.pricing) as stub:
        for more, products in (
            (plain, [product("m5.large", "0.09")]),
            (bare, []),
            ({**plain, "tenancy": "Dedicated", **licensed}, [product("m5.large", "0.11")]),
            (bare | licensed, []),
            # The highest of several prices counts.
            (plain | windows | licensed, [product("m5.large", "0.7"), product("m5.large", "0.6")]),
            (bare | windows | licensed, []),
        ):
            fields = PRODUCT | {"regionCode": "us-east-1"} | more
            filters = {
                filter_["Field"]: filter_["Value"] for filter_ in products_request("", "")["Filters"]
            } | fields
            request = products_request("", "") | {
                "Filters": [{"Type": "TERM_MATCH", "Field": k, "Value": v} for k, v in filters.items()]
            }
            request["Filters"].sort(key=lambda filter_: _ORDER.index(filter_["Field"]))
            stub.add_response("get_products", {"PriceList": products}, request)
        aws.refresh_prices()
        stub.assert_no_pending_responses()
    type_ = aws.instance_types()["m5.large"]
    assert type_.price("Linux/UNIX", "default") == type_.on_demand_price == 0.09
    assert type_.price("Linux/UNIX", "dedicated") == 0.11
    assert type_.price("Windows with SQL Server Standard", "default") == 0.7
    assert type_.price("Windows with SQL Server Standard", "dedicated") is None
    assert type_.price("Windows", "default") is None
    assert type_.price("BeOS", "default") is None


# The broker's order of filters, which the stub compares.
_ORDER = [*PRODUCT, "licenseModel", "regionCode", "productFamily", "tenancy"]
