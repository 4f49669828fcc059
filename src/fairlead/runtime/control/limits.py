"""Time limits of jobs: how long each may still run, over all its launches. Waiting does not count; the time from the plan that
starts a job does, as it does in the state. Whoever asks brings the time."""

from __future__ import annotations

import math


class Limits:
    """Only jobs that have a limit are remembered."""

    def __init__(self) -> None:
        self._left_s: dict[int, float] = {}  # of jobs that do not run
        self._until: dict[int, float] = {}  # of jobs that run

    def add(self, job: int, limit_s: float, ran_s: float = 0.0) -> None:
        if limit_s < math.inf:
            self._left_s[job] = limit_s - ran_s

    def started(self, job: int, now: float) -> None:
        if job in self._left_s:
            self._until[job] = now + self._left_s.pop(job)

    def stopped(self, job: int, now: float) -> None:
        if job in self._until:
            self._left_s[job] = self._until.pop(job) - now

    def forget(self, job: int) -> None:
        self._left_s.pop(job, None)
        self._until.pop(job, None)

    @property
    def soonest(self) -> float:
        return min(self._until.values(), default=math.inf)

    def over(self, now: float) -> list[int]:
        return sorted(job for job, until in self._until.items() if until <= now)
