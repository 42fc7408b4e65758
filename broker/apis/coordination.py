"""coordination.k8s.io: the Lease, which elects the leader among several brokers.

https://kubernetes.io/docs/reference/kubernetes-api/cluster-resources/lease-v1/
"""

from __future__ import annotations

from typing import ClassVar

from broker.apis.meta import Kind, MicroTime, Model, Object


class LeaseSpec(Model):
    holder_identity: str = ""
    lease_duration_seconds: int = 0
    acquire_time: MicroTime | None = None
    renew_time: MicroTime | None = None
    lease_transitions: int = 0


class Lease(Object):
    KIND: ClassVar[Kind] = Kind(group="coordination.k8s.io", version="v1", kind="Lease", namespaced=True)

    spec: LeaseSpec = LeaseSpec()
