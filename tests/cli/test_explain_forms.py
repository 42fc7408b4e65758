"""The forms of `explain`: kinds of workload, and kubectl's TYPE/NAME."""

from __future__ import annotations

import pytest

from .kit import main
from .town import Town, owned_by


@pytest.mark.covers("ONC-01")
@pytest.mark.parametrize(
    ("form", "arguments"),
    [
        ("pod/old", ("pod", "old")),
        ("po/old", ("pod", "old")),
        ("pods/old", ("pod", "old")),
        ("statefulset/db", ("statefulset", "db")),
        ("sts/db", ("statefulset", "db")),
        ("sts db", ("statefulset", "db")),
        ("statefulset.apps/db", ("statefulset", "db")),
        ("job/train", ("job", "train")),
        ("job.batch/train", ("job", "train")),
        ("deployment/shop", ("deployment", "shop")),
        ("deploy/shop", ("deployment", "shop")),
        ("claim/holder-0", ("claim", "holder-0")),
        ("nodeclaim.karpenter.sh/holder-0", ("claim", "holder-0")),
    ],
)
def test_type_slash_name_is_type_and_name(town: Town, form: str, arguments: tuple[str, str]) -> None:
    town.fill()
    for kind, name in (("StatefulSet", "db"), ("Job", "train"), ("ReplicaSet", "shop-6d4b")):
        labels = {"pod-template-hash": "6d4b"} if kind == "ReplicaSet" else {}
        pod = f"{name}-0"
        town.pod(pod, node="ip-10-0-0-1", ownerReferences=[owned_by(kind, name)], labels=labels)
    namespace = () if arguments[0] == "claim" else ("-n", "ml")
    shown = town.explain(*form.split(), *namespace)
    assert shown == town.explain(*arguments, *namespace)
    assert arguments[1] in str(shown) and "holder-0" in str(shown)


@pytest.mark.covers("ONC-01")
def test_class_and_reservation_have_the_form_too(town: Town) -> None:
    town.fill()
    options = ("--kubeconfig", town.kubeconfig)
    for form in ("class/training", "ec2nodeclass/training", "reservation/ml/gpus", "reservation/gpus"):
        assert main("explain", form, *options) == 0, form
    for alias in ("odcr/", "odcr ", "ondemandcapacityreservation/"):
        form = f"{alias}{town.world.odcr}"
        assert main("explain", *form.split(), *options) == 0, form


@pytest.mark.covers("ONC-01")
@pytest.mark.parametrize(
    ("form", "words"),
    [
        ("pod/", "Missing argument 'NAME'"),
        ("daemonset/x", "No such command 'daemonset/x'"),
        ("node/x", "explain knows claim, class, cluster, deployment, job, pod, reservation, stateful"),
        ("podd/x", "the nearest is pod"),
        ("nodeclam/web", "the nearest is claim"),
        ("statefulset/none", "no StatefulSet 'none' in this cluster"),
    ],
)
def test_a_wrong_form_is_answered(
    town: Town, capsys: pytest.CaptureFixture[str], form: str, words: str
) -> None:
    assert main("explain", form, "-n", "ml", "--kubeconfig", town.kubeconfig) == 2
    assert words in capsys.readouterr().err


@pytest.mark.covers("ONC-01")
def test_help_names_the_kinds_and_the_form(capsys: pytest.CaptureFixture[str]) -> None:
    main("explain", "--help")
    shown = capsys.readouterr().out
    assert "TYPE/NAME" in shown
    for kind in ("pod", "deployment", "statefulset", "job", "claim", "class", "reservation"):
        assert f"  {kind} " in shown, kind
