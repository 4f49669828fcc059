"""Classes that have several answers equally cheap, and how far each leans to which, such that types that have a price are full.
There are a few ties and a few types: plain numbers, which arrays would only slow down."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

TIED = 1e-12
"""Answers that differ by no more, as a part of the whole, are equally good."""


@dataclass(frozen=True)
class Tie:
    """A class, another answer that is as good to it as its first, and what it would use more of each type."""

    group: int
    answer: int
    step: list[float]


def distinct(ties: Iterable[Tie], most: int) -> list[Tie]:
    """Those that are not the same to their class as one before. No further than to one more than `most`."""
    some = list[Tie]()
    for tie in ties:
        if not any(tie.group == one.group and _alike(tie.step, one.step) for one in some):
            some.append(tie)
            if len(some) > most:
                break
    return some


def _alike(one: Sequence[float], two: Sequence[float]) -> bool:
    return all(abs(a - b) <= TIED for a, b in zip(one, two))


def filling(columns: Sequence[Sequence[float]], free: Sequence[float], full: Sequence[int]) -> list[float] | None:
    """How much of each column fills these rows; None where that has not just one answer."""
    if len(columns) != len(full):
        return None
    rows = [[*(column[j] for column in columns), free[j]] for j in full]
    for at in range(len(rows)):
        best = max(range(at, len(rows)), key=lambda row: abs(rows[row][at]))
        rows[at], rows[best] = rows[best], rows[at]
        head = rows[at]
        if head[at] == 0.0:
            return None
        for row in rows[at + 1 :]:
            factor = row[at] / head[at]
            row[at:] = [mine - factor * other for mine, other in zip(row[at:], head[at:])]
    part = [0.0] * len(rows)
    for at in reversed(range(len(rows))):
        rest = sum(rows[at][other] * part[other] for other in range(at + 1, len(rows)))
        part[at] = (rows[at][-1] - rest) / rows[at][at]
    return part
