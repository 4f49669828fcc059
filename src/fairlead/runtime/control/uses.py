"""What jobs take of accelerators, out of what agents see of those: the use of one that a job has to itself is the job's. It is
what corrects predictions while jobs run. It knows no clock and no network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fairlead.core.usage import BUSY, TAKEN_GB
from fairlead.runtime.control.launches import Running
from fairlead.runtime.messages import Beat

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


class Uses:
    def __init__(self) -> None:
        self._of: dict[int, tuple[int, _Use]] = {}  # by job: a generation, and its use

    def see(
        self, beats: Mapping[int, Beat], runs: Sequence[Running], at_work: Callable[[int], bool] = lambda job: True
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
                sum(beat.busy[local] for beat, local in mine) / len(mine),
                max(beat.memory_gb[local] for beat, local in mine),
            )
            if use.worth_telling:
                use.told = use.busy, use.memory_gb
                yield run.job, {BUSY: use.busy, TAKEN_GB: use.memory_gb}

    def forget(self, job: int) -> None:
        self._of.pop(job, None)


def _tells(beat: Beat, local: int) -> bool:
    return local < min(len(beat.busy), len(beat.memory_gb))
