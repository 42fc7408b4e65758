"""The page: rows, filters, escaping and refused requests."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text

from broker.capacity.attempts import Outcome
from broker.capacity.requirements import Requirements
from broker.history.store import HistoryStore
from broker.history.tables import Batch
from broker.oncall.broken import BrokenNode
from broker.oncall.idle_matches import IdleSlots, idle_matches
from broker.oncall.pod_facts import pod_command
from broker.oncall.waiters import Alternative, Waiter
from broker.oncall.waiting_pods import WaitingPod
from broker.quota.usage import ReservationKey
from broker.webpage.live import ReservationRow
from broker.webpage.queries import PAGE
from broker.webpage.render import ELSEWHERE
from broker.webpage.scope import VisibleScope, shown_names, visible
from broker.webpage.server import PAGES
from tests.unit.history.facts import AT, GROUP, OTHER, POOL, event, fill, launch, refusal
from tests.unit.webpage.world import NOW, get, loan, odcr, page, state

OBJECTS = (
    "/claims/train-1",
    "/namespaces/team",
    "/classes/gpu",
    "/pools/gpu",
    "/odcrs/cr-1",
    "/reservations/team/gpus",
)
PATHS = [path for path in PAGES if "{" not in path] + [*OBJECTS, "/namespaces/team"]


def filled() -> HistoryStore:
    store = HistoryStore()
    fill(store, refusal(1), launch(2), event())
    return store


def body(url: str) -> str:
    """The page, without the marks of words that must not be broken."""
    answer = get(url)
    assert answer.status == 200, answer.data
    return re.sub(r'<span class="(?:id|long)">(.*?)</span>', r"\1", answer.data.decode())


def rows(text_: str) -> int:
    return len(re.findall(r'<tr role="row" id="e-', text_))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("leads", [True, False])
def test_every_page_is_shown_with_and_without_leadership(path: str, leads: bool) -> None:
    with page(filled(), state() if leads else None) as url:
        answer = get(url + path)
        known = leads or not path.startswith("/pools")
        assert answer.status == (200 if known else 404)
        assert ("does not lead" in answer.data.decode()) is not leads
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy


@pytest.mark.covers("CAP-16")
def test_a_refusal_has_code_class_pool_claim_request_and_next_step() -> None:
    with page(filled(), state()) as url:
        shown = body(f"{url}/record?show=problems")
        assert rows(shown) == 1
        for part in (
            "InsufficientInstanceCapacity",
            "capacity",
            "p5.48xlarge us-east-1a",
            "/claims/train-1",
            "req-1",
            "Next: the next option is taken",
        ):
            assert part in shown


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ("", 3),
        ("request_id=req-2", 1),
        ("request_id=req-", 2),
        ("name=gpus&topic=reclaim", 1),
        ("topic=nonsense&since=never&before=x-y", 3),
        ("since=1h&code=InsufficientInstanceCapacity", 1),
        ("code=Other", 0),
    ],
)
@pytest.mark.covers("CAP-16")
def test_filters_are_in_the_url(query: str, count: int) -> None:
    with page(filled(), state()) as url:
        assert rows(body(f"{url}/record?{query}")) == count


@pytest.mark.covers("CAP-16")
def test_ten_thousand_rows_are_shown_in_pages() -> None:
    store = HistoryStore()
    fill(store, *(refusal(n) for n in range(10_000)))
    with page(store, state(claims=10_000, odcrs=1_000)) as url:
        shown = body(f"{url}/record?show=problems")
        assert rows(shown) == PAGE and len(shown) < 300_000
        older = re.search(r'href="([^"]+)" rel="next"', shown)
        assert older is not None
        following = body(url + older[1].replace("&amp;", "&"))
        assert "train-9899<" in following and "train-9900<" not in following and "show=problems" in older[1]
        assert "10000 claims wait, page 2 of 100" in body(f"{url}/waiting?page=2")
        assert "1000 reservations, page 10 of 10" in body(f"{url}/reservations?page=99")


def test_text_of_users_is_escaped() -> None:
    store = HistoryStore()
    evil = "<script>alert(1)</script>"
    fill(store, refusal(1, message=evil, code=evil, request_id=evil, claim=evil))
    with page(store, state()) as url:
        for path in ("/", "/record", "/shortages", f"/record?name={evil}"):
            shown = body(url + path)
            assert "<script>alert" not in shown
        assert "&lt;script&gt;" in body(f"{url}/record")


@pytest.mark.covers("CAP-16")
def test_the_page_is_read_only_and_serves_no_other_name() -> None:
    with page(filled(), state()) as url:
        assert {get(url + path, method).status for path in PATHS for method in ("POST", "DELETE")} == {405}
        assert get(url, Host="evil.example").status == 403
        assert get(f"{url}/changes", Host="evil.example").status == 403
        assert get(f"{url}/static/../server.py").status == 404
        assert get(f"{url}/claims/unknown").status == 404


@pytest.mark.covers("CAP-16")
def test_pages_load_only_their_own_files() -> None:
    with page(filled(), state()) as url:
        for path in PATHS:
            shown = body(url + path)
            loaded = re.findall(r'(?:src|href|hx-get|action)="([^"]*)"', shown)
            assert [url_ for url_ in loaded if not url_.startswith(("/", "#"))] == []
            assert "style=" not in shown and not re.search(r"<script(?! src)", shown)


def test_a_broken_database_is_reported() -> None:
    store = filled()
    with page(store, state()) as url:
        with store._begin() as connection:
            connection.execute(text("DROP TABLE history_entries"))
        answer = get(url)
        assert answer.status == 503 and "Launches go on without it" in answer.data.decode()


@pytest.mark.covers("CAP-16")
def test_the_heat_map_counts_refusals_by_pool_and_time() -> None:
    with page(filled(), state()) as url:
        shown = body(f"{url}/shortages?since=6h")
        assert re.search(r'<th scope="row">cr-1 \(p5.48xlarge, us-east-1a\)</th><td>1</td>', shown)
        assert shown.count('class="heat-5"') == 1


@pytest.mark.covers("FLT-55")
def test_nothing_idle_is_no_missing_reservation() -> None:
    used = replace(state(), odcrs=[odcr(available=0)])
    with page(HistoryStore(), used) as url:
        shown = body(url)
        assert "No slot is idle." in shown and "no reservation" not in shown
    with page(HistoryStore(), replace(state(), odcrs=[])) as url:
        assert "The account has no reservation." in body(f"{url}/reservations")
        assert "It has no EC2 reservation." in body(f"{url}/reservations/team/gpus")


@pytest.mark.covers("FLT-55")
def test_slots_of_reservations_that_are_over_or_begin_later_are_neither_counted_nor_used() -> None:
    gone = [odcr(f"cr-{other}", available=0, state=other) for other in ("cancelled", "scheduled")]
    with page(HistoryStore(), replace(state(), odcrs=[odcr(), *gone])) as url:
        assert "<strong>3</strong> of 8 slots are idle" in body(url)
        assert "5 of 8 slots of cr-1 used" in body(f"{url}/reservations")
        assert "0 of 8 slots of cr-cancelled used" in body(f"{url}/reservations")
    held = replace(state(), odcrs=[replace(view, odcr=replace(view.odcr, id="cr-1")) for view in gone[:1]])
    with page(HistoryStore(), held) as url:
        assert '<td role="cell" data-label="Slots">0</td>' in body(f"{url}/cohorts")


@pytest.mark.covers("FLT-55")
def test_a_slot_that_a_better_claim_got_is_no_problem() -> None:
    store = HistoryStore()
    turn = {"outcome": Outcome.SKIPPED, "class_": None, "message": "went to claims that come before"}
    fill(store, refusal(1, code="OutbidInPlan", **turn), refusal(2, code="ReservationGone", **turn))
    with page(store, state()) as url:
        problems = body(f"{url}/record?show=problems")
        assert "OutbidInPlan" not in problems and "ReservationGone" in problems
        assert "OutbidInPlan" in body(f"{url}/record"), "it stays in the record"


ANYTHING = Alternative(Requirements(), Requirements())


def pod_waits(namespace: str = "team") -> Waiter:
    name = f"{namespace}/train"
    return Waiter(
        kind="pod",
        name=name,
        namespace=namespace,
        since=AT,
        reason="Unschedulable",
        message="no machine fits",
        command=pod_command(name),
        alternatives=(ANYTHING,),
    )


@pytest.mark.covers("FLT-54")
def test_overview_matches_idle_slots_with_what_waits() -> None:
    pods = [waiting_pod()]
    live = replace(state(claims=0), waiters=[pod_waits()], waiting_pods=pods, idle_slots=[idle()])
    with page(HistoryStore(), live) as url:
        shown = body(url)
        assert "pod team/train" in shown and "no machine fits" in shown and "1</strong> pod waits" in shown
        assert "the slot&#39;s owner is team/gpus, and no capacity-broker.io/draws-from names it" in shown
        assert "Nothing waits." not in shown
        assert "pod team/train" in body(f"{url}/waiting")
    with page(HistoryStore(), replace(live, idle_slots=[])) as url:
        shown = body(url)
        assert "No idle slot helps what waits" in shown and "Nothing waits." not in shown
        assert "capacity-broker explain pod -n team train" in shown
    with page(HistoryStore(), state(claims=0)) as url:
        assert "Nothing waits." in body(url)


def broken(claim: str = "train-1") -> BrokenNode:
    return BrokenNode(
        claim=claim,
        node="ip-10-0-0-1",
        node_pool="gpu",
        instance_type="p5.48xlarge",
        zone="us-east-1a",
        reservation="cr-1",
        sign="AcceleratedHardwareReady=False NvidiaXID48Error",
        message="GPU 3 is lost",
        since=NOW - timedelta(minutes=1),
        next="rebooted, if it is still broken then",
        next_at=NOW + timedelta(minutes=9),
        usd_hour=60.0,
        usd=1.0,
    )


@pytest.mark.covers("FUL-22")
def test_broken_node_is_on_the_first_page_with_its_slot_next_step_and_cost() -> None:
    with page(HistoryStore(), replace(state(), broken=[broken()])) as url:
        for path in ("", "/claims/train-1", "/odcrs/cr-1"):
            shown = body(url + path)
            for part in ("NvidiaXID48Error", "GPU 3 is lost", "if it is still broken then", "60.00; 1.00"):
                assert part in shown, path
            assert "in 9m" in shown and "cr-1" in shown
        assert "1</strong> node is broken" in body(url)
    with page(HistoryStore(), state()) as url:
        assert "is broken" not in body(url)


@pytest.mark.covers("FUL-22")
def test_person_without_the_cluster_sees_no_broken_node() -> None:
    live = replace(state(), broken=[broken()])
    assert not visible(live, VisibleScope(cluster=False, namespaces=frozenset({"team"}))).broken
    assert visible(live, VisibleScope(cluster=True, namespaces=frozenset({"team"}))).broken


@pytest.mark.covers("FLT-54")
def test_person_sees_matches_of_readable_namespaces_only() -> None:
    live = replace(state(), waiters=[pod_waits(), pod_waits("other")], idle_slots=[idle(), idle("other")])
    team = VisibleScope(cluster=False, namespaces=frozenset({"team"}))
    seen = visible(live, team)
    assert [waiter.name for waiter in seen.waiters] == ["team/train"]
    assert [slots.owner for slots in seen.idle_slots] == [ReservationKey("team", "gpus")]
    readers = replace(team, cluster=True)
    seen = visible(live, readers)
    (match,) = (
        match
        for match in idle_matches(seen.waiters, seen.idle_slots, shown=shown_names(readers))
        if match.slots.owner == ReservationKey("other", "gpus")
    )
    assert "other" not in match.text.replace(ELSEWHERE, "") + match.command


@pytest.mark.covers("FLT-54")
@pytest.mark.parametrize(
    "waits",
    [
        replace(pod_waits(), held="no NodePool accepts it: NodePool secret: taint secret"),
        replace(pod_waits(), alternatives=(replace(ANYTHING, node_pool="secret", closed="secret fails"),)),
    ],
    ids=["held", "pool not ready"],
)
def test_person_without_the_cluster_reads_no_name_of_a_pool_between_pod_and_slot(waits: Waiter) -> None:
    team = VisibleScope(cluster=False, namespaces=frozenset({"team"}))
    seen = visible(replace(state(), waiters=[waits], idle_slots=[idle()]), team)
    (match,) = idle_matches(seen.waiters, seen.idle_slots, shown=shown_names(team))
    assert match.between and "secret" not in match.text + match.command


def waiting_pod(namespace: str = "team", **more: Any) -> WaitingPod:
    known: dict[str, Any] = {
        "owner": "Deployment train",
        "node_pool": "gpu",
        "reason": "Unschedulable",
        "since": AT,
    }
    message = {"reason": "Unschedulable", "message": "no machine fits", "own_message": "no node has room"}
    named = {"namespace": namespace, "name": "train"}
    return WaitingPod(**{**named, **known, **message, **more})


@pytest.mark.covers("ONC-02")
def test_waiting_pods_of_one_owner_are_one_row_with_and_without_a_claim() -> None:
    pods = [waiting_pod(), waiting_pod(name="train-1"), waiting_pod(name="own", owner="", claim="train-0")]
    with page(HistoryStore(), replace(state(claims=0), waiting_pods=pods)) as url:
        for path in ("", "/waiting"):
            shown = body(url + path)
            assert "Deployment team/train" in shown and '<td role="cell" data-label="Count">2</td>' in shown
            assert "pod team/own" in shown and "/claims/train-0" in shown
        assert "3</strong> pods wait" in body(url)
        assert "Deployment team/train" not in body(f"{url}/waiting?node_pool=other")


@pytest.mark.covers("ONC-02")
def test_person_sees_waiting_pods_of_readable_namespaces_without_names_of_others() -> None:
    pods = [waiting_pod(claim="train-0", message="held by claim x (other/pod)"), waiting_pod("other")]
    live = replace(state(), waiting_pods=pods)
    (seen,) = visible(live, VisibleScope(cluster=False, namespaces=frozenset({"team"}))).waiting_pods
    assert (seen.message, seen.claim, seen.node_pool) == ("no node has room", "", "")
    (seen,) = visible(live, VisibleScope(cluster=True, namespaces=frozenset({"team"}))).waiting_pods
    assert (seen.message, seen.claim) == ("no node has room", "train-0")


def idle(namespace: str = "team") -> IdleSlots:
    return IdleSlots(
        id="cr-1",
        type="p5.48xlarge",
        zone="us-east-1a",
        free=3,
        node_classes=frozenset({"gpu"}),
        owner=ReservationKey(namespace, "gpus"),
        labels={},
    )


@pytest.mark.covers("FLT-51")
def test_a_short_pool_shows_its_chance_and_expected_wait() -> None:
    store = HistoryStore()
    recent = [refusal(n, at=NOW - timedelta(minutes=60 - 5 * n), pool=OTHER) for n in range(9)]
    fill(store, *recent, launch(9, at=NOW - timedelta(minutes=10), pool=OTHER))
    with page(store, state()) as url:
        heat = body(f"{url}/shortages")
        assert re.search(
            r"on-demand p5.48xlarge in us-east-1b</th><td>9</td><td>\d\d%, else about 26 min</td>", heat
        )
    with page(HistoryStore(), state()) as url:
        assert "else about" not in body(url) + body(f"{url}/shortages")


@pytest.mark.covers("FLT-51")
@pytest.mark.parametrize(
    ("used", "odcr_state", "shown"),
    [
        (8, "active", "full, 0%, a slot becomes free about every 22 min"),
        (6, "active", "2 slots are free now"),
        (8, "expired", "the reservation is expired, 0%"),
    ],
)
def test_the_chance_of_a_reservation_follows_from_its_slots(used: int, odcr_state: str, shown: str) -> None:
    """Whatever launched or was refused before."""
    store = HistoryStore()
    launches = [launch(n, at=NOW - timedelta(minutes=60 - 5 * n), pool=POOL) for n in range(3)]
    fill(store, *launches, refusal(9, at=NOW - timedelta(minutes=1), pool=POOL))
    begin = int((NOW - timedelta(minutes=60)).timestamp()) // 300 * 300
    store.open()
    store.write(Batch(uses={(begin - 300, "cr-1"): (8, 8)}))
    row = odcr(available=8 - used, state=odcr_state)
    shortages = [] if used == 6 else [replace(state().shortages[0], pools=(str(POOL),))]
    with page(store, replace(state(), odcrs=[row], shortages=shortages)) as url:
        for path in ("/odcrs/cr-1", "/shortages", *(["/"] if shortages else [])):
            assert shown in body(url + path), path


@pytest.mark.parametrize("reservation", [GROUP, ""])
def test_a_launch_through_a_group_or_an_open_match_is_in_the_timeline_of_its_reservation(
    reservation: str,
) -> None:
    store = HistoryStore()
    fill(store, launch(1, pool=replace(POOL, reservation=reservation), odcr_ids=("cr-1",)))
    with page(store, state()) as url:
        for path in ("/odcrs/cr-1", "/record?reservation=cr-1", "/reservations/team/gpus"):
            assert rows(body(url + path)) == 1, path


def test_a_group_is_shown_by_its_name_without_a_link() -> None:
    store = HistoryStore()
    fill(store, refusal(1, pool=replace(POOL, reservation=GROUP)))
    with page(store, state()) as url:
        for path in ("/", "/record"):
            shown = body(url + path)
            assert "group training" in shown and "/odcrs/arn" not in shown
        assert '<a href="/odcrs/cr-1">cr-1</a>' in body(f"{url}/reservations")


@pytest.mark.parametrize(
    "path", ["/nowhere", "/odcrs/arn%3Aaws/training", "/odcrs/cr-404", "/claims/train-9"]
)
def test_a_missing_page_has_the_common_layout(path: str) -> None:
    with page(filled(), state()) as url:
        answer = get(url + path)
        assert answer.status == 404 and "/static/page.css" in answer.data.decode()
        assert "Content-Security-Policy" in answer.headers


@pytest.mark.covers("CAP-16")
def test_the_use_of_a_reservation_is_drawn_on_each_page_that_lists_it() -> None:
    store = filled()
    store.write(Batch(uses={(int(AT.timestamp()), "cr-1"): (8, 3), (int(NOW.timestamp()), "cr-1"): (8, 5)}))
    with page(store, state()) as url:
        for path in ("/", "/reservations", "/reservations/team/gpus", "/odcrs/cr-1"):
            shown = body(url + path)
            assert "from 3 of 8 to 5 of 8 slots" in shown and "no change seen" not in shown, path


@pytest.mark.parametrize("leads", [True, False])
def test_the_timeline_of_a_pool_keeps_claims_that_ended(leads: bool) -> None:
    store = HistoryStore()
    fill(store, launch(1, node_pool="gpu"), launch(77, node_pool="gpu"), launch(78, node_pool="cpu"))
    with page(store, state() if leads else None) as url:
        shown = body(f"{url}/pools/gpu")
        assert rows(shown) == 2 and "train-77" in shown


def test_the_newest_shortages_are_first() -> None:
    with page(filled(), state()) as url:
        times = re.findall(r'<th scope="col"><time datetime="([^"]+)"', body(f"{url}/shortages?since=24h"))
        assert len(times) > 40 and times == sorted(times, reverse=True)


def test_a_count_of_one_is_singular() -> None:
    with page(filled(), state()) as url:
        shown = re.sub(r"<[^>]+>", "", body(url))
        assert "1 pool is short" in shown and "1 claim waits" in shown
        assert "1 claim waits" in body(f"{url}/waiting") and "1 reservation<" in body(f"{url}/reservations")


@pytest.mark.parametrize(
    ("path", "unknown"),
    [
        ("/record?since=banana", "since=banana"),
        ("/record?clam=train-1", "clam=train-1"),
        ("/record?topic=x&name=train-1", "topic=x"),
        ("/shortages?since=banana", "since=banana"),
        ("/record?since=1h&topic=&show=problems&name=train-1", ""),
        ("/shortages", ""),
    ],
)
def test_an_invalid_filter_is_reported(path: str, unknown: str) -> None:
    with page(filled(), state()) as url:
        shown = body(url + path)
        assert (
            (f"left out: <code>{unknown}</code></p>" in shown) if unknown else ("Not understood" not in shown)
        )


def member(namespace: str, cohort: str, odcrs: tuple[str, ...] = ()) -> ReservationRow:
    (row,) = state().reservations
    return replace(row, namespace=namespace, cohort=cohort, odcrs=odcrs)


def cells(shown: str) -> list[list[str]]:
    """The texts of the tables' rows."""
    row_html = re.findall(r"<tr role=\"row\">\s*<td(.*?)</tr>", shown, re.DOTALL)
    return [
        [" ".join(re.sub(r"<[^>]+>", " ", f"<td{cell}").split()) for cell in row.split("<td")]
        for row in row_html
    ]


def test_a_cohort_shows_its_members_and_loans() -> None:
    members = [
        member("team", "all", ("cr-1",)),
        member("other", "all"),
        member("lonely", "else"),
        member("x", ""),
    ]
    with page(filled(), replace(state(), reservations=members)) as url:
        shown = cells(body(f"{url}/cohorts"))
        assert [row[:2] for row in shown[:3]] == [
            ["all", "other/gpus"],
            ["all", "team/gpus"],
            ["else", "lonely/gpus"],
        ]
        # Accelerators, borrowed; slots, lent, idle; in slots of others.
        assert shown[1][2:] == ["40/64", "8", "8", "3", "3", "0"]
        assert shown[3:] == [
            ["team/gpus", "other/research", "h100", "2", "1", "train-8 , train-9"],
            ["team/gpus", "no reservation", "h100", "1", "0", "train-7"],
        ]
        chosen = body(f"{url}/cohorts?cohort=else")
        assert "lonely/gpus" in chosen and "team/gpus" not in chosen and "1 member<" in chosen


def test_a_loan_hides_names_outside_of_the_scope() -> None:
    members = [member("team", "all"), member("other", "all")]
    loans = [loan("team/gpus", "other/gpus", ("train-9",)), loan("x/gpus", "other/gpus", ("train-8",))]
    live = replace(state(), reservations=members, loans=loans)
    scoped = visible(live, VisibleScope(cluster=False, namespaces=frozenset({"team"})))
    assert [(row.owner, row.borrower, row.claims) for row in scoped.loans] == [("team/gpus", ELSEWHERE, ())]


@pytest.mark.covers("ONC-04")
def test_overview_opens_with_a_picture_of_capacity() -> None:
    with page(filled(), state(odcrs=30)) as url:
        by_owner, by_zone = body(url + "/"), body(url + "/?by=zone")
    assert by_owner.index('id="capacity"') < by_owner.index('id="pods"') < by_owner.index('id="short"')
    text_ = (
        "lent to a claim without a right to it: train-2, team/worker-of-train-2, secret/helper-of-train-2, "
        "draws from other/research, for 1h; 55.04 $/h"
    )
    assert f'<a class="slot lent" href="/claims/train-2" aria-label="{text_}">' in by_owner
    assert by_owner.count('class="slot borrowed" href="/claims/train-2"') == 1
    assert (
        'aria-label="cr-1: 8 slots, 1 broken, 1 ending, 1 lent, 2 idle, 1 held, 1 other, 1 own"' in by_owner
    )
    assert "6 more reservations" in by_owner and "and its claims" not in by_owner
    assert ">us-east-1a</h3>" in by_zone and "borrowed" not in by_zone.partition("By zone")[2]


@pytest.mark.covers("ONC-04")
def test_picture_has_no_names_from_other_namespaces() -> None:
    scope = VisibleScope(cluster=True, namespaces=frozenset({"team"}))
    seen = visible(state(), scope).slots
    assert "secret" not in str(seen) and "other/research" not in str(seen)
    assert ELSEWHERE in str(seen) and "team/worker-of-train-2" in str(seen)
    assert not visible(state(), replace(scope, cluster=False)).slots


def test_a_nights_refusals_of_a_short_pool_hide_no_other_problem() -> None:
    """They fill more than one read of the record, and the short pool stands for all of them."""
    short = replace(state().shortages[0], pools=(str(POOL),))
    night = [refusal(number) for number in range(1, 250)]
    other = event(type="Warning", reason="ReclaimBlocked", message="a pod cannot be evicted")
    store = HistoryStore()
    fill(store, other, *night)
    with page(store, replace(state(), shortages=[short])) as url:
        shown = body(url)
    assert "a pod cannot be evicted" in shown and "req-249" not in shown
