"""Jobs that come faster than they can run, and six combinations to choose from: what the synthesizer is tried on."""

from __future__ import annotations

import numpy as np

from fairlead.config.schedulers import Part, SchedulerConfig
from fairlead.core.job import Job
from fairlead.experiments.synthesize import combinations

THREE = (Part("fifo"), Part("srtf"), Part("las"))
SIX = combinations(SchedulerConfig(), THREE, (Part("accept-all"), Part("accept-up-to", {"factor": 1.2})))


def crowd(seed: int = 3, count: int = 40) -> list[Job]:
    """Long and short ones, within five hours and a half."""
    draw = np.random.default_rng(seed)
    times = np.sort(draw.uniform(0, 20_000, count)).tolist()
    sizes = draw.choice([1, 1, 1, 2, 4], count).tolist()
    steps = (10 ** draw.uniform(2.5, 4.5, count)).tolist()
    return [Job(f"j{n}", submitted_s=t, workers=w, steps=s) for n, (t, w, s) in enumerate(zip(times, sizes, steps))]
