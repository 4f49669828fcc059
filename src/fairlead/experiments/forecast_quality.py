"""How good past forecasts were: those that the journal has, against what happened. It makes no forecasts."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fairlead.core import events as ev
from fairlead.engine.state import State

COVERAGE = 0.8
"""The share of outcomes that an interval should contain."""

HORIZONS = {"< 10 min": 600.0, "< 1 h": 3600.0, "< 6 h": 21600.0, "< 1 d": 86400.0, "more": math.inf}
"""By the time from a forecast to the median that it gives."""

MIN_OUTCOMES = 20
"""Fewer outcomes do not change the width of intervals."""


def forecast_interval(values: Iterable[float], factor: float = 1.0) -> tuple[float, float, float]:
    """The 10th percentile, the median and the 90th percentile of the scenarios, the distances multiplied by `factor`.

    The least and the most of n scenarios contain a further one with probability (n − 1) / (n + 1). Where this is below 80 %,
    the interval is widened in proportion."""
    found = sorted(values)
    count, middle = len(found), statistics.median_high(found)
    factor *= max(1.0, COVERAGE * (count + 1) / (count - 1)) if count > 1 else 1.0

    def at(share: float) -> float:
        place = min(max(share * (count + 1) - 1.0, 0.0), count - 1.0)
        below, above = found[math.floor(place)], found[math.ceil(place)]
        value = below if below == above else below + (place % 1.0) * (above - below)
        return value if math.inf in (value, middle) else max(0.0, middle + factor * (value - middle))

    return at((1 - COVERAGE) / 2), middle, at((1 + COVERAGE) / 2)


class Widening(NamedTuple):
    """Factors of the distances between the median and the bounds of an interval, of starts and of ends."""

    starts: float = 1.0
    ends: float = 1.0

    @classmethod
    def learned(cls, state: State) -> Widening:
        """Such that the intervals of past forecasts would have contained 80 % of the outcomes, as far as the state has them
        (split conformal prediction). The fewer there are, the nearer to 1.

        A forecast counts once its interval has passed, whether or not it came true: of those that still run, only the early
        outcomes are known, and intervals would become too short."""
        scores: tuple[list[float], list[float]] = ([], [])
        started, ended = state.columns["first_started_s"], state.columns["ended_s"]
        for made_s, job, *values in state.forecasts:
            number = int(job)
            for place, happened in enumerate((float(started[number]), float(ended[number]))):
                low, median, high = values[3 * place : 3 * place + 3]
                unknown = math.isnan(happened)
                if high > state.time or happened <= made_s or (unknown and not math.isnan(ended[number])):
                    continue
                outcome = state.time if unknown else happened
                scores[place].append(values[6 + place] * _score(outcome, low, median, high))
        return cls(*map(_factor, scores))


NOT_WIDENED = Widening()


def _score(outcome: float, low: float, median: float, high: float) -> float:
    """How far an outcome is from the median, where 1 is the bound of the interval on its side."""
    if median == math.inf:
        return 1.0
    width, distance = (high - median, outcome - median) if outcome > median else (median - low, median - outcome)
    return distance / max(width, 1.0)


def _factor(scores: Sequence[float]) -> float:
    if len(scores) < MIN_OUTCOMES:
        return 1.0
    place = min(math.ceil(COVERAGE * (len(scores) + 1)), len(scores)) - 1
    wanted = min(max(sorted(scores)[place], 0.5), 4.0)
    return float(wanted ** (len(scores) / (len(scores) + 2 * MIN_OUTCOMES)))


@dataclass(frozen=True)
class ForecastOutcome:
    """A forecast that `made_s` recorded of a start or an end, and what happened: `happened_s` is None if it has not, and then
    the interval has passed."""

    made_s: float
    low_s: float
    median_s: float
    high_s: float
    happened_s: float | None

    @property
    def covered(self) -> bool:
        """Whether it happened within the interval."""
        return self.happened_s is not None and self.low_s <= self.happened_s <= self.high_s

    @property
    def horizon(self) -> str:
        """Which of the horizons it has."""
        return next(name for name, most_s in HORIZONS.items() if self.median_s - self.made_s < most_s or most_s == math.inf)


@dataclass(frozen=True)
class ForecastQuality:
    """The forecasts of a journal whose outcome is known, of starts and of ends; `open` are those that may still come true."""

    starts: tuple[ForecastOutcome, ...]
    ends: tuple[ForecastOutcome, ...]
    open: int

    def rows(self) -> Iterator[dict[str, Any]]:
        """Coverage of the 80 % interval and median absolute error in seconds, by horizon and of all."""
        for what, found in (("start", self.starts), ("end", self.ends)):
            for horizon in (*HORIZONS, "all"):
                if of := [one for one in found if horizon in ("all", one.horizon)]:
                    errors = [abs(one.happened_s - one.median_s) for one in of if one.happened_s is not None]
                    yield {
                        "of": what,
                        "horizon": horizon,
                        "forecasts": len(of),
                        "coverage": statistics.mean(one.covered for one in of),
                        "median_error_s": statistics.median(errors) if errors else None,
                    }


def forecast_quality(events: Iterable[ev.Event]) -> ForecastQuality:
    """Compare the forecasts of a journal with its events. A job that was cancelled or refused counts no more; a start counts
    if the job had not run before."""
    made: list[ev.ForecastsRecorded] = []
    started: dict[int, float] = {}
    ended: dict[int, float] = {}
    gone: set[int] = set()
    now = 0.0
    for event in events:
        now = event.time
        match event:
            case ev.ForecastsRecorded():
                made.append(event)
            case ev.RoundPlanned():
                for number in event.plan.launches.jobs.tolist():
                    started.setdefault(number, now)
                ended |= dict.fromkeys(event.plan.ended.tolist(), now)
                gone.update(number for number, _ in event.plan.refused)
            case ev.JobsFinished() | ev.JobsFailed():
                ended |= zip(event.jobs.tolist(), event.at.tolist())
            case ev.JobCancelled():
                gone.add(event.number)
    starts: list[ForecastOutcome] = []
    ends: list[ForecastOutcome] = []
    still_open = 0
    for event in made:
        columns = (getattr(event, name).tolist() for name in ev.FORECAST_COLUMNS)
        for number, *values in zip(event.jobs.tolist(), *columns):
            counted: list[tuple[Mapping[int, float], Callable[[ForecastOutcome], None]]] = [(ended, ends.append)]
            if started.get(number, math.inf) > event.time:
                counted.append((started, starts.append))
            for known, add in counted:
                low, median, high = values[3:] if known is ended else values[:3]
                one = ForecastOutcome(event.time, low, median, high, known.get(number))
                if one.happened_s is not None or (number not in gone and now > one.high_s):
                    add(one)
                else:
                    still_open += number not in gone
    return ForecastQuality(tuple(starts), tuple(ends), still_open)
