"""`fairlead shadow`: a second scheduler next to the one in use. It follows a running cluster, or reads a journal once."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import typer
from rich import box
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fairlead.cli import options as opt
from fairlead.cli.cmd_scheduler import switch_to
from fairlead.cli.cmd_whatif import JournalArgument, OtherScheduler, interval_text, signed
from fairlead.cli.output import check_paths, note, option_error, option_seconds, out, print_json
from fairlead.cli.selectors import control_plane
from fairlead.config.registry import Registry
from fairlead.config.schedulers import SchedulerConfig, scheduler_of
from fairlead.core.errors import FairleadError, InputError
from fairlead.experiments.live_inputs import JournalFollower
from fairlead.experiments.metric_columns import Shows, format_duration, format_value
from fairlead.experiments.questions import chosen_scheduler
from fairlead.experiments.shadow import SHADOW_METRICS, ShadowComparison, compare_shadow
from fairlead.journal.recovery import read_journal
from fairlead.runtime.http_client import is_temporary

_FOLLOW = "Comparison"
_SHOWS: dict[str, Shows] = {"average_jct_s": "duration", "average_ftf": "ratio", "utilization": "share", "preemptions": "ratio"}


@opt.option_groups
def shadow_command(
    journal: JournalArgument = "",
    *,
    other: OtherScheduler,
    promote: bool = typer.Option(False, "--promote", help="After the last comparison, switch the cluster to this scheduler."),
    length: str = typer.Option(
        "", "--for", help="Follow a cluster for this long, as 1h; 0 compares once. [default: until Ctrl-C; 0 with --promote]"
    ),
    every: str = typer.Option("30s", help="Minimum time between two comparisons.", rich_help_panel=_FOLLOW),
    cpu: float = typer.Option(
        5.0, help="CPU time that comparisons may use, in percent of one core.", rich_help_panel=_FOLLOW, min=0.1, max=100
    ),
    json: opt.JsonOption = False,
) -> None:
    """Simulate another scheduler on the jobs of a running cluster, and compare it with the one in use.

    The shadow gets the same jobs, cancellations, node failures and drains. Its decisions are only simulated, with the
    throughputs and start costs that the cluster has measured. The scheduler in use is simulated too, as a control: do not
    trust a difference that is smaller than the error of the control. Differences are shadow − control, with 95 % intervals.

    Only jobs that have finished in all three runs are compared. A job that has not ended is simulated with its declared
    steps; without these, it keeps running.

    If the control plane is unreachable, the command waits, and then resumes. --json prints one object for each comparison.
    A running cluster needs an admin token.

    Examples:

      fairlead shadow --policy shockwave

      fairlead shadow --preset tiresias --for 1h --json

      fairlead shadow --policy srtf --promote

      fairlead shadow .fairlead/journal.sqlite --policy las
    """
    check_paths([Path(journal)] if journal and "://" not in journal else [], [])
    if journal and (promote or length):
        given = "promote" if promote else "for"
        raise InputError("shadow", "a running cluster, not a journal", field=given, value=journal)
    wait_s, length_s = option_seconds("every", every), option_seconds("for", length or ("0" if promote else "365d"))
    choice, registry = other.choice()

    def chosen(present: SchedulerConfig) -> SchedulerConfig:
        found = chosen_scheduler(present, choice, other.round_s)
        if replace(found, name="") == replace(present, name=""):
            raise InputError("shadow", "another scheduler than the one in use: --policy, --preset, --config or --round")
        found.build(None, registry)
        return found

    if journal:
        events = tuple(read_journal(journal))
        if not events:
            raise option_error("journal", "a journal with events", journal)
        present = next((e.scheduler for e in reversed(events) if hasattr(e, "scheduler")), {})
        _print(compare_shadow(events, chosen(scheduler_of(present)), name=journal, registry=registry), json)
        return
    plane = control_plane()
    present = plane.scheduler()
    scheduler = chosen(scheduler_of(present))
    pace = Pace(wait_s, cpu / 100, length_s)
    last, unreachable = None, "it has not answered"
    try:
        live = Live(console=out, auto_refresh=False) if out.is_terminal and not json else None
        with live or nullcontext():
            for last, unreachable in comparisons(JournalFollower(plane.journal), scheduler, registry, pace):
                if live is not None:
                    live.update(_view(last, unreachable), refresh=True)
                elif unreachable:
                    note(f"waiting for the control plane: {unreachable}")
                elif last is not None:
                    _print(last, json, pace)
    except KeyboardInterrupt:
        if promote:
            raise
    if promote:
        if last is None or unreachable:
            raise FairleadError(f"not promoted, because the last comparison failed: {unreachable}")
        switch_to(plane, scheduler, present, f"promoted from shadow: {last.verdict}", json)
    else:
        parts = (("policy", other.policy), ("preset", other.preset), ("round", other.round_s))
        how = [f"--{name} {value}" for name, value in parts if value]
        words = " ".join([*([str(other.config)] if other.config else []), *how])
        note(f"to use this scheduler: fairlead scheduler set {words}")


@dataclass
class Pace:
    """When to compare: every `wait_s`, but at most for a `share` of the time of one core; until `length_s` have passed."""

    wait_s: float
    share: float
    length_s: float
    clock: Callable[[], float] = time.monotonic
    cpu: Callable[[], float] = time.process_time
    sleep: Callable[[float], None] = time.sleep

    def __post_init__(self) -> None:
        self.began = self.clock()

    @property
    def used(self) -> tuple[float, float]:
        """CPU seconds of this process, its start included, and seconds since it began."""
        return self.cpu(), self.clock() - self.began

    def turns(self) -> Iterator[None]:
        """Yield when it is time for the next comparison."""
        while True:
            begin, before = self.clock(), self.cpu()
            yield
            due = begin + max(self.wait_s, (self.cpu() - before) / self.share)
            if due > self.began + self.length_s:
                return
            self.sleep(max(0.0, due - self.clock()))


def comparisons(
    follower: JournalFollower, scheduler: SchedulerConfig, registry: Registry, pace: Pace
) -> Iterator[tuple[ShadowComparison | None, str]]:
    """Yield a comparison when there are new events; while the control plane does not answer, the one before and the problem.
    When it answers again, the problem is empty."""
    last, unreachable = None, ""
    for _ in pace.turns():
        before, unreachable = unreachable, ""
        try:
            news = follower.catch_up()
        except FairleadError as problem:
            if not is_temporary(problem):
                raise
            news, unreachable = False, str(problem)
        if news:
            last = compare_shadow(follower.events, scheduler, registry=registry)
        if news or unreachable or before:
            yield last, unreachable


def _print(found: ShadowComparison, json: bool, pace: Pace | None = None) -> None:
    if json:
        used = {} if pace is None else dict(zip(("cpu_s", "elapsed_s"), (round(each, 3) for each in pace.used)))
        print_json({**found.to_dict(), **used})
    else:
        out.print(_view(found))


def _view(found: ShadowComparison | None, unreachable: str = "") -> RenderableType:
    problem = [Text(f"outdated; waiting for the control plane: {unreachable}", style="red")] if unreachable else []
    if found is None:
        return Group(*problem)
    title = f"shadow {found.scheduler} next to {found.live_scheduler}, {found.compared} of {found.jobs} jobs compared"
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", title=title, title_justify="left", collapse_padding=True)
    for column in ("", "live", "control", "shadow", "difference", "95 % interval"):
        table.add_column(column, justify="left" if not column else "right", no_wrap=True)
    for name, one in found.metrics.items():
        show = _SHOWS[name]
        values = (format_value(each, show) for each in (one.live, one.control, one.shadow))
        middle, half_width = one.difference.difference, one.difference.half_width
        ends = interval_text(middle - half_width, middle + half_width, show)
        table.add_row(SHADOW_METRICS[name], *values, signed(one.shadow - one.control, show), ends)
    error = f"; error of the control {100 * found.model_error:+.1f} %" if math.isfinite(found.model_error) else ""
    after = f"after {format_duration(found.second)}: {found.verdict}{error.replace('-', '−')}"
    guessed = [Text(f"not measured, so the mean of other GPU types: {'; '.join(found.guessed)}")] if found.guessed else []
    if found.undeclared:
        guessed.append(Text(f"{found.undeclared} jobs declared no steps; simulations know their work from the start"))
    return Group(*problem, *([table] if found.metrics else []), Text(after), *guessed)
