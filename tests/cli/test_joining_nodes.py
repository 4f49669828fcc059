"""Nodes that join and leave a running cluster: `fairlead serve`, `agent`, `nodes` and `token` as processes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from cluster_up import LOG, until

from foundry import Done, Running, foundry, free_port, running

pytestmark = pytest.mark.long


LEAVES_LATE = "trap 'until [ -e leave ]; do sleep 0.1; done; exit 1' TERM; while :; do sleep 0.1; done"


class RunningCluster:
    """A control plane in a folder, and the commands of its operator."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._http, self.agents = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"

    @contextlib.contextmanager
    def serving(self, *words: object) -> Iterator[None]:
        (self.folder / LOG).unlink(missing_ok=True)
        addresses = ("--http", self._http, "--agents", self.agents)
        with running(self.folder, "serve", "--root", "root", "--round", 1, *addresses, *words, log=LOG) as process:

            def answers() -> bool:
                assert process.poll() is None, (self.folder / LOG).read_text()[-2000:]
                with contextlib.suppress(httpx.HTTPError):
                    return httpx.get(f"http://{self._http}/v1/health").status_code == 200
                return False

            until(answers, self.folder)
            connection = {"url": f"http://{self._http}", "token": (self.folder / "root" / "admin.token").read_text()}
            (self.folder / ".fairlead").mkdir(mode=0o700, exist_ok=True)
            (self.folder / ".fairlead" / "connection.json").write_text(json.dumps(connection))
            yield
        assert "Traceback" not in (self.folder / LOG).read_text()

    def run(self, *words: object) -> Done:
        return foundry().run(*words, cwd=self.folder)

    def answer(self, *words: object) -> Any:
        done = self.run(*words, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def node(self, name: str) -> dict[str, Any]:
        return next((node for node in self.answer("nodes")["nodes"] if node["name"] == name), {})

    def until(self, reached: Callable[[], Any]) -> Any:
        return until(reached, self.folder)

    @contextlib.contextmanager
    def agent(self, name: str, *words: object, root: str = "", token: bool = True) -> Iterator[Running]:
        """An agent with two simulated GPUs."""
        options = ["--node", name, "--root", root or f"agent-{name}", "--control", self.agents, *words]
        options += ["--token-file", "root/agent.token"] if token else []
        options += [] if "--accelerators" in words else ["--accelerators", "v100:2"]
        with running(self.folder, "agent", *options, log=f"{root or name}.log", end=signal.SIGTERM) as process:
            yield process

    def refused(self, name: str, *words: object, root: str = "", token: bool = True) -> str:
        """What an agent says that is refused."""
        with self.agent(name, *words, root=root, token=token) as process:
            assert process.wait() == 4
        return (self.folder / f"{root or name}.log").read_text()


@pytest.fixture
def cluster(tmp_path: Path) -> RunningCluster:
    return RunningCluster(tmp_path)


def test_a_new_agent_adds_its_node_and_needs_no_agent_token_from_then_on(cluster: RunningCluster) -> None:
    with cluster.serving():
        assert cluster.answer("nodes") == {"nodes": []}
        with cluster.agent("n1"):
            cluster.until(lambda: cluster.node("n1").get("up"))
            assert {"type": "v100", "accelerators": 2}.items() <= cluster.node("n1").items()
            assert cluster.run("submit", "--name", "first", "--", "true").returncode == 0
            cluster.until(lambda: cluster.answer("info", "first")["phase"] == "finished")
        credential = cluster.folder / "agent-n1" / "credential"
        assert credential.stat().st_mode & 0o777 == 0o600
        roles = [(one["name"], one["role"]) for one in cluster.answer("token", "list", "--root", "root")["tokens"]]
        assert roles == [("admin", "admin"), ("agent", "agent"), ("n1", "node")]
        cluster.run("token", "revoke", "agent", "--root", "root")
        (cluster.folder / "root" / "agent.token").unlink()
        for token in (True, False):  # a token file that does not exist any more, and none
            with cluster.agent("n1", token=token):
                cluster.until(lambda: cluster.node("n1")["connected"])
            cluster.until(lambda: not cluster.node("n1")["connected"])
        other = cluster.refused("n1", "--accelerators", "k80:2")
        assert "node 'n1' has 2 × v100, not 2 × k80" in other
        assert "fairlead nodes remove n1" in other


def test_a_credential_speaks_for_its_node_only_and_can_be_revoked(cluster: RunningCluster) -> None:
    with cluster.serving("--lease", 10), cluster.agent("n1") as agent, cluster.agent("n2"):
        for name in ("n1", "n2"):
            cluster.until(lambda name=name: cluster.node(name).get("up"))
        stolen = cluster.folder / "thief" / "credential"
        stolen.parent.mkdir(mode=0o700)
        stolen.write_bytes((cluster.folder / "agent-n1" / "credential").read_bytes())
        assert "this credential is for node 'n1', not 'n2'" in cluster.refused("n2", root="thief", token=False)
        assert "another root folder" in cluster.refused("n1", root="thief", token=False)
        assert cluster.answer("token", "revoke", "n1", "--root", "root") == {"revoked": 1}
        assert agent.wait() == 4
        said = (cluster.folder / "n1.log").read_text()
        assert "the credential of node 'n1' was revoked: to connect this node again, remove the file 'credential'" in said
        assert cluster.node("n2")["connected"]
        assert "it was revoked" in cluster.refused("n1")
        (cluster.folder / "agent-n1" / "credential").unlink()
        with cluster.agent("n1"):
            cluster.until(lambda: cluster.node("n1")["connected"])


def test_a_second_root_is_refused_also_after_a_restart_of_the_control_plane(cluster: RunningCluster) -> None:
    with contextlib.ExitStack() as processes:
        with cluster.serving("--lease", 60):
            agent = processes.enter_context(cluster.agent("n1"))
            cluster.until(lambda: cluster.node("n1").get("up"))
            assert "another root folder" in cluster.refused("n1", root="second")
        os.kill(agent.pid, signal.SIGSTOP)
        processes.callback(os.kill, agent.pid, signal.SIGCONT)
        with cluster.serving("--lease", 60):
            assert "another root folder" in cluster.refused("n1", root="second")
            os.kill(agent.pid, signal.SIGCONT)
            cluster.until(lambda: cluster.node("n1")["connected"])


def test_a_node_is_removed_when_its_jobs_have_left_and_its_agent_ends(cluster: RunningCluster) -> None:
    with cluster.serving(), cluster.agent("n1") as agent:
        cluster.until(lambda: cluster.node("n1").get("up"))
        assert cluster.run("submit", "--name", "long", "--", "bash", "-c", LEAVES_LATE).returncode == 0
        cluster.until(lambda: cluster.answer("info", "long")["phase"] == "running")
        refused = cluster.run("nodes", "remove", "n1")
        assert refused.returncode == 4
        assert "jobs run on node 'n1': drain it" in refused.stderr
        log = cluster.folder / "remove.log"
        log.touch()
        with running(cluster.folder, "nodes", "remove", "n1", "--drain", log=log.name) as removal:
            cluster.until(lambda: "waiting for jobs to leave n1: long\n" in log.read_text())
            (cluster.folder / "leave").touch()
            assert removal.wait() == 0, log.read_text()
        told = ["n1 is removed", "no node of the cluster can run these jobs now: long", ""]
        assert log.read_text().split("\n")[-3:] == told
        assert agent.wait() == 4
        assert (
            "node 'n1' was removed from the cluster: to add it again, remove the file"
            in (cluster.folder / "n1.log").read_text()
        )
        assert [one["name"] for one in cluster.answer("token", "list", "--root", "root")["tokens"]] == ["admin", "agent"]
        assert "it was revoked" in cluster.refused("n1"), "an init system that restarts the agent does not add the node again"
        assert cluster.run("nodes", "n1").returncode == 3
        added = cluster.run("nodes", "add", "n1", "v100:2", "--cpus", "8")
        assert "n1 is added; start its agent: fairlead agent --control HOST:7421 --node n1" in added.stdout
        (cluster.folder / "agent-n1" / "credential").unlink()
        with cluster.agent("n1"):
            cluster.until(lambda: cluster.answer("info", "long")["phase"] == "running")
            assert cluster.run("cancel", "long").returncode == 0


def test_a_drain_shows_why_and_ends_by_itself(cluster: RunningCluster) -> None:
    with cluster.serving("--cluster", "2xv100:1"):
        for wrong in ("soon", "2020-01-01T00:00"):
            assert cluster.run("drain", "v100-0", "--until", wrong).returncode == 2
        drain = ("drain", "v100-0", "--reason", "new driver", "--until")
        # On a busy machine the time may be over before the control plane knows of it.
        cluster.until(lambda: cluster.run(*drain, "4s").stdout.startswith("v100-0 is drained until "))
        cluster.until(lambda: not cluster.node("v100-0")["drained"])
        assert cluster.run(*drain, "12h").returncode == 0
        window = ("--from", "2126-11-20T08:00", "--until", "2126-11-20T12:00")
        announced = cluster.run("drain", "v100-1", *window)
        assert announced.stdout == "v100-1 will be drained from 2126-11-20 08:00:00 until 2126-11-20 12:00:00\n"
    with cluster.serving("--cluster", "2xv100:1"):
        shown = cluster.run("nodes", "v100-0").stdout
        assert "v100-0 is drained until " in shown
        assert " by admin: new driver\n" in shown
        assert "v100-1 will be drained from 2126-11-20 08:00:00" in cluster.run("nodes").stdout
