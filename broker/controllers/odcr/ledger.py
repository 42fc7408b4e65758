"""Records of purchases, in a ConfigMap of the broker beside its Lease.

Invariant: users that write CapacityReservations cannot write here, so no annotation can fake a purchase, an
owned ODCR or a release. A purchase is recorded before it is sent. An invalid entry stops every purchase,
since it may hide one. Only the leader writes. It reads at its start, and when an operator may have removed an
entry.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, fields, replace
from datetime import datetime
from typing import Any

from broker.kube.client import Client
from broker.kube.errors import ApiError
from broker.kube.identity import NAMESPACE
from broker.kube.published import read_data, write_data
from broker.quota.usage import ReservationKey
from broker.reservations.moves import MovedCapacity, MoveSnapshot, SizeRecord
from broker.reservations.purchases import LEDGER, HeldRecord, PurchaseIntent
from broker.text import decode_object, decode_time

_PURCHASE, _RELEASED, _MOVED, _SIZES = "purchase-", "released-", "moved-", "sizes"

_Record = PurchaseIntent | HeldRecord | MovedCapacity
Released = tuple[int, Mapping[str, int]]  # the generation that it holds for; instances by flavor


class PurchaseLedger:
    """The records of one process; one thread."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._stored: Mapping[str, str] | None = None
        self._unread: dict[str, tuple[str, str]] = {}  # key → text that cannot be decoded, and why
        self.intents: dict[str, PurchaseIntent] = {}  # by attempt id
        self.held: dict[str, HeldRecord] = {}  # by EC2's id
        self._released: dict[str, Released] = {}  # by the object's uid
        self.moves = MoveSnapshot()

    def load(self, *, refresh: bool = False) -> None:
        """Reads the stored records, once; `refresh` drops those that were removed there since.

        An invalid entry is kept as it is, read again each time, and named by `problem`. Raises ApiError.
        """
        if self._stored is None or self._unread:
            stored = read_data(self._client, LEDGER)
            unread = {}
            for key, text in stored.items():
                if self._stored is not None and key not in self._unread:
                    continue
                try:
                    self._load_entry(key, text)
                except (ValueError, TypeError, KeyError, AttributeError) as error:
                    unread[key] = (text, str(error))
            self._unread = unread
            self._stored = stored
        elif refresh:
            stored = read_data(self._client, LEDGER)
            for id_ in self._stored.keys() - stored.keys():
                self.held.pop(id_, None)
            self._stored = stored

    def problem(self) -> ApiError | None:
        """Why nothing may be bought now, if an entry is invalid."""
        if not self._unread:
            return None
        key, (_, error) = next(iter(sorted(self._unread.items())))
        return ApiError(
            0,
            "LedgerUnreadable",
            f"entry {key!r} of ConfigMap {NAMESPACE}/{LEDGER} is invalid ({error}): "
            "nothing is bought until it is removed; check its EC2 reservation first",
        )

    def flush(self) -> None:
        """Stores the records if they differ from the stored ones. Raises ApiError."""
        data = self._data()
        if data == self._stored or self._stored is None:
            return
        write_data(self._client, LEDGER, data)
        self._stored = data

    def released(self, uid: str, generation: int) -> Mapping[str, int]:
        """The released instances by flavor; empty once the spec has changed."""
        known, counts = self._released.get(uid, (generation, {}))
        return counts if known == generation else {}

    def release(self, uid: str, generation: int, counts: Mapping[str, int]) -> None:
        self._released[uid] = (generation, dict(counts))

    def keep(
        self,
        intents: Collection[PurchaseIntent],
        held: Mapping[str, HeldRecord],
        alive: Mapping[str, int | None],
        moves: MoveSnapshot,
    ) -> None:
        """Replaces the records. `alive`: the generation of each object by uid; None if it is left out."""
        self.moves = moves
        self.intents = {intent.attempt_id: intent for intent in intents}
        self.held = dict(held)
        self._released = {
            uid: (generation, counts)
            for uid, (generation, counts) in self._released.items()
            if alive.get(uid, 0) in (generation, None)
        }

    def _load_entry(self, key: str, text: str) -> None:
        entry = decode_object(text)
        if key.startswith(_PURCHASE):
            intent = PurchaseIntent(**_typed(entry, PurchaseIntent))
            self.intents[intent.attempt_id] = intent
        elif key.startswith(_RELEASED):
            counts = {str(name): max(0, int(count)) for name, count in entry["flavors"].items()}
            self._released[key.removeprefix(_RELEASED)] = (int(entry["generation"]), counts)
        elif key.startswith(_MOVED):
            moved = MovedCapacity(**_typed(entry, MovedCapacity))
            self.moves = replace(self.moves, moves={**self.moves.moves, moved.key: moved})
        elif key == _SIZES:
            sizes = {id_: _size(size) for id_, size in entry.items()}
            self.moves = replace(self.moves, sizes=sizes)
        else:
            self.held[key] = HeldRecord(**_typed(entry, HeldRecord))

    def _data(self) -> dict[str, str]:
        data = {key: text for key, (text, _) in self._unread.items()}
        data |= {id_: _written(record) for id_, record in self.held.items()}
        data |= {f"{_PURCHASE}{id_}": _written(intent) for id_, intent in self.intents.items()}
        data |= {f"{_MOVED}{key}": _written(move) for key, move in self.moves.moves.items()}
        if self.moves.sizes:
            sizes = {id_: _size_text(size) for id_, size in self.moves.sizes.items()}
            data[_SIZES] = json.dumps(sizes, sort_keys=True)
        for uid, (generation, counts) in self._released.items():
            data[f"{_RELEASED}{uid}"] = json.dumps(
                {"generation": generation, "flavors": counts}, sort_keys=True
            )
        return data


def attempt_id(uid: str, generation: int, at: datetime, call: Mapping[str, object]) -> str:
    """A client token for a purchase: at most 64 characters, as EC2 requires, and different for each
    moment.
    """
    of = [uid, generation, at.isoformat(), call]
    return hashlib.sha256(json.dumps(of, sort_keys=True, default=str).encode()).hexdigest()


def _size(entry: Sequence[Any]) -> SizeRecord:
    """Raises ValueError, TypeError."""
    total, *growth = entry
    if not growth:
        return SizeRecord(total=int(total), before=int(total))
    before, grown, *lost = growth
    return SizeRecord(
        total=int(total),
        before=int(before),
        grown=decode_time(grown) if grown else None,
        lost=decode_time(lost[0]) if lost else None,
    )


def _size_text(size: SizeRecord) -> list[Any]:
    if not size.grown and not size.lost:
        return [size.total]
    growth = [size.total, size.before, size.grown.isoformat() if size.grown else None]
    return [*growth, size.lost.isoformat()] if size.lost else growth


def _written(record: _Record) -> str:
    defaults = {field.name: field.default for field in fields(record)}
    entry = {key: value for key, value in asdict(record).items() if value != defaults[key] and value != {}}
    entry["reserved"] = str(record.reserved)
    return json.dumps(entry, sort_keys=True, default=datetime.isoformat)


def _typed(entry: Mapping[str, Any], record: type[_Record]) -> dict[str, Any]:
    """Raises KeyError, TypeError, ValueError."""
    kinds = {field.name: field.type for field in fields(record)}
    # A field of a newer version means nothing here, and must not stop a broker that was rolled back.
    given = {key: value for key, value in entry.items() if key in kinds}
    given["reserved"] = ReservationKey.parse(given["reserved"])
    for key in {"at", "end"} & given.keys():
        given[key] = decode_time(given[key])
    if "targets" in given:
        given["targets"] = tuple(str(id_) for id_ in given["targets"])
    for key, kind in kinds.items():
        if key in given and kind in ("int", "str", "bool") and type(given[key]).__name__ != kind:
            raise TypeError(f"{key} is {given[key]!r}")
    return given
