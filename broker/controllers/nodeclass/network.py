"""The network of the cluster's Services, for the user data of nodes: its range and its DNS address.

Invariant: nothing is guessed. The range is read from the cluster, and a configured range is compared with it.
A wrong one stops launches, since nodes would send DNS queries to an address without a server.

Without ServiceCIDR objects (before Kubernetes 1.33), the Service `default/kubernetes` shows the begin of the
range: it has the first address. Nodes use only the range's first address and its family
(awslabs/amazon-eks-ami, nodeadm: the DNS server is the tenth address). So the smallest range of EKS stands
for it: /24, or /108 for IPv6. The address of the DNS server is that of the Service `kube-system/kube-dns`, as
Karpenter's (pkg/operator, KubeDNSIP).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

import structlog

from broker.apis.networking import Service, ServiceCIDR
from broker.controllers.nodeclass.resolve import ServiceNetwork, Unresolved
from broker.kube.client import Client
from broker.kube.errors import Forbidden, NotFound

Range = IPv4Network | IPv6Network

MISMATCH: Final = "ServiceCIDRMismatch"
UNKNOWN: Final = "ServiceCIDRUnknown"
OPTION: Final = "--service-cidr (CLUSTER_SERVICE_CIDR)"
SMALLEST: Final[Mapping[int, int]] = {4: 24, 6: 108}

_log = structlog.get_logger("nodeclass")


class NetworkReader:
    """Reads the network once; each call tries again until a read succeeds."""

    def __init__(self, client: Client, *, configured: Range | None) -> None:
        self._client = client
        self._configured = configured
        self._lock = threading.Lock()
        self._known: ServiceNetwork | None = None

    def read(self) -> ServiceNetwork:
        """Raises Unresolved with the action that is needed, and ApiError."""
        with self._lock:
            if self._known is None:
                try:
                    self._known = self._read()
                except Forbidden as error:
                    raise Unresolved(
                        UNKNOWN,
                        f"the range of the cluster's Services could not be read: {error}; let the broker "
                        "list servicecidrs and get services, as the chart's ClusterRole does",
                    ) from error
                _log.info("service network", range=self._known.range, dns=self._known.dns)
            return self._known

    def _read(self) -> ServiceNetwork:
        first = self._address("kubernetes", "default")
        block = service_range(self._ranges(), first, self._configured)
        dns = self._address("kube-dns", "kube-system")
        return ServiceNetwork(range=str(block), dns=str(dns) if dns else "")

    def _ranges(self) -> Mapping[str, Sequence[str]]:
        try:
            items, _ = self._client.list(ServiceCIDR.KIND)
        except NotFound:
            return {}  # before Kubernetes 1.33
        return {cidr.name: cidr.spec.cidrs for cidr in map(ServiceCIDR.decode, items)}

    def _address(self, name: str, namespace: str) -> IPv4Address | IPv6Address | None:
        try:
            service = Service.decode(self._client.get(Service.KIND, name, namespace=namespace))
        except NotFound:
            return None
        try:
            return ip_address(service.spec.cluster_ip)
        except ValueError:
            return None  # a headless Service


def service_range(
    ranges: Mapping[str, Sequence[str]], first: IPv4Address | IPv6Address | None, configured: Range | None
) -> Range:
    """The range of the cluster's own Services. Raises Unresolved.

    `ranges`: of each ServiceCIDR by its name; `first`: the address of the Service `default/kubernetes`.
    """
    block = _listed(ranges, first)
    if block is None and first is None:
        raise Unresolved(
            UNKNOWN,
            "the cluster shows neither a ServiceCIDR nor the Service default/kubernetes: nodes cannot "
            "get the range of its Services",
        )
    if block is None and configured is not None and first is not None:
        # That Service has the first address of the range, whatever its size.
        begins = configured.network_address + 1 == first
        if not begins:
            raise Unresolved(
                MISMATCH,
                f"{OPTION} is {configured}, and the Service default/kubernetes has {first}, which is not its "
                "first address: nodes would get a wrong DNS address. Correct the option or leave it out",
            )
        return configured
    if block is None and first is not None:
        begin, size = first - 1, SMALLEST[first.version]
        try:
            block = ip_network(f"{begin}/{size}")
        except ValueError as error:
            raise Unresolved(
                UNKNOWN,
                f"the Service default/kubernetes has {first}, which begins no range of EKS's: set {OPTION}",
            ) from error
    assert block is not None
    if configured is not None and configured != block:
        raise Unresolved(
            MISMATCH,
            f"{OPTION} is {configured}, and the cluster's ServiceCIDR is {block}: nodes would get a wrong "
            "DNS address. Correct the option or leave it out",
        )
    return block


def _listed(ranges: Mapping[str, Sequence[str]], first: IPv4Address | IPv6Address | None) -> Range | None:
    """The range with the address of the Service `default/kubernetes`, by ServiceCIDR.

    The ServiceCIDR `kubernetes`, which the API server made, comes first. Others were added later, for more
    Services. Of two families, the range of that Service's family is taken.
    """
    blocks = [ip_network(text) for text in ranges.get("kubernetes", ())]
    blocks += [
        ip_network(text) for name, texts in sorted(ranges.items()) if name != "kubernetes" for text in texts
    ]
    if first is None:
        return blocks[0] if blocks else None
    return next((block for block in blocks if first in block), None)
