"""`fairlead compare`: several schedulers, loads and seeds, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from fairlead.cli import options as opt
from fairlead.cli.output import distinct, fitted, kept_in, note, out, print_json, progress
from fairlead.config import SchedulerConfig
from fairlead.config.parameters import LARGEST_SEED
from fairlead.config.schedulers import parse_part
from fairlead.config.workload_files import read_hosts
from fairlead.core.errors import InputError
from fairlead.experiments.compare import Aggregate, Comparison, Workload, aggregate
from fairlead.experiments.compare import compare as run_comparison
from fairlead.experiments.inputs import check_hosts, read_table
from fairlead.experiments.metric_columns import COLUMNS, shown_within
from fairlead.experiments.sweep import SweepResult, read_sweep, run_sweep
from fairlead.reporting.figures import write_figures
from fairlead.reporting.html import write_report
from fairlead.reporting.sweep_page import headings, rows, write_page
from fairlead.reporting.tables import comparison_table

POLICIES = "fifo,sjf,srtf,las,tiresias"
MOST_SEEDS = 100_000
FIGURES = ("average_jct_s", "p99_jct_s", "average_responsiveness_s", "utilization", "average_ftf", "unfair_fraction")


def compare(
    context: typer.Context,
    policies: Annotated[
        str | None,
        typer.Option(
            "--policies",
            help=f"Policies, separated by commas; parameters as in 'las:by=time'. [default: {POLICIES}; none with --preset]",
        ),
    ] = None,
    preset: Annotated[
        list[str] | None,
        typer.Option("--preset", help="A scheduler that ships with Fairlead ('fairlead presets'); repeatable."),
    ] = None,
    config: Annotated[
        list[Path] | None, typer.Option("--config", help="A scheduler file in YAML to compare as well; repeatable.")
    ] = None,
    loads: Annotated[
        str | None, typer.Option("--loads", help="Jobs per hour, separated by commas. A trace is re-timed to each.")
    ] = None,
    seeds: Annotated[str, typer.Option("--seeds", help="Seeds, separated by commas, or a count as in '3x'.")] = "0",
    trace: opt.TraceOption = None,
    format: opt.FormatOption = None,
    regimes: opt.RegimesOption = None,
    hosts: opt.HostsOption = None,
    applications: opt.ApplicationsOption = None,
    skip_bad: opt.SkipBadOption = False,
    throughputs: opt.ThroughputsOption = None,
    fill_workers: opt.FillWorkersOption = False,
    cluster: opt.ClusterOption = opt.DEFAULT_CLUSTER,
    round: opt.RoundOption = None,
    event_driven: opt.EventDrivenOption = False,
    admission: opt.AdmissionOption = None,
    placement: opt.PlacementOption = None,
    mechanism: opt.MechanismOption = None,
    estimator: opt.EstimatorOption = None,
    termination: opt.TerminationOption = None,
    run_to_completion: opt.RunToCompletionOption = False,
    launch_cost: opt.LaunchCostOption = 0.0,
    restart_cost: opt.RestartCostOption = 0.0,
    checkpoint_cost: opt.CheckpointCostOption = 0.0,
    checkpoint_every: opt.CheckpointEveryOption = None,
    costs: opt.CostsOption = None,
    outage: opt.OutageOption = None,
    mtbf: opt.MtbfOption = 0.0,
    mttr: opt.MttrOption = 3600.0,
    jobs: opt.JobsOption = 200,
    workers: opt.WorkersOption = "multiple",
    measure: opt.MeasureOption = None,
    makespan_from: opt.MakespanFromOption = "first-submission",
    jct_from: opt.JctFromOption = "submission",
    contention: opt.ContentionOption = "average",
    unfair_above: opt.UnfairAboveOption = 1.05,
    processes: opt.ProcessesOption = None,
    report: Annotated[
        Path | None, typer.Option("--report", help="Write an HTML report of the first seed to this file.")
    ] = None,
    png: opt.PngOption = None,
    sweep: Annotated[
        Path | None,
        typer.Option(
            "--sweep",
            help="A sweep in YAML: schedulers over loads, clusters, seeds and parameters; resumable (docs/sweeps.md).",
        ),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option("--out", help="With --sweep: the folder for its report and finished runs. [default: out/NAME]"),
    ] = None,
    json: opt.JsonOption = False,
) -> None:
    """Compare schedulers on the same jobs. Over several loads and seeds, with 95 % confidence intervals over the seeds.

    Examples:

      fairlead compare

      fairlead compare --policies fifo,las,tiresias --loads 2,4,6 --seeds 3x --report compare.html

      fairlead compare --preset tiresias --preset gavel --preset themis --cluster 16xv100:4,16xk80:4

      fairlead compare --sweep sweep.yaml --out out/sweep

      fairlead compare --trace philly.csv --cluster 400xv100:8 --policies fifo,srtf --config mine.yaml
    """
    if sweep is not None:
        return sweep_over(sweep, folder, context, processes=processes, json=json)
    if folder is not None:
        raise InputError("--out", "--sweep FILE to go with it", field="out", value=str(folder))
    distinct([trace, throughputs, costs, regimes, hosts, *(config or ())], [report], [png])
    metrics = opt.metrics_of(measure, makespan_from, jct_from, contention, unfair_above)
    machine = opt.cluster_of(cluster)
    named = policies if policies is not None else "" if preset else POLICIES
    schedulers = [SchedulerConfig(parse_part(name)) for name in opt.split(named)]
    schedulers += [SchedulerConfig.preset(name) for name in preset or ()]
    schedulers += [SchedulerConfig.from_file(path) for path in config or ()]
    named_so, schedulers = (
        schedulers,
        [
            opt.override(s, round, event_driven, admission, placement, run_to_completion, mechanism, estimator, termination)
            for s in schedulers
        ],
    )
    shared: dict[str, str] = {}  # told once, as what all have tells no row from another
    for before, made in zip(named_so, schedulers, strict=True):
        shared |= opt.varied(before, made)
    schedulers = [replace(made, name=before.name) for before, made in zip(named_so, schedulers, strict=True)]
    if not schedulers:
        raise InputError("--policies", "at least one policy", field="policies", value=policies)
    for scheduler in schedulers:
        scheduler.build(None)
    _tell_apart(schedulers)
    table = read_table(throughputs)
    rates = _numbers("--loads", loads) if loads else [None if trace is not None else 6.0]
    generator = opt.generator_of(jobs, 6.0, workers)
    known = {} if hosts is None else read_hosts(hosts)
    given = Comparison(
        Workload(opt.trace_file(trace, format, skip_bad, regimes, applications) or generator, table, known),
        machine,
        schedulers,
        rates,
        _seeds(seeds),
        opt.costs_of(launch_cost, restart_cost, checkpoint_cost, checkpoint_every, costs),
        opt.faults_of(outage, mtbf, mttr, machine),
        metrics.measure,
        metrics,
        fill_workers,
    )
    opt.tell_left_alone(given.costs, schedulers)
    read = None if trace is None else given.workload.trace(None, 0)
    kinds = generator.table.kinds if read is None else {job.kind for job in read.jobs}
    opt.tell_lacking_predictions(schedulers, machine, kinds)
    if hosts is not None:
        check_hosts(hosts, known, () if read is None else read.jobs, table)
    if read is not None:
        opt.tell_skipped(read, quiet=json)
        opt.tell_strange_types(machine, read)
        opt.check_measure(metrics, len(read))
        if len(given.seeds) > 1 and not loads and not mtbf:
            raise InputError(
                "--seeds", "one seed: without --loads or --mtbf nothing about a trace is random", field="seeds", value=seeds
            )
    else:
        opt.check_measure(metrics, jobs)
    pictures = report is not None or png is not None
    with progress(len(given.cases()), "simulating", quiet=json) as bar:
        outcomes = run_comparison(given, processes=processes, keep_records=pictures, on_done=lambda _: bar.advance())
    arms = aggregate(given, outcomes)
    all_with = f", all with {opt.in_words(shared)}" if shared else ""
    if json:
        cases = [
            {"scheduler": schedulers[o.case.scheduler].label, "load": o.case.load, "seed": o.case.seed, **o.summary.to_dict()}
            for o in outcomes
        ]
        results = [
            {"scheduler": a.label, "load": a.load, "seeds": a.seeds, "mean": a.mean, "half_width": a.half_width} for a in arms
        ]
        print_json({"cluster": str(machine), "shared": shared, "results": results, "cases": cases})
    elif len(outcomes) == len(schedulers):
        rows = [(schedulers[o.case.scheduler].label, o.summary) for o in outcomes]
        out.print(comparison_table(rows, title=f"{machine}{all_with}", width=out.width))
    else:
        out.print(_table(arms, f"{machine}{all_with}"))
    if pictures:
        first = given.loads[-1]
        records = [
            replace(o.record, scheduler=schedulers[o.case.scheduler].label)
            for o in outcomes
            if o.record is not None and o.case.load == first
        ]
        if report is not None:
            note(f"report: {write_report(records, report, metrics, title=f'Fairlead: schedulers compared{all_with}')}")
        if png is not None:
            note(f"plots: {', '.join(str(p) for p in write_figures(records, png, metrics))}")


def _tell_apart(schedulers: Sequence[SchedulerConfig]) -> None:
    """Rows and curves are called by the schedulers' labels, so that two of one label could not be told from each other."""
    seen: dict[str, SchedulerConfig] = {}
    for scheduler in schedulers:
        first = seen.setdefault(scheduler.label, scheduler)
        if first is not scheduler:
            wanted = "each scheduler once" if first == scheduler else "another name for one of the two (`name: …` in its file)"
            raise InputError("compare", wanted, field="scheduler", value=scheduler.label)


def _table(arms: list[Aggregate], title: str) -> Table:
    """One row per scheduler and load, with as many figures as the terminal has room for."""
    columns = [column for name in FIGURES for column in COLUMNS if column.key == name]
    cells = [
        shown_within([arm.mean.get(each.key) for arm in arms], [arm.half_width.get(each.key) for arm in arms], each.shows)
        for each in columns
    ]
    names = [(arm.label, "as is" if arm.load is None else f"{arm.load:g}") for arm in arms]
    rows = [(*name, *row) for name, row in zip(names, zip(*cells, strict=True), strict=True)]
    caption = f"mean ± half the 95 % interval over {arms[0].seeds} seeds"
    return fitted(title, ("scheduler", "jobs/h", *(column.heading for column in columns)), rows, 2, caption)


def _numbers(option: str, text: str) -> list[float | None]:
    values: list[float | None] = []
    for part in opt.split(text):
        try:
            values.append(float(part))
        except ValueError:
            raise InputError(option, "numbers separated by commas", field=option.strip("-"), value=part) from None
        if not 1e-6 <= (values[-1] or 0) <= 1e6:
            raise InputError(option, "numbers from 0.000001 to 1,000,000", field=option.strip("-"), value=part)
    if not values or len(set(values)) < len(values):
        raise InputError(option, "at least one number, each once", field=option.strip("-"), value=text)
    return values


def _seeds(text: str) -> list[int]:
    try:
        seeds = (
            list(range(min(int(text[:-1]), MOST_SEEDS + 1))) if text.endswith("x") else [int(part) for part in opt.split(text)]
        )
    except ValueError:
        seeds = []
    if not seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds) or len(seeds) > MOST_SEEDS or max(seeds) > LARGEST_SEED:
        raise InputError(
            "--seeds", "whole numbers separated by commas, each once, or a count as in '3x'", field="seeds", value=text
        )
    return seeds


# `fairlead compare --sweep`: what a sweep file asks for, run as far as it has not been, as a table and a report.

_BESIDE = ("sweep", "folder", "processes", "json")
"""Options that go with --sweep; what else there is to say is said in the file."""


def sweep_over(path: Path, folder: Path | None, context: typer.Context, *, processes: int | None, json: bool) -> None:
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        if option.name not in _BESIDE and source is not None and source.name == "COMMANDLINE":
            raise InputError(f"--{(option.name or '').replace('_', '-')}", f"this in {path}, where the rest of the sweep is")
    given = read_sweep(path)
    place = folder or Path("out") / path.stem
    distinct([path], [], [place])
    with kept_in(place / "cases"), progress(len(given.points()) * len(given.seeds), "simulating", quiet=json) as bar:
        swept = run_sweep(given, place, processes=processes, on_done=lambda _: bar.advance())
    report = write_page(swept, place)
    if json:
        print_json(_told(swept))
    else:
        out.print(_sweep_table(swept))
        for why in dict.fromkeys(result.failed for result in swept.results if result.failed):
            note(f"failed: {why}")
        note(f"runs: {swept.ran}" + (f", kept from before: {swept.kept}" if swept.kept else "") + f"   report: {report}")
    if any(result.failed for result in swept.results):
        raise typer.Exit(1)


def _told(swept: SweepResult) -> dict[str, object]:
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
    return {"title": sweep.title, "seeds": sweep.seeds, "ran": swept.ran, "kept": swept.kept, "results": results}


def _sweep_table(swept: SweepResult) -> Table:
    sweep = swept.sweep
    caption = f"mean ± half the 95 % interval over {len(sweep.seeds)} seeds" if len(sweep.seeds) > 1 else ""
    return fitted(sweep.title, headings(sweep), rows(swept), 1 + len(sweep.axes), caption)
