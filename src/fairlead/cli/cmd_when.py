"""`fairlead when`: forecasts of start and end times, by simulation ahead from a running cluster's state."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from fairlead.cli import options as opt
from fairlead.cli.job_tables import legible
from fairlead.cli.output import note, out, print_json, progress
from fairlead.cli.selectors import control_plane
from fairlead.core.job import ENDED, Phase
from fairlead.experiments.inputs import read_table
from fairlead.experiments.live_inputs import fetch_state
from fairlead.experiments.lookahead import (
    HORIZON_S,
    ClusterForecast,
    ForecastOptions,
    JobForecast,
    forecast,
    forecast_from_json,
)
from fairlead.experiments.metric_columns import format_delay, format_duration, format_seconds
from fairlead.runtime.http_client import FORBIDDEN, ControlPlaneClient, RefusedRequest
from fairlead.workloads.throughput_tables import ThroughputTable

MAX_SHOWN = 50
"""Jobs in a table; the others are counted."""

MAX_NAMED = 5
"""Job types, and jobs without a forecast, that are listed."""


@opt.option_groups
def when_command(
    *,
    name: str | None = typer.Argument(
        None, metavar="JOB", help="Number of a job, or its name (the most recent job of that name). [default: all]"
    ),
    simulations: int = typer.Option(
        5,
        help="Number of simulations with arrivals as in the recent past; 0 simulates only without new arrivals.",
        min=0,
        max=100,
    ),
    window: float = typer.Option(6.0, help="Hours of the recent past from which arrivals are drawn.", min=0.01, max=100000.0),
    budget: float = typer.Option(
        60.0, help="Seconds for all simulations; one that would take longer is not begun, or is stopped.", min=0.0
    ),
    throughputs: Path | None = opt.THROUGHPUTS,
    cost: opt.CostOptions,
    json: opt.JsonOption = False,
) -> None:
    """Forecast when a job starts and ends. It simulates ahead from the cluster's state, under its current scheduler.

    One simulation has no further arrivals, the others have arrivals as in the recent past. It prints the median, minimum and
    maximum of these simulations. If --budget stops the first one, the forecast reaches less far. The cluster does not change.
    With an admin token the simulations run here, with the jobs of all users. For other users the control plane simulates, with
    its own settings, and returns their jobs. `fairlead why` explains what a job waits for.

    Throughputs are those that the cluster has measured, or --throughputs. The throughput of a job type that was measured with
    another number of workers is scaled in proportion. A job type that was never measured is assumed to run for an hour. A job
    without a number of steps (submit --steps), or beyond it, is assumed to run as long as finished jobs of the same array, or
    of the same user and job type. If no such job has finished, its end is unknown.

    Examples:

      fairlead when train-7

      fairlead when --simulations 20 --window 24
    """
    asked = ForecastOptions(simulations, 3600 * window, budget, cost.read())
    table = read_table(throughputs)
    plane = control_plane()
    wanted = None if name is None else plane.job(name)
    if wanted is not None and Phase[wanted["phase"].upper()] in ENDED and not json:
        out.print(f"{legible(wanted['name'])} is {wanted['phase']}")
        return
    ahead, here = _looked(plane, table, replace(asked, job=None if wanted is None else wanted["number"]), quiet=json)
    reasons = _reasons(plane, wanted, ahead, all_users=here)
    if json:
        print_json(_data(ahead, reasons))
    elif ahead.jobs:
        _tell(ahead, wanted, here, reasons)
    elif wanted is not None:
        phase = plane.job(str(wanted["number"]))["phase"]  # it may have ended since it was asked for
        out.print(f"{legible(wanted['name'])} is {phase}")
    elif not ahead.missed:
        out.print("no jobs")
    if ahead.missed and not json:
        jobs = "1 job" if ahead.missed == 1 else f"{ahead.missed:,} jobs"
        note(f"{jobs} arrived or stopped during the simulations and have no forecast: ask again")


def _looked(
    plane: ControlPlaneClient, table: ThroughputTable | None, asked: ForecastOptions, quiet: bool
) -> tuple[ClusterForecast, bool]:
    """Return the forecast, and whether it was made here. Only an admin gets the state, which has the jobs of all users."""
    with progress(1 + asked.simulations, "simulating ahead", quiet=quiet) as bar:
        try:
            state = fetch_state(plane)
        except RefusedRequest as answer:
            if answer.status != FORBIDDEN:
                raise
        else:
            rates = plane.rates() if table is None else table
            return forecast(state, rates, asked, lambda made, s: bar.show(made, f"simulating ahead: {format_seconds(s)}")), True
        ahead = forecast_from_json(plane.when())
    if table is not None or replace(asked, job=None) != ForecastOptions():
        note("the control plane made this forecast: --simulations and the other options need an admin token")
    return replace(ahead, jobs=tuple(one for one in ahead.jobs if asked.job in (None, one.number))), False


def _reasons(
    plane: ControlPlaneClient, wanted: Mapping[str, Any] | None, ahead: ClusterForecast, all_users: bool
) -> dict[int, Mapping[str, Any]]:
    """Return the reasons of jobs that do not start within the horizon."""
    timeless = {one.number for one in ahead.jobs if _timeless(one)}
    if not timeless:
        return {}
    told = plane.jobs(("queued", "waiting"), all_users=all_users) if wanted is None else [wanted]
    return {job["number"]: job["reason"] for job in told if job["number"] in timeless and job.get("reason")}


def _timeless(one: JobForecast) -> bool:
    return (
        not one.running
        and not one.without_arrivals.never_starts
        and one.horizon_s == HORIZON_S
        and one.range(_start)[1] == math.inf
    )


def _tell(
    ahead: ClusterForecast, wanted: Mapping[str, Any] | None, here: bool, reasons: Mapping[int, Mapping[str, Any]]
) -> None:
    found, made, asked = ahead.jobs, ahead.completed, ahead.options.simulations
    budget = format_duration(ahead.options.budget_s)
    why = {number: _POSITION.sub("", legible(str(reason["text"]))) for number, reason in reasons.items()}
    if wanted is not None:
        unknown = found[0].number in ahead.unknown
        told = _sentence(found[0], ahead.history_s, wanted["starts"] > 0, why.get(wanted["number"], ""), unknown=unknown)
        out.print(told, soft_wrap=True)
    else:
        out.print(_table(found, ahead.unknown))
        for line in _no_times(found, why):
            out.print(line, soft_wrap=True)
        if len(found) > MAX_SHOWN:
            note(f"{len(found) - MAX_SHOWN:,} more are not shown; --json has all, or name a job")
    if not made:
        far = format_seconds(found[0].horizon_s)
        note(f"in {budget} the simulation reached only {far} ahead" + "; --budget gives it more time" * here)
    elif made <= asked:
        note(f"{made - 1} of {asked} simulations with arrivals ended in {budget}" + "; --budget gives them more time" * here)
    for guess in _guesses(ahead, None if wanted is None else found[0], here):
        note(guess)


_UNMEASURED = "never measured, so assumed to run for an hour"
_SCALED = "measured with other numbers of workers, so scaled in proportion"
_OPEN_ENDED = "the end is unknown, and assumed in an hour for the start of other jobs: no job of this kind has finished yet"
_PRIOR = "without a number of steps, so assumed to run as long as finished jobs of the same array or job type"
_POSITION = re.compile(r"; position \d+ of \d+")  # jobs with the same reason are listed together
UNKNOWN = "unknown: no job of this kind has finished yet"


def _guesses(ahead: ClusterForecast, one: JobForecast | None, here: bool) -> Iterator[str]:
    """Yield the assumptions about all jobs; or about one, and how many other jobs that may run before it have some."""
    if one is not None and _timeless(one):
        return
    guesses, open_ended = ahead.guesses, [*ahead.open_ended]
    for what, kinds in ((_UNMEASURED, guesses.unmeasured), (_SCALED, guesses.scaled)):
        if named := sorted({kind for number, kind in kinds.items() if one is None or number == one.number}):
            yield f"{what}: {', '.join([*map(legible, named[:MAX_NAMED]), *['…'] * (len(named) > MAX_NAMED)])}"
    if one is None:
        for what, numbers in ((_OPEN_ENDED, ahead.unknown), (_PRIOR, ahead.priors)):
            if numbers:
                yield f"{what}: {len(numbers)} of the jobs"
        return
    if one.number in ahead.priors:
        yield f"{_PRIOR}: {ahead.priors[one.number]} of them"
    others = {*guesses.unmeasured, *guesses.scaled, *open_ended} - {one.number}
    if others and one.without_arrivals.starts_s > 0:
        many = f"{len(others):,} other {'job' if len(others) == 1 else 'jobs'}" + " of yours" * (not here)
        yield f"its start may depend on assumptions about {many}; `fairlead when` lists them"


def _sentence(one: JobForecast, history_s: float, again: bool, why: str = "", *, unknown: bool = False) -> str:
    begins = "resume" if again else "start"
    if one.without_arrivals.never_starts:
        return f"{legible(one.name)} should never {begins}: it is refused or cancelled {_span(one, _end)}"
    if not one.running and one.range(_start)[0] == math.inf:
        name = legible(one.name)
        if one.horizon_s < HORIZON_S:
            seen = f"not within {format_seconds(one.horizon_s)}, where the simulation ended"
            return f"no forecast yet when {name} should {begins}: {seen}"
        within = f"within {format_duration(HORIZON_S)}"
        if one.without_arrivals.starts_s < math.inf:
            alone = f"without arrivals, it {'resumes' if again else 'starts'} {_in(one.without_arrivals.starts_s)}"
            return f"{name} should not {begins} {within}, with arrivals as in the last {format_seconds(history_s)}; {alone}"
        return f"{name} should not {begins} {within} at present" + (f": {why}" if why else "")
    told = f"{legible(one.name)} " + ("runs" if one.running else f"should {begins} {_span(one, _start)}")
    if unknown:
        return f"{told}; its end is {UNKNOWN}"
    told += f" and should have ended {_span(one, _end)}"
    if not one.with_arrivals:
        return told
    told_of = [_end] if one.running else [_start, _end]
    if all({_long(of(turn)) for turn in one.with_arrivals} == {_long(of(one.without_arrivals))} for of in told_of):
        return f"{told}, with or without arrivals"
    verbs = {_start: "resumes" if again else "starts", _end: "ends"}
    alone = " and ".join(f"{verbs[of]} {_in(of(one.without_arrivals))}" for of in told_of)
    return f"{told}, with arrivals as in the last {format_seconds(history_s)}; without arrivals, it {alone}"


def _no_times(found: Iterable[JobForecast], why: Mapping[int, str]) -> Iterator[str]:
    """Yield a line for each reason, with the jobs that have no forecast because of it."""
    whom: dict[str, list[str]] = {}
    for one in found:
        if one.number in why:
            whom.setdefault(why[one.number], []).append(legible(one.name))
    for reason, names in whom.items():
        more = f" and {len(names) - MAX_NAMED:,} more" if len(names) > MAX_NAMED else ""
        yield f"no forecast for {', '.join(names[:MAX_NAMED])}{more}: {reason}"


def _table(found: Iterable[JobForecast], unknown: Collection[int] = ()) -> Table:
    table = Table(box=box.SIMPLE_HEAD, collapse_padding=True)
    table.add_column("name", overflow="fold")
    for heading in ("starts in", "from", "to", "ends in", "from", "to"):
        table.add_column(heading, no_wrap=True, justify="right")
    for one in sorted(found, key=lambda one: (one.range(_start)[1], one.number))[:MAX_SHOWN]:
        cells: list[str] = []
        for of in (_start, _end):
            least, middle, most = (_long(seconds, one.horizon_s) for seconds in one.range(of))
            between = ["", ""] if least == most else [least, most]
            if of is _start and (one.running or one.without_arrivals.never_starts):
                middle, between = "runs" if one.running else "never", ["", ""]
            elif of is _end and one.number in unknown:
                middle, between = "unknown", ["", ""]
            cells += [middle, *between]
        table.add_row(Text(legible(one.name)), *cells)
    return table


def _span(one: JobForecast, of: Any) -> str:
    least, middle, most = one.range(of)
    if _long(least) == _long(most):
        return _in(middle, one.horizon_s)
    return f"{_in(middle)} ({_long(least)} to {_long(most)})"


_start, _end = attrgetter("starts_s"), attrgetter("ends_s")


def _long(seconds: float, horizon_s: float = HORIZON_S) -> str:
    return f"over {format_seconds(horizon_s)}" if seconds == math.inf else format_seconds(seconds)


def _in(seconds: float, horizon_s: float = HORIZON_S) -> str:
    return f"in {_long(seconds, horizon_s)}" if seconds == math.inf else format_delay(seconds)


def _data(ahead: ClusterForecast, reasons: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    guesses = ahead.guesses
    kinds = {
        "unknown": ahead.unknown,
        "finished_jobs": ahead.priors,
        "unmeasured": guesses.unmeasured,
        "scaled": guesses.scaled,
    }
    return {
        "jobs": [
            {
                "number": one.number,
                "name": one.name,
                "runs": one.running,
                "starts_s": one.range(_start),
                "ends_s": None if one.number in ahead.unknown else one.range(_end),
                "without_arrivals": asdict(one.without_arrivals),
                "assumed": next((kind for kind, numbers in kinds.items() if one.number in numbers), None),
                "reason": reasons.get(one.number),
            }
            for one in ahead.jobs
        ],
        "open_ended": len(ahead.open_ended),
        "unknown": len(ahead.unknown),
        "unmeasured_kinds": sorted({*guesses.unmeasured.values()}),
        "scaled_kinds": sorted({*guesses.scaled.values()}),
        "simulations": max(ahead.completed - 1, 0),
        "complete": ahead.completed > 0 or not ahead.jobs,
        "missed": ahead.missed,
        "horizon_s": ahead.jobs[0].horizon_s if ahead.jobs else 0.0,
    }
