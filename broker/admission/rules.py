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

from broker.admission.review import Json, ReviewRequest, ReviewResult
from broker.apis import names
from broker.apis.core import ResourceQuota
from broker.apis.meta import Object
from broker.apis.nos import CompositeElasticQuota, ElasticQuota
from broker.apis.ome import SIZE_RULE, CapacityReservation, ClusterCapacityReservation
from broker.apis.ome_clusters import DedicatedAICluster, DedicatedAIClusterProfile
from broker.apis.ome_quotas import bounds, growth
from broker.apis.ome_rules import JudgedSpec, judge
from broker.apis.reservation_spec import malformed_ids
from broker.apis.spelling import misspelt
from broker.apis.units import units, written
from broker.controllers.elasticquota.reading import Quota, declarations
from broker.quota.elastic_resolve import ElasticDeclaration, problem_of
from broker.reservations.reading import malformed_id

Reservation = CapacityReservation | ClusterCapacityReservation
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

    def __call__(self, asked: ReviewRequest) -> ReviewResult:
        rule = KINDS.get(asked.kind)
        if rule is None or asked.new is None:
            return ReviewResult()
        if (asked.new.get("metadata") or {}).get("deletionTimestamp"):
            return ReviewResult()  # being deleted: only its finalizers change
        try:
            verdict = rule(self, asked)
            return replace(verdict, warnings=(*verdict.warnings, *_unknown(asked)))
        except ValidationError as error:
            # The schema took it, so it is newer than this broker.
            return ReviewResult(warnings=tuple(f"not judged: {each}" for each in _unread(error)))

    def reservation(self, asked: ReviewRequest) -> ReviewResult:
        new, old = _both(ClusterCapacityReservation, asked)
        return self._judged(new, old)

    def namespaced(self, asked: ReviewRequest) -> ReviewResult:
        new, old = _both(CapacityReservation, asked)
        verdict = self._judged(new, old)
        try:
            return replace(verdict, no_room=self._no_room(new, old))
        except Unknown as error:
            why = f"not judged by ResourceQuotas, which could not be read: {error}"
            return replace(verdict, warnings=(*verdict.warnings, why))

    def cluster(self, asked: ReviewRequest) -> ReviewResult:
        new, old = _both(DedicatedAICluster, asked)
        before = {*_sizes(old)} if old else set()
        problems = [why for why in _sizes(new) if why not in before]
        warnings: tuple[str, ...] = ()
        wanted = new.spec.profile
        if wanted and (old is None or old.spec.profile != wanted):
            try:
                profile = self.reads.profile(wanted)
            except Unknown as error:
                warnings = (f"spec.profile {wanted} was not looked for: {error}",)
            else:
                if profile is None:
                    warnings = (f"spec.profile: there is no DedicatedAIClusterProfile {wanted} yet",)
                elif profile.spec.disabled:
                    problems.append(
                        f"spec.profile: DedicatedAIClusterProfile {wanted} is disabled for new clusters; "
                        "name another, or set its spec.disabled to false"
                    )
        return ReviewResult(problems=tuple(problems), warnings=warnings)

    def elastic(self, asked: ReviewRequest) -> ReviewResult:
        """One quota a namespace, and no max below its min."""
        composite = asked.kind == CompositeElasticQuota.KIND.kind
        model: type[Quota] = CompositeElasticQuota if composite else ElasticQuota
        new, old = _both(model, asked)
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
        found = self._judge(new)
        before = (*self._judge(old).problems, *_malformed(old)) if old is not None else ()
        same = old is not None and old.spec == new.spec
        problems = (*found.problems, *_malformed(new))
        return ReviewResult(
            problems=tuple(why for why in problems if why not in before),
            warnings=() if same else (*found.notes, *(_shrunk(new, old) if old is not None else ())),
        )

    def _judge(self, one: Reservation) -> JudgedSpec:
        return judge(one.spec, default_cohort=self.default_cohort, strict=self.strict)

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


def _unknown(asked: ReviewRequest) -> Iterator[str]:
    """Annotations of ours that mean nothing there, and were not there before."""
    before = _annotations(asked.old).keys()
    for each in misspelt(asked.kind, _annotations(asked.new)):
        if each.key not in before:
            yield f"metadata.annotations: {each.message}"


def _annotations(raw: Json | None) -> Mapping[str, str]:
    return ((raw or {}).get("metadata") or {}).get("annotations") or {}


def _both(model: type[O], asked: ReviewRequest) -> tuple[O, O | None]:
    """The new object and the old one, which may be none. Raises ValidationError of the new one."""
    assert asked.new is not None
    meta = {"namespace": asked.namespace} if model.KIND.namespaced else {}
    new = model.decode({**asked.new, "metadata": {**asked.new.get("metadata", {}), **meta}})
    return new, None if asked.old is None else _old(model, asked.old)


def _old(model: type[O], raw: Json) -> O | None:
    """Of one that cannot be read nothing held."""
    try:
        return model.decode(raw)
    except ValidationError:
        return None


def _malformed(one: Reservation) -> tuple[str, ...]:
    """Problems of the ids in its annotation."""
    ids = malformed_ids(one.annotations.get(names.ADOPT_IDS, ""))
    return tuple(f"metadata.annotations: {malformed_id(each)}" for each in ids)


def _shrunk(new: Reservation, old: Reservation) -> Iterator[str]:
    """Quota that falls below present use."""
    had, has = _nominal(old), _nominal(new)
    used: dict[tuple[str, str], int] = {}
    for user in new.status.association_usages:
        for flavor in user.usage:
            for each in flavor.resources:
                at = (flavor.name, each.name)
                used[at] = used.get(at, 0) + _units(each.name, each.total) - _units(each.name, each.borrowed)
    for (flavor_name, name), amount in sorted(used.items()):
        left = has.get((flavor_name, name), 0)
        if left < min(amount, had.get((flavor_name, name), 0)):
            yield (
                f"spec.resourceGroups: {name} of flavor {flavor_name} falls to {written(name, left)} while "
                f"{written(name, amount)} is in use: nothing is evicted for it, and nothing new starts"
            )


def _nominal(one: Reservation) -> Mapping[tuple[str, str], int]:
    return {
        (flavor.name, each.name): _units(each.name, each.nominal_quota)
        for group in one.spec.resource_groups
        for flavor in group.flavors
        for each in flavor.resources
    }


def _sizes(cluster: DedicatedAICluster) -> Iterator[str]:
    spec = cluster.spec
    asked: dict[str, tuple[str, str]] = {}
    if spec.resources is not None:  # a limit without a request is a request
        asked = {name: ("limits", text) for name, text in spec.resources.limits.items()}
        asked |= {name: ("requests", text) for name, text in spec.resources.requests.items()}
    if not asked and spec.count is None and not spec.profile:
        yield f"spec: {SIZE_RULE.message}"
    for name, (field, text) in sorted(asked.items()):
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
    for each in error.errors(include_url=False, include_context=False):
        yield f"{'.'.join(map(str, each['loc']))}: {each['msg']}, got {each['input']!r:.60}"
