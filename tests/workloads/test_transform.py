"""Transforms keep what they do not change, and are the same for the same seed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from fairlead.core.errors import InputError, UnknownName
from fairlead.core.job import TIMED, Job
from fairlead.workloads.throughput_tables import ThroughputTable
from fairlead.workloads.trace import Trace
from fairlead.workloads.transform import (
    DAY_S,
    HOUR_S,
    daily_spike,
    keep_workers,
    retime_poisson,
    scale_time,
    short_bursts,
    slice_jobs,
    slice_time,
    thin,
    with_loss_curves,
    with_random_kinds,
)


def trace_of(count: int = 400, gap_s: float = 600.0) -> Trace:
    jobs = [
        Job(f"job-{n}", n * gap_s, 100.0 + n, workers=1 + n % 2, user=f"u{n % 5}", group="g", group_order=n)
        for n in range(count)
    ]
    return Trace.of(jobs, "made-up", origin="2024-01-01T00:00:00")


def table() -> ThroughputTable:
    keys = ((TIMED, 1), ("big", 1), ("big", 2), ("small", 1), ("none", 1))
    alone = np.array([[1.0, 1.0], [2.0, 4.0], [3.0, 6.0], [10.0, 5.0], [1.0, 0.0]])
    return ThroughputTable(("k80", "v100"), keys, alone, alone, np.zeros((5, 5, 2)))


TRANSFORMS: list[Callable[[Trace, int], Trace]] = [
    lambda trace, seed: retime_poisson(trace, 8.0, seed),
    lambda trace, seed: with_random_kinds(trace, table(), None, seed, "v100"),
    lambda trace, seed: daily_spike(trace, 16, 9, seed),
    lambda trace, seed: short_bursts(trace, 8.0, seed),
    lambda trace, seed: thin(trace, 0.5, seed),
]


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_the_seed_decides_and_the_original_stays(transform: Callable[[Trace, int], Trace]) -> None:
    trace = trace_of()
    assert transform(trace, 1) == transform(trace_of(), 1)
    assert transform(trace, 1) != transform(trace, 2)
    assert trace == trace_of()


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_jobs_stay_in_order_with_names_of_their_own(transform: Callable[[Trace, int], Trace]) -> None:
    changed = transform(trace_of(), 3)
    times = [job.submitted_s for job in changed.jobs]
    assert times == sorted(times)
    assert len({job.name for job in changed.jobs}) == len(changed)


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_an_empty_trace_stays_empty(transform: Callable[[Trace, int], Trace]) -> None:
    assert len(transform(Trace(()), 3)) == 0


def test_poisson_retiming_keeps_the_jobs_and_gives_the_rate() -> None:
    trace = trace_of(4000)
    changed = retime_poisson(trace, 8.0, 1)
    assert [job.name for job in changed.jobs] == [job.name for job in trace.jobs]
    assert changed.jobs[0].submitted_s == 0.0
    assert (len(changed) - 1) / changed.span_s * HOUR_S == pytest.approx(8.0, rel=0.05)
    gaps = np.diff([job.submitted_s for job in changed.jobs])
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.05)  # as an exponential distribution has it
    assert changed.origin is None


def test_random_kinds_keep_the_run_time_on_the_reference_type() -> None:
    trace = trace_of()
    changed = with_random_kinds(trace, table(), None, 1, "v100")
    rates = {("big", 1): 4.0, ("big", 2): 6.0, ("small", 1): 5.0}
    for before, after in zip(trace.jobs, changed.jobs):
        assert after.steps / rates[after.kind, after.workers] == pytest.approx(before.steps)
        assert replace(after, kind=TIMED, steps=before.steps) == before
    singles = Counter(job.kind for job in changed.jobs if job.workers == 1)
    assert set(singles) == {"big", "small"}  # "none" does not fit on the reference type
    assert singles["big"] == pytest.approx(100, abs=30)


def test_kinds_can_be_drawn_again() -> None:
    once = with_random_kinds(trace_of(), table(), None, 1, "v100")
    only_big = with_random_kinds(once, table(), ["big"], 1, "v100")
    assert {job.kind for job in only_big.jobs} == {"big"}
    assert only_big.jobs[7].steps == pytest.approx(107.0 * 6.0)


def test_random_kinds_say_what_is_missing() -> None:
    with pytest.raises(UnknownName, match="did you mean 'v100'"):
        with_random_kinds(trace_of(), table(), None, 1, "v10")
    with pytest.raises(UnknownName, match="did you mean 'small'"):
        with_random_kinds(trace_of(), table(), ["smal"], 1, "v100")
    wide = Trace.of([Job("wide", workers=16)])
    with pytest.raises(InputError, match=r"job 'wide'.*'workers' is 16: expected .* on v100: 1, 2"):
        with_random_kinds(wide, table(), None, 1, "v100")
    with pytest.raises(InputError, match="field 'kind' is 'none'"):
        with_random_kinds(Trace.of([Job("odd", kind="none")]), table(), ["big"], 1, "v100")
    assert len(with_random_kinds(keep_workers(wide, (1, 2)), table(), None, 1, "v100")) == 0


def test_a_daily_spike_adds_jobs_in_one_hour_of_each_day() -> None:
    trace = trace_of(400, gap_s=600.0)  # 2.77 days
    changed = daily_spike(trace, 16, 9, 1)
    extra = [job for job in changed.jobs if job.name.startswith("spike-")]
    days = Counter(int(job.submitted_s // DAY_S) for job in extra)
    assert days == {0: 16, 1: 16, 2: 16}
    assert all(9 * HOUR_S <= job.submitted_s % DAY_S < 10 * HOUR_S for job in extra)
    assert {(job.steps, job.user) for job in extra} <= {(job.steps, job.user) for job in trace.jobs}
    assert all(job.group == "" for job in extra)
    assert [job for job in changed.jobs if job not in extra] == list(trace.jobs)


def test_added_names_avoid_those_that_are_there() -> None:
    twice = daily_spike(daily_spike(trace_of(), 3, 9, 1), 3, 9, 1)
    assert len({job.name for job in twice.jobs}) == len(twice) == 400 + 9 + 9


def test_short_bursts_come_for_two_hours_after_every_four() -> None:
    trace = trace_of(3000, gap_s=450.0)  # 8 jobs an hour for two weeks
    extra = [job for job in short_bursts(trace, 8.0, 1).jobs if job.name.startswith("burst-")]
    windows = math.floor(trace.span_s / (4 * HOUR_S))
    assert len(extra) == pytest.approx(windows * 2 * 16, rel=0.05)
    assert all(job.submitted_s >= 4 * HOUR_S and job.submitted_s % (4 * HOUR_S) < 2 * HOUR_S for job in extra)
    lengths = np.array([job.steps for job in extra])
    assert 600 <= lengths.min() < 700
    assert 3500 < lengths.max() <= 3600
    assert lengths.mean() == pytest.approx(2100, rel=0.05)
    assert {job.workers for job in extra} == {1, 2}
    assert all(job.kind == TIMED for job in extra)


def test_thinning_nests() -> None:
    trace = trace_of()
    few, many = thin(trace, 0.2, 1), thin(trace, 0.6, 1)
    assert set(few.jobs) < set(many.jobs) < set(trace.jobs)
    assert len(many) == pytest.approx(240, abs=40)
    assert thin(trace, 1.0, 1) == trace


def test_scaling_time_leaves_the_jobs_as_long_as_they_are() -> None:
    changed = scale_time(trace_of(), 0.5)
    assert changed.span_s == trace_of().span_s / 2
    assert [job.steps for job in changed.jobs] == [job.steps for job in trace_of().jobs]


def test_slicing_by_jobs() -> None:
    part = slice_jobs(trace_of(), 6, 9)
    assert [(job.name, job.submitted_s) for job in part.jobs] == [("job-6", 0.0), ("job-7", 600.0), ("job-8", 1200.0)]
    assert part.origin == "2024-01-01T01:00:00"
    assert len(slice_jobs(trace_of(), 390, 9999)) == 10
    assert len(slice_jobs(trace_of(), 400, 500)) == 0


def test_slicing_by_time_is_half_open() -> None:
    part = slice_time(trace_of(), 1000.0, 2400.0)
    assert [(job.name, job.submitted_s) for job in part.jobs] == [("job-2", 200.0), ("job-3", 800.0)]
    assert part.origin == "2024-01-01T00:16:40"


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda trace: retime_poisson(trace, 0.0, 1), "jobs_per_hour"),
        (lambda trace: retime_poisson(trace, math.nan, 1), "jobs_per_hour"),
        (lambda trace: daily_spike(trace, -1, 1, 1), "jobs"),
        (lambda trace: daily_spike(trace, 1, 24, 1), "hour"),
        (lambda trace: short_bursts(trace, -8.0, 1), "jobs_per_hour"),
        (lambda trace: short_bursts(trace, 8.0, 1, factor=math.inf), "factor"),
        (lambda trace: short_bursts(trace, 8.0, 1, on_s=5 * HOUR_S), "on_s"),
        (lambda trace: thin(trace, 0.0, 1), "keep"),
        (lambda trace: thin(trace, 1.5, 1), "keep"),
        (lambda trace: scale_time(trace, -1.0), "factor"),
        (lambda trace: slice_jobs(trace, 5, 4), "first"),
        (lambda trace: slice_time(trace, math.nan, 4.0), "start_s"),
        (lambda trace: slice_time(replace(trace, origin="once"), 1.0, 4.0), "origin"),
    ],
)
def test_parameters_that_make_no_sense(call: Callable[[Trace], Trace], field: str) -> None:
    with pytest.raises(InputError) as caught:
        call(trace_of())
    assert caught.value.field == field


def test_loss_curves_let_so_many_jobs_converge_early_and_the_others_with_their_last_step() -> None:
    trace = Trace.of([Job(f"j{i}", float(i), 10.0) for i in range(1000)])
    given = with_loss_curves(trace, seed=3, converging=0.6, at=0.25, within=0.01)
    assert given == with_loss_curves(trace, seed=3, converging=0.6, at=0.25, within=0.01)
    assert given.jobs == trace.jobs
    curves = [given.losses[job.name] for job in trace.jobs]
    shares = [one.scale * math.log((one.start - one.floor) / (0.01 * one.floor)) for one in curves]
    early = [share for share in shares if share < 0.9]
    assert early == pytest.approx([0.25] * len(early))
    assert [share for share in shares if share >= 0.9] == pytest.approx([1.0] * (1000 - len(early)))
    assert 550 < len(early) < 650


@pytest.mark.parametrize("wrong", [{"converging": 1.5}, {"at": 0.0}, {"at": 1.0}, {"within": float("nan")}])
def test_shares_of_loss_curves_are_shares(wrong: dict[str, float]) -> None:
    with pytest.raises(InputError, match=f"with_loss_curves: field '{next(iter(wrong))}'"):
        with_loss_curves(Trace.of([]), 0, **wrong)
