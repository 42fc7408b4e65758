"""Admission rules that a schema cannot express, of a reservation, a dedicated cluster, a namespace.

Invariant: the same rules as the controllers' own, which check again, so that nothing depends on the
webhook. An update is rejected only for problems that it adds: unchanged parts are always admitted, and so
are smaller ones, even below present use. Deletes are never rejected.

Two creates at one time do not see each other: each reads the namespace before the other exists. The
controller's decision (`over_quota`) counts, and marks the younger of the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from pydantic import ValidationError

from broker.admission.review import ReviewRequest, ReviewResult
from broker.apis import names
from broker.apis.core import ResourceQuota
from broker.apis.meta import Json, Object
from broker.apis.nos import CompositeElasticQuota, ElasticQuota
from broker.apis.ome import SIZE_RULE, CapacityReservation, ClusterCapacityReservation
from broker.apis.ome_clusters import DedicatedAICluster, DedicatedAIClusterProfile
from broker.apis.ome_quotas import bounds, growth
from broker.apis.ome_rules import JudgedSpec
from broker.apis.reservation_spec import malformed_ids
from broker.apis.spelling import misspelt
from broker.apis.units import units, written
from broker.controllers.elasticquota.reading import Quota, declarations
from broker.quota.elastic_resolve import ElasticDeclaration, problem_of
from broker.reservations.drawing import allowed_namespaces
from broker.reservations.reading import malformed_id
from broker.reservations.spec import Reservation, judged_spec

O = TypeVar("O", bound=Object)  # noqa: E741


class Unknown(Exception):
    """A rule's input could not be read; the text has the reason."""


class Reads(Protocol):
    """The present objects of the API server. Each method raises Unknown."""

    def quotas(self, namespace: str) -> Sequence[ResourceQuota]: ...
    def reservations(self, namespace: str) -> Sequence[CapacityReservation]: ...
    def profile(self, name: str) -> DedicatedAIClusterProfile | None: ...
    def elastic_quotas(self) -> Sequence[Quota]: ...


@dataclass(frozen=True, kw_only=True)
class Rules:
    """Checks a request of the API server. `strict` rejects specs that need a correction."""

    reads: Reads
    default_cohort: str = ""
    strict: bool = False

    def __call__(self, request: ReviewRequest) -> ReviewResult:
        rule = KINDS.get(request.kind)
        if rule is None or request.new is None:
            return ReviewResult()
        if request.new.get("metadata", {}).get("deletionTimestamp"):
            return ReviewResult()  # being deleted: only its finalizers change
        try:
            result = rule(self, request)
            return replace(result, warnings=(*result.warnings, *_unknown(request)))
        except ValidationError as error:
            # The schema took it, so it is newer than this broker.
            return ReviewResult(warnings=tuple(f"not judged: {problem}" for problem in _unread(error)))

    def reservation(self, request: ReviewRequest) -> ReviewResult:
        new, old = _both(ClusterCapacityReservation, request)
        return self._judged(new, old)

    def namespaced(self, request: ReviewRequest) -> ReviewResult:
        new, old = _both(CapacityReservation, request)
        result = self._judged(new, old)
        try:
            return replace(result, no_room=self._no_room(new, old))
        except Unknown as error:
            why = f"not judged by ResourceQuotas, which could not be read: {error}"
            return replace(result, warnings=(*result.warnings, why))

    def cluster(self, request: ReviewRequest) -> ReviewResult:
        new, old = _both(DedicatedAICluster, request)
        before = {*_sizes(old)} if old else set()
        problems = [why for why in _sizes(new) if why not in before]
        warnings: tuple[str, ...] = ()
        profile_name = new.spec.profile
        if profile_name and (old is None or old.spec.profile != profile_name):
            try:
                profile = self.reads.profile(profile_name)
            except Unknown as error:
                warnings = (f"spec.profile {profile_name} could not be read: {error}",)
            else:
                if profile is None:
                    warnings = (f"spec.profile: there is no DedicatedAIClusterProfile {profile_name} yet",)
                elif profile.spec.disabled:
                    problems.append(
                        f"spec.profile: DedicatedAIClusterProfile {profile_name} is disabled for new "
                        "clusters; name another, or set its spec.disabled to false"
                    )
        return ReviewResult(problems=tuple(problems), warnings=warnings)

    def elastic(self, request: ReviewRequest) -> ReviewResult:
        """One quota a namespace, and no max below its min."""
        composite = request.kind == CompositeElasticQuota.KIND.kind
        model: type[Quota] = CompositeElasticQuota if composite else ElasticQuota
        new, old = _both(model, request)
        (declared,) = declarations([new])
        before = declarations([old] if old is not None else [])
        warnings: tuple[str, ...] = ()
        taken: dict[str, ElasticDeclaration] = {}
        try:
            others = declarations(self.reads.elastic_quotas())
            taken = {
                space: other for other in others if other.id != declared.id for space in other.namespaces
            }
        except Unknown as error:
            warnings = (f"not compared with other elastic quotas, which could not be read: {error}",)
        problem = problem_of(declared, taken)
        if problem is None or problem in [problem_of(item, taken) for item in before]:
            return ReviewResult(warnings=warnings)
        field = "" if problem.message.startswith("spec") else "spec: "
        return ReviewResult(problems=(f"{field}{problem.message}",), warnings=warnings)

    def _judged(self, new: Reservation, old: Reservation | None) -> ReviewResult:
        judged = self._judge(new)
        before = (*self._judge(old).problems, *_malformed(old)) if old is not None else ()
        same = old is not None and old.spec == new.spec
        problems = (*judged.problems, *_malformed(new))
        shrunk = _shrunk(new, old) if old is not None else ()
        return ReviewResult(
            problems=tuple(why for why in problems if why not in before),
            warnings=() if same else (*judged.notes, *shrunk),
        )

    def _judge(self, reservation: Reservation) -> JudgedSpec:
        return judged_spec(reservation.spec, default_cohort=self.default_cohort, strict=self.strict)

    def _no_room(self, new: CapacityReservation, old: CapacityReservation | None) -> tuple[str, ...]:
        if old is not None and old.spec == new.spec:
            return ()
        limits = bounds(new.namespace, self.reads.quotas(new.namespace))
        return growth(old, new, self.reads.reservations(new.namespace), limits) if limits else ()


KINDS: Mapping[str, Callable[[Rules, ReviewRequest], ReviewResult]] = {
    "CapacityReservation": Rules.namespaced,
    "ClusterCapacityReservation": Rules.reservation,
    "DedicatedAICluster": Rules.cluster,
    "ElasticQuota": Rules.elastic,
    "CompositeElasticQuota": Rules.elastic,
}


def _unknown(request: ReviewRequest) -> Iterator[str]:
    """New annotations of the broker's that have no effect on an object of this kind."""
    before = _annotations(request.old).keys()
    for annotation in misspelt(request.kind, _annotations(request.new)):
        if annotation.key not in before:
            yield f"metadata.annotations: {annotation.message}"


def _annotations(raw: Json | None) -> Mapping[str, str]:
    return ((raw or {}).get("metadata") or {}).get("annotations") or {}


def _both(model: type[O], request: ReviewRequest) -> tuple[O, O | None]:
    """The new object and the old one, which may be none. Raises ValidationError of the new one."""
    assert request.new is not None
    meta = {"namespace": request.namespace} if model.KIND.namespaced else {}
    new = model.decode({**request.new, "metadata": {**request.new.get("metadata", {}), **meta}})
    return new, None if request.old is None else _old(model, request.old)


def _old(model: type[O], raw: Json) -> O | None:
    """Nothing of one that cannot be read is held."""
    try:
        return model.decode(raw)
    except ValidationError:
        return None


def _malformed(reservation: Reservation) -> tuple[str, ...]:
    """Problems of annotations that are lists."""
    problems = [
        malformed_id(key, id_)
        for key in (names.ADOPT_IDS, names.RESTORE_MOVED)
        for id_ in malformed_ids(reservation.annotations.get(key, ""))
    ]
    if problem := allowed_namespaces(reservation)[1]:
        problems.append(problem)
    return tuple(f"metadata.annotations: {problem}" for problem in problems)


def _shrunk(new: Reservation, old: Reservation) -> Iterator[str]:
    """Quota that falls below present use."""
    had, has = _nominal(old), _nominal(new)
    used: dict[tuple[str, str], int] = {}
    for user in new.status.association_usages:
        for flavor in user.usage:
            for quota in flavor.resources:
                at = (flavor.name, quota.name)
                own = _units(quota.name, quota.total) - _units(quota.name, quota.borrowed)
                used[at] = used.get(at, 0) + own
    for (flavor_name, name), amount in sorted(used.items()):
        left = has.get((flavor_name, name), 0)
        if left < min(amount, had.get((flavor_name, name), 0)):
            yield (
                f"spec.resourceGroups: {name} of flavor {flavor_name} falls to {written(name, left)} while "
                f"{written(name, amount)} is in use: nothing is evicted for it, and nothing new starts"
            )


def _nominal(reservation: Reservation) -> Mapping[tuple[str, str], int]:
    return {
        (flavor.name, quota.name): _units(quota.name, quota.nominal_quota)
        for group in reservation.spec.resource_groups
        for flavor in group.flavors
        for quota in flavor.resources
    }


def _sizes(cluster: DedicatedAICluster) -> Iterator[str]:
    spec = cluster.spec
    amounts: dict[str, tuple[str, str]] = {}
    if spec.resources is not None:  # a limit without a request is a request
        amounts = {name: ("limits", text) for name, text in spec.resources.limits.items()}
        amounts |= {name: ("requests", text) for name, text in spec.resources.requests.items()}
    if not amounts and spec.count is None and not spec.profile:
        yield f"spec: {SIZE_RULE.message}"
    for name, (field, text) in sorted(amounts.items()):
        try:
            amount = units(name, text)
        except ValueError as error:
            yield f"spec.resources.{field}: {name}: {error}"
            continue
        if amount < 0:
            yield f"spec.resources.{field}: {name} {text} is negative; leave it out for none"


def _units(name: str, text: str | None) -> int:
    try:
        return units(name, text or "0")
    except ValueError:
        return 0


def _unread(error: ValidationError) -> Iterator[str]:
    for entry in error.errors(include_url=False, include_context=False):
        yield f"{'.'.join(map(str, entry['loc']))}: {entry['msg']}, got {entry['input']!r:.60}"
