"""Authentication of the page, and rows within the rights of a person."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from ipaddress import ip_network

import pytest
import urllib3

from broker.apis.ome import ReservationSummary
from broker.history.store import HistoryStore
from broker.history.tables import Batch
from broker.kube.events import Reference
from broker.options import BadOptions, exposed
from broker.run import serve
from broker.settings import Settings
from broker.webpage.access import KEEP, AccessRules, PageAccess
from broker.webpage.live import LiveState
from tests.support.clock import FakeClock
from tests.unit.history.facts import AT, event, fill, refusal
from tests.unit.webpage.rights import ALL_TEAMS, CLUSTER, TEAM, Reviews, guarded
from tests.unit.webpage.samples import DETAILS
from tests.unit.webpage.test_page import PATHS
from tests.unit.webpage.world import OPEN, get, odcr, page, state

PROXY = AccessRules(
    user_header="X-Forwarded-User",
    groups_header="X-Forwarded-Groups",
    proxies=(ip_network("127.0.0.1/32"),),
)
ELSEWHERE = replace(PROXY, proxies=(ip_network("10.0.1.7/32"),))
TOKENS = AccessRules(tokens=True)
SECRET = "secret-project"


def history() -> HistoryStore:
    """An hour of two namespaces and of the cluster."""
    store = HistoryStore()
    hidden = Reference(
        api_version="ome.io/v1beta1", kind="CapacityReservation", name="hush", namespace=SECRET
    )
    fill(
        store,
        refusal(1, code="InsufficientInstanceCapacity"),
        event(type="Warning", reason="ReclaimBlocked"),
        event(about=hidden, type="Warning", reason="HushReason", message="hush-message"),
    )
    store.write(Batch(uses={(int(AT.timestamp()), "cr-1"): (8, 3)}))
    return store


def two_namespaces() -> LiveState:
    """The reservation of `team`, and one of a namespace with a name that must not leak."""
    shown = state()
    summary = ReservationSummary(gpu_borrowed=131313)
    hidden = replace(shown.reservations[0], namespace=SECRET, name="hush", summary=summary)
    owned = replace(odcr("cr-2"), owner=f"{SECRET}/hush")
    return replace(
        shown, reservations=[*shown.reservations, hidden], odcrs=[*shown.odcrs, owned], unreadable="down"
    )


def get_page(access: PageAccess, path: str, headers: Mapping[str, str]) -> urllib3.BaseHTTPResponse:
    with page(history(), two_namespaces(), access) as url:
        return get(url + path, **headers)


@pytest.mark.parametrize("path", [*PATHS, "/changes", "/nowhere"])
@pytest.mark.covers("CAP-16")
def test_without_proof_of_identity_every_path_is_denied(path: str) -> None:
    for rules, headers in (
        (PROXY, {}),
        (TOKENS, {}),
        (TOKENS, {"Authorization": "Bearer forged"}),
        (TOKENS, {"Authorization": "Basic YTpi"}),
        (TOKENS, {"X-Forwarded-User": "ana"}),
    ):
        answer = get_page(guarded(Reviews(), rules), path, headers)
        assert answer.status == 401 and "team" not in answer.data.decode(), (rules, headers)
    forged = get_page(
        guarded(Reviews({"ana": {ALL_TEAMS, *CLUSTER}}), ELSEWHERE), path, {"X-Forwarded-User": "ana"}
    )
    assert forged.status == 403 and "team" not in forged.data.decode()


@pytest.mark.covers("CAP-16")
def test_a_header_counts_only_from_the_addresses_of_the_proxy() -> None:
    assert not PROXY.trusts("127.0.0.2") and not PROXY.trusts("") and not AccessRules().trusts("127.0.0.1")
    assert PROXY.trusts("127.0.0.1") and PROXY.trusts("::ffff:127.0.0.1")
    # The proof of a token does not help a header that came past the proxy.
    reviews = Reviews({"ana": {ALL_TEAMS, *CLUSTER}}, {"t": "ana"})
    both = guarded(reviews, replace(ELSEWHERE, tokens=True))
    with page(history(), two_namespaces(), both) as url:
        assert get(url, Authorization="Bearer t").status == 200
        answer = get(url, **{"Authorization": "Bearer t", "X-Forwarded-User": "root"})
        assert answer.status == 403 and "--web-proxies" in answer.data.decode()
        past = get(url, **{"X-Forwarded-For": "10.0.1.7", "X-Forwarded-User": "ana", "X-Real-Ip": "10.0.1.7"})
        assert past.status == 403


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([("X-Forwarded-User", "eve"), ("X-Forwarded-User", "ana")], 400),
        ([("X-Forwarded-User", "eve"), ("X-Forwarded-Groups", "a"), ("X-Forwarded-Groups", "admins")], 400),
        ([("X-Forwarded-User", "system:admin")], 403),
        ([("X-Forwarded-User", "eve"), ("X-Forwarded-Groups", "a, system:masters")], 403),
        ([("X-Forwarded-User", " ")], 403),
        ([("X-Forwarded-User", "eve"), ("X-Forwarded-Groups", "admins")], 200),
    ],
)
def test_a_proxy_that_passes_on_a_clients_own_headers_is_refused(
    headers: list[tuple[str, str]], status: int
) -> None:
    sent = urllib3.HTTPHeaderDict()
    for name, value in headers:
        sent.add(name, value)
    with page(history(), two_namespaces(), guarded(Reviews(), PROXY)) as url:
        answer = urllib3.request("GET", url, headers=sent, retries=False, timeout=30)
        assert answer.status == status


def signed_in(reviews: Reviews, user: str = "ana") -> tuple[PageAccess, dict[str, str]]:
    return guarded(reviews, PROXY), {"X-Forwarded-User": user}


@pytest.mark.parametrize("path", [*PATHS, "/record?show=problems", f"/record?namespace={SECRET}", "/nowhere"])
@pytest.mark.covers("CAP-16")
def test_a_person_sees_only_the_namespaces_that_they_may_read(path: str) -> None:
    access, headers = signed_in(Reviews({"ana": {TEAM}}))
    shown = get_page(access, path, headers).data.decode()
    hidden = (SECRET, "hush", "Hush", "131313", "train-1", "cr-1", "cr-2", "165.12", "p5.48xlarge", "down")
    assert [word for word in hidden if word in shown and word not in path] == []
    if path == "/reservations":
        assert "team/gpus" in shown
    if path in ("/record", "/", "/record?show=problems"):
        assert "ReclaimBlocked" in shown and "InsufficientInstanceCapacity" not in shown


def test_the_cluster_wide_right_shows_claims_and_no_foreign_namespace() -> None:
    access, headers = signed_in(Reviews({"ana": {*CLUSTER}}))
    with page(history(), two_namespaces(), access) as url:
        for path in (*PATHS, f"/record?namespace={SECRET}"):
            if path == "/reservations/team/gpus":
                continue
            shown = get(url + path, **headers).data.decode().replace(f'value="{SECRET}"', "")
            assert "team/gpus" not in shown and "hush" not in shown, path
        assert "another namespace" in get(f"{url}/reservations", **headers).data.decode()
        assert "train-1" in get(f"{url}/waiting", **headers).data.decode()


def test_a_foreign_object_and_a_missing_one_have_the_same_answer() -> None:
    access, headers = signed_in(Reviews({"ana": {TEAM}}))
    with page(history(), two_namespaces(), access) as url:
        for foreign, missing in (
            (f"/reservations/{SECRET}/hush", f"/reservations/{SECRET}/none"),
            ("/claims/train-1", "/claims/none"),
            ("/odcrs/cr-1", "/odcrs/none"),
            ("/classes/gpu", "/classes/none"),
        ):
            answers = [get(url + path, **headers) for path in (foreign, missing)]
            texts = [
                answer.data.decode().replace(path.rpartition("/")[2], "NAME")
                for answer, path in zip(answers, (foreign, missing), strict=True)
            ]
            assert [answer.status for answer in answers] == [404, 404] and texts[0] == texts[1]


def test_a_proxys_group_has_its_rights() -> None:
    reviews = Reviews({"gpu-team": {ALL_TEAMS, *CLUSTER}})
    access, headers = signed_in(reviews)
    with page(history(), two_namespaces(), access) as url:
        assert "hush" not in get(f"{url}/reservations", **headers).data.decode()
        headers["X-Forwarded-Groups"] = "staff, gpu-team"
        assert "hush" in get(f"{url}/reservations", **headers).data.decode()
    assert all(s["groups"][-1] == "system:authenticated" for s in reviews.seen)


def test_a_revoked_right_ends_after_half_a_minute() -> None:
    reviews = Reviews({"ana": {ALL_TEAMS, *CLUSTER}}, {"t": "ana"})
    clock = FakeClock()
    with page(history(), two_namespaces(), guarded(reviews, TOKENS, clock)) as url:
        for _ in range(3):
            assert "train-1" in get(f"{url}/waiting", Authorization="Bearer t").data.decode()
        assert len(reviews.seen) == 4, "each review is made once"
        reviews.rights.clear()
        clock.advance(KEEP + 1)
        assert "train-1" not in get(f"{url}/waiting", Authorization="Bearer t").data.decode()
        reviews.tokens.clear()
        clock.advance(KEEP + 1)
        assert get(url, Authorization="Bearer t").status == 401


def test_the_page_is_denied_while_the_api_server_is_unavailable() -> None:
    for rules, headers in ((PROXY, {"X-Forwarded-User": "ana"}), (TOKENS, {"Authorization": "Bearer t"})):
        answer = get_page(guarded(Reviews(broken=True), rules), "/", headers)
        assert answer.status == 503 and "team" not in answer.data.decode()


def test_without_authentication_the_page_answers_to_this_machine_alone() -> None:
    assert get_page(OPEN, "/", {}).status == 200
    assert get_page(OPEN, "/", {"Host": "evil.example"}).status == 403


WEB = {"web": True, "cluster_name": "blue", "cluster_endpoint": "https://blue.example", "cluster_ca": "LS0="}


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (
            {"web_host": "0.0.0.0"},
            ("--web-host (BROKER_WEB_HOST)", "--web-user-header", "--web-proxies", "--web-tokens"),
        ),
        ({"web_host": "::"}, ("--web-host (BROKER_WEB_HOST)",)),
        ({"web_host": "broker.example"}, ("--web-host (BROKER_WEB_HOST)",)),
        ({"web_user_header": "X-User"}, ("--web-proxies (BROKER_WEB_PROXIES)",)),
        ({"web_groups_header": "X-Groups"}, ("--web-user-header (BROKER_WEB_USER_HEADER)",)),
        ({"web_user_header": "X-User", "web_proxies": "0.0.0.0/0"}, ("--web-proxies (BROKER_WEB_PROXIES)",)),
        ({"web_user_header": "X User", "web_proxies": "10.0.0.1"}, ("--web-user-header",)),
    ],
)
@pytest.mark.covers("CAP-16")
def test_a_reachable_page_without_authentication_is_refused_at_start(
    given: dict[str, str], named: tuple[str, ...]
) -> None:
    nothing: object = None
    with pytest.raises(BadOptions) as refused:
        serve(Settings(**WEB, **given), nothing, nothing)  # type: ignore[arg-type]
    assert all(part in str(refused.value) for part in named)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"web_host": "localhost"},
        {"web_host": "::1"},
        {"web": False, "web_host": "0.0.0.0"},
        {"web_host": "0.0.0.0", "web_tokens": True},
        {"web_host": "0.0.0.0", "web_user_header": "X-User", "web_proxies": "10.0.1.7/32, fd00::7/128"},
    ],
)
def test_a_page_with_authentication_may_be_reached(given: dict[str, object]) -> None:
    assert exposed(Settings(**{**WEB, **given})) == []  # type: ignore[arg-type]


@pytest.mark.covers("ONC-08")
@pytest.mark.parametrize("rules", [PROXY, TOKENS])
def test_runbooks_are_shown_while_the_api_server_is_unavailable(rules: AccessRules) -> None:
    """Whoever is on call then needs them most; nothing of the cluster is in them."""
    access = guarded(Reviews(broken=True), rules)
    runbook = get_page(access, "/docs/runbooks/capacity-broker-claims-waiting.md", {})
    assert runbook.status == 200 and "kubectl" in runbook.data.decode()
    assert "team" not in get_page(access, "/docs/nowhere.md", {}).data.decode()
    assert get_page(access, "/docs/nowhere.md", {}).status == 404


def test_a_namespace_that_only_has_running_pods_is_shown() -> None:
    access, headers = signed_in(Reviews({"ana": {TEAM}}))
    quiet = replace(state(), reservations=[], loans=[], rooms=[])
    with page(HistoryStore(), quiet, access, DETAILS) as url:
        for path, known in (("/namespaces/team", True), ("/pods/team/worker-0", True), ("/pods/x/y", False)):
            answer = get(url + path, **headers)
            assert (answer.status == 200) == known, path
        assert "worker-0" in get(f"{url}/namespaces/team", **headers).data.decode()
