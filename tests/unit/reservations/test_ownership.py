"""The owner of each EC2 reservation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.apis import names
from broker.quota.usage import ReservationKey
from broker.reservations.ownership import (
    ALL_ADOPTERS,
    Adopters,
    Ownership,
    OwnershipClaim,
    made_here,
    resolve_ownership,
)
from broker.reservations.sizing import InstanceFlavor
from providers.aws.tags import Owner
from providers.model import Odcr, ReservationGroup
from providers.names import MANAGED_BY, MANAGER, TAG_CLUSTER, TAG_CLUSTER_UID
from tests.unit.capacity.builders import GROUP, NOW, ZONES, minutes, odcr

A, B = ReservationKey("team-a", "gpus"), ReservationKey("team-b", "gpus")
EVERYBODY = ReservationKey("", "shared")
UID = "uid-of-this"
P5 = InstanceFlavor(name="p5", instance_types=("p5.48xlarge",), zones=ZONES)
M5 = InstanceFlavor(name="m5", instance_types=("m5.xlarge",), zones=ZONES[:1])


def claimant(
    reserved: ReservationKey = A, *flavors: InstanceFlavor, ids: str = "", group: str = "", age: int = 0
) -> OwnershipClaim:
    flavors = flavors or (M5,)
    return OwnershipClaim(
        reserved=reserved,
        flavor_names=tuple(flavor.name for flavor in flavors),
        flavors={flavor.name: flavor for flavor in flavors},
        ids=frozenset(filter(None, ids.split(","))),
        group_arn=group,
        created=NOW - minutes(age),
    )


def tagged(id_: str = "cr-1", reserved: ReservationKey = A, tags: Mapping[str, str] | None = None) -> Odcr:
    return odcr(id_, tags={names.TAG_RESERVATION: str(reserved), **(tags or {})})


def bought(id_: str = "cr-1", reserved: ReservationKey = A, cluster: str = "blue") -> Odcr:
    return tagged(id_, reserved, {MANAGED_BY: MANAGER, TAG_CLUSTER: cluster})


def resolved(
    odcrs: list[Odcr],
    *claimants: OwnershipClaim,
    group: tuple[str, ...] | None = None,
    group_tags: Mapping[str, str] | None = None,
    adopters: Adopters = ALL_ADOPTERS,
    holders: Mapping[str, ReservationKey] | None = None,
) -> Ownership:
    tags = group_tags or {}
    ownership = Owner("blue", UID).ownership_of(tags)
    read = ReservationGroup(arn=GROUP, name="g", member_ids=group or (), tags=tags, ownership=ownership)
    return resolve_ownership(
        odcrs,
        {} if group is None else {GROUP: read},
        claimants or [claimant()],
        cluster="blue",
        adopters=adopters,
        holders=holders,
    )


def reasons(ownership: Ownership, reserved: ReservationKey = A) -> list[str]:
    return [problem.reason for problem in ownership.problems.get(reserved, ())]


@pytest.mark.parametrize(
    ("reservation", "claim", "group"),
    [
        (tagged(), claimant(), None),
        (odcr("cr-1"), claimant(ids="cr-1"), None),
        (odcr("cr-1"), claimant(group=GROUP), ("cr-1",)),
        # Three ways to name the same reservation are one claim.
        (tagged(), claimant(ids="cr-1", group=GROUP), ("cr-1",)),
        (bought(), claimant(), None),
        (tagged(reserved=EVERYBODY), claimant(EVERYBODY), None),
    ],
)
def test_a_reservation_is_claimed_by_tag_by_id_or_by_group(
    reservation: Odcr, claim: OwnershipClaim, group: tuple[str, ...] | None
) -> None:
    ownership = resolved([reservation], claim, group=group)
    assert ownership.odcrs == {claim.reserved: {"m5": (reservation,)}}
    assert (ownership.owner, ownership.flavor) == ({"cr-1": claim.reserved}, {"cr-1": "m5"})
    assert ownership.problems == {}


def test_ended_and_unclaimed_reservations_have_no_owner() -> None:
    ownership = resolved(
        [
            replace(tagged("cr-1"), state="cancelled"),
            tagged("cr-2", ReservationKey("team-a", "other")),
            odcr("cr-3"),
            bought("cr-4", cluster="green"),
            tagged("cr-5", tags={TAG_CLUSTER: "green"}),
        ]
    )
    assert replace(ownership, ended={}) == Ownership()
    assert {reserved: [o.id for o in odcrs] for reserved, odcrs in ownership.ended.items()} == {A: ["cr-1"]}


@pytest.mark.covers("SAF-54")
def test_the_older_of_two_claims_wins_and_a_holder_keeps_its_reservation() -> None:
    young, old = claimant(A, group=GROUP, age=1), claimant(B, ids="cr-1", age=2)
    for holders, holder, other in (({}, B, A), ({"cr-1": A}, A, B), ({"cr-1": EVERYBODY}, B, A)):
        ownership = resolved([odcr("cr-1")], young, old, group=("cr-1",), holders=holders)
        assert ownership.owner == {"cr-1": holder}
        assert ownership.refused == {"cr-1": (other,)}
        assert (reasons(ownership, holder), reasons(ownership, other)) == ([], ["ReservationDisputed"])
        assert f"cr-1 belongs to {holder} and stays with it" in ownership.problems[other][0].message


@pytest.mark.covers("SAF-54")
@pytest.mark.parametrize(
    ("entries", "adopted"),
    [
        ((), False),
        (("team-b",), False),
        (("team-a=cr-2", "team-a=arn:aws:other"), False),
        (("team-a",), True),
        (("team-b", "team-a=cr-1", f"team-a={GROUP}"), True),
        (("*",), True),
    ],
)
@pytest.mark.parametrize("claim", [claimant(ids="cr-1"), claimant(group=GROUP)], ids=["id", "group"])
def test_annotation_adopts_only_what_the_operators_list_allows(
    entries: tuple[str, ...], adopted: bool, claim: OwnershipClaim
) -> None:
    adopters = Adopters.parse(entries)
    ownership = resolved([odcr("cr-1")], claim, group=("cr-1",), adopters=adopters)
    assert ownership.owner == ({"cr-1": A} if adopted else {})
    assert ownership.refused == ({} if adopted else {"cr-1": (A,)})
    assert reasons(ownership) == ([] if adopted else ["AdoptionNotAllowed"])
    assert adopted or "--adopt-by-annotation allow namespace team-a" in ownership.problems[A][0].message
    # A claim that is not allowed never blocks the holder, whichever is older.
    holder = claimant(B, ids="cr-1", age=-1)
    both = resolved(
        [odcr("cr-1")], claim, holder, group=("cr-1",), adopters=Adopters.parse(("team-b", "team-c"))
    )
    assert both.owner == {"cr-1": B} and reasons(both, B) == []


@pytest.mark.covers("SAF-54")
@pytest.mark.parametrize(
    ("tag", "cluster", "adopted"),
    [
        (A, {}, True),
        (B, {}, False),
        (A, {TAG_CLUSTER: "blue"}, True),
        (A, {TAG_CLUSTER: "green"}, False),
        (A, {TAG_CLUSTER: "green", TAG_CLUSTER_UID: UID}, True),  # the cluster was renamed
        (A, {TAG_CLUSTER: "blue", TAG_CLUSTER_UID: "uid-of-another"}, False),
        (A, {TAG_CLUSTER_UID: "uid-of-another"}, False),
    ],
)
def test_tag_on_a_group_of_this_cluster_adopts_its_members_without_a_list(
    tag: ReservationKey, cluster: Mapping[str, str], adopted: bool
) -> None:
    claim, tags = claimant(group=GROUP), {names.TAG_RESERVATION: str(tag), **cluster}
    ownership = resolved([odcr("cr-1")], claim, group=("cr-1",), group_tags=tags, adopters=Adopters({}))
    assert ownership.owner == ({"cr-1": A} if adopted else {})
    if not adopted:
        (problem,) = ownership.problems[A]
        assert problem.reason == "AdoptionNotAllowed"
        names_the_cluster = f"is of cluster {cluster.get(TAG_CLUSTER, '')!r}" in problem.message
        assert names_the_cluster == bool(cluster)
        assert cluster.get(TAG_CLUSTER_UID, "") in problem.message
        # The operator's list has precedence.
        ownership = resolved([odcr("cr-1")], claim, group=("cr-1",), group_tags=tags, adopters=ALL_ADOPTERS)
        assert ownership.owner == {"cr-1": A}


@pytest.mark.parametrize("entry", ["team-a=", "=cr-1", "team-a=i-1"])
def test_wrong_entry_of_the_list_names_the_option(entry: str) -> None:
    with pytest.raises(ValueError, match="--adopt-by-annotation has"):
        Adopters.parse([entry])


@pytest.mark.parametrize(
    "reservation", [bought("cr-1", A), tagged("cr-1", A)], ids=["bought", "tagged by people"]
)
def test_a_tagged_reservation_stays_with_its_tag(reservation: Odcr) -> None:
    ownership = resolved([reservation], claimant(A), claimant(B, ids="cr-1"))
    assert ownership.owner == {"cr-1": A} and ownership.refused == {}
    assert "belongs to team-a/gpus and stays with it" in ownership.problems[B][0].message
    assert reasons(ownership, B) == ["ReservationDisputed"]
    assert reasons(ownership, A) == []


@pytest.mark.parametrize(
    ("reservation", "flavors", "flavor", "reason"),
    [
        # The tag is an explicit choice, even if type and zone differ.
        (tagged(tags={names.TAG_FLAVOR: "p5"}), (P5, M5), "p5", ""),
        (tagged(tags={names.TAG_FLAVOR: "gone"}), (P5, M5), "m5", ""),
        (tagged(), (P5, M5), "m5", ""),
        (tagged(), (P5,), "", "FlavorUnmatched"),
        (tagged(), (M5, replace(M5, name="m5-too")), "", "FlavorAmbiguous"),
        (tagged(tags={names.TAG_FLAVOR: "m5-too"}), (M5, replace(M5, name="m5-too")), "m5-too", ""),
    ],
)
def test_a_reservation_belongs_to_its_tagged_or_matching_flavor(
    reservation: Odcr, flavors: tuple[InstanceFlavor, ...], flavor: str, reason: str
) -> None:
    ownership = resolved([reservation], claimant(A, *flavors))
    assert ownership.flavor.get("cr-1", "") == flavor
    assert [*ownership.of(A)] == ([flavor] if flavor else [])
    assert reasons(ownership) == ([reason] if reason else [])
    assert ownership.owner == {"cr-1": A}  # owned in any case: no other may take it


@pytest.mark.parametrize(
    ("odcrs", "claim", "reason"),
    [
        ([], claimant(ids="cr-9"), "ReservationNotFound"),
        ([replace(odcr("cr-9"), state="expired")], claimant(ids="cr-9"), "ReservationNotFound"),
        ([], claimant(group=GROUP), "GroupNotFound"),
    ],
)
def test_a_named_reservation_that_does_not_exist_is_a_problem(
    odcrs: list[Odcr], claim: OwnershipClaim, reason: str
) -> None:
    assert reasons(resolved(odcrs, claim)) == [reason]


@given(
    st.lists(
        st.tuples(st.sampled_from([None, A, B]), st.booleans(), st.sampled_from(["", "blue", "green"])),
        max_size=6,
    ),
    st.sets(st.integers(0, 5)),
    st.sets(st.integers(0, 5)),
)
def test_no_reservation_is_lost_or_counted_twice(
    specs: list[tuple[ReservationKey | None, bool, str]], ids: set[int], members: set[int]
) -> None:
    odcrs = []
    for number, (tagged_owner, managed, cluster) in enumerate(specs):
        tags = {names.TAG_RESERVATION: str(tagged_owner)} if tagged_owner else {}
        tags |= {MANAGED_BY: MANAGER} if managed else {}
        tags |= {TAG_CLUSTER: cluster} if cluster else {}
        odcrs.append(odcr(f"cr-{number}", tags=tags))
    ownership = resolved(
        odcrs,
        claimant(A, ids=",".join(f"cr-{number}" for number in ids)),
        claimant(B, group=GROUP),
        group=tuple(f"cr-{number}" for number in members),
    )
    held = [
        reservation.id
        for by_flavor in ownership.odcrs.values()
        for reservations in by_flavor.values()
        for reservation in reservations
    ]
    assert len(held) == len(set(held))
    for number, (tagged_owner, managed, cluster) in enumerate(specs):
        id_ = f"cr-{number}"
        if managed and cluster == "blue":
            assert ownership.owner.get(id_) == tagged_owner
        claims = {claimed_by for claimed_by, named in ((A, number in ids), (B, number in members)) if named}
        claims |= {tagged_owner} if tagged_owner and cluster in ("", "blue") else set()
        if not claims:
            assert id_ not in ownership.owner and id_ not in ownership.refused


def test_an_unreadable_group_is_not_reported_missing() -> None:
    ownership = resolve_ownership(
        [],
        {},
        [claimant(group=GROUP)],
        cluster="blue",
        unread={GROUP: "EC2 was busy"},
        adopters=ALL_ADOPTERS,
    )
    assert [(problem.reason, problem.message) for problem in ownership.problems[A]] == [
        ("GroupUnreadable", "EC2 was busy")
    ]
    assert reasons(resolved([], claimant(group=GROUP))) == ["GroupNotFound"]


@pytest.mark.covers("FLT-70")
@pytest.mark.parametrize(
    ("ownership", "cluster", "here"),
    [("owned", "old-name", True), ("foreign", "blue", False), ("", "blue", True), ("", "green", False)],
)
def test_uid_of_the_cluster_decides_before_its_name_who_made_a_reservation(
    ownership: Any, cluster: str, here: bool
) -> None:
    tags = {MANAGED_BY: MANAGER, TAG_CLUSTER: cluster}
    assert made_here(odcr("cr-1", tags=tags, ownership=ownership), "blue") is here
