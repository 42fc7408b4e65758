"""What a launch template of a class holds for one group of claims.

Everything of the class that an instance shows is in here; what differs between claims (labels, taints) is
in the user data, so only claims with equal labels and taints share a template (`template_key`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import orjson

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.capacity.launches import LaunchGroup
from broker.controllers.nodeclass.resolve import LaunchClass
from providers.base import CapacityProvider
from providers.model import Bootstrap, MetadataOptions, Template

UNREGISTERED = f"{names.UNREGISTERED_TAINT}:NoExecute"
# The kubelet may set only these of Kubernetes' own labels on its node (NodeRestriction admission).
_KUBELET_MAY_SET = ("node.kubernetes.io/", "kubelet.kubernetes.io/")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """What nodes are told about their cluster."""

    name: str
    endpoint: str
    ca_bundle: str
    service_cidr: str


def template_key(claim: NodeClaim) -> str:
    """Equal for claims that one launch template serves."""
    return orjson.dumps([_labels(claim), _taints(claim)], option=orjson.OPT_SORT_KEYS).decode()


def template(
    ready: LaunchClass,
    group: LaunchGroup,
    claim: NodeClaim,
    *,
    provider: CapacityProvider,
    cluster: ClusterFacts,
) -> Template:
    """The template for this group, whose claims all look like `claim`."""
    spec, around = ready.source.spec, ready.surroundings
    bootstrap = Bootstrap(
        cluster_name=cluster.name,
        endpoint=cluster.endpoint,
        ca_bundle=cluster.ca_bundle,
        service_cidr=cluster.service_cidr,
        labels=_labels(claim),
        taints=tuple(_taints(claim)),
        kubelet=spec.kubelet.wire() if spec.kubelet else {},
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
        tenancy=ready.plan.tenancy,
        placement_group=spec.placement_group_selector.name if spec.placement_group_selector else "",
        associate_public_ip=spec.associate_public_ip_address,
        market=group.market,
        target=group.target,
        tags=spec.tags,
    )


def instance_tags(ready: LaunchClass, *, launch: str, cluster: str) -> Mapping[str, str]:
    """Tags of the instances of one launch: the class's, and the marks by which they are ours."""
    return {
        **ready.source.spec.tags,
        names.TAG_CLUSTER: cluster,
        names.TAG_NODECLASS: ready.source.name,
        names.TAG_LAUNCH: launch,
    }


def _labels(claim: NodeClaim) -> dict[str, str]:
    return {key: value for key, value in sorted(claim.labels.items()) if _kubelet_may_set(key)}


def _kubelet_may_set(key: str) -> bool:
    domain = key.partition("/")[0] if "/" in key else ""
    kubernetes = domain in ("kubernetes.io", "k8s.io") or domain.endswith((".kubernetes.io", ".k8s.io"))
    return not kubernetes or key.startswith(_KUBELET_MAY_SET)


def _taints(claim: NodeClaim) -> list[str]:
    taints = (*claim.spec.taints, *claim.spec.startup_taints)
    return [f"{t.key}={t.value}:{t.effect}" if t.value else f"{t.key}:{t.effect}" for t in taints] + [
        UNREGISTERED
    ]
