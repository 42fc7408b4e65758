"""The broker's traces in AWS: tags, launch templates, groups and instance profiles of one cluster.

Invariant: nothing is ended or cancelled. Instances and reservations that the broker bought lose its tags, and
are listed with the command that ends them. The tags of another cluster are never removed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Final

from broker.apis import names
from broker.commands.uninstall.leftovers import RemainingResource, Removal, RemovalPlan, apply
from broker.controllers.advisor.terms import tag_key, tag_prefix
from broker.reservations.purchase_obstacles import lent_text
from broker.text import abridged, counted
from providers.base import CapacityProvider
from providers.errors import ErrorClass, ProviderError
from providers.launch import ProfileRef
from providers.names import TAG_CLUSTER_UID

Tags = Mapping[str, Mapping[str, str]]
# Resources that end with the launch that made them, or are deleted by name.
SKIPPED: Final = ("fleet-", "lt-")
NAMED: Final = 3  # ids in one row


@dataclass(frozen=True, kw_only=True)
class Account:
    """The part of an account that belongs to one cluster."""

    provider: CapacityProvider
    cluster: str
    uid: str
    region: str

    def ec2(self, arguments: str) -> str:
        """The command that does this in EC2."""
        return f"aws ec2 {arguments} --region {self.region}"


def find(account: Account, plan: RemovalPlan, *, classes: Collection[str], keep_terms: bool) -> None:
    """`classes`: the cluster's EC2NodeClasses. Tags with their names select reservations for Karpenter."""
    provider = account.provider
    provider.identify(account.uid)
    plan.collect("EC2 tags", lambda: _tagged(account, provider.broker_tags(), classes, keep_terms))
    if account.cluster:
        plan.collect("launch template", lambda: _templates(account))
    plan.collect("resource group", lambda: _groups(account))
    if account.cluster:
        plan.collect("instance profile", lambda: _profiles(account))


def _tagged(
    account: Account, tags_by_id: Tags, classes: Collection[str], keep_terms: bool
) -> Iterator[Removal | RemainingResource]:
    own_tags = {id_: tags for id_, tags in tags_by_id.items() if tags.get(TAG_CLUSTER_UID) == account.uid}
    instances = account.provider.instances([id_ for id_ in own_tags if id_.startswith("i-")])
    ended = {instance.id for instance in instances if not instance.alive}
    carriers: dict[frozenset[str], list[str]] = {}
    for id_, tags in sorted(tags_by_id.items()):
        advised = {key for key, value in tags.items() if _advises(account, key, value, classes)}
        own_keys = (
            {key for key in tags if not key.startswith(f"{names.TAG_ADVISED}/")} if id_ in own_tags else set()
        )
        keys = frozenset(own_keys if keep_terms else own_keys | advised)
        if keys and id_ not in ended and not id_.startswith(SKIPPED):
            carriers.setdefault(keys, []).append(id_)
        if advised and keep_terms:
            listed = " ".join(f"Key={key}" for key in sorted(advised))
            command = account.ec2(f"delete-tags --resources {id_} --tags {listed}")
            yield RemainingResource(kind="tag", name=id_, why="a selector term finds it", command=command)
    for keys, ids in carriers.items():
        for _, alike in groupby(ids, key=lambda id_: id_.partition("-")[0]):
            yield _untag(account, [*alike], keys)
    for instance in instances:
        if instance.alive:
            where = f"{instance.instance_type} in {instance.zone}, {instance.state}"
            command = f"terminate-instances --instance-ids {instance.id}"
            yield RemainingResource(
                kind="instance", name=instance.id, why=where, command=account.ec2(command)
            )
    yield from _bought(account, own_tags)


def _advises(account: Account, key: str, value: str, classes: Collection[str]) -> bool:
    prefixed = bool(account.cluster) and key.startswith(tag_prefix(account.cluster))
    return prefixed and value in classes and key == tag_key(account.cluster, value)


def _untag(account: Account, ids: Sequence[str], keys: Collection[str]) -> Removal:
    action = f"remove {counted(len(keys), 'tag')} of the broker"
    return Removal(
        kind="EC2 tags",
        name=abridged(ids, NAMED),
        action=action,
        remove=partial(_remove_tags, account, ids, keys),
    )


def _remove_tags(account: Account, ids: Sequence[str], keys: Collection[str]) -> None:
    """EC2 refuses a whole call for one bad resource, so after a refusal each is tried by itself."""
    try:
        account.provider.untag(ids, keys)
    except ProviderError as error:
        if error.class_ is ErrorClass.PERMISSION or len(ids) == 1:
            raise
        refused = [apply(_untag(account, [id_], keys)) for id_ in ids]
        if failed := [
            f"{id_}: {result}" for id_, result in zip(ids, refused, strict=True) if result != "done"
        ]:
            raise ValueError("; ".join(failed)) from error


def _bought(account: Account, own_tags: Tags) -> Iterator[RemainingResource]:
    for odcr in account.provider.reservations():
        if odcr.id in own_tags and not odcr.over:
            slots = counted(odcr.total, "instance")
            lent = f"; {lent_text(odcr)}" if odcr.lent else ""
            why = f"{slots} of {odcr.instance_type} in {odcr.zone}, paid until cancelled{lent}"
            command = f"cancel-capacity-reservation --capacity-reservation-id {odcr.id}"
            yield RemainingResource(kind="reservation", name=odcr.id, why=why, command=account.ec2(command))


def _templates(account: Account) -> Iterator[Removal]:
    for ref in account.provider.templates():
        remove = partial(account.provider.delete_template, ref)
        yield Removal(kind="launch template", name=ref.name, action="delete", remove=remove)


def _groups(account: Account) -> Iterator[Removal]:
    for group in account.provider.groups_of(account.uid):
        yield Removal(
            kind="resource group",
            name=group.name,
            action="delete; its reservations stay",
            remove=partial(account.provider.delete_group, group.arn),
        )


def _profiles(account: Account) -> Iterator[Removal]:
    for ref in account.provider.instance_profiles():
        yield Removal(
            kind="instance profile",
            name=ref.name,
            action="delete",
            remove=partial(_delete_profile, account, ref),
        )


def _delete_profile(account: Account, ref: ProfileRef) -> str | None:
    if account.provider.delete_instance_profile(ref):
        return None
    return (
        "an instance runs with it; once none does: aws iam remove-role-from-instance-profile "
        f"--instance-profile-name {ref.name} --role-name {ref.role} && "
        f"aws iam delete-instance-profile --instance-profile-name {ref.name}"
    )
