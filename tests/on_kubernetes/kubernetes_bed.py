"""A real API server with etcd on loopback, for tests: it can be killed and started again. `build.sh` builds it once."""

from __future__ import annotations

import os
import shutil
import signal
import ssl
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

from foundry import free_port

DEADLINE_S = 180.0
ADMIN = "admin-token"
BUSY = (429, 500, 503, 504)


def bed_programs() -> Path:
    """The folder that `build.sh` fills."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fairlead" / "kubernetes" / "bin"


class KubernetesBed:
    """`with KubernetesBed() as bed:`. `bed.ask` sends requests of an administrator."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="fairlead-kubernetes-"))
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._port, self._etcd, self._peer = free_port(), free_port(), free_port()
        self.server = f"https://127.0.0.1:{self._port}"
        self.ca = self.folder / "certs" / "apiserver.crt"
        self.admin_token = self.folder / "admin.token"

    def __enter__(self) -> KubernetesBed:
        key = ["openssl", "genrsa", "-out", str(self.folder / "accounts.key"), "2048"]
        subprocess.run(key, check=True, capture_output=True)
        (self.folder / "tokens.csv").write_text(f"{ADMIN},admin,admin,system:masters\n")
        self.admin_token.write_text(ADMIN)
        client, peer = (f"http://127.0.0.1:{port}" for port in (self._etcd, self._peer))
        names = ["--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer]
        names += ["--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"]
        names += ["--heartbeat-interval", "500", "--election-timeout", "5000"]  # on a busy machine it would leave itself
        self._run("etcd", "etcd", "--data-dir", str(self.folder / "etcd"), *names, "--unsafe-no-fsync")
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        for process in reversed(self._processes.values()):
            process.kill()
            process.wait(DEADLINE_S)
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self) -> None:
        """Start the API server; returns when it answers."""
        account = str(self.folder / "accounts.key")
        self._run(
            "api",
            str(bed_programs() / "kube-apiserver"),
            f"--etcd-servers=http://127.0.0.1:{self._etcd}",
            f"--secure-port={self._port}",
            "--bind-address=127.0.0.1",
            f"--cert-dir={self.folder / 'certs'}",
            f"--service-account-key-file={account}",
            f"--service-account-signing-key-file={account}",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--api-audiences=api",
            f"--token-auth-file={self.folder / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--disable-admission-plugins=ServiceAccount",  # no controller creates accounts
            "--allow-privileged=true",
            "--kubelet-preferred-address-types=InternalIP",
        )
        deadline = time.monotonic() + DEADLINE_S
        while True:
            try:
                if self.request("GET", "/readyz").is_success:
                    return
            except (httpx.HTTPError, OSError):
                pass
            assert self._processes["api"].poll() is None, (self.folder / "api.log").read_text()[-3000:]
            assert time.monotonic() < deadline, (self.folder / "api.log").read_text()[-3000:]
            time.sleep(0.1)

    def kill(self) -> None:
        """Kill the API server; etcd keeps all objects."""
        self._processes["api"].send_signal(signal.SIGKILL)
        self._processes["api"].wait(DEADLINE_S)

    @contextmanager
    def away(self) -> Iterator[None]:
        """While it lasts, the API server does not run."""
        self.kill()
        try:
            yield
        finally:
            self.start()

    def request(self, method: str, path: str, body: Any = None, *, token: str = ADMIN, **headers: str) -> httpx.Response:
        """Send a request, and return whatever answers it."""
        headers = {"Authorization": f"Bearer {token}", **headers}
        trust = ssl.create_default_context(cafile=str(self.ca))
        return httpx.request(method, self.server + path, json=body, headers=headers, verify=trust, timeout=DEADLINE_S)

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> dict[str, Any]:
        """Send a request that must succeed; a busy server is asked again."""
        deadline = time.monotonic() + DEADLINE_S
        while (answer := self.request(method, path, body, **headers)).status_code in BUSY and time.monotonic() < deadline:
            time.sleep(0.2)
        assert answer.is_success, answer.text
        return dict(answer.json())

    def namespace(self, name: str) -> str:
        """Create a namespace."""
        self.ask("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        return name

    def account_token(self, namespace: str, account: str) -> str:
        """A token of a service account."""
        asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": ["api"]}}
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        return str(self.ask("POST", path, asked)["status"]["token"])

    def _run(self, name: str, *command: str) -> None:
        with open(self.folder / f"{name}.log", "ab") as log:
            self._processes[name] = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *command], stdout=log, stderr=log, cwd=self.folder, stdin=subprocess.DEVNULL
            )
