"""Windows drawn at random, and the best plan of a small one by trying all."""

from __future__ import annotations

from itertools import product

import numpy as np

from fairlead.core.cluster import Floats, Ints
from fairlead.policies.shockwave.planning.window import Window, epoch_progress, make_window


def drawn(
    rng: np.random.Generator,
    jobs: int,
    accelerators: int,
    rounds: int,
    *,
    makespan: float = 1e-3,
    sizes: tuple[int, ...] = (1, 2, 4),
    loads: bool = True,
) -> tuple[Window, Floats]:
    """Jobs in up to three regimes, some of them faster than those before, most of them shorter than the window; and
    urgencies."""
    ahead = rng.integers(0, 8, (jobs, 3)).astype(float)
    ahead[:, 0] += 1.0
    epoch_s = rng.uniform(20.0, 150.0, (jobs, 3))
    done = np.where(rng.random(jobs) < 0.4, 0.0, rng.integers(1, 10, jobs)).astype(float)
    left_s = (ahead * epoch_s).sum(axis=1)
    urgency = rng.uniform(0.6, 1.6, jobs)
    gains = epoch_progress(done, ahead, epoch_s, done + ahead.sum(axis=1), rounds, 120.0)
    workers = rng.choice([size for size in sizes if size <= accelerators], jobs)
    made = make_window(
        gains,
        left_s,
        workers,
        urgency**5,
        accelerators,
        round_s=120.0,
        makespan=makespan,
        scale_s=float(left_s.sum()),
        loads=loads,
    )
    return made, urgency


def packs(rounds: Ints, workers: Ints, accelerators: int, length: int) -> bool:
    """Whether some schedule gives each job exactly so many rounds, by trying all."""
    if length == 0:
        return not rounds.any()
    if (rounds > length).any():
        return False
    able = [(0, 1) if r else (0,) for r in rounds]
    for runs in product(*able):
        chosen = np.array(runs)
        if chosen @ workers <= accelerators and packs(rounds - chosen, workers, accelerators, length - 1):
            return True
    return False


def best(window: Window) -> float:
    """The most that any schedule is worth."""
    found = -np.inf
    for counts in product(*(range(least, most + 1) for least, most in zip(window.min_rounds, window.max_rounds))):
        rounds = np.array(counts)
        value = window.value(rounds)
        if value > found and packs(rounds, window.workers, window.accelerators, window.rounds):
            found = value
    return found
