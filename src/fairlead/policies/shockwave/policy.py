"""Shockwave as a policy: plan a window of rounds, keep to the plan while nobody comes or goes, plan again when somebody does or
the window is over, or when a job's batch size or speed is another (Zheng et al., NSDI'23, §6).

    max Σ_j w_j·ρ̂_j^k·log UTIL_j(n_j) − λ·N·M/Z_0·H(n)

over the rounds n_j of each job in the window (`window.py`; k is `power`, λ is `makespan`, times the part of the time until all
is done in which the longest job must run, to the power of `critical`). What n rounds are worth follows from
the regimes through which they are expected to lead (`trajectory.py`). The plan is the memo: who runs in which round, from when
on. A round's selection is the plan's column, in its order; where somebody does not fit after all, others take the room, longest
first. Behind them is who came since: a plan also stands where the next one is not there in time. Where there are several types,
each job is planned on one of them (`by_type.py`); what is fair is by its fastest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from fairlead.core.cluster import Bools, Floats, Ints
from fairlead.core.errors import InputError
from fairlead.core.events import Memo
from fairlead.core.plan import Selection
from fairlead.core.reasons import Reason, Unplaced
from fairlead.core.rng import stream
from fairlead.core.snapshot import Snapshot
from fairlead.policies.ranking.base import in_order
from fairlead.policies.shockwave.planning.planner import NODES, TypedPlan, on_types
from fairlead.policies.shockwave.planning.regime_forecast import RULES, Trajectories, noised, trajectories
from fairlead.policies.shockwave.planning.relaxation import LEVELS
from fairlead.policies.shockwave.planning.window import EPSILON, Window, after, critical_part, progress, window

# How fair a job's end will be, as far as one can tell (Shockwave, appendix G.2), and what that makes of its say in a plan.


def rho(ran_s: Floats, waited_s: Floats, left_s: Floats, contention: Floats) -> Floats:
    """Equation 9: (L + W + R·n) / (P·n) with P = L + R, where n is the contention that a job met on average in its time here,
    jobs per accelerator and at least 1."""
    total = np.maximum((ran_s + left_s) * contention, np.finfo(float).tiny)
    return (ran_s + waited_s + left_s * contention) / total


def contention(demand_s: Floats, here_s: Floats, accelerators: int) -> Floats:
    """Of each job: `demand_s` is the integral of the number of jobs over the time it has been here. Who has just come meets
    those who are here now."""
    here = here_s > 0
    mean = np.where(here, demand_s / np.where(here, here_s, 1.0), len(here_s)) / accelerators
    return np.maximum(mean, 1.0)


@dataclass(frozen=True)
class Deadlines:
    """The published program's side of fairness: a job's projected end may be at most `rho_max` times its fair one."""

    least: Ints  # rounds without which a job's projected end is too late; as many as it can use where these do not suffice
    ratio: Floats  # projected to fair end without a round in this window
    late: Bools  # even with all rounds that it can use it ends too late


def projected(window: Window, left_s: Floats, here_s: Floats, contention: Floats) -> Floats:
    """Jobs × (rounds + 1): seconds from submission to the end after n rounds, of jobs that have `left_s` to run. Who finishes
    in the window does so as fast as its contention lets it; who does not goes on behind the window as slowly as that."""
    span = window.rounds * window.round_s
    left = after(left_s, window.rounds, window.round_s)
    inside = here_s + np.minimum(span, contention * left_s)
    behind = here_s[:, None] + span + contention[:, None] * left
    return np.where(left > 0, behind, inside[:, None])


def deadlines(window: Window, left_s: Floats, here_s: Floats, run_s: Floats, contention: Floats, rho_max: float) -> Deadlines:
    """`run_s` is each job's whole run time alone; its fair end is that times its contention."""
    if not rho_max > 0:
        raise InputError("shockwave planner", "a number above 0", field="rho_max", value=rho_max)
    ratio = projected(window, left_s, here_s, contention) / np.maximum(run_s * contention, np.finfo(float).tiny)[:, None]
    in_time = ratio <= rho_max
    late = ~in_time[np.arange(len(window)), window.most]
    least = np.where(late, window.most, in_time.argmax(axis=1))
    return Deadlines(least, ratio[:, 0], late)


# The program that Shockwave's published results were made with, beside the one that its text states: a job's projected end
# is to be at most ρ_max times its fair end, as a constraint; H is the longest run time left alone (a window with
# `loads=False`). Where the constraint cannot be kept by all, it is dropped, and who would break it counts by its ratio to a
# power instead.


def published(window: Window, ends: Deadlines, rho_max: float, power: float) -> Window:
    """The window as that program sees it."""
    if not power >= 0:
        raise InputError("shockwave planner", "a number from 0 on", field="power", value=power)
    if not ends.late.any() and int(ends.least @ window.workers) <= window.room:
        return window.at_least(ends.least)
    factor = np.where(ends.ratio > rho_max, ends.ratio**power, 1.0)
    return replace(window, worth=window.worth * factor[:, None], weight=window.weight * factor)


_EARLY = 1e-9  # of a round: a second so near to the next round belongs to it
_LEAST = 1e-2  # of its run time is left of a job, however wrong the forecast
_ROUND_S = 120.0  # where the scheduler has no rounds

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
"""Within which a program's numbers stay such that a solver can tell them apart, and a plan is one that memory holds."""

Program = Literal["text", "published"]


@dataclass(frozen=True)
class Shockwave:
    """Plan a window of rounds for the most Nash welfare over time; who is treated unfairly has a larger say.

    A penalty on a bound of the makespan lets long jobs run in time.
    """

    paper: ClassVar[str] = "Shockwave (Zheng et al., NSDI'23)"
    rounds: int = 20
    round_s: float | None = None
    power: float = 5.0
    makespan: float = 1e-3
    critical: float = 0.0
    epsilon: float = EPSILON
    program: Program = "text"
    rho_max: float = 1.05
    stay: float = 0.1
    levels: int = LEVELS
    nodes: int = NODES
    reactive: bool = True
    forecast: str = "restatement"
    noise: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        for field, (least, most) in _BOUNDS.items():
            value = getattr(self, field)
            if value is not None and not least <= value <= most:
                raise InputError("policy shockwave", f"a number from {least:g} to {most:,g}", field=field, value=value)
        for field, names in (("program", get_args(Program)), ("forecast", tuple(RULES))):
            if getattr(self, field) not in names:
                raise InputError("policy shockwave", " or ".join(names), field=field, value=getattr(self, field))

    def select(self, view: Snapshot, memo: Memo) -> tuple[Selection, Memo]:
        if not len(view.jobs):
            return Selection.empty(), memo
        kept = memo if memo and self._stands(view, memo) else self._planned(view, memo)
        return self._as_planned(view, kept), kept

    def interim_selection(self, view: Snapshot, memo: Memo) -> Selection:
        return self._as_planned(view, memo) if memo and len(view.jobs) else in_order(view)

    def _as_planned(self, view: Snapshot, kept: Mapping[str, Any]) -> Selection:
        """The plan's round at this moment, of those who are here; behind its window, its last one."""
        schedule, begun, round_s = self.schedule(kept), float(kept["begun"]), float(kept["round_s"])
        now = min(int((view.time - begun) / round_s + _EARLY), self.rounds - 1)
        rows, there = _rows(kept["number"], view.jobs.number)
        runs = there & schedule[rows, now]
        last = np.flatnonzero((schedule[:, now:] != schedule[:, now : now + 1]).any(axis=0))
        turn = now + int(last[0]) if len(last) else self.rounds
        key = np.where(runs, kept["urgent"][rows], kept["longest"][rows] + len(schedule))
        key = np.where(there, key, 2 * len(schedule))
        prefer = np.where(runs, kept["type"][rows], -1)
        chosen = in_order(view, key, valid_until=begun + (turn - _EARLY) * round_s, prefer=prefer)
        waits = there & ~chosen.chosen(view.jobs.number) & ~runs
        return chosen.with_reasons(self._reasons(kept, schedule[:, now:], begun + now * round_s, rows[waits]))

    def schedule(self, memo: Mapping[str, Any]) -> Bools:
        """Jobs × rounds: who runs in which round of a plan."""
        unpacked: Bools = np.unpackbits(memo["schedule"], axis=1, count=self.rounds).astype(np.bool_)
        return unpacked

    def _stands(self, view: Snapshot, memo: Mapping[str, Any]) -> bool:
        """Whether the plan is of these jobs on these accelerators, and not over; and of jobs of this size and speed."""
        if "grown" not in memo:  # an older journal's
            return False
        over = float(memo["begun"]) + (self.rounds - _EARLY) * float(memo["round_s"])
        same = np.array_equal(memo["number"], view.jobs.number) and np.array_equal(memo["capacity"], view.capacity)
        if not same or view.time >= over:
            return False
        if not self.reactive:
            return True
        return np.array_equal(memo["grown"], _grown(view)) and np.array_equal(memo["pace_s"], _fastest(view)[0])

    def _reasons(self, kept: Mapping[str, Any], ahead: Bools, now_s: float, waits: Ints) -> dict[int, Reason]:
        """Why the plan lets some wait; `ahead` are its rounds from the one on that began at `now_s`."""
        number, ratio, cost = (kept[name][waits].tolist() for name in ("number", "rho", "cost"))
        later = ahead[waits]
        rounds, from_s = later.sum(axis=1).tolist(), (now_s + later.argmax(axis=1) * float(kept["round_s"])).tolist()
        told = zip(number, rounds, from_s, ratio, cost)
        return {n: Unplaced.planned_later(r, later.shape[1], from_s=s, rho=f, cost=c) for n, r, s, f, c in told}

    def _planned(self, view: Snapshot, memo: Memo) -> Mapping[str, Any]:
        accelerators = max(int(view.capacity.sum()), 1)
        demand_s, since_s = _demand(view, memo)
        here_s = view.time - view.jobs.submitted_s
        met = contention(demand_s - since_s, here_s, accelerators)
        made, unfair, urgency = self._window(view, accelerators, here_s, met)
        # Whoever runs stays for a little more than its place in line: each start costs.
        urgency = urgency * np.where(view.jobs.running, 1.0 + self.stay, 1.0)
        home = np.where(view.jobs.running, view.jobs.type, -1)
        found = on_types(made, self._by_type(view, made), urgency, home, self.stay, levels=self.levels, nodes=self.nodes)
        return self._kept(view, found, unfair, urgency, made, demand_s, since_s)

    def _window(self, view: Snapshot, accelerators: int, here_s: Floats, met: Floats) -> tuple[Window, Floats, Floats]:
        """The program of the next rounds, each job on its fastest type; how unfair its end will be; and how urgent it is."""
        jobs = view.jobs
        course, off = self._course(view, *_fastest(view))
        past_s, left_s = course.past_s, course.left_s * off
        total_s = past_s + left_s
        unfair = rho(past_s, here_s - past_s, left_s, met)
        text = self.program == "text"
        weight = jobs.weight * unfair**self.power if text else jobs.weight
        able = _rates(view).max(axis=1) > 0  # who can run nowhere never ends, and makes no makespan
        longest_s = course.longest_s * off
        part = critical_part(longest_s[able], past_s[able], here_s[able], jobs.workers[able], accelerators)
        scale_s = max(float(total_s.sum()), self._round_s(view))
        made = self._made(view, course, off, weight, accelerators, self.makespan * part**self.critical, scale_s)
        if text:
            return made, unfair, unfair
        ends = deadlines(made, left_s, here_s, total_s, met, self.rho_max)
        return published(made, ends, self.rho_max, self.power), unfair, ends.ratio

    def _by_type(self, view: Snapshot, fastest: Window) -> dict[int, Window]:
        """The same program with all jobs on each of several types, where they can run there."""
        if len(view.capacity) == 1:
            return {0: fastest}
        windows = {}
        rates = _rates(view)
        for type_ in np.flatnonzero(view.capacity).tolist():
            able = rates[:, type_] > 0
            pace_s = 1.0 / np.where(able, rates[:, type_], 1.0)
            course, off = self._course(view, pace_s, np.full(len(able), type_))
            there = int(view.capacity[type_])
            made = self._made(view, course, off, fastest.weight, there)
            penalty = fastest.penalty * there / fastest.accelerators
            windows[type_] = replace(made, most=np.where(able, made.most, 0), penalty=penalty)
        return windows

    def _course(self, view: Snapshot, pace_s: Floats, types: Ints) -> tuple[Trajectories, Floats]:
        """What jobs are expected to be on some types, and by how much that is wrong on purpose."""
        course = trajectories(view, RULES[self.forecast], pace_s, types, least_s=self._round_s(view))
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
        return window(
            progress(course.done, course.ahead, course.pace_s * off[:, None], course.steps, self.rounds, round_s),
            course.longest_s * off,  # a bound of the makespan that counts on nobody's becoming faster
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
        return self.round_s or view.round_s or _ROUND_S

    def _off(self, numbers: Ints) -> Floats:
        """By how much what is expected of each job is wrong on purpose (§8.10)."""
        if not self.noise:
            return np.ones(len(numbers))
        each = (noised(np.ones(1), self.noise, stream(self.seed, "forecast", number)) for number in numbers.tolist())
        off: Floats = np.maximum(np.concatenate([*each]), _LEAST)
        return off

    def _kept(
        self, view: Snapshot, found: TypedPlan, unfair: Floats, urgency: Floats, made: Window, demand_s: float, since_s: Floats
    ) -> dict[str, Any]:
        """The memo. ρ̂, prices, what a round costs each job of its budget, and the gaps are there for people to read."""
        return {
            "begun": view.time,
            "round_s": self._round_s(view),
            "number": view.jobs.number.copy(),
            "capacity": view.capacity.copy(),
            "pace_s": _fastest(view)[0],
            "grown": _grown(view),
            "schedule": np.packbits(found.schedule, axis=1),  # a byte for eight rounds, as every plan is journaled
            "type": found.types,
            "urgent": _rank(-urgency),
            "longest": _rank(-made.left_s[:, 0]),
            "demand_s": demand_s,
            "since_s": since_s,
            "rho": unfair,
            "price": found.price,
            "cost": found.price * made.workers / np.maximum(made.weight, np.finfo(float).tiny),
            "gap": found.gap,
            "relative_gap": found.relative_gap,
        }


def _demand(view: Snapshot, memo: Memo) -> tuple[float, Floats]:
    """∫ (number of jobs) dt until now, and what it was when each job came. Between two plans nobody comes or goes."""
    number, submitted_s = view.jobs.number, view.jobs.submitted_s
    total, since = 0.0, np.full(len(number), np.nan)
    if memo:
        total = float(memo["demand_s"]) + len(memo["number"]) * (view.time - float(memo["begun"]))
        _, at, before = np.intersect1d(number, memo["number"], assume_unique=True, return_indices=True)
        since[at] = memo["since_s"][before]
    came = np.isnan(since)  # it may have waited at the door: as crowded as now, for want of better knowledge
    since[came] = total - len(number) * (view.time - submitted_s[came])
    return total, since


def _rows(planned: Ints, here: Ints) -> tuple[Ints, Bools]:
    """Where in a plan each job is, and who is in it at all."""
    rows = np.minimum(planned.searchsorted(here), len(planned) - 1)
    return rows, planned[rows] == here


def _grown(view: Snapshot) -> Ints:
    """The batch size that each job has announced since it began with another; 0: none."""
    past = (view.regimes.get(number, ()) for number in view.jobs.number.tolist())
    return np.fromiter((each[-1].batch_size if len(each) > 1 else 0 for each in past), np.int64, len(view.jobs))


def _rates(view: Snapshot) -> Floats:
    """Jobs × types: steps per second where a job may run and something is up, of those that have such a type."""
    allowed = (view.jobs.fits[:, None] >> np.arange(len(view.capacity))) & 1
    rates: Floats = view.rates.of_jobs * allowed
    up = rates * (view.capacity > 0)
    return np.where(up.max(axis=1, keepdims=True) > 0, up, rates)


def _fastest(view: Snapshot) -> tuple[Floats, Ints]:
    """Seconds a step on the fastest type of each job, and that type."""
    rates = _rates(view)
    return 1.0 / np.maximum(rates.max(axis=1), np.finfo(float).tiny), rates.argmax(axis=1)


def _rank(key: Floats) -> Ints:
    rank = np.empty(len(key), dtype=np.int64)
    rank[np.argsort(key, kind="stable")] = np.arange(len(key))
    return rank
