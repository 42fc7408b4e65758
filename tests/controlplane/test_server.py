"""The throw-away control plane: its processes, its errors if it cannot start, and its cleaning up."""

from pathlib import Path

import pytest

from tests.controlplane import server
from tests.controlplane.server import ControlPlane, StartError
from tests.peers.programs import until
from tests.support import servers

POD = {"metadata": {"name": "a"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}


def programs(folder: Path) -> Path:
    for name in server.NEEDED:
        (folder / name).write_text("#!/bin/sh\necho nothing works here\nexit 3\n")
        (folder / name).chmod(0o755)
    return folder


def test_the_named_folder_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(programs(tmp_path)))
    assert server.find() == tmp_path


def test_a_folder_without_the_programs_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    monkeypatch.setattr(server, "BUILT", tmp_path / "nothing")
    assert server.find() is None
    assert "make controlplane" in servers.missing()


def test_ended_program_is_reported_with_its_log(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="etcd ended with exit code 3\nnothing works here"):
        ControlPlane(programs=programs(tmp_path)).__enter__()


def test_a_missing_server_is_skipped_unless_it_is_required(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.setattr(server, "BUILT", tmp_path)
    monkeypatch.delenv(servers.REQUIRED, raising=False)
    with pytest.raises(pytest.skip.Exception, match="make controlplane"):
        servers.need()
    monkeypatch.setenv(servers.REQUIRED, "1")
    with pytest.raises(pytest.fail.Exception, match="CI_REQUIRE_CONTROLPLANE=1, but no etcd"):
        servers.need()


def test_server_without_a_certificate_does_not_answer(tmp_path: Path) -> None:
    ca = tmp_path / "apiserver.crt"
    assert server._get("https://127.0.0.1:1/readyz", ca=ca) == 0
    ca.touch()
    assert server._get("https://127.0.0.1:1/readyz", ca=ca) == 0


@pytest.mark.real
def test_the_scheduler_binds_a_pod() -> None:
    servers.need()
    with ControlPlane(users=("somebody",)) as plane:  # one of its own: a scheduler would bind others' pods
        plane.scheduler()
        api = servers.over_real(plane)
        node = {
            "metadata": {"name": "n"},
            "status": {"capacity": {"cpu": "4", "pods": "10", "memory": "8Gi"}},
        }
        assert api.request("POST", "/api/v1/nodes", body=node).status == 201
        assert api.request("POST", "/api/v1/namespaces/default/pods", body=POD).status == 201
        with api.watch("/api/v1/namespaces/default/pods", {"fieldSelector": "spec.nodeName=n"}) as bound:
            assert bound.take(1)[0]["object"]["metadata"]["name"] == "a"
        expected = {("admin", "create", "pods", "a"), ("kube-scheduler", "create", "pods/binding", "a")}
        # A write is logged once it is answered, which is after watches show it.
        until(
            lambda: expected <= {(w.user, w.verb, w.resource, w.name) for w in plane.writes()},
            "both are logged",
        )
        folder = plane.ca.parent.parent
    assert not folder.exists()
