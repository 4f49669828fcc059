"""A look ahead from a running cluster's state, in a budget of seconds, with what of it is guessed; and how it is spelled, as it
may be made in one process and read in another."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fairlead.backends.costs import Costs
from fairlead.core.errors import FairleadError
from fairlead.engine.state import State
from fairlead.study.company import with_company
from fairlead.study.synthesizer.live import Guessed, guessed, open_ended, rates_of, with_ends
from fairlead.study.when import Expected, Turn, expected
from fairlead.workloads.profiles import ThroughputTable


@dataclass(frozen=True)
class Asked:
    """How to look: so often with others who come as they did in the last `window_s`, all in `budget_s`; `of` everybody, or of
    one."""

    looks: int = 5
    window_s: float = 6 * 3600.0
    budget_s: float = 60.0
    costs: Costs = field(default_factory=Costs)
    of: int | None = None


@dataclass(frozen=True)
class Ahead:
    """What was seen, with how many whole looks, the one without others among them: none where that was broken off. `endless`
    did not say how many steps they will do; `missed` more came or stopped meanwhile, and nothing is known of them."""

    jobs: tuple[Expected, ...]
    made: int
    asked: Asked
    lately_s: float
    guesses: Guessed = field(default_factory=Guessed)
    endless: tuple[int, ...] = ()
    missed: int = 0


Shown = Callable[[int, float], None]
"""Is told how many looks are done, and how far ahead the one that is being made has come."""


def look_ahead(
    state: State, rates: Mapping[str, Any] | ThroughputTable, asked: Asked, shown: Shown = lambda made, ahead_s: None
) -> Ahead:
    """By the rates that the cluster has measured, or by a table. The state is used up."""
    if isinstance(rates, ThroughputTable):
        table, guesses = rates.for_types(state.cluster.type_names), Guessed()
    else:
        table, guesses = rates_of(rates, state), guessed(rates, state)
    table = with_company(table, state)
    endless, now, left = open_ended(state), state.time, _TimeLeft(asked.budget_s, shown)
    try:
        found = expected(
            with_ends(state, table),
            table,
            looks=asked.looks,
            window_s=asked.window_s,
            costs=asked.costs,
            of=asked.of,
            another=left.another,
            go_on=left.go_on,
        )
    except Exception as problem:  # whatever a part does wrong, or jobs that would never end
        raise FairleadError(f"nobody can look ahead from here: {type(problem).__name__}: {problem}") from problem
    return Ahead(found, left.made, asked, min(asked.window_s, now), guesses, tuple(endless))


def unseen(state: State, asked: Asked) -> Ahead:
    """Everybody who is there, as they are: what can be told before anything was seen."""
    running = {*state.running.tolist()}
    jobs = tuple(
        Expected(
            number,
            state.job_of[number].name,
            number in running,
            Turn(0.0 if number in running else math.inf, math.inf),
            (),
            0.0,
        )
        for number in sorted((*state.live.tolist(), *state.queue.tolist()))
    )
    return Ahead(jobs, 0, asked, min(asked.window_s, state.time))


class _TimeLeft:
    """What looks may take in all."""

    def __init__(self, budget_s: float, shown: Shown) -> None:
        self.made = 0  # whole ones
        self._budget_s, self._shown, self._began = budget_s, shown, time.monotonic()

    def another(self) -> bool:
        """Whether one more like those before would be done in time."""
        self.made += 1
        self._shown(self.made, 0.0)
        return (time.monotonic() - self._began) * (self.made + 1) / self.made <= self._budget_s

    def go_on(self, ahead_s: float) -> bool:
        self._shown(self.made, ahead_s)
        return time.monotonic() - self._began < self._budget_s


def spelled(ahead: Ahead) -> dict[str, Any]:
    """As JSON can have it; infinity is null."""
    return {
        "jobs": [
            {
                "number": one.number,
                "name": one.name,
                "runs": one.runs,
                "by_itself": _seconds(one.by_itself),
                "with_others": [_seconds(turn) for turn in one.with_others],
                "within_s": one.within_s,
            }
            for one in ahead.jobs
        ],
        "made": ahead.made,
        "looks": ahead.asked.looks,
        "budget_s": ahead.asked.budget_s,
        "lately_s": ahead.lately_s,
        "window_s": ahead.asked.window_s,
        "in_proportion": list(ahead.guesses.in_proportion.items()),
        "unmeasured": list(ahead.guesses.unmeasured.items()),
        "endless": list(ahead.endless),
        "missed": ahead.missed,
    }


def read(told: Mapping[str, Any]) -> Ahead:
    return Ahead(
        tuple(
            Expected(
                one["number"],
                one["name"],
                one["runs"],
                _turn(one["by_itself"]),
                tuple(map(_turn, one["with_others"])),
                one["within_s"],
            )
            for one in told["jobs"]
        ),
        told["made"],
        Asked(told["looks"], told["window_s"], told["budget_s"]),
        told["lately_s"],
        Guessed(dict(told["in_proportion"]), dict(told["unmeasured"])),
        tuple(told["endless"]),
        told.get("missed", 0),  # which older control planes do not tell
    )


def _seconds(turn: Turn) -> list[float | None]:
    return [None if each == math.inf else each for each in (turn.starts_s, turn.ends_s)]


def _turn(seconds: list[float | None]) -> Turn:
    starts, ends = (math.inf if each is None else each for each in seconds)
    return Turn(starts, ends)
