"""Step series: what they count, and that thinning never changes an integral."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up import device_intervals, outcomes, played, record

from fairlead.experiments.metrics import disjoint
from fairlead.reporting.series import Steps, in_use, waiting


@pytest.fixture
def two():
    """Job 0 runs on both accelerators from 0 to 10 and 20 to 30; job 1 comes at 5 and runs from 10 to 20."""
    jobs = outcomes([0, 5], [0, 10], [30, 20], run=[20, 10], workers=[2, 1])
    held = [(0, 0, 0, 10), (0, 1, 0, 10), (1, 0, 10, 20), (0, 0, 20, 30), (0, 1, 20, 30)]
    return record(jobs, device_intervals=device_intervals(held))


def test_use_and_waiting_by_hand(two):
    assert (in_use(two).edge_s.tolist(), in_use(two).value.tolist()) == ([0, 10, 20, 30], [2, 1, 2])
    assert (waiting(two).edge_s.tolist(), waiting(two).value.tolist()) == ([0, 5, 20, 30], [0, 1, 0])


def test_without_stretches_the_integrals_are_the_same(two):
    bare = dataclasses.replace(two, device_intervals=None)
    for series in (in_use, waiting):
        assert series(bare).integral() == pytest.approx(series(two).integral())


def test_integrals_are_the_totals_of_the_jobs():
    run = played("las", 120)
    jobs = run.jobs
    assert in_use(run).integral() == pytest.approx(jobs.accelerator_s.sum())
    assert waiting(run).integral() == pytest.approx((jobs.ended_s - jobs.submitted_s - jobs.run_s).sum())
    assert in_use(run).value.max() <= run.cluster.size
    assert waiting(run).value.min() == 0


@given(
    st.lists(st.tuples(st.floats(0.01, 1e4), st.floats(0, 1e3)), min_size=1, max_size=60),
    st.integers(1, 40),
)
def test_thinning_keeps_the_integral_the_span_and_the_range(steps, points):
    lengths, values = map(np.array, zip(*steps))
    whole = Steps(np.concatenate(([0.0], np.cumsum(lengths))), values)
    thin = whole.at_most(points)
    assert len(thin.value) <= max(points, 1)
    assert thin.integral() == pytest.approx(whole.integral(), rel=1e-9, abs=1e-6)
    assert (thin.edge_s[0], thin.edge_s[-1]) == (whole.edge_s[0], pytest.approx(whole.edge_s[-1]))
    assert values.min() - 1e-6 <= thin.value.min()
    assert thin.value.max() <= values.max() + 1e-6


def test_a_record_of_nothing_has_empty_series():
    run = record(outcomes([], [], []), device_intervals=device_intervals([]))
    for series in (in_use, waiting):
        assert (series(run).integral(), series(run).mean(), len(series(run).at_most(5).value)) == (0, 0, 0)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 20), st.integers(1, 9)), max_size=25))
def test_disjoint_intervals_cover_the_same_moments(rows):
    key = np.array([k for k, _, _ in rows], dtype=np.int64)
    start = np.array([float(s) for _, s, _ in rows])
    end = start + np.array([float(length) for _, _, length in rows])
    joined = disjoint(key, start, end)
    wanted = {(k, t) for k, s, length in rows for t in range(s, s + length)}
    got = [(int(k), t) for k, s, e in zip(joined.key, joined.start_s, joined.end_s) for t in range(int(s), int(e))]
    assert sorted(got) == sorted(wanted)
    assert joined.total_s() == len(wanted)
