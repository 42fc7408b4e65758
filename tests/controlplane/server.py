"""A throw-away Kubernetes control plane: etcd, kube-apiserver and, optionally, kube-scheduler.

Invariant: leaving the context leaves no process and no file. The API server is stopped before etcd, since it
waits for etcd when it shuts down. Flags follow the components' own references
(https://kubernetes.io/docs/reference/command-line-tools-reference/kube-apiserver/).
"""

import base64
import json
import os
import shutil
import socket
import ssl
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.controlplane import audit

BUILT = Path(__file__).resolve().parents[2] / ".cache" / "controlplane" / "bin"
NEEDED = ("etcd", "kube-apiserver")
ADMIN = "admin"
SCHEDULER = "kube-scheduler"
ATTEMPTS = 3  # a port that was free a moment ago may be taken when the program binds it
START_TIMEOUT = 120.0
POLL = 0.1  # each look is a TLS handshake
ROOT = "/registry/"  # of the API server's keys in etcd
OPERATIONS = 100  # of a transaction; etcd takes 128
# Objects that the API server makes by itself at any time, and definitions of custom resources.
KEPT = tuple(
    ROOT + prefix
    for prefix in (
        "apiextensions.k8s.io/",
        "apiregistration.k8s.io/",
        "clusterrole",
        "configmaps/kube-system/",
        "flowschemas/",
        "leases/kube-system/",
        "masterleases/",
        "peerserverleases/",
        "prioritylevelconfigurations/",
        "ranges/",
        "role",
        "servicecidrs/",
    )
)
# Names of a broker's objects in kube-system begin so: its Lease, and the ConfigMaps of its state.
BROKERS = "capacity-broker"

APISERVER_FLAGS = (
    "--bind-address=127.0.0.1",
    "--authorization-mode=RBAC",
    "--service-account-issuer=https://kubernetes.default.svc",
    "--service-cluster-ip-range=10.96.0.0/24",
    "--allow-privileged",
    # No controller manager runs that makes service accounts or removes the not-ready taint.
    "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
    "--profiling=false",
)
# Alpha APIs of the version that build.sh builds; another version may refuse the names.
BUILT_FLAGS = (
    "--feature-gates=GenericWorkload=true",
    "--runtime-config=scheduling.k8s.io/v1alpha2=true",
)


def find() -> Path | None:
    """The folder with etcd and kube-apiserver: KUBEBUILDER_ASSETS first, then the output of build.sh."""
    named = os.environ.get("KUBEBUILDER_ASSETS")
    for folder in ([Path(named)] if named else []) + [BUILT]:
        if all(os.access(folder / program, os.X_OK) for program in NEEDED):
            return folder
    return None


class StartError(RuntimeError):
    """A program of the control plane ended, or did not become ready; the text ends with its log."""


class ControlPlane:
    """`with ControlPlane() as plane:` gives `url`, `token`, `ca` (a file) and `kubeconfig()` (text).

    `users` may do everything too, each under its own name; `writes` separates them.
    """

    def __init__(
        self, *, programs: Path | None = None, flags: tuple[str, ...] = (), users: tuple[str, ...] = ()
    ) -> None:
        folder = programs or find()
        if folder is None:
            raise StartError("no etcd and kube-apiserver: run `make controlplane` or set KUBEBUILDER_ASSETS")
        self._bin = folder
        self._flags = flags
        self._tokens = {user: f"{user}-of-a-throw-away-cluster" for user in (ADMIN, SCHEDULER, *users)}
        self._audited = bool(users)
        self._dir = Path(tempfile.mkdtemp(prefix="controlplane-"))
        self._processes: list[subprocess.Popen[bytes]] = []
        self._born: frozenset[str] = frozenset()
        self.token = self._tokens[ADMIN]
        self.url = ""
        self.etcd = ""
        self.ca = self._dir / "certs" / "apiserver.crt"

    def __enter__(self) -> Self:
        try:
            self._write_keys()
            self._start_etcd()
            self._start_apiserver()
            self._born = self._keys()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        while self._processes:
            _end(self._processes.pop())  # last started, first stopped
        shutil.rmtree(self._dir, ignore_errors=True)

    def kubeconfig(self, *, user: str = ADMIN) -> str:
        return kubeconfig(url=self.url, token=self._tokens[user], ca=self.ca)

    def writes(self) -> list[audit.Write]:
        """The write requests since the API server started, with their users."""
        return audit.writes(self._dir)

    def scheduler(self) -> None:
        """Starts kube-scheduler and returns when it is ready; it stops with the control plane."""
        if not os.access(self._bin / "kube-scheduler", os.X_OK):
            raise StartError(f"no kube-scheduler in {self._bin}: run `make controlplane`")
        config = self._dir / "scheduler.kubeconfig"
        config.write_text(self.kubeconfig(user=SCHEDULER))

        def start() -> None:
            port = free_port()
            process = self._run(
                "kube-scheduler",
                f"--kubeconfig={config}",
                f"--authentication-kubeconfig={config}",
                f"--authorization-kubeconfig={config}",
                "--leader-elect=false",
                "--bind-address=127.0.0.1",
                f"--secure-port={port}",
            )
            self._wait(process, "kube-scheduler", lambda: _get(f"https://127.0.0.1:{port}/readyz") == 200)

        self._retry(start)

    def compact(self) -> None:
        """Drops etcd's history, as the API server does every five minutes: older revisions are gone."""
        status = _post(f"{self.etcd}/v3/maintenance/status", {})
        _post(f"{self.etcd}/v3/kv/compaction", {"revision": status["header"]["revision"], "physical": True})

    def wipe(self) -> None:
        """Removes from etcd all objects made since the start, except the server's own and definitions.

        The server sees the objects go as if they were deleted; no finalizer blocks this.
        """
        keys = self._keys() - self._born
        left = [key for key in keys if not key.startswith(KEPT) or key.rpartition("/")[2].startswith(BROKERS)]
        for batch in (left[i : i + OPERATIONS] for i in range(0, len(left), OPERATIONS)):
            gone = [{"requestDeleteRange": {"key": _base64(key)}} for key in batch]
            _post(f"{self.etcd}/v3/kv/txn", {"success": gone})

    def _keys(self) -> frozenset[str]:
        key_range = {"key": _base64(ROOT), "range_end": _base64(ROOT[:-1] + "0"), "keys_only": True}
        entries: Any = _post(f"{self.etcd}/v3/kv/range", key_range).get("kvs", ())
        return frozenset(base64.b64decode(entry["key"]).decode() for entry in entries)

    def _write_keys(self) -> None:
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        (self._dir / "sa.key").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.TraditionalOpenSSL,
                serialization.NoEncryption(),
            )
        )
        (self._dir / "tokens.csv").write_text(
            "".join(f'{token},{user},{user},"system:masters"\n' for user, token in self._tokens.items())
        )

    def _start_etcd(self) -> None:
        def start() -> None:
            clients, peers = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
            data = tempfile.mkdtemp(prefix="etcd-", dir=self._dir)
            process = self._run(
                "etcd",
                f"--data-dir={data}",
                f"--listen-client-urls={clients}",
                f"--advertise-client-urls={clients}",
                f"--listen-peer-urls={peers}",
                f"--initial-advertise-peer-urls={peers}",
                f"--initial-cluster=default={peers}",
                "--unsafe-no-fsync",
                "--log-level=warn",
            )
            self._wait(process, "etcd", lambda: _get(f"{clients}/health") == 200)
            self.etcd = clients

        self._retry(start)

    def _start_apiserver(self) -> None:
        def start() -> None:
            port = free_port()
            self.url = f"https://127.0.0.1:{port}"
            process = self._run(
                "kube-apiserver",
                f"--secure-port={port}",
                f"--etcd-servers={self.etcd}",
                f"--cert-dir={self.ca.parent}",
                f"--token-auth-file={self._dir / 'tokens.csv'}",
                f"--service-account-key-file={self._dir / 'sa.key'}",
                f"--service-account-signing-key-file={self._dir / 'sa.key'}",
                *APISERVER_FLAGS,
                *(BUILT_FLAGS if self._bin == BUILT else ()),
                *(audit.flags(self._dir) if self._audited else ()),
                *self._flags,
            )
            self._wait(process, "kube-apiserver", self._serves)

        self._retry(start)

    def _serves(self) -> bool:
        # The default namespace is made by a controller that readiness does not wait for.
        paths = ("/readyz", "/api/v1/namespaces/default", "/api/v1/namespaces/kube-system")
        return all(_get(self.url + path, token=self.token, ca=self.ca) == 200 for path in paths)

    def _run(self, program: str, *flags: str) -> subprocess.Popen[bytes]:
        # Where util-linux is, a killed test run does not leave its servers behind.
        mortal = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        with (self._dir / f"{program}.log").open("wb") as log:
            process = subprocess.Popen(
                [*mortal, str(self._bin / program), *flags],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._dir,
            )
        self._processes.append(process)
        return process

    def _wait(self, process: subprocess.Popen[bytes], program: str, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_TIMEOUT
        while not ready():
            try:
                code = process.wait(timeout=POLL)
            except subprocess.TimeoutExpired:
                if time.monotonic() < deadline:
                    continue
                raise StartError(
                    f"{program} is not ready after {START_TIMEOUT} s\n{self.log(program)}"
                ) from None
            raise StartError(f"{program} ended with exit code {code}\n{self.log(program)}")

    def _retry(self, start: Callable[[], None]) -> None:
        for attempt in range(1, ATTEMPTS + 1):
            before = len(self._processes)
            try:
                start()
                return
            except StartError as error:
                while len(self._processes) > before:
                    _end(self._processes.pop())
                if "address already in use" not in str(error) or attempt == ATTEMPTS:
                    raise

    def log(self, program: str, *, lines: int = 20) -> str:
        """The end of a program's log."""
        return "\n".join((self._dir / f"{program}.log").read_text(errors="replace").splitlines()[-lines:])


def kubeconfig(*, url: str, token: str = "", ca: Path | None = None) -> str:
    """A kubeconfig (JSON is YAML) for one server."""
    cluster: dict[str, str] = {"server": url}
    if ca is not None:
        cluster["certificate-authority"] = str(ca)
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "test", "user": {"token": token} if token else {}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "current-context": "test",
        },
        indent=2,
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _get(url: str, *, token: str = "", ca: Path | None = None) -> int:
    """The status of a GET; 0 without a response."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, headers=headers), timeout=5, context=_trust(url, ca)
        ) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:  # the certificate, too, may be there in part only
        return 0


def _trust(url: str, ca: Path | None) -> ssl.SSLContext | None:
    """Raises OSError while the server has not written its certificate."""
    if not url.startswith("https"):
        return None
    if ca is None:
        return ssl._create_unverified_context()  # the scheduler's own throw-away certificate
    return ssl.create_default_context(cafile=str(ca))


def _base64(key: str) -> str:
    return base64.b64encode(key.encode()).decode()


def _post(url: str, body: Mapping[str, object]) -> dict[str, Any]:
    request = urllib.request.Request(url, data=json.dumps(body).encode(), method="POST")
    with urllib.request.urlopen(request, timeout=60) as reply:
        answer: dict[str, Any] = json.load(reply)
        return answer
