"""Spending stays within the caps in any sequence of objects, annotations, lost replies, lag and restarts.

The real provisioner runs against the embedded API server and a small EC2 of this test. Only this EC2 has
the truth: it includes purchases with lost replies, and those that EC2 does not describe yet. After each step
EC2's bill is within every cap, unless an operator lowered a cap below the held amount. Nothing is bought in
place of reservations that EC2 no longer describes, and foreign reservations are never owned. The sequences
that broke this once come first, then random ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from broker.apis import names
from broker.apis.meta import Kind
from broker.apis.ome import CapacityReservation, ClusterCapacityReservation
from broker.capacity.inventory import Inventory
from broker.controllers.assumed import AssumptionStore
from broker.controllers.odcr.provisioner import OdcrProvisioner
from broker.controllers.snapshot import Snapshot
from broker.kube.client import Client
from broker.kube.errors import ApiError, NotFound, Unavailable
from broker.quota.usage import ReservationKey
from broker.reservations.flavors import FlavorCatalog
from broker.reservations.odcr_status import NO_ODCRS, OdcrSnapshot
from broker.reservations.spec import JudgedSpecs, Reservation, reserved_of
from broker.settings import Settings
from local.in_process import InProcessTransport
from providers.errors import ErrorClass, ProviderError
from providers.model import UNCHANGED, InstanceType, Odcr, OdcrRequest, ReservationGroup
from providers.names import TAG_CLUSTER
from tests.support.definitions import defined
from tests.support.dependencies import dependencies
from tests.support.examples import times
from tests.unit.capacity.builders import type_

CLUSTER, GPU, ZONE = "blue", "nvidia.com/gpu", "us-east-1a"
BIG, SMALL = "p5.48xlarge", "p5.4xlarge"
TYPES: Mapping[str, InstanceType] = {
    BIG: replace(
        type_(BIG, vcpus=192, memory_gib=2048, gpus=8, price=100.0),
        other_prices={"Windows": {"default": 300.0}},
    ),
    SMALL: type_(SMALL, vcpus=16, memory_gib=256, gpus=1, price=13.0),
}
# Dollars an hour of one instance, by type and platform: independent of the code under test.
PRICES = {(BIG, "Linux/UNIX"): 100.0, (BIG, "Windows"): 300.0, (SMALL, "Linux/UNIX"): 13.0}
NAMESPACES, NAMES = ("default", "kube-public"), ("a", "b", "c", "d")
BEGAN = datetime(2026, 11, 22, 12, tzinfo=UTC)
FOREIGN = Odcr(
    id="cr-strangers",
    instance_type=BIG,
    zone=ZONE,
    total=5,
    available=5,
    match_criteria="targeted",
    created=BEGAN - timedelta(days=1),
)
FORGED = {
    "capacity-broker.io/buying": f"7 {BEGAN.isoformat()}",
    "capacity-broker.io/released": '{"generation": 1, "flavors": {"p5.48xlarge": 9}}',
}


MANAGE = {names.RESERVATION_POLICY: "Manage", names.MINIMUM: "1"}
ANNOTATIONS: Sequence[dict[str, str]] = (
    MANAGE,
    MANAGE | {names.DELETION_POLICY: "Cancel"},
    MANAGE | {names.MATCH_CRITERIA: "open"},
    MANAGE | FORGED,
    MANAGE | FORGED | {names.ADOPT_IDS: f"{FOREIGN.id},cr-00001"},
    *(
        MANAGE | {names.PLATFORM: platform}
        for platform in ("Windows", "SUSE Linux", "Windows with SQL Server")
    ),
    MANAGE | {names.TENANCY: "dedicated"},
    {names.RESERVATION_POLICY: "Observe"},
)
FAULTS = st.lists(
    st.sampled_from(["answer lost", "answer lost", "never arrives", "refused", "denied"]), max_size=3
)


def lost() -> ProviderError:
    return ProviderError("RequestTimeout", "no answer", class_=ErrorClass.TRANSIENT)


@dataclass
class Ec2:
    """The truth about reservations, and the part of it that EC2 describes."""

    now: datetime = BEGAN
    odcrs: dict[str, Odcr] = field(default_factory=lambda: {FOREIGN.id: FOREIGN})
    tokens: dict[str, tuple[OdcrRequest, str]] = field(default_factory=dict)
    lag: timedelta = timedelta(minutes=10)
    hidden: set[str] = field(default_factory=set)
    faults: list[str] = field(default_factory=list)  # of the next calls that change a reservation

    def account_id(self) -> str:
        return "111122223333"

    def instance_types(self) -> Mapping[str, InstanceType]:
        return TYPES

    def reservations(self) -> Sequence[Odcr]:
        return [
            odcr
            for odcr in self.odcrs.values()
            if odcr.id not in self.hidden and odcr.created is not None and odcr.created + self.lag <= self.now
        ]

    def _fault(self) -> bool:
        """Whether the reply is lost. Raises ProviderError if the call does not arrive, or is refused."""
        match self.faults.pop() if self.faults else "":
            case "never arrives":
                raise lost()
            case "refused":
                raise ProviderError("InsufficientInstanceCapacity", "none", class_=ErrorClass.CAPACITY)
            case "denied":
                raise ProviderError("UnauthorizedOperation", "no", class_=ErrorClass.PERMISSION)
            case "answer lost":
                return True
        return False

    def create_reservation(self, request: OdcrRequest) -> Odcr:
        if request.token in self.tokens:
            before, id_ = self.tokens[request.token]
            assert before == request, "another request under the same token"
            # EC2 replays the result of a call that it carried out before: no more capacity is requested.
            while self.faults[-1:] == ["refused"]:
                self.faults.pop()
            if self._fault():
                raise lost()
            return self.odcrs[id_]
        unanswered = self._fault()
        id_ = f"cr-{len(self.odcrs):05d}"
        self.odcrs[id_] = Odcr(
            id=id_,
            instance_type=request.instance_type,
            zone=request.zone,
            total=request.count,
            available=request.count,
            platform=request.platform,
            tenancy=request.tenancy,
            match_criteria=request.match_criteria,
            created=self.now,
            tags={**request.tags, TAG_CLUSTER: CLUSTER},
        )
        self.tokens[request.token] = (request, id_)
        if unanswered:
            raise lost()
        return self.odcrs[id_]

    def resize_reservation(self, id_: str, *, count: int, end: Any = UNCHANGED) -> None:
        odcr = self.odcrs[id_]
        if odcr.over:
            raise ProviderError("InvalidState", "it has ended", class_=ErrorClass.RESERVATION_GONE)
        unanswered = self._fault()
        self.odcrs[id_] = replace(odcr, total=count, available=count)
        if unanswered:
            raise lost()

    def cancel_reservation(self, id_: str) -> None:
        unanswered = self._fault()
        self.odcrs[id_] = replace(self.odcrs[id_], state="cancelled", available=0)
        if unanswered:
            raise lost()

    def group(self, arn: str) -> ReservationGroup:
        raise ProviderError("Throttling", "groups do not matter here", class_=ErrorClass.THROTTLING)


class Reads:
    """The API server's present state in place of watches."""

    def __init__(
        self,
        client: Client,
        publish: Callable[[OdcrSnapshot], None],
        ec2: Ec2,
        inventory: Callable[[], Inventory],
    ) -> None:
        self._ec2, self._inventory = ec2, inventory
        self._client, self._flavors, self._specs = client, FlavorCatalog(), JudgedSpecs()
        self.snapshots = SimpleNamespace(publish=publish)
        self.guard = nullcontext
        self.left_out = frozenset

    def snapshot(self) -> Snapshot:
        reservations: list[Reservation] = [
            model.decode(body)
            for model in (CapacityReservation, ClusterCapacityReservation)
            for body in self._client.list(model.KIND)[0]
        ]
        return Snapshot(
            version=1,
            reservations={reserved_of(reservation): reservation for reservation in reservations},
            flavors=self._flavors,
            inventory=self._inventory(),
            _types=self._ec2.instance_types,
            _judged=self._specs,
        )


Scope = tuple[str, ...]  # (), (namespace,) or (namespace, name)


class Purchases(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.ec2 = Ec2()
        cluster = defined()
        self.client = Client(InProcessTransport(cluster), field_manager="capacity-broker")
        self.user = Client(InProcessTransport(cluster), field_manager="user")
        self.settings = Settings(cluster_name=CLUSTER, region="us-east-1")
        self.gone: dict[tuple[str, str], int] = {}  # hidden instances, by object and flavor
        self.spent: dict[Scope, tuple[float, float]] = {}

    # ---- the broker

    def now(self) -> datetime:
        return self.ec2.now

    @initialize(
        dollars=st.sampled_from([400.0, 1000.0]),
        instances=st.sampled_from([0, 4]),
        platforms=st.sampled_from(["Linux/UNIX", "Linux/UNIX,Windows,SUSE Linux"]),
    )
    def begin(self, dollars: float, instances: int, platforms: str) -> None:
        self.settings = replace(
            self.settings, buy_dollars=dollars, buy_instances=instances, buy_platforms=platforms
        )
        self.restart()

    @rule()
    def restart(self) -> None:
        self.published = NO_ODCRS
        self.assumed = AssumptionStore(cast("Any", self))
        self.provisioner = OdcrProvisioner(
            dependencies(
                self.client,
                cast("Any", self),
                recorder=SimpleNamespace(event=lambda *_, **__: None),
                reads=Reads(self.client, self.publish, self.ec2, self.snapshot),
                inventory=self,
                settings=self.settings,
            ),
            cast("Any", self.ec2),
            lambda: None,
        )

    def publish(self, odcrs: OdcrSnapshot) -> None:
        self.published = odcrs

    def snapshot(self) -> Inventory:
        return Inventory(
            odcrs={reservation.id: reservation for reservation in self.ec2.reservations()},
            described=self.ec2.now,
        )

    @rule(times=st.integers(1, 3), kill=st.booleans())
    def work(self, times: int, kill: bool) -> None:
        for _ in range(times):
            try:
                self.provisioner.run()
            except (ProviderError, ApiError):
                continue
            for reservation in map(CapacityReservation.decode, self.client.list(CapacityReservation.KIND)[0]):
                if self.published.is_deletable(
                    ReservationKey(reservation.namespace, reservation.name), uid=reservation.uid
                ):
                    self.release(reservation.namespace, reservation.name)
        if kill:
            self.restart()

    @rule(call=st.sampled_from(["get", "apply"]))
    def work_without_the_api_server(self, call: str) -> None:
        """The API server fails in the middle of a pass, and the process dies."""
        whole, left = getattr(self.client, call), [1]

        def away(kind: Kind, *given: Any, **more: Any) -> Any:
            if left[0]:
                left[0] -= 1
                return whole(kind, *given, **more)
            raise Unavailable(0, "Away", "the API server is away")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self.client, call, away)
            self.work(1, kill=True)

    # ---- users

    @rule(
        namespace=st.sampled_from(NAMESPACES),
        name=st.sampled_from(NAMES),
        flavor=st.sampled_from([BIG, BIG, SMALL]),
        instances=st.sampled_from([12, 3, 1, 0]),
        faults=FAULTS,
        kill=st.booleans(),
        annotations=st.sampled_from(ANNOTATIONS),
    )
    def reserve(
        self,
        name: str,
        namespace: str = NAMESPACES[0],
        *,
        flavor: str = BIG,
        instances: int = 12,
        annotations: Mapping[str, str] = MANAGE,
        faults: Sequence[str] = (),
        kill: bool = False,
    ) -> None:
        """The broker reconciles the object at once, while calls fail."""
        gpus = instances * TYPES[flavor].gpus[0].count
        quota = {"name": flavor, "resources": [{"name": GPU, "nominalQuota": str(gpus)}]}
        spec = {"resourceGroups": [{"coveredResources": [GPU], "flavors": [quota]}]}
        metadata = {
            "name": name,
            "namespace": namespace,
            "annotations": dict(annotations),
            "finalizers": [names.RESERVED_FINALIZER],
        }
        self.user.apply(CapacityReservation.KIND, {"metadata": metadata, "spec": spec})
        self.ec2.faults = [*faults]
        self.work(1, kill=kill)
        self.ec2.faults = []
        self.nothing_is_spent_beyond_a_cap()

    @rule(
        name=st.sampled_from(NAMES),
        namespace=st.sampled_from(NAMESPACES),
        fate=st.deferred(lambda: st.sampled_from([*FATES])),
        annotations=st.sampled_from([MANAGE, MANAGE, *ANNOTATIONS]),
        kill=st.booleans(),
    )
    def lose_a_reply(
        self, name: str, namespace: str, fate: str, annotations: Mapping[str, str], kill: bool
    ) -> None:
        """The purchase is made and its reply is lost, then the object changes, and all others request the
        maximum."""
        self.reserve(name, namespace, annotations=annotations, faults=["answer lost"], kill=kill)
        FATES[fate](self, name, namespace)
        self.reserve_all(namespace)

    @rule(namespace=st.sampled_from(NAMESPACES))
    def reserve_all(self, namespace: str) -> None:
        for name in NAMES[1:]:
            self.reserve(name, namespace)

    @rule(namespace=st.sampled_from(NAMESPACES), name=st.sampled_from(NAMES), traceless=st.booleans())
    def delete(self, namespace: str, name: str, traceless: bool = True) -> None:
        """Without a trace, since a user who may delete it may remove its finalizer; or in the regular way."""
        try:
            self.client.delete(CapacityReservation.KIND, name, namespace=namespace)
        except NotFound:
            return
        if traceless:
            self.release(namespace, name)
        self.work(1, kill=False)

    def release(self, namespace: str, name: str) -> None:
        free = {"metadata": {"finalizers": None}}
        self.client.patch(CapacityReservation.KIND, name, free, namespace=namespace)

    @rule(fraction=st.sampled_from([0.25, 1.0, 2.0]))
    def operator_sets_another_cap(self, fraction: float) -> None:
        self.settings = replace(self.settings, buy_dollars=self.settings.buy_dollars * fraction)
        self.restart()

    # ---- EC2

    @rule(minutes=st.sampled_from([10, 1, 0]))
    def shows_late(self, minutes: int) -> None:
        self.ec2.lag = timedelta(minutes=minutes)

    @rule(hidden=st.booleans())
    def hides(self, hidden: bool) -> None:
        """Hides all that the broker has seen. A purchase that EC2 does not show within an hour counts as
        never made."""
        self.work(1, kill=False)
        shown = [reservation for reservation in self.ec2.reservations() if reservation.id != FOREIGN.id]
        self.ec2.hidden = {reservation.id for reservation in shown} if hidden else set()
        purchases = [_of(reservation) for reservation in shown if not reservation.over] if hidden else []
        self.gone = {key: self.bought(key) for key in purchases}

    def bought(self, key: tuple[str, str]) -> int:
        """The billed instances of an object and flavor."""
        alive = [odcr for odcr in self.ec2.odcrs.values() if not odcr.over]
        return sum(odcr.total for odcr in alive if odcr.id != FOREIGN.id and _of(odcr) == key)

    @rule(number=st.integers(0, 5))
    def cancelled_by_hand(self, number: int) -> None:
        alive = [
            reservation
            for reservation in self.ec2.odcrs.values()
            if reservation.state == "active" and reservation != FOREIGN
        ]
        if alive:
            odcr = alive[number % len(alive)]
            self.ec2.odcrs[odcr.id] = replace(odcr, state="cancelled", available=0)

    @rule(minutes=st.sampled_from([0.1, 1, 4, 6, 31]))
    def time_passes(self, minutes: float) -> None:
        self.ec2.now += timedelta(minutes=minutes)

    # ---- the rule

    @invariant()
    def undescribed_reservations_are_not_replaced(self) -> None:
        for key, had in self.gone.items():
            assert self.bought(key) <= had, key

    @invariant()
    def foreign_reservations_stay_unowned(self) -> None:
        assert self.ec2.odcrs[FOREIGN.id] == FOREIGN
        assert FOREIGN.id not in self.published.owned.owner

    @invariant()
    def nothing_is_spent_beyond_a_cap(self) -> None:
        caps = self.settings.caps
        spent: dict[Scope, tuple[float, float]] = {}
        for odcr in self.ec2.odcrs.values():
            if odcr.over or odcr.id == FOREIGN.id:
                continue
            price = PRICES.get((odcr.instance_type, odcr.platform))
            assert price is not None, f"{odcr.id} was bought at an unknown price"
            assert odcr.platform in self.settings.buy_platforms and odcr.tenancy == "default"
            namespace, _, name = odcr.tags[names.TAG_RESERVATION].rpartition("/")
            scopes: tuple[Scope, ...] = ((), (namespace,), (namespace, name))
            for scope in scopes:
                dollars, instances = spent.get(scope, (0.0, 0.0))
                spent[scope] = (dollars + odcr.total * price, instances + odcr.total)
        limits = {
            0: (caps.dollars, caps.instances),
            1: (caps.dollars_namespace, caps.instances_namespace),
            2: (caps.dollars_each, caps.instances_each),
        }
        before, self.spent = self.spent, spent
        for scope, (dollars, instances) in spent.items():
            had, had_instances = before.get(scope, (0.0, 0.0))
            most, most_instances = limits[len(scope)]
            assert dollars <= max(most, had) + 1e-6, (scope, dollars, most)
            assert instances <= max(most_instances, had_instances), (scope, instances, most_instances)


def _of(odcr: Odcr) -> tuple[str, str]:
    """The object and the flavor of a purchase."""
    return odcr.tags[names.TAG_RESERVATION], odcr.tags[names.TAG_FLAVOR]


def _cancel(world: Purchases, name: str, namespace: str) -> None:
    world.reserve(name, namespace, annotations=ANNOTATIONS[1])
    world.delete(namespace, name, traceless=False)


# The possible fates of an object after the reply to its purchase was lost.
FATES: Mapping[str, Callable[[Purchases, str, str], None]] = {
    "stays": lambda _world, _name, _namespace: None,
    "broker restarts": lambda world, _name, _namespace: world.restart(),
    "deleted without a trace": lambda world, name, namespace: world.delete(namespace, name),
    "deleted, kept": lambda world, name, namespace: world.delete(namespace, name, traceless=False),
    "deleted, given back": lambda world, name, namespace: _cancel(world, name, namespace),
    "demands none": lambda world, name, namespace: world.reserve(name, namespace, instances=0),
    "demands another type": lambda world, name, namespace: world.reserve(name, namespace, flavor=SMALL),
    "observes": lambda world, name, namespace: world.reserve(name, namespace, annotations=ANNOTATIONS[-1]),
    "demands open criteria": lambda world, name, namespace: world.reserve(
        name, namespace, annotations=ANNOTATIONS[2]
    ),
}


def begun(**more: Any) -> Purchases:
    """100 dollars an hour for each object, 200 for a namespace, 400 in all."""
    world = Purchases()
    world.begin(**{"dollars": 400.0, "instances": 0, "platforms": "Linux/UNIX"} | more)
    return world


def billed(world: Purchases, *scope: str) -> float:
    world.nothing_is_spent_beyond_a_cap()
    return world.spent.get(scope, (0.0, 0.0))[0]


@pytest.mark.covers("SAF-23")
@pytest.mark.parametrize("kill", [False, True], ids=["", "killed"])
@pytest.mark.parametrize("fate", FATES)
def test_a_purchase_with_a_lost_reply_counts_for_any_fate_of_its_object(fate: str, kill: bool) -> None:
    world = begun()
    world.reserve("a", faults=["answer lost"], kill=kill)
    assert billed(world) == 100.0
    FATES[fate](world, "a", NAMESPACES[0])
    if kill:
        world.restart()
    world.reserve_all(NAMESPACES[0])
    spent = billed(world, NAMESPACES[0])
    assert 100.0 <= spent <= 200.0  # the rest is bought; a new process also counts unseen returns
    world.reserve_all(NAMESPACES[1])
    assert billed(world, NAMESPACES[1]) == 200.0
    world.time_passes(31)
    world.work(2, kill=False)
    assert billed(world) <= 400.0


@pytest.mark.covers("SAF-55")
def test_namespace_spends_its_own_cap_and_leaves_the_rest_to_others() -> None:
    world = begun()
    for namespace in NAMESPACES:
        world.reserve_all(namespace)
        assert billed(world, namespace) == 200.0


@pytest.mark.covers("SAF-08")
@pytest.mark.parametrize("platform", ["SUSE Linux", "Windows with SQL Server"])
def test_a_platform_without_a_price_is_not_bought_under_a_cap_in_dollars(platform: str) -> None:
    world = begun(platforms=f"Linux/UNIX,{platform}")
    world.reserve("a", annotations=MANAGE | {names.PLATFORM: platform})
    assert billed(world) == 0.0


@pytest.mark.covers("SAF-07")
@pytest.mark.parametrize("kill", [False, True], ids=["", "killed"])
def test_vanished_reservations_are_not_replaced(kill: bool) -> None:
    world = begun(dollars=1600.0)  # the cap leaves room for another
    world.reserve("a", instances=1)
    world.shows_late(0)
    world.hides(hidden=True)
    assert world.gone == {(f"{NAMESPACES[0]}/a", BIG): 1}
    world.time_passes(31)
    acts: Sequence[Callable[[], None]] = (
        lambda: world.work(1, kill=kill),
        lambda: world.delete(NAMESPACES[0], "a"),
        lambda: world.reserve("a", instances=3),
    )
    for act in acts:
        act()
        world.time_passes(31)
        world.work(2, kill=kill)
        assert billed(world) == 100.0
    world.hides(hidden=False)
    world.work(1, kill=False)
    assert billed(world) == 300.0  # the existing instances are known again


@pytest.mark.covers("SAF-53")
@pytest.mark.parametrize("mark", FORGED)
def test_forged_mark_changes_nothing(mark: str) -> None:
    world = begun()
    world.reserve("a", annotations=MANAGE | {mark: FORGED[mark]})
    world.work(2, kill=True)
    assert billed(world) == 100.0
    world.reserve("b")
    assert billed(world) == 200.0
    world.reserve("c", annotations=MANAGE | {names.ADOPT_IDS: FOREIGN.id})
    world.foreign_reservations_stay_unowned()


@pytest.mark.covers("SAF-55")
def test_no_sequence_spends_more_than_the_caps() -> None:
    run_state_machine_as_test(
        Purchases,
        settings=settings(
            max_examples=times(7),
            stateful_step_count=15,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
