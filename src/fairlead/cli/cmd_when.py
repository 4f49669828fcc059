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
from fairlead.cli import selectors
from fairlead.cli.job_tables import legible
from fairlead.cli.output import note, out, print_json, progress
from fairlead.experiments.forecast_json import forecast_from_json
from fairlead.experiments.forecast_quality import COVERAGE, forecast_quality
from fairlead.experiments.inputs import read_table
from fairlead.experiments.live_inputs import fetch_state
from fairlead.experiments.lookahead import (
    HORIZON_S,
    ClusterForecast,
    ForecastOptions,
    JobForecast,
    forecast,
)
from fairlead.experiments.metric_columns import format_delay, format_duration, format_seconds
from fairlead.journal.recovery import read_journal
from fairlead.runtime.http_client import FORBIDDEN, ControlPlaneClient, RefusedRequest
from fairlead.workloads.throughput_tables import ThroughputTable

MAX_SHOWN = 50
"""Jobs in a table; the others are counted."""

FEW_SIMULATIONS = 4
"""A control plane that makes no more says so; otherwise it makes as many as it can in a second or two."""

MAX_NAMED = 5
"""Jobs and job types that a line names."""


@opt.option_groups
def when_command(
    *,
    words: selectors.JobsOrNoneArgument = None,
    user: selectors.UserOption = "",
    state: selectors.StateOption = None,
    array: selectors.ArrayOption = "",
    simulations: int = typer.Option(
        19,
        help="Number of simulations with drawn run times, arrivals and node failures; 0 simulates only with none of these.",
        min=0,
        max=100,
    ),
    window: float = typer.Option(168.0, help="Hours of the recent past from which arrivals are drawn.", min=0.01, max=100000.0),
    budget: float = typer.Option(
        60.0, help="Seconds for all simulations; one that would take longer is not begun, or is stopped.", min=0.0
    ),
    throughputs: Path | None = opt.THROUGHPUTS,
    cost: opt.CostOptions,
    json: opt.JsonOption = False,
) -> None:
    """Forecast when jobs start and end. It simulates ahead from the cluster's state, under its current scheduler.

    One simulation has no further arrivals. The others draw the run times of jobs without a number of steps, arrivals as at this
    hour of the recent days, and node failures as often as in the past. It prints the median of these simulations and an 80 %
    interval. If --budget stops the first one, the forecast reaches less far. The cluster does not change.
    With an admin token the simulations run here, with the jobs of all users. For other users the control plane simulates, with
    its own settings, and returns their jobs. `fairlead why` explains what a job waits for.

    Throughputs are those that the cluster has measured, or --throughputs. The throughput of a job type that was measured with
    another number of workers is scaled in proportion. A job without a number of steps (submit --steps), or beyond it, is
    assumed to run as long as finished jobs of the same array, of the same user and job type, of the same job type, or of all.
    The fewer a group has, the more the next one counts. A job that has run for an hour is compared with longer runs only. If no
    job has finished, it runs until its time limit. Without one, its end is unknown, and it is assumed to keep running.

    Examples:

      fairlead when train-7

      fairlead when sweep --simulations 20 --window 24
    """
    asked = ForecastOptions(simulations, 3600 * window, budget, cost.read())
    table = read_table(throughputs)
    plane, wanted = selectors.control_plane(), None
    if words or user or state or array:
        wanted = selectors.select_jobs(plane, words, user=user, states=selectors.states_of(state), array=array)
        asked = replace(asked, jobs=frozenset(job["number"] for job in wanted))
    if wanted and not json and all(job["phase"] not in selectors.LIVE for job in wanted):
        _tell_ended(wanted)
        return
    ahead, here = _looked(plane, table, asked, quiet=json)
    records = {job["number"]: job for job in plane.jobs(selectors.LIVE, all_users=here)}
    missing = _missing_nodes(plane) if not json and ahead.jobs else ""
    if json:
        print_json(_data(ahead, records))
    elif ahead.jobs:
        _tell(ahead, wanted is not None and len(ahead.jobs) == 1, here, records, missing)
        if missing and not all(map(_timeless, ahead.jobs)):
            note(f"this forecast is for the nodes that are there: {missing}")
        if (silent := _silent(ahead, records)) and (protected_s := float(plane.scheduler().get("first_step_s") or 0.0)):
            kept = f"assumed to keep their GPUs for {format_duration(protected_s)} (first_step_s)"
            note(f"no step reported yet, so {kept}: {_listed(silent)}; other jobs may start sooner if they report steps")
    elif wanted:
        _tell_ended([plane.job(str(job["number"])) for job in wanted])  # they may have ended since they were selected
    elif not ahead.missed:
        out.print("no jobs")
    if ahead.missed and not json:
        jobs = "1 job" if ahead.missed == 1 else f"{ahead.missed:,} jobs"
        note(f"{jobs} arrived or stopped during the simulations and have no forecast: ask again")


def forecast_quality_command(
    journal: str = typer.Argument(..., help="x.sqlite, x.jsonl or postgresql://…; the cluster may be running."),
    *,
    json: opt.JsonOption = False,
) -> None:
    """Compare the forecasts in a journal with what happened.

    A control plane records a forecast of each job soon after its submission, and a few later ones. The table shows by horizon
    how many starts and ends were within the 80 % interval, and the median absolute error of the median. A job that is late for
    its whole interval counts as outside. Cancelled jobs do not count.

    Example:

      fairlead forecast-quality .fairlead/journal.sqlite
    """
    found = forecast_quality(read_journal(journal))
    rows = [*found.rows()]
    if json:
        print_json({"rows": rows, "open": found.open})
        return
    table = Table(box=box.SIMPLE_HEAD, collapse_padding=True)
    for heading in ("of", "horizon", "forecasts", "in interval", "median error"):
        table.add_column(heading, justify="left" if heading in ("of", "horizon") else "right")
    for row in rows:
        error = "–" if row["median_error_s"] is None else format_seconds(row["median_error_s"])
        table.add_row(row["of"], row["horizon"], f"{row['forecasts']:,}", f"{row['coverage']:.0%}", error)
    out.print(table if rows else "no forecast in this journal has an outcome yet")
    if found.open:
        note(f"{found.open:,} forecasts have no outcome yet")


def _tell_ended(jobs: Iterable[Mapping[str, Any]]) -> None:
    for job in jobs:
        out.print(f"{legible(job['name'])} is {job['phase']}")


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
    if table is not None or replace(asked, jobs=None) != ForecastOptions():
        note("the control plane made this forecast: --simulations and the other options need an admin token")
    return replace(ahead, jobs=tuple(one for one in ahead.jobs if asked.jobs is None or one.number in asked.jobs)), False


def _never_begins(one: JobForecast) -> bool:
    return not one.running and not one.without_arrivals.never_starts and one.range(_start)[1] == math.inf


def _timeless(one: JobForecast) -> bool:
    return _never_begins(one) and not one.blocked and one.horizon_s == HORIZON_S


def _missing_nodes(plane: ControlPlaneClient) -> str:
    """Which nodes have not joined the cluster, so that a forecast without them says little; empty if all have."""
    nodes = plane.nodes()
    names = [str(node["name"]) for node in nodes if not node["up"] and not node["connected"]]
    return f"{len(names)} of {len(nodes)} nodes have not joined ({_listed(names)}); ask again when they have" if names else ""


def _silent(ahead: ClusterForecast, records: Mapping[int, Mapping[str, Any]]) -> list[str]:
    """The running jobs of which it is not known whether they report steps, if a forecast depends on it: a job is not preempted
    before its first step, for a while."""
    waits = any(not one.running and 0.0 < one.without_arrivals.starts_s < math.inf for one in ahead.jobs)
    running = [job for job in records.values() if job["phase"] == "running"] if waits else []
    return [job["name"] for job in running if not job["steps_known"] and not job["steps_done"]]


def _tell(
    ahead: ClusterForecast, single: bool, here: bool, records: Mapping[int, Mapping[str, Any]], missing: str = ""
) -> None:
    found, made, asked = ahead.jobs, ahead.completed, ahead.options.simulations
    budget = format_duration(ahead.options.budget_s)
    why = {one.number: _why(one, ahead, records) for one in found if _timeless(one) or (one.blocked and _never_begins(one))}
    if single and missing and _timeless(found[0]):
        out.print(f"no forecast for {legible(found[0].name)}: {missing}", soft_wrap=True)
    elif single:
        again = records.get(found[0].number, {}).get("starts", 0) > 0
        told = _sentence(found[0], ahead.history_s, again, why.get(found[0].number, ""), unknown=_unknown_end(found[0], ahead))
        out.print(told, soft_wrap=True)
    else:
        out.print(_table(found, {one.number for one in found if _unknown_end(one, ahead)}))
        for line in _no_times(found, why | dict.fromkeys((one.number for one in found if _timeless(one) and missing), missing)):
            out.print(line, soft_wrap=True)
        if len(found) > MAX_SHOWN:
            note(f"{len(found) - MAX_SHOWN:,} more are not shown; --json has all, or name a job")
    if not made:
        far = format_seconds(found[0].horizon_s)
        note(f"in {budget} the simulation reached only {far} ahead" + "; --budget gives it more time" * here)
    elif made <= (asked if here else FEW_SIMULATIONS):
        note(f"{made - 1} of {asked} simulations with arrivals ended in {budget}" + "; --budget gives them more time" * here)
    for guess in _guesses(ahead, here, single):
        note(guess)


_POSITION = re.compile(r"; position \d+ of \d+")  # jobs with the same reason are listed together


def _why(one: JobForecast, ahead: ClusterForecast, records: Mapping[int, Mapping[str, Any]]) -> str:
    """Why a job has no forecast of its start: the jobs of unknown end that it waits for, or its reason."""
    record = records.get(one.number, {})
    if not one.blocked:
        return _POSITION.sub("", legible(str((record.get("reason") or {}).get("text", ""))))
    if after := [records[number]["name"] for number in record.get("after", ()) if number in records]:
        return f"after {_listed(after, ' and ')} {'ends' if len(after) == 1 else 'end'} (unknown)"
    holding = [job["name"] for number, job in records.items() if number in ahead.unknown and job["phase"] == "running"]
    return f"after other jobs end (unknown): {_listed(holding)}" if holding else "after jobs of other users end (unknown)"


def _unknown_end(one: JobForecast, ahead: ClusterForecast) -> str:
    """Why a job's end is unknown; empty if it is not."""
    if one.number in ahead.unknown & ahead.overdue.keys():
        took = format_duration(ahead.overdue[one.number])
        return f"it has run as long as similar jobs took ({took}), or longer; its end is unknown"
    if one.number in ahead.unknown & ahead.guesses.unmeasured.keys():
        return "its end is unknown: the steps per second of its job type are not measured yet"
    if one.number in ahead.unknown:
        return "its end is unknown: it has no number of steps, and no similar job has finished"
    blocked = one.blocked and one.range(_end)[1] == math.inf
    return "its end is unknown: it shares GPUs with jobs whose end is unknown" if blocked else ""


def _listed(names: Iterable[str], last: str = ", ") -> str:
    named = [*map(legible, names)]
    shown = last.join(named[:MAX_NAMED])
    return shown + (f" and {len(named) - MAX_NAMED:,} more" if len(named) > MAX_NAMED else "")


def _guesses(ahead: ClusterForecast, here: bool, single: bool) -> Iterator[str]:
    """Yield the assumptions about these jobs, and how many other jobs that may run before them have some."""
    guesses, name_of = ahead.guesses, {one.number: one.name for one in ahead.jobs}
    if all(map(_timeless, ahead.jobs)):
        return
    if any(_long(low) != _long(high) for one in ahead.jobs for low, _, high in (one.range(_start), one.range(_end))):
        drawn = "run times of jobs without steps, arrivals and node failures"
        yield f"ranges are 80 % intervals of {max(ahead.completed - 1, 0)} simulations with drawn {drawn}"
    if scaled := sorted({kind for number, kind in guesses.scaled.items() if number in name_of}):
        yield f"measured with other numbers of workers, so scaled in proportion: {_listed(scaled)}"
    told: dict[str, Iterable[int]] = {}
    for number, finished in ahead.priors.items():
        took = " to ".join(dict.fromkeys(map(format_duration, ahead.ranges.get(number, ()))))
        similar = f"{finished:,} similar {'job' if finished == 1 else 'jobs'} took" + f" ({took})" * bool(took)
        what = f"assumed to run as long as {similar}"
        what = f"has run longer than {similar}, so the end follows from its age" if number in ahead.overdue else what
        told[what] = [*told.get(what, ()), number]
    told |= {
        "assumed to run until the time limit": ahead.limited,
        "end unknown, so assumed to keep running": () if single else ahead.unknown,
    }
    for what, numbers in told.items():
        if names := [name_of[number] for number in sorted(numbers) if number in name_of]:
            yield f"{what}: {_listed(names)}"
    others = {*guesses.scaled, *ahead.open_ended, *guesses.unmeasured} - name_of.keys()
    if others and any(one.without_arrivals.starts_s > 0 for one in ahead.jobs):
        many = f"{len(others):,} other {'job' if len(others) == 1 else 'jobs'}" + " of yours" * (not here)
        yield f"the start may depend on assumptions about {many}; `fairlead when` names them"


def _sentence(one: JobForecast, history_s: float, again: bool, why: str = "", *, unknown: str = "") -> str:
    begins, name = "resume" if again else "start", legible(one.name)
    if one.without_arrivals.never_starts:
        return f"{name} should never {begins}: it is refused or cancelled {_span(one, _end)}"
    if one.blocked and _never_begins(one):
        return f"{name} should {begins} {why}"
    if not one.running and one.range(_start)[0] == math.inf:
        if one.horizon_s < HORIZON_S:
            seen = f"not within {format_seconds(one.horizon_s)}, where the simulation ended"
            return f"no forecast yet when {name} should {begins}: {seen}"
        within = f"within {format_duration(HORIZON_S)}"
        if one.without_arrivals.starts_s < math.inf:
            alone = f"without arrivals, it {'resumes' if again else 'starts'} {_in(one.without_arrivals.starts_s)}"
            return f"{name} should not {begins} {within}, with arrivals as in the last {format_seconds(history_s)}; {alone}"
        return f"{name} should not {begins} {within} at present" + (f": {why}" if why else "")
    told = f"{name} " + ("runs" if one.running else f"should {begins} {_span(one, _start)}")
    if unknown:
        return f"{told}; {unknown}"
    ends = _span(one, _end)
    ends = "soon after" if not one.running and ends == _span(one, _start) else ends
    told += f" and {'should ' * one.running}end {ends}"
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
    waiting: dict[tuple[str, bool], list[str]] = {}
    for one in found:
        if why.get(one.number):
            waiting.setdefault((why[one.number], one.blocked), []).append(one.name)
    for (reason, blocked), names in waiting.items():
        listed = _listed(names)
        yield f"{listed} should start {reason}" if blocked else f"no forecast for {listed}: {reason}"


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
            elif one.number in unknown if of is _end else one.blocked and _never_begins(one):
                middle, between = "unknown", ["", ""]
            elif of is _end and [middle, *between] == cells:
                middle, between = "soon after", ["", ""]
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


def _data(ahead: ClusterForecast, records: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    guesses = ahead.guesses
    kinds = {
        "finished_jobs": ahead.priors,
        "time_limit": ahead.limited,
        "unmeasured": guesses.unmeasured,
        "unknown": ahead.unknown,
        "scaled": guesses.scaled,
    }
    return {
        "jobs": [
            {
                "number": one.number,
                "name": one.name,
                "runs": one.running,
                "starts_s": one.range(_start),
                "ends_s": None if _unknown_end(one, ahead) else one.range(_end),
                "without_arrivals": asdict(one.without_arrivals),
                "assumed": next((kind for kind, numbers in kinds.items() if one.number in numbers), None),
                "blocked": one.blocked and _never_begins(one),
                "reason": records.get(one.number, {}).get("reason") if _never_begins(one) else None,
            }
            for one in ahead.jobs
        ],
        "open_ended": len(ahead.open_ended),
        "unknown": len(ahead.unknown),
        "unmeasured_kinds": sorted({*guesses.unmeasured.values()}),
        "scaled_kinds": sorted({*guesses.scaled.values()}),
        "coverage": COVERAGE,  # of starts_s and ends_s, which are lower bound, median, upper bound
        "includes": ["run times of jobs without steps", "arrivals", "node failures"],
        "simulations": max(ahead.completed - 1, 0),
        "complete": ahead.completed > 0 or not ahead.jobs,
        "missed": ahead.missed,
        "horizon_s": ahead.jobs[0].horizon_s if ahead.jobs else 0.0,
    }
