"""A control plane whose nodes are pilots on a real Slurm cluster, with the jobs and the checks of `ClusterAtWork`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from cluster_at_work import ClusterAtWork
from typer.testing import CliRunner

from fairlead.cli.main import app
from foundry import environment
from slurm_bed import SlurmBed


class PilotAtWork(ClusterAtWork):
    """`with PilotAtWork(folder, slurm, patch) as cluster:` has a control plane without nodes; `cluster.up(…)` submits pilots.
    At the end of a good scene `check` is called."""

    def __init__(
        self, root: Path, slurm: SlurmBed, patch: pytest.MonkeyPatch, policy: str = "las", machines: str = "", **how: Any
    ) -> None:
        """`machines` have agents of their own, besides those of pilots."""
        super().__init__(root, machines=machines, policy=policy, round_s=1.0, **how)
        self.slurm = slurm
        local = root / "local"  # of the nodes; on one machine they share it
        local.mkdir()
        given = {"FAIRLEAD_URL": f"http://127.0.0.1:{self.http}", "TMPDIR": str(local), **slurm.environment}
        for name, value in {**environment(), **given}.items():
            patch.setenv(name, value)
        patch.chdir(root)

    def __enter__(self) -> PilotAtWork:
        super().__enter__()
        os.environ["FAIRLEAD_TOKEN"] = (self.root / "plane" / "admin.token").read_text()
        return self

    def _end(self) -> None:
        os.environ.pop("FAIRLEAD_TOKEN", None)
        self.slurm.cancel_all()
        super()._end()

    def command(self, *words: object) -> dict[str, Any]:
        """What `fairlead slurm` prints with --json."""
        done = CliRunner().invoke(app, ["slurm", *map(str, words), "--json"])
        assert done.exit_code == 0, (done.output, done.exception)
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def up(self, nodes: int, *words: object, gpus: int = 4, time: str = "20m") -> str:
        """Submit a pilot; the number of its job."""
        where = ("--control", f"127.0.0.1:{self.port}", "--token-file", self.root / "plane" / "agent.token")
        asked = ("--nodes", nodes, "--gpus", gpus, "--type", "v100", "--time", time)
        return str(self.command("up", *asked, *where, *words)["job"])

    def status(self) -> dict[str, dict[str, Any]]:
        """The pilots by their number."""
        return {pilot["job"]: pilot for pilot in self.command("status")["pilots"]}

    def until_joined(self, job: str, nodes: int) -> None:
        """All nodes of a pilot are part of the cluster."""
        self.slurm.until(f"{nodes} nodes of pilot {job} join", lambda: self._joined(job) == nodes)

    def _joined(self, job: str) -> int:
        nodes = {name: node for name, node in self.nodes().items() if name not in self.agents}
        return sum(name.endswith(f"-{job}") and node["connected"] for name, node in nodes.items())

    def until_left(self) -> None:
        """No node of a pilot is left in the cluster."""
        left = lambda: not [name for name, node in self.nodes().items() if node["up"] and name not in self.agents]  # noqa: E731
        self.slurm.until("all nodes leave", left)

    def counts(self, number: int, steps: int = 2000) -> list[str]:
        """Submit jobs that count, and save when they are asked to stop; their names."""
        names = [f"count-{one}" for one in range(number)]
        self.submit(*(self.job(name, steps=steps, step_s=0.1) for name in names))
        return names

    def until_counting(self, names: list[str], beyond: int = 2) -> None:
        self.until("all jobs count", lambda _: all(len(self.steps_of(name)) > beyond for name in names))

    def _logs(self) -> str:
        outputs = sorted((self.root / ".fairlead" / "slurm").glob("*.out"))
        return "\n".join((super()._logs(), *(f"{path.name}: {path.read_text()[-3000:]}" for path in outputs)))
