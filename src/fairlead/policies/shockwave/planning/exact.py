"""The best plan of a window by mixed-integer programming, for small clusters, where gangs that do not fit side by side keep
plans below the relaxation.

Rounds are interchangeable, so the program counts *patterns*: pattern q, with c_qw gangs of size w, occurs u_q times. Rounds n_j
of the jobs of a size fit if and only if, for every i, the i jobs with the most rounds have at most Σ_q u_q·min(c_qw, i)
together (Gale and Ryser). The sum of the i largest is min over τ of i·τ + Σ_j max(n_j − τ, 0), hence linear."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice, pairwise

import numpy as np

from fairlead.core.cluster import Bools, Floats, Ints
from fairlead.policies.allocation.lp.program import Model, solve_mip
from fairlead.policies.shockwave.planning.window import Window

MAX_PATTERNS = 400
"""Limit on the number of patterns: clusters with more are not small."""

MAX_PROGRAM_SIZE = 2000
"""Limit on Σ over sizes of (jobs) × (gangs at once): larger programs take seconds."""


@dataclass(frozen=True)
class ExactPlan:
    """A schedule and an upper bound for all schedules."""

    schedule: Bools
    bound: float


def solve_exact(window: Window, urgency: Floats, *, gap: float, nodes: int) -> ExactPlan | None:
    """The best schedule up to `gap`, within a number of search nodes; None where the cluster is large or none is found."""
    sizes = np.unique(window.workers[window.max_rounds > 0])[::-1]
    patterns = [*islice(_filled(sizes.tolist(), window.accelerators), MAX_PATTERNS + 1)]
    count = np.array([np.count_nonzero((window.workers == size) & (window.max_rounds > 0)) for size in sizes])
    if not len(sizes) or len(patterns) > MAX_PATTERNS:
        return None
    if int(count @ np.minimum(count, window.accelerators // sizes)) > MAX_PROGRAM_SIZE:
        return None
    model = _Model()
    jobs = range(len(window))
    rounds = [model.column(0.0, int(window.min_rounds[j]), int(window.max_rounds[j]), whole=True) for j in jobs]
    span = model.column(-window.penalty, 0.0, np.inf)
    load: list[tuple[int, float]] = [(span, float(window.accelerators))]
    for j in jobs:
        load += _job(model, window, j, rounds[j], span)
    if window.loads:
        model.row(load, float(window.workers @ window.left_s[:, 0]), np.inf)
    often = [model.column(0.0, 0.0, float(window.rounds), whole=True) for _ in patterns]
    model.row([(column, 1.0) for column in often], 0.0, float(window.rounds))
    for number, size in enumerate(sizes):
        mine = [j for j in jobs if window.workers[j] == size and window.max_rounds[j]]
        _add_patterns(model, [rounds[j] for j in mine], [int(pattern[number]) for pattern in patterns], often)
    found = solve_mip("shockwave plan", *model.program(), nodes=nodes, gap=gap)
    if found is None:
        return None
    wanted, times = found.values[rounds].round().astype(np.int64), found.values[often].round().astype(np.int64)
    schedule = _schedule(window, wanted, np.repeat(np.array(patterns), times, axis=0), sizes, urgency)
    return ExactPlan(schedule, found.bound + float(window.worth[:, 0].sum()))


def _job(model: _Model, window: Window, job: int, rounds: int, span: int) -> list[tuple[int, float]]:
    """Add a job: the worth of its rounds and the run time left, by steps of one round; returns the load that each removes."""
    count = int(window.max_rounds[job])
    gains = np.diff(window.worth[job, : count + 1])
    drops = -np.diff(window.left_s[job, : count + 1])
    nonconcave = bool((gains[1:] > gains[:-1] + 1e-12).any())
    steps = [model.column(gains[k], 0.0, 1.0, whole=nonconcave) for k in range(count)]
    model.row([(rounds, -1.0), *((step, 1.0) for step in steps)], 0.0, 0.0)
    if nonconcave:  # steps are taken in order
        for below, above in pairwise(steps):
            model.row([(below, 1.0), (above, -1.0)], 0.0, np.inf)
    if window.left_s[job, 0] > 0:
        model.row([(span, 1.0), *zip(steps, drops.tolist())], float(window.left_s[job, 0]), np.inf)
    return [(step, float(window.workers[job]) * drop) for step, drop in zip(steps, drops.tolist())]


def _add_patterns(model: _Model, rounds: list[int], counts: list[int], often: list[int]) -> None:
    """Constrain the rounds of the jobs of one size to fit the patterns."""
    counts = [min(count, len(rounds)) for count in counts]
    model.row([*((r, -1.0) for r in rounds), *((u, float(c)) for u, c in zip(often, counts))], 0.0, np.inf)
    some = [(u, 1.0) for u, count in zip(often, counts) if count]
    for job in rounds:
        model.row([(job, -1.0), *some], 0.0, np.inf)
    for i in range(2, max(counts)):
        level = model.column(0.0, 0.0, np.inf)
        row = [(level, -float(i)), *((u, float(min(c, i))) for u, c in zip(often, counts))]
        for job in rounds:
            over = model.column(0.0, 0.0, np.inf)
            model.row([(over, 1.0), (level, 1.0), (job, -1.0)], 0.0, np.inf)
            row.append((over, -1.0))
        model.row(row, 0.0, np.inf)


def _schedule(window: Window, wanted: Ints, patterns: Ints, sizes: Ints, urgency: Floats) -> Bools:
    """In each round the jobs with the most rounds left run, urgent ones first; rounds of high urgency come first."""
    schedule = np.zeros((len(window), window.rounds), dtype=np.bool_)
    left = wanted.copy()
    order = np.argsort(-urgency, kind="stable")
    for now in range(len(patterns)):
        for size, count in zip(sizes, patterns[now]):
            line = order[(window.workers[order] == size) & (left[order] > 0)]
            chosen = line[np.argsort(-left[line], kind="stable")[:count]]
            schedule[chosen, now] = True
            left[chosen] -= 1
    return schedule[:, np.argsort(-(urgency * window.workers) @ schedule, kind="stable")]


def _filled(sizes: list[int], room: int) -> Iterator[tuple[int, ...]]:
    """The patterns that fill the cluster, from wide to narrow; some leave room for a wider gang, which does no harm."""
    if not sizes:
        yield ()
        return
    fitting = room // sizes[0]
    for count in range(fitting, -1, -1) if len(sizes) > 1 else (fitting,):
        for rest in _filled(sizes[1:], room - count * sizes[0]):
            yield (count, *rest)


@dataclass
class _Model:
    """A program under construction, column by column and row by row."""

    cost: list[float] = field(default_factory=list)
    lower: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    whole: list[bool] = field(default_factory=list)
    row_lower: list[float] = field(default_factory=list)
    row_upper: list[float] = field(default_factory=list)
    entries: list[tuple[int, int, float]] = field(default_factory=list)

    def column(self, cost: float, lower: float, upper: float, *, whole: bool = False) -> int:
        self.cost.append(cost)
        self.lower.append(lower)
        self.upper.append(upper)
        self.whole.append(whole)
        return len(self.cost) - 1

    def row(self, terms: list[tuple[int, float]], lower: float, upper: float) -> None:
        self.entries += [(len(self.row_lower), column, value) for column, value in terms]
        self.row_lower.append(lower)
        self.row_upper.append(upper)

    def program(self) -> tuple[Model, Bools]:
        rows, columns, values = zip(*self.entries)
        entries = (np.array(rows), np.array(columns), np.array(values, dtype=np.float64))
        columns_and_rows = (self.cost, self.lower, self.upper, self.row_lower, self.row_upper)
        cost, lower, upper, row_lower, row_upper = (np.array(each, dtype=np.float64) for each in columns_and_rows)
        return Model(cost, lower, upper, row_lower, row_upper, entries), np.array(self.whole)
