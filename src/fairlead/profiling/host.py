"""How fast the host is just now. Where others share its cores, one is at times half as fast as at others, for a second or so,
and trainings that wait for their host are slower then. That says nothing about the accelerator, so it is looked for."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

TURNS = 1000  # of a loop that is timed: 25 microseconds or so
SLOWER = 1.35  # times the least that was ever seen: disturbed
CORES = 2  # for one process: a training's threads take turns, but its device's driver wants a moment now and then
MOST = 8  # to choose from: a tenth of a millisecond each, in which nothing is trained and a partner has the device alone


def looped() -> float:
    """Seconds that a short loop takes; the lesser of two, as an interrupt is no disturbance."""
    took = []
    for _ in range(2):
        began = time.perf_counter()
        for _turn in range(TURNS):
            pass
        took.append(time.perf_counter() - began)
    return min(took)


class Host:
    """As one process sees it, with the `cores` that it may take: `quiet` tells whether it is as fast as it can be, and `settle`
    goes to those that are fastest now."""

    def __init__(self, cores: Sequence[int] = (), looped: Callable[[], float] = looped) -> None:
        self.cores, self._looped, self._least = tuple(cores), looped, float("inf")

    def quiet(self) -> bool:
        return self._fast(self._looped())

    def settle(self) -> bool:
        """All threads of this process on a few cores; whether it is quiet there."""
        took: dict[int, float] = {}
        for core in self.cores:
            with suppress(OSError):  # a container may lose it
                os.sched_setaffinity(0, {core})
                took[core] = self._looped()
        if not took:
            return self.quiet()
        best = sorted(took, key=took.__getitem__)[:CORES]
        for thread in os.listdir("/proc/self/task"):
            with suppress(OSError):  # it has ended meanwhile
                os.sched_setaffinity(int(thread), best)
        return all(self._fast(took[core]) for core in best)

    def _fast(self, took: float) -> bool:
        self._least = min(self._least, took)
        return took < SLOWER * self._least


def parts(many: int) -> list[tuple[int, ...]]:
    """The cores that this process may take, dealt out to so many others, `MOST` to each; nobody has any where a system cannot
    bind, or where there are not more for each than it stays on."""
    if not hasattr(os, "sched_getaffinity"):
        return [()] * many
    mine = sorted(os.sched_getaffinity(0))
    each = min(len(mine) // many, MOST)
    return [tuple(mine[number * each : (number + 1) * each]) if each > CORES else () for number in range(many)]
