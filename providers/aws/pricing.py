"""The price of an hour: AWS's own price list and spot prices, and the shipped table until these are read.

Invariant: a price is AWS's for this Region, or the shipped table's, or unknown, never a guess. A failed
refresh keeps known prices, and raises its error after everything else was refreshed. The Price List API has
endpoints in a few Regions only, and none in a VPC without internet: then `isolated` leaves it alone (AWS
Price List API, GetProducts; EC2 API Reference, DescribeSpotPriceHistory).
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

import orjson

from providers.aws import prices
from providers.aws.clients import Aws
from providers.aws.listings import leave_out
from providers.errors import ProviderError
from providers.model import PLAIN_OFFER, InstanceType

PAGE = 100
SPOT_PAGE = 1000
LINUX = ("Linux/UNIX", "Linux/UNIX (Amazon VPC)")
# The product of a node: Linux, nothing installed, a used on-demand instance of the Region.
PRODUCT = {
    "serviceCode": "AmazonEC2",
    "operatingSystem": "Linux",
    "preInstalledSw": "NA",
    "capacitystatus": "Used",
    "marketoption": "OnDemand",
}
# The list has bare metal as a family of its own, sold on dedicated tenancy.
FAMILIES = (("Compute Instance", "Shared"), ("Compute Instance (bare metal)", "Dedicated"))
TENANCIES = {"default": "Shared", "dedicated": "Dedicated"}
# EC2's platform -> the price list's names (operatingSystem, preInstalledSw). A missing platform has no known
# price. EC2 API Reference, CreateCapacityReservation, InstancePlatform.
PLATFORMS = {
    "Linux/UNIX": ("Linux", "NA"),
    "Red Hat Enterprise Linux": ("RHEL", "NA"),
    "SUSE Linux": ("SUSE", "NA"),
    "Ubuntu Pro": ("Ubuntu Pro", "NA"),
    "RHEL with HA": ("Red Hat Enterprise Linux with HA", "NA"),
    "Windows": ("Windows", "NA"),
    **{
        f"{platform} with SQL Server {edition}": (system, software)
        for platform, system in (
            ("Windows", "Windows"),
            ("Linux", "Linux"),
            ("RHEL", "RHEL"),
            ("RHEL with HA and", "Red Hat Enterprise Linux with HA"),
        )
        for edition, software in (("Standard", "SQL Std"), ("Enterprise", "SQL Ent"), ("Web", "SQL Web"))
    },
}


class Prices:
    """Prices as last refreshed. Any thread may read; one refreshes."""

    def __init__(self, aws: Aws, *, isolated: bool, offers: Collection[tuple[str, str]] = ()) -> None:
        """`offers`: each platform and tenancy to read prices of, besides Linux/UNIX on default tenancy."""
        self._aws = aws
        self._offers = sorted(offer for offer in {*offers} - {PLAIN_OFFER} if offer[0] in PLATFORMS)
        leave_out(aws, "DescribeSpotPriceHistory", ("productDescription", "timestamp"))
        self._isolated = isolated
        self._lock = threading.Lock()
        self._listed: Mapping[str, float] = prices.PRICES.get(aws.region, {})
        self._others: Mapping[str, Mapping[str, Mapping[str, float]]] = {}  # type -> platform -> tenancy
        self._spot: Mapping[str, Mapping[str, float]] = {}
        self.version = 0  # another number after each change

    def refresh(self) -> None:
        """Reads the prices again. Raises the first ProviderError, after all reads."""
        failed: list[ProviderError] = []
        for load in (self._refresh_spot, self._refresh_listed):
            try:
                load()
            except ProviderError as error:
                failed.append(error)
        if failed:
            raise failed[0]

    def priced(self, types: Mapping[str, InstanceType]) -> dict[str, InstanceType]:
        """The types with the prices of now."""
        with self._lock:
            listed, others, spot = self._listed, self._others, self._spot
        return {
            name: replace(
                type_,
                on_demand_price=listed.get(name),
                other_prices=others.get(name, {}),
                spot_prices=spot.get(name, {}),
            )
            for name, type_ in types.items()
        }

    def _refresh_spot(self) -> None:
        by_type: dict[str, dict[str, float]] = defaultdict(dict)
        for page in self._aws.pages(
            self._aws.ec2.describe_spot_price_history,
            ProductDescriptions=list(LINUX),
            # From now on: EC2 answers with the price that holds, one a type and zone.
            StartTime=self._aws.clock.now(),
            MaxResults=SPOT_PAGE,
        ):
            for item in page["SpotPriceHistory"]:
                if price := _number(item.get("SpotPrice")):
                    by_type[item.get("InstanceType", "")][item.get("AvailabilityZone", "")] = price
        with self._lock:
            self._spot = dict(by_type)
            self.version += 1

    def _refresh_listed(self) -> None:
        if self._isolated:
            return
        listed = self._list_prices(PRODUCT, "default")
        if not listed:
            return  # a Region that the list does not know: the shipped table stays
        others: dict[str, dict[str, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
        for platform, tenancy in self._offers:
            system, software = PLATFORMS[platform]
            product = PRODUCT | {"operatingSystem": system, "preInstalledSw": software}
            # Without it the list has each type again at the price of a licence that the customer brings.
            product |= {"licenseModel": "No License required"}
            for name, price in self._list_prices(product, tenancy).items():
                others[name][platform][tenancy] = price
        with self._lock:
            self._listed = {**prices.PRICES.get(self._aws.region, {}), **listed}
            self._others = others
            self.version += 1

    def _list_prices(self, product: Mapping[str, str], tenancy: str) -> dict[str, float]:
        """The list's price by type of one product; of several offers of a type the dearest."""
        currency = "CNY" if self._aws.region.startswith("cn-") else "USD"
        by_type: dict[str, float] = {}
        for family, sold in ((FAMILIES[0][0], TENANCIES[tenancy]), FAMILIES[1]):
            attributes = {**product, "regionCode": self._aws.region, "productFamily": family, "tenancy": sold}
            for page in self._aws.pages(
                self._aws.pricing.get_products,
                ServiceCode="AmazonEC2",
                Filters=[
                    {"Type": "TERM_MATCH", "Field": key, "Value": value} for key, value in attributes.items()
                ],
                MaxResults=PAGE,
            ):
                for text in page["PriceList"]:
                    for name, price in _offers(orjson.loads(text), currency):
                        by_type[name] = max(price, by_type.get(name, 0.0))
        return by_type


def _offers(product: Mapping[str, Any], currency: str) -> Iterator[tuple[str, float]]:
    """The type of a product and its price an hour."""
    name = product.get("product", {}).get("attributes", {}).get("instanceType", "")
    for term in product.get("terms", {}).get("OnDemand", {}).values():
        for dimension in term.get("priceDimensions", {}).values():
            if name and (price := _number(dimension.get("pricePerUnit", {}).get(currency))):
                yield name, price


def _number(text: object) -> float | None:
    """A price; None for zero, which the list has for products that are not sold by the hour."""
    try:
        return float(str(text)) or None
    except ValueError:
        return None
