"""What was there before: Tiresias' own simulator on its 60 jobs (Blox Figure 4), the bandwidth inside a node (Table 4), and
lines of code (Table 3)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from fairlead.core.cluster import Cluster
from fairlead.experiments.cases import Answer, Answers, Case
from fairlead.experiments.inputs import ExperimentInputs
from fairlead.experiments.metrics import summarize
from fairlead.experiments.simulate import Simulation, run_simulation
from fairlead.workloads.transform import slice_jobs
from fairlead_papers.arms import figure
from fairlead_papers.bandwidth import compare_bandwidth
from fairlead_papers.blox.runs import Arm
from fairlead_papers.blox.scale import DURATIONS, HIGH, Scale, load_told
from fairlead_papers.blox.traces import PublicTraces, Workload
from fairlead_papers.findings import Findings, Row, Wants, row
from fairlead_papers.part_lines import preset_lines
from fairlead_papers.study import Study

SIXTY = "60 jobs on 2 nodes of 4, deciding at every event"
SCHEDULES = {"dlas-gpu": "tiresias", "shortest": "srtf", "fifo": "fifo"}
"""As Tiresias' simulator calls them, and as they are called here."""

MACHINES = {"p3.8xlarge": 4, "p3.16xlarge": 8}
TABLE_4 = {"random": 58.7, "aware": 86.5}


@dataclass(frozen=True)
class Sixty:
    """Tiresias' trace under one policy, beside what its own simulator makes of it."""

    schedule: str

    def run(self, inputs: ExperimentInputs) -> Answer:
        assert isinstance(inputs, PublicTraces)
        theirs = inputs.published(self.schedule)
        config = Arm("studied", f"policy: {SCHEDULES[self.schedule]}, rounds: event-driven").config
        record = run_simulation(Simulation(inputs.sixty_jobs(), Cluster.parse("8xv100:4"), config)).record
        jct = dict(zip(record.jobs.names, (record.jobs.ended_s - record.jobs.submitted_s).tolist()))
        pairs = [[float(jct[name]), float(seconds)] for name, seconds in theirs["jct"].items()]
        return {"figures": summarize(record).to_dict(), "jct_s": pairs, "average_jct_s": float(theirs["avg_jct"])}


def read_sixty(scale: Scale, answers: Answers) -> Findings:
    def ratio(schedule: str) -> float:
        found = answers.of(Sixty(schedule))
        return figure(found, "average_jct_s") / float(found["average_jct_s"])

    def apart(schedule: str) -> float:
        """The largest distance of the two distributions, in percent of jobs."""
        ours, theirs = np.array(answers.of(Sixty(schedule))["jct_s"]).T
        at = np.sort(np.concatenate((ours, theirs)))
        shares = [np.searchsorted(np.sort(side), at, side="right") / len(side) for side in (ours, theirs)]
        return 100.0 * float(np.abs(shares[0] - shares[1]).max())

    rows: list[Row] = []
    for schedule, policy in SCHEDULES.items():
        rows.append(row(f"average JCT, ours / Tiresias' simulator, {policy}", 1.0, partial(ratio, schedule), wants=Wants.NEAR))
        rows.append(
            row(f"largest distance of the distributions, {policy}", 5.0, partial(apart, schedule), "%", Wants.MOST,
                "the paper shows the curves on top of each other; 5 % are three jobs")
        )  # fmt: skip
    return Findings(rows)


@dataclass(frozen=True)
class Bandwidth:
    """What gangs find inside a node, by chance and by choice."""

    machine: str
    machines: int
    workload: Workload
    seed: int

    def run(self, inputs: ExperimentInputs) -> Answer:
        assert isinstance(inputs, PublicTraces)
        trace = slice_jobs(inputs.jobs(self.workload, self.seed), 0, self.workload.measure[1])
        fitting = tuple(job for job in trace.jobs if job.workers <= MACHINES[self.machine])
        found = compare_bandwidth(replace(trace, jobs=fitting), self.machine, self.machines, seed=self.seed)
        return {"random": found.random.gbps, "aware": found.aware.gbps, "starts": sum(found.aware.starts.values())}


def bandwidths(scale: Scale, machine: str, durations: str) -> list[Bandwidth]:
    machines = max(1, scale.accelerators // MACHINES[machine])
    workload = Workload(durations, scale.load(HIGH), scale.measure)
    return [Bandwidth(machine, machines, workload, seed) for seed in scale.seeds]


def bandwidth_cases(scale: Scale) -> Iterable[Case]:
    return (case for machine in MACHINES for durations in DURATIONS for case in bandwidths(scale, machine, durations))


def read_bandwidth(scale: Scale, answers: Answers) -> Findings:
    rows: list[Row] = []
    for machine in MACHINES:
        for durations in DURATIONS:
            found = partial(_found, answers, bandwidths(scale, machine, durations))
            told = f"{machine}, {load_told(durations, HIGH)}"

            def ratio(found: partial[list[float]] = found) -> list[float]:
                return [aware / random for aware, random in zip(found("aware"), found("random"))]

            rows.append(row(f"bandwidth, chosen / by chance: {told}", TABLE_4["aware"] / TABLE_4["random"], ratio))
            for how, paper in TABLE_4.items():
                rows.append(row(f"bandwidth, {how}: {told}", paper, partial(found, how), "Gb/s", Wants.NOTHING))
    notes = [
        "between two GPUs of gangs on one node, at their start; FIFO, consolidated",
        "on a machine of four no choice can give more than 4/3 of chance: pairs have two of six links that are twice as fast",
    ]
    return Findings(rows, (), notes)


def _found(answers: Answers, cases: list[Bandwidth], how: str) -> list[float]:
    return [float(answers.of(case)[how]) for case in cases]


def read_lines(scale: Scale, answers: Answers) -> Findings:
    counted = [one for one in preset_lines() if one.blox is not None]
    rows = [
        Row(f"{one.name}, beyond FIFO", one.blox, float(one.code), "lines", Wants.NOTHING, f"and {one.yaml} lines of YAML")
        for one in counted
    ]
    return Findings(rows, (), ["lines with code in the stages' modules that the preset needs and FIFO does not"])


STUDIES = (
    Study("table3", "Table 3: lines of code", lambda _: (), read_lines, lambda _: "this package"),
    Study("fig4", "Figure 4: Tiresias' trace", lambda _: map(Sixty, SCHEDULES), read_sixty, lambda _: SIXTY),
)

BANDWIDTH = (Study("table4", "Table 4: bandwidth inside a node", bandwidth_cases, read_bandwidth),)
