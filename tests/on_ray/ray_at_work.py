"""A control plane whose nodes are agents on a real Ray cluster, with the jobs and the checks of `ClusterAtWork`."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from pathlib import Path
from typing import Any

from cluster_at_work import ClusterAtWork, wait_for
from ray_cluster import fairlead_command

from foundry import environment


class RayAtWork(ClusterAtWork):
    """`with RayAtWork(folder, ray) as cluster:` has a control plane, with home agents on `machines`; `cluster.up()` starts
    agents on Ray. At the end of a good scene `check` is called."""

    def __init__(self, root: Path, ray: Any, policy: str = "las", machines: str = "", **how: Any) -> None:
        super().__init__(root, machines=machines, policy=policy, round_s=1.0, **how)
        self.ray = ray
        self._environment = {**os.environ, **environment(), "FAIRLEAD_URL": f"http://127.0.0.1:{self.http}"}

    def command(self, *words: object, code: int = 0) -> dict[str, Any]:
        """What `fairlead ray` prints with --json."""
        token = (self.root / "plane" / "admin.token").read_text()
        where = ("--address", self.ray.address, "--control", f"127.0.0.1:{self.port}", "--json")
        done = subprocess.run(
            fairlead_command("ray", *map(str, (*words, *where))),
            env={**self._environment, "FAIRLEAD_TOKEN": token},
            cwd=self.root,
            capture_output=True,
            text=True,
        )
        assert done.returncode == code, (done.returncode, done.stdout, done.stderr, self._logs())
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def up(self, *words: object, code: int = 0) -> list[str]:
        """Start agents; the names of the nodes that were started."""
        given = ("--type", "v100", "--token-file", self.root / "plane" / "agent.token")
        return list(self.command("up", *given, *words, code=code)["started"])

    def status(self) -> dict[str, dict[str, Any]]:
        return {one["node"]: one for one in self.command("status")["agents"]}

    def down(self, *nodes: str) -> list[str]:
        return list(self.command("down", *nodes)["ended"])

    def check(self) -> None:
        self.until_all_ended()
        self.down()
        super().check()

    def _end(self) -> None:
        with contextlib.suppress(AssertionError):
            self.down()  # otherwise the next scene finds no GPUs
        super()._end()

    def until_joined(self, count: int) -> None:
        wait_for(lambda: len(self._there()) == count, f"{count} nodes are there", self._logs)

    def until_left(self) -> None:
        """Only home agents are there."""
        self.until_joined(len(self.agents))

    def _there(self) -> list[str]:
        return [name for name, node in self.nodes().items() if node["connected"] and node["up"]]

    def counts(self, number: int, steps: int = 2000) -> list[str]:
        """Submit jobs that count, and save when they are asked to stop; their names."""
        names = [f"count-{one}" for one in range(number)]
        self.submit(*(self.job(name, steps=steps, step_s=0.1) for name in names))
        return names

    def until_counting(self, names: list[str], beyond: int = 2) -> None:
        self.until("all jobs count", lambda _: all(len(self.steps_of(name)) > beyond for name in names))
