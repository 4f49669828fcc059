"""How fair a job's end will be, as far as one can tell (Shockwave, appendix G.2), and what that makes of its say in a plan."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairlead.core.cluster import Bools, Floats, Ints
from fairlead.core.errors import InputError
from fairlead.policies.shockwave.window import Window, after


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
