"""Leave nodes alone that cannot start jobs, for instance because their disk is full. After a few failed launches in a row a
node gets no jobs for a while, longer each time. Callers pass the time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from fairlead.core.cluster import BackoffPeriod
from fairlead.core.job import LAUNCH_FAILED
from fairlead.runtime.control.tracked_launch import TrackedLaunch
from fairlead.runtime.protocol.orders import Ended, Report

ATTEMPTS = 3  # failed launches in a row before a node is left alone

FIRST_S, MAX_S = 30.0, 900.0  # the first back-off, which doubles each time, and the longest


@dataclass
class LaunchFailures:
    """Why and how often in a row a node could not start a job, and until when it is left alone (−inf: it is not)."""

    why: str
    times: int = 0
    backoffs: int = 0
    until_s: float = -math.inf


class NodeBackoff:
    """Nodes with failed launches, until they start a job."""

    def __init__(self) -> None:
        self._failures: dict[int, LaunchFailures] = {}

    def reported(self, node: int, run: TrackedLaunch | None, report: Report) -> None:
        """Record what a report about a launch says about its node."""
        if run is None or run.leaving:
            return
        if isinstance(report, Ended) and report.could_not_start:
            self.failed(node, report.why)
        elif not isinstance(report, Ended) or report.code != LAUNCH_FAILED:
            self.started(node)

    def failed(self, node: int, why: str) -> None:
        one = self._failures.setdefault(node, LaunchFailures(why))
        one.why, one.times = why, one.times + 1

    def started(self, node: int) -> None:
        self._failures.pop(node, None)

    def is_due(self, node: int) -> bool:
        """Return whether a node should be left alone, and is not yet."""
        one = self._failures.get(node)
        return one is not None and one.times >= ATTEMPTS and one.until_s == -math.inf

    def begin(self, node: int, now: float) -> LaunchFailures:
        one = self._failures[node]
        one.until_s = now + min(FIRST_S * 2**one.backoffs, MAX_S)
        one.backoffs += 1
        return one

    def end(self, node: int) -> None:
        """Use a node again. Its failures are not forgotten: one more begins the next back-off."""
        if (one := self._failures.get(node)) is not None and one.until_s > -math.inf:
            one.until_s, one.times = -math.inf, ATTEMPTS - 1

    def restore(self, backoffs: Mapping[int, BackoffPeriod]) -> None:
        """Continue the back-offs of a journal after a restart."""
        for node, backoff in backoffs.items():
            self._failures[node] = LaunchFailures(backoff.why, ATTEMPTS, 1, backoff.until_s)

    @property
    def next_s(self) -> float:
        return min((one.until_s for one in self._failures.values() if one.until_s > -math.inf), default=math.inf)

    def ended(self, now: float) -> list[int]:
        return sorted(node for node, one in self._failures.items() if -math.inf < one.until_s <= now)

    def of(self, node: int) -> LaunchFailures | None:
        return self._failures.get(node)
