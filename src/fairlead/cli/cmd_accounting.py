"""`fairlead history` and `fairlead usage`: accounting, like Slurm's sacct and sreport."""

from __future__ import annotations

import csv
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from fairlead.cli.job_info import local_time
from fairlead.cli.output import JsonOption, note, option_error, out, print_json
from fairlead.cli.selectors import StateOption, UserOption, control_plane, states_of
from fairlead.core.durations import parse_duration
from fairlead.core.job import with_parents
from fairlead.experiments.metric_columns import format_duration

SINCE = typer.Option("", help="Start: 2026-11-01, '2026-11-01 08:00', or an age such as 7d or 12h.", show_default=False)
UNTIL = typer.Option("now", help="End, in the same form.")
CSV = typer.Option(False, "--csv", help="Print CSV.")
MOMENT = "a date (2026-11-01), a time ('2026-11-01 08:00'), a duration (7d, 12h) or now"

_HISTORY = (
    ("number", "number"),
    ("name", "name"),
    ("user", "user"),
    ("account", "account"),
    ("state", "state"),
    ("exit_code", "exit"),
    ("submitted_at", "submitted"),
    ("started_at", "started"),
    ("ended_at", "ended"),
    ("waited_s", "waited"),
    ("ran_s", "ran"),
    ("gpus", "GPUs"),
    ("gpu_hours", "GPU hours"),
    ("lost_work_s", "lost"),
)


def history_command(
    since: str = SINCE,
    until: str = UNTIL,
    user: UserOption = "",
    state: StateOption = None,
    account: str = typer.Option("", help="Only jobs of this account and of the accounts below it.", show_default=False),
    limit: int | None = typer.Option(
        None, help="Show only the most recent jobs; 0: all. [default: 100; all with --csv]", min=0
    ),
    as_csv: bool = CSV,
    json: JsonOption = False,
) -> None:
    """List jobs that have ended, like sacct.

    Example:

      fairlead history --since 7d --state failed

    Shows when each job was submitted, started and ended, how long it waited and ran, and its GPU hours. Also how long it ran
    for nothing, because it was preempted without a checkpoint (lost). A job that was requeued has a line for each time that it
    ended. It waited from its submission to its first start. With --csv and --json durations are seconds, and with --json times
    are Unix times. Exit codes: 0 done, 2 a wrong value.
    """
    begin, end = _window(since, until)
    states = states_of(state)
    found = [
        job
        for job in control_plane().history(begin, end)
        if user in ("", job["user"])
        and (not account or account in with_parents(job["account"]))
        and (not states or job["state"] in states)
    ]
    jobs = found[-limit:] if (limit := (0 if as_csv else 100) if limit is None else limit) else found
    if len(jobs) < len(found):
        note(f"the last {len(jobs):,} of {len(found):,} jobs; --limit 0 shows all")
    if json:
        print_json({"jobs": jobs})
    elif as_csv:
        _print_csv([name for name, _ in _HISTORY], jobs)
    elif not jobs:
        out.print("no jobs ended in this window")
    else:
        table = Table(box=box.SIMPLE_HEAD, collapse_padding=True)
        for name, heading in _HISTORY:
            table.add_column(
                heading, overflow="fold", justify="right" if name in _NUMBERS else "left", no_wrap=name in _NUMBERS
            )
        for job in jobs:
            table.add_row(*(Text(_cell(name, job[name])) for name, _ in _HISTORY))
        out.print(table)


_NUMBERS = ("number", "exit_code", "waited_s", "ran_s", "gpus", "gpu_hours", "lost_work_s")


def _cell(name: str, value: Any) -> str:
    if value is None or (name == "lost_work_s" and not value):
        return ""
    if name.endswith("_at"):
        return local_time(value)
    if name.endswith("_s"):
        return format_duration(value)
    return f"{value:.3f}" if name == "gpu_hours" else str(value)


def _day(moment: datetime) -> datetime:
    return moment.replace(hour=0, minute=0, second=0, microsecond=0)


_PERIODS: dict[str, tuple[Callable[[datetime], datetime], Callable[[datetime], datetime]]] = {
    "day": (_day, lambda start: start + timedelta(days=1)),
    "week": (lambda moment: _day(moment) - timedelta(days=moment.weekday()), lambda start: start + timedelta(days=7)),
    "month": (lambda moment: _day(moment).replace(day=1), lambda start: (start + timedelta(days=32)).replace(day=1)),
}
"""The beginning of the period of a moment, in local time, and the beginning of the next one."""

_FIELDS = {"user": "user", "account": "account", "job-type": "job_type", "gpu-type": "gpu_type", "job": "name"}


def usage_command(
    since: str = SINCE,
    until: str = UNTIL,
    by: str = typer.Option("user,account", help="Columns: user, account, job, job-type, gpu-type, day, week, month."),
    ledger: bool = typer.Option(False, "--ledger", help="Show received and deserved GPU time, and the balance of each user."),
    as_csv: bool = CSV,
    json: JsonOption = False,
) -> None:
    """Show GPU time by user and account, or other columns, like sreport.

    Example:

      fairlead usage --since 7d --by user,week

    GPU hours are those between --since and --until; a job that ran longer counts only for this time. The column jobs counts
    the jobs that held GPUs in this time. A GPU that two jobs share counts for both. Without --since, the whole history of the
    cluster counts.
    Weeks begin on Monday; days, weeks and months are in local time.

    With --ledger: a user deserves a share of the GPUs by weight, while the user has admitted jobs, and at most what these
    request. Recent hours count fully, older ones half after each half-life (`ledger` in the scheduler file). A user who
    received less than deserved is owed GPU time. Users see their own rows and the totals. Exit codes: 0 done, 2 a wrong value.
    """
    if ledger:
        if since or until != "now" or by != "user,account":
            raise option_error("ledger", "no --since, --until or --by with it", "--ledger")
        _print_ledger(control_plane().ledger(), as_csv=as_csv, json=json)
        return
    names = [name.strip() for name in by.split(",") if name.strip()]
    if unknown := [name for name in names if name not in (*_FIELDS, *_PERIODS)]:
        raise option_error("by", f"some of {', '.join((*_FIELDS, *_PERIODS))}", unknown[0])
    plane = control_plane()
    if not since and until == "now" and names == ["user", "account"]:
        rows = [{**row, "gpu_hours": row["accelerator_hours"]} for row in plane.usage()]
    else:
        begin, end = _window(since, until)
        found = plane.runs(begin, end)
        if begin < found["known_since"] and begin > 0:
            note(f"GPU time is known from {local_time(found['known_since'])} on; the cluster has no earlier events")
        rows = usage_rows(found["runs"], names)
    if json:
        print_json({"usage": rows})
        return
    if as_csv:
        _print_csv([*names, "jobs", "gpu_hours"], rows)
        return
    table = Table(box=box.SIMPLE)
    for name in (*names, "jobs that ran", "GPU time"):
        table.add_column(name, justify="right" if name in ("jobs that ran", "GPU time") else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(str(row[name])) for name in (*names, "jobs")), format_duration(3600 * row["gpu_hours"]))
    out.print(table)


_LEDGER = ("received_gpu_hours", "deserved_gpu_hours", "recent_received_gpu_hours", "recent_deserved_gpu_hours")


def _print_ledger(found: Mapping[str, Any], *, as_csv: bool, json: bool) -> None:
    rows, total = found["users"], found["total"]
    if json:
        print_json(found)
        return
    if as_csv:
        _print_csv(["user", "account", *_LEDGER, "balance_gpu_hours"], rows)
        return
    table = Table(box=box.SIMPLE)
    for name in ("user", "account", "received", "deserved", "recent share", "deserved share", "balance"):
        table.add_column(name, justify="left" if name in ("user", "account") else "right", overflow="fold")
    for row in (*rows, {**total, "user": "all users", "account": ""}):
        shares = (f"{100 * row[name] / total[name]:.0f} %" if total[name] > 0 else "-" for name in _LEDGER[2:])
        times = (format_duration(3600 * row[name]) for name in _LEDGER[:2])
        balance = balance_words(row["balance_gpu_hours"]) if row in rows else ""
        table.add_row(Text(row["user"]), Text(row["account"]), *times, *shares, balance)
    out.print(table)
    physical, available = (format_duration(3600 * total[name]) for name in ("physical_gpu_hours", "available_gpu_hours"))
    out.print(
        f"GPU time since {local_time(found['known_since'])}. Of {available} on nodes that were up, jobs used {physical}; a GPU "
        f"that two jobs share counts for both. Recent: half-life {format_duration(found['half_life_s'])}."
    )


def balance_words(hours: float) -> str:
    """Return what a balance of the fairness ledger means."""
    if abs(hours) * 3600 < 1:
        return "even"
    return f"owed {format_duration(3600 * hours)}" if hours > 0 else f"ahead by {format_duration(-3600 * hours)}"


def usage_rows(runs: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[dict[str, Any]]:
    """Return GPU hours and the number of jobs for each combination of the named columns. Runs are cut where periods begin."""
    periods = [name for name in names if name in _PERIODS]
    hours: dict[tuple[str, ...], float] = {}
    jobs: dict[tuple[str, ...], set[int]] = {}
    for run in runs:
        for start, end in _pieces(run["start"], run["end"], periods):
            moment = datetime.fromtimestamp(start)
            period = {name: _PERIODS[name][0](moment).strftime("%Y-%m" if name == "month" else "%Y-%m-%d") for name in periods}
            key = tuple(period[name] if name in period else str(run[_FIELDS[name]]) for name in names)
            hours[key] = hours.get(key, 0.0) + run["gpus"] * (end - start) / 3600
            jobs.setdefault(key, set()).add(run["number"])
    return [{**dict(zip(names, key)), "jobs": len(jobs[key]), "gpu_hours": hours[key]} for key in sorted(hours)]


def _pieces(start: float, end: float, periods: Sequence[str]) -> Iterator[tuple[float, float]]:
    while start < end:
        moment = datetime.fromtimestamp(start)
        until = min([end, *(_PERIODS[name][1](_PERIODS[name][0](moment)).timestamp() for name in periods)])
        yield start, until
        start = until


def _window(since: str, until: str) -> tuple[float, float]:
    """Return --since and --until in Unix time."""
    now = time.time()
    begin = 0.0 if not since else _moment("since", since, now)
    end = _moment("until", until, now)
    if begin >= end:
        raise option_error("since", "a moment before --until", since)
    return begin, end


def _moment(option: str, text: str, now: float) -> float:
    if text == "now":
        return now
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        pass
    try:
        return now - parse_duration(text)
    except ValueError:
        raise option_error(option, MOMENT, text) from None


def _print_csv(names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow([name.replace("-", "_") for name in names])
    writer.writerows([_csv_value(name, row[name]) for name in names] for row in rows)


def _csv_value(name: str, value: Any) -> Any:
    if value is not None and name.endswith("_at"):  # with the zone of this machine
        return datetime.fromtimestamp(value).astimezone().isoformat(timespec="milliseconds")
    return "" if value is None else round(value, 6) if isinstance(value, float) else value
