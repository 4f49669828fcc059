"""`fairlead trace`: generate, convert, transform, describe and check traces. `fairlead rates`: throughputs of a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich import box
from rich.table import Table

from fairlead.cli import options as opt
from fairlead.cli.job_tables import legible
from fairlead.cli.output import check_paths, note, option_error, out, print_json
from fairlead.cli.selectors import control_plane
from fairlead.core.errors import InputError
from fairlead.experiments.inputs import TraceFile, read_table
from fairlead.experiments.metric_columns import format_duration
from fairlead.experiments.metrics import measure_from
from fairlead.workloads import transform as change
from fairlead.workloads.catalogue import catalogue
from fairlead.workloads.formats import write_trace
from fairlead.workloads.formats.own_columns import parse_columns
from fairlead.workloads.generate import USERS, Generator
from fairlead.workloads.table_files import write_throughputs
from fairlead.workloads.throughput_tables import MeasuredRate, ThroughputTable, draft_table
from fairlead.workloads.trace import Trace, trace_stats

T = TypeVar("T", int, float)

trace_app = typer.Typer(help="Generate, convert, transform and check traces.", no_args_is_help=True, rich_markup_mode=None)

SourceArgument = Annotated[Path, typer.Argument(help="The trace file.")]
OUTPUT = typer.Option(..., "--out", "--output", "-o", help="The file to write: .csv or .parquet, native format.")
REFERENCE_TYPE = "v100"
REFERENCE = typer.Option(
    None, help=f"GPU type of the throughput table that durations refer to. [default: {REFERENCE_TYPE}, or the only type]"
)


@trace_app.command()
def generate(
    output: Path = OUTPUT,
    jobs: opt.JobsOption = 100,
    load: float = typer.Option(4.0, help="Jobs per hour, as a Poisson process."),
    static: bool = typer.Option(False, "--static", help="All jobs arrive at second 0."),
    throughputs: Path | None = opt.THROUGHPUTS,
    kinds: str = typer.Option("", help="Job types or models, separated by commas. [default: all]"),
    reference_type: str | None = REFERENCE,
    durations: str = typer.Option(
        "gavel", help="'gavel' (10^x minutes), 'shockwave' (size classes), or seconds separated by commas."
    ),
    workers: opt.WorkersOption = "single",
    priorities: float = typer.Option(0.0, help="Share of jobs with high priority."),
    accounts: str = typer.Option("", "--accounts", "--entities", help="Accounts and shares, as in 'a=0.5,b=0.5'."),
    users: opt.UsersOption = USERS,
    slos: str = typer.Option("", help="Deadlines as multiples of the duration, as in '1.2,2,10'."),
    modes: str = typer.Option(
        "", help="Shares of batch-size modes: static, accordion, gns, expert, as in 'static=0.5,gns=0.5'."
    ),
    schedule: str = typer.Option("", help="For mode expert: multiples of the batch size and shares, as in '1@0.3|4@0.7'."),
    memory: bool = typer.Option(False, "--memory", help="Jobs declare the GPU memory that they need."),
    seed: int = opt.SEED,
    json: opt.JsonOption = False,
) -> None:
    """Generate a trace as in Gavel §7.1 or Shockwave §8.1.

    'simulate' and 'compare' have other defaults: --jobs 200, 6 jobs per hour, --workers multiple.

    Example:

      fairlead trace generate --jobs 500 --load 6 --workers multiple -o jobs.csv
    """
    check_paths([], [output])
    lengths = durations if durations in ("gavel", "shockwave") else tuple(opt.parse_numbers("--durations", durations))
    table = read_table(throughputs) or catalogue()
    with opt.errors_by_option():
        generator = Generator(
            jobs=jobs,
            jobs_per_hour=None if static else load,
            table=table,
            kinds=tuple(part.strip() for part in kinds.split(",") if part.strip()),
            reference_type=_reference_type(table, reference_type),
            durations=lengths,
            workers=workers,
            priorities=priorities,
            accounts=_shares("--accounts", accounts),
            users=users,
            slos=tuple(opt.parse_numbers("--slos", slos)),
            modes=_shares("--modes", modes) or {"static": 1.0},
            schedule=_schedule(schedule),
            memory=memory,
        )
        made = generator.trace(seed)
    _write(made, output, json)


@trace_app.command()
def convert(
    source: SourceArgument,
    output: Path = OUTPUT,
    format: str | None = opt.FORMAT,
    columns: str | None = opt.COLUMNS,
    regimes: Path | None = opt.REGIMES,
    throughputs: Path | None = opt.THROUGHPUTS,
    skip_bad: bool = opt.SKIP_BAD,
    json: opt.JsonOption = False,
) -> None:
    """Convert a trace of any known format to the native format.

    Example:

      fairlead trace convert philly.csv -o philly.parquet
    """
    check_paths([], [output])
    trace = TraceFile(source, format, skip_bad, regimes, columns=_columns(columns)).read(read_table(throughputs))
    opt.note_skipped(trace, quiet=json)
    _write(trace, output, json)


@trace_app.command()
def transform(
    source: SourceArgument,
    output: Path = OUTPUT,
    format: str | None = opt.FORMAT,
    columns: str | None = opt.COLUMNS,
    skip_bad: bool = opt.SKIP_BAD,
    keep_workers: str = typer.Option("", help="Keep only jobs with these numbers of workers, as in '1,2,4,8'."),
    slice: str | None = typer.Option(None, help="Keep jobs by submission order, as in 0:1000."),
    window: str | None = typer.Option(None, help="Keep jobs by submission time in seconds, as in 0:86400."),
    thin: float | None = typer.Option(None, help="Keep this share of the jobs, at random."),
    scale_time: float | None = typer.Option(None, help="Multiply submission times by this factor."),
    load: float | None = typer.Option(None, help="Replace submission times by a Poisson process with this many jobs per hour."),
    daily_spike: str | None = typer.Option(None, help="Extra jobs in one hour of each day, as jobs@hour: '16@9'."),
    bursts: float | None = typer.Option(
        None, help="Add bursts of short jobs: two of every four hours, at twice this many jobs per hour."
    ),
    random_kinds: bool = typer.Option(
        False, "--random-kinds", help="Give each job a job type of the throughput table; its duration stays."
    ),
    throughputs: Path | None = opt.THROUGHPUTS,
    reference_type: str | None = REFERENCE,
    loss_curves: str | None = typer.Option(
        None, help="Jobs report losses. In '0.75@0.4', 75 % of the jobs converge after 40 % of their steps."
    ),
    seed: int = opt.SEED,
    json: opt.JsonOption = False,
) -> None:
    """Transform a trace. Options apply in the order of this list.

    Example:

      fairlead trace transform philly.csv --keep-workers 1,2,4,8 --load 8 --random-kinds -o blox.csv
    """
    check_paths([], [output])
    table = read_table(throughputs)
    trace = TraceFile(source, format, skip_bad, columns=_columns(columns)).read(table)
    opt.note_skipped(trace, quiet=json)
    if keep_workers:
        sizes = opt.parse_numbers("--keep-workers", keep_workers)
        if not all(size >= 1 and size == int(size) for size in sizes if size < float("inf")) or float("inf") in sizes:
            raise option_error("keep-workers", "whole numbers of at least 1", keep_workers)
        trace = change.keep_workers(trace, [int(size) for size in sizes])
    if slice is not None:
        trace = change.slice_jobs(trace, *measure_from(slice))
    if window is not None:
        trace = change.slice_time(trace, *_window(window))
    if thin is not None:
        trace = change.thin(trace, thin, seed)
    if scale_time is not None:
        trace = change.scale_time(trace, scale_time)
    if load is not None:
        trace = change.retime_poisson(trace, load, seed)
    if daily_spike is not None:
        trace = change.daily_spike(trace, *_pair("daily-spike", daily_spike, int, "jobs@hour, as in '16@9'"), seed)
    if bursts is not None:
        trace = change.short_bursts(trace, bursts, seed)
    if random_kinds:
        rates = table or catalogue()
        trace = change.with_random_kinds(trace, rates, None, seed, _reference_type(rates, reference_type))
    if loss_curves is not None:
        expected = "share of jobs@share of steps, as in '0.75@0.4'"
        trace = change.with_loss_curves(trace, seed, *_pair("loss-curves", loss_curves, float, expected))
    _write(trace, output, json)


@trace_app.command()
def stats(
    source: SourceArgument,
    format: str | None = opt.FORMAT,
    columns: str | None = opt.COLUMNS,
    throughputs: Path | None = opt.THROUGHPUTS,
    skip_bad: bool = opt.SKIP_BAD,
    accelerators: int | None = typer.Option(None, help="Print the load on this many GPUs.", min=1),
    json: opt.JsonOption = False,
) -> None:
    """Describe a trace: jobs, gang sizes, durations and load.

    Example:

      fairlead trace stats philly.csv --accelerators 400
    """
    trace = TraceFile(source, format, skip_bad, columns=_columns(columns)).read(read_table(throughputs))
    found = trace_stats(trace, accelerators)
    if json:
        print_json(found.to_dict())
        return
    table = Table(title=str(source), box=box.SIMPLE, show_header=False, title_justify="left")
    table.add_row("jobs", f"{found.jobs:,}" + (f" ({found.skipped:,} lines skipped)" if found.skipped else ""))
    table.add_row("from first to last", format_duration(found.span_s) + (f", from {found.origin}" if found.origin else ""))
    table.add_row("jobs per hour", "–" if found.jobs_per_hour is None else f"{found.jobs_per_hour:.2f}")
    table.add_row("workers", ", ".join(f"{size}: {count:,}" for size, count in found.workers.items()))
    table.add_row("users, accounts, kinds", f"{found.users}, {found.accounts}, {len(found.kinds)}")
    if found.duration_s:
        table.add_row("run time", ", ".join(f"{name} {format_duration(value)}" for name, value in found.duration_s.items()))
    if found.accelerator_hours is not None:
        table.add_row("GPU-hours", f"{found.accelerator_hours:,.0f}")
    if found.offered_load is not None:
        table.add_row(f"load on {found.accelerators}", f"{100 * found.offered_load:.1f} %")
    elif accelerators is not None:
        table.add_row(f"load on {accelerators}", "– (durations depend on the GPU type)")
    out.print(table)


@trace_app.command()
def check(
    source: SourceArgument,
    format: str | None = opt.FORMAT,
    columns: str | None = opt.COLUMNS,
    throughputs: Path | None = opt.THROUGHPUTS,
    json: opt.JsonOption = False,
) -> None:
    """Check a trace. Lists its errors; equal errors are listed once, with their lines. The exit code is 1 if there are any.

    Example:

      fairlead trace check jobs.csv
    """
    trace = TraceFile(source, format, skip_bad=True, columns=_columns(columns)).read(read_table(throughputs))
    if json:
        problems = [
            {"file": p.source, "line": p.line, "field": p.field, "value": p.value, "expected": p.expected}
            for p in trace.skipped
        ]
        print_json({"file": str(source), "jobs": len(trace), "problems": problems, "unread_columns": list(trace.unread)})
    else:
        for line in _grouped(trace.skipped):
            out.print(line, soft_wrap=True)
        if trace.unread:
            out.print(legible(f"columns that are not read: {', '.join(trace.unread)}"), soft_wrap=True)
        out.print(f"{source}: {len(trace):,} jobs; lines skipped: {len(trace.skipped):,}", soft_wrap=True)
    if trace.skipped:
        raise typer.Exit(1)


MAX_LINES_NAMED = 5


def _grouped(problems: Sequence[InputError]) -> list[str]:
    """One line of text for equal errors: the first of them, their number, and their first lines."""
    groups: dict[tuple[str, str | None, str], list[InputError]] = {}
    for problem in problems:
        groups.setdefault((problem.source, problem.field, problem.expected), []).append(problem)
    texts = []
    for found in groups.values():
        lines = [str(one.line) for one in found if one.line is not None]
        more = ", …" if len(lines) > MAX_LINES_NAMED else ""
        texts.append(
            str(found[0]) + (f" ({len(found):,} lines: {', '.join(lines[:MAX_LINES_NAMED])}{more})" if len(lines) > 1 else "")
        )
    return texts


def _columns(text: str | None) -> dict[str, str]:
    return {} if text is None else parse_columns(text)


def _write(trace: Trace, output: Path, json: bool) -> None:
    write_trace(trace, output)
    if json:
        print_json({"file": str(output), "jobs": len(trace), "span_s": trace.span_s, "skipped_lines": len(trace.skipped)})
    else:
        note(f"{output}: {len(trace):,} jobs over {format_duration(trace.span_s)}")


def _reference_type(table: ThroughputTable, asked: str | None) -> str:
    """Return the reference type. An error names the option, as its default may not fit the user's own table."""
    only = table.types[0] if len(table.types) == 1 else REFERENCE_TYPE
    reference_type = only if asked is None else asked
    if reference_type not in table.types:
        known = f"a type of the throughput table ({', '.join(table.types)})"
        raise option_error("reference-type", known, reference_type)
    return reference_type


def _shares(option: str, text: str) -> dict[str, float]:
    shares: dict[str, float] = {}
    for part in filter(str.strip, text.split(",")):
        name, equals, share = part.partition("=")
        try:
            shares[name.strip()] = float(share)
        except ValueError:
            equals = ""
        if not equals or not name.strip():
            raise InputError(option, "name=share pairs, as in 'a=0.5,b=0.5'", field=option.strip("-"), value=part)
    return shares


def _window(text: str) -> tuple[float, float]:
    try:
        start, end = text.split(":")
        return float(start or 0), float(end or "inf")
    except ValueError:
        raise option_error("window", "from:to in seconds, as in '0:86400'", text) from None


def _pair(option: str, text: str, kind: type[T], expected: str) -> tuple[T, T]:
    """Return the two numbers of a text such as '16@9'."""
    try:
        one, other = map(kind, text.split("@"))
        return one, other
    except ValueError:
        raise InputError(f"--{option}", expected, field=option, value=text) from None


def _schedule(text: str) -> tuple[tuple[float, float], ...]:
    """'1@0.3|4@0.7' → ((1.0, 0.3), (4.0, 0.7))."""
    try:
        pairs = [piece.split("@") for piece in text.split("|")] if text else []
        return tuple((float(multiple), float(share)) for multiple, share in pairs)
    except ValueError:
        expected = "multiples of the batch size and shares of the steps, as in '1@0.3|4@0.7'"
        raise option_error("schedule", expected, text) from None


rates_app = typer.Typer(help="Export the throughputs that a cluster has measured.", no_args_is_help=True, rich_markup_mode=None)


@rates_app.callback()
def rates_group() -> None:
    """Export the throughputs that a cluster has measured."""


@rates_app.command()
def export(
    to: Path = typer.Option(Path("rates.csv"), "--out", help="The file to write: .csv or .parquet."),
    all_types: bool = typer.Option(
        False, "--all-types", help="Fill in GPU types that were not measured with the mean over the others."
    ),
    json: opt.JsonOption = False,
) -> None:
    """Write measured throughputs as a table for the simulator.

    Examples:

      fairlead rates export --out rates.csv
      fairlead simulate --policy las --throughputs rates.csv --trace jobs.csv

    The table has steps per second by job type, workers, GPU type, and consolidated or spread placement. A simulation does not
    place a job on a GPU type for which its job type was not measured, unless you pass --all-types. Jobs of one type should do
    the same work: set 'kind' in the task file. The default is the name of the script.
    """
    told = control_plane().rates()
    if json:
        print_json(told)
        return
    rates = [
        MeasuredRate(one["kind"], one["workers"], one["type"], one["placement"] == "spread", one["steps_per_s"])
        for one in told["rates"]
    ]
    draft = draft_table(rates, told["types"] if all_types else (), to)
    write_throughputs(draft.finish(), to)
    note(f"wrote {to}: {len(draft.alone)} rates of {len(draft.sources)} job types and gang sizes")
    pairs = [(kind, workers, name) for kind, workers in draft.sources for name in told["types"]]
    unseen = [f"{kind} on {name}" for kind, workers, name in pairs if ((kind, workers), name) not in draft.alone]
    if unseen:
        some = ", ".join(unseen[:5]) + (" …" if len(unseen) > 5 else "")
        note(f"not measured, so 0 in the table: {some}; --all-types fills them in")
