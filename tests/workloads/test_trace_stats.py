"""The numbers of a trace, counted by hand on small ones."""

from __future__ import annotations

import json

import pytest
import trace_samples as samples

from fairlead.core.errors import InputError
from fairlead.core.job import Job
from fairlead.workloads.formats import read_trace_file
from fairlead.workloads.trace import Trace, trace_stats

TIMED_JOBS = Trace.of(
    [
        Job("a", 0.0, 1800.0, workers=2, user="ann", account="lab"),
        Job("b", 1800.0, 3600.0, workers=1, user="bob"),
        Job("c", 7200.0, 5400.0, workers=2, user="ann"),
    ],
    "made-up",
)


def test_jobs_whose_work_is_given_in_seconds() -> None:
    stats = trace_stats(TIMED_JOBS, 4)
    assert (stats.jobs, stats.users, stats.accounts, stats.timed_jobs) == (3, 2, 1, 3)
    assert stats.span_s == 7200.0
    assert stats.jobs_per_hour == 1.0
    assert stats.workers == {1: 1, 2: 2}
    assert stats.accelerator_hours == pytest.approx(1 + 1 + 3)
    assert stats.offered_load == pytest.approx(5 / (4 * 2))
    assert stats.duration_s is not None
    assert (stats.duration_s["min"], stats.duration_s["p50"], stats.duration_s["mean"]) == (1800.0, 3600.0, 3600.0)
    assert stats.steps is None


def test_how_long_a_kind_takes_is_not_in_the_trace() -> None:
    stats = trace_stats(Trace.of([*TIMED_JOBS.jobs, Job("d", 1.0, 500.0, "LM (batch size 5)")]), 4)
    assert stats.kinds == {"LM (batch size 5)": 1}
    assert stats.steps is not None
    assert stats.steps["max"] == 500.0
    assert stats.timed_jobs == 3
    assert stats.accelerator_hours is None
    assert stats.offered_load is None


def test_no_jobs_and_one_job() -> None:
    assert trace_stats(Trace(())).jobs_per_hour is None
    alone = trace_stats(Trace.of([Job("a", 5.0, 3600.0)]), 1)
    assert (alone.jobs_per_hour, alone.offered_load, alone.accelerator_hours) == (None, None, 1.0)


def test_the_dictionary_is_plain() -> None:
    plain = trace_stats(TIMED_JOBS, 4).to_dict()
    assert json.loads(json.dumps(plain)) == plain
    assert plain["workers"] == {"1": 1, "2": 2}


def test_a_cluster_has_at_least_one_accelerator() -> None:
    with pytest.raises(InputError, match="field 'accelerators' is 0"):
        trace_stats(TIMED_JOBS, 0)


@pytest.mark.skipif(not samples.SHARED.exists(), reason=samples.NO_PUBLIC_DATA)
def test_the_philly_trace_loads_400_accelerators_to_94_percent() -> None:
    stats = trace_stats(read_trace_file(samples.SHARED / "philly" / "philly.csv"), 400)
    assert stats.offered_load == pytest.approx(0.94, abs=0.01)
    assert stats.accounts == 15
