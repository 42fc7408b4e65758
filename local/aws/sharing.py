"""Sharing of reservations through Resource Access Manager: principals of a share see its reservations.

Invariant: a reservation is shared through RAM with exactly the accounts of the active shares that name it,
and also with those that the control plane set. Only an owner shares, and only with default tenancy
(EC2 User Guide, "Share a Capacity Reservation"). Accounts get no invitation here: a share works at
once, as it does inside an organization; a principal that is the organization is all of its accounts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from moto.core.base_backend import BackendDict
from moto.ram import urls
from moto.ram.exceptions import InvalidParameterException, UnknownResourceException
from moto.ram.models import ResourceAccessManagerBackend, ResourceShare, ram_backends
from moto.ram.responses import ResourceAccessManagerResponse

from local.aws.ec2.reservations import Ec2Reservation
from local.aws.ec2.world import LOCK, world

KIND = "capacity-reservation"
NEW_PATHS = (
    "associateresourceshare",
    "disassociateresourceshare",
    "listresourcesharepermissions",
    "tagresource",
    "untagresource",
)
# RAM's permission for principals of a shared reservation; AWS's own, which moto does not list.
PERMISSION = {
    "arn": "arn:aws:ram::aws:permission/AWSRAMDefaultPermissionCapacityReservation",
    "version": "1",
    "defaultVersion": True,
    "name": "AWSRAMDefaultPermissionCapacityReservation",
    "resourceType": "ec2:CapacityReservation",
    "status": "ASSOCIATED",
    "isResourceTypeDefault": True,
    "permissionType": "AWS_MANAGED",
}


def install() -> None:
    if ram_backends.backend is SharingBackend:
        return
    ram_backends.backend = SharingBackend
    ResourceShare.SHAREABLE_RESOURCES.append(KIND)
    for path in [*urls.url_paths, *(f"{{0}}/{name}$" for name in NEW_PATHS)]:
        urls.url_paths[path] = SharingResponse.dispatch
    BackendDict.reset()


class SharingBackend(ResourceAccessManagerBackend):
    def __init__(self, region_name: str, account_id: str) -> None:
        super().__init__(region_name, account_id)
        self._tags: dict[str, dict[str, str]] = {}  # share -> its tags

    @property
    def _url_module(self) -> Any:  # moto derives it from the class's own module, which is not moto's
        return urls

    def create_resource_share(self, **kwargs: Any) -> dict[str, Any]:
        arns = kwargs.get("resourceArns") or []
        with LOCK:
            self._require_shareable(arns)
            response = super().create_resource_share(**kwargs)
            self._apply(arns)
            self.tag(response["resourceShare"]["resourceShareArn"], kwargs.get("tags") or [])
            return response

    def delete_resource_share(self, resource_share_arn: str | None) -> dict[str, Any]:
        with LOCK:
            answer = super().delete_resource_share(resource_share_arn)
            self._apply(self._share(resource_share_arn).resource_arns)
            return answer

    def associate(self, arn: str | None, resources: list[str], principals: list[str]) -> list[dict[str, Any]]:
        with LOCK:
            share = self._share(arn)
            self._require_shareable(resources)
            share.add_principals([p for p in principals if p not in share.principals])
            share.add_resources([r for r in resources if r not in share.resource_arns])
            self._apply(share.resource_arns)
            return _associations(share, resources, principals, "ASSOCIATED")

    def disassociate(
        self, arn: str | None, resources: list[str], principals: list[str]
    ) -> list[dict[str, Any]]:
        with LOCK:
            share = self._share(arn)
            before = list(share.resource_arns)
            share.resource_arns = [r for r in share.resource_arns if r not in resources]
            share.principals = [p for p in share.principals if p not in principals]
            self._apply(before)
            return _associations(share, resources, principals, "DISASSOCIATED")

    def tag(self, arn: str | None, tags: Iterable[Mapping[str, str]]) -> None:
        self._tags.setdefault(self._share(arn).arn, {}).update({tag["key"]: tag["value"] for tag in tags})

    def untag(self, arn: str | None, keys: Iterable[str]) -> None:
        share_tags = self._tags.get(self._share(arn).arn, {})
        for key in keys:
            share_tags.pop(key, None)

    def permissions(self, arn: str | None) -> list[dict[str, Any]]:
        """Those of a share: one for each kind of resource in it."""
        shared = self._share(arn).resource_arns
        return [PERMISSION] if any(f":{KIND}/" in arn_ for arn_ in shared) else []

    def get_resource_shares(self, resource_owner: str | None) -> dict[str, Any]:
        if resource_owner != "OTHER-ACCOUNTS":
            own = super().get_resource_shares(resource_owner)
            for share in own["resourceShares"]:
                tags = self._tags.get(share["resourceShareArn"], {})
                share["tags"] = [{"key": key, "value": value} for key, value in tags.items()]
            return own
        others = [
            share.describe()
            for account, regions in ram_backends.items()
            for region, backend in regions.items()
            for share in backend.resource_shares
            if account != self.account_id
            and region == self.region_name
            and share.status == "ACTIVE"
            and self.account_id in _accounts(share)
        ]
        return {"resourceShares": others}

    def _share(self, arn: str | None) -> ResourceShare:
        share = next((candidate for candidate in self.resource_shares if candidate.arn == arn), None)
        if share is None:
            raise UnknownResourceException(f"ResourceShare {arn} could not be found.")
        return share

    def _reservation(self, arn: str) -> Ec2Reservation | None:
        reservation = world().ledger.in_scope(self.account_id, self.region_name).get(arn.rpartition("/")[2])
        return reservation if reservation is not None and reservation.arn == arn else None

    def _require_shareable(self, arns: Iterable[str]) -> None:
        for arn in arns:
            if f":{KIND}/" not in arn:
                continue
            reservation = self._reservation(arn)
            if reservation is None or reservation.owner_id != self.account_id:
                raise UnknownResourceException(f"The resource {arn} could not be found in your account.")
            if reservation.tenancy != "default":
                raise InvalidParameterException(
                    f"{reservation.id} has tenancy {reservation.tenancy}; only reservations of default "
                    "tenancy can be shared."
                )

    def _apply(self, arns: Iterable[str]) -> None:
        ledger = world().ledger
        ledger.run_due()
        for arn in arns:
            reservation = self._reservation(arn)
            if reservation is None:
                continue
            now = frozenset(
                account
                for share in self.resource_shares
                if share.status == "ACTIVE" and arn in share.resource_arns
                for account in _accounts(share)
            )
            beside = reservation.shared_with - reservation.shared_by_ram
            reservation.shared_by_ram = now
            ledger.share(reservation, beside | now)


class SharingResponse(ResourceAccessManagerResponse):
    @property
    def ram_backend(self) -> SharingBackend:
        backend = ram_backends[self.current_account][self.region]
        assert isinstance(backend, SharingBackend), "install() swaps the backend's class"
        return backend

    def associate_resource_share(self) -> str:
        parameters = self.request_params
        return _answered(self.ram_backend.associate(*_named(parameters)))

    def disassociate_resource_share(self) -> str:
        parameters = self.request_params
        return _answered(self.ram_backend.disassociate(*_named(parameters)))

    def tag_resource(self) -> str:
        self.ram_backend.tag(self._get_param("resourceShareArn"), self.request_params.get("tags") or [])
        return "{}"

    def untag_resource(self) -> str:
        self.ram_backend.untag(self._get_param("resourceShareArn"), self.request_params.get("tagKeys") or [])
        return "{}"

    def list_resource_share_permissions(self) -> str:
        return json.dumps({"permissions": self.ram_backend.permissions(self._get_param("resourceShareArn"))})


def _named(parameters: Mapping[str, Any]) -> tuple[str | None, list[str], list[str]]:
    return (
        parameters.get("resourceShareArn"),
        parameters.get("resourceArns") or [],
        parameters.get("principals") or [],
    )


def _answered(associations: list[dict[str, Any]]) -> str:
    return json.dumps({"resourceShareAssociations": associations})


def _associations(
    share: ResourceShare, resources: list[str], principals: list[str], status: str
) -> list[dict[str, Any]]:
    of_kind = [("RESOURCE", entity) for entity in resources] + [("PRINCIPAL", p) for p in principals]
    return [
        {
            "resourceShareArn": share.arn,
            "resourceShareName": share.name,
            "associatedEntity": entity,
            "associationType": kind,
            "status": status,
            "external": False,
        }
        for kind, entity in of_kind
    ]


def _accounts(share: ResourceShare) -> set[str]:
    """The accounts that a share's principals name."""
    out: set[str] = set()
    for principal in share.principals:
        if principal.isdigit():
            out.add(principal)
        elif ":iam::" in principal:
            out.add(principal.split(":")[4])
        elif ":organizations::" in principal:
            out |= {account.id for account in share.organizations_backend.accounts}
    return out - {share.owning_account_id}
