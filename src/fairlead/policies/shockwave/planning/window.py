"""The input of the planner: a window of T rounds, jobs that may run in n = 0…T of them, and the value of n rounds to each.

    max Σ_j w_j·log UTIL_j(n_j) − c·H(n),   H(n) = max(Σ_j s_j·R_j(n_j) / M, max_j R_j(n_j))

is Equation 11 of Shockwave times N·M, so that c = λ·N·M / Z_0; UTIL (Equation 7) is the part of a job's epochs done after n
rounds, through all regimes in between; R is the run time left, s the gang size, M the number of accelerators. The utility of a
job does not depend on when it runs in the window, so only numbers of rounds count. Windows know nothing of snapshots."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fairlead.core.cluster import Bools, Floats, Ints
from fairlead.core.columns import significant
from fairlead.core.errors import require

EPSILON = 1e-6
"""The utility of a job without progress: with log 0 every plan that leaves out one such job would be equally bad."""

_ROUNDING = 1e-9  # of a round


@dataclass(frozen=True)
class Window:
    """Jobs × (rounds + 1): w·log UTIL and the run time left after n rounds, from `min_rounds` to `max_rounds`."""

    worth: Floats
    left_s: Floats
    round_s: float
    workers: Ints
    accelerators: int
    weight: Floats
    penalty: float  # c, per second of H
    min_rounds: Ints
    max_rounds: Ints
    loads: bool = True  # H counts the mean load, not the longest job alone

    @property
    def rounds(self) -> int:
        return int(self.worth.shape[1]) - 1

    def __len__(self) -> int:
        return len(self.workers)

    @property
    def room(self) -> int:
        """Accelerator-rounds."""
        return self.accelerators * self.rounds

    def load_s(self, rounds: Ints) -> float:
        """Σ s·R / M."""
        return float((self.workers * self.left_s[np.arange(len(self)), rounds]).sum()) / self.accelerators

    def longest_s(self, rounds: Ints) -> float:
        return float(self.left_s[np.arange(len(self)), rounds].max(initial=0.0))

    def value(self, rounds: Ints) -> float:
        """The objective for these numbers of rounds."""
        span = max(self.longest_s(rounds), self.load_s(rounds) if self.loads else 0.0)
        return float(self.worth[np.arange(len(self)), rounds].sum()) - self.penalty * span

    def only(self, chosen: Bools) -> Window:
        """Some of the jobs."""
        columns = ("worth", "left_s", "workers", "weight", "min_rounds", "max_rounds")
        return replace(self, **{name: getattr(self, name)[chosen] for name in columns})

    def at_least(self, rounds: Ints) -> Window:
        """The same with larger `min_rounds`."""
        return replace(self, min_rounds=np.minimum(np.maximum(self.min_rounds, rounds), self.max_rounds))

    def in_time(self, due_s: Floats) -> Window:
        """The same with the rounds that each job needs here to end in `due_s`; unchanged where these do not fit together."""
        due = np.isfinite(due_s)
        later_s = np.maximum(due_s[due] - self.rounds * self.round_s, 0.0)
        rounds = np.zeros(len(self), dtype=np.int64)
        rounds[due] = np.ceil((self.left_s[due, 0] - later_s) / self.round_s - _ROUNDING).clip(0, self.max_rounds[due])
        return self.at_least(rounds) if int(rounds @ self.workers) <= self.room else self


def make_window(
    progress: Floats,
    left_s: Floats,
    workers: Ints,
    weight: Floats,
    accelerators: int,
    *,
    round_s: float,
    makespan: float,
    scale_s: float,
    epsilon: float = EPSILON,
    loads: bool = True,
) -> Window:
    """Make a window. `progress` is jobs × (rounds + 1), the part of its epochs that each job has done after n rounds; `left_s`
    the run time that each has left; `makespan` is λ and `scale_s` Z_0, the sum of the jobs' run times."""
    for field, value in (("round_s", round_s), ("scale_s", scale_s), ("epsilon", epsilon)):
        require(value > 0, "shockwave planner", "a number above 0", field, value)
    require(makespan >= 0, "shockwave planner", "a number of at least 0", "makespan", makespan)
    require(accelerators >= 1, "shockwave planner", "a whole number of at least 1", "accelerators", accelerators)
    jobs, rounds = len(workers), progress.shape[1] - 1
    useful = np.clip(np.ceil(left_s / round_s - _ROUNDING), 0, rounds).astype(np.int64)
    max_rounds = np.where(workers <= accelerators, useful, 0)
    worth = weight[:, None] * np.log(np.maximum(progress, epsilon))
    penalty = makespan * jobs * accelerators / scale_s
    none = np.zeros(jobs, dtype=np.int64)
    return Window(
        worth, left_after(left_s, rounds, round_s), round_s, workers, accelerators, weight, penalty, none, max_rounds, loads
    )


def critical_fraction(left_s: Floats, past_s: Floats, here_s: Floats, workers: Ints, accelerators: int) -> float:
    """The part of the time from the submission of the longest job until all work is done in which that job runs."""
    if not len(left_s):
        return 1.0
    longest = int(left_s.argmax())
    span = float(here_s[longest]) + float((workers * left_s).sum()) / accelerators
    return min(float(past_s[longest] + left_s[longest]) / max(span, np.finfo(float).tiny), 1.0)


_NEAR_RHO = 1e-6  # relative
_LEAST_S = 1e-3  # of a fair end


def fair_deadlines(here_s: Floats, left_s: Floats, fair_s: Floats, workers: Ints, accelerators: int, rho_max: float) -> Floats:
    """The seconds in which each job must end: by `rho_max`·ρ times its fair end, with the least ρ ≥ 1 that all jobs can keep.

    `fair_s` is the time from submission to the fair end, `here_s` that since submission. All jobs can keep a ρ if, nearest
    deadline first, the work up to each deadline, Σ s·R / M, is done by then, and if each job's own run time fits before it."""
    fair_s, load_s = np.maximum(fair_s, _LEAST_S), left_s * workers / accelerators
    longest_s = max(float(load_s.sum()), float(left_s.max(initial=0.0)))
    low, high = (float(((here_s + more) / fair_s).max(initial=0.0)) for more in (left_s, longest_s))
    low, high = max(low, 1.0), max(high, 1.0)
    while high - low > _NEAR_RHO * high:
        middle = 0.5 * (low + high)
        due_s = middle * fair_s - here_s
        order = due_s.argsort(kind="stable")
        if (load_s[order].cumsum() <= due_s[order]).all():
            high = middle
        else:
            low = middle
    return np.maximum(significant(rho_max * high * fair_s - here_s), _LEAST_S)


def left_after(left_s: Floats, rounds: int, round_s: float) -> Floats:
    """Jobs × (rounds + 1): the run time left after n rounds."""
    left: Floats = np.maximum(left_s[:, None] - round_s * np.arange(rounds + 1), 0.0)
    return left


def epoch_progress(done: Floats, remaining: Floats, epoch_s: Floats, epochs: Floats, rounds: int, round_s: float) -> Floats:
    """Equation 7: jobs × (rounds + 1), the part of a job's epochs done after n rounds."""
    lasts = remaining * epoch_s
    ends = lasts.cumsum(axis=1)
    ran = round_s * np.arange(rounds + 1)
    inside = np.clip(ran[:, None] - (ends - lasts)[:, None, :], 0.0, lasts[:, None, :])
    trained = (inside / np.where(epoch_s > 0, epoch_s, 1.0)[:, None, :]).sum(axis=2)
    part: Floats = np.minimum((done[:, None] + trained) / epochs[:, None], 1.0)
    return part
