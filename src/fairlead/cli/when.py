"""`fairlead when`: when a job will run, looked ahead from a running cluster's state."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from fairlead.cli import options as opt
from fairlead.cli.job_table import legible
from fairlead.cli.output import note, out, print_json, progress
from fairlead.cli.people import control_plane
from fairlead.core.errors import FairleadError
from fairlead.core.job import Phase
from fairlead.engine.state import State
from fairlead.report.columns import duration, to_the_second, until
from fairlead.runtime.people import FORBIDDEN, ControlPlane, RefusedRequest
from fairlead.study.inputs import read_table
from fairlead.study.synthesizer.live import Guessed, guessed, open_ended, rates_of, state_of, with_ends
from fairlead.study.when import WITHIN_S, Expected, Turn, expected

MOST_SHOWN = 50
"""Jobs in a table; the rest is counted."""

LOOKING, SHOWN_EVERY_S = "looking ahead", 0.2
"""What the bar says, and how often it says how far."""

MOST_KINDS = 5
"""Kinds that are named."""


def when(
    name: Annotated[
        str | None, typer.Argument(help="A job's number, or its name: the youngest of that name. [default: all]")
    ] = None,
    looks: Annotated[
        int,
        typer.Option("--looks", help="Looks in which others come as they did lately; 0: as if nobody came.", min=0, max=100),
    ] = 5,
    window: Annotated[float, typer.Option("--window", help="Hours that 'lately' is.", min=0.01, max=1e5)] = 6.0,
    budget: Annotated[
        float,
        typer.Option(
            "--budget",
            help="Seconds for all looks: one that would not be done by then is not begun, one that is not done is broken off.",
            min=0.0,
        ),
    ] = 60.0,
    throughputs: opt.ThroughputsOption = None,
    launch_cost: opt.LaunchCostOption = 0.0,
    restart_cost: opt.RestartCostOption = 0.0,
    checkpoint_cost: opt.CheckpointCostOption = 0.0,
    checkpoint_every: opt.CheckpointEveryOption = None,
    costs: opt.CostsOption = None,
    json: opt.JsonOption = False,
) -> None:
    """When a job will run, and when it will have ended. The cluster's state is simulated on under the scheduler that decides.

    It is looked ahead once as if nobody else came, and a few times with jobs that come as they did lately; how far those differ
    is how sure it is. Where --budget ends the first look, it is told what was seen by then, and how far ahead that is. The
    cluster is not touched. It needs an admin's token, as it sees everybody's jobs; what a job of yours waits for,
    `fairlead why` says to you too.

    Rates are what the cluster has measured, or --throughputs. A kind that was measured with other numbers of workers, as
    elastic jobs are, is taken to be faster or slower in proportion, and one that nobody has measured yet to run for an hour. A
    job that did not say how many steps it will do (submit --steps), or has done more, is taken to go on for another.

    Examples:

      fairlead when train-7

      fairlead when --looks 20 --window 24
    """
    spent = opt.costs_of(launch_cost, restart_cost, checkpoint_cost, checkpoint_every, costs)
    known = read_table(throughputs)
    plane = control_plane()
    wanted = None if name is None else plane.job(name)
    state = _state(plane, name)
    if known is not None:
        table, guesses = known.for_types(state.cluster.type_names), Guessed()
    else:
        measured = plane.rates()
        table, guesses = rates_of(measured, state), guessed(measured, state)
    endless = len(open_ended(state))
    with progress(1 + looks, LOOKING, quiet=json) as bar:
        time_left = _TimeLeft(budget, bar)
        state = with_ends(state, table)
        try:
            of = None if wanted is None else wanted["number"]
            found = expected(
                state,
                table,
                looks=looks,
                window_s=3600 * window,
                costs=spent,
                of=of,
                another=time_left.another,
                go_on=time_left.go_on,
            )
        except Exception as problem:  # whatever a part does wrong, or jobs that would never end
            raise FairleadError(f"nobody can look ahead from here: {type(problem).__name__}: {problem}") from problem
    made = time_left.made
    if json:
        print_json(
            {
                "jobs": [_data(one) for one in found],
                "without_known_steps": endless,
                "unmeasured_kinds": guesses.unmeasured,
                "kinds_of_other_sizes": guesses.in_proportion,
                "looks": max(made - 1, 0),
                "complete": made > 0 or not found,
                "looked_ahead_s": found[0].within_s if found else 0.0,
            }
        )
        return
    if wanted is not None and not found:
        phase = Phase(state.store.arrays["phase"][wanted["number"]])  # it may have ended since it was asked for
        out.print(f"{legible(wanted['name'])} is {phase.name.lower()}", highlight=False, markup=False)
        return
    if not found:
        out.print("no jobs")
        return
    if wanted is not None:
        told = _sentence(found[0], min(3600 * window, state.time), again=wanted["starts"] > 0)
        out.print(told, highlight=False, markup=False, soft_wrap=True)
    else:
        out.print(_table(found))
        if len(found) > MOST_SHOWN:
            note(f"{len(found) - MOST_SHOWN:,} more are not shown; --json has all, or name one")
    if not made:
        ahead = to_the_second(found[0].within_s)
        note(f"in {duration(budget)} it was looked {ahead} ahead and no further; --budget gives it more time")
    elif made <= looks:
        note(f"{made - 1} of {looks} looks with others were made in {duration(budget)}; --budget gives them more time")
    if guesses.unmeasured:
        note(f"never measured, so taken to run for an hour: {_kinds(guesses.unmeasured)}")
    if guesses.in_proportion:
        kinds = _kinds(guesses.in_proportion)
        note(f"measured with other numbers of workers, so taken to be faster or slower in proportion: {kinds}")
    if endless:
        note(f"did not say how many steps they will do, or did more, so taken to go on for an hour: {endless} of the jobs")


def _kinds(named: Sequence[str]) -> str:
    return ", ".join([*map(legible, named[:MOST_KINDS]), *["…"] * (len(named) > MOST_KINDS)])


class _TimeLeft:
    """What looks may take in all, and the bar that shows how far they are."""

    def __init__(self, budget_s: float, bar: Any) -> None:
        self.made = 0  # whole ones
        self._budget_s, self._bar, self._began, self._shown = budget_s, bar, time.monotonic(), -math.inf

    def another(self) -> bool:
        """Whether one more like those before would be done in time."""
        self.made += 1
        self._bar.advance()
        return (time.monotonic() - self._began) * (self.made + 1) / self.made <= self._budget_s

    def go_on(self, ahead_s: float) -> bool:
        now = time.monotonic()
        if now - self._shown > SHOWN_EVERY_S:
            self._bar.say(f"{LOOKING}: {to_the_second(ahead_s)}")
            self._shown = now
        return now - self._began < self._budget_s


def _state(plane: ControlPlane, name: str | None) -> State:
    """Everybody's jobs are in it, with their commands, so that it is for admins alone; a user is told what else there is."""
    try:
        return state_of(plane)
    except RefusedRequest as answer:
        if answer.status != FORBIDDEN:
            raise
        job = "JOB" if name is None else name
        raise RefusedRequest(
            FORBIDDEN,
            "to look ahead takes an admin's token, as it is everybody's jobs that are simulated on, and this token sees its"
            f" user's: ask an admin for `fairlead when {job}`; `fairlead why {job}` says what it waits for",
        ) from None


def _sentence(one: Expected, lately_s: float, again: bool) -> str:
    begins = "go on" if again else "start"
    if one.by_itself.never:
        return f"{legible(one.job.name)} should never {begins}: it is refused or cancelled {_span(one, _end)}"
    if not one.runs and one.range(_start)[0] == math.inf:
        name = legible(one.job.name)
        if one.within_s < WITHIN_S:
            seen = f"not within {to_the_second(one.within_s)}, further was not looked"
            return f"when {name} should {begins} cannot be told yet: {seen}"
        within = f"within {duration(WITHIN_S)} as things are"
        return f"{name} should not {begins} {within}; `fairlead why {name}` says what it waits for"
    told = f"{legible(one.job.name)} " + ("runs" if one.runs else f"should {begins} {_span(one, _start)}")
    told += f" and should have ended {_span(one, _end)}"
    if not one.with_others:
        return told
    told_of = [_end] if one.runs else [_start, _end]
    if all({_long(of(turn)) for turn in one.with_others} == {_long(of(one.by_itself))} for of in told_of):
        return f"{told}, whoever comes"
    verbs = {_start: "goes on" if again else "starts", _end: "ends"}
    alone = " and ".join(f"{verbs[of]} {_in(of(one.by_itself))}" for of in told_of)
    return f"{told}, if others come as in the last {to_the_second(lately_s)}; if nobody does, it {alone}"


def _table(found: Iterable[Expected]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, collapse_padding=True)
    table.add_column("name", overflow="fold")
    for heading in ("starts in", "from", "to", "ends in", "from", "to"):
        table.add_column(heading, no_wrap=True, justify="right")
    for one in sorted(found, key=lambda one: (one.range(_start)[1], one.number))[:MOST_SHOWN]:
        cells: list[str] = []
        for of in (_start, _end):
            least, middle, most = (_long(seconds, one.within_s) for seconds in one.range(of))
            between = ["", ""] if least == most else [least, most]
            if of is _start and (one.runs or one.by_itself.never):
                middle, between = "runs" if one.runs else "never", ["", ""]
            cells += [middle, *between]
        table.add_row(Text(legible(one.job.name)), *cells)
    return table


def _span(one: Expected, of: Any) -> str:
    least, middle, most = one.range(of)
    if _long(least) == _long(most):
        return _in(middle, one.within_s)
    return f"{_in(middle)} ({_long(least)} to {_long(most)})"


def _start(turn: Turn) -> float:
    return turn.starts_s


def _end(turn: Turn) -> float:
    return turn.ends_s


def _long(seconds: float, within_s: float = WITHIN_S) -> str:
    return f"over {to_the_second(within_s)}" if seconds == math.inf else to_the_second(seconds)


def _in(seconds: float, within_s: float = WITHIN_S) -> str:
    return f"in {_long(seconds, within_s)}" if seconds == math.inf else until(seconds)


def _data(one: Expected) -> dict[str, Any]:
    def seconds(turn: Turn) -> dict[str, float | None]:
        return {"starts_s": _finite(turn.starts_s), "ends_s": _finite(turn.ends_s)}

    spans = {what: [_finite(each) for each in one.range(of)] for what, of in (("starts_s", _start), ("ends_s", _end))}
    by_itself = seconds(one.by_itself)
    return {"number": one.number, "name": one.job.name, "runs": one.runs, **spans, "if_nobody_comes": by_itself}


def _finite(seconds: float) -> float | None:
    return None if seconds == math.inf else seconds
