"""The interference monitor: co-located jobs that are slower than their `max_slowdown`, since when, and how long it took to
separate them. A job that two decisions in a row find too slow may no longer share a GPU with the same jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from fairlead.core import events as ev
from fairlead.core.cluster import Floats, Ints
from fairlead.core.device_map import DeviceMap
from fairlead.core.job import Job, Phase
from fairlead.core.plan import Placed
from fairlead.core.reasons import Reason, Reasons
from fairlead.core.snapshot import JobPairs, Snapshot

MAX_SEPARATIONS = 1000


class MonitoredState(Protocol):
    """What the monitor reads of a state."""

    device_map: DeviceMap

    @property
    def columns(self) -> Mapping[str, Any]: ...


def pairs_of(device_map: DeviceMap, numbers: Sequence[int]) -> JobPairs:
    """These jobs with each job that shares a GPU with them, as pairs of numbers, the lower one first."""
    pairs = set()
    for number in numbers:
        there = np.zeros(len(device_map.occupancy), dtype=np.bool_)
        there[device_map.of(number)] = True
        others = device_map.on(there).tolist()
        pairs |= {(min(number, other), max(number, other)) for other in others if other != number}
    return frozenset(pairs)


def kept_apart(placed: Placed, view: Snapshot) -> Placed:
    """The placement without co-location of separated jobs: of a pair, the job that started last leaves or does not start. A job
    that may not be preempted yet stays."""
    launches, bounds = placed.launches, placed.launches.offsets.tolist()
    places = {n: {*launches.accelerators[a:b].tolist()} for n, a, b in zip(launches.jobs.tolist(), bounds, bounds[1:])}
    new, started = {*places}, dict(zip(view.jobs.number.tolist(), view.jobs.run_started_s.tolist()))
    bound = set() if view.protected is None else {*view.jobs.number[view.protected].tolist()}
    kept, leaving = {*placed.kept.tolist()}, dict[int, int]()
    places |= {n: {*view.device_map.of(n).tolist()} for pair in view.separated for n in pair if n in kept}
    for pair in sorted(view.separated):
        if {*pair} <= places.keys() and not leaving.keys() & {*pair} and not places[pair[0]].isdisjoint(places[pair[1]]):
            free = [number for number in pair if number not in bound]
            if free:
                leaver = max(free, key=lambda n: (n in new, started[n], n))
                leaving[leaver] = pair[0] if leaver == pair[1] else pair[1]
    if not leaving:
        return placed
    gone: Ints = np.array(sorted(leaving), dtype=np.int64)

    def reason(job: Job, other: Job) -> Reason:
        name = other.name if other.user == job.user else "a job of another user"
        return Reasons.waiting(job.workers, free=sum(placed.free), alone=f"it was separated from {name}")

    reasons = {number: reason(view.job_of[number], view.job_of[other]) for number, other in leaving.items()}
    return replace(
        placed,
        kept=placed.kept[~np.isin(placed.kept, gone)],
        launches=launches.only(~np.isin(launches.jobs, gone)),
        unplaced={**placed.unplaced, **reasons},
    )


@dataclass
class InterferenceRecord:
    """What the state keeps of the monitor: jobs that are too slow, with since when and how much; pairs that were separated; and
    of past separations the second, the job, and how long it had been too slow, the most recent ones."""

    slow: dict[int, tuple[float, float]] = field(default_factory=dict)
    separated: JobPairs = frozenset()
    separations: list[tuple[float, int, float]] = field(default_factory=list)
    count: int = 0  # of all separations

    def __bool__(self) -> bool:
        return bool(self.slow or self.separated or self.count)

    def note(self, state: MonitoredState, event: ev.SlowdownExceeded) -> None:
        """Note the jobs that a decision found too slow."""
        sharing = [n for n in event.jobs.tolist() if _shares(state, n)]  # others stopped during the decision
        again = [number for number in sharing if number in self.slow]
        alive = lambda pair: (state.columns["phase"][list(pair)] <= int(Phase.RUNNING)).all()  # noqa: E731
        self.separated = frozenset(filter(alive, self.separated | pairs_of(state.device_map, again)))
        factors, since = dict(zip(event.jobs.tolist(), event.slowdowns.tolist())), state.columns["since_s"]
        self.slow = {n: (self.slow[n][0] if n in self.slow else float(since[n]), factors[n]) for n in sharing}

    def settle(self, state: MonitoredState, event: ev.Event) -> bool:
        """Whether a job no longer shares a GPU, so that it is not too slow any more. A decision has separated it if it did not
        end."""
        settled = [number for number in self.slow if not _shares(state, number)]
        for number in settled:
            since_s, _ = self.slow.pop(number)
            if isinstance(event, ev.RoundPlanned) and number not in event.plan.ended:
                self.separations = [*self.separations, (event.time, number, event.time - since_s)][-MAX_SEPARATIONS:]
                self.count += 1
        return bool(settled)

    def to_data(self) -> dict[str, Any]:
        """For saved states."""
        slow = [[number, *about] for number, about in sorted(self.slow.items())]
        return {"slow": slow, "separated": sorted(self.separated), "separations": self.separations, "count": self.count}

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> InterferenceRecord:
        """From a saved state."""
        slow = {number: (since_s, factor) for number, since_s, factor in data["slow"]}
        separated = frozenset((one, two) for one, two in data["separated"])
        return cls(slow, separated, [(at, number, took) for at, number, took in data["separations"]], data["count"])


def slowdown_event(view: Snapshot, found: dict[int, float]) -> tuple[Ints, Floats] | None:
    """The jobs and slowdowns of an event, where it would say something new."""
    again = pairs_of(view.device_map, [number for number in found if number in view.slow])
    if found.keys() == view.slow and again <= view.separated:
        return None
    return np.array([*found], dtype=np.int64), np.array([*found.values()])


def _shares(state: MonitoredState, number: int) -> bool:
    if not state.columns["held"][number]:
        return False
    return bool((state.device_map.occupancy[state.device_map.of(number)] > 1).any())
