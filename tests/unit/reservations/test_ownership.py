"""The owner of each EC2 reservation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.quota.usage import Reserved
from broker.reservations.ownership import (
    ALL_ADOPTERS,
    BROKER,
    TAG_CLUSTER,
    TAG_CLUSTER_UID,
    TAG_FLAVOR,
    TAG_MANAGED,
    TAG_RESERVATION,
    Adopters,
    Ownership,
    OwnershipClaim,
    resolve_ownership,
)
from broker.reservations.sizing import InstanceFlavor
from providers.aws.tags import Owner
from providers.model import Odcr, ReservationGroup
from tests.unit.capacity.builders import GROUP, NOW, ZONES, minutes, odcr

A, B = Reserved("team-a", "gpus"), Reserved("team-b", "gpus")
EVERYBODY = Reserved("", "shared")
UID = "uid-of-this"
P5 = InstanceFlavor(name="p5", instance_types=("p5.48xlarge",), zones=ZONES)
M5 = InstanceFlavor(name="m5", instance_types=("m5.xlarge",), zones=ZONES[:1])


def claimant(
    reserved: Reserved = A, *flavors: InstanceFlavor, ids: str = "", group: str = "", age: int = 0
) -> OwnershipClaim:
    flavors = flavors or (M5,)
    return OwnershipClaim(
        reserved=reserved,
        flavor_names=tuple(each.name for each in flavors),
        flavors={each.name: each for each in flavors},
        ids=frozenset(filter(None, ids.split(","))),
        group_arn=group,
        created=NOW - minutes(age),
    )


def tagged(id_: str = "cr-1", reserved: Reserved = A, tags: Mapping[str, str] | None = None) -> Odcr:
    return odcr(id_, tags={TAG_RESERVATION: str(reserved), **(tags or {})})


def made(id_: str = "cr-1", reserved: Reserved = A, cluster: str = "blue") -> Odcr:
    return tagged(id_, reserved, {TAG_MANAGED: BROKER, TAG_CLUSTER: cluster})


def look(
    odcrs: list[Odcr],
    *claimants: OwnershipClaim,
    group: tuple[str, ...] | None = None,
    group_tags: Mapping[str, str] | None = None,
    adopters: Adopters = ALL_ADOPTERS,
    holders: Mapping[str, Reserved] | None = None,
) -> Ownership:
    tags = group_tags or {}
    read = ReservationGroup(
        arn=GROUP, name="g", member_ids=group or (), tags=tags, ownership=Owner("blue", UID).judge(tags)
    )
    return resolve_ownership(
        odcrs,
        {} if group is None else {GROUP: read},
        claimants or [claimant()],
        cluster="blue",
        adopters=adopters,
        holders=holders,
    )


def reasons(found: Ownership, reserved: Reserved = A) -> list[str]:
    return [each.reason for each in found.problems.get(reserved, ())]


@pytest.mark.parametrize(
    ("there", "who", "group"),
    [
        (tagged(), claimant(), None),
        (odcr("cr-1"), claimant(ids="cr-1"), None),
        (odcr("cr-1"), claimant(group=GROUP), ("cr-1",)),
        # Three ways to name the same reservation are one claim.
        (tagged(), claimant(ids="cr-1", group=GROUP), ("cr-1",)),
        (made(), claimant(), None),
        (tagged(reserved=EVERYBODY), claimant(EVERYBODY), None),
    ],
)
def test_by_tag_by_id_and_by_group(there: Odcr, who: OwnershipClaim, group: tuple[str, ...] | None) -> None:
    found = look([there], who, group=group)
    assert found.odcrs == {who.reserved: {"m5": (there,)}}
    assert (found.owner, found.flavor) == ({"cr-1": who.reserved}, {"cr-1": "m5"})
    assert found.problems == {}


def test_what_has_ended_or_names_nobody_is_nobodys() -> None:
    found = look(
        [
            replace(tagged("cr-1"), state="cancelled"),
            tagged("cr-2", Reserved("team-a", "other")),
            odcr("cr-3"),
            made("cr-4", cluster="green"),
            tagged("cr-5", tags={TAG_CLUSTER: "green"}),
        ]
    )
    assert found == Ownership()


@pytest.mark.covers("SAF-54")
def test_of_two_claims_the_older_stands_and_a_holder_keeps_what_it_has() -> None:
    young, old = claimant(A, group=GROUP, age=1), claimant(B, ids="cr-1", age=2)
    for holders, holder, other in (({}, B, A), ({"cr-1": A}, A, B), ({"cr-1": EVERYBODY}, B, A)):
        found = look([odcr("cr-1")], young, old, group=("cr-1",), holders=holders)
        assert found.owner == {"cr-1": holder}
        assert found.refused == {"cr-1": (other,)}
        assert (reasons(found, holder), reasons(found, other)) == ([], ["ReservationDisputed"])
        assert f"cr-1 belongs to {holder} and stays with it" in found.problems[other][0].message


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
@pytest.mark.parametrize("who", [claimant(ids="cr-1"), claimant(group=GROUP)], ids=["id", "group"])
def test_annotation_adopts_only_what_the_operators_list_allows(
    entries: tuple[str, ...], adopted: bool, who: OwnershipClaim
) -> None:
    adopters = Adopters.parse(entries)
    found = look([odcr("cr-1")], who, group=("cr-1",), adopters=adopters)
    assert found.owner == ({"cr-1": A} if adopted else {})
    assert found.refused == ({} if adopted else {"cr-1": (A,)})
    assert reasons(found) == ([] if adopted else ["AdoptionNotAllowed"])
    assert adopted or "--adopt-by-annotation allow namespace team-a" in found.problems[A][0].message
    # A claim that is not allowed never blocks the holder, whichever is older.
    holder = claimant(B, ids="cr-1", age=-1)
    both = look([odcr("cr-1")], who, holder, group=("cr-1",), adopters=Adopters.parse(("team-b", "team-c")))
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
    tag: Reserved, cluster: Mapping[str, str], adopted: bool
) -> None:
    who, tags = claimant(group=GROUP), {TAG_RESERVATION: str(tag), **cluster}
    found = look([odcr("cr-1")], who, group=("cr-1",), group_tags=tags, adopters=Adopters())
    assert found.owner == ({"cr-1": A} if adopted else {})
    if not adopted:
        (told,) = found.problems[A]
        assert told.reason == "AdoptionNotAllowed"
        theirs = f"is of cluster {cluster.get(TAG_CLUSTER, '')!r}" in told.message
        assert theirs == bool(cluster)
        assert cluster.get(TAG_CLUSTER_UID, "") in told.message
        # The operator's list has precedence.
        found = look([odcr("cr-1")], who, group=("cr-1",), group_tags=tags, adopters=ALL_ADOPTERS)
        assert found.owner == {"cr-1": A}


@pytest.mark.parametrize("entry", ["team-a=", "=cr-1", "team-a=i-1"])
def test_wrong_entry_of_the_list_names_the_option(entry: str) -> None:
    with pytest.raises(ValueError, match="--adopt-by-annotation has"):
        Adopters.parse([entry])


@pytest.mark.parametrize("there", [made("cr-1", A), tagged("cr-1", A)], ids=["bought", "tagged by people"])
def test_what_names_one_in_its_tag_stays_with_it_whoever_names_it(there: Odcr) -> None:
    found = look([there], claimant(A), claimant(B, ids="cr-1"))
    assert found.owner == {"cr-1": A} and found.refused == {}
    assert "belongs to team-a/gpus and stays with it" in found.problems[B][0].message
    assert reasons(found, B) == ["ReservationDisputed"]
    assert reasons(found, A) == []


@pytest.mark.parametrize(
    ("there", "flavors", "flavor", "reason"),
    [
        # The tag is an explicit choice, even if type and zone differ.
        (tagged(tags={TAG_FLAVOR: "p5"}), (P5, M5), "p5", ""),
        (tagged(tags={TAG_FLAVOR: "gone"}), (P5, M5), "m5", ""),
        (tagged(), (P5, M5), "m5", ""),
        (tagged(), (P5,), "", "FlavorUnmatched"),
        (tagged(), (M5, replace(M5, name="m5-too")), "", "FlavorAmbiguous"),
        (tagged(tags={TAG_FLAVOR: "m5-too"}), (M5, replace(M5, name="m5-too")), "m5-too", ""),
    ],
)
def test_in_which_flavor(there: Odcr, flavors: tuple[InstanceFlavor, ...], flavor: str, reason: str) -> None:
    found = look([there], claimant(A, *flavors))
    assert found.flavor.get("cr-1", "") == flavor
    assert [*found.of(A)] == ([flavor] if flavor else [])
    assert reasons(found) == ([reason] if reason else [])
    assert found.owner == {"cr-1": A}  # owned in any case: no other may take it


@pytest.mark.parametrize(
    ("odcrs", "who", "reason"),
    [
        ([], claimant(ids="cr-9"), "ReservationNotFound"),
        ([replace(odcr("cr-9"), state="expired")], claimant(ids="cr-9"), "ReservationNotFound"),
        ([], claimant(group=GROUP), "GroupNotFound"),
    ],
)
def test_what_is_named_and_not_there(odcrs: list[Odcr], who: OwnershipClaim, reason: str) -> None:
    assert reasons(look(odcrs, who)) == [reason]


@given(
    st.lists(
        st.tuples(st.sampled_from([None, A, B]), st.booleans(), st.sampled_from(["", "blue", "green"])),
        max_size=6,
    ),
    st.sets(st.integers(0, 5)),
    st.sets(st.integers(0, 5)),
)
def test_nothing_is_lost_or_counted_twice(
    there: list[tuple[Reserved | None, bool, str]], ids: set[int], members: set[int]
) -> None:
    odcrs = []
    for number, (whose, managed, cluster) in enumerate(there):
        tags = {TAG_RESERVATION: str(whose)} if whose else {}
        tags |= {TAG_MANAGED: BROKER} if managed else {}
        tags |= {TAG_CLUSTER: cluster} if cluster else {}
        odcrs.append(odcr(f"cr-{number}", tags=tags))
    found = look(
        odcrs,
        claimant(A, ids=",".join(f"cr-{number}" for number in ids)),
        claimant(B, group=GROUP),
        group=tuple(f"cr-{number}" for number in members),
    )
    held = [each.id for by_flavor in found.odcrs.values() for some in by_flavor.values() for each in some]
    assert len(held) == len(set(held))
    for number, (whose, managed, cluster) in enumerate(there):
        id_ = f"cr-{number}"
        if managed and cluster == "blue":
            assert found.owner.get(id_) == whose
        claims = {each for each, named in ((A, number in ids), (B, number in members)) if named}
        claims |= {whose} if whose and cluster in ("", "blue") else set()
        if not claims:
            assert id_ not in found.owner and id_ not in found.refused


def test_a_group_that_could_not_be_read_is_not_called_missing() -> None:
    found = resolve_ownership([], {}, [claimant(group=GROUP)], cluster="blue", unread={GROUP: "EC2 was busy"})
    assert [(each.reason, each.message) for each in found.problems[A]] == [
        ("GroupUnreadable", "EC2 was busy")
    ]
    assert reasons(look([], claimant(group=GROUP))) == ["GroupNotFound"]
