"""The account, Region and names of a cluster's broker, pinned in a ConfigMap when a broker first leads.

A broker in another account or Region finds none of the instances that were launched before it, and would
take every claim for lost. A broker with another cluster name would tag, cap and release by that name. So the
facts are written once, in an immutable ConfigMap beside the Lease. A broker that differs in one of them
refuses to lead.

A cluster is known by the UID of its namespace kube-system, which is never deleted while the cluster lives
(https://kubernetes.io/docs/concepts/overview/working-with-objects/names/#uids).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import structlog

from broker.apis import names
from broker.apis.core import ConfigMap, Node
from broker.apis.kueue import Namespace
from broker.kube.client import Client
from broker.kube.errors import AlreadyExists, NotFound

# Of the Lease and of the ConfigMap, wherever the broker is started: every cluster has it.
NAMESPACE: Final = "kube-system"
SYSTEM_SELECTOR: Final = f"metadata.name={NAMESPACE}"
NAME: Final = "capacity-broker-identity"

_log = structlog.get_logger("identity")


class IdentityDiffers(ValueError):
    """This process would act on something else than the brokers of the cluster did before."""


def cluster_uid(client: Client) -> str:
    """The UID of the namespace kube-system. Raises ApiError."""
    items, _ = client.list(Namespace.KIND, field_selector=SYSTEM_SELECTOR)
    if not items:
        message = f"the cluster has no namespace {NAMESPACE}, which identifies it by its UID"
        raise NotFound(404, "NotFound", message)
    return str(items[0]["metadata"]["uid"])


def compare(client: Client, facts: Mapping[str, str]) -> bool:
    """Whether facts are stored. Raises IdentityDiffers if one of them is another now, ApiError."""
    try:
        stored = ConfigMap.decode(client.get(ConfigMap.KIND, NAME, namespace=NAMESPACE))
    except NotFound:
        return False
    differing = [
        f"{fact} is {now!r} and was {repr(stored.data[fact]) if fact in stored.data else 'not stored'}"
        for fact, now in facts.items()
        if stored.data.get(fact, "") != now
    ]
    if differing:
        raise IdentityDiffers(
            f"not leading: {'; '.join(differing)} when a broker first led this cluster. Start it as it was. "
            "If the change is meant, end what the broker made before, and let the next broker store the new "
            "facts: "
            f"kubectl --namespace {NAMESPACE} delete configmap {NAME}"
        )
    return True


def pin(client: Client, facts: Mapping[str, str]) -> None:
    """Stores the facts unless facts are stored. Raises ApiError, and IdentityDiffers also if all Nodes are
    in other Regions: a wrong one must not be stored by the first start."""
    if compare(client, facts):
        return
    node_regions, _ = client.read_all(Node.KIND, _region, label_selector=names.REGION)
    regions = {*node_regions} - {""}
    if regions and facts["region"] not in regions:
        raise IdentityDiffers(
            f"not leading: region is {facts['region']!r}, and the Nodes of this cluster are in "
            f"{', '.join(sorted(regions))} by their label {names.REGION}. Correct --region (AWS_REGION)"
        )
    body = {"metadata": {"name": NAME, "namespace": NAMESPACE}, "data": dict(facts), "immutable": True}
    try:
        client.create(ConfigMap.KIND, body)
    except AlreadyExists:
        compare(client, facts)
        return
    _log.info("stored for every later start of a broker in this cluster", **facts)


def _region(node: Mapping[str, Any]) -> str:
    """Reads the region of an EC2 instance; other machines may have labels of their own meaning."""
    in_aws = str(node["spec"].get("providerID", "")).startswith("aws://")
    return str(node["metadata"]["labels"][names.REGION]) if in_aws else ""
