"""A run as a list of operations, each with its own chance, so that dropping one changes no other's."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from tests.simulation import actors, broken, faults, full, pools, rooms
from tests.simulation.faults import Act

LONG = (8, 22)  # operations of a schedule, between steps of the broker
RUN, PAUSE, LIVE = "run", "pause", "live"

# Operation -> its share. `run` takes some steps of the broker in any order, `live` does all that is due.
WEIGHTS: Mapping[str, int] = {
    "claim": 14,
    "gang": 3,
    "delete_claim": 6,
    "delete_and_make_again": 2,
    "pod": 3,
    "finish_pods": 2,
    "buy": 7,
    "cluster": 4,
    "edit_class": 2,
    "touch": 2,
    "delete_node": 1,
    "strip": 1,
    "force_away": 1,
    "forge": 2,
    "grab": 2,
    "ungrab": 1,
    "scarce": 2,
    "plenty": 1,
    "end_instance": 3,
    "rival": 3,
    "end_odcr": 3,
    "lag": 2,
    "slow_slots": 1,
    "never_joins": 1,
    "throttled": 4,
    "refused": 3,
    "answer_lost": 5,
    "api": 4,
    "watch_expired": 2,
    "late_watch": 3,
    "kill": 8,
    "freeze": 2,
    "skew": 1,
    "replace": 2,
    "meanwhile": 8,
    "usurp": 3,
}

# The same for a seed that is about room on nodes.
ROOM_WEIGHTS: Mapping[str, int] = {
    "room_node": 5,
    "room_node_gone": 2,
    "room_pod": 18,
    "room_godel_pod": 9,
    "room_pod_gone": 7,
    "room_pod_ends": 3,
    "room_pod_touched": 1,
    "reserve_room": 12,
    "unreserve_room": 3,
    "room_quota": 3,
    "room_budget": 3,
    "bind_refused": 4,
    "room_killed": 8,
    "room_meanwhile": 8,
    "room_usurped": 6,
    "api": 4,
    "api_gone": 2,
    "api_slow": 2,
    "watch_expired": 2,
    "late_watch": 3,
    "freeze": 2,
    "kill": 2,
    "replace": 2,
}
# The same for a seed that is about pods and NodePools.
POOL_WEIGHTS: Mapping[str, int] = {
    "app": 16,
    "stranger_app": 2,
    "crowd": 8,
    "app_gone": 2,
    "pod_lost": 4,
    "edit_pool": 7,
    "delete_pool": 2,
    "edit_class": 3,
    "delete_class": 2,
    "budget": 5,
    "edit_tags": 2,
    "claim": 2,
    "delete_claim": 2,
    "delete_node": 1,
    "node_not_ready": 3,
    "account_quota": 2,
    "scarce": 2,
    "plenty": 1,
    "end_instance": 3,
    "rival": 2,
    "end_odcr": 1,
    "lag": 2,
    "never_joins": 1,
    "throttled": 3,
    "refused": 3,
    "answer_lost": 4,
    "api": 3,
    "watch_expired": 2,
    "late_watch": 3,
    "watch_gap": 3,
    "kill": 5,
    "freeze": 1,
    "replace": 1,
    "pools_meanwhile": 8,
    "usurp": 2,
}
# The same for a seed that is about full reservations and broken machines.
FULL_WEIGHTS: Mapping[str, int] = {
    "app": 16,
    "app_gone": 1,
    "pod_lost": 3,
    "edit_pool": 3,
    "edit_class": 1,
    "budget": 3,
    "rollout": 9,
    "end_claim": 6,
    "replace_rules": 3,
    "scale": 2,
    "claim": 3,
    "loan": 3,
    "cluster": 1,
    "delete_claim": 2,
    "delete_node": 1,
    "break_node": 8,
    "break_pool": 3,
    "mend_node": 2,
    "silent_kubelet": 3,
    "impair": 4,
    "do_not_repair": 3,
    "repair_rules": 3,
    "reboot_refused": 4,
    "repair_killed": 6,
    "grow": 5,
    "split": 2,
    "move_slots": 3,
    "join": 3,
    "absorbs": 1,
    "scarce": 1,
    "plenty": 1,
    "end_instance": 3,
    "rival": 2,
    "end_odcr": 1,
    "lag": 2,
    "slow_slots": 2,
    "never_joins": 1,
    "throttled": 2,
    "refused": 3,
    "answer_lost": 3,
    "api": 3,
    "watch_expired": 1,
    "watch_gap": 2,
    "late_watch": 4,
    "kill": 4,
    "freeze": 1,
    "replace": 1,
    "pools_meanwhile": 5,
    "usurp": 2,
}
ROOMS = 0.34  # of all seeds
POOLS = 0.38  # of the others
FULL = 0.18  # of the others, beside those about pools


def _acts() -> dict[str, Act]:
    acts: dict[str, Act] = {}
    parts = (actors, faults, rooms, pools, full, broken)
    for name in (*WEIGHTS, *ROOM_WEIGHTS, *POOL_WEIGHTS, *FULL_WEIGHTS):
        acts[name] = next(vars(part)[name] for part in parts if name in vars(part))
    return acts


ACTS: Mapping[str, Act] = _acts()


class Op(NamedTuple):
    """One operation and the seed of its chance."""

    name: str
    seed: str

    def __str__(self) -> str:
        return f"{self.name}({self.seed})"


Schedule = tuple[Op, ...]


def about_rooms(seed: int) -> bool:
    return random.Random(f"rooms {seed}").random() < ROOMS


def about_pools(seed: int) -> bool:
    return not about_rooms(seed) and random.Random(str(seed)).random() < POOLS


def about_full(seed: int) -> bool:
    return not about_rooms(seed) and random.Random(str(seed)).random() >= 1 - FULL


# Each part of the seeds.
ABOUT: Mapping[str, Callable[[int], bool]] = {
    "all": lambda _: True,
    "rooms": about_rooms,
    "pools": about_pools,
    "full": about_full,
}


def schedule(seed: int) -> Schedule:
    """The operations of a seed: the same for ever, as long as the weights are the same."""
    rng = random.Random(f"schedule {seed}")
    if about_rooms(seed):
        return _of_rooms(seed, rng)
    weights = POOL_WEIGHTS if about_pools(seed) else FULL_WEIGHTS if about_full(seed) else WEIGHTS
    act_names, shares = [*weights], [*weights.values()]
    # Each run is about some of it: a run in which everything goes wrong shows little of anything.
    quiet = {name for name in act_names if vars(faults).get(name) and rng.random() < 0.5}
    shares = [0 if name in quiet else share for name, share in zip(act_names, shares, strict=True)]
    first = "claim" if weights is WEIGHTS else "app"
    chosen: list[str] = [first, LIVE] if rng.random() < 0.5 else [first]
    if weights is FULL_WEIGHTS:
        chosen += ["app", "app", LIVE, LIVE]  # nodes that can be replaced
    for _ in range(rng.randint(*LONG)):
        chosen += rng.choices(act_names, shares)
        draw = rng.random()
        chosen += [RUN] if draw < 0.55 else [LIVE] if draw < 0.8 else [PAUSE] if draw < 0.85 else []
    return _numbered(seed, chosen)


def _of_rooms(seed: int, rng: random.Random) -> Schedule:
    chosen = ["room_node", "room_node", "room_node", "room_quota"]
    for _ in range(rng.randint(15, 35)):
        chosen += rng.choices([*ROOM_WEIGHTS], [*ROOM_WEIGHTS.values()], k=rng.randint(1, 3))
        draw = rng.random()
        chosen += [RUN] if draw < 0.45 else [LIVE] if draw < 0.75 else [PAUSE] if draw < 0.8 else []
    return _numbered(seed, chosen)


def _numbered(seed: int, names: Sequence[str]) -> Schedule:
    return tuple(Op(name, f"{seed}.{number}") for number, name in enumerate(names))


def shown(operations: Sequence[Op]) -> str:
    return " ".join(map(str, operations))


def parse(text: str) -> Schedule:
    """The operations that `shown` printed. Raises ValueError for an unknown one."""
    operations = []
    for part in text.split():
        name, _, seed = part.rstrip(")").partition("(")
        if name not in ACTS and name not in (RUN, PAUSE, LIVE):
            raise ValueError(f"{part!r} is no operation; there are {', '.join((RUN, LIVE, PAUSE, *ACTS))}")
        operations.append(Op(name, seed))
    return tuple(operations)
