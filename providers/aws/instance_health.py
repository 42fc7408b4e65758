"""The status checks and scheduled events of instances, and reboots.

Why three listings: filters of one call must all hold, and an instance is asked for that fails any of them.
DescribeInstanceStatus has no filter by tag, so the answers are about the whole account; nearly all of its
instances are well and in none of them. Attached EBS volumes are not looked at, as in Karpenter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from providers.aws.account import AwsAccount
from providers.aws.clock import utc
from providers.model import Impairment, InstanceProblem

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import InstanceStatusSummaryTypeDef, InstanceStatusTypeDef

PAGE: Final = 1000
IMPAIRED: Final = "impaired"
# The codes of scheduled events (EC2 API Reference, InstanceStatusEvent).
EVENTS: Final = (
    "instance-reboot",
    "instance-retirement",
    "instance-stop",
    "system-maintenance",
    "system-reboot",
)
_FILTERS: Final[Mapping[Impairment, tuple[str, Sequence[str]]]] = {
    "instance": ("instance-status.status", (IMPAIRED,)),
    "system": ("system-status.status", (IMPAIRED,)),
    "event": ("event.code", EVENTS),
}
# EC2 shows an event for a week after it is over, with this before its description.
_OVER: Final = ("[Completed]", "[Canceled]")


class InstanceHealth(AwsAccount):
    """Reads the health of instances, and reboots them."""

    def problems(self) -> Sequence[InstanceProblem]:
        """The problems of all running instances, by instance and kind."""
        problems = {
            (problem.id, problem.kind, problem.code): problem
            for name, values in _FILTERS.values()
            for page in self._aws.pages(
                self._aws.ec2.describe_instance_status,
                Filters=[{"Name": name, "Values": list(values)}],
                MaxResults=PAGE,
            )
            for item in page["InstanceStatuses"]
            for problem in _problems(item)
        }
        return [problems[key] for key in sorted(problems)]

    def reboot(self, id_: str) -> None:
        """Requests a reboot of one instance. An answer that is lost is not requested again."""
        self._aws.call_untokened(self._aws.ec2.reboot_instances, InstanceIds=[id_])


def _problems(item: InstanceStatusTypeDef) -> Iterator[InstanceProblem]:
    id_ = item["InstanceId"]
    checks: Sequence[tuple[Impairment, InstanceStatusSummaryTypeDef]] = (
        ("instance", item.get("InstanceStatus", {})),
        ("system", item.get("SystemStatus", {})),
    )
    for kind, status in checks:
        if status.get("Status") != IMPAIRED:
            continue
        failed = [detail for detail in status.get("Details", ()) if detail.get("Status") == "failed"]
        times = [at for detail in failed if (at := utc(detail.get("ImpairedSince"))) is not None]
        checked = ", ".join(str(detail.get("Name")) for detail in failed) or "a check"
        yield InstanceProblem(
            id=id_,
            kind=kind,
            code="StatusCheck",
            message=f"EC2's {kind} status check fails ({checked})",
            since=min(times, default=None),
        )
    for event in item.get("Events", ()):
        code, description = str(event.get("Code", "")), event.get("Description", "")
        if code in EVENTS and not description.startswith(_OVER):
            at = utc(event.get("NotBefore"))
            when = f" at {at:%Y-%m-%dT%H:%M:%SZ}" if at is not None else ""
            yield InstanceProblem(
                id=id_, kind="event", code=code, message=f"EC2 schedules {code}{when}: {description}"
            )
