"""Jobs that change their size and their batch size: Pollux over scheduling intervals (Blox §4.1, Figure 3), and beside FIFO and
least attained service against load (§4.2, Figures 8 and 9). Pollux' own jobs on its 16 nodes of four accelerators, with 30 s
for every start, as its simulator has them; all of them are measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from fairlead.core.cluster import Cluster
from fairlead.core.job import Phase
from fairlead.experiments.cases import Answer, Answers, Case
from fairlead.experiments.inputs import ExperimentInputs
from fairlead.experiments.metrics import MetricOptions, measured_rows, summarize
from fairlead.experiments.run_record import JobOutcomes
from fairlead.experiments.simulate import Simulation, run_simulation
from fairlead.reporting.pictures import Lines, PlotLine
from fairlead.simulator.costs import Costs
from fairlead.workloads.trace import Trace
from fairlead.workloads.transform import retime_poisson
from fairlead_papers.arms import Sweep, average_jct, figure
from fairlead_papers.blox.own_clusters import OwnClusters, own_clusters
from fairlead_papers.blox.policies import responsiveness
from fairlead_papers.blox.runs import Arm
from fairlead_papers.blox.scale import Scale
from fairlead_papers.blox.traces import POLLUX_WORKLOADS, PublicTraces
from fairlead_papers.findings import Findings, Row, Wants, row
from fairlead_papers.study import Study

ACCELERATORS = 64
CLUSTER = f"{ACCELERATORS}xv100:4"
START_S = 30.0
MINUTE = 60.0

INTERVALS = (1, 2, 4, 8)
"""Minutes between decisions, in Figure 3."""

PUBLISHED = {(6,): 2446.13, POLLUX_WORKLOADS: 2751.0}
"""Average JCT in seconds under Pollux as its authors published it, with decisions every minute, by workloads."""

BUSY, CROWDED = 15.0, 20.0
"""Jobs per hour below which the paper sees gains, and above which it sees none (§4.2)."""

STREAM_LOAD = 60.0
"""Jobs per hour at which a long stream of them is more than Pollux can keep up with."""

FIFO = Arm("FIFO", "policy: fifo, rounds: 60")
PASSING = Arm("FIFO with backfill", "policy: {name: fifo, backfill: true}, rounds: 60")
LAS = Arm("LAS", "policy: las, rounds: 60")
POLLUX = Arm("Pollux", "policy: pollux, estimator: fitted, rounds: 60")


@dataclass(frozen=True)
class Trained:
    """The first jobs of one of Pollux' workloads under a scheduler, at their own times; or at a load, by a Poisson process."""

    scheduler: str
    workload: int
    jobs: int
    load: float | None = None
    seed: int = 0

    def run(self, inputs: ExperimentInputs) -> Answer:
        assert isinstance(inputs, PublicTraces)
        trace = inputs.pollux_jobs(self.workload)
        trace = replace(trace, jobs=trace.jobs[: self.jobs])
        if self.load is not None:
            trace = retime_poisson(trace, self.load, self.seed)
        return trained(trace, self.scheduler)


@dataclass(frozen=True)
class Streamed:
    """All eight workloads, one after the other at a load, so that a queue has time to grow: the first jobs are few enough for
    each to have an accelerator, whatever the load is."""

    scheduler: str
    load: float
    measure: tuple[int, int]
    seed: int = 0

    def run(self, inputs: ExperimentInputs) -> Answer:
        assert isinstance(inputs, PublicTraces)
        trace = inputs.all_pollux_jobs()
        coming = replace(trace, jobs=trace.jobs[: 2 * self.measure[1]])  # as many again as with the last measured one
        return trained(retime_poisson(coming, self.load, self.seed), self.scheduler, self.measure)


def trained(trace: Trace, scheduler: str, measure: tuple[int, int] | None = None) -> Answer:
    config, costs = Arm("studied", scheduler).config, Costs(launch_s=START_S, restart_s=START_S)
    record = run_simulation(Simulation(trace, Cluster.parse(CLUSTER), config, costs=costs, measure=measure)).record
    jobs, options = record.jobs, MetricOptions(measure=measure)
    done = measured_rows(record, options) & (jobs.phase == Phase.FINISHED)
    return {
        "figures": summarize(record, options).to_dict(),
        "accelerator_h": float(jobs.accelerator_s[done].mean()) / 3600.0,
        "workers": float(jobs.accelerator_s[done].sum() / jobs.run_s[done].sum()),
        "at_once": _most_at_once(jobs),
    }


def _most_at_once(jobs: JobOutcomes) -> int:
    """Jobs that were there together, running or waiting."""
    gone = jobs.ended_s[np.isfinite(jobs.ended_s)]
    when = np.concatenate((gone, jobs.submitted_s))  # who leaves as another comes makes room first
    change = np.concatenate((np.full(len(gone), -1), np.ones(len(jobs), dtype=np.int64)))
    return int(np.cumsum(change[when.argsort(kind="stable")]).max(initial=0))


# Figure 3.


def at_interval(scale: OwnClusters, minutes: int) -> list[Trained]:
    scheduler = f"policy: pollux, estimator: fitted, rounds: {round(minutes * MINUTE)}"
    return [Trained(scheduler, workload, scale.jobs) for workload in scale.workloads]


def interval_cases(scale: Scale) -> Iterable[Case]:
    return (case for minutes in INTERVALS for case in at_interval(own_clusters(scale), minutes))


def read_intervals(scale: Scale, answers: Answers) -> Findings:
    mine = own_clusters(scale)

    def figures(minutes: int, name: str) -> list[float]:
        return [figure(answers.of(case), name) for case in at_interval(mine, minutes)]

    def longer(minutes: int) -> list[float]:
        return [late / soon for late, soon in zip(*(figures(many, "average_jct_s") for many in (minutes, 1)))]

    def waits(minutes: int) -> float:
        """Of what it takes longer than with a minute, the part that passes before the first start, in percent."""
        more = [
            np.mean(figures(minutes, name)) - np.mean(figures(1, name))
            for name in ("average_responsiveness_s", "average_jct_s")
        ]
        return 100.0 * float(more[0] / more[1]) if more[1] > 0 else 0.0

    published = PUBLISHED.get(mine.workloads) if mine.jobs == 160 else None
    rows = [
        row(
            "average JCT, decisions every minute",
            published,
            lambda: float(np.mean(figures(1, "average_jct_s"))),
            "s",
            Wants.NEAR,
        )
    ]
    for minutes in INTERVALS[1:]:
        rows.append(row(f"average JCT, every {minutes} minutes / every minute", None, partial(longer, minutes)))
        rows.append(
            row(f"of the difference, time before the first start, {minutes} minutes", None, partial(waits, minutes), "%")
        )
    found = [row("", None, partial(figures, minutes, "average_jct_s"), "s") for minutes in INTERVALS]
    points = [(float(minutes), one.ours / MINUTE) for minutes, one in zip(INTERVALS, found) if one.ours is not None]
    lines = [PlotLine("Pollux", *zip(*points))] if points else []
    picture = Lines(
        "fig3", "Pollux by scheduling interval", "minutes between decisions", "average JCT, minutes", lines, log_x=True
    )
    notes = [
        "the paper: Blox and Pollux' own simulator differ by at most 2.4 %; its bars are not in its text, and of what the"
        " authors published there is the average JCT with a minute",
    ]
    return Findings(rows, (picture,), notes)


# Figures 8 and 9.


def under_load(scale: OwnClusters, arm: Arm, load: float, number: int) -> Trained:
    workload, seed = scale.arrivals[number]
    return Trained(arm.scheduler, workload, scale.jobs, load, seed)


def sweep(scale: Scale) -> Sweep[Arm]:
    mine = own_clusters(scale)
    numbers = tuple(range(len(mine.arrivals)))
    return Sweep(
        (FIFO, PASSING, LAS, POLLUX),
        mine.loads,
        numbers,
        partial(under_load, mine),
        f"jobs per hour ({ACCELERATORS} GPUs)",
    )


def read_jct(scale: Scale, answers: Answers) -> Findings:
    given, rows = sweep(scale), list[Row]()

    def best_other(load: float) -> list[float]:
        others = (given.gains(answers, arm.label, POLLUX.label, load, average_jct) for arm in (FIFO, LAS))
        return [min(pair) for pair in zip(*others)]

    for load in given.loads:
        told = f"{load:g} jobs/hr"
        if load < BUSY:
            rows.append(
                row(f"average JCT, better of FIFO and LAS / Pollux: {told}", 1.0, partial(best_other, load), wants=Wants.MORE)
            )
        if load > CROWDED:
            for arm in (FIFO, PASSING):
                alike = partial(given.gains, answers, POLLUX.label, arm.label, load, average_jct)
                rows.append(row(f"average JCT, Pollux / {arm.label}: {told}", 1.0, alike, wants=Wants.NEAR))
    rows += _streamed("average JCT", scale, answers, average_jct)
    for load in given.loads:
        for arm in (FIFO, PASSING, POLLUX):
            if load > CROWDED:
                rows += _reasons(f"{arm.label}: {load:g} jobs/hr", partial(given.answers, answers, arm.label, load))
    for arm, case in streams(scale).items():
        told = f"{arm.label}: {STREAM_LOAD:g} jobs/hr, in a long stream"
        rows += _reasons(told, partial(_only, answers, case), own_clusters(scale).stream_size)
    notes = [
        f"the paper's claims: Pollux has the shortest JCT under {BUSY:g} jobs/hr, and above {CROWDED:g} one similar to FIFO's",
        f"why not: no more jobs can end than {ACCELERATORS} an hour over the accelerator-hours of a job, and under Pollux they"
        " need fewer: it shrinks jobs until each has an accelerator, and they tune their batch sizes",
        f"no job waits under Pollux before there are more than {ACCELERATORS} jobs at once, as there are in the long stream",
    ]
    shown = given.against_load(answers, "fig8", "Average JCT, Pollux' jobs", "average JCT, hours", average_jct)
    return Findings(rows, (shown,), notes)


def read_responsiveness(scale: Scale, answers: Answers) -> Findings:
    given, rows = sweep(scale), list[Row]()

    def over(one: Arm, other: Arm, load: float) -> Callable[[], list[float]]:
        return partial(given.gains, answers, one.label, other.label, load, responsiveness)

    for load in given.loads:
        told = f"{load:g} jobs/hr"
        if load < BUSY or load > CROWDED:
            for arm in (FIFO, PASSING):
                what = f"responsiveness, Pollux / {arm.label}: {told}"
                rows.append(row(what, 1.0, over(POLLUX, arm, load), wants=Wants.NEAR))
        if load > CROWDED:
            rows.append(row(f"responsiveness, FIFO / LAS: {told}", 1.0, over(FIFO, LAS, load), wants=Wants.MORE))
    rows += _streamed("responsiveness", scale, answers, responsiveness)
    notes = ["the paper's claims: alike under 15 jobs/hr; above 20 Pollux' is similar to FIFO's, and LAS' stays good"]
    shown = given.against_load(
        answers, "fig9", "Responsiveness, Pollux' jobs", "first start − submission, minutes", responsiveness, MINUTE
    )
    return Findings(rows, (shown,), notes)


def _reasons(told: str, ask: Callable[[], list[Answer]], scale: str = "") -> list[Row]:
    """What each job takes of the cluster, and how much of it is used."""

    def figures(pick: Callable[[Answer], float]) -> list[float]:
        return [pick(answer) for answer in ask()]

    parts: tuple[tuple[str, str, Callable[[Answer], float]], ...] = (
        ("accelerator-hours of a job", "h", lambda answer: float(answer["accelerator_h"])),
        ("workers of a running job", "workers", lambda answer: float(answer["workers"])),
        ("most jobs at once", "jobs", lambda answer: float(answer["at_once"])),
        ("GPUs in use", "%", lambda answer: 100.0 * figure(answer, "utilization")),
    )
    return [row(f"{what}, {told}", None, partial(figures, pick), unit, scale=scale) for what, unit, pick in parts]


def streams(scale: Scale) -> dict[Arm, Streamed]:
    return {arm: Streamed(arm.scheduler, STREAM_LOAD, own_clusters(scale).stream_measure) for arm in (FIFO, PASSING, POLLUX)}


def _only(answers: Answers, case: Case) -> list[Answer]:
    return [answers.of(case)]


def _streamed(what: str, scale: Scale, answers: Answers, pick: Callable[[Answer], float]) -> list[Row]:
    cases, size = streams(scale), own_clusters(scale).stream_size

    def over(arm: Arm) -> float:
        return pick(answers.of(cases[POLLUX])) / pick(answers.of(cases[arm]))

    told = f"{STREAM_LOAD:g} jobs/hr, in a long stream"
    return [
        row(f"{what}, Pollux / {arm.label}: {told}", 1.0, partial(over, arm), wants=Wants.NEAR, scale=size)
        for arm in (FIFO, PASSING)
    ]


def load_cases(scale: Scale) -> Iterable[Case]:
    return (*sweep(scale).cases(), *streams(scale).values())


INTERVAL = (
    Study(
        "fig3",
        "Figure 3: Pollux by scheduling interval",
        interval_cases,
        read_intervals,
        lambda scale: own_clusters(scale).trained_size,
    ),
)

STUDIES = (
    Study(
        "fig8",
        "Figure 8: completion times of Pollux' jobs against load",
        load_cases,
        read_jct,
        lambda scale: own_clusters(scale).arrivals_size,
    ),
    Study(
        "fig9",
        "Figure 9: responsiveness to Pollux' jobs against load",
        load_cases,
        read_responsiveness,
        lambda scale: own_clusters(scale).arrivals_size,
    ),
)
