"""When an agent says what. Ends, and questions that somebody waits for, are said at once. Of progress and metrics the last word
of each second is enough: jobs make a step in a millisecond, and the control plane hears of a thousand nodes. Pure; whoever
asks brings the time."""

from __future__ import annotations

import math
from collections.abc import Iterable

from fairlead.runtime.orders import Ended, Metric, Progress, Told, Wants

PAUSE_S = 1.0


class Telling:
    def __init__(self) -> None:
        self._held: dict[tuple[object, ...], Progress | Metric] = {}
        self._last_s = -math.inf

    def of(self, told: Iterable[Told], now: float, *, listened_to: bool = True) -> list[Told]:
        """What to say now, of what was held back and what is new. Nothing that is said of a job comes after its end. While
        nobody listens, the last words are held back, but for those of who ends."""
        at_once: list[Told] = []
        for word in told:
            if isinstance(word, Ended):
                key = (word.job, word.generation)
                at_once += [self._held.pop(name) for name in list(self._held) if name[:2] == key]
                at_once.append(word)
            elif isinstance(word, Wants):
                at_once.append(word)
            else:
                name = word.name if isinstance(word, Metric) else None
                self._held[word.job, word.generation, name] = word
        if not listened_to or now < self._last_s + PAUSE_S or not self._held:
            return at_once
        self._last_s = now
        held, self._held = list(self._held.values()), {}
        return [*held, *at_once]
