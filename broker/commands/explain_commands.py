"""The commands `explain claim|pod|deployment|statefulset|job`: they plan with EC2's present data."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Annotated, Final

import typer

from broker.commands.help import Command
from broker.commands.output import Format, Output, show_one
from broker.commands.verb_commands import CLUSTER
from broker.oncall.workload_kinds import WORKLOADS
from broker.options import options
from broker.settings import Settings

if TYPE_CHECKING:
    from broker.commands.explain.claims import Forecaster
    from broker.commands.explain.explanation import Explanation
    from broker.commands.explain.pod import PodExplainer
    from broker.commands.explain.present import TextOrTable
    from broker.kube.client import Client
    from providers.aws import AwsProvider

# A command offers only the settings that it reads.
AWS: Final = ("region", "aws_endpoint", "aws_profile")
# The plan's own settings, and those of the ownership of slots.
PLAN: Final = (
    "vm_memory_overhead_percent",
    "reserved_enis",
    "price_ceiling",
    "fallback_premium",
    "gang_hold_seconds",
)
OWNERSHIP: Final = ("cluster_name", "default_cohort", "strict", "buy_zones")
DEFAULT: Final = "default"
_NEEDS: Final = (*PLAN, *OWNERSHIP, *AWS, *CLUSTER)

Claim = Annotated[str, typer.Argument(metavar="NAME", help="Name of the NodeClaim.")]
Pod = Annotated[str, typer.Argument(metavar="NAME", help="NAME of the Pod, or NAMESPACE/NAME.")]
Workload = Annotated[str, typer.Argument(metavar="NAME", help="Its NAME, or NAMESPACE/NAME.")]
Namespace = Annotated[str, typer.Option("--namespace", "-n", metavar="NAMESPACE", help="Its namespace.")]


def register(
    explain_app: typer.Typer, client: Callable[[Settings], Client], provider: Callable[..., AwsProvider]
) -> None:
    """Adds the commands to the group `explain`. `client` connects to the cluster, `provider` to AWS."""

    @explain_app.command("claim", cls=Command)
    @options(*_NEEDS)
    def explain_claim(settings: Settings, name: Claim, output: Output = Format.TABLE) -> None:
        """Show every attempt for a NodeClaim, in order, with EC2's codes and request ids. For a waiting
        claim, also show every present option and the reason why it is not taken.
        """
        from broker.commands.explain import claims
        from broker.commands.explain.explanation import OPTION_COLUMNS
        from broker.commands.explain.present import page, stacked
        from broker.oncall.state import untried

        connected = client(settings)
        claim = claims.claim(connected, name)
        options_now = _forecaster(settings, connected, provider).of(claim)
        events = claims.events(connected, claim)
        pods, usd_hour = claims.pods_on(connected, claim), claims.price(connected, claim)
        if output is not Format.TABLE:
            document = claims.document(claim, options_now, events, pods=pods, usd_hour=usd_hour)
            show_one(document, format_=output)
            return
        tried = claims.format_attempts(claims.attempts(claim, events))
        parts: list[TextOrTable] = [claims.headline(claim, pods=pods, usd_hour=usd_hour)]
        parts += [
            (tried, claims.ATTEMPT_COLUMNS) if tried else [untried(claim)],
            (claims.format_events(events), claims.EVENT_COLUMNS),
        ]
        if options_now is not None:
            short = claims.format_shortages(claims.shortages(options_now))
            parts += [
                [f"Now: {options_now.decision}"],
                (claims.format_options(options_now.rows), OPTION_COLUMNS),
                (short, claims.SHORTAGE_COLUMNS),
            ]
        page().print(stacked(parts), crop=False)

    @explain_app.command("pod", cls=Command)
    @options(*_NEEDS)
    def explain_pod(
        settings: Settings, name: Pod, namespace: Namespace = DEFAULT, output: Output = Format.TABLE
    ) -> None:
        """Show why a pod waits or where it runs: its NodePools, every option with its price, the slot that it
        has or waits for with the users of that slot, the next step, and the command that helps.
        """
        from broker.commands.explain.pod import find

        namespace, name = _place(namespace, name)
        explainer = _explainer(settings, namespace, client, provider)
        _print([explainer.page(find(explainer.situation, namespace, name))], output)

    for kind in WORKLOADS:
        _add_workload(kind, explain_app, client, provider)


def _place(namespace: str, name: str) -> tuple[str, str]:
    """The namespace and name of `NAME`, or of `NAMESPACE/NAME`. Raises ValueError for two namespaces."""
    within, slash, own = name.partition("/")
    if not slash:
        return namespace, name
    if not within or not own or "/" in own:
        raise ValueError(f"{name!r}: write NAME or NAMESPACE/NAME")
    if namespace not in (DEFAULT, within):
        raise ValueError(f"{name!r} and --namespace {namespace} name two namespaces: write one of them")
    return within, own


def _add_workload(
    kind: str,
    explain_app: typer.Typer,
    client: Callable[[Settings], Client],
    provider: Callable[..., AwsProvider],
) -> None:
    def show(
        settings: Settings, name: Workload, namespace: Namespace = DEFAULT, output: Output = Format.TABLE
    ) -> None:
        from broker.commands.explain.workload import KINDS, explain_workload

        namespace, name = _place(namespace, name)
        explainer, connect = _explainer(settings, namespace, client, provider), partial(client, settings)
        _print(explain_workload(explainer, connect, KINDS[kind], namespace, name), output)

    show.__doc__ = f"Show the pods of a {WORKLOADS[kind].kind} as `explain pod` does, equal ones together."
    explain_app.command(kind, cls=Command)(options(*_NEEDS)(show))


def _print(pages: list[Explanation], output: Format) -> None:
    """The pages below each other; for a machine one document, with those of the waiting pods in `waiting`."""
    from broker.commands.explain.pod import PARTS
    from broker.commands.explain.present import page, rendered

    if output is not Format.TABLE:
        first, *rest = [explanation.document() for explanation in pages]
        show_one(first | ({"waiting": rest} if rest else {}), format_=output)
        return
    console = page()
    for place, explanation in enumerate(pages):
        console.print(*([""] if place else []), rendered(explanation, parts=PARTS), sep="\n", crop=False)


def _explainer(
    settings: Settings,
    namespace: str,
    client: Callable[[Settings], Client],
    provider: Callable[..., AwsProvider],
) -> PodExplainer:
    from broker.commands.explain.pod import PodExplainer
    from broker.commands.explain.reading import read_pods
    from broker.kube.clock import SystemClock

    connected = client(settings)
    situation = read_pods(connected, SystemClock().now(), namespace)
    return PodExplainer(situation=situation, forecaster=_forecaster(settings, connected, provider))


def _forecaster(settings: Settings, connected: Client, provider: Callable[..., AwsProvider]) -> Forecaster:
    """Connects to EC2 when a plan needs it, once."""
    from broker.commands.dry_run import DryRun
    from broker.commands.explain.claims import Forecaster
    from broker.kube.clock import SystemClock
    from broker.kube.version import ServerVersion

    def connect() -> AwsProvider:
        return provider(settings, kubernetes=ServerVersion(connected, clock=SystemClock())())

    return Forecaster(
        client=connected,
        provider=cache(connect),
        now=SystemClock().now(),
        defaults=settings.launch_defaults,
        entitle=lambda known: DryRun(connected, known, settings, SystemClock()).entitlements,
    )
