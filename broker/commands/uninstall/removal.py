"""`capacity-broker uninstall`: removes the broker's traces from a cluster and its AWS account.

Invariant: nothing is removed while a broker leads, since it would be made again. No instance is ended and no
reservation is cancelled. The records of calls and purchases go last, and only if nothing else failed.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from broker.apis.coordination import Lease
from broker.apis.karpenter_aws import EC2NodeClass
from broker.commands.uninstall import leftovers_aws, leftovers_kube
from broker.commands.uninstall.leftovers import RemovalPlan
from broker.commands.uninstall.leftovers_aws import Account
from broker.kube import identity
from broker.kube.client import Client
from broker.kube.errors import ApiError, NotFound
from broker.kube.published import read_data
from broker.text import decode_time


class StillLeads(ValueError):
    """A broker holds the Lease."""


def holder(client: Client, now: datetime) -> str:
    """The process that leads, by the Leases of broker and scheduler; empty if none does. Raises ApiError."""
    for name in leftovers_kube.LEASES:
        if process := _holder(client, name, now):
            return process
    return ""


def _holder(client: Client, name: str, now: datetime) -> str:
    try:
        spec = client.get(Lease.KIND, name, namespace=identity.NAMESPACE).get("spec") or {}
    except NotFound:
        return ""
    renewed, lasts = spec.get("renewTime"), timedelta(seconds=spec.get("leaseDurationSeconds") or 15)
    if not spec.get("holderIdentity") or not renewed or now - decode_time(renewed) > lasts:
        return ""
    return str(spec["holderIdentity"])


def require_no_leader(client: Client, now: datetime) -> None:
    """Raises StillLeads if a broker leads."""
    if process := holder(client, now):
        raise StillLeads(
            f"{process} leads: a broker that runs makes everything again. Stop it first: "
            "helm uninstall capacity-broker --namespace capacity-broker. --force removes all the same"
        )


def find(client: Client, account: Account, *, keep_terms: bool) -> RemovalPlan:
    """Reads the cluster and the account. Changes nothing."""
    plan = RemovalPlan()
    leftovers_kube.find(client, plan, keep_terms=keep_terms)
    leftovers_aws.find(account, plan, classes=_classes(client), keep_terms=keep_terms)
    plan.state = leftovers_kube.state(client)
    return plan


def _classes(client: Client) -> frozenset[str]:
    """The names of the classes; none if they cannot be read, which the plan reports."""
    try:
        return frozenset(raw["metadata"]["name"] for raw in client.list(EC2NodeClass.KIND)[0])
    except ApiError:
        return frozenset()


def account_of(client: Client, provider: Callable[[str, str], Any], *, cluster: str, region: str) -> Account:
    """The account and Region of the first leader. Raises ValueError for other credentials, and ApiError.

    `provider` connects to a Region for a cluster's name.
    """
    stored = read_data(client, identity.NAME)  # cluster name, account and Region of the first leader
    name = cluster or stored.get("clusterName", "")
    region = region or stored.get("region", "")
    connected = provider(name, region)
    account = Account(provider=connected, cluster=name, uid=identity.cluster_uid(client), region=region)
    present = {"clusterName": name, "region": region, "accountID": connected.account_id()}
    for fact, now in present.items():
        if stored.get(fact, now) != now:
            raise ValueError(
                f"{fact} is {now!r}, but the broker of this cluster had {stored[fact]!r}: use that one"
            )
    return account
