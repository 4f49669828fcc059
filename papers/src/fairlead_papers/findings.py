"""Findings of a reproduction: the claims of a paper with its figures and ours, and pictures. It draws and prints nothing."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from fairlead.experiments.cases import NO_DATA, NOT_INSTALLED, CaseFailed
from fairlead.experiments.metrics import interval
from fairlead.reporting.pictures import Picture

NEAR = 0.1
"""A figure within so much of the paper's is near it."""

ALIKE = 0.01
"""Where an order is claimed, less of a difference is none."""


class Wants(enum.Enum):
    """How a figure of ours is held against the paper's."""

    GAIN = "gain"  # a factor: at least the paper's
    NEAR = "near"  # a value: the paper's, more or less
    MOST = "most"  # a bound: at most the paper's
    LEAST = "least"  # a bound: at least the paper's
    MORE = "more"  # an order: every seed tells the same side of the paper's, or hardly any difference
    AHEAD = "ahead"  # an order in the mean, of many seeds: its confidence interval lies on one side of the paper's
    NOTHING = "nothing"  # for information


@dataclass(frozen=True)
class Row:
    """A claim and what became of it. `ours` is None where it could not be had; `note` says why, or how it was taken."""

    what: str
    paper: float | None
    ours: float | None
    unit: str = "x"
    wants: Wants = Wants.GAIN
    note: str = ""
    scale: str = ""
    by_seed: tuple[float, ...] = ()  # where there are several

    @property
    def within(self) -> float | None:
        """Half the width of the 95 % confidence interval of the mean over seeds."""
        return interval(self.by_seed)[1] if len(self.by_seed) > 1 else None

    @property
    def ratio(self) -> float | None:
        return None if self.ours is None or not self.paper else self.ours / self.paper

    @property
    def verdict(self) -> str:
        if self.ours is None:
            return next((wanting for wanting in (NO_DATA, NOT_INSTALLED) if self.note.startswith(wanting)), "failed")
        if self.wants is Wants.NOTHING or self.paper is None:
            return ""
        if self.wants is Wants.GAIN:
            if self.ours > self.paper * (1 + NEAR):
                return "exceeded"  # the gain is there, and its size is not the paper's
            if self.ours >= self.paper * (1 - NEAR):
                return "met"
            return "in part" if self.ours > 1 else "not met"
        if self.wants is Wants.MOST:
            return "met" if self.ours <= self.paper else "not met"
        if self.wants is Wants.LEAST:
            return "met" if self.ours >= self.paper else "not met"
        if self.wants is Wants.MORE:
            return _side(self.by_seed or (self.ours,), self.paper)
        if self.wants is Wants.AHEAD:
            within = self.within or 0.0
            return _side((self.ours - within, self.ours + within), self.paper, alike=0.0)
        return "met" if abs(self.ours - self.paper) <= NEAR * abs(self.paper) else "not met"


def _side(values: Sequence[float], of: float, alike: float = ALIKE) -> str:
    above, below = any(value > of * (1 + alike) for value in values), any(value < of * (1 - alike) for value in values)
    if above and below:
        return "open"
    return "met" if above else "not met" if below else "alike"


def row(
    what: str,
    paper: float | None,
    ours: Callable[[], float | Sequence[float]],
    unit: str = "x",
    wants: Wants = Wants.GAIN,
    note: str = "",
    scale: str = "",
) -> Row:
    """A row whose figure, or figures by seed, may be out of reach because a case failed: then it tells the error."""
    try:
        found = ours()
        values = tuple(found) if isinstance(found, Sequence) else (found,)
        return Row(what, paper, fmean(values), unit, wants, note, scale, values if len(values) > 1 else ())
    except CaseFailed as problem:
        return Row(what, paper, None, unit, wants, str(problem), scale)


@dataclass(frozen=True)
class Findings:
    rows: Sequence[Row]
    pictures: Sequence[Picture] = field(default_factory=tuple)
    notes: Sequence[str] = field(default_factory=tuple)
