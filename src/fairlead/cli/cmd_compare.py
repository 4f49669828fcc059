"""`fairlead compare`: several schedulers, loads and seeds on the same jobs, and sweeps over them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer
from rich.table import Table

from fairlead.api.run_results import ComparisonResult
from fairlead.cli import options as opt
from fairlead.cli.output import (
    check_paths,
    fitted_table,
    note,
    option_error,
    out,
    page_source,
    print_json,
    progress,
    say_resumable,
)
from fairlead.config.schedulers import SchedulerConfig, parse_part, with_policy_files
from fairlead.config.workload_files import read_hosts
from fairlead.core.errors import InputError
from fairlead.experiments.compare import Comparison, Workload, run_comparison
from fairlead.experiments.differences import Differences, find_label
from fairlead.experiments.inputs import check_host_profiles
from fairlead.experiments.metric_columns import COLUMNS, Column, format_with_error
from fairlead.experiments.sweep import SweepResult, read_sweep, run_sweep
from fairlead.reporting.comparison_page import difference_columns, run_name
from fairlead.reporting.figures import write_figures
from fairlead.reporting.sweep_page import headings, rows, write_page
from fairlead.reporting.tables import comparison_table

POLICIES = "fifo,sjf,srtf,las,tiresias"
DEFAULT_LOAD = 6.0
MAX_NAMED = 8
"""Written files that a note lists by name."""
_CI = "_ci95"
MAX_RHO = Column("worst_ftf_max", "max ρ", "ratio", "low", "ρ of the job treated worst in any seed.")
FIGURES = (
    *("average_jct_s", "p99_jct_s", "average_responsiveness_s", "utilization"),
    *("average_ftf", "worst_ftf", "worst_ftf_max", "unfair_fraction"),
)


@opt.option_groups
def compare_command(
    context: typer.Context,
    *,
    policies: str | None = typer.Option(
        None,
        help="Policies, separated by commas; parameters as in 'las:by=time'; your own as 'mine.py:MyPolicy'. "
        f"[default: {POLICIES}; none with --preset]",
        rich_help_panel=opt.SCHEDULER,
    ),
    preset: list[str] | None = typer.Option(
        None, help="A scheduler that ships with Fairlead ('fairlead presets'); repeatable.", rich_help_panel=opt.SCHEDULER
    ),
    config: list[Path] | None = typer.Option(
        None, help="A scheduler file in YAML to compare as well; repeatable.", rich_help_panel=opt.SCHEDULER
    ),
    loads: str | None = typer.Option(
        None, help="Jobs per hour, separated by commas. A trace gets new arrivals for each.", rich_help_panel=opt.WORKLOAD
    ),
    seeds: str = typer.Option("0", help="Seeds, separated by commas, or a count as in '3x'.", rich_help_panel=opt.WORKLOAD),
    cluster: opt.ClusterOption = opt.DEFAULT_CLUSTER,
    parts: opt.SchedulerOptions,
    workload: opt.WorkloadOptions,
    cost: opt.CostOptions,
    fault: opt.FaultOptions,
    definitions: opt.DefinitionOptions,
    measure: str | None = opt.MEASURE,
    baseline: str | None = typer.Option(
        None, help="The label of the scheduler that the others are compared with. [default: the first]"
    ),
    processes: int | None = opt.PROCESSES,
    on: str | None = opt.ON,
    report: Path | None = typer.Option(None, help="Write an HTML report to this file.", rich_help_panel=opt.OUTPUT),
    png: Path | None = opt.PNG,
    sweep: Path | None = typer.Option(
        None, help="A sweep in YAML: schedulers over loads, clusters, seeds and parameters; resumable (docs/guides/sweeps.md)."
    ),
    folder: Path | None = typer.Option(
        None,
        "--out",
        help="Write Parquet tables into this folder; with --sweep, its report and finished runs.",
        rich_help_panel=opt.OUTPUT,
    ),
    json: opt.JsonOption = False,
) -> None:
    """Compare schedulers on the same jobs, with 95 % confidence intervals.

    All schedulers get the same jobs, so the command also prints paired differences from the first scheduler, or from
    --baseline. Over several seeds the pairs are runs of the same seed. With one seed they are windows: equal parts of the jobs,
    in the order of their submission.

    Examples:

      fairlead compare

      fairlead compare --policies fifo,las,tiresias --loads 2,4,6 --seeds 3x --report compare.html

      fairlead compare --preset tiresias --preset gavel --preset themis --cluster 16xv100:4,16xk80:4

      fairlead compare --policies las,mine.py:MyPolicy --seeds 5x

      fairlead compare --sweep sweep.yaml --out out/sweep

      fairlead compare --trace philly.csv --cluster 400xv100:8 --policies fifo,srtf --config mine.yaml
    """
    if sweep is not None:
        return _run_sweep(sweep, folder, context, processes=processes, on=on, json=json)
    check_paths([*workload.inputs, cost.costs, *(config or ())], [report], [png, folder])
    metrics = definitions.read(measure)
    machine = opt.cluster_of(cluster)
    named = policies if policies is not None else "" if preset else POLICIES
    names, registry = with_policy_files(opt.split_names(named))
    bases = [SchedulerConfig(parse_part(name)) for name in names]
    bases += [SchedulerConfig.preset(name) for name in preset or ()]
    bases += [SchedulerConfig.from_file(path) for path in config or ()]
    if not bases:
        raise option_error("policies", "at least one policy", policies)
    schedulers = [replace(parts.apply(base), name=base.name) for base in bases]
    shared: dict[str, str] = {}  # parts of the command line: all schedulers have them, so labels leave them out
    for base, scheduler in zip(bases, schedulers, strict=True):
        shared |= opt.changed_parts(base, scheduler)
        scheduler.build(None, registry)
    labels = [scheduler.label for scheduler in schedulers]
    with opt.errors_by_option():
        find_label(labels, baseline)
    table, hosts = workload.table(), {} if workload.hosts is None else read_hosts(workload.hosts)
    generator = workload.generator(DEFAULT_LOAD)
    source, costs, faults = Workload(workload.file() or generator, table, hosts), cost.read(), fault.read(machine)
    rates = opt.parse_numbers("--loads", loads) if loads else [None if workload.trace is not None else DEFAULT_LOAD]
    window, fill = metrics.measure, workload.fill_workers
    with opt.errors_by_option():
        given = Comparison(source, machine, schedulers, rates, _seeds(seeds), costs, faults, window, metrics, fill)
        given = replace(given, registries=[registry] * len(schedulers))
    opt.note_protected_starts(given.costs, schedulers)
    trace = None if workload.trace is None else given.workload.trace(None, 0)
    kinds = generator.table.kinds if trace is None else {job.kind for job in trace.jobs if not job.prediction}
    opt.note_missing_predictions(schedulers, machine, kinds, registry)
    if workload.hosts is not None:
        check_host_profiles(workload.hosts, hosts, () if trace is None else trace.jobs, table)
    if trace is not None:
        opt.note_skipped(trace, quiet=json)
        opt.note_unknown_types(machine, trace)
        if given.repeats_runs:
            wanted = "one seed; more seeds need --loads or --mtbf, because a trace alone has no randomness"
            raise option_error("seeds", wanted, seeds)
    opt.check_measure(metrics, workload.jobs if trace is None else len(trace))
    pictures = report is not None or png is not None or folder is not None
    with progress(len(given.cases()), "simulating", quiet=json) as bar:
        outcomes = run_comparison(given, processes=processes, on=on, keep_records=pictures, on_done=lambda _: bar.advance())
    result = ComparisonResult.of(given, outcomes)
    arms, differences = result.summary, result.differences(baseline)
    all_with = f", all with {opt.in_words(shared)}" if shared else ""
    if json:
        names = [name for name in arms[0] if name + _CI in arms[0]]
        results = [
            {key: arm[key] for key in ("scheduler", "load", "seeds", "worst_ftf_max")}
            | {"mean": {n: arm[n] for n in names}, "half_width": {n: arm[n + _CI] for n in names}}
            for arm in arms
        ]
        about = {"cluster": str(machine), "shared": shared, "results": results}
        print_json({**about, "differences": differences.to_dict(), "cases": result.rows})
    else:
        if len(outcomes) == len(schedulers):
            summaries = [(schedulers[one.case.scheduler].label, one.summary) for one in outcomes]
            out.print(comparison_table(summaries, title=f"{machine}{all_with}", width=out.width))
        else:
            out.print(_table(arms, f"{machine}{all_with}"))
        if differences.rows:
            out.print(_difference_table(differences))
        elif differences.why_none:
            note(differences.why_none)
    if folder is not None:
        written = result.to_parquet(folder)
        note(f"tables: {', '.join(map(str, written)) if len(written) <= MAX_NAMED else f'{len(written)} files in {folder}'}")
    if report is not None:
        title = f"Schedulers compared{all_with}"
        note(f"report: {result.report(report, title=title, baseline=baseline, source=page_source())}")
    if png is not None:
        shown = given.loads[-1], given.seeds[0]
        records = [record for record, key in zip(result.records, result.record_keys, strict=True) if key == shown]
        of = "" if len(given.loads) * len(given.seeds) == 1 else f" ({run_name(*shown)})"
        note(f"plots{of}: {', '.join(str(p) for p in write_figures(records, png, metrics))}")


def _table(arms: Sequence[Mapping[str, Any]], title: str) -> Table:
    """One row per scheduler and load, with as many figures as the terminal has room for."""
    columns = {column.key: column for column in COLUMNS} | {MAX_RHO.key: MAX_RHO}
    cells = [
        format_with_error([arm.get(name) for arm in arms], [arm.get(name + _CI) for arm in arms], columns[name].shows)
        for name in FIGURES
    ]
    names = [(arm["scheduler"], "as is" if arm["load"] is None else f"{arm['load']:g}") for arm in arms]
    rows = [(*name, *row) for name, row in zip(names, zip(*cells, strict=True), strict=True)]
    caption = f"mean ± half the 95 % interval over {arms[0]['seeds']} seeds; max ρ: the job treated worst in any seed"
    return fitted_table(title, ("scheduler", "jobs/h", *(columns[name].heading for name in FIGURES)), rows, 2, caption)


def _difference_table(found: Differences) -> Table:
    """One row per scheduler and load, less the baseline. A star marks an interval that excludes 0."""
    columns = difference_columns(found)
    cells = [[f"{text}{'*' if sure else ' '}" for text, sure in column] for _, column in columns]
    names = [(row.scheduler, "as is" if row.load is None else f"{row.load:g}") for row in found.rows]
    rows = [(*name, *row) for name, row in zip(names, zip(*cells, strict=True), strict=True)]
    caption = f"difference ± half the 95 % interval; {found.method}; * the interval excludes 0"
    title = f"Difference from {found.baseline}"
    return fitted_table(title, ("scheduler", "jobs/h", *(f"{heading} " for heading, _ in columns)), rows, 2, caption)


def _seeds(text: str) -> Sequence[int]:
    try:
        return range(int(text[:-1])) if text.endswith("x") else [int(part) for part in opt.split_names(text)]
    except ValueError:
        wanted = "whole numbers separated by commas, each once, or a count as in '3x'"
        raise option_error("seeds", wanted, text) from None


_WITH_SWEEP = ("sweep", "folder", "processes", "on", "json")
"""Options that go with --sweep; the file has everything else."""


def _run_sweep(
    path: Path, folder: Path | None, context: typer.Context, *, processes: int | None, on: str | None, json: bool
) -> None:
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        if option.name not in _WITH_SWEEP and source is not None and source.name == "COMMANDLINE":
            raise InputError(f"--{(option.name or '').replace('_', '-')}", f"this setting in {path}, not on the command line")
    given = read_sweep(path)
    place = folder or Path("out") / path.stem
    check_paths([path], [], [place])
    with say_resumable(place / "cases"), progress(len(given.points()) * len(given.seeds), "simulating", quiet=json) as bar:
        swept = run_sweep(given, place, processes=processes, on=on, on_done=lambda _: bar.advance())
    report = write_page(swept, place, page_source())
    if json:
        print_json(_sweep_data(swept))
    else:
        out.print(_sweep_table(swept))
        for why in dict.fromkeys(result.failed for result in swept.results if result.failed):
            note(f"failed: {why}")
        note(f"runs: {swept.ran}" + (f", reused: {swept.kept}" if swept.kept else "") + f"   report: {report}")
    if any(result.failed for result in swept.results):
        raise typer.Exit(1)


def _sweep_data(swept: SweepResult) -> dict[str, object]:
    sweep = swept.sweep
    results = [
        {
            "scheduler": sweep.arms[result.point.arm].label,
            "at": {axis.name: sweep.value(result.point, index) for index, axis in enumerate(sweep.axes)},
            "mean": result.mean,
            "half_width": result.half_width,
            "failed": result.failed or None,
        }
        for result in swept.results
    ]
    return {"title": sweep.title, "seeds": sweep.seeds, "ran": swept.ran, "reused": swept.kept, "results": results}


def _sweep_table(swept: SweepResult) -> Table:
    sweep = swept.sweep
    caption = f"mean ± half the 95 % interval over {len(sweep.seeds)} seeds" if len(sweep.seeds) > 1 else ""
    return fitted_table(sweep.title, headings(sweep), rows(swept), 1 + len(sweep.axes), caption)
