"""The pages of nodes, slots, claims, pods and teams, and their part that a person may read."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from broker.history.store import HistoryStore
from broker.oncall.waiting_pods import WaitingPod
from broker.webpage.details import Details, visible_details
from broker.webpage.live import LiveState
from broker.webpage.scope import VisibleScope
from tests.unit.webpage.rights import CLUSTER, TEAM, Reviews
from tests.unit.webpage.samples import DETAILS, node, pod
from tests.unit.webpage.test_access import SECRET, signed_in, two_namespaces
from tests.unit.webpage.world import get, of_rows, page, state


def text_of(path: str, details: Details = DETAILS) -> str:
    """The text of a page, and the targets of its links."""
    with page(HistoryStore(), state(claims=3), details=details) as url:
        answer = get(url + path)
        assert answer.status == 200, answer.data
        return answer.data.decode()


def words(html: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


def row_of(html: str, part: str) -> str:
    return words(next(row for row in re.findall(r"<tr.*?</tr>", html, re.DOTALL) if part in row))


@pytest.mark.covers("ONC-05")
def test_nodes_show_fill_pods_price_reservation_pool_and_age() -> None:
    html = text_of("/nodes")
    row = row_of(html, "ip-train-1")
    for part in ("CPU 48.5/192", "memory GiB 512/2048", "GPU 6/8", " 2 ", "55.04", "cr-1", "team/gpus", "1h"):
        assert part in row, part
    assert 'value="0.750"' in html and 'href="/odcrs/cr-1"' in html and 'href="/pools/gpu"' in html
    assert "no, on-demand" in row_of(html, "ip-web-1")
    assert 'href="/nodes"' in text_of("/")
    assert "ip-train-1" not in text_of("/nodes?node_pool=web")


@pytest.mark.covers("ONC-05")
def test_nodes_without_a_price_are_counted_beside_the_total() -> None:
    unpriced = node("ip-win-1", usd_hour=None)
    details = replace(DETAILS, nodes=lambda: [*DETAILS.nodes(), unpriced])
    html = text_of("/nodes", details)
    assert "Price 110.28 $/h and 1 without a price" in words(html)
    assert "unknown" in row_of(html, "ip-win-1")
    assert "Price 110.28 $/h Requested" in words(text_of("/nodes"))


@pytest.mark.covers("ONC-05")
def test_idle_slots_and_pods_without_a_price_are_counted() -> None:
    details = replace(DETAILS, pods=lambda *_: [pod(), pod("unpriced-0", usd_hour=None)])
    live = state(claims=3)
    odcrs = [replace(view, cost=None) if view.odcr.id == "cr-1" else view for view in live.odcrs]
    idle = next(view.odcr.idle for view in odcrs if view.odcr.id == "cr-1")
    with page(HistoryStore(), replace(live, odcrs=odcrs), details=details) as url:
        shown = words(get(f"{url}/namespaces/team").data.decode())
        first = words(get(url).data.decode())
    assert "Cost of its pods 41.28 $/h and 1 without a price" in shown
    assert f"Cost of idle slots 0.00 $/h and {idle} without a price" in shown
    assert f"$/h for idle slots, {idle} without a price" in first


@pytest.mark.covers("ONC-05")
def test_claim_and_pod_say_that_their_price_is_unknown() -> None:
    document = DETAILS.pod("team/worker-0")
    assert document is not None
    (place,) = document["placed"]
    unpriced = {**document, "placed": [{**place, "usd_hour": None}]}
    html = text_of("/pods/team/worker-0", replace(DETAILS, pod=lambda _: unpriced))
    assert "reserved, price unknown" in words(html)


@pytest.mark.covers("ONC-05")
def test_reservation_shows_the_holder_of_each_slot() -> None:
    html = text_of("/odcrs/cr-1")
    row = row_of(html, 'href="/claims/train-2"')
    for part in ("lent", "train-2", "team/worker-of-train-2", "other/research", "1h", "55.04"):
        assert part in row, part
    assert 'href="/pods/team/worker-of-train-2"' in html
    assert "of no claim of this cluster" in row_of(html, "of another account")


@pytest.mark.covers("ONC-05")
def test_claim_shows_pods_requirements_and_options_with_verdicts() -> None:
    html = text_of("/claims/train-1")
    shown = words(html)
    assert "karpenter.sh/capacity-type In reserved, on-demand" in shown
    assert "is launched next into on-demand p5.48xlarge in us-east-1a" in shown
    assert 'href="/pods/team/worker-0"' in html
    skipped, taken = row_of(html, ">skipped<"), row_of(html, ">next<")
    assert "SlotsTaken" in skipped and "cr-1" in skipped and "paid" in skipped
    assert "on-demand p5.48xlarge" in taken and "55.04" in taken


@pytest.mark.covers("ONC-05")
def test_pod_shows_its_slot_or_why_it_waits() -> None:
    html = text_of("/pods/team/worker-0")
    shown = words(html)
    for part in ("running on node ip-train-1", "reserved, 55.04 $/h", "cr-1", "of team/gpus", "p5.48xlarge"):
        assert part in shown, part
    assert 'href="/odcrs/cr-1"' in html and 'href="/claims/train-1"' in html
    waits = text_of("/pods/team/waits-0")
    assert "RESERVATIONS_FULL" in waits and "SlotsTaken" in row_of(waits, ">skipped<")
    assert "train-2" in row_of(waits, "waits for")


@pytest.mark.covers("ONC-05")
@pytest.mark.parametrize("path", ["/reservations/team/gpus", "/namespaces/team"])
def test_team_shows_pods_loans_and_cost(path: str) -> None:
    html = text_of(path)
    assert "41.28" in row_of(html, "/pods/team/worker-0") and "waits" in row_of(html, "/pods/team/waits-0")
    assert "other/research" in row_of(html, 'href="/claims/train-8"')
    cost = "82.56" if path.startswith("/reservations") else "41.28"  # a pod of another namespace draws, too
    assert f"Cost of its pods {cost} $/h" in words(html)
    assert "Cost of idle slots 165.12 $/h" in words(html)


def with_claims() -> LiveState:
    """Claims that draw from the team's reservation, that its pods are on or wait for, and of nobody."""
    live = state(claims=3)
    drawing, of_waiting, other = live.waiting
    runs = {"waits": False, "instance_type": "p5.48xlarge", "zone": "us-east-1a", "reservation": "cr-1"}
    of_pod = replace(other, name="of-pod", capacity_type="reserved", price=None, **runs)  # type: ignore[arg-type]
    waiting = WaitingPod(
        namespace="team",
        name="waits-0",
        owner="",
        node_pool="gpu",
        reason="New",
        message="",
        since=None,
        claim=of_waiting.name,
    )
    return replace(
        live,
        **of_rows(replace(drawing, owner="team/gpus"), of_waiting, of_pod, other),
        waiting_pods=[waiting],
    )


@pytest.mark.covers("ONC-05")
@pytest.mark.parametrize("path", ["/reservations/team/gpus", "/namespaces/team"])
def test_team_lists_its_claims(path: str) -> None:
    pods = [replace(pod(), claim="of-pod"), pod("waits-0", state="waits", usd_hour=0.0)]
    details = replace(DETAILS, pods=lambda *_: pods)
    with page(HistoryStore(), with_claims(), details=details) as url:
        html = get(url + path).data.decode()
    table = html[html.index("Its claims: ") :]
    table = table[: table.index("</table>")]
    names = re.findall(r'href="/claims/([^"]+)"', table)
    assert names == ["train-1", "train-2", "of-pod"]
    assert "waits" in row_of(table, "train-1") and "1h" in row_of(table, "train-1")
    placed = row_of(table, "of-pod")
    for part in ("reserved", "p5.48xlarge", "us-east-1a", "cr-1", "unknown"):
        assert part in placed, part


@pytest.mark.covers("ONC-05")
def test_team_page_names_no_claim_to_a_person_without_the_cluster() -> None:
    access, headers = signed_in(Reviews({"ana": {TEAM}}))
    with page(HistoryStore(), with_claims(), access, DETAILS) as url:
        html = get(f"{url}/namespaces/team", **headers).data.decode()
    assert "Its claims" not in html and "of-pod" not in html


@pytest.mark.covers("ONC-06")
def test_waiting_time_is_a_span_with_the_time_at_hand() -> None:
    html = text_of("/")
    cells = re.findall(r'data-label="Waits">(.*?)</td>', html, re.DOTALL)
    assert cells
    for cell in cells:
        assert re.fullmatch(r"(\d+[dhms]\s?)+", words(cell)) and 'title="20' in cell, cell


@pytest.mark.covers("ONC-05")
@pytest.mark.parametrize("rights", [{TEAM}, {TEAM, *CLUSTER}], ids=["namespace", "cluster"])
@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/nodes",
        "/claims/train-1",
        "/odcrs/cr-1",
        "/odcrs/cr-2",
        "/reservations",
        "/reservations/team/gpus",
        "/namespaces/team",
        "/pods/team/worker-0",
        "/pods/team/waits-0",
        f"/pods/{SECRET}/hush-0",
        f"/namespaces/{SECRET}",
    ],
)
def test_person_sees_no_names_of_other_namespaces(path: str, rights: set[tuple[str, str]]) -> None:
    access, headers = signed_in(Reviews({"ana": rights}))
    with page(HistoryStore(), two_namespaces(), access, DETAILS) as url:
        answer = get(url + path, **headers)
    html = answer.data.decode().replace(path, "").replace(path.lstrip("/").partition("/")[2], "")
    assert "hush" not in html and "another%20namespace" not in html
    assert "secret/helper" not in html
    if SECRET in path:
        assert answer.status == 404
    if path == "/odcrs/cr-2" and len(rights) > 1:
        assert "another namespace" in html


@pytest.mark.covers("ONC-05")
def test_person_without_the_cluster_sees_no_chart_and_no_node() -> None:
    access, headers = signed_in(Reviews({"ana": {TEAM}}))
    with page(HistoryStore(), two_namespaces(), access, DETAILS) as url:
        html = get(url, **headers).data.decode()
        assert "The last 24 hours" not in html and "Nothing is recorded yet" not in html
        assert "ip-train-1" not in get(f"{url}/nodes", **headers).data.decode()
        pod = get(f"{url}/pods/team/waits-0", **headers).data.decode()
    assert "0/1 nodes are available" in pod and "cr-1" not in pod and "train-1" not in pod


def test_details_of_the_whole_cluster_are_as_they_are() -> None:
    assert visible_details(DETAILS, VisibleScope(cluster=True, namespaces=None)) is DETAILS
