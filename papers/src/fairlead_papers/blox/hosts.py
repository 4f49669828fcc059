"""CPUs beside accelerators (Blox §4.1, Figure 5; Synergy Figure 9b): proportional shares of a node against shares by profile,
on 16 nodes of eight accelerators, 24 CPUs and 500 GB. Half of the jobs, those that look at images, are 2.4 to 2.9 times as
fast with 9 to 12 CPUs for each worker as with their share of 3; the others need one."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from fairlead.core.cluster import Cluster, Node
from fairlead.experiments.cases import Answer, Answers, Case
from fairlead.experiments.inputs import ExperimentInputs
from fairlead.experiments.simulate import Simulation, run_simulation
from fairlead.models.sensitivity import Curve, Sensitivity
from fairlead.workloads.transform import with_host_sensitivity, with_random_kinds
from fairlead_papers.arms import Sweep, average_jct
from fairlead_papers.blox.own_clusters import own_clusters
from fairlead_papers.blox.runs import Arm, answer
from fairlead_papers.blox.scale import DURATIONS, SHOWN, Scale, at_share, load_told
from fairlead_papers.blox.traces import PublicTraces, Workload
from fairlead_papers.findings import Findings, Row, Wants, row
from fairlead_papers.study import Study

HUNGRY = {
    "ResNet-18 (batch size 64)": "3@1|9@2.4",
    "ResNet-18 (batch size 256)": "3@1|10@2.6",
    "ResNet-50 (batch size 32)": "3@1|10@2.6",
    "ResNet-50 (batch size 64)": "3@1|12@2.9",
}
MODEST = {
    "LM (batch size 20)": "1@1",
    "LM (batch size 80)": "1@1",
    "Transformer (batch size 32)": "1@1",
    "Transformer (batch size 128)": "1@1",
}
"""Speeds with so many CPUs for each worker."""

SHARE = 0.9
"""Of the accelerators, that jobs with proportional CPUs would keep busy."""

GAIN, SAME = 1.3, 1.0
"""By which factor jobs are to be done sooner where half of them are hungry; and by how many percent they may differ where
nobody is. Both are this project's bounds: the paper shows curves."""


def _arm(label: str, allotment: str) -> Arm:
    return Arm(
        label,
        f"policy: fifo, placement: {json.dumps({'name': 'synergy', 'allotment': allotment, 'cpus': {**HUNGRY, **MODEST}})}",
    )


PROPORTIONAL = _arm("proportional", "proportional")
TUNE = _arm("Synergy-Tune", "tune")
OPTIMAL = _arm("optimal", "optimal")


@dataclass(frozen=True)
class Hosted:
    """One simulation on the sixteen nodes. Without `hungry` jobs, all are of the modest kinds."""

    scheduler: str
    workload: Workload
    hungry: bool
    seed: int

    def run(self, inputs: ExperimentInputs) -> Answer:
        assert isinstance(inputs, PublicTraces)
        profiles = {**HUNGRY, **MODEST} if self.hungry else MODEST
        trace = with_random_kinds(inputs.jobs(self.workload, self.seed), inputs.table, list(profiles), self.seed, "v100")
        trace = with_host_sensitivity(trace, {kind: Sensitivity(Curve.parse(text)) for kind, text in profiles.items()})
        config = Arm("studied", self.scheduler).config
        given = Simulation(trace, sixteen_nodes(), config, inputs.table, seed=self.seed, measure=self.workload.measure)
        return answer(run_simulation(given).record, self.workload, len(trace))


def sixteen_nodes() -> Cluster:
    return Cluster(tuple(Node(f"node-{n}", "v100", 8, cpus=24.0, memory_gb=500.0) for n in range(16)))


def hosted(scale: Scale, durations: str, hungry: bool, arm: Arm, load: float, seed: int) -> Hosted:
    return Hosted(arm.scheduler, Workload(durations, load, own_clusters(scale).hosts_measure), hungry, seed)


def sweep(scale: Scale, durations: str, hungry: bool) -> Sweep[Arm]:
    arms = (PROPORTIONAL, TUNE, OPTIMAL) if hungry else (PROPORTIONAL, TUNE)
    make = partial(hosted, scale, durations, hungry)
    return Sweep(arms, (at_share(durations, SHARE),), own_clusters(scale).hosts_seeds, make, "jobs per hour (128 GPUs)")


def cases(scale: Scale) -> Iterable[Case]:
    return (case for durations in DURATIONS for hungry in (True, False) for case in sweep(scale, durations, hungry).cases())


def read(scale: Scale, answers: Answers) -> Findings:
    rows: list[Row] = []
    for durations in DURATIONS:
        half, nobody = (sweep(scale, durations, hungry) for hungry in (True, False))
        (load,) = half.loads
        told = load_told(durations, load)
        gains = partial(half.gains, answers, PROPORTIONAL.label, load=load, pick=average_jct)
        tuned, optimal = (partial(gains, better=arm.label) for arm in (TUNE, OPTIMAL))
        rows.append(row(f"average JCT, proportional / Tune, half of the jobs hungry: {told}", GAIN, tuned, wants=Wants.LEAST))
        rows.append(row(f"average JCT, proportional / optimal, half of the jobs hungry: {told}", None, optimal))

        def apart(nobody: Sweep[Arm] = nobody, load: float = load) -> list[float]:
            ratios = nobody.gains(answers, PROPORTIONAL.label, TUNE.label, load, average_jct)
            return [100.0 * abs(ratio - 1.0) for ratio in ratios]

        rows.append(row(f"average JCT, proportional and Tune apart, nobody hungry: {told}", SAME, apart, "%", Wants.MOST))
    pictures = tuple(
        given.distribution(answers, f"fig5-{durations}", f"JCT, {SHOWN[durations]} durations", "hours", "jct_s", given.loads[0])
        for durations in DURATIONS
        for given in (sweep(scale, durations, True),)
    )
    notes = [
        "the paper shows that its curves are those of Synergy's own simulator, whose profiles are not here: the bounds are this"
        " project's, and so are the profiles",
        "FIFO, rounds of five minutes, free restarts; the load counts proportional CPUs, and jobs with more need less time",
    ]
    return Findings(rows, pictures, notes)


STUDIES = (Study("fig5", "Figure 5: CPUs by profile", cases, read, lambda scale: own_clusters(scale).hosts_size),)
