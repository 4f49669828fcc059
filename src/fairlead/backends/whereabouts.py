"""Who holds what in a simulated world. While everybody is launched where nobody else is, it is enough to note the launches:
who asks for more makes holdings of them, which are kept from then on."""

from __future__ import annotations

import numpy as np

from fairlead.core.cluster import Ints
from fairlead.core.holdings import Holdings, ragged
from fairlead.core.plan import Launches

_MANY = 1000  # launches that are noted before those of which nobody runs any more are forgotten


class Whereabouts:
    """Of those who run; `running` is always who does before the call."""

    def __init__(self, accelerators: int, capacity: int) -> None:
        self._accelerators = accelerators
        self._with: Ints = np.zeros(capacity, dtype=np.int64)  # by job: with which launches it came
        self._noted: dict[int, Launches] = {}
        self._count = 0
        self._kept: Holdings | None = None
        self.shared = False  # whether any accelerator has more than one job on it

    def reserve(self, size: int) -> None:
        self._with = np.concatenate((self._with, np.zeros(size - len(self._with), dtype=np.int64)))
        if self._kept is not None:
            self._kept.reserve(size)

    def take(self, launches: Launches, running: Ints) -> None:
        if self._kept is None and launches.exclusive:
            self._count += 1
            self._with[launches.jobs], self._noted[self._count] = np.array(self._count), launches
            if len(self._noted) > _MANY:
                self._noted = {one: self._noted[one] for one in sorted(set(self._with[running].tolist())) if one}
                self._noted[self._count] = launches
        else:
            holdings = self.holdings(running)
            holdings.take(launches.jobs, launches.offsets, launches.accelerators, exclusive=launches.exclusive)
            self.shared = holdings.shared

    def release(self, jobs: Ints) -> None:
        if self._kept is not None:
            self._kept.release(jobs)
            self.shared = self._kept.shared

    def holdings(self, running: Ints) -> Holdings:
        if self._kept is None:
            self._kept = Holdings(self._accelerators, len(self._with))
            parts = [
                self._part(number, self._noted[one]) for number, one in zip(running.tolist(), self._with[running].tolist())
            ]
            self._kept.take(running, *ragged(parts))
            self._noted.clear()
        return self._kept

    def mates(self, jobs: Ints, running: Ints) -> tuple[Ints, Ints]:
        """Who runs beside whom: positions in `jobs`, ascending, and the number of a mate for each, ascending for one job."""
        holdings, span = self.holdings(running), len(self._with)
        holder, place = holdings.places(running)
        order = place.argsort(kind="stable")
        holder, count = holder[order], np.bincount(place, minlength=self._accelerators)
        number, theirs = holdings.places(jobs)
        position = np.empty(span, dtype=np.int64)
        position[jobs] = np.arange(len(jobs))
        owner = position[number]
        shared = count[theirs] > 1
        theirs, owner = theirs[shared], owner[shared]
        many = count[theirs]  # holders of each; in `holder`, those of an accelerator stand together
        starts, ends = (count.cumsum() - count)[theirs], many.cumsum()
        mate = holder[(starts - ends + many).repeat(many) + np.arange(int(many.sum()))]
        of = owner.repeat(many)
        other = mate != jobs[of]
        pairs = np.unique(of[other] * span + mate[other])  # gangs meet on several accelerators, and are mates once
        return pairs // span, pairs % span

    @staticmethod
    def _part(number: int, launches: Launches) -> Ints:
        at = int((launches.jobs == number).argmax())
        return launches.accelerators[launches.offsets[at] : launches.offsets[at + 1]]
