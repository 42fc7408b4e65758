"""A story's stage: the demo's servers with a broker that runs, and timed lines for its reader."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry
from rich.console import Console

from broker.commands.output import console
from broker.kube.client import Client
from broker.kube.clock import Clock, SystemClock
from broker.settings import Settings
from local.demo.account import ExampleIds
from local.demo.kubelets import Kubelets
from local.demo.scheduling import KubeScheduler
from local.demo.session import until_interrupted
from local.demo.stage import Stage, build, hints, line, prepare, servers, until
from local.demo.workloads import Workloads
from local.in_process import InProcessTransport


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Everything that a story acts on, and prints with."""

    stage: Stage
    clock: Clock
    out: Console
    kubeconfig: Path
    # Objects that people write must not look like the broker's own.
    user: Client
    began: float
    registry: CollectorRegistry  # of the provider's metrics
    workloads: Workloads

    def report(self, text: str) -> None:
        """One line, with the seconds since the beginning."""
        passed = self.clock.monotonic() - self.began
        self.out.print(f"[dim]{passed:6.1f}s[/dim]  {text}", soft_wrap=True)

    def until(self, done: Callable[[], object]) -> bool:
        """Whether it came true within the demo's patience."""
        return until(done, self.clock)

    def stay(self, *commands: str, page: str = "") -> None:
        """Prints commands to try, and stays up until it is interrupted."""
        self.out.print(hints(self.kubeconfig, self.stage.aws.endpoint, *commands, page=page), soft_wrap=True)
        until_interrupted()


@contextmanager
def open_scene(settings: Settings, *, make: Callable[[str], ExampleIds]) -> Iterator[Scene]:
    """Local AWS, an API server, all else of a cluster, simulated, and the broker, ready.

    `make` makes the account.
    """
    out, clock = console(), SystemClock()
    began = clock.monotonic()
    prepare(settings)
    with servers() as (aws, api, folder):
        kubeconfig = folder / "kubeconfig"
        kubeconfig.write_text(api.kubeconfig(name="demo"))
        registry = CollectorRegistry(auto_describe=True)
        stage = build(settings, aws, api, clock, registry, make=make)
        user = Client(InProcessTransport(api.cluster), field_manager="kubectl")
        scene = Scene(
            stage=stage,
            clock=clock,
            out=out,
            kubeconfig=kubeconfig,
            user=user,
            began=began,
            registry=registry,
            workloads=Workloads(user, clock=clock),
        )
        scene.report(f"local AWS at {aws.endpoint}")
        scene.report(f"Kubernetes API at {api.url}")
        simulated = (
            Kubelets(stage.client, stage.provider, clock=clock),
            KubeScheduler(user, clock=clock, but=stage.settings.schedulers),
            scene.workloads,
        )
        stage.broker.journal.subscribe(lambda attempt: scene.report(line(attempt)))
        stage.start()
        for part in simulated:
            part.start()
        try:
            scene.until(lambda: all(stage.broker.ready().values()))
            yield scene
        finally:
            for part in simulated:
                part.stop()
            stage.stop()
