"""The volumes that the pods of manifests would have.

A StatefulSet makes a claim for each of its pods, unless there is one already, and so a pod stays in the zone
of its volume. A new claim is bound at once, or once its pod has a node, as its class says. The zone of a
volume that does not exist yet is not known, and keeps no pod from a node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from broker.apis.core import ClaimVolume, Pod, Volume
from broker.apis.storage import PersistentVolumeClaim
from broker.placement.storage import Storage, StoredClaim, StoredVolume

Json = Mapping[str, Any]


def with_own_claims(pod: Pod, stateful_set: Json) -> Pod:
    """The pod with a volume for each template of its StatefulSet's spec."""
    own = tuple(
        Volume(name=name, persistent_volume_claim=ClaimVolume(claim_name=f"{name}-{pod.name}"))
        for name in map(_name, _templates(stateful_set))
    )
    others = (volume for volume in pod.spec.volumes if volume.name not in {item.name for item in own})
    return pod.model_copy(update={"spec": pod.spec.model_copy(update={"volumes": (*others, *own)})})


def planned_storage(storage: Storage, documents: Iterable[Json], pods: Sequence[Pod]) -> Storage:
    """The storage once the claims of the documents, and those of their `pods`, exist and are bound."""
    claims, volumes = dict(storage.claims), dict(storage.volumes)
    for claim in _claims(documents, pods):
        key = (claim.namespace, claim.name)
        present = claims.get(key, claim)
        item = storage.classes.get(present.storage_class)
        if present.bound or present.volume in volumes:
            claims[key] = replace(present, bound=True)
        elif present.volume or (item is None and present.storage_class and storage.classes):
            claims[key] = present  # nothing binds it
        elif item is not None and item.waits:
            claims[key] = present
        else:
            volume = f"planned-{claim.namespace}-{claim.name}"
            claims[key] = replace(present, bound=True, volume=volume)
            volumes[volume] = StoredVolume(name=volume)
    return replace(storage, claims=claims, volumes=volumes)


def _claims(documents: Iterable[Json], pods: Sequence[Pod]) -> Iterator[StoredClaim]:
    names = {(pod.namespace, pod.name) for pod in pods}
    for document in documents:
        meta = document.get("metadata") or {}
        namespace = str(meta.get("namespace") or "default")
        if document["kind"] == PersistentVolumeClaim.KIND.kind:
            yield _claim(document, namespace, str(meta.get("name") or ""))
        elif document["kind"] == "StatefulSet":
            for template in _templates(document.get("spec") or {}):
                owners = (name for where, name in names if where == namespace)
                prefix = f"{meta.get('name')}-"
                own = (name for name in owners if name.removeprefix(prefix).isdecimal())
                yield from (_claim(template, namespace, f"{_name(template)}-{name}") for name in own)


def _claim(document: Json, namespace: str, name: str) -> StoredClaim:
    spec = document.get("spec") or {}
    named = str(spec.get("storageClassName") or "")
    return StoredClaim(
        namespace=namespace, name=name, volume=str(spec.get("volumeName") or ""), storage_class=named
    )


def _templates(stateful_set: Json) -> Sequence[Json]:
    return stateful_set.get("volumeClaimTemplates") or ()


def _name(template: Json) -> str:
    return str(template["metadata"]["name"])
