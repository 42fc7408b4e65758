"""`capacity-broker demo --teams`: one team borrows another's idle reserved GPUs, and gives one back.

The broker is the real one. The machines are simulated, and so is Karpenter, which makes a new claim for
work that lost its node. `--once` ends with exit code 0 only if every claim ended as expected.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from broker.apis import names
from broker.apis.karpenter import NodeClaim
from broker.apis.meta import condition, is_true
from broker.apis.ome import CapacityReservation
from broker.commands import manifests
from broker.commands.examples import examples
from broker.commands.output import table
from broker.settings import Settings
from local.demo import account
from local.demo.examples import apply
from local.demo.story import Scene, open_scene

TEAMS = ("vision", "speech")
EXAMPLE = "reservations/borrowing.yaml"
BEFORE = ("speech-0", "speech-1", "speech-2", "vision-0")
# The work of the one that is drained goes on in a claim of its own.
BACK, DRAINED, AGAIN = "vision-1", "speech-2", "speech-2-again"
COLUMNS = {
    "claim": "CLAIM",
    "team": "DRAWS FROM",
    "priority": "PRIORITY",
    "slot": "EC2 COUNTS IT IN",
    "placement": "WHICH IS",
    "as": "OK",
}


def demo(settings: Settings, *, once: bool) -> int:
    """Runs the demo; the exit code is 0 if every claim ended as expected."""
    with open_scene(settings, make=account.teams) as scene:
        good = _Story(scene).run()
        if not once:
            scene.stay("kubectl get capacityreservations -A -o wide", f"capacity-broker explain claim {BACK}")
    return 0 if good else 1


class _Story:
    def __init__(self, scene: Scene) -> None:
        self._stage, self._client = scene.stage, scene.user
        self._out, self._report, self._until = scene.out, scene.report, scene.until
        self._owners = {scene.stage.ids.names[team]: team for team in TEAMS}

    def run(self) -> bool:
        """True if every claim ended as expected."""
        given = manifests.read([str(examples() / EXAMPLE)])
        claims = [document for document in given if document["kind"] == NodeClaim.KIND.kind]
        apply(self._client, [document for document in given if document not in claims])
        self._until(self._active)
        self._report("vision/gpus owns 3 p5.48xlarge and lends its idle slots; speech/gpus owns 1")
        apply(self._client, claims)
        self._ready(BEFORE)
        self._report("vision uses one of its slots, and speech borrows the others")
        lent = {"speech-0": "", "speech-1": "", "speech-2": "", "vision-0": "vision"}
        good = self._table("before", lent, borrowed=2)
        self._report("vision comes back for a slot that is its own")
        self._claim(BACK, 0)
        self._until(lambda: self._find(DRAINED) is None or self._message_of(DRAINED, names.PREEMPTED))
        if message := self._message_of(DRAINED, names.PREEMPTED):
            self._report(f"[yellow]{DRAINED}[/yellow] {message}")
        self._claim(AGAIN, 0)
        self._report(f"{AGAIN} is the work that loses its node, in a claim of its own")
        self._ready((BACK, AGAIN))
        self._until(lambda: self._find(DRAINED) is None)
        expected = {"speech-0": "", "speech-1": "", AGAIN: "-", "vision-0": "vision", BACK: "vision"}
        good &= self._table("after", expected, borrowed=1) and self._find(DRAINED) is None
        self._out.print(
            "\nAs expected: the owner has its slot, one borrower was drained, its work runs on-demand."
            if good
            else "\nNot as expected."
        )
        return good

    def _claim(self, name: str, priority: int) -> None:
        team = name.partition("-")[0]
        requirements = {names.INSTANCE_TYPE: ["p5.48xlarge"], names.CAPACITY_TYPE: ["reserved", "on-demand"]}
        body = {
            "metadata": {
                "name": name,
                "annotations": {names.DRAWS_FROM: f"{team}/gpus", names.PRIORITY: str(priority)},
            },
            "spec": {
                "nodeClassRef": {"group": names.BROKER, "kind": "EC2NodeClass", "name": "h100"},
                "requirements": [
                    {"key": key, "operator": "In", "values": values} for key, values in requirements.items()
                ],
                "resources": {"requests": {"nvidia.com/gpu": "8"}},
            },
        }
        self._client.create(NodeClaim.KIND, body)

    def _active(self) -> bool:
        reservations = map(CapacityReservation.decode, self._client.list(CapacityReservation.KIND)[0])
        states = [reservation.status.capacity_reservation_lifecycle_state for reservation in reservations]
        return len(states) == len(TEAMS) and set(states) == {"Active"}

    def _find(self, name: str) -> NodeClaim | None:
        claims = map(NodeClaim.decode, self._client.list(NodeClaim.KIND)[0])
        return next((claim for claim in claims if claim.name == name), None)

    def _message_of(self, name: str, type_: str) -> str:
        claim = self._find(name)
        reported = condition(claim.status.conditions, type_) if claim is not None else None
        return reported.message if reported is not None and reported.status == "True" else ""

    def _ready(self, claims: Iterable[str]) -> None:
        def ready() -> bool:
            found_claims = [self._find(name) for name in claims]
            return all(claim is not None and is_true(claim, names.READY) for claim in found_claims)

        self._until(ready)

    def _table(self, when: str, expected: Mapping[str, str], *, borrowed: int) -> bool:
        """Prints where each claim is; whether that is where it should be. Empty: its own, or borrowed."""
        rows = [self._row(name, where) for name, where in sorted(expected.items())]
        self._out.print()
        self._out.print(table(when, rows, columns=COLUMNS))
        count = sum(row["placement"].startswith("borrowed") for row in rows)
        return count == borrowed and all(row["as"] == "yes" for row in rows)

    def _row(self, name: str, expected: str) -> dict[str, Any]:
        claim, team = self._find(name), name.partition("-")[0]
        instances = {instance_.id: instance_ for instance_ in self._stage.provider.instances()}
        instance = instances.get(claim.instance_id) if claim is not None else None
        slot = instance.reservation_id if instance is not None else ""
        owner = self._owners.get(slot, "-")
        ready = claim is not None and is_true(claim, names.READY) and instance is not None
        as_expected = ready and (owner == expected if expected else owner != "-")
        placement = "on-demand" if owner == "-" else "its own" if owner == team else f"borrowed from {owner}"
        return {
            "claim": name,
            "team": f"{team}/gpus",
            "priority": claim.annotations.get(names.PRIORITY, "") if claim is not None else "",
            "slot": slot or "-",
            "placement": placement if ready else "nowhere",
            "as": "yes" if as_expected else "NO",
        }
