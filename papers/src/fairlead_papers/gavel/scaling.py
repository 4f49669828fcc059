"""How long policies take (Gavel §7.4, Figure 14): CPU time of one allocation from nothing, for made-up moments of many
jobs on a cluster that grows with them, half an accelerator a job."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from fairlead.core.cluster import Cluster
from fairlead.core.job import Job
from fairlead.core.rng import stream
from fairlead.experiments.cases import Answer, Answers, CaseFailed
from fairlead.experiments.inputs import ExperimentInputs
from fairlead.reporting.pictures import Lines, PlotLine
from fairlead_papers.findings import Findings, Wants, row
from fairlead_papers.gavel.moments import allocator_of, moment, stages_of
from fairlead_papers.gavel.scale import TYPES, Scale, cluster_of
from fairlead_papers.study import Study

POLICIES = (
    ("LAS", "max-min-fairness-perf"),
    ("LAS with space sharing", "max-min-fairness-perf:space_sharing=true"),
    ("hierarchical", "hierarchical-perf"),
    ("hierarchical with space sharing", "hierarchical-perf:space_sharing=true"),
)
CLAIMED = {"hierarchical": 2048, "hierarchical with space sharing": 512}
"""So many jobs, the paper says, in less than ten minutes."""
TEN_MINUTES_S = 600.0
ENTITIES = 3
REPEATS = 3


@dataclass(frozen=True)
class Timing:
    """The least CPU time of a few tries, each with a policy that has kept nothing."""

    policy: str
    jobs: int

    def run(self, inputs: ExperimentInputs) -> Answer:
        cluster = Cluster.parse(cluster_of(max(1, self.jobs // (2 * len(TYPES)))))
        jobs = _jobs(inputs, self.jobs)
        took = []
        for _ in range(REPEATS):
            stages = stages_of(self.policy, inputs.table, cluster)
            view = moment(cluster, jobs, stages)
            _ = view.rates
            began = time.process_time()
            allocator_of(stages).allocate(view, None)
            took.append(time.process_time() - began)
        return {"cpu_s": min(took)}


def _jobs(inputs: ExperimentInputs, count: int) -> list[Job]:
    kinds = [kind for kind in inputs.table.kinds if (kind, 1) in inputs.table.row_of]
    drawn = (stream(0, "scaling").random(count) * len(kinds)).astype(int).tolist()
    return [Job(f"job-{i}", steps=1e9, kind=kinds[kind], account=f"entity-{i % ENTITIES}") for i, kind in enumerate(drawn)]


def cases(scale: Scale) -> Sequence[Timing]:
    return [Timing(policy, count) for _, policy in POLICIES for count in scale.active_jobs]


def read(scale: Scale, answers: Answers) -> Findings:
    most = scale.active_jobs[-1]
    rows = [
        row(
            f"{label}, {most:,} jobs",
            TEN_MINUTES_S if most >= CLAIMED.get(label, math.inf) else None,
            lambda policy=policy: float(answers.of(Timing(policy, most))["cpu_s"]),  # type: ignore[misc]
            "s",
            Wants.MOST,
            "CPU time of one allocation from nothing",
        )
        for label, policy in POLICIES
    ]
    lines = []
    for label, policy in POLICIES:
        points = []
        for count in scale.active_jobs:
            try:
                points.append((float(count), 1000.0 * float(answers.of(Timing(policy, count))["cpu_s"])))
            except CaseFailed:
                continue
        if points:
            x, y = zip(*points)
            lines.append(PlotLine(label, x, y))
    picture = Lines("fig14", "Time to compute an allocation", "active jobs", "CPU time, ms", lines, log_x=True, log_y=True)
    return Findings(rows, (picture,), ["26 kinds with one worker each; half a GPU per job; three entities of weight 1"])


STUDIES = (
    Study(
        "fig14", "Figure 14: time to compute an allocation", cases, read, lambda _: "a cluster half as large as there are jobs"
    ),
)
