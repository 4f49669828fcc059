"""The lower hulls of classes: the cheapest mix of types for a throughput, for any prices (see hull_model.py)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from fairlead.core.cluster import Bools, Floats, Ints


@dataclass(frozen=True)
class Hulls:
    """Hulls by class."""

    grid: Floats  # classes × points
    inverse: Floats  # 1 / the step up to each point
    answers: Floats  # classes × answers × points × types of time
    plain: Floats  # answers that do not lift: classes × (answers / 2 · points) × types
    by_point: Floats  # all: classes × points × (answers · types)
    valid: Bools  # classes × answers
    barred: Floats  # the same as a price: infinite where there is no such answer


def hulls_of(rates: Floats) -> Hulls:
    """The hulls of classes with these rates, classes × types."""
    return _hulls(rates.tobytes(), rates.shape[1])


@lru_cache(maxsize=2)  # of one decision to the next
def _hulls(rates: bytes, types: int) -> Hulls:
    by_type: Floats = np.frombuffer(rates).reshape(-1, types)
    order = by_type.argsort(axis=1, kind="stable")
    ascending = np.take_along_axis(by_type, order, axis=1)
    grid = np.concatenate((np.zeros((len(by_type), 1)), ascending), axis=1)
    steps = np.diff(grid, axis=1, prepend=0.0)
    inverse = np.divide(1.0, steps, out=np.zeros_like(steps), where=steps > 0)
    answers, valid = _answers(ascending, order)
    plain = answers[:, : answers.shape[1] // 2].reshape(len(by_type), -1, by_type.shape[1])
    by_point = answers.transpose(0, 2, 1, 3).reshape(*grid.shape, -1)
    return Hulls(grid, inverse, answers, plain, by_point, valid, np.where(valid, 0.0, np.inf))


@lru_cache(maxsize=16)
def _subsets(types: int) -> tuple[Bools, Ints, Ints]:
    """All subsets of 1..types; for each and each grid point the members at or below it (0: none) and at or above it."""
    codes = np.arange(1, 1 << types)
    member = ((codes[:, None] >> np.arange(types)) & 1).astype(np.bool_)
    place = np.arange(1, types + 1)
    points = np.arange(types + 1)
    below = np.where(member[:, None, :] & (place <= points[:, None])[None], place, 0).max(axis=2)
    above = np.where(member[:, None, :] & (place >= points[:, None])[None], place, types + 1).min(axis=2)
    return member, below, np.where(above > types, below, above)


def _answers(rates: Floats, order: Ints) -> tuple[Floats, Bools]:
    """Classes × responses × grid points × types of time, and which responses a class has. The first half interpolates between
    the members of each subset; the second half raises lower demands to the subset's first member."""
    types = rates.shape[1]
    member, below, above = _subsets(types)
    grid = np.concatenate((np.zeros((len(rates), 1)), rates), axis=1)
    low, high, here = grid[:, below], grid[:, above], grid[:, None, :]
    part = np.divide(here - low, high - low, out=np.ones(low.shape), where=high > low)
    unit = np.zeros((len(rates), types + 1, types))  # each class's points → their types; the origin has none
    unit[np.arange(len(rates))[:, None], np.arange(1, types + 1), order] = 1.0
    plain = part[..., None] * unit[:, above] + (1.0 - part)[..., None] * unit[:, below]
    plain[:, :, 0, :] = 0.0
    first = member.argmax(axis=1) + 1
    lifted = plain[:, np.arange(len(member))[:, None], np.maximum(np.arange(types + 1), first[:, None])]

    # No hull has a member as fast as the next one, and every hull ends in a fastest type.
    last = types - member[:, ::-1].argmax(axis=1)
    follows = np.where(member, np.arange(types), -1)
    rising = np.ones((len(rates), len(member)), dtype=np.bool_)
    for position in range(types):
        before = np.where(np.arange(types) < position, follows, -1).max(axis=1)  # the member before this position
        checked = member[:, position] & (before >= 0)
        rising[:, checked] &= rates[:, position, None] > rates[:, before[checked]]
    usable = rates[:, first - 1] > 0
    valid = rising & usable & (rates[:, last - 1] == rates[:, -1:])
    return np.concatenate((plain, lifted), axis=1), np.concatenate((valid, valid), axis=1)


TIED = 1e-12
"""Answers that differ by no more, as a part of the whole, are equally good."""


@dataclass(frozen=True)
class Tie:
    """A class, a response as cheap as its first one, and how much more of each type that response uses."""

    group: int
    answer: int
    step: list[float]


def distinct(ties: Iterable[Tie], most: int) -> list[Tie]:
    """The ties that differ from all earlier ones of their class; at most one more than `most`."""
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
    """The amount of each column that fills these rows; None where it is not unique."""
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
