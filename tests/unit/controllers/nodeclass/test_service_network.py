"""The range of the cluster's Services: read, compared with the configured range, never guessed."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest

from broker.controllers.nodeclass.network import MISMATCH, UNKNOWN, service_range
from broker.controllers.nodeclass.resolve import ServiceNetwork, Unresolved
from broker.options import problems
from broker.settings import Settings

DEFAULT = {"kubernetes": ("172.20.0.0/16",)}
DUAL = {"kubernetes": ("10.96.0.0/16", "fd00:96::/108")}
WIDER = {"added": ("172.16.0.0/12",), **DEFAULT}


@pytest.mark.parametrize(
    ("ranges", "first", "expected"),
    [
        (DEFAULT, "172.20.0.1", "172.20.0.0/16"),
        (DEFAULT, "", "172.20.0.0/16"),
        (WIDER, "172.20.0.1", "172.20.0.0/16"),  # ranges that were added later do not count
        (DUAL, "10.96.0.1", "10.96.0.0/16"),
        (DUAL, "fd00:96::1", "fd00:96::/108"),
        # Without ServiceCIDR objects: nodes need only the first addresses and the family.
        ({}, "172.20.0.1", "172.20.0.0/24"),
        ({}, "10.0.37.1", "10.0.37.0/24"),
        ({}, "fd12:3456::1", "fd12:3456::/108"),
    ],
)
@pytest.mark.covers("SAF-17")
def test_the_range_is_the_clusters(ranges: dict[str, tuple[str, ...]], first: str, expected: str) -> None:
    at = ip_address(first) if first else None
    assert service_range(ranges, at, None) == ip_network(expected)
    assert service_range(ranges, at, ip_network(expected)) == ip_network(expected)


@pytest.mark.parametrize(
    ("ranges", "first", "configured"),
    [
        (DEFAULT, "172.20.0.1", "10.100.0.0/16"),
        (DEFAULT, "172.20.0.1", "172.20.0.0/24"),
        (DEFAULT, "", "10.100.0.0/16"),
        (DUAL, "10.96.0.1", "fd00:96::/108"),
        ({}, "172.20.0.1", "10.100.0.0/16"),
        ({}, "172.20.0.1", "172.16.0.0/12"),  # contains the address, but does not begin with it
        ({}, "fd12:3456::1", "10.100.0.0/16"),
    ],
)
@pytest.mark.covers("SAF-17")
def test_a_range_that_is_not_the_clusters_is_refused(
    ranges: dict[str, tuple[str, ...]], first: str, configured: str
) -> None:
    with pytest.raises(Unresolved, match=configured) as refused:
        service_range(ranges, ip_address(first) if first else None, ip_network(configured))
    assert refused.value.reason == MISMATCH


def test_a_configured_range_is_used_if_only_the_first_address_is_known() -> None:
    wide = ip_network("172.20.0.0/14")
    assert service_range({}, ip_address("172.20.0.1"), wide) == wide


@pytest.mark.parametrize("first", ["", "10.0.0.129"])
@pytest.mark.covers("SAF-17")
def test_an_unknown_range_is_an_error(first: str) -> None:
    with pytest.raises(Unresolved) as refused:
        service_range({}, ip_address(first) if first else None, None)
    assert refused.value.reason == UNKNOWN


@pytest.mark.covers("SAF-17")
def test_there_is_no_default_range_and_an_invalid_setting_is_refused() -> None:
    assert Settings().service_range is None
    for text in ("10.100.0.1/16", "10.100", "10.100.0.0/33"):
        (problem,) = problems(Settings(service_cidr=text))
        assert problem.startswith("--service-cidr ")


def test_the_address_family_is_that_of_the_range() -> None:
    assert ServiceNetwork(range="fd00::/108").ipv6
    assert not ServiceNetwork(range="10.0.0.0/24").ipv6
