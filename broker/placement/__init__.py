"""Decides which nodes a pod fits on: an immutable snapshot, and kube-scheduler's default filters over it.

A rule is found by its name: `taints`, `affinity`, `ports`, `resources`, `volumes`, `binding`, `spread`,
`interpod`. `filters` runs them in kube-scheduler's order, and `message` writes its text. Source of all rules:
Kubernetes 1.36, pkg/scheduler/framework/plugins.

`holds` are room that is kept for pods to come. `holds_match` finds the holds of a pod, `holds_fit` has the
arithmetic, and `holds_ledger` all holds with their owners.

Left out, each with its reason:

- Dynamic resource allocation: a pod that asks for devices by it gets no machine.
- Pod groups and features that nodes declare: no broker decision uses them.
- Volumes that are attached to a node though none of its pods uses them: they are detached soon.
- Resizes in place: a bound pod counts with the requests of its spec.
- Unbound claims on volumes that were made by hand, storage capacity, and in-tree volumes that moved to CSI:
  nodes that come from a claim have none of them.
"""
