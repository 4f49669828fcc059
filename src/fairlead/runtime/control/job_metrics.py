"""What jobs say about themselves under names of their own, gathered for the journal: one event for each name and second,
whoever and however many said it, and no more names than can be kept. The last value counts."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fairlead.core.events import MetricsReported
from fairlead.core.job import BATCH_SIZE
from fairlead.core.plan import BUSY, MEASURED_METRICS, TAKEN_GB
from fairlead.core.snapshot import Snapshot
from fairlead.models import goodput
from fairlead.models.convergence import DERIVED, LOSS, TARGET
from fairlead.runtime.control.launches import TrackedLaunch
from fairlead.runtime.protocol.messages import Heartbeat
from fairlead.runtime.protocol.orders import MAX_METRICS, Metric

log = logging.getLogger("fairlead.cluster")

PAUSE_S = 1.0
MOST_NAMES = 1000
"""Of all jobs that are alive together: a name is a column over all of them."""
MOST_OF_ONE_USER = 250
ALWAYS = frozenset({LOSS, TARGET, BATCH_SIZE, *goodput.REPORTED})
"""There is room for these, whoever else says what: decisions are made of them."""


class MetricBuffer:
    def __init__(self) -> None:
        self._names: dict[int, set[str]] = {}  # by job
        self._user_of: dict[int, str] = {}
        self._known: Counter[str] = Counter()  # how many jobs use a name
        self._known_of: dict[str, Counter[str]] = {}  # the same by user
        self._full: set[str] = set()  # users who were told of in the log
        self._held: dict[str, dict[int, float]] = {}
        self._last_s = -math.inf
        self._size: dict[int, int] = {}  # batch sizes that were told last

    def know(self, view: Snapshot) -> None:
        """After a restart: what was said before."""
        for name in set(view.jobs.metrics) - DERIVED:
            for number in view.jobs.number[~np.isnan(view.jobs.metric(name))].tolist():
                self._note(number, name, view.job_of[number].user)
        sizes = view.jobs.metric(BATCH_SIZE)
        told = np.isfinite(sizes)
        self._size = dict(zip(view.jobs.number[told].tolist(), sizes[told].astype(np.int64).tolist()))

    def hear_size(self, job: int, size: int, user: str = "") -> None:
        """A lease page says with every step which batch size it is; told when it is another."""
        if self._size.get(job) != size:
            self._size[job] = size
            self.hear(Metric(job, 0, BATCH_SIZE, float(size)), user)

    def hear(self, said: Metric, user: str = "") -> None:
        """Names that are too many are passed over, and those of what the state makes of reports or agents see."""
        if said.name in DERIVED or said.name in MEASURED_METRICS:
            return
        mine = self._names.get(said.job, set())
        if said.name not in mine:
            if len(mine) >= MAX_METRICS:
                return
            if not self._room_for(said.name, user):
                if user not in self._full:
                    log.warning("no more names of metrics are kept", extra={"user": user, "names": len(self._known)})
                self._full.add(user)
                return
            self._note(said.job, said.name, user)
        self._held.setdefault(said.name, {})[said.job] = said.value

    def see(self, job: int, seen: Mapping[str, float], user: str = "") -> None:
        """What an agent measured of it."""
        for name, value in seen.items():
            if name not in self._names.get(job, ()):
                self._note(job, name, user)
            self._held.setdefault(name, {})[job] = value

    def launched(self, job: int) -> None:
        """What was seen of it and is not told yet was seen where it stood before."""
        for name in MEASURED_METRICS & self._held.keys():
            self._held[name].pop(job, None)
            if not self._held[name]:
                del self._held[name]

    @property
    def due_s(self) -> float:
        """When what is held back is to be told."""
        return self._last_s + PAUSE_S if self._held else math.inf

    def told(self, now: float) -> list[MetricsReported]:
        """All that is held back."""
        held, self._held = self._held, {}
        if held:
            self._last_s = now
        return [
            MetricsReported(now, name, np.array(list(values), dtype=np.int64), np.array(list(values.values())))
            for name, values in held.items()
        ]

    def forget(self, job: int) -> None:
        """It has ended; names that nobody else uses are free."""
        user = self._user_of.pop(job, "")
        self._size.pop(job, None)
        for name in self._names.pop(job, ()):
            _less(self._known, name)
            _less(self._known_of[user], name)
            if not self._known_of[user]:
                del self._known_of[user]

    def _room_for(self, name: str, user: str) -> bool:
        theirs = self._known_of.get(user, ())
        if name in ALWAYS or name in theirs:
            return True
        return len(theirs) < MOST_OF_ONE_USER and (name in self._known or len(self._known) < MOST_NAMES)

    def _note(self, job: int, name: str, user: str) -> None:
        self._names.setdefault(job, set()).add(name)
        self._user_of[job] = user
        self._known[name] += 1
        self._known_of.setdefault(user, Counter())[name] += 1


def _less(count: Counter[str], name: str) -> None:
    count[name] -= 1
    if not count[name]:
        del count[name]


# What jobs take of accelerators, out of what agents see of those: the use of one that a job has to itself is the job's. It is
# what corrects predictions while jobs run. It knows no clock and no network.

FEWEST = 10  # beats, before anything is said
LONGEST_START = 30  # beats, after which a job is at work whether it says so or not
FORGETS = 0.1  # part of what is known that a beat replaces
BUSY_TELLS, MEMORY_TELLS = 0.05, 0.1
"""A difference that is worth saying: of shares of time, and of memory in proportion."""


@dataclass
class _Use:
    beats: int = 0
    waited: int = 0  # beats before it was at work
    settled: bool = False  # the last beat found it at work and by itself, so that the next one tells of nothing else
    busy: float = 0.0
    memory_gb: float = 0.0
    told: tuple[float, float] | None = None

    def see(self, busy: float, memory_gb: float) -> None:
        part = max(FORGETS, 1 / (self.beats + 1))
        self.beats += 1
        self.busy += part * (busy - self.busy)
        self.memory_gb = max(self.memory_gb, memory_gb)  # whoever comes beside it has to leave that free

    @property
    def worth_telling(self) -> bool:
        if self.beats < FEWEST or self.told is None:
            return self.beats >= FEWEST
        busy, memory_gb = self.told
        return abs(self.busy - busy) > BUSY_TELLS or abs(self.memory_gb - memory_gb) > MEMORY_TELLS * memory_gb


class UtilizationTracker:
    def __init__(self) -> None:
        self._of: dict[int, tuple[int, _Use]] = {}  # by job: a generation, and its use

    def see(
        self, beats: Mapping[int, Heartbeat], runs: Sequence[TrackedLaunch], at_work: Callable[[int], bool] = lambda job: True
    ) -> Iterator[tuple[int, dict[str, float]]]:
        """Jobs of whom something new is known, and what, by the names of metrics. `beats` are of nodes, `runs` all launches.
        What is seen before a job is at work is of its imports and data, and no use of it; who never says so is taken to be. A
        beat tells of the time since the last one: the first after a start, or after company has left, is of that too."""
        holders = Counter(place for run in runs for place in run.places)
        for run in runs:
            mine = [(beats[node], local) for node, local in run.places if node in beats]
            if not mine or not run.sent or run.leaving or not all(_tells(beat, local) for beat, local in mine):
                continue
            generation, use = self._of.get(run.job, (run.generation, _Use()))
            if generation != run.generation:
                use = _Use()
            self._of[run.job] = run.generation, use
            if any(holders[place] > 1 for place in run.places):
                use.settled = False
                continue
            if use.waited < LONGEST_START and not at_work(run.job):
                use.waited += 1
                continue
            if not use.settled:
                use.settled = True
                continue
            use.see(
                sum(beat.utilization[local] for beat, local in mine) / len(mine),
                max(beat.memory_gb[local] for beat, local in mine),
            )
            if use.worth_telling:
                use.told = use.busy, use.memory_gb
                yield run.job, {BUSY: use.busy, TAKEN_GB: use.memory_gb}

    def forget(self, job: int) -> None:
        self._of.pop(job, None)


def _tells(beat: Heartbeat, local: int) -> bool:
    return local < min(len(beat.utilization), len(beat.memory_gb))
