"""Writes and their users, from kube-apiserver's own audit log.

Invariant: every answered write is in the log before the client has the answer (the log
backend blocks by default). https://kubernetes.io/docs/tasks/debug/debug-cluster/audit/
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# Writes only, without their bodies; Leases are renewed all the time and are left out.
POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "ResponseStarted"],
    "rules": [
        {"level": "None", "resources": [{"group": "coordination.k8s.io"}]},
        {"level": "Metadata", "verbs": ["create", "update", "patch", "delete", "deletecollection"]},
    ],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    user: str
    verb: str
    resource: str  # with its subresource: nodeclaims/status
    name: str  # empty for generated names, and for collections
    code: int

    def on(self, *resources: str) -> bool:
        return self.resource.partition("/")[0] in resources


def flags(folder: Path) -> tuple[str, ...]:
    policy = folder / "audit-policy.json"
    policy.write_text(json.dumps(POLICY))
    return (f"--audit-policy-file={policy}", f"--audit-log-path={folder / 'audit.log'}")


def writes(folder: Path) -> list[Write]:
    """Every write so far, in the order of the answers."""
    return list(_read(folder / "audit.log"))


def _read(log: Path) -> Iterator[Write]:
    if not log.exists():
        return
    for line in log.read_text().splitlines(keepends=True):
        if not line.endswith("\n"):
            return  # the last one is being written
        entry = json.loads(line)
        target = entry.get("objectRef", {})
        yield Write(
            user=entry["user"]["username"],
            verb=entry["verb"],
            resource="/".join(filter(None, (target.get("resource"), target.get("subresource")))),
            name=target.get("name", ""),
            code=entry.get("responseStatus", {}).get("code", 0),
        )
