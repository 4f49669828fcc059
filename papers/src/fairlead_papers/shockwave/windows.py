"""Windows to plan, drawn from a seed: jobs in one to four regimes of random lengths, each up to 1.7 times as fast as the one
before; run times from ten minutes to five hours, evenly by their logarithm; 60, 30, 9 and 1 % are gangs of one, two, four and
eight; two of five have done nothing yet; ρ̂ is log-normal (σ = 0.25), to the fifth power. In windows of odd seeds three jobs are
twelve times as long, so that the longest and not the load is what the makespan is judged by."""

from __future__ import annotations

import numpy as np

from fairlead.core.cluster import Floats
from fairlead.core.rng import stream
from fairlead.policies.shockwave.planning.window import EPSILON, Window, epoch_progress, make_window

ROUND_S, ROUNDS, REGIMES = 120.0, 20, 4


def drawn(jobs: int, accelerators: int, makespan: float, seed: int) -> tuple[Window, Floats]:
    """A window and each job's ρ̂."""
    rng = stream(seed, "windows", jobs)
    regimes = np.arange(REGIMES) < rng.integers(1, REGIMES + 1, jobs)[:, None]
    run_s = np.exp(rng.uniform(np.log(600.0), np.log(18000.0), jobs))
    if seed % 2:
        run_s[:3] *= 12.0
    epoch_s = rng.uniform(30.0, 300.0, jobs)[:, None] / rng.uniform(1.0, 1.7, (jobs, 1)) ** np.arange(REGIMES)
    epoch_s = np.where(regimes, epoch_s, 0.0)
    share = np.where(regimes, rng.dirichlet(np.ones(REGIMES), jobs), 0.0)
    share /= share.sum(axis=1, keepdims=True)
    epochs = run_s / (share * epoch_s).sum(axis=1)
    done = np.where(rng.random(jobs) < 0.4, 0.0, rng.random(jobs)) * epochs
    planned = share * epochs[:, None]
    ahead = planned - np.clip(done[:, None] - (planned.cumsum(axis=1) - planned), 0.0, planned)
    rho = np.exp(rng.normal(0.0, 0.25, jobs))
    made = make_window(
        epoch_progress(done, ahead, epoch_s, epochs, ROUNDS, ROUND_S),
        (ahead * epoch_s).sum(axis=1),
        rng.choice([1, 2, 4, 8], jobs, p=[0.6, 0.3, 0.09, 0.01]),
        rho**5,
        accelerators,
        round_s=ROUND_S,
        makespan=makespan,
        scale_s=float(run_s.sum()),
        epsilon=EPSILON,
    )
    return made, rho
