"""What agents say of jobs, and what becomes of a launch that is over, as events. It decides nothing: whether a job that failed
is tried again is a matter of counting."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from fairlead.core import events as ev
from fairlead.core.job import ELASTIC
from fairlead.runtime.control.job_metrics import MetricBuffer, UtilizationTracker
from fairlead.runtime.control.job_tracker import StepCounter, TimeLimits, TrackedJob, TrackedJobs
from fairlead.runtime.control.launches import Addressed, LaunchEnd, LaunchOutcome, LaunchTracker
from fairlead.runtime.protocol.orders import Ended, Metric, Progress, RenewalRequest, Report

RATE_TELLS = 0.05
"""A rate that differs by less from what is known is not worth an event."""

OFF_S = 1.0
"""Nor is a job that is ahead or behind by less than so many seconds of its work: fast steps come in bursts."""

MOST_STEPS, FASTEST = 2.0**53, 1e12
"""Steps, and steps per second. A worker may write anything onto its page, and agents say it; a journal with an event that
cannot have happened could not be read any more."""


class ReportHandler:
    """`send` brings orders to agents."""

    def __init__(
        self,
        jobs: TrackedJobs,
        launches: LaunchTracker,
        limits: TimeLimits,
        measures: MetricBuffer,
        uses: UtilizationTracker,
        send: Callable[[Sequence[Addressed]], None],
    ) -> None:
        self._jobs, self._launches, self._limits = jobs, launches, limits
        self._measures, self._uses, self._send = measures, uses, send

    def heard(self, node: int, word: Report, now: float) -> Sequence[ev.Event]:
        if isinstance(word, Ended):
            before = self._measures.told(now)  # nothing that is said of a job comes after its end
            orders, outcomes = self._launches.heard(node, word)
            self._send(orders)
            return [*before, *self.became(outcomes, now)]
        if isinstance(word, RenewalRequest):
            self._send(self._launches.renew(node, word))
            return ()
        run, known = self._launches.get(word.job, word.generation), self._jobs.get(word.job)
        if run is None or known is None:
            return ()
        if isinstance(word, Metric):
            self._measures.hear(word, known.job.user)
            return ()
        run.saved = max(run.saved, word.saved)
        if run.leaving:  # by the state it does not run any more, or runs elsewhere soon
            return ()
        return self._got_on(word, known, now)

    def became(self, outcomes: Sequence[LaunchOutcome], now: float) -> list[ev.Event]:
        events: list[ev.Event] = []
        for end in outcomes:
            known = self._jobs.get(end.job)
            if known is None:  # it had ended before it left
                continue
            known.saved = end.saved
            if end.fate is not LaunchEnd.YIELDED:  # who was asked to leave stopped counting then
                self._limits.stopped(end.job, now)
            one, at = np.array([end.job], dtype=np.int64), np.array([now])
            done = _within(known.counted.declared(end.saved), MOST_STEPS)
            saved = np.array([float(done)])
            if end.fate is LaunchEnd.FINISHED:
                self._send(self._launches.drop(end.job))  # it may have been about to go on elsewhere
                self.forget(end.job)
                events.append(ev.JobsFinished(now, one, at))
            elif end.fate is LaunchEnd.YIELDED:
                events.append(self._progressed(end.job, done, 0.0, now))
            elif end.fate is LaunchEnd.LOST:
                known.at(done, 0.0, now)
                events.append(ev.JobsInterrupted(now, one, saved, False, *(_how(end) if end.code else ())))
            elif end.fate is LaunchEnd.FAILED:
                known.at(done, 0.0, now)
                known.failures += 1
                if known.failures > known.job.retry_limit:
                    self._send(self._launches.drop(end.job))
                    self.forget(end.job)
                    events.append(ev.JobsFailed(now, one, at, *_how(end)))
                else:
                    if end.asked:  # by the state it waits, or is about to go on elsewhere
                        self._send(self._launches.drop(end.job))
                        events.append(self._progressed(end.job, done, 0.0, now))
                    events.append(ev.JobsInterrupted(now, one, saved, True, *_how(end)))
        return events

    def _got_on(self, word: Progress, known: TrackedJob, now: float) -> Sequence[ev.Event]:
        another_size = False
        if word.batch_size and (word.rate or known.regimes is None):  # another size counts once it is known how fast it is
            elastic = known.job.mode == ELASTIC
            size = word.batch_size if elastic else known.sizes.see(word.batch_size)
            self._measures.hear_size(word.job, size, known.job.user)
            if not elastic:
                known.regimes = known.regimes or StepCounter()
                another_size = known.regimes.hear(word.steps, size)
        done = _within(known.counted.declared(word.steps), MOST_STEPS)
        rate = _within(word.rate * known.counted.worth, FASTEST) or known.rate
        worth_telling = abs(done - known.expected(now)) > max(1.0, RATE_TELLS * (done - known.steps), OFF_S * rate)
        worth_telling |= abs(rate - known.rate) > RATE_TELLS * known.rate or known.steps <= known.job.steps < done
        if another_size:  # at the steps at which it began, with its rate
            return self._progressed(word.job, done, rate, now), *self._measures.told(now)
        return (self._progressed(word.job, done, rate, now),) if worth_telling else ()

    def forget(self, job: int) -> None:
        """It has ended; what agents still say of it is of no interest."""
        self._jobs.pop(job, None)
        self._limits.forget(job)
        self._measures.forget(job)
        self._uses.forget(job)

    def _progressed(self, job: int, steps: float, rate: float, now: float) -> ev.ProgressReported:
        self._jobs[job].at(steps, rate, now)
        return ev.ProgressReported(now, np.array([job]), np.array([float(steps)]), np.array([float(rate)]), np.array([now]))


def _within(said: float, most: float) -> float:
    return min(said, most) if said > 0 else 0.0


def _how(end: LaunchOutcome) -> tuple[str, int, int, int]:
    return end.why or f"exit code {end.code}", end.code, end.node, end.rank
