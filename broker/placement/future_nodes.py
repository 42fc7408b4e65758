"""Whether a node that does not exist yet could have a pod: by the labels and taints of its pool or claim."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from typing import Final

from broker.apis.karpenter import NodeClaimTemplateSpec
from broker.apis.label_names import stable
from broker.capacity.requirements import InvalidRequirement, Requirements
from broker.capacity.types import WELL_KNOWN
from broker.placement.model import NodeTaint, PodInfo
from broker.placement.reading import node_taints, requirements_of
from broker.placement.selectors import DOES_NOT_EXIST, NOT_IN, Selector, SelectorRequirement, required
from broker.placement.taints import shown_taints, tolerates_all, untolerated

_WITHOUT: Final = (NOT_IN, DOES_NOT_EXIST)


@dataclass(frozen=True, slots=True, kw_only=True)
class FutureNode:
    requirements: Requirements
    taints: tuple[NodeTaint, ...]

    def accepts(self, pod: PodInfo) -> bool:
        """Whether the node could satisfy the pod's taints, selector and required affinity."""
        return any(True for _ in self.selections(pod))

    def selections(self, pod: PodInfo) -> Iterator[Requirements]:
        """The requirements of a node that satisfies the pod, one for each of its terms that can hold."""
        if pod.named_nodes is not None or not tolerates_all(pod.tolerations, self.taints):
            return
        for selector in pod.alternatives:
            required = self._with(selector)
            if required is not None:
                yield required

    def selected_by(self, pods: Iterable[PodInfo]) -> Requirements:
        """The node's requirements and what the pods select; of several terms of a pod, what any allows.

        A pod that the node cannot satisfy counts for nothing.
        """
        node = self
        for pod in pods:
            if (pod.node_selector or pod.node_terms) and (selections := [*node.selections(pod)]):
                node = replace(node, requirements=reduce(or_, selections))
        return node.requirements

    def rejection(self, pod: PodInfo) -> str:
        """Why the node cannot satisfy the pod, by its first term; empty if it can."""
        if self.accepts(pod):
            return ""
        if pod.named_nodes is not None:
            return "the pod names a node that exists"
        if taints := [*untolerated(pod.tolerations, self.taints)]:
            return f"the pod does not tolerate {shown_taints(taints)}"
        if not pod.alternatives:
            return "the pod's node affinity has no term"
        selector = pod.alternatives[0]
        if unknown := self._unknown(selector):
            return f"its nodes have no label {unknown[0].key}, which the pod selects by"
        try:
            both = self.requirements & Requirements(map(required, selector))
        except InvalidRequirement as error:
            return f"the pod's selector cannot be read: {error}"
        return "; ".join(both.problems())

    def _with(self, selector: Selector) -> Requirements | None:
        """The requirements of the node and the selector; None if no node has both."""
        if self._unknown(selector):
            return None
        try:
            selected = Requirements(map(required, selector))
        except InvalidRequirement:
            return None
        both = self.requirements & selected
        return None if both.problems() else both

    def _unknown(self, selector: Selector) -> list[SelectorRequirement]:
        """The tests of labels of the user's own that neither pool nor claim defines."""
        return [
            item
            for item in selector
            if item.key not in self.requirements
            and stable(item.key) not in WELL_KNOWN
            and item.operator not in _WITHOUT
        ]


def future_node(spec: NodeClaimTemplateSpec, labels: Mapping[str, str]) -> FutureNode:
    """The node of a claim with this spec and these labels. Raises InvalidRequirement."""
    requirements = requirements_of(spec) & Requirements.of_labels(labels)
    return FutureNode(requirements=requirements, taints=node_taints(spec.taints))
