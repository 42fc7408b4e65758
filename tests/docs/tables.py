"""The tables in docs/ that are generated from the code, so that they cannot drift from it.

A block stands between `<!-- generated: NAME -->` and `<!-- end -->`. A test compares it, and `python -m
tests.docs.tables` writes it again.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from pathlib import Path

import yaml

from broker.apis import reservation_spec
from broker.apis.ome import ReservationSpec
from broker.apis.ome_clusters import DedicatedAICluster
from broker.apis.ome_rules import judge
from broker.capacity import shortages
from broker.capacity.model import Option, Pool, Selection
from broker.capacity.template import target_for
from broker.options import HINTS
from broker.settings import Settings
from local.generators import monitoring
from providers.aws import errors
from providers.errors import ErrorClass, ErrorPolicy
from providers.model import CapacityType
from tests.docs.triggers import triggers
from tests.unit.apis import test_ome

DOCS = Path(__file__).resolve().parents[2] / "docs"
EXAMPLES = DOCS.parent / "examples" / "reservations"
CHART = DOCS.parent / "deploy" / "chart" / "capacity-broker"
BLOCK = re.compile(r"(<!-- generated: ([a-z-]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)

MARKS: Mapping[str, str] = {
    "capacity": "the reservation; outside reservations, the pool",
    "class": "the pool, for the class",
    "placement": "the placement group in the zone, for every type",
    "subnet": "the subnet",
    "quota": "the quota: capacity type and family group",
    "nothing": "nothing",
}


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


# ---- errors


def answers() -> str:
    """Class by class: the shortage, and the effect on the claim."""
    return table(
        ("class", "remembered as short", "for", "the claim", "condition reason", "next step"),
        (
            (f"`{class_}`", MARKS[a.marks], _length(class_, a), _goes(a), f"`{a.reason}`", a.next_step)
            for class_ in ErrorClass
            for a in (class_.policy,)
        ),
    )


def _goes(answer: ErrorPolicy) -> str:
    if answer.elsewhere:
        return "takes its next option at once"
    return "waits for a correction" if answer.stops else "makes the same call again, later"


def _length(class_: ErrorClass, answer: ErrorPolicy) -> str:
    if answer.marks == "nothing":
        return ""
    record = shortages.Shortages().record
    scope = shortages.Scope("pool", "any")
    when = datetime(2026, 1, 1, tzinfo=UTC)
    first = record(scope, class_=class_, code="", now=when).by_scope[scope].until - when
    doubled = f"{_span(shortages.FIRST)}, doubled up to {_span(shortages.CAP)}"
    if first == shortages.FIRST:
        return doubled
    return f"{_span(first)}; a reservation {doubled}" if answer.marks == "capacity" else _span(first)


def _span(length: timedelta) -> str:
    minutes = int(length.total_seconds()) // 60
    return f"{minutes // 60} h" if minutes % 60 == 0 else f"{minutes} min"


def codes() -> str:
    """Every code that is known by name."""
    order = list(ErrorClass)
    known = sorted(errors.TABLE.items(), key=lambda entry: (order.index(entry[1]), entry[0]))
    return table(("code", "class"), ((f"`{code}`", f"`{class_}`") for code, class_ in known))


def shapes() -> str:
    """Names that are not known one by one."""
    rows = [(f"`{shape.pattern}`", f"`{class_}`") for shape, class_ in errors._SHAPES]
    return table(("a name that matches", "class"), rows)


def texts() -> str:
    """Refusals that share a code, with the patterns of their messages."""
    rows = [(f"`{text.pattern}`", f"`{class_}`") for text, class_ in errors._TEXTS]
    return table(("a message that matches", "class"), rows)


def statuses() -> str:
    """Unknown names: the HTTP status decides."""
    http_statuses = (429, 500, 503, 401, 403, 404, 400)
    return table(
        ("HTTP status", "class"),
        ((str(status), f"`{errors.classify('Strange', status)}`") for status in http_statuses),
    )


def sdk() -> str:
    """Calls that AWS never answered: the SDK's own exceptions."""
    rows = [(f"`{kind.__name__}`", f"`{code}`", f"`{class_}`") for kind, code, class_, _ in errors._SDK]
    return table(("botocore's exception", "code shown", "class"), rows)


# ---- the field


def refusals() -> str:
    """The API server's messages for invalid specs."""
    spec = reservation_spec
    rows = {
        "`capacityReservationPreference` and `capacityReservationTarget`": spec.ONE_CHOICE_RULE,
        "neither of the two": spec.EMPTY_RULE,
        "another preference": spec.PREFERENCE_RULE,
        "`capacityReservationId` and `capacityReservationResourceGroupArn`": spec.ONE_TARGET_RULE,
        "an empty `capacityReservationTarget`": spec.EMPTY_TARGET_RULE,
        "a malformed id": spec.ID_RULE,
        "a malformed ARN": spec.ARN_RULE,
    }
    return table(("written", "message"), ((written, rule.message) for written, rule in rows.items()))


ODCR, GROUP = "cr-0123456789abcdef0", "arn:aws:resource-groups:us-east-1:123456789012:group/g"
SELECTIONS: Mapping[str, Selection] = {
    "nothing": Selection(),
    "`open`": Selection(preference="open"),
    "`none`": Selection(preference="none"),
    "`capacity-reservations-only`": Selection(preference="capacity-reservations-only"),
    "an id": Selection(reservation_id=ODCR),
    "a group's ARN": Selection(group_arn=GROUP),
}
# Heading: capacity type of the option, whether the claim allows on-demand, whether EC2 may count it later.
LAUNCHES: Mapping[str, tuple[CapacityType, bool, bool]] = {
    "a reserved slot": ("reserved", True, True),
    "a reserved slot, for a claim of `reserved` alone": ("reserved", False, True),
    "on-demand": ("on-demand", True, True),
    "on-demand that is not to be absorbed": ("on-demand", True, False),
    "spot": ("spot", True, True),
}


def templates() -> str:
    """CapacityReservationSpecification of the template: the class's selection against the launch."""
    return table(
        ("the class", *LAUNCHES),
        (
            (class_text, *(_specification(selection, *launch) for launch in LAUNCHES.values()))
            for class_text, selection in SELECTIONS.items()
        ),
    )


def _specification(selection: Selection, kind: CapacityType, allows_on_demand: bool, absorbable: bool) -> str:
    reserved = kind == "reserved"
    if reserved and selection == Selection():
        return "-"
    named = (selection.reservation_id or selection.group_arn) if reserved else ""
    pool = Pool(capacity_type=kind, instance_type="p5.48xlarge", zone="us-east-1a", reservation=named)
    option = Option(
        pool=pool, odcr_ids=(ODCR,) if reserved else (), market="spot" if kind == "spot" else "on-demand"
    )
    try:
        target = target_for(selection, option, allows_on_demand, absorbable=absorbable)
    except ValueError:
        return "-"
    if target.spills:
        return "the ARN"
    aim = " and the id" if target.reservation_id else " and the ARN" if target.group_arn else ""
    return f"`{target.preference}`{aim}"


# ---- operations


def options() -> str:
    """Every option, by its three names."""
    values = _chart_values()
    rows = []
    for setting in fields(Settings):
        option = HINTS[setting.name].__metadata__[0]
        default = str(setting.default).lower() if isinstance(setting.default, bool) else str(setting.default)
        shown = "the host's name" if setting.name == "identity" else f"`{default}`" if default else ""
        flag = "--" + setting.name.replace("_", "-")
        rows.append(
            (f"`{flag}`", f"`{option.envvar}`", values.get(option.envvar, ""), shown, str(option.help))
        )
    return table(("flag", "environment", "chart value", "default", "meaning"), rows)


def _chart_values() -> dict[str, str]:
    """Environment variable to the chart's value, from its deployment template."""
    text = (CHART / "templates" / "deployment.yaml").read_text()
    return {
        name: f"`{value}`"
        for name, value in re.findall(r"- name: ([A-Z_]+)\n\s+value: {{ \.Values\.([\w.]+)", text)
    }


def metrics() -> str:
    """Everything of the broker's own that /metrics shows."""
    return table(
        ("metric", "type", "labels", "meaning"),
        (
            (
                f"`{series.name}`",
                series.kind,
                ", ".join(f"`{label}`" for label in series.labels),
                series.meaning,
            )
            for series in monitoring.catalog().values()
        ),
    )


def permissions() -> str:
    """The chart's rules, one line each."""
    rows = []
    files = (
        ("cluster", "the cluster"),
        ("ome", "the cluster"),
        ("rooms", "the cluster, with `schedulerNames`"),
        ("scheduler", "the cluster, with `schedulerNames`: the scheduler"),
        ("scheduler-alone", "the cluster, with `scheduler.separate`: the scheduler"),
        ("webhook", "the cluster, with `webhook.enabled`"),
        ("web-events", "the cluster, with `web.enabled`"),
        ("web", "the cluster, with `web.userHeader` or `web.tokens`"),
        ("web-tokens", "the cluster, with `web.tokens`"),
        ("advisor", "the cluster, with `advise`"),
        ("definition", "the cluster, with `keepDefinition`"),
        ("system-namespace", "`kube-system`"),
        ("scheduler-namespace", "`kube-system`, with `schedulerNames`: the scheduler"),
        ("webhook-namespace", "its namespace, with `webhook.enabled`"),
    )
    for file, where in files:
        for rule in yaml.safe_load((CHART / "rbac" / f"{file}.yaml").read_text()):
            (group,), names = rule["apiGroups"], rule.get("resourceNames", ())
            only = f" (only {', '.join(f'`{name}`' for name in names)})" if names else ""
            full = ", ".join(
                f"`{resource}.{group}`" if group else f"`{resource}`" for resource in rule["resources"]
            )
            rows.append((where, full + only, ", ".join(rule["verbs"])))
    return table(("in", "resource", "verbs"), rows)


def manifests() -> str:
    """The warnings for each manifest of OME's page that needs a correction."""
    rows = []
    for manifest in test_ome.MANIFESTS:
        for document in test_ome.objects(manifest):
            if document["kind"] != DedicatedAICluster.KIND.kind:
                judged = judge(ReservationSpec.model_validate(document["spec"]), default_cohort="shared")
                rows += [(f"{manifest['name']}, line {manifest['line']}", note) for note in judged.notes]
    return table(("manifest", "warning; with `--strict`, why it is refused"), rows)


def example(file: str) -> Callable[[], str]:
    """A file of examples/, as a block."""
    return lambda: f"```yaml\n{(EXAMPLES / file).read_text()}```\n"


def changes() -> str:
    """The loops that each change starts."""
    return table(("change", "starts"), ((change, ", ".join(loops)) for change, loops in triggers().items()))


BLOCKS: Mapping[str, Callable[[], str]] = {
    "answers": answers,
    "changes": changes,
    "codes": codes,
    "example-borrowing": example("borrowing.yaml"),
    "example-bought": example("bought.yaml"),
    "example-dedicated-cluster": example("dedicated-cluster.yaml"),
    "example-flavors": example("flavors.yaml"),
    "manifests": manifests,
    "metrics": metrics,
    "options": options,
    "permissions": permissions,
    "refusals": refusals,
    "sdk": sdk,
    "shapes": shapes,
    "texts": texts,
    "statuses": statuses,
    "templates": templates,
}


def pages() -> list[Path]:
    return sorted(DOCS.rglob("*.md"))


def regenerated(text: str) -> str:
    """The page with every block as the code has it now. Raises KeyError for a block of an unknown name."""
    return BLOCK.sub(lambda match: f"{match[1]}\n{BLOCKS[match[2]]()}\n{match[4]}", text)


def main() -> int:
    for page in pages():
        before = page.read_text()
        after = regenerated(before)
        if after != before:
            page.write_text(after)
            print(f"{page.name}: written anew")
    return 0


if __name__ == "__main__":
    sys.exit(main())
