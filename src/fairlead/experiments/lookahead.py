"""A look ahead from a running cluster's state, in a budget of seconds, with what of it is guessed; and how it is spelled, as it
may be made in one process and read in another."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from tempfile import TemporaryFile
from typing import IO, Any

import numpy as np
import orjson

from fairlead.config.registry import Registry
from fairlead.config.schedulers import scheduler_of
from fairlead.core.errors import FairleadError
from fairlead.core.job import Phase
from fairlead.core.plan import RoundPlan
from fairlead.engine.loop import Loop, Stalled
from fairlead.engine.state import State
from fairlead.engine.state_codec import load
from fairlead.experiments.forward_rates import with_company
from fairlead.experiments.synthesizer.arrivals import Forecast, lately
from fairlead.experiments.synthesizer.live_advice import Guessed, guessed, open_ended, rates_of, with_ends
from fairlead.experiments.synthesizer.outlook import Moment
from fairlead.simulator.backend import SimulatedBackend
from fairlead.simulator.costs import Costs
from fairlead.workloads.throughput_tables import ThroughputTable

# When who waits will run: the state of a moment, simulated on under the scheduler that decides. Once as if nobody else came,
# and a few times with jobs that come as they did lately, each time others of them: how far those differ is how sure it is.

WITHIN_S = 30 * 86400.0
"""So far is looked ahead; who has not begun by then may never."""


@dataclass(frozen=True)
class JobTimes:
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

    turns: list[JobTimes]
    ahead_s: float
    whole: bool = True


@dataclass(frozen=True)
class JobForecast:
    """A job that has not ended: its turn if nobody else comes, and its turns in looks in which others do. Infinity there is
    beyond `within_s`: less than all where the look without others was broken off."""

    number: int
    name: str
    runs: bool
    by_itself: JobTimes
    with_others: tuple[JobTimes, ...]
    within_s: float = WITHIN_S

    def range(self, of: Callable[[JobTimes], float]) -> tuple[float, float, float]:
        """The least, the middle and the most of all looks with others; of the one without where there is no such look."""
        seen = sorted(map(of, self.with_others)) or [of(self.by_itself)]
        return seen[0], statistics.median_high(seen), seen[-1]


def forecast_jobs(
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
) -> tuple[JobForecast, ...]:
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
        JobForecast(
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
    backend = SimulatedBackend.from_snapshot(view, table, moment.arrivals, costs=moment.costs)
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
        JobTimes(began.get(number, math.inf) - view.time, math.inf if math.isnan(end) else end)
        for number, end in zip(numbers, ended.tolist())
    ]
    return Look(turns, backend.now - view.time, whole)


@dataclass(frozen=True)
class LookaheadOptions:
    """How to look: so often with others who come as they did in the last `window_s`, all in `budget_s`; `of` everybody, or of
    one."""

    looks: int = 5
    window_s: float = 6 * 3600.0
    budget_s: float = 60.0
    costs: Costs = field(default_factory=Costs)
    of: int | None = None


@dataclass(frozen=True)
class Lookahead:
    """What was seen, with how many whole looks, the one without others among them: none where that was broken off. `endless`
    did not say how many steps they will do; `missed` more came or stopped meanwhile, and nothing is known of them."""

    jobs: tuple[JobForecast, ...]
    made: int
    asked: LookaheadOptions
    lately_s: float
    guesses: Guessed = field(default_factory=Guessed)
    endless: tuple[int, ...] = ()
    missed: int = 0


Shown = Callable[[int, float], None]
"""Is told how many looks are done, and how far ahead the one that is being made has come."""


def forecast(
    state: State, rates: Mapping[str, Any] | ThroughputTable, asked: LookaheadOptions, shown: Shown = lambda made, ahead_s: None
) -> Lookahead:
    """By the rates that the cluster has measured, or by a table. The state is used up."""
    if isinstance(rates, ThroughputTable):
        table, guesses = rates.for_types(state.cluster.type_names), Guessed()
    else:
        table, guesses = rates_of(rates, state), guessed(rates, state)
    table = with_company(table, state)
    endless, now, left = open_ended(state), state.time, _TimeLeft(asked.budget_s, shown)
    try:
        found = forecast_jobs(
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
    return Lookahead(found, left.made, asked, min(asked.window_s, now), guesses, tuple(endless))


def unseen(state: State, asked: LookaheadOptions) -> Lookahead:
    """Everybody who is there, as they are: what can be told before anything was seen."""
    running = {*state.running.tolist()}
    jobs = tuple(
        JobForecast(
            number,
            state.job_of[number].name,
            number in running,
            JobTimes(0.0 if number in running else math.inf, math.inf),
            (),
            0.0,
        )
        for number in sorted((*state.live.tolist(), *state.queue.tolist()))
    )
    return Lookahead(jobs, 0, asked, min(asked.window_s, state.time))


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


def spelled(ahead: Lookahead) -> dict[str, Any]:
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


def read(told: Mapping[str, Any]) -> Lookahead:
    return Lookahead(
        tuple(
            JobForecast(
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
        LookaheadOptions(told["looks"], told["window_s"], told["budget_s"]),
        told["lately_s"],
        Guessed(dict(told["in_proportion"]), dict(told["unmeasured"])),
        tuple(told["endless"]),
        told.get("missed", 0),  # which older control planes do not tell
    )


def _seconds(turn: JobTimes) -> list[float | None]:
    return [None if each == math.inf else each for each in (turn.starts_s, turn.ends_s)]


def _turn(seconds: list[float | None]) -> JobTimes:
    starts, ends = (math.inf if each is None else each for each in seconds)
    return JobTimes(starts, ends)


# A look ahead for who may not see everybody's jobs: a control plane has it made by this module as a process beside it, with
# what is idle of the machine, and tells each what is theirs. `python -m fairlead.experiments.lookahead` reads a line of JSON
# and a state
# as a journal's snapshots spell it, and prints lines of which the last one counts: that nothing was seen yet, and what was.

BUDGET_S = 15.0
TO_BEGIN_S = 20.0  # to start, to read the state and to end; a machine may have much else to do
TO_END_S = 5.0
NICE = 15


async def foresee(now: float, saved: bytes, rates: Mapping[str, Any]) -> dict[str, Any]:
    """What a process that looks ahead says, or had said when it took too long; an error with its last line where it fails."""
    about = orjson.dumps({"now": now, "rates": rates, "budget_s": BUDGET_S})
    try:
        with TemporaryFile() as said, TemporaryFile() as problems:  # no pipes, which whoever it leaves behind would hold open
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", __name__),  # nothing is imported from where the control plane happens to stand
                stdin=asyncio.subprocess.PIPE,
                stdout=said,
                stderr=problems,
                env={name: value for name, value in os.environ.items() if not name.startswith("FAIRLEAD_")},
                start_new_session=True,
            )
            failed: int | None = 0
            try:
                async with asyncio.timeout(BUDGET_S + TO_BEGIN_S):
                    await process.communicate(about + b"\n" + saved)
                    failed = process.returncode
            except TimeoutError:
                pass  # one decision may take longer than all looks should
            finally:
                await _end(process)
            if failed:
                lines = _text(problems).decode(errors="replace").strip().splitlines()
                raise FairleadError(lines[-1] if lines else f"what looks ahead ended with {failed}")
            *whole, _ = _text(said).split(b"\n")
    except OSError as problem:
        raise FairleadError(f"no process that looks ahead can be had: {problem}") from None
    if not whole:
        raise FairleadError(f"what looks ahead said nothing in {BUDGET_S + TO_BEGIN_S:g} s")
    told: dict[str, Any] = orjson.loads(whole[-1])
    return told


def _text(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()


async def _end(process: asyncio.subprocess.Process) -> None:
    """With all that it has started; who holds its pipes open all the same is not waited for."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), TO_END_S)


def main() -> None:
    failed = 1
    with os.fdopen(os.dup(1), "wb") as answer:
        os.dup2(2, 1)  # what a policy prints is no answer
        os.nice(NICE)
        about = orjson.loads(sys.stdin.buffer.readline())
        signal.alarm(math.ceil(about["budget_s"] + TO_BEGIN_S))  # it ends then, also where nobody is left to end it

        def say(ahead: Lookahead) -> None:
            answer.write(orjson.dumps(spelled(ahead)) + b"\n")
            answer.flush()

        try:
            state, asked = load(sys.stdin.buffer.read()), LookaheadOptions(budget_s=about["budget_s"])
            state.time = max(state.time, about["now"])
            say(unseen(state, asked))
            say(forecast(state, about["rates"], asked))
            failed = 0
        except FairleadError as problem:
            print(problem, file=sys.stderr, flush=True)
    os._exit(failed)  # threads that a policy has started are not waited for


if __name__ == "__main__":
    main()
