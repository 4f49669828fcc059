"""Two control planes on one PostgreSQL journal, as real processes: one runs the cluster, the other waits to take over."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from cluster_at_work import PATIENCE_S, ClusterAtWork, Gone, wait_for
from typer.testing import CliRunner
from wire import Wire

from certificates import certificates
from fairlead.cli.main import app
from fairlead.journal.control_files import FolderFiles
from fairlead.journal.jsonl import JsonlJournal
from fairlead.runtime import http_client, standby
from fairlead.runtime.http_client import STANDBY_HEADER, ControlPlaneClient
from foundry import ends, foundry, free_port
from postgres_server import PostgresServer

pytestmark = pytest.mark.long


class TwoControlPlanes(ClusterAtWork):
    """The first one is active, and the agent of the only node knows both. `journals` are the URLs by which they reach the
    database."""

    def __init__(self, root: Path, journals: tuple[str, str], *options: str, lease_s: float = 90.0) -> None:
        super().__init__(root, "2xv100:2", lease_s=lease_s, grace_s=10.0, journal=journals[0])
        self._command += options
        self.other_http, self.other_port, self.other = free_port(), free_port(), 0
        self._other_journal = journals[1]

    def start_agent(self, node: str, through: int | None = None) -> None:
        words = ["agent", "--control", f"127.0.0.1:{self.port},127.0.0.1:{self.other_port}", "--node", node, "--end-jobs"]
        words += ["--accelerators", "v100:2", "--root", str(self.root / node)]
        words += ["--token-file", str(self.root / "plane" / "agent.token")]
        self.agents[node] = foundry().make(words, self.root / f"{node}.log")

    def start_standby(self) -> None:
        words = [*self._command, "--standby", "--cluster", self._machines, "--root", str(self.root / "other")]
        words[words.index("--journal") + 1] = self._other_journal
        words += ["--http", f"127.0.0.1:{self.other_http}", "--agents", f"127.0.0.1:{self.other_port}"]
        self.other = foundry().make(words, self.root / "other.log")
        wait_for(lambda: self.standby_answer() is not None, "the standby answers", self._logs)

    def standby_answer(self, path: str = "/v1/jobs") -> httpx.Response | None:
        try:
            url = f"{self.scheme}://127.0.0.1:{self.other_http}{path}"
            return httpx.get(url, timeout=PATIENCE_S, trust_env=False, verify=False)
        except httpx.HTTPError:
            return None

    def follow_takeover(self) -> int:
        """The other one is the control plane from now on. Returns the process of the first one."""
        first, self.plane, self.other = self.plane, self.other, 0
        self.http, self.other_http = self.other_http, self.http
        self.port, self.other_port = self.other_port, self.port
        self._journal = self._other_journal
        wait_for(self.answers, "the standby takes over", self._logs)
        return first

    def answers(self) -> bool:
        try:
            self.jobs()
        except Gone:
            return False
        return True

    @property
    def urls(self) -> str:
        return ",".join(f"{self.scheme}://127.0.0.1:{port}" for port in (self.http, self.other_http))

    @property
    def client(self) -> ControlPlaneClient:
        return ControlPlaneClient(self.urls, (self.root / "plane" / "admin.token").read_text(), timeout_s=PATIENCE_S)

    def _logs(self) -> str:
        return super()._logs() + "\n".join(path.read_text() for path in self.root.glob("other*.log"))

    def _end(self) -> None:
        if self.other:
            os.kill(self.other, signal.SIGKILL)
            ends(self.other, PATIENCE_S)
        super()._end()


class WithCertificates(TwoControlPlanes):
    """All of them speak TLS."""

    scheme = "https"

    def __init__(self, root: Path, url: str) -> None:
        self.ca, certificate, key = certificates(root)
        super().__init__(root, (url, url), "--tls-cert", str(certificate), "--tls-key", str(key))

    def start_agent(self, node: str, through: int | None = None) -> None:
        words = ["agent", "--control", f"127.0.0.1:{self.port},127.0.0.1:{self.other_port}", "--node", node, "--end-jobs"]
        words += ["--accelerators", "v100:2", "--root", str(self.root / node), "--tls-ca", str(self.ca)]
        words += ["--token-file", str(self.root / "plane" / "agent.token")]
        self.agents[node] = foundry().make(words, self.root / f"{node}.log")

    def command(self, *words: str) -> subprocess.Popen[bytes]:
        """A command that goes on, and writes to a log with its name."""
        about = {"FAIRLEAD_URL": self.urls, "FAIRLEAD_CA": str(self.ca)}
        about["FAIRLEAD_TOKEN"] = (self.root / "plane" / "admin.token").read_text()
        with (self.root / f"{words[0]}.log").open("wb") as log:
            whole = [sys.executable, "-m", "fairlead.cli.main", *words]
            return subprocess.Popen(whole, stdout=log, stderr=subprocess.DEVNULL, env={**os.environ, **about})


TALKS = """
import itertools, os, time
for number in itertools.count():
    print(number, flush=True)
    time.sleep(0.1)
    if os.path.exists("enough"):
        break
"""


def test_wait_and_logs_follow_a_job_over_a_takeover_with_certificates(tmp_path: Path, postgres: PostgresServer) -> None:
    with WithCertificates(tmp_path, postgres.database()) as cluster:
        cluster.start_standby()
        job = {"name": "talks", "run": [sys.executable, "-c", TALKS], "directory": str(tmp_path)}
        cluster.submit(job)
        waits, follows = cluster.command("wait", "talks"), cluster.command("logs", "-f", "talks")
        try:
            seen = lambda: (tmp_path / "logs.log").read_text().splitlines()  # noqa: E731
            wait_for(lambda: len(seen()) > 3, "it talks", cluster._logs)
            cluster.kill_plane()
            cluster.follow_takeover()
            cluster.until_connected()
            before = len(seen())
            wait_for(lambda: len(seen()) > before, "its log is followed", cluster._logs)
            assert (waits.poll(), follows.poll(), cluster.jobs()["talks"]["starts"]) == (None, None, 1)
            (tmp_path / "enough").touch()
            assert (waits.wait(PATIENCE_S), follows.wait(PATIENCE_S)) == (0, 0), cluster._logs()
            assert seen() == [str(number) for number in range(len(seen()))], "each line once"
        finally:
            for process in (waits, follows):
                process.kill()
                process.wait()


def long_job(cluster: ClusterAtWork) -> dict[str, Any]:
    return cluster.job("long", steps=3000, step_s=0.1, save_every=20)


def until_running(cluster: ClusterAtWork) -> None:
    cluster.until("it makes steps", lambda jobs: jobs["long"]["phase"] == "running" and len(cluster.steps_of("long")) > 3)


def test_a_standby_takes_over_from_one_that_is_killed(
    tmp_path: Path, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_client, "TAKEOVER_WITHIN_S", PATIENCE_S)
    url = postgres.database()
    with TwoControlPlanes(tmp_path, (url, url)) as cluster:
        cluster.start_standby()
        for path in ("/v1/jobs", "/healthz"):
            answer = cluster.standby_answer(path)
            assert answer is not None
            assert (answer.status_code, STANDBY_HEADER in answer.headers) == (503, True)
            assert "standby" in answer.text
        cluster.submit(long_job(cluster))
        until_running(cluster)
        client = cluster.client
        assert [job["name"] for job in client.jobs()] == ["long"]

        cluster.kill_plane()
        assert [job["name"] for job in client.jobs()] == ["long"], "a client waits for the takeover"
        (made,) = client.submit([cluster.job("second", steps=3)])
        cluster.expected["second"] = "finished"
        cluster.follow_takeover()
        cluster.until_connected()
        done = len(cluster.steps_of("long"))
        cluster.until("it goes on", lambda jobs: len(cluster.steps_of("long")) > done)
        assert cluster.jobs()["long"]["starts"] == 1, "the job was not stopped"
        assert client.job(str(made["number"]))["name"] == "second"
        assert sorted(path.name for path in (tmp_path / "other").glob("*.token")) == []

        cluster.plane, killed = 0, cluster.plane  # and back: the first one waits now, and the second one ends in order
        cluster._command, command = [*cluster._command, "--standby"], cluster._command
        cluster.http, cluster.other_http = cluster.other_http, cluster.http
        cluster.port, cluster.other_port = cluster.other_port, cluster.port
        cluster.start_plane(wait=False)
        cluster._command = command
        os.kill(killed, signal.SIGTERM)
        assert ends(killed, PATIENCE_S)
        wait_for(cluster.answers, "the first one takes over again", cluster._logs)
        cluster.until_connected()
        assert cluster.jobs()["long"]["starts"] == 1
        cluster.hurry("long")


def test_one_that_is_cut_off_from_the_database_renews_no_lease_and_ends(tmp_path: Path, postgres: PostgresServer) -> None:
    url = postgres.database()
    wire = Wire(f"{postgres.folder}/.s.PGSQL.5432")
    through = f"postgresql://fairlead@127.0.0.1:{wire.port}/{url.split('/')[3].split('?')[0]}"
    with TwoControlPlanes(tmp_path, (through, url), "--journal-timeout", "8", lease_s=10.0) as cluster:
        cluster.start_standby()
        cluster.submit(long_job(cluster))
        until_running(cluster)
        wire.cut()
        first = cluster.follow_takeover()
        assert "its session is ended" in cluster._logs()
        cluster.until_connected()
        done = len(cluster.steps_of("long"))
        cluster.until("it goes on", lambda jobs: len(cluster.steps_of("long")) > done)
        wire.mend()
        assert ends(first, PATIENCE_S)
        assert foundry().status(first) == 4
        assert "another control plane has taken over the journal" in (tmp_path / "plane.log").read_text()
        cluster.harmed.add("long")
        cluster.hurry("long")
    wire.close()


def test_a_signal_ends_a_waiting_standby_at_once(tmp_path: Path, postgres: PostgresServer) -> None:
    url = postgres.database()
    with TwoControlPlanes(tmp_path, (url, url)) as cluster:
        cluster.start_standby()
        os.kill(cluster.other, signal.SIGTERM)
        assert ends(cluster.other, PATIENCE_S)
        assert foundry().status(cluster.other) == 0
        cluster.other = 0


def test_a_signal_after_the_takeover_is_not_swallowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = standby.HeldJournal(JsonlJournal(tmp_path / "journal.jsonl"), FolderFiles(tmp_path), "")
    monkeypatch.setattr(standby, "_wait_for_journal", lambda *_: taken)
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    assert standby.wait_for_journal("", tmp_path, {}) is taken
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before

    def signalled(*_: object) -> standby.HeldJournal:
        os.kill(os.getpid(), signal.SIGTERM)
        return taken

    monkeypatch.setattr(standby, "_wait_for_journal", signalled)
    assert standby.wait_for_journal("", tmp_path, {}) is None


def test_only_a_database_can_have_a_standby(tmp_path: Path) -> None:
    words = ["serve", "--standby", "--cluster", "1xv100:1", "--root", str(tmp_path / "root"), "--http", "127.0.0.1:0"]
    found = CliRunner().invoke(app, [*words, "--agents", "127.0.0.1:0"])
    assert found.exit_code != 0
    assert "postgresql://" in str(found.exception)
    assert not (tmp_path / "root").exists()
