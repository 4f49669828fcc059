"""Jobs that wait for others. A job may begin when all that it was submitted to come *after* have finished; when one of them
ends in any other way, it never will."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from fairlead.core.job import ENDED, Phase


@dataclass(frozen=True, slots=True)
class Awaited:
    """Whom one job waits for, by number."""

    unfinished: tuple[int, ...] = ()  # not ended yet
    lost: int = -1  # the first that ended without finishing; -1: none has
    how: Phase = Phase.FINISHED  # it ended


Waits: TypeAlias = Mapping[int, Awaited]
"""By number, jobs at the door that do not enter yet or never will."""

NO_WAITS: Waits = {}


def awaited(after: Iterable[int], phase_of: Callable[[int], Phase]) -> Awaited | None:
    """None where all have finished."""
    phases = [(number, phase_of(number)) for number in after]
    unfinished = tuple(number for number, phase in phases if phase not in ENDED)
    bad = [(number, phase) for number, phase in phases if phase in ENDED and phase is not Phase.FINISHED]
    if bad:
        return Awaited(unfinished, *bad[0])
    return Awaited(unfinished) if unfinished else None
