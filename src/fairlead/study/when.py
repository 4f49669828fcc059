"""When who waits will run: the state of a moment, simulated on under the scheduler that decides. Once as if nobody else came,
and a few times with jobs that come as they did lately, each time others of them: how far those differ is how sure it is."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from fairlead.backends.costs import Costs
from fairlead.backends.simulated import Simulated
from fairlead.config.wall_time import scheduler_of
from fairlead.core.job import Phase
from fairlead.core.plan import RoundPlan
from fairlead.engine.loop import Loop, Stalled
from fairlead.engine.state import State
from fairlead.registry import Registry
from fairlead.study.synthesizer.forecast import Forecast, lately
from fairlead.study.synthesizer.outlook import Moment
from fairlead.workloads.profiles import ThroughputTable

WITHIN_S = 30 * 86400.0
"""So far is looked ahead; who has not begun by then may never."""


@dataclass(frozen=True)
class Turn:
    """What was seen of a job in one look: seconds from now until it runs, 0 where it does, and until it has ended. Infinity:
    not within the look."""

    starts_s: float
    ends_s: float

    @property
    def never(self) -> bool:
        """Whether it ends without having run: refused, or cancelled as one that it comes after was."""
        return self.starts_s == math.inf > self.ends_s


@dataclass(frozen=True)
class Look:
    """One look ahead: the turns of those who were asked for, and how far it went. `whole`, unless it was broken off."""

    turns: list[Turn]
    ahead_s: float
    whole: bool = True


@dataclass(frozen=True)
class Expected:
    """A job that has not ended: its turn if nobody else comes, and its turns in looks in which others do. Infinity there is
    beyond `within_s`: less than all where the look without others was broken off."""

    number: int
    name: str
    runs: bool
    by_itself: Turn
    with_others: tuple[Turn, ...]
    within_s: float = WITHIN_S

    def range(self, of: Callable[[Turn], float]) -> tuple[float, float, float]:
        """The least, the middle and the most of all looks with others; of the one without where there is no such look."""
        seen = sorted(map(of, self.with_others)) or [of(self.by_itself)]
        return seen[0], statistics.median_high(seen), seen[-1]


def expected(
    state: State,
    table: ThroughputTable,
    *,
    looks: int = 5,
    window_s: float = 6 * 3600.0,
    costs: Costs | None = None,
    within_s: float = WITHIN_S,
    of: int | None = None,
    another: Callable[[], bool] = lambda: True,
    go_on: Callable[[float], bool] = lambda ahead_s: True,
) -> tuple[Expected, ...]:
    """Of everybody who is there, in order of their numbers, or `of` one alone: then a look ends when that one has. After each
    look it is asked whether there should be `another`, and all the while whether to `go_on`, so many seconds ahead. Of a look
    that is broken off, what was seen until then counts where it is the first, and nothing where others come in it. Every job
    must end at a rate that `table` knows."""
    view = state.snapshot().detached()
    alone = Moment(view, scheduler_of(state.scheduler), state.memo, costs=costs or Costs())
    past = list(lately(state, table))
    comings = (Forecast("recent", window_s, seed).coming(view.time, past) for seed in range(looks))
    numbers = sorted([*view.jobs.number.tolist(), *view.queued.number.tolist()])
    if of is not None:
        numbers = [number for number in numbers if number == of]
    if not numbers:
        return ()
    seen: list[Look] = []
    for arrivals in chain([()], comings):
        made = look(replace(alone, arrivals=arrivals), table, numbers, within_s, go_on=go_on)
        if made.whole or not seen:
            seen.append(made)
        if not made.whole or not another():
            break
    first, *others = seen
    running = {*view.jobs.number[view.jobs.running].tolist()}
    return tuple(
        Expected(
            number,
            view.job_of[number].name,
            number in running,
            first.turns[place],
            tuple(one.turns[place] for one in others),
            within_s if first.whole else first.ahead_s,
        )
        for place, number in enumerate(numbers)
    )


def look(
    moment: Moment,
    table: ThroughputTable,
    numbers: Sequence[int],
    within_s: float = WITHIN_S,
    registry: Registry | None = None,
    go_on: Callable[[float], bool] = lambda ahead_s: True,
) -> Look:
    """Of jobs that are there, by number, in one look from the moment on. It ends when they have, when nobody gets any further,
    or when it should not `go_on`."""
    view = moment.view
    state = State.from_snapshot(view, moment.memo)
    backend = Simulated.from_snapshot(view, table, moment.arrivals, costs=moment.costs)
    began = dict.fromkeys(view.jobs.number[view.jobs.running].tolist(), view.time)

    def note(plan: RoundPlan) -> None:
        for number in plan.launches.jobs.tolist():
            began.setdefault(number, plan.time)

    asked = np.array(numbers, dtype=np.int64)

    whole = True

    def over(now: State) -> bool:
        nonlocal whole
        if (now.store.arrays["phase"][asked] > int(Phase.RUNNING)).all():
            return True
        whole = go_on(backend.now - view.time)
        return not whole

    loop = Loop(state, backend, moment.running.build(table, registry or Registry.installed()), on_decision=note)
    with suppress(Stalled):
        loop.run(until=view.time + within_s, stop=over)
    ended = state.store.arrays["ended_s"][asked] - view.time
    turns = [
        Turn(began.get(number, math.inf) - view.time, math.inf if math.isnan(end) else end)
        for number, end in zip(numbers, ended.tolist())
    ]
    return Look(turns, backend.now - view.time, whole)
