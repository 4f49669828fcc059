"""`fairlead simulate`: one scheduler on one trace."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import typer

from fairlead.api.run_results import Run
from fairlead.cli import options as opt
from fairlead.cli.output import check_paths, event_log, note, out, page_source, print_json, progress
from fairlead.config.schedulers import with_policy_files
from fairlead.config.workload_files import read_request_rates
from fairlead.engine.journal import MemoryJournal
from fairlead.experiments.metrics import summarize
from fairlead.experiments.serving import sessions_in
from fairlead.experiments.simulate import Simulation, left_waiting, requests_of, run_simulation
from fairlead.journal.jsonl import read_events
from fairlead.reporting.figures import write_figures
from fairlead.reporting.html import write_report
from fairlead.reporting.tables import summary_table
from fairlead.workloads.transform import rate_reports

MAX_LISTED, MAX_SHOWN = 100, 5
"""Jobs that `--json` and the terminal list, of each reason."""


@opt.option_groups
def simulate_command(
    *,
    policy: str | None = typer.Option(
        None,
        help="A policy by name ('fairlead policies' lists them), with its parameters: "
        "'tiresias:thresholds=[3250,7200]', or your own as 'mine.py:MyPolicy'. Give this, --preset or --config.",
        rich_help_panel=opt.SCHEDULER,
    ),
    preset: str | None = opt.PRESET,
    config: Path | None = typer.Option(
        None, help="A scheduler file in YAML, in place of single options.", rich_help_panel=opt.SCHEDULER
    ),
    cluster: opt.ClusterOption = opt.DEFAULT_CLUSTER,
    parts: opt.SchedulerOptions,
    workload: opt.WorkloadOptions,
    request_rates: Path | None = typer.Option(
        None, help="Requests per second of inference sessions over time: a YAML file.", rich_help_panel=opt.WORKLOAD
    ),
    cost: opt.CostOptions,
    fault: opt.FaultOptions,
    definitions: opt.DefinitionOptions,
    load: float | None = opt.LOAD,
    seed: int = opt.SEED,
    measure: str | None = opt.MEASURE,
    events: Path | None = opt.EVENTS,
    tables: Path | None = opt.OUT,
    report: Path | None = opt.REPORT,
    png: Path | None = opt.PNG,
    skip_quiet_rounds: bool = typer.Option(
        True, "--skip-quiet-rounds/--every-round", help="Skip rounds in which nothing can change. The result is the same."
    ),
    json: opt.JsonOption = False,
) -> None:
    """Simulate one scheduler on one trace and print its metrics.

    Examples:

      fairlead simulate --policy srtf

      fairlead simulate --policy las --trace jobs.csv --cluster 32xv100:4 --round 360 --restart-cost 30

      fairlead simulate --preset tiresias --placement spread --round 60

      fairlead simulate --policy mine.py:MyPolicy

      fairlead simulate --config scheduler.yaml --trace philly.csv --cluster 400xv100:8 --report out.html --json
    """
    named, registry = with_policy_files([] if policy is None else [policy])
    scheduler = parts.apply(opt.scheduler_from(named[0] if named else None, config, preset))
    check_paths([*workload.inputs, config, cost.costs, request_rates], [events, report], [png, tables])
    metrics = definitions.read(measure)
    machine = opt.cluster_of(cluster)
    costs = cost.read()
    faults = fault.read(machine)
    scheduler.build(None, registry)  # names and parameters are checked before a long trace is read
    table = workload.table()
    trace = workload.read(load, seed, table)
    opt.note_skipped(trace, quiet=json)
    opt.note_unknown_types(machine, trace)
    opt.note_missing_predictions([scheduler], machine, {job.kind for job in trace.jobs if not job.prediction}, registry)
    opt.note_protected_starts(costs, [scheduler])
    opt.check_measure(metrics, len(trace))
    reports = []
    if request_rates is not None:
        sessions = sessions_in([scheduler.to_data()])
        reports = rate_reports(trace, read_request_rates(request_rates, [j.name for j in trace.jobs if j.name in sessions]))
    window, fill = metrics.measure, workload.fill_workers
    given = Simulation(trace, machine, scheduler, table, costs, faults, seed, window, fill, skip_quiet_rounds, reports)
    pictures = report is not None or png is not None
    with event_log(events) as log, progress(None, f"{scheduler.label} on {trace.name}", quiet=json) as bar:
        journal = MemoryJournal() if log is None and tables is not None else log
        kept = pictures or tables is not None
        run = run_simulation(given, journal=journal, registry=registry, gantt=kept, on_progress=bar.show)
        serving = requests_of(run, seed=seed)
    summary = summarize(run.record, metrics)
    refused = {run.state.job_of[n].name: why for n, why in sorted(run.state.refusals.items())}
    waiting = {} if metrics.measure is not None else left_waiting(run)
    flagged = [{"name": run.state.job_of[n].name, "flags": list(flags)} for n, flags in run.state.flags().items()]
    if json:
        lists: dict[str, Any] = {
            "skipped_lines": len(trace.skipped),
            "refused_jobs": _reasons(refused),
            "waiting_jobs": _reasons(waiting),
            "flagged_jobs": flagged[:MAX_LISTED],
        }
        more = {name: found for name, found in lists.items() if found}
        if serving is not None:
            attained = {one.session: one.attainment for one in serving.sessions}
            more |= {"sessions": attained, "slo_attainment": serving.attainment}
        about = {"scheduler": scheduler.label, "trace": trace.name, "cluster": str(machine)}
        print_json({**about, **summary.to_dict(), **more})
    else:
        out.print(summary_table(f"{scheduler.label} on {trace.name}, {machine}", summary))
        if serving is not None:
            each_of = ", ".join(f"{one.session} {one.attainment:.2%}" for one in serving.sessions)
            out.print(f"requests within their SLO: {serving.attainment:.2%} ({each_of})")
        for what, reasons in (("refused", refused), ("still waiting", waiting)):
            for name, why in islice(reasons.items(), MAX_SHOWN):
                note(f"{what}: {name}: {why.text}")
            if len(reasons) > MAX_SHOWN:
                note(f"{what}: … and {len(reasons) - MAX_SHOWN} more (--json lists them)")
        if flagged:
            note(f"jobs that did not behave as declared: {len(flagged)} (--json lists them)")
    if report is not None:
        path = write_report([run.record], report, metrics, title=f"{scheduler.label} on {trace.name}", source=page_source())
        note(f"report: {path}")
    if png is not None:
        note(f"plots: {', '.join(str(p) for p in write_figures([run.record], png, metrics))}")
    if tables is not None:
        seen = read_events(events) if events is not None else journal
        written = Run(run.record, tuple(seen or ()), metrics).to_parquet(tables)
        note(f"tables: {', '.join(map(str, written))}")
    if events is not None:
        note(f"events: {events}")


def _reasons(reasons: Mapping[str, object]) -> list[dict[str, str]]:
    return [{"name": name, "reason": str(why)} for name, why in islice(reasons.items(), MAX_LISTED)]
