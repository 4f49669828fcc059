"""`fairlead when`: when a job will run, looked ahead from a running cluster's state."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from fairlead.cli import options as opt
from fairlead.cli.cmd_jobs import control_plane
from fairlead.cli.job_tables import legible
from fairlead.cli.output import note, out, print_json, progress
from fairlead.core.job import ENDED, Phase
from fairlead.experiments.inputs import read_table
from fairlead.experiments.live_inputs import fetch_state
from fairlead.experiments.lookahead import (
    HORIZON_S,
    ClusterForecast,
    ForecastOptions,
    JobForecast,
    JobTimes,
    forecast,
    forecast_from_json,
)
from fairlead.experiments.metric_columns import format_delay, format_duration, format_seconds
from fairlead.runtime.http_client import FORBIDDEN, MISSING, ControlPlaneClient, RefusedRequest
from fairlead.workloads.throughput_tables import ThroughputTable

MOST_SHOWN = 50
"""Jobs in a table; the rest is counted."""

LOOKING, SHOWN_EVERY_S = "looking ahead", 0.2
"""What the bar says, and how often it says how far."""

MOST_KINDS = MOST_NAMED = 5
"""Kinds, and jobs for which there is no time, that are named."""


@opt.option_groups
def when_command(
    *,
    name: Annotated[
        str | None,
        typer.Argument(metavar="JOB", help="A job's number, or its name: the youngest of that name. [default: all]"),
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
    cost: opt.CostOptions,
    json: opt.JsonOption = False,
) -> None:
    """When a job will run, and when it will have ended. The cluster's state is simulated on under the scheduler that decides.

    It is looked ahead once as if nobody else came, and a few times with jobs that come as they did lately; how far those differ
    is how sure it is. Where --budget ends the first look, it is told what was seen by then, and how far ahead that is. The
    cluster is not touched. With an admin's token it is looked ahead here, from everybody's jobs; for others the cluster does,
    with its own settings, and tells them of theirs. What a job waits for, `fairlead why` says.

    Rates are what the cluster has measured, or --throughputs. A kind that was measured with other numbers of workers, as
    elastic jobs are, is taken to be faster or slower in proportion, and one that nobody has measured yet to run for an hour. A
    job that did not say how many steps it will do (submit --steps), or has done more, is taken to go on for another.

    Examples:

      fairlead when train-7

      fairlead when --looks 20 --window 24
    """
    asked = ForecastOptions(looks, 3600 * window, budget, cost.read())
    table = read_table(throughputs)
    plane = control_plane()
    wanted = None if name is None else plane.job(name)
    if wanted is not None and Phase[wanted["phase"].upper()] in ENDED and not json:
        out.print(f"{legible(wanted['name'])} is {wanted['phase']}", highlight=False, markup=False)
        return
    ahead, here = _looked(plane, table, replace(asked, job=None if wanted is None else wanted["number"]), quiet=json)
    reasons = _reasons(plane, wanted, ahead, everybody=here)
    if json:
        print_json(_data(ahead, reasons))
    elif ahead.jobs:
        _tell(ahead, wanted, here, reasons)
    elif wanted is not None:
        phase = plane.job(str(wanted["number"]))["phase"]  # it may have ended since it was asked for
        out.print(f"{legible(wanted['name'])} is {phase}", highlight=False, markup=False)
    elif not ahead.missed:
        out.print("no jobs")
    if ahead.missed and not json:
        jobs = "1 job" if ahead.missed == 1 else f"{ahead.missed:,} jobs"
        note(f"{jobs} came or stopped while it was looked ahead, so nothing is known of them: ask again")


def _looked(
    plane: ControlPlaneClient, table: ThroughputTable | None, asked: ForecastOptions, quiet: bool
) -> tuple[ClusterForecast, bool]:
    """Here, from the state that an admin gets. In it are everybody's jobs with their commands, so for others the control plane
    looks ahead, as it sees fit, and tells them of theirs. And whether it was here."""
    with progress(1 + asked.simulations, LOOKING, quiet=quiet) as bar:
        try:
            state = fetch_state(plane)
        except RefusedRequest as answer:
            if answer.status != FORBIDDEN:
                raise
        else:
            return forecast(state, plane.rates() if table is None else table, asked, _Shown(bar).at), True
        ahead = forecast_from_json(_told(plane))
    if table is not None or replace(asked, job=None) != ForecastOptions():
        note("the cluster looked ahead by itself, as for everybody: --looks and the other options count with an admin's token")
    jobs = tuple(one for one in ahead.jobs if asked.job in (None, one.number))
    return replace(ahead, jobs=jobs), False


def _told(plane: ControlPlaneClient) -> dict[str, Any]:
    try:
        return plane.when()
    except RefusedRequest as answer:
        if answer.status != MISSING:
            raise
        raise RefusedRequest(
            FORBIDDEN,
            "this control plane is an older one and looks ahead for admins alone; `fairlead why` says what a job waits for",
        ) from None


def _reasons(
    plane: ControlPlaneClient, wanted: Mapping[str, Any] | None, ahead: ClusterForecast, everybody: bool
) -> dict[int, Mapping[str, Any]]:
    """Why those do not run for whom no time was seen however far it was looked, as `why` says it."""
    timeless = {one.number for one in ahead.jobs if _timeless(one)}
    if not timeless:
        return {}
    told = plane.jobs(("queued", "waiting"), everybody=everybody) if wanted is None else [wanted]
    return {job["number"]: job["reason"] for job in told if job["number"] in timeless and job.get("reason")}


def _timeless(one: JobForecast) -> bool:
    return (
        not one.running
        and not one.without_arrivals.never_starts
        and one.horizon_s == HORIZON_S
        and one.range(_start)[1] == math.inf
    )


class _Shown:
    """How far a look is, on the bar."""

    def __init__(self, bar: Any) -> None:
        self._bar, self._made, self._last = bar, 0, -math.inf

    def at(self, made: int, ahead_s: float) -> None:
        for _ in range(made - self._made):
            self._bar.advance()
        self._made, now = made, time.monotonic()
        if now - self._last > SHOWN_EVERY_S:
            self._bar.say(f"{LOOKING}: {format_seconds(ahead_s)}")
            self._last = now


def _tell(
    ahead: ClusterForecast, wanted: Mapping[str, Any] | None, here: bool, reasons: Mapping[int, Mapping[str, Any]]
) -> None:
    found, made, looks, budget = ahead.jobs, ahead.completed, ahead.options.simulations, format_duration(ahead.options.budget_s)
    why = {number: legible(str(reason["text"])) for number, reason in reasons.items()}
    if wanted is not None:
        told = _sentence(found[0], ahead.history_s, wanted["starts"] > 0, why.get(wanted["number"], ""))
        out.print(told, highlight=False, markup=False, soft_wrap=True)
    else:
        out.print(_table(found))
        for line in _no_times(found, why):
            out.print(line, highlight=False, markup=False, soft_wrap=True)
        if len(found) > MOST_SHOWN:
            note(f"{len(found) - MOST_SHOWN:,} more are not shown; --json has all, or name one")
    if not made:
        far = format_seconds(found[0].horizon_s)
        note(f"in {budget} it was looked {far} ahead and no further" + "; --budget gives it more time" * here)
    elif made <= looks:
        note(f"{made - 1} of {looks} looks with others were made in {budget}" + "; --budget gives them more time" * here)
    for guess in _guesses(ahead) if wanted is None else _guesses_for(found[0], ahead, here):
        note(guess)


_UNMEASURED = "never measured, so taken to run for an hour"
_IN_PROPORTION = "measured with other numbers of workers, so taken to be faster or slower in proportion"
_ENDLESS = "did not say how many steps {they} will do, or did more, so taken to go on for an hour"


def _guesses(ahead: ClusterForecast) -> Iterator[str]:
    if ahead.guesses.unmeasured:
        yield f"{_UNMEASURED}: {_kinds(ahead.guesses.unmeasured)}"
    if ahead.guesses.scaled:
        yield f"{_IN_PROPORTION}: {_kinds(ahead.guesses.scaled)}"
    if many := len(ahead.open_ended):
        yield f"{_ENDLESS.format(they='they')}: {many} of the jobs"


def _guesses_for(one: JobForecast, ahead: ClusterForecast, here: bool) -> Iterator[str]:
    """What is guessed of one, and where it waits, of how many others: those may stand before it. Nothing where no time was
    seen for it, which rests on none of that."""
    if _timeless(one):
        return
    if one.number in ahead.guesses.unmeasured:
        yield f"{_UNMEASURED}: {legible(ahead.guesses.unmeasured[one.number])}"
    if one.number in ahead.guesses.scaled:
        yield f"{_IN_PROPORTION}: {legible(ahead.guesses.scaled[one.number])}"
    if one.number in ahead.open_ended:
        yield f"it {_ENDLESS.format(they='it')}"
    others = {*ahead.guesses.unmeasured, *ahead.guesses.scaled, *ahead.open_ended} - {one.number}
    if others and one.without_arrivals.starts_s > 0:
        many = f"{len(others):,} other {'job' if len(others) == 1 else 'jobs'}" + " of yours" * (not here)
        yield f"when it starts may rest on guesses of {many}; `fairlead when` tells which"


def _kinds(guesses: Mapping[int, str]) -> str:
    named = sorted({*guesses.values()})
    return ", ".join([*map(legible, named[:MOST_KINDS]), *["…"] * (len(named) > MOST_KINDS)])


def _sentence(one: JobForecast, history_s: float, again: bool, why: str = "") -> str:
    begins = "go on" if again else "start"
    if one.without_arrivals.never_starts:
        return f"{legible(one.name)} should never {begins}: it is refused or cancelled {_span(one, _end)}"
    if not one.running and one.range(_start)[0] == math.inf:
        name = legible(one.name)
        if one.horizon_s < HORIZON_S:
            seen = f"not within {format_seconds(one.horizon_s)}, further was not looked"
            return f"when {name} should {begins} cannot be told yet: {seen}"
        within = f"within {format_duration(HORIZON_S)}"
        if one.without_arrivals.starts_s < math.inf:
            alone = f"if nobody does, it {'goes on' if again else 'starts'} {_in(one.without_arrivals.starts_s)}"
            return f"{name} should not {begins} {within}, if others come as in the last {format_seconds(history_s)}; {alone}"
        return f"{name} should not {begins} {within} as things are" + (f": {why}" if why else "")
    told = f"{legible(one.name)} " + ("runs" if one.running else f"should {begins} {_span(one, _start)}")
    told += f" and should have ended {_span(one, _end)}"
    if not one.with_arrivals:
        return told
    told_of = [_end] if one.running else [_start, _end]
    if all({_long(of(turn)) for turn in one.with_arrivals} == {_long(of(one.without_arrivals))} for of in told_of):
        return f"{told}, whoever comes"
    verbs = {_start: "goes on" if again else "starts", _end: "ends"}
    alone = " and ".join(f"{verbs[of]} {_in(of(one.without_arrivals))}" for of in told_of)
    return f"{told}, if others come as in the last {format_seconds(history_s)}; if nobody does, it {alone}"


def _no_times(found: Iterable[JobForecast], why: Mapping[int, str]) -> Iterator[str]:
    """A line for each reason that there is, with who has no time because of it: a column would be as good as empty, and too
    narrow for it on most terminals."""
    whom: dict[str, list[str]] = {}
    for one in found:
        if one.number in why:
            whom.setdefault(why[one.number], []).append(legible(one.name))
    for reason, names in whom.items():
        more = f" and {len(names) - MOST_NAMED:,} more" if len(names) > MOST_NAMED else ""
        yield f"no time for {', '.join(names[:MOST_NAMED])}{more}: {reason}"


def _table(found: Iterable[JobForecast]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, collapse_padding=True)
    table.add_column("name", overflow="fold")
    for heading in ("starts in", "from", "to", "ends in", "from", "to"):
        table.add_column(heading, no_wrap=True, justify="right")
    for one in sorted(found, key=lambda one: (one.range(_start)[1], one.number))[:MOST_SHOWN]:
        cells: list[str] = []
        for of in (_start, _end):
            least, middle, most = (_long(seconds, one.horizon_s) for seconds in one.range(of))
            between = ["", ""] if least == most else [least, most]
            if of is _start and (one.running or one.without_arrivals.never_starts):
                middle, between = "runs" if one.running else "never", ["", ""]
            cells += [middle, *between]
        table.add_row(Text(legible(one.name)), *cells)
    return table


def _span(one: JobForecast, of: Any) -> str:
    least, middle, most = one.range(of)
    if _long(least) == _long(most):
        return _in(middle, one.horizon_s)
    return f"{_in(middle)} ({_long(least)} to {_long(most)})"


def _start(turn: JobTimes) -> float:
    return turn.starts_s


def _end(turn: JobTimes) -> float:
    return turn.ends_s


def _long(seconds: float, horizon_s: float = HORIZON_S) -> str:
    return f"over {format_seconds(horizon_s)}" if seconds == math.inf else format_seconds(seconds)


def _in(seconds: float, horizon_s: float = HORIZON_S) -> str:
    return f"in {_long(seconds, horizon_s)}" if seconds == math.inf else format_delay(seconds)


def _data(ahead: ClusterForecast, reasons: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "jobs": [{**_job(one), "guessed": _guess(one.number, ahead), "reason": reasons.get(one.number)} for one in ahead.jobs],
        "without_known_steps": len(ahead.open_ended),
        "unmeasured_kinds": sorted({*ahead.guesses.unmeasured.values()}),
        "kinds_of_other_sizes": sorted({*ahead.guesses.scaled.values()}),
        "looks": max(ahead.completed - 1, 0),
        "complete": ahead.completed > 0 or not ahead.jobs,
        "missed": ahead.missed,
        "looked_ahead_s": ahead.jobs[0].horizon_s if ahead.jobs else 0.0,
    }


def _job(one: JobForecast) -> dict[str, Any]:
    spans = {what: [_finite(each) for each in one.range(of)] for what, of in (("starts_s", _start), ("ends_s", _end))}
    alone = {"starts_s": _finite(one.without_arrivals.starts_s), "ends_s": _finite(one.without_arrivals.ends_s)}
    return {"number": one.number, "name": one.name, "runs": one.running, **spans, "if_nobody_comes": alone}


def _guess(number: int, ahead: ClusterForecast) -> str | None:
    """What of a job is no more than a guess, in a word."""
    guesses = {
        "endless": ahead.open_ended,
        "unmeasured": ahead.guesses.unmeasured,
        "in_proportion": ahead.guesses.scaled,
    }
    return next((word for word, whom in guesses.items() if number in whom), None)


def _finite(seconds: float) -> float | None:
    return None if seconds == math.inf else seconds
