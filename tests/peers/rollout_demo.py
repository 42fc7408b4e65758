"""`make rollout-demo`: a new image for the nodes of a full reservation, by the broker and by Karpenter.

Karpenter is the released one, if `make peers` built it, with its alpha gates for replacement in full
reservations. Its cluster is another one, on the same machine, after the broker's.
"""

from __future__ import annotations

from typing import Annotated

import typer

from broker.settings import Settings
from local.demo import command
from tests.peers.objects import ON_DEMAND, RESERVED


def main(
    once: Annotated[bool, typer.Option(help="End by itself; exit 0 only if all went as expected.")] = False,
) -> None:
    """A rollout over a full reservation, by the broker and by Karpenter as released."""
    raise typer.Exit(command.play(lambda: _demo(once=once)))


def _demo(*, once: bool) -> int:
    from local.demo import rollout
    from tests.peers.rollouts import Rollout, RolloutCase
    from tests.peers.stage import ALPHA, KARPENTER, Stage, missing

    def karpenter(report: rollout.Report) -> rollout.RolloutResult | None:
        if reason := missing():
            report(f"Karpenter beside it: not built ({reason})")
            return None
        report("the same by Karpenter 1.15, with its alpha gates: starting it with etcd and kube-apiserver")
        with Stage(broker=False, gates=ALPHA) as stage:
            case = RolloutCase(
                name=rollout.NAME,
                nodes=rollout.SLOTS,
                capacity=(RESERVED, ON_DEMAND),
                image=True,
                patience=150.0,
            )
            report("Karpenter is ready; its class gets another image once all slots have a node with a pod")
            return Rollout(stage, KARPENTER, case).play(rollout.Narrator(report).changed)

    return rollout.demo(Settings(), once=once, beside=karpenter)


if __name__ == "__main__":
    typer.run(main)
