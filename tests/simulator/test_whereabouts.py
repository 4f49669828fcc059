"""Noting launches and making holdings of them later gives the same holdings as keeping them all along."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.device_map import DeviceMap, ragged
from fairlead.core.plan import Launches
from fairlead.simulator import job_table as whereabouts
from fairlead.simulator.job_table import Whereabouts

ACCELERATORS, JOBS = 12, 20


@st.composite
def histories(draw):
    """Some launches on free accelerators, some in company, some jobs leaving in between."""
    return draw(
        st.lists(st.tuples(st.sampled_from(["alone", "alone", "alone", "beside", "leave"]), st.integers(0, 2**31)), max_size=40)
    )


@given(histories(), st.integers(0, 40), st.integers(1, 5))
def test_holdings_made_late_are_those_kept_all_along(history, asked_at, many):
    plain, where = DeviceMap(ACCELERATORS, JOBS), Whereabouts(ACCELERATORS, JOBS)
    before, whereabouts._MANY = whereabouts._MANY, many
    running = np.empty(0, dtype=np.int64)
    try:
        for step, (what, seed) in enumerate(history):
            rng = np.random.default_rng(seed)
            if step == asked_at:
                where.device_map(running)
            if what == "leave":
                leaving = running[rng.random(len(running)) < 0.5]
                plain.release(leaving)
                where.release(leaving)
                running = np.setdiff1d(running, leaving)
            else:
                waiting = rng.permutation(np.setdiff1d(np.arange(JOBS), running))[:3]
                free = (plain.occupancy == 0).nonzero()[0] if what == "alone" else np.arange(ACCELERATORS)
                free = rng.permutation(free)
                sizes = rng.integers(1, 3, len(waiting))
                parts = [free[end - size : end] for end, size in zip(sizes.cumsum().tolist(), sizes.tolist())]
                got = [(job, part) for job, part, size in zip(waiting, parts, sizes) if len(part) == size]
                if not got:
                    continue
                jobs, (offsets, places) = np.array([job for job, _ in got]), ragged(part for _, part in got)
                launches = Launches(jobs, jobs * 0, offsets, places, exclusive=what == "alone")
                plain.take(jobs, offsets, places)
                where.take(launches, running)
                running = np.concatenate((running, jobs))
            assert where.shared == plain.shared
    finally:
        whereabouts._MANY = before
    late = where.device_map(running)
    assert late.occupancy.tolist() == plain.occupancy.tolist()
    assert all(late.of(job).tolist() == plain.of(job).tolist() for job in running.tolist())
