"""A trace on a real cluster of this machine: a control plane and agents of their own, each job submitted at its second, and the
journal of it all."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from fairlead.config.schedulers import scheduler_of
from fairlead.core import events as ev
from fairlead.core.cluster import Cluster
from fairlead.journal.recovery import read_journal
from fairlead.runtime.embedded import JOURNAL, ClusterStartError, embedded, scratch_folder
from fairlead.runtime.http_client import ControlPlaneClient
from fairlead.workloads.throughput_tables import ThroughputTable
from fairlead.workloads.trace import Trace
from fairlead_papers.fidelity.sleepers import SCRIPT, parts_of, task_of

LOOK_S = 0.5
PATIENCE_S = 600.0
"""For which nobody may end before the cluster counts as stuck."""

ReportProgress = Callable[[str], None]


@dataclass(frozen=True)
class RealCluster:
    """Accelerators that there are not: all that jobs do on them is to sleep, at the rates of a table."""

    machines: str
    table: ThroughputTable

    @property
    def cluster(self) -> Cluster:
        return Cluster.parse(self.machines)

    def run(self, trace: Trace, scheduler: Mapping[str, Any], report: ReportProgress = lambda _: None) -> list[ev.Event]:
        """The journal, once everybody has ended. Second 0 of the trace is the beginning of a round."""
        table, round_s = self.table.for_types(self.cluster.type_names), scheduler_of(scheduler).round_s
        with scratch_folder("study") as folder:
            root, script, config = folder / "up", folder / "sleeper.py", folder / "scheduler.yaml"
            script.write_text(SCRIPT)
            config.write_text(yaml.safe_dump(dict(scheduler)))
            with embedded(root, "--cluster", self.machines, "--config", str(config)) as plane:
                now = float(plane.overview()["second"])
                began = time.monotonic() - now + (round_s * math.ceil(now / round_s) if round_s else now)
                waiting = _Waiting(plane, len(trace), report)
                for job in trace.jobs:
                    waiting.until(began + job.submitted_s)
                    plane.submit([task_of(job, parts_of(job, trace.dynamics.get(job.name), table), script)])
                waiting.until_all_ended()
                return list(read_journal(str(root / JOURNAL)))


class _Waiting:
    """For the next submission and for the end, with a word now and then on how far it is."""

    def __init__(self, plane: ControlPlaneClient, jobs: int, report: ReportProgress) -> None:
        self._plane, self._jobs, self._report = plane, jobs, report
        self._ended, self._last = -1, time.monotonic()

    def until(self, moment: float) -> None:
        while (left := moment - time.monotonic()) > LOOK_S:
            self._look()
            time.sleep(min(LOOK_S, left))
        time.sleep(max(0.0, moment - time.monotonic()))

    def until_all_ended(self) -> None:
        while self._look() < self._jobs:
            time.sleep(LOOK_S)

    def _look(self) -> int:
        ended = len(self._plane.jobs(["finished", "failed", "cancelled", "refused"]))
        if ended > self._ended:
            self._ended, self._last = ended, time.monotonic()
            self._report(f"{ended} of {self._jobs} jobs")
        elif time.monotonic() > self._last + PATIENCE_S:
            raise ClusterStartError(f"no job has ended on the real cluster for {PATIENCE_S:g} s; {ended} of {self._jobs} have")
        return ended
