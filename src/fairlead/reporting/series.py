"""Quantities over time as step functions: accelerators in use, jobs waiting. Thinning averages over time, so an integral over
the whole span never changes. It draws nothing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairlead.core.cluster import Floats
from fairlead.core.job import Phase
from fairlead.experiments.metrics import Intervals, disjoint, last_seen_s, present
from fairlead.experiments.run_record import RunRecord


@dataclass(frozen=True)
class Steps:
    """`value[i]` holds from `edge_s[i]` to `edge_s[i + 1]`: one edge more than values, or none of either."""

    edge_s: Floats
    value: Floats

    def integral(self) -> float:
        return float(np.dot(self.value, np.diff(self.edge_s))) if len(self.value) else 0.0

    def mean(self) -> float:
        return self.integral() / float(self.edge_s[-1] - self.edge_s[0]) if len(self.value) else 0.0

    def at_most(self, points: int) -> Steps:
        """The same in at most so many steps: equal stretches of time, each with its average."""
        if len(self.value) <= points:
            return self
        edges = np.linspace(self.edge_s[0], self.edge_s[-1], points + 1)
        so_far = np.concatenate(([0.0], np.cumsum(self.value * np.diff(self.edge_s))))
        return Steps(edges, np.diff(np.interp(edges, self.edge_s, so_far)) / np.diff(edges))


def in_use(record: RunRecord) -> Steps:
    """Accelerators that at least one job holds. Without stretches its hold is spread evenly from first start to end."""
    if record.device_intervals is None:
        return _spread(record, record.jobs.accelerator_s)
    device_intervals = record.device_intervals
    busy = disjoint(device_intervals.accelerator, device_intervals.start_s, device_intervals.end_s)
    return _count(record, busy)


def waiting(record: RunRecord) -> Steps:
    """Jobs that are in the system and hold nothing."""
    came, left = present(record.jobs, last_seen_s(record))
    one = np.ones(len(came))
    if record.device_intervals is None:
        held = _held(record, record.jobs.run_s)
        times = (came, left, *held[0])
        changes = (one, -one, *(-change for change in held[1]))
    else:
        runs = _runs(record)
        some = np.ones(len(runs.key))
        times = (came, left, runs.start_s, runs.end_s)
        changes = (one, -one, -some, some)
    return _steps(record, np.concatenate(times), np.concatenate(changes))


def _runs(record: RunRecord) -> Intervals:
    device_intervals = record.device_intervals
    assert device_intervals is not None
    return disjoint(device_intervals.job, device_intervals.start_s, device_intervals.end_s)


def _count(record: RunRecord, intervals: Intervals) -> Steps:
    one = np.ones(len(intervals.key))
    return _steps(record, np.concatenate((intervals.start_s, intervals.end_s)), np.concatenate((one, -one)))


def _spread(record: RunRecord, amount_s: Floats) -> Steps:
    times, changes = _held(record, amount_s)
    return _steps(record, np.concatenate(times), np.concatenate(changes))


def _held(record: RunRecord, amount_s: Floats) -> tuple[tuple[Floats, Floats], tuple[Floats, Floats]]:
    """When each job's even share of an amount begins and ends, and how much it adds: the integral stays exact."""
    jobs = record.jobs
    start = jobs.first_started_s
    end = np.where(np.isnan(jobs.ended_s), last_seen_s(record), jobs.ended_s)
    some = (jobs.phase != Phase.REFUSED) & (end > start) & (amount_s > 0)
    rate = amount_s[some] / (end[some] - start[some])
    return (start[some], end[some]), (rate, -rate)


def _steps(record: RunRecord, times: Floats, changes: Floats) -> Steps:
    """The running sum of changes, from the first submission to the last thing seen."""
    if not len(record.jobs):
        return Steps(np.zeros(0), np.zeros(0))
    bounds = np.array([record.jobs.submitted_s.min(), last_seen_s(record)])
    edges, place = np.unique(np.concatenate((bounds, times)), return_inverse=True)
    level: Floats = np.cumsum(np.bincount(place[2:], changes, minlength=len(edges)).astype(np.float64))
    if len(edges) < 2:
        return Steps(np.zeros(0), np.zeros(0))
    # Sums of fractions leave crumbs around zero; counts are exact either way.
    level = np.where(np.abs(level) < 1e-9, 0.0, level)[:-1]
    kept = np.concatenate(([True], level[1:] != level[:-1]))
    return Steps(np.concatenate((edges[:-1][kept], edges[-1:])), level[kept])
