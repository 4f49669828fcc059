"""Turn the reports of agents, and the ends of launches, into events.

It decides nothing. Whether a failed job is retried follows from its retry limit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from fairlead.core import events as ev
from fairlead.core.job import ELASTIC
from fairlead.runtime.control.job_metrics import MetricBuffer, UtilizationTracker
from fairlead.runtime.control.job_tracker import StepCounter, TrackedJob, TrackedJobs
from fairlead.runtime.control.launches import Addressed, LaunchEnd, LaunchOutcome, LaunchTracker
from fairlead.runtime.protocol.orders import Ended, Metric, Progress, RenewalRequest, Report

RATE_TOLERANCE = 0.05
"""A relative change of the rate that is worth an event."""

PROGRESS_TOLERANCE_S = 1.0
"""Seconds of work that a job may be ahead or behind without an event: fast steps come in bursts."""

MAX_STEPS, MAX_RATE = 2.0**53, 1e12
"""A worker may report anything; a journal with an impossible event could not be read again."""


class ReportHandler:
    """Handles the reports of one cluster. `send` delivers orders to agents."""

    def __init__(
        self,
        jobs: TrackedJobs,
        launches: LaunchTracker,
        metrics: MetricBuffer,
        utilization: UtilizationTracker,
        send: Callable[[Sequence[Addressed]], None],
    ) -> None:
        self._jobs, self._launches, self._metrics, self._utilization, self._send = jobs, launches, metrics, utilization, send

    def handle(self, node: int, report: Report, now: float) -> Sequence[ev.Event]:
        """Return the events of a report."""
        if isinstance(report, Ended):
            before = self._metrics.flush(now)  # no metric of a job comes after its end
            orders, outcomes = self._launches.ended(node, report)
            self._send(orders)
            return [*before, *self.settle(outcomes, now)]
        if isinstance(report, RenewalRequest):
            self._send(self._launches.renew(node, report))
            return ()
        run, job = self._launches.get(report.job, report.generation), self._jobs.get(report.job)
        if run is None or job is None:
            return ()
        if isinstance(report, Metric):
            self._metrics.add(report, job.job.user)
            return ()
        run.saved = max(run.saved, report.saved)
        if run.leaving:  # in the state it waits, or runs elsewhere
            return ()
        return self._progress(report, job, now)

    def settle(self, outcomes: Sequence[LaunchOutcome], now: float) -> list[ev.Event]:
        """Return the events of launches that are over."""
        events: list[ev.Event] = []
        for outcome in outcomes:
            job = self._jobs.get(outcome.job)
            if job is None:  # it had ended before
                continue
            job.saved = outcome.saved
            if outcome.end is not LaunchEnd.YIELDED:  # a revoked job stopped counting with the plan
                self._jobs.limits.stop(outcome.job, now)
            one, at = np.array([outcome.job], dtype=np.int64), np.array([now])
            done = _bounded(job.counter.declared(outcome.saved), MAX_STEPS)
            saved = np.array([float(done)])
            if outcome.end is LaunchEnd.FINISHED:
                self._send(self._launches.drop(outcome.job))  # it may have been about to resume elsewhere
                self.remove(outcome.job)
                events.append(ev.JobsFinished(now, one, at))
            elif outcome.end is LaunchEnd.YIELDED:
                events.append(self._progress_event(outcome.job, done, 0.0, now))
            elif outcome.end is LaunchEnd.LOST:
                job.set_progress(done, 0.0, now)
                events.append(ev.JobsInterrupted(now, one, saved, False, *(_failure(outcome) if outcome.code else ())))
            elif outcome.end is LaunchEnd.FAILED:
                job.set_progress(done, 0.0, now)
                job.failures += 1
                if job.failures > job.job.retry_limit:
                    self._send(self._launches.drop(outcome.job))
                    self.remove(outcome.job)
                    events.append(ev.JobsFailed(now, one, at, *_failure(outcome)))
                else:
                    if outcome.revoked:  # in the state it waits, or is about to resume elsewhere
                        self._send(self._launches.drop(outcome.job))
                        events.append(self._progress_event(outcome.job, done, 0.0, now))
                    events.append(ev.JobsInterrupted(now, one, saved, True, *_failure(outcome)))
        return events

    def remove(self, job: int) -> None:
        """Forget a job that has ended."""
        self._jobs.remove(job)
        self._metrics.remove(job)
        self._utilization.remove(job)

    def _progress(self, report: Progress, job: TrackedJob, now: float) -> Sequence[ev.Event]:
        new_size = False
        if report.batch_size and (report.rate or job.step_counter is None):  # a new size counts once its rate is known
            elastic = job.job.mode == ELASTIC
            size = report.batch_size if elastic else job.batch_sizes.observe(report.batch_size)
            self._metrics.add_batch_size(report.job, size, job.job.user)
            if not elastic:
                job.step_counter = job.step_counter or StepCounter()
                new_size = job.step_counter.record(report.steps, size)
        done = _bounded(job.counter.declared(report.steps), MAX_STEPS)
        rate = _bounded(report.rate * job.counter.weight, MAX_RATE) or job.rate
        tolerance = max(1.0, RATE_TOLERANCE * (done - job.steps), PROGRESS_TOLERANCE_S * rate)
        changed = abs(done - job.expected(now)) > tolerance or abs(rate - job.rate) > RATE_TOLERANCE * job.rate
        if new_size:  # the size is journaled with the steps at which it begins, and its rate
            return self._progress_event(report.job, done, rate, now), *self._metrics.flush(now)
        if changed or job.steps <= job.job.steps < done:
            return (self._progress_event(report.job, done, rate, now),)
        return ()

    def _progress_event(self, job: int, steps: float, rate: float, now: float) -> ev.ProgressReported:
        self._jobs[job].set_progress(steps, rate, now)
        return ev.ProgressReported(now, np.array([job]), np.array([float(steps)]), np.array([float(rate)]), np.array([now]))


def _bounded(value: float, largest: float) -> float:
    return min(value, largest) if value > 0 else 0.0


def _failure(outcome: LaunchOutcome) -> tuple[str, int, int, int]:
    return outcome.why or f"exit code {outcome.code}", outcome.code, outcome.node, outcome.rank
