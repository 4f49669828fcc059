"""`fairlead whatif`: a fork of a cluster with changes, simulated against the same fork without."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer
from pydantic import ValidationError
from rich import box
from rich.table import Table

from fairlead.cli import options as opt
from fairlead.cli import selectors
from fairlead.cli.job_tables import legible
from fairlead.cli.output import (
    check_paths,
    note,
    option_error,
    option_pairs,
    option_seconds,
    out,
    page_source,
    print_json,
    progress,
)
from fairlead.config.registry import Registry
from fairlead.config.schedulers import SchedulerConfig, with_policy_files
from fairlead.core.errors import InputError
from fairlead.experiments.fork import Fork
from fairlead.experiments.metric_columns import Shows, format_duration, format_value
from fairlead.experiments.questions import changes_of, options_of
from fairlead.experiments.whatif import METRICS, MIN_SCENARIOS, past_fork, what_if
from fairlead.reporting.html import write_report
from fairlead.runtime.protocol.whatif_request import SchedulerChoice, WhatIfRequest

if TYPE_CHECKING:
    from fairlead.core.events import Event

MAX_SHOWN = 10
"""Users, and jobs, of each side in the tables; JSON has all."""

_DURATIONS = ("average_jct_s", "p90_jct_s", "average_wait_s", "makespan_s")
_USERS = "USER=NUMBER, as in bob=4"
_JOURNAL = "A journal (x.sqlite, x.jsonl, postgresql://…). [default: the running cluster]"
JournalArgument: TypeAlias = Annotated[str, typer.Argument(help=_JOURNAL, show_default=False)]
_CHANGES, _FORK = "Changes", "Fork and simulation"


@dataclass(frozen=True)
class OtherScheduler:
    """The options for another scheduler than the one in use."""

    panel = "Another scheduler"
    policy: str = typer.Option("", help="A policy, as 'las:by=time' or 'mine.py:MyPolicy'; the other parts stay.")
    preset: str = typer.Option("", help="A preset, as a complete scheduler.")
    config: Path | None = typer.Option(None, help="A scheduler file, as a complete scheduler.")
    round_s: float | None = typer.Option(None, "--round", help="Round length, in seconds.", min=0.1)

    def choice(self) -> tuple[SchedulerChoice | None, Registry]:
        """Return the scheduler that is chosen, None if only the round length is, and the parts that it may have."""
        names, registry = with_policy_files([self.policy] if self.policy else [])
        if sum(map(bool, (names, self.preset, self.config))) > 1:
            raise InputError("scheduler", "one of --policy, --preset and --config")
        if self.config:
            return SchedulerChoice(config=SchedulerConfig.from_file(self.config).to_data()), registry
        if names:
            return SchedulerChoice(policy=names[0]), registry
        return SchedulerChoice(preset=self.preset) if self.preset else None, registry


@opt.option_groups
def whatif_command(
    journal: JournalArgument = "",
    *,
    other: OtherScheduler,
    add: str = typer.Option(
        "", help="Nodes to add: GPUs × type : GPUs per node, as in '16xh200:8' for two nodes.", rich_help_panel=_CHANGES
    ),
    remove: list[str] | None = typer.Option(
        None, help="A node to remove, by name; its jobs save and move. Repeatable.", rich_help_panel=_CHANGES
    ),
    quota: list[str] | None = typer.Option(
        None, help="GPUs that a user may have, as USER=GPUS. Repeatable.", rich_help_panel=_CHANGES
    ),
    weight: list[str] | None = typer.Option(
        None, help="Weight of all jobs of a user, as USER=WEIGHT. Repeatable.", rich_help_panel=_CHANGES
    ),
    without: list[str] | None = typer.Option(
        None, help="A job to cancel, by name or number. Repeatable.", rich_help_panel=_CHANGES
    ),
    submit: list[Path] | None = typer.Option(
        None, help="A task file of a job to submit now. Repeatable.", rich_help_panel=_CHANGES
    ),
    arrivals: str = typer.Option("", help="More or fewer arrivals, as +20% or -50%.", rich_help_panel=_CHANGES),
    fault: list[str] | None = typer.Option(
        None, help="A node that fails, as NODE:IN:FOR (v100-3:30m:4h). Repeatable.", rich_help_panel=_CHANGES
    ),
    at: str = typer.Option(
        "", help="Start this long before the end of a journal, as 2d, instead of at its end.", rich_help_panel=_FORK
    ),
    past: str = typer.Option(
        "", help="First simulate the last part of a journal (as 7d) as it was, and print the error.", rich_help_panel=_FORK
    ),
    simulations: int = typer.Option(5, help="Scenarios of arrivals, or of start times.", rich_help_panel=_FORK, min=1, max=100),
    window: float = typer.Option(
        6.0, help="Hours of the recent past from which arrivals are drawn.", rich_help_panel=_FORK, min=0.01, max=100000.0
    ),
    report: Path | None = typer.Option(None, help="Write a page with both timelines to this file.", rich_help_panel=_FORK),
    json: opt.JsonOption = False,
) -> None:
    """Simulate a cluster from now on with changes, and show which users and jobs gain or pay.

    The present state of the cluster is simulated twice in each scenario: as it is, and with the changes. Both get the same
    arrivals, drawn from the recent past. A 95 % interval is for the difference in one future scenario, not for the mean of
    all. Users and jobs gain if their JCT is shorter, and pay if it is longer. The cluster does not change.

    The control plane simulates a running cluster, for at most a minute. Without an admin token, you do not see the names
    of other users and their jobs, and cannot change their quotas and weights. --report and a policy file (mine.py:MyPolicy)
    simulate on this machine, and need an admin token.

    --at starts before the end of a journal, with the jobs that really arrived and the work that they really did. With the
    journal of a real cluster, scenarios differ in how long starts and decisions take.

    Examples:

      fairlead whatif --add 8xh200:8

      fairlead whatif --policy srtf --quota bob=4 --report whatif.html

      fairlead whatif .fairlead/journal.sqlite --past 7d --policy max-min-fairness
    """
    check_paths([Path(journal)] if journal and "://" not in journal else [], [report])
    if (at or past) and not journal:
        raise InputError("whatif", "a journal, as in 'whatif FILE.sqlite'", field="at" if at else "past", value=at or past)
    choice, registry = other.choice()
    changes = {
        "scheduler": choice.model_dump() if choice else None,
        "round_s": other.round_s,
        "add": add,
        "remove": remove or [],
        "quotas": {user: _count("quota", text) for user, text in option_pairs("quota", quota or (), _USERS)},
        "weights": {user: _positive("weight", text) for user, text in option_pairs("weight", weight or (), _USERS)},
        "without": without or [],
        "submit": [_task(path) for path in submit or ()],
        "arrivals": _proportion(arrivals),
        "faults": [_fault(word) for word in fault or ()],
    }
    if add:
        opt.live_cluster_of(add)  # it says best what is wrong
    nothing = not any(value != 1.0 if key == "arrivals" else value for key, value in changes.items())
    if nothing and not past:
        raise InputError("whatif", "at least one change, such as --policy, --add or --without")
    asked = changes | {"scenarios": simulations, "window_s": 3600 * window}
    if not journal and not report and (choice is None or choice.policy in ("", other.policy)):
        with progress(None, "simulating", quiet=json):
            found = selectors.control_plane().whatif(asked)
        _print(found, json)
        return
    events = _events(journal)
    if past:
        _validate(events, option_seconds("past", past), journal, simulations, quiet=json)
    if not nothing:
        _simulate(_fork(events, journal, at, quiet=json), _request(asked), registry, report, json)


def _simulate(fork: Fork, request: WhatIfRequest, registry: Registry, report: Path | None, json: bool) -> None:
    """Simulate here: a journal, or what a control plane cannot do."""
    changes, options = changes_of(request, fork, "you", registry), options_of(request)
    runs = 2 * options.scenarios if fork.past or fork.start.costs.varies else 2
    with progress(runs, "simulating", quiet=json) as bar:
        found = what_if(
            fork, changes, options, registry=registry, keep_records=report is not None, on_run=lambda _: bar.advance()
        )
    _print(found.to_dict(), json)
    if report is not None and found.runs is not None:
        notes = [_sentence(name, values) for name, values in found.to_dict()["metrics"].items()]
        path = write_report(found.runs, report, title="What if", notes=notes, source=page_source())
        note(f"report: {path}")


def _request(asked: dict[str, Any]) -> WhatIfRequest:
    try:
        return WhatIfRequest.model_validate(asked)
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError("whatif", str(first["msg"]), field=".".join(map(str, first["loc"]))) from None


def _events(journal: str) -> Sequence[Event]:
    from fairlead.journal.recovery import read_journal

    return tuple(read_journal(journal)) if journal else ()


def _fork(events: Sequence[Event], journal: str, at: str, quiet: bool) -> Fork:
    from fairlead.experiments.live_inputs import fetch_state
    from fairlead.experiments.whatif import state_at
    from fairlead.runtime.control.views import rates

    if at:
        return past_fork(events, events[-1].time - option_seconds("at", at), journal).fork
    if events:
        state = state_at(events, events[-1].time)
        return Fork.of(state, {"rates": rates(state)})
    plane = selectors.control_plane()
    with progress(None, "fetching the state", quiet=quiet):
        return Fork.of(fetch_state(plane), plane.rates())


def _validate(events: Sequence[Event], length_s: float, journal: str, simulations: int, quiet: bool) -> None:
    """Simulate the past as it was, and print how far that is from what happened."""
    begin = max(events[0].time, events[-1].time - length_s)
    with progress(None, "simulating the past", quiet=quiet):
        recorded, simulated, jobs = zip(*past_fork(events, begin, journal).simulated(simulations))
    real, mean = fmean(recorded), fmean(simulated)
    error = 100 * (mean - real) / real if real else math.nan
    several = f"; {format_duration(min(simulated))} to {format_duration(max(simulated))}" if len(simulated) > 1 else ""
    text = f"average JCT {format_duration(real)} recorded, {format_duration(mean)} simulated ({error:+.1f} %{several})"
    note(f"the last {format_duration(events[-1].time - begin)} as they were, {min(jobs)} jobs: {text.replace('-', '−')}")


def _count(option: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 10**9:
        raise option_error(option, "a whole number of GPUs from 1 on", text)
    return int(text)


def _positive(option: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise option_error(option, "a number above 0", text)
    return value


def _proportion(text: str) -> float:
    if not text:
        return 1.0
    number = text.strip().removesuffix("%").replace("−", "-")
    try:
        found = 1.0 + float(number) / 100
    except ValueError:
        found = math.nan
    if text.strip()[-1] != "%" or not 0 <= found <= 2:
        raise option_error("arrivals", "a percentage from -100% to +100%, as in +20%", text)
    return found


def _task(path: Path) -> dict[str, Any]:
    from fairlead.config.yaml_source import read_yaml
    from fairlead.runtime.protocol.task_file import parse_task

    task = {"name": path.stem} | {key: value for key, value in dict(read_yaml(path).data).items() if key != "code"}
    return parse_task(task, str(path)).model_dump(mode="json", exclude_unset=True)


def _fault(word: str) -> dict[str, Any]:
    name, *times = word.rsplit(":", 2)
    if not name or len(times) != 2:
        raise option_error("fault", "NODE:IN:FOR, as in v100-3:30m:4h", word)
    begins, lasts = (option_seconds("fault", text) for text in times)
    return {"node": name, "in_s": begins, "for_s": max(lasts, 1.0)}


def _print(found: Mapping[str, Any], json: bool) -> None:
    if json:
        print_json(found)
    else:
        _print_tables(found)
    for guess in found["guesses"]:
        note(guess)


def _print_tables(found: Mapping[str, Any]) -> None:
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", collapse_padding=True)
    for column in ("", "as it is", "changed", "difference", "95 % interval" if found["scenarios"] >= MIN_SCENARIOS else ""):
        table.add_column(column, justify="left" if not column else "right", no_wrap=True)
    for name, values in found["metrics"].items():
        show = _shows(name)
        row = (*(format_value(values[key], show) for key in ("control", "changed")), signed(values["difference"], show))
        table.add_row(METRICS[name], *row, interval_text(values["low"], values["high"], show))
    out.print(table)
    for title in ("users", "jobs"):
        _print_groups(title, [row for row in found[title] if row["difference"] is not None])
    both = {name: [math.inf if s is None else s for s in times] for name, times in found["starts_s"].items()}
    waiting = {name: times for name, times in both.items() if times[0] != times[1]}
    if waiting:
        starts = sorted(waiting.items(), key=lambda one: one[1][1] - one[1][0] if math.inf not in one[1] else -math.inf)
        table = Table(box=box.SIMPLE_HEAD, header_style="bold", collapse_padding=True)
        for column in ("starts", "as it is", "changed"):
            table.add_column(column, justify="left" if column == "starts" else "right", no_wrap=True)
        for name, (control, changed) in starts[:MAX_SHOWN]:
            table.add_row(legible(name), _start(control), _start(changed))
        out.print(table)


def _print_groups(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    gain = [one for one in rows if one["difference"] < -0.5]
    pay = [one for one in reversed(rows) if one["difference"] > 0.5]
    for word, side in (("gain", gain), ("pay", pay)):
        if not side:
            continue
        table = Table(box=box.SIMPLE_HEAD, header_style="bold", collapse_padding=True)
        for column in (f"{title} that {word}", "jobs", "JCT as it is", "changed", "difference", "95 % interval"):
            table.add_column(column, justify="left" if column == f"{title} that {word}" else "right", no_wrap=True)
        for one in side[:MAX_SHOWN]:
            name = legible(one["name"]) or f"{one['number']} of another user"
            times = (format_duration(one["control_s"]), format_duration(one["changed_s"]))
            ends = interval_text(one["low"], one["high"], "duration")
            table.add_row(name, str(one["jobs"]), *times, signed(one["difference"], "duration"), ends)
        out.print(table)
        if len(side) > MAX_SHOWN:
            note(f"and {len(side) - MAX_SHOWN} more {title} that {word}; --json lists all")


def _start(second: float) -> str:
    return "–" if second == math.inf else format_duration(second)


def _shows(metric: str) -> Shows:
    return "duration" if metric in _DURATIONS else "share" if metric == "utilization" else "count"


def signed(value: float, show: Shows) -> str:
    """A difference with its sign."""
    text = format_value(abs(value), show)
    return text if text == "–" or value == 0 else f"{'+' if value > 0 else '−'}{text}"


def interval_text(low: float | None, high: float | None, show: Shows) -> str:
    """Both ends of an interval; empty where it has none."""
    ends = [end for end in (low, high) if end is not None and math.isfinite(end)]
    return " to ".join(signed(end, show) for end in ends)


def _sentence(name: str, values: Mapping[str, Any]) -> str:
    show = _shows(name)
    both = (format_value(values[key], show) for key in ("control", "changed"))
    return f"{METRICS[name]}: {next(both)} as it is, {next(both)} changed"
