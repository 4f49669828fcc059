"""The batch sizes that a job's owner has planned for it (mode `expert`), each with the share of the declared steps that is to
be trained at it. It is what was declared, and says nothing about how the job really goes: where the two part is seen from what
the job announces."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import TypeAlias

Schedule: TypeAlias = tuple[tuple[int, float], ...]
"""(batch size, share of the declared steps), in their order."""

EXPERT = "expert"

LATE = 0.05
"""Of the declared steps: a change that comes so much sooner or later is still as declared."""

_SUM = 1e-6  # shares that add up to 1 but for so much do


def wrong_schedule(schedule: Schedule, mode: str) -> str:
    """What would be right; empty where nothing is wrong."""
    if mode != EXPERT:
        return f"nothing, for a job of mode {mode}: a schedule is for mode {EXPERT}"
    if not all(size >= 1 and 0 < share <= 1 for size, share in schedule):
        return "batch sizes of at least 1, and shares above 0"
    if any(one == next_ for (one, _), (next_, _) in pairwise(schedule)):
        return "batch sizes that differ from the one before"
    total = math.fsum(share for _, share in schedule)
    return "" if abs(total - 1.0) <= _SUM else f"shares that add up to 1; these make {total:g}"


def foreseen(schedule: Schedule, had: Sequence[int]) -> list[tuple[int, float]]:
    """All regimes of a job that has had some batch sizes, the present one last: those, and what the schedule has behind them,
    each with its declared share. Who skips some is where it has come to; who is at a size that is not ahead in its schedule has
    left it, and goes on as it is."""
    at, kept, course = -1, True, list[tuple[int, float]]()
    for size in had:
        place = next((place for place in range(at + 1, len(schedule)) if schedule[place][0] == size), None)
        kept = place is not None
        at = at if place is None else place
        course.append(schedule[at] if kept else (size, 1.0 / len(schedule)))
    return [*course, *(schedule[at + 1 :] if kept else ())]


def departure(schedule: Schedule, steps: float, had: Sequence[tuple[int, float]], done: float, *, ended: bool = False) -> str:
    """How a job that has `done` some of its declared `steps` has departed from its schedule, if it has; `had` are the batch
    sizes that it announced, each with the steps from which on it ran at it. Of one that has `ended` nothing is said of how
    far it was: whoever ends well counts as done, after however few steps."""
    begins = [0.0, *accumulate(share for _, share in schedule)]
    for place, (size, begun) in enumerate(had):
        if place >= len(schedule):
            return f"its batch size became {size} behind the last of its schedule"
        if size != schedule[place][0]:
            return f"its batch size became {size} where its schedule has {schedule[place][0]}"
        if place and abs(begun / steps - begins[place]) > LATE:
            return (
                f"its batch size became {size} after {begun / steps:.0%} of its steps, and {begins[place]:.0%} by its schedule"
            )
    due = max(len(had), 1)
    if due < len(schedule) and done / steps - begins[due] > LATE:
        if ended:
            return f"its batch size never became {schedule[due][0]}, as its schedule has it"
        return f"its batch size is not yet {schedule[due][0]} after {done / steps:.0%} of its steps, as its schedule has it"
    return ""
