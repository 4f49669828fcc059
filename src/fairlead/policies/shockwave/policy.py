"""The policy `shockwave` (Zheng et al., NSDI'23, §6): plan a window of rounds and follow the plan until jobs arrive or leave,
the window ends, or a job's batch size or speed changes.

    max Σ_j w_j·ρ̂_j^k·log UTIL_j(n_j) − λ·N·M/Z_0·H(n)

over the rounds n_j of each job in the window (`planning/window.py`; k is `power`, λ is `makespan`, times the critical fraction
to the power of `critical`). The utility of n rounds follows from the forecast regimes (`planning/regime_forecast.py`). The memo
is the plan: the jobs of each round, and when the window began. With the program of the text, a job has at least the rounds that
it needs to meet its deadline (`fair_deadlines`), and jobs with near deadlines run first. A round's selection is the plan's
column in order of urgency; other jobs fill free accelerators, longest first, then jobs that arrived since: a plan also serves
where the next one is late. Where there are several types, each job is planned on one of them; fairness is relative to its
fastest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from fairlead.core.cluster import Bools, Floats, Ints
from fairlead.core.columns import significant
from fairlead.core.errors import InputError, require
from fairlead.core.events import Memo
from fairlead.core.plan import Selection
from fairlead.core.reasons import Reason, Reasons
from fairlead.core.rng import stream
from fairlead.core.snapshot import Snapshot
from fairlead.policies.ranking.base import in_order
from fairlead.policies.shockwave.planning.planner import NODES, TypedPlan, plan_on_types
from fairlead.policies.shockwave.planning.regime_forecast import (
    RULES,
    Trajectories,
    changing_jobs,
    forecast_trajectories,
    with_noise,
)
from fairlead.policies.shockwave.planning.relaxation import LEVELS
from fairlead.policies.shockwave.planning.window import (
    EPSILON,
    Window,
    critical_fraction,
    epoch_progress,
    fair_deadlines,
    left_after,
    make_window,
)


def rho(ran_s: Floats, waited_s: Floats, left_s: Floats, contention: Floats) -> Floats:
    """Forecast finish-time fairness (appendix G.2, Equation 9): (L + W + R·n) / (P·n) with P = L + R, where n is the mean
    contention since the job's submission, in jobs per accelerator and at least 1."""
    total = np.maximum((ran_s + left_s) * contention, np.finfo(float).tiny)
    return (ran_s + waited_s + left_s * contention) / total


def mean_contention(demand_s: Floats, here_s: Floats, accelerators: int) -> Floats:
    """The mean contention of each job, where `demand_s` is the integral of the number of jobs since submission."""
    here = here_s > 0
    mean = np.where(here, demand_s / np.where(here, here_s, 1.0), len(here_s)) / accelerators
    return np.maximum(mean, 1.0)


@dataclass(frozen=True)
class FairnessDeadlines:
    """Fairness in the published program: a job's projected end may be at most `rho_max` times its fair end."""

    min_rounds: Ints  # rounds for a projected end in time; all that it can use where these do not suffice
    ratio: Floats  # projected to fair end with no round in this window
    late: Bools  # too late even with all rounds that it can use


def projected_jct(window: Window, left_s: Floats, here_s: Floats, contention: Floats) -> Floats:
    """Jobs × (rounds + 1): seconds from submission to the end; after the window, contention stretches what is left."""
    span = window.rounds * window.round_s
    left = left_after(left_s, window.rounds, window.round_s)
    inside = here_s + np.minimum(span, contention * left_s)
    behind = here_s[:, None] + span + contention[:, None] * left
    return np.where(left > 0, behind, inside[:, None])


def fairness_deadlines(
    window: Window, left_s: Floats, here_s: Floats, run_s: Floats, contention: Floats, rho_max: float
) -> FairnessDeadlines:
    """The deadlines of jobs. `run_s` is the whole exclusive run time of each job; its fair end is that times its contention."""
    require(rho_max > 0, "shockwave planner", "a number above 0", "rho_max", rho_max)
    ratio = projected_jct(window, left_s, here_s, contention) / np.maximum(run_s * contention, np.finfo(float).tiny)[:, None]
    in_time = ratio <= rho_max
    late = ~in_time[np.arange(len(window)), window.max_rounds]
    min_rounds = np.where(late, window.max_rounds, in_time.argmax(axis=1))
    return FairnessDeadlines(min_rounds, ratio[:, 0], late)


def published_program(window: Window, ends: FairnessDeadlines, rho_max: float, power: float) -> Window:
    """The program of Shockwave's published results: a job's projected end is at most ρ_max times its fair end or, where that is
    infeasible, jobs that violate it are weighted by their ratio to a power."""
    require(power >= 0, "shockwave planner", "a number of at least 0", "power", power)
    if not ends.late.any() and int(ends.min_rounds @ window.workers) <= window.room:
        return window.at_least(ends.min_rounds)
    factor = np.where(ends.ratio > rho_max, ends.ratio**power, 1.0)
    return replace(window, worth=window.worth * factor[:, None], weight=window.weight * factor)


_EARLY = 1e-9  # of a round: a time this close to the next round belongs to it
_MIN_FACTOR = 1e-2  # of a noisy forecast
_DEFAULT_ROUND_S = 120.0  # where the scheduler has no rounds

_BOUNDS: Mapping[str, tuple[float, float]] = {
    "rounds": (1, 1000),
    "round_s": (1e-3, 1e7),
    "power": (0, 100),
    "makespan": (0, 1e6),
    "critical": (0, 100),
    "epsilon": (1e-12, 1),
    "rho_max": (1e-3, 1e3),
    "stay": (0, 1e3),
    "levels": (0, 1e6),
    "nodes": (0, 1e6),
    "noise": (0, 1),
}
"""Bounds of parameters for which the program is well scaled and a plan fits into memory."""

Program = Literal["text", "published"]


@dataclass(frozen=True)
class Shockwave:
    """Plan a window of rounds that maximizes Nash welfare over time; jobs with poor forecast fairness weigh more.

    A penalty on a bound of the makespan lets long jobs run in time.
    """

    paper: ClassVar[str] = "Shockwave (Zheng et al., NSDI'23)"
    rounds: int = 20  # rounds in a window, at most 1000
    round_s: float | None = None  # length of a round; default: that of the scheduler, or 120 without rounds
    power: float = 5.0  # exponent k of ρ in a job's weight
    makespan: float = 1e-3  # λ: larger values favour a short makespan
    critical: float = 0.0  # multiplies λ by the critical fraction to this power
    epsilon: float = EPSILON  # utility of a job that has done nothing
    program: Program = "text"  # the objective of the paper's text, or the program of the paper's results
    rho_max: float = 1.05  # jobs end by this many times their fair ends, as far as all of them can
    stay: float = 0.1  # a running job counts as this much more urgent, because each start costs time
    levels: int = LEVELS  # limits the search for how long the longest job may wait; 0: no search
    nodes: int = NODES  # limits the search for a better plan on small clusters; 0: no search
    reactive: bool = True  # plan again at a new batch size or rate; otherwise the next plan takes it into account
    forecast: str = "restatement"  # how batch sizes are forecast: `restatement`, `standard`, or `greedy` for no forecast
    noise: float = 0.0  # relative error of each job's run time, up to 1, for robustness tests
    seed: int = 0  # seed of the random draws

    def __post_init__(self) -> None:
        for field, (low, high) in _BOUNDS.items():
            value = getattr(self, field)
            if value is not None and not low <= value <= high:
                raise InputError("policy shockwave", f"a number from {low:g} to {high:,g}", field=field, value=value)
        for field, names in (("program", get_args(Program)), ("forecast", tuple(RULES))):
            if getattr(self, field) not in names:
                raise InputError("policy shockwave", " or ".join(names), field=field, value=getattr(self, field))

    def select(self, view: Snapshot, memo: Memo) -> tuple[Selection, Memo]:
        if not len(view.jobs):
            return Selection.empty(), memo
        plan = memo if memo and self._is_valid(view, memo) else self._plan(view, memo)
        return self._as_planned(view, plan), plan

    def interim_selection(self, view: Snapshot, memo: Memo) -> Selection:
        return self._as_planned(view, memo) if memo and len(view.jobs) else in_order(view)

    def _as_planned(self, view: Snapshot, plan: Mapping[str, Any]) -> Selection:
        """The present round of the plan for the jobs of the view; after its window, the last one."""
        schedule, begun, round_s = self.schedule(plan), float(plan["begun"]), float(plan["round_s"])
        now = min(int((view.time - begun) / round_s + _EARLY), self.rounds - 1)
        rows, there = _rows(plan["number"], view.jobs.number)
        runs = there & schedule[rows, now]
        last = np.flatnonzero((schedule[:, now:] != schedule[:, now : now + 1]).any(axis=0))
        turn = now + int(last[0]) if len(last) else self.rounds
        key = np.where(runs, plan["urgent"][rows], plan["longest"][rows] + len(schedule))
        key = np.where(there, key, 2 * len(schedule))
        prefer = np.where(runs, plan["type"][rows], -1)
        chosen = in_order(view, key, valid_until=begun + (turn - _EARLY) * round_s, prefer=prefer)
        waits = there & ~chosen.chosen(view.jobs.number) & ~runs
        return chosen.with_reasons(self._reasons(plan, schedule[:, now:], begun + now * round_s, rows[waits]))

    def schedule(self, memo: Mapping[str, Any]) -> Bools:
        """Jobs × rounds: the schedule of a plan."""
        unpacked: Bools = np.unpackbits(memo["schedule"], axis=1, count=self.rounds).astype(np.bool_)
        return unpacked

    def _is_valid(self, view: Snapshot, memo: Mapping[str, Any]) -> bool:
        """Whether the plan is for these jobs and accelerators, has not ended, and batch sizes and speeds are the same."""
        if "grown" not in memo:  # from a journal of an older version
            return False
        over = float(memo["begun"]) + (self.rounds - _EARLY) * float(memo["round_s"])
        same = np.array_equal(memo["number"], view.jobs.number) and np.array_equal(memo["capacity"], view.capacity)
        if not same or view.time >= over:
            return False
        if not self.reactive:
            return True
        return np.array_equal(memo["grown"], _changed_batch_sizes(view)) and np.array_equal(memo["pace_s"], _fastest(view)[0])

    def _reasons(self, plan: Mapping[str, Any], schedule: Bools, now_s: float, waits: Ints) -> dict[int, Reason]:
        """Why jobs wait; `schedule` has the rounds from the one on that began at `now_s`."""
        number, ratio, cost = (plan[name][waits].tolist() for name in ("number", "rho", "cost"))
        later = schedule[waits]
        rounds, from_s = later.sum(axis=1).tolist(), (now_s + later.argmax(axis=1) * float(plan["round_s"])).tolist()
        facts = zip(number, rounds, from_s, ratio, cost)
        return {n: Reasons.planned_later(r, later.shape[1], from_s=s, rho=f, cost=c) for n, r, s, f, c in facts}

    def _plan(self, view: Snapshot, memo: Memo) -> Mapping[str, Any]:
        accelerators = max(int(view.capacity.sum()), 1)
        demand_s, since_s = _demand(view, memo)
        here_s = view.time - view.jobs.submitted_s
        contention = mean_contention(demand_s - since_s, here_s, accelerators)
        changing = changing_jobs(view)
        made, unfair, urgency, due_s = self._window(view, changing, accelerators, here_s, contention)
        # Each start costs, so running jobs are a little more urgent.
        urgency = urgency * np.where(view.jobs.running, 1.0 + self.stay, 1.0)
        home = np.where(view.jobs.running, view.jobs.type, -1)
        limits = {"levels": self.levels, "nodes": self.nodes}
        found = plan_on_types(made, self._by_type(view, changing, made), urgency, home, self.stay, due_s, **limits)
        return self._memo(view, found, unfair, urgency, made, demand_s, since_s)

    def _window(
        self, view: Snapshot, changing: Sequence[int], accelerators: int, here_s: Floats, contention: Floats
    ) -> tuple[Window, Floats, Floats, Floats]:
        """The next rounds' window, each job on its fastest type; its ρ̂; its urgency; and the seconds in which it must end."""
        jobs = view.jobs
        course, off = self._course(view, changing, *_fastest(view))
        past_s, left_s = course.past_s, course.left_s * off
        total_s = past_s + left_s
        unfair = rho(past_s, here_s - past_s, left_s, contention)
        text = self.program == "text"
        weight = jobs.weight * unfair**self.power if text else jobs.weight
        able = _rates(view).max(axis=1) > 0  # a job that can run nowhere never ends, and is no part of the makespan
        longest_s = course.longest_s * off
        part = critical_fraction(longest_s[able], past_s[able], here_s[able], jobs.workers[able], accelerators)
        scale_s = max(float(total_s.sum()), self._round_s(view))
        made = self._made(view, course, off, weight, accelerators, self.makespan * part**self.critical, scale_s)
        due_s = np.full(len(jobs), np.inf)
        if text:
            here, left, fair_s = here_s[able], left_s[able], (total_s * contention)[able]
            due_s[able] = fair_deadlines(here, left, fair_s, jobs.workers[able], accelerators, self.rho_max)
            return made, unfair, 1.0 / due_s, due_s
        ends = fairness_deadlines(made, left_s, here_s, total_s, contention, self.rho_max)
        return published_program(made, ends, self.rho_max, self.power), unfair, ends.ratio, due_s

    def _by_type(self, view: Snapshot, changing: Sequence[int], fastest: Window) -> dict[int, Window]:
        """The same window with all jobs on each type that they can run on."""
        if len(view.capacity) == 1:
            return {0: fastest}
        windows = {}
        rates = _rates(view)
        for type_ in np.flatnonzero(view.capacity).tolist():
            able = rates[:, type_] > 0
            step_s = 1.0 / np.where(able, rates[:, type_], 1.0)
            course, off = self._course(view, changing, step_s, np.full(len(able), type_))
            there = int(view.capacity[type_])
            made = self._made(view, course, off, fastest.weight, there)
            penalty = fastest.penalty * there / fastest.accelerators
            windows[type_] = replace(made, max_rounds=np.where(able, made.max_rounds, 0), penalty=penalty)
        return windows

    def _course(self, view: Snapshot, changing: Sequence[int], step_s: Floats, types: Ints) -> tuple[Trajectories, Floats]:
        """The forecast of jobs on these types, and its noise factors."""
        course = forecast_trajectories(view, RULES[self.forecast], step_s, types, changing, self._round_s(view))
        return course, self._off(view.jobs.number)

    def _made(
        self,
        view: Snapshot,
        course: Trajectories,
        off: Floats,
        weight: Floats,
        accelerators: int,
        makespan: float = 0.0,
        scale_s: float = 1.0,
    ) -> Window:
        round_s = self._round_s(view)
        return make_window(
            epoch_progress(course.done, course.remaining, course.step_s * off[:, None], course.steps, self.rounds, round_s),
            course.longest_s * off,  # a bound of the makespan without speed-ups
            view.jobs.workers,
            weight,
            accelerators,
            round_s=round_s,
            makespan=makespan,
            scale_s=scale_s,
            epsilon=self.epsilon,
            loads=self.program == "text",
        )

    def _round_s(self, view: Snapshot) -> float:
        return self.round_s or view.round_s or _DEFAULT_ROUND_S

    def _off(self, numbers: Ints) -> Floats:
        """Noise factors of the forecasts (§8.10)."""
        if not self.noise:
            return np.ones(len(numbers))
        each = (with_noise(np.ones(1), self.noise, stream(self.seed, "forecast", number)) for number in numbers.tolist())
        off: Floats = np.maximum(np.concatenate([*each]), _MIN_FACTOR)
        return off

    def _memo(
        self, view: Snapshot, found: TypedPlan, unfair: Floats, urgency: Floats, made: Window, demand_s: float, since_s: Floats
    ) -> dict[str, Any]:
        """The memo. ρ̂, prices, the cost of a round as a part of a job's budget, and the gaps are for users to read."""
        return {
            "begun": view.time,
            "round_s": self._round_s(view),
            "number": view.jobs.number.copy(),
            "capacity": view.capacity.copy(),
            "pace_s": _fastest(view)[0],
            "grown": _changed_batch_sizes(view),
            "schedule": np.packbits(found.schedule, axis=1),  # a byte for eight rounds, as every plan is journaled
            "type": found.types,
            "urgent": _rank(-significant(urgency)),
            "longest": _rank(-significant(made.left_s[:, 0])),
            "demand_s": demand_s,
            "since_s": since_s,
            "rho": significant(unfair),
            "price": significant(found.price),
            "cost": significant(found.price * made.workers / np.maximum(made.weight, np.finfo(float).tiny)),
            "gap": round(found.gap, 7),
            "relative_gap": round(found.relative_gap, 7),
        }


def _demand(view: Snapshot, memo: Memo) -> tuple[float, Floats]:
    """∫ (number of jobs) dt until now, and its value at the submission of each job. The number is constant between plans."""
    number, submitted_s = view.jobs.number, view.jobs.submitted_s
    total, since = 0.0, np.full(len(number), np.nan)
    if memo:
        total = float(memo["demand_s"]) + len(memo["number"]) * (view.time - float(memo["begun"]))
        _, at, before = np.intersect1d(number, memo["number"], assume_unique=True, return_indices=True)
        since[at] = memo["since_s"][before]
    new = np.isnan(since)  # it may have waited for admission: the present contention is assumed
    since[new] = total - len(number) * (view.time - submitted_s[new])
    return total, since


def _rows(planned: Ints, here: Ints) -> tuple[Ints, Bools]:
    """The row of each job in a plan, and whether it is in it."""
    rows = np.minimum(planned.searchsorted(here), len(planned) - 1)
    return rows, planned[rows] == here


def _changed_batch_sizes(view: Snapshot) -> Ints:
    """The batch size to which each job has changed since its start; 0: none."""
    regimes = view.regimes
    past = (regimes.get(number, ()) for number in view.jobs.number.tolist())
    return np.fromiter((each[-1].batch_size if len(each) > 1 else 0 for each in past), np.int64, len(view.jobs))


def _rates(view: Snapshot) -> Floats:
    """Jobs × types: steps per second on the types that a job may use and that are up; on all if none of these is up."""
    allowed = (view.jobs.fits[:, None] >> np.arange(len(view.capacity))) & 1
    rates: Floats = view.rates.of_jobs * allowed
    up = rates * (view.capacity > 0)
    return np.where(up.max(axis=1, keepdims=True) > 0, up, rates)


def _fastest(view: Snapshot) -> tuple[Floats, Ints]:
    """Seconds per step on the fastest type of each job, and that type."""
    rates = _rates(view)
    return significant(1.0 / np.maximum(rates.max(axis=1), np.finfo(float).tiny)), significant(rates).argmax(axis=1)


def _rank(key: Floats) -> Ints:
    rank = np.empty(len(key), dtype=np.int64)
    rank[np.argsort(key, kind="stable")] = np.arange(len(key))
    return rank
