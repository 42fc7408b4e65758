"""The content of a class's launch template for one group of claims.

It has everything of the class that an instance shows. Differences between claims (labels, taints) are in the
user data, so only claims with equal labels and taints share a template (`node_settings.template_key`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from broker.apis import names
from broker.apis.hashes import VERSION, class_hash
from broker.apis.karpenter import NodeClaim
from broker.capacity.launches import LaunchGroup
from broker.controllers.nodeclass.resolve import LaunchClass
from broker.placement.node_settings import node_labels, node_taints, requests_efa
from providers.base import LaunchCalls
from providers.launch import (
    Bootstrap,
    ConnectionTracking,
    MetadataOptions,
    NetworkInterface,
    Template,
)
from providers.names import TAG_CLUSTER, TAG_NODECLASS


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeBootstrap:
    """The cluster's parameters in the user data of nodes."""

    name: str
    endpoint: str
    ca_bundle: str


def template(
    ready: LaunchClass,
    group: LaunchGroup,
    claim: NodeClaim,
    *,
    provider: LaunchCalls,
    cluster: NodeBootstrap,
) -> Template:
    """The template for this group; all its claims have the same template key as `claim`."""
    spec, around = ready.source.spec, ready.surroundings
    tracking, selector = spec.connection_tracking, spec.placement_group_selector
    bootstrap = Bootstrap(
        cluster_name=cluster.name,
        endpoint=cluster.endpoint,
        ca_bundle=cluster.ca_bundle,
        service_cidr=ready.network.range,
        labels=node_labels(claim),
        taints=tuple(node_taints(claim)),
        kubelet=_kubelet(ready),
        instance_store_raid0=spec.instance_store_policy == "RAID0",
    )
    return Template(
        image_id=group.image.id,
        user_data=provider.user_data(family=around.family, bootstrap=bootstrap, custom=spec.user_data),
        security_group_ids=tuple(sorted(g.id for g in around.security_groups)),
        instance_profile=around.instance_profile,
        block_devices=ready.plan.block_devices,
        metadata=MetadataOptions(
            http_endpoint=spec.metadata_options.http_endpoint,
            http_tokens=spec.metadata_options.http_tokens,
            http_put_response_hop_limit=spec.metadata_options.http_put_response_hop_limit,
            http_protocol_ipv6=spec.metadata_options.http_protocol_ipv6,
        ),
        detailed_monitoring=bool(spec.detailed_monitoring),
        tenancy=group.tenancy or ready.plan.tenancy,
        placement_group=selector.name if selector else group.placement_group,
        placement_group_id=selector.id if selector else "",
        associate_public_ip=spec.associate_public_ip_address,
        interfaces=ready.plan.interfaces or _efa_interfaces(claim, group),
        ipv4_prefix_count=None if ready.network.ipv6 else spec.ip_prefix_count,
        ipv6_prefix_count=spec.ip_prefix_count if ready.network.ipv6 else None,
        primary_ipv6=ready.network.ipv6,
        connection_tracking=ConnectionTracking(
            tcp_established=tracking.tcp_established_timeout,
            udp_stream=tracking.udp_stream_timeout,
            udp=tracking.udp_timeout,
        )
        if tracking
        else None,
        nested_virtualization=spec.cpu_options.nested_virtualization if spec.cpu_options else "",
        enclaves=ready.plan.enclaves,
        market=group.market,
        target=group.target,
        tags=spec.tags,
    )


def _kubelet(ready: LaunchClass) -> Mapping[str, object]:
    """The class's own settings, and the cluster's DNS server if the class names none."""
    own = ready.source.spec.kubelet.wire() if ready.source.spec.kubelet else {}
    named = own.get("clusterDNS") or not ready.network.dns
    return own if named else {**own, "clusterDNS": [ready.network.dns]}


def _efa_interfaces(claim: NodeClaim, group: LaunchGroup) -> tuple[NetworkInterface, ...]:
    """One EFA for each network card, if the claim requests any. The first card's is the primary interface.

    All types of the group have the same number of cards.
    """
    count = group.efa_interfaces if requests_efa(claim) else 0
    return tuple(NetworkInterface(card=card, device=min(card, 1), kind="efa") for card in range(count))


def instance_tags(ready: LaunchClass, *, launch: str, cluster: str) -> Mapping[str, str]:
    """Tags of the instances of one launch: the class's, and the broker's own marks."""
    return {
        **ready.source.spec.tags,
        TAG_CLUSTER: cluster,
        TAG_NODECLASS: ready.source.name,
        names.TAG_NODECLASS_HASH: f"{VERSION}/{class_hash(ready.source)}",
        names.TAG_LAUNCH: launch,
    }
