"""Nodes that could not begin what they were given: a disk that is full, a folder that cannot be made. After a few times in a
row such a node rests, longer each time, instead of being tried in every round. It knows no jobs; whoever asks brings the
time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from fairlead.core.cluster import BackoffPeriod

TRIES = 3
"""Launches in a row that a node could not begin before it rests."""

FIRST_S, LONGEST_S = 30.0, 900.0
"""It rests so long, twice as long after each try that came to nothing, and no longer than that."""


@dataclass
class LaunchFailures:
    """What a node could not do, how often in a row, and until when it rests (in the past: it does not)."""

    why: str
    times: int = 0
    rests: int = 0
    until_s: float = -math.inf


class NodeBackoff:
    """Only nodes with an inability are remembered, until they have begun something."""

    def __init__(self) -> None:
        self._unable: dict[int, LaunchFailures] = {}

    def failed(self, node: int, why: str) -> None:
        one = self._unable.setdefault(node, LaunchFailures(why))
        one.why, one.times = why, one.times + 1

    def began(self, node: int) -> None:
        self._unable.pop(node, None)

    def tired(self, node: int) -> bool:
        """Whether it should rest, and does not yet."""
        one = self._unable.get(node)
        return one is not None and one.times >= TRIES and one.until_s == -math.inf

    def rest(self, node: int, now: float) -> LaunchFailures:
        """From now on."""
        one = self._unable[node]
        one.until_s = now + min(FIRST_S * 2**one.rests, LONGEST_S)
        one.rests += 1
        return one

    def restore(self, backoffs: Mapping[int, BackoffPeriod]) -> None:
        """Continue the back-offs of a journal after a restart."""
        for node, backoff in backoffs.items():
            self._unable[node] = LaunchFailures(backoff.why, TRIES, 1, backoff.until_s)

    def rise(self, node: int) -> None:
        """Its rest is over; what it could not do is not forgotten, and the next try decides."""
        if (one := self._unable.get(node)) is not None and one.until_s > -math.inf:
            one.until_s, one.times = -math.inf, TRIES - 1

    @property
    def soonest(self) -> float:
        return min((one.until_s for one in self._unable.values() if one.until_s > -math.inf), default=math.inf)

    def over(self, now: float) -> list[int]:
        return sorted(node for node, one in self._unable.items() if -math.inf < one.until_s <= now)

    def of(self, node: int) -> LaunchFailures | None:
        return self._unable.get(node)
