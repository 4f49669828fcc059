"""Collect the metrics of jobs for the journal: what jobs report, and what agents measure of their accelerators. There is one
event per metric and second, with the last value of each job, and a bounded number of metric names. From these events come the
curves of jobs that pages show. It knows no network; callers pass the time."""

from __future__ import annotations

import logging
import math
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fairlead.core import events as ev
from fairlead.core.job import BATCH_SIZE
from fairlead.core.plan import BUSY, MEASURED_METRICS, TAKEN_GB
from fairlead.core.snapshot import Snapshot
from fairlead.models import goodput
from fairlead.models.convergence import DERIVED, LOSS, TARGET
from fairlead.runtime.control.tracked_launch import TrackedLaunch
from fairlead.runtime.protocol.messages import Heartbeat
from fairlead.runtime.protocol.orders import MAX_METRICS, Metric

log = logging.getLogger("fairlead.cluster")

FLUSH_EVERY_S = 1.0
MAX_NAMES = 1000  # metric names of all live jobs: each is a column over all of them
MAX_NAMES_PER_USER = 250
ALWAYS_KEPT = frozenset({LOSS, TARGET, BATCH_SIZE, *goodput.REPORTED})  # names outside these limits: decisions use them

MEASURE_EVERY_S = 1.0  # heartbeats are collected for this long
MAX_HEARTBEATS = 20_000  # collected while the loop does nothing, for instance without its journal; the oldest are dropped
MIN_HEARTBEATS = 10  # before a utilization is reported
MAX_STARTUP_HEARTBEATS = 30  # after these a job counts as working even without progress
DECAY = 0.1  # weight of a new heartbeat in the mean
MAX_POINTS = 1_000_000  # of the curves of all jobs, 24 bytes each
CURVE_POINTS, MIN_CURVE_POINTS = 300, 20  # of one curve, at most; fewer where all together would have too many
BUSY_TOLERANCE, MEMORY_TOLERANCE = 0.05, 0.1  # changes worth an event: of the share of time, and of memory in proportion


class MetricBuffer:
    """Metrics that are not in the journal yet."""

    def __init__(self) -> None:
        self._names: dict[int, set[str]] = {}  # by job
        self._user_of: dict[int, str] = {}
        self._jobs_of_name: Counter[str] = Counter()
        self._names_of_user: dict[str, Counter[str]] = {}
        self._warned: set[str] = set()  # users with too many names
        self._pending: dict[str, dict[int, float]] = {}
        self._flushed_s = -math.inf
        self._batch_size: dict[int, int] = {}  # as last reported

    def restore(self, view: Snapshot) -> None:
        for name in set(view.jobs.metrics) - DERIVED:
            for number in view.jobs.number[~np.isnan(view.jobs.metric(name))].tolist():
                self._add_name(number, name, view.job_of[number].user)
        sizes = view.jobs.metric(BATCH_SIZE)
        reported = np.isfinite(sizes)
        self._batch_size = dict(zip(view.jobs.number[reported].tolist(), sizes[reported].astype(np.int64).tolist()))

    def add(self, metric: Metric, user: str = "") -> None:
        """Add a value that a job reports. Names beyond the limits, derived and measured ones are ignored."""
        if metric.name in DERIVED or metric.name in MEASURED_METRICS:
            return
        mine = self._names.get(metric.job, set())
        if metric.name not in mine:
            if len(mine) >= MAX_METRICS:
                return
            if not self._has_room(metric.name, user):
                if user not in self._warned:
                    log.warning("too many metric names", extra={"user": user, "names": len(self._jobs_of_name)})
                self._warned.add(user)
                return
            self._add_name(metric.job, metric.name, user)
        self._pending.setdefault(metric.name, {})[metric.job] = metric.value

    def add_batch_size(self, job: int, size: int, user: str = "") -> None:
        """Add a batch size if it has changed."""
        if self._batch_size.get(job) != size:
            self._batch_size[job] = size
            self.add(Metric(job, 0, BATCH_SIZE, float(size)), user)

    def add_measured(self, job: int, measured: Mapping[str, float], user: str = "") -> None:
        for name, value in measured.items():
            if name not in self._names.get(job, ()):
                self._add_name(job, name, user)
            self._pending.setdefault(name, {})[job] = value

    def launched(self, job: int) -> None:
        """Drop pending measurements of the job's earlier launch."""
        for name in MEASURED_METRICS & self._pending.keys():
            self._pending[name].pop(job, None)
            if not self._pending[name]:
                del self._pending[name]

    @property
    def due_s(self) -> float:
        return self._flushed_s + FLUSH_EVERY_S if self._pending else math.inf

    def flush(self, now: float) -> list[ev.MetricsReported]:
        pending, self._pending = self._pending, {}
        if pending:
            self._flushed_s = now
        return [
            ev.MetricsReported(now, name, np.array(list(values), dtype=np.int64), np.array(list(values.values())))
            for name, values in pending.items()
        ]

    def remove(self, job: int) -> None:
        """Forget a job that has ended, and the names that no other job uses."""
        user = self._user_of.pop(job, "")
        self._batch_size.pop(job, None)
        for name in self._names.pop(job, ()):
            for count in (self._jobs_of_name, self._names_of_user[user]):
                count[name] -= 1
                if not count[name]:
                    del count[name]
            if not self._names_of_user[user]:
                del self._names_of_user[user]

    def _has_room(self, name: str, user: str) -> bool:
        own = self._names_of_user.get(user, ())
        if name in ALWAYS_KEPT or name in own:
            return True
        return len(own) < MAX_NAMES_PER_USER and (name in self._jobs_of_name or len(self._jobs_of_name) < MAX_NAMES)

    def _add_name(self, job: int, name: str, user: str) -> None:
        self._names.setdefault(job, set()).add(name)
        self._user_of[job] = user
        self._jobs_of_name[name] += 1
        self._names_of_user.setdefault(user, Counter())[name] += 1


@dataclass
class _Utilization:
    heartbeats: int = 0
    startup: int = 0  # heartbeats before it worked
    measurable: bool = False  # the last heartbeat found it working and alone, so that the next measures nothing else
    busy: float = 0.0
    memory_gb: float = 0.0
    reported: tuple[float, float] | None = None

    def update(self, busy: float, memory_gb: float) -> None:
        weight = max(DECAY, 1 / (self.heartbeats + 1))
        self.heartbeats += 1
        self.busy += weight * (busy - self.busy)
        self.memory_gb = max(self.memory_gb, memory_gb)  # a co-located job has to leave that free

    @property
    def changed(self) -> bool:
        if self.heartbeats < MIN_HEARTBEATS or self.reported is None:
            return self.heartbeats >= MIN_HEARTBEATS
        busy, memory_gb = self.reported
        return abs(self.busy - busy) > BUSY_TOLERANCE or abs(self.memory_gb - memory_gb) > MEMORY_TOLERANCE * memory_gb


class UtilizationTracker:
    """What jobs take of accelerators: the utilization of an accelerator that a job has alone is the job's."""

    def __init__(self) -> None:
        self._of: dict[int, tuple[int, _Utilization]] = {}  # by job: a generation, and its utilization

    def update(
        self,
        heartbeats: Mapping[int, Heartbeat],
        runs: Sequence[TrackedLaunch],
        works: Callable[[int], bool] = lambda job: True,
    ) -> Iterator[tuple[int, dict[str, float]]]:
        """Yield jobs whose utilization has changed, with their metrics.

        A heartbeat covers the time since the one before. So the first one after a start, or after a co-located job has left,
        does not count; nor does the time of imports before a job works.

        Args:
            heartbeats: The next one of each node.
            runs: All launches.
            works: Whether a job has made progress.
        """
        holders = Counter(place for run in runs for place in run.places)
        for run in runs:
            mine = [(heartbeats[node], local) for node, local in run.places if node in heartbeats]
            if not mine or not run.sent or run.leaving or not all(_measures(beat, local) for beat, local in mine):
                continue
            generation, utilization = self._of.get(run.job, (run.generation, _Utilization()))
            if generation != run.generation:
                utilization = _Utilization()
            self._of[run.job] = run.generation, utilization
            if any(holders[place] > 1 for place in run.places):
                utilization.measurable = False
                continue
            if utilization.startup < MAX_STARTUP_HEARTBEATS and not works(run.job):
                utilization.startup += 1
                continue
            if not utilization.measurable:
                utilization.measurable = True
                continue
            utilization.update(
                sum(beat.utilization[local] for beat, local in mine) / len(mine),
                max(beat.memory_gb[local] for beat, local in mine),
            )
            if utilization.changed:
                utilization.reported = utilization.busy, utilization.memory_gb
                yield run.job, {BUSY: utilization.busy, TAKEN_GB: utilization.memory_gb}

    def remove(self, job: int) -> None:
        self._of.pop(job, None)


class HeartbeatBuffer:
    """Heartbeats until they are evaluated, together after a while: each evaluation goes over all launches."""

    def __init__(self) -> None:
        self._all: deque[tuple[int, Heartbeat]] = deque(maxlen=MAX_HEARTBEATS)
        self._from_s = -math.inf

    def add(self, node: int, beat: Heartbeat) -> bool:
        """Add a heartbeat of a node; return whether it is the first since the last evaluation."""
        self._all.append((node, beat))
        return len(self._all) == 1

    @property
    def due_s(self) -> float:
        """When they are evaluated."""
        return self._from_s if self._all else math.inf

    def take(self, now: float) -> list[dict[int, Heartbeat]]:
        """Return all heartbeats: the first of each node, the second of each node, and so on."""
        self._from_s = now + MEASURE_EVERY_S
        rounds: list[dict[int, Heartbeat]] = []
        count = Counter[int]()
        while self._all:
            node, beat = self._all.popleft()
            if count[node] == len(rounds):
                rounds.append({})
            rounds[count[node]][node] = beat
            count[node] += 1
        return rounds


def _measures(beat: Heartbeat, local: int) -> bool:
    return local < min(len(beat.utilization), len(beat.memory_gb))


@dataclass(slots=True)
class _Curve:
    """Seconds, steps and values, one after the other. The last point is always the most recent one."""

    flat: array[float] = field(default_factory=lambda: array("d"))
    gap_s: float = 0.0  # between points

    def add(self, time: float, step: float, value: float, most: int) -> int:
        """Add a point; return by how many there are more."""
        if len(self.flat) >= 6 and time - self.flat[-6] < self.gap_s:
            del self.flat[-3:]
            self.flat.extend((time, step, value))
            return 0
        self.flat.extend((time, step, value))
        return 1 + (self.thin(most) if len(self.flat) > 3 * most else 0)

    def thin(self, most: int) -> int:
        """Drop every second point while there are too many; return by how many there are more, so 0 or less."""
        points = np.array(self.flat).reshape(-1, 3)
        before = len(points)
        while len(points) > most:
            points = np.concatenate((points[:-1:2], points[-1:]))
            self.gap_s = 2 * float(points[-1, 0] - points[0, 0]) / most
        if len(points) < before:
            self.flat = array("d", points.ravel().tolist())
        return len(points) - before


class MetricCurves:
    """The metrics of jobs over time, from the events of a journal. Their number is bounded: of a long curve every second point
    is dropped. If all jobs have too many, the first jobs that ended lose theirs, and then all curves get shorter."""

    def __init__(self) -> None:
        self._of: dict[int, dict[str, _Curve]] = {}
        self._progress: dict[int, tuple[float, float, float]] = {}  # steps and steps per second, since a second
        self._ended: dict[int, None] = {}  # in the order of their ends
        self._most, self._total, self._seen = CURVE_POINTS, 0, 0

    def observe_all(self, events: Iterable[tuple[int, ev.Event]]) -> None:
        """Observe events with their numbers, in order; those that were observed before are skipped."""
        for number, event in events:
            if number <= self._seen:
                continue
            self._seen = number
            match event:
                case ev.MetricsReported(time, name, jobs, values):
                    for job, value in zip(jobs.tolist(), values.tolist()):
                        steps, rate, since = self._progress.get(job, (0.0, 0.0, time))
                        curves = self._of.setdefault(job, {})
                        if (curve := curves.get(name)) is None:
                            curve = curves[name] = _Curve()
                        self._total += curve.add(time, steps + rate * max(0.0, time - since), value, self._most)
                    self._shrink()
                case ev.ProgressReported(_, jobs, steps, rates, since):
                    at = zip(steps.tolist(), rates.tolist(), since.tolist())
                    self._progress.update(zip(jobs.tolist(), at))
                case ev.JobsInterrupted(time, jobs, steps):  # no steps until it reports again
                    self._progress.update((job, (kept, 0.0, time)) for job, kept in zip(jobs.tolist(), steps.tolist()))
                case ev.JobRequeued(_, job):
                    self._ended.pop(job, None)
                case ev.JobsFinished(_, jobs) | ev.JobsFailed(_, jobs):
                    self._end(jobs.tolist())
                case ev.JobCancelled(_, job):
                    self._end([job])

    def of(self, job: int) -> dict[str, list[list[float]]]:
        """Return the seconds, steps and values of each metric of a job."""
        return {name: np.array(curve.flat).reshape(-1, 3).T.tolist() for name, curve in sorted(self._of.get(job, {}).items())}

    def _end(self, jobs: Sequence[int]) -> None:
        for job in jobs:
            self._progress.pop(job, None)
            if job in self._of:
                self._ended[job] = None

    def _shrink(self) -> None:
        while self._total > MAX_POINTS:
            if not self._ended and self._most > MIN_CURVE_POINTS:
                self._most //= 2
                self._total += sum(curve.thin(self._most) for curves in self._of.values() for curve in curves.values())
                continue
            job = next(iter(self._ended or self._of))
            self._ended.pop(job, None)
            self._total -= sum(len(curve.flat) // 3 for curve in self._of.pop(job, {}).values())
