"""A client of local AWS's control plane: the same methods over HTTP and in the same process.

Each knob is documented in its own module: `faults`, `clock`, `ec2.ledger` (pools, slots), `ec2.lag`,
`ec2.errors` (codes that AWS doesn't document). Times are seconds.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from datetime import datetime
from typing import Any

JSON = {"Content-Type": "application/json"}


class ControlError(ValueError):
    """The control plane refused a call; the text is the reason."""


class Control:
    def __init__(self, endpoint: str | None = None):
        """Controls the server at `endpoint`, or moto in this process."""
        self.endpoint = endpoint.rstrip("/") if endpoint else None

    # ---- failures

    def fault(self, *, action: str, **body: Any) -> str:
        """Scripts a failure; the answer is its id. The fields are stage, code, message, status, match, times
        and delay_s (local/aws/faults.py). At stage `response` without a code the connection drops."""
        return str(self._call("POST", "faults", {"action": action, **body})["id"])

    def faults(self) -> list[dict[str, Any]]:
        return list(self._call("GET", "faults"))

    def clear_faults(self, fault_id: str | None = None) -> None:
        self._call("DELETE", f"faults/{fault_id}" if fault_id else "faults")

    # ---- capacity

    def pool(
        self, *, instance_type: str, zone: str, size: int | None, capacity_type: str = "on-demand"
    ) -> None:
        """Sets the number of instances of a type in a zone outside reservations; None: without limit."""
        body = {"capacity_type": capacity_type, "instance_type": instance_type, "zone": zone, "size": size}
        self._call("POST", "pools", body)

    def pools(self) -> list[dict[str, Any]]:
        return list(self._call("GET", "pools"))

    def clear_pools(self) -> None:
        self._call("DELETE", "pools")

    def quota(
        self, *, instance_type: str, vcpus: int | None, market: str = "on-demand", **where: str
    ) -> None:
        """The vCPU quota that a type counts against, of `account` and `region`; None: without limit."""
        body = {"instance_type": instance_type, "vcpus": vcpus, "market": market, **where}
        self._call("POST", "quotas", body)

    def quotas(self) -> list[dict[str, Any]]:
        return list(self._call("GET", "quotas"))

    def slot_release(self, seconds: float) -> None:
        """Sets the time for which a slot stays taken after its instance's end."""
        self._call("POST", "settings", {"slot_release_s": seconds})

    def freed_slot_absorbs(self, enabled: bool = True) -> None:
        """Whether a slot that comes free takes a running instance, which AWS does not document."""
        self._call("POST", "settings", {"freed_slot_absorbs": enabled})

    def check_offerings(self, enforced: bool = True) -> None:
        """Refuse instance types that a zone doesn't offer, as EC2 does (moto's data of 2025)."""
        self._call("POST", "settings", {"check_offerings": enforced})

    def reservation(self, **body: Any) -> dict[str, Any]:
        """A reservation that no API call makes: of another owner, a Capacity Block, an interruptible one."""
        return dict(self._call("POST", "reservations", body))

    def block_offering(self, **body: Any) -> str:
        """A Capacity Block on offer: instance_type, zone, count, start, end, and fee, ultraserver_type,
        ultraservers. The answer is the offering's id; DescribeCapacityBlockOfferings lists it first."""
        return str(self._call("POST", "block-offerings", body)["CapacityBlockOfferingId"])

    def payment(self, seconds: float) -> None:
        """Sets the time until a Capacity Block or its extension is paid; 12 hours are too long."""
        self._call("POST", "settings", {"payment_s": seconds})

    def set_reservation(
        self,
        reservation_id: str,
        *,
        state: str | None = None,
        shared_with: list[str] | None = None,
        launchable: bool | None = None,
    ) -> None:
        """`launchable` is the launch status of an UltraServer's reservation."""
        body = {"state": state, "shared_with": shared_with, "launchable": launchable}
        self._call("PATCH", f"reservations/{reservation_id}", body)

    # ---- health

    def impair(self, instance_id: str, check: str = "instance", *, over: bool = False) -> None:
        """A status check (instance, system) of a running instance fails from now on; `over`: it passes."""
        self._call("POST", "health", {"instance_id": instance_id, "check": check, "over": over})

    def schedule_event(
        self, instance_id: str, code: str, *, in_s: float = 3600.0, over: bool = False
    ) -> None:
        """Schedules an event such as instance-retirement; `over`: it is completed."""
        body = {"instance_id": instance_id, "event": code, "in_s": in_s, "over": over}
        self._call("POST", "health", body)

    def reboots(self, instance_id: str) -> int:
        """How many reboots of the instance EC2 was asked for."""
        record = self._call("GET", "health").get(instance_id, {})
        return len(record.get("reboots", ()))

    # ---- AWS's events

    def notice(
        self,
        kind: str,
        *,
        instance_id: str | None = None,
        reservation_id: str | None = None,
        queue: str | None = None,
        **more: Any,
    ) -> dict[str, Any]:
        """Sends an AWS event now, by EventBridge's rules or directly into an SQS `queue` (name, URL, ARN).

        Kinds: spot-interruption, rebalance, reservation-interruption, instance-state (`state`), health
        (`code`, `category`; of a reservation too), capacity-block-delivered, capacity-block-expiring,
        reservation-state. `in_s` is the time until the announced event; with `ends` the instance ends then.
        """
        body = {"kind": kind, "instance_id": instance_id, "reservation_id": reservation_id, "queue": queue}
        return dict(self._call("POST", "notices", {**body, **more}))

    def notices(self, detail_type: str | None = None) -> list[dict[str, Any]]:
        """Every event that AWS sent, oldest first, each with the queues that it went to."""
        query = f"?detail_type={urllib.parse.quote(detail_type)}" if detail_type else ""
        return list(self._call("GET", f"notices{query}"))

    # ---- describe calls

    def lag(self, describe_s: float) -> None:
        """Describe calls show counts, states and instances as they were so long ago."""
        self._call("POST", "settings", {"describe_lag_s": describe_s})

    def pending(self, seconds: float) -> None:
        """Sets the time for which a new reservation is pending."""
        self._call("POST", "settings", {"pending_s": seconds})

    def grouping(self, seconds: float) -> None:
        """Sets the time for which GroupResources answers `Pending` before a reservation is a member."""
        self._call("POST", "settings", {"grouping_s": seconds})

    def assessment(self, *, seconds: float | None = None, outcome: str | None = None) -> None:
        """Sets the time of the assessment of a future-dated reservation, and its outcome."""
        self._call("POST", "settings", {"assessment_s": seconds, "assessment_outcome": outcome})

    def code(self, situation: str, code: str) -> None:
        """The code for a situation that AWS doesn't document; `state()["codes"]` lists them."""
        self._call("POST", "settings", {"codes": {situation: code}})

    # ---- time

    def advance(self, seconds: float) -> None:
        self._call("POST", "clock", {"advance_s": seconds})

    def freeze(self, at: datetime | None = None) -> None:
        self._call("POST", "clock", {"freeze": at.isoformat() if at else True})

    def unfreeze(self) -> None:
        self._call("POST", "clock", {"unfreeze": True})

    def now(self) -> datetime:
        return datetime.fromisoformat(self._call("GET", "clock")["now"])

    # ---- recorded calls

    def calls(self) -> dict[str, int]:
        """Counts the calls of each action."""
        return dict(self._call("GET", "calls"))

    def log(self, action: str | None = None) -> list[dict[str, Any]]:
        """The latest calls, oldest first: action, time, access key, status, code, request id, parameters."""
        query = f"?action={urllib.parse.quote(action)}" if action else ""
        return list(self._call("GET", f"calls/log{query}"))

    def clear_calls(self) -> None:
        self._call("DELETE", "calls")

    def state(self) -> dict[str, Any]:
        return dict(self._call("GET", "state"))

    def reset(self) -> None:
        """Every knob back to its default; AWS's resources stay."""
        self._call("POST", "reset")

    # ---- the two ways

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        if self.endpoint is None:
            return _in_process(method, path, json.loads(json.dumps(body or {}, default=_plain)))
        request = urllib.request.Request(
            f"{self.endpoint}/moto-api/odcr/{path}",
            data=json.dumps(body or {}, default=_plain).encode(),
            headers=JSON,
            method=method,
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as refused:
            raise ControlError(_reason(refused)) from refused


def _plain(value: Any) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"{value!r} is no JSON")


def _reason(refused: urllib.error.HTTPError) -> str:
    text = refused.read().decode(errors="replace")
    try:
        return str(json.loads(text)["error"])
    except (ValueError, KeyError, TypeError):
        return f"HTTP {refused.code}: {text[:500]}"


def _in_process(method: str, path: str, body: dict[str, Any]) -> Any:
    from local.aws import control_api  # only here: a client of a server needs no moto

    resource_path, _, query = path.partition("?")
    parsed = {key: values[-1] for key, values in urllib.parse.parse_qs(query).items()}
    try:
        answer = control_api.handle(method, resource_path, body, parsed)
    except ValueError as refused:
        raise ControlError(str(refused)) from refused
    return json.loads(json.dumps(answer, default=str))
