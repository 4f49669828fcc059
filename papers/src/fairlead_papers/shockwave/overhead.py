"""What planning takes (§8.9, Figure 12): how far plans of many jobs are from their bounds, after how long a search; and what a
search cut short does to whole runs. The paper gives its solver seconds. Ours is given levels of its search, so that a window
has the same plan everywhere, and what they took of CPU time is measured."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import product

import numpy as np

from fairlead.core.cluster import Floats
from fairlead.core.events import MemoChanged
from fairlead.engine.journal import MemoryJournal
from fairlead.experiments.cases import Answer, Answers, Case, CaseFailed
from fairlead.experiments.inputs import ExperimentInputs
from fairlead.experiments.metrics import summarize
from fairlead.policies.shockwave.planning.planner import WindowPlan, plan_window
from fairlead.policies.shockwave.planning.relaxation import LEVELS
from fairlead.policies.shockwave.planning.window import Window
from fairlead.reporting.pictures import Lines, PlotLine
from fairlead_papers.findings import Findings, Row, Wants, row
from fairlead_papers.shockwave.jobs import Jobs
from fairlead_papers.shockwave.runs import STATIC, Run, cut_short, makespan, worst_rho
from fairlead_papers.shockwave.scale import Scale, accelerators_for
from fairlead_papers.shockwave.windows import ROUNDS, drawn
from fairlead_papers.study import Study

PAPER_GAP = {500: 0.03, 1000: 0.11, 2000: 0.44}
"""By jobs: the relative bound gap after 15 s, in percent."""
LIMIT_S = 15.0
TEXT, STRONG = 1e-3, 10.0
"""λ: the paper's default, and the largest that it names, with which the makespan counts for more than all utilities."""
ALIKE = 6
"""Levels after which plans' gaps in whole runs are about what the paper's are at 2,000 jobs."""
LIMITED = 1.1
PICKS: tuple[tuple[str, Callable[[Answer], float]], ...] = (("makespan", makespan), ("worst ρ", worst_rho))
REPEATS = 3
LEAST_DRAWN = 1e-6  # percent: what is less has no place on a logarithmic axis


@dataclass(frozen=True)
class Searched:
    """A search for a plan that ends after so many levels, however near the bound is; None: where the policy's ends."""

    levels: int | None

    @property
    def name(self) -> str:
        return "policy" if self.levels is None else f"{self.levels} levels"

    def plan(self, window: Window, urgency: Floats) -> WindowPlan:
        if self.levels is None:
            return plan_window(window, urgency)
        return plan_window(window, urgency, tolerance=0.0, nodes=0, levels=self.levels)


POLICY = Searched(None)
CURVE = tuple(map(Searched, (0, 1, 2, 4, 8, 16)))
SEARCHES = (POLICY, *CURVE)


@dataclass(frozen=True)
class Windows:
    """Plans of drawn windows, after each of some numbers of levels: their gaps, in percent of their values and in nats per
    weight, and the least CPU time of a few tries. All are tried in turn, as a machine is not as fast at all times."""

    jobs: int
    accelerators: int
    makespan: float
    windows: int

    def run(self, inputs: ExperimentInputs) -> Answer:
        given = [drawn(self.jobs, self.accelerators, self.makespan, seed) for seed in range(self.windows)]
        told = ("relative", "nats", "cpu_s")
        answer: Answer = {searched.name: {what: [math.inf] * self.windows for what in told} for searched in SEARCHES}
        for _, searched, (seed, each) in product(range(REPEATS), SEARCHES, enumerate(given)):
            began = time.process_time()
            found = searched.plan(*each)
            took = time.process_time() - began
            mine = answer[searched.name]
            mine["relative"][seed], mine["nats"][seed] = 100.0 * found.relative_gap, found.gap
            mine["cpu_s"][seed] = min(mine["cpu_s"][seed], took)
        return answer


@dataclass(frozen=True)
class Cut:
    """A run of the preset with such a search, and the gap of the median plan, in percent, of those for more jobs than
    accelerators: for fewer there is hardly anything to decide, and no gap. The median, as some plans are worth nearly 0."""

    levels: int
    jobs: int

    def run(self, inputs: ExperimentInputs) -> Answer:
        accelerators, journal = accelerators_for(self.jobs), MemoryJournal()
        given = Run(cut_short(self.levels).scheduler, Jobs(self.jobs, public=True), accelerators, 0)
        record = given.record(inputs, journal=journal)
        memos = [event.memo for event in journal if isinstance(event, MemoChanged) and event.memo]
        gaps = [float(memo["relative_gap"]) for memo in memos if len(memo["number"]) > accelerators]
        gap = 100.0 * float(np.median(gaps)) if gaps else 0.0
        return {"figures": summarize(record, STATIC).to_dict(), "gap": gap, "plans": len(memos)}


def made(scale: Scale, jobs: int, makespan: float) -> Windows:
    return Windows(jobs, scale.planned_on, makespan, scale.windows)


def traces(scale: Scale) -> tuple[int, ...]:
    return tuple(dict.fromkeys((scale.physical, *scale.large)))


def cases(scale: Scale) -> Iterable[Case]:
    for jobs in scale.active:
        yield from (made(scale, jobs, penalty) for penalty in (TEXT, STRONG))
    for jobs in traces(scale):
        yield from (Cut(levels, jobs) for levels in (*scale.cuts, LEVELS))


def read(scale: Scale, answers: Answers) -> Findings:
    rows = [one for jobs in scale.active for one in _of_windows(scale, answers, jobs)]
    rows += [one for jobs in traces(scale) for one in _of_runs(scale, answers, jobs)]
    pictures = [
        _gaps(scale, answers, "fig12", TEXT),
        _gaps(scale, answers, "fig12-strong", STRONG),
        _harm(scale, answers),
    ]
    notes = [
        "the relative gap is |bound − value| / |value| of Equation 11, which is 0 where all jobs are done; nats are"
        " (bound − value) / Σw; means over the windows, with λ = 0.001 where no other is named",
        "the paper's gaps are those of Gurobi with 24 threads after 15 s, of windows that it does not describe; ours are of one"
        " thread and of windows drawn at random",
        "the policy's search ends at 0.001 nats, or when it has nothing left to search",
    ]
    return Findings(rows, pictures, notes)


def _of_windows(scale: Scale, answers: Answers, jobs: int) -> list[Row]:
    def of(what: str, penalty: float = TEXT, searched: Searched = POLICY) -> list[float]:
        return [*map(float, answers.of(made(scale, jobs, penalty))[searched.name][what])]

    def longest(searched: Searched) -> float:
        return max(max(of("cpu_s", penalty, searched)) for penalty in (TEXT, STRONG))

    gap, last = PAPER_GAP.get(jobs), CURVE[-1]
    name = f"{jobs:,} jobs"
    worst = "one core, the worst of the windows with either λ; the paper's is what its solver is given"
    return [
        row(f"relative gap, {name}", gap, partial(of, "relative"), "%", Wants.MOST),
        row(f"relative gap, {name}, λ = {STRONG:g}", gap, partial(of, "relative", STRONG), "%", Wants.MOST),
        row(f"relative gap, {name}, after {last.name}", gap, partial(of, "relative", TEXT, last), "%", Wants.MOST),
        row(f"gap, {name}", None, partial(of, "nats"), "nats"),
        row(f"CPU time of a plan, {name}", LIMIT_S, partial(longest, POLICY), "s", Wants.MOST, worst),
        row(f"CPU time of a plan, {name}, after {last.name}", LIMIT_S, partial(longest, last), "s", Wants.MOST, worst),
    ]


def _of_runs(scale: Scale, answers: Answers, jobs: int) -> list[Row]:
    def gap(levels: int) -> float:
        return float(answers.of(Cut(levels, jobs))["gap"])

    told = f"{jobs} jobs on {accelerators_for(jobs)}"
    rows = [row(f"gap of the median plan: {told}", None, partial(gap, LEVELS), "%", scale=told)]
    for levels in scale.cuts:
        name = f"{levels} levels: {told}"
        rows.append(row(f"gap of the median plan, {name}", None, partial(gap, levels), "%", scale=told))
        paper, note = (LIMITED, "limited impact, in the paper's words") if levels == ALIKE else (None, "")
        for what, pick in PICKS:
            times = partial(_times, answers, jobs, pick, levels)
            rows.append(row(f"{what} in that of a whole search, {name}", paper, times, "x", Wants.MOST, note, told))
    return rows


def _times(answers: Answers, jobs: int, pick: Callable[[Answer], float], levels: int) -> float:
    return pick(answers.of(Cut(levels, jobs))) / pick(answers.of(Cut(LEVELS, jobs)))


def _gaps(scale: Scale, answers: Answers, name: str, penalty: float) -> Lines:
    """A line for each number of jobs, a point for each number of levels."""
    lines = []
    for jobs in scale.active:
        try:
            found = answers.of(made(scale, jobs, penalty))
        except CaseFailed:
            continue
        cpu_s, gaps = ([float(np.mean(found[each.name][what])) for each in CURVE] for what in ("cpu_s", "relative"))
        lines.append(PlotLine(f"{jobs:,} jobs", [1000.0 * each for each in cpu_s], [max(gap, LEAST_DRAWN) for gap in gaps]))
    title = f"Searches of {', '.join(str(each.levels) for each in CURVE)} levels, λ = {penalty:g}"
    return Lines(name, title, "CPU time, ms", "relative gap, %", lines, log_x=True, log_y=True)


def _harm(scale: Scale, answers: Answers) -> Lines:
    lines = []
    for jobs in traces(scale):
        for what, pick in PICKS:
            try:
                times = [_times(answers, jobs, pick, levels) for levels in scale.cuts]
            except CaseFailed:
                continue
            lines.append(PlotLine(f"{what}, {jobs} jobs", [*map(float, scale.cuts)], times))
    return Lines("fig12-runs", "Runs with searches cut short", "levels", "in that of a whole search", lines)


def _told(scale: Scale) -> str:
    return f"{scale.windows} windows of {ROUNDS} rounds, {scale.planned_on} GPUs"


STUDIES = (Study("fig12", "Figure 12: what planning takes", cases, read, _told),)
