"""`fairlead simulate`: one scheduler on one trace."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from fairlead.cli import options as opt
from fairlead.cli.output import distinct, event_log, note, out, print_json, progress
from fairlead.config.workload_files import read_hosts, read_request_rates
from fairlead.experiments.inputs import check_hosts, read_table
from fairlead.experiments.metrics import summarize
from fairlead.experiments.serving import sessions_in
from fairlead.experiments.simulate import Simulation, left_waiting, requests_of
from fairlead.experiments.simulate import simulate as run_simulation
from fairlead.reporting.figures import write_figures
from fairlead.reporting.html import write_report
from fairlead.reporting.tables import summary_table
from fairlead.workloads.transform import rate_reports, with_host_sensitivity


def simulate(
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy",
            help="A policy by name ('fairlead policies' lists them), with parameters if need be: "
            "'tiresias:thresholds=[3250,7200]'. This, --preset or --config is needed.",
        ),
    ] = None,
    preset: opt.PresetOption = None,
    config: Annotated[
        Path | None, typer.Option("--config", help="A scheduler file in YAML, in place of single options.")
    ] = None,
    trace: opt.TraceOption = None,
    format: opt.FormatOption = None,
    regimes: opt.RegimesOption = None,
    hosts: opt.HostsOption = None,
    request_rates: Annotated[
        Path | None,
        typer.Option("--request-rates", help="How many requests a second sessions get, and from when on: a YAML file."),
    ] = None,
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
    load: opt.LoadOption = 6.0,
    workers: opt.WorkersOption = "multiple",
    seed: opt.SeedOption = 0,
    measure: opt.MeasureOption = None,
    makespan_from: opt.MakespanFromOption = "first-submission",
    jct_from: opt.JctFromOption = "submission",
    contention: opt.ContentionOption = "average",
    unfair_above: opt.UnfairAboveOption = 1.05,
    events: opt.EventsOption = None,
    report: opt.ReportOption = None,
    png: opt.PngOption = None,
    skip_quiet_rounds: Annotated[
        bool,
        typer.Option(
            "--skip-quiet-rounds/--every-round", help="Skip rounds in which nothing can change. The result is the same."
        ),
    ] = True,
    json: opt.JsonOption = False,
) -> None:
    """Simulate one scheduler on one trace and print what came of it.

    Examples:

      fairlead simulate --policy srtf

      fairlead simulate --policy las --trace jobs.csv --cluster 32xv100:4 --round 360 --restart-cost 30

      fairlead simulate --preset tiresias --placement spread --round 60

      fairlead simulate --config scheduler.yaml --trace philly.csv --cluster 400xv100:8 --report out.html --json
    """
    scheduler = opt.scheduler_from(policy, config, preset)
    scheduler = opt.override(
        scheduler, round, event_driven, admission, placement, run_to_completion, mechanism, estimator, termination
    )
    distinct([trace, config, throughputs, costs, regimes, hosts, request_rates], [events, report], [png])
    metrics = opt.metrics_of(measure, makespan_from, jct_from, contention, unfair_above)
    machine = opt.cluster_of(cluster)
    spent = opt.costs_of(launch_cost, restart_cost, checkpoint_cost, checkpoint_every, costs)
    faults = opt.faults_of(outage, mtbf, mttr, machine)
    scheduler.build(None)  # names and parameters are checked before a long trace is read
    table = read_table(throughputs)
    file = opt.trace_file(trace, format, skip_bad, regimes, applications)
    source = opt.generator_of(jobs, load, workers).trace(seed) if file is None else file.read(table)
    if hosts is not None:
        known = read_hosts(hosts)
        check_hosts(hosts, known, source.jobs, table)
        source = with_host_sensitivity(source, known)
    opt.tell_skipped(source, quiet=json)
    opt.tell_strange_types(machine, source)
    opt.tell_lacking_predictions([scheduler], machine, {job.kind for job in source.jobs})
    opt.tell_left_alone(spent, [scheduler])
    opt.check_measure(metrics, len(source))
    told = []
    if request_rates is not None:
        sessions = sessions_in([scheduler.to_data()])
        told = rate_reports(source, read_request_rates(request_rates, [j.name for j in source.jobs if j.name in sessions]))
    given = Simulation(
        source, machine, scheduler, table, spent, faults, seed, metrics.measure, fill_workers, skip_quiet_rounds, told
    )
    pictures = report is not None or png is not None
    with event_log(events) as log, progress(None, f"{scheduler.label} on {source.name}", quiet=json) as bar:
        run = run_simulation(given, journal=log, gantt=pictures, on_progress=bar.show)
        serving = requests_of(run, seed=seed)
    summary = summarize(run.record, metrics)
    refused = {run.state.job_of[n].name: why for n, why in sorted(run.state.refusals.items())}
    waiting = {} if metrics.measure is not None else left_waiting(run)
    flagged = [{"name": run.state.job_of[n].name, "flags": list(flags)} for n, flags in run.state.flags().items()]
    if json:
        skipped: dict[str, object] = {"skipped_lines": len(source.skipped)} if source.skipped else {}
        for what, these in (("refused_jobs", refused), ("waiting_jobs", waiting)):
            if these:
                skipped[what] = [{"name": name, "reason": str(why)} for name, why in islice(these.items(), 100)]
        if flagged:
            skipped["flagged_jobs"] = flagged[:100]
        if serving is not None:
            skipped["sessions"] = {one.session: one.attainment for one in serving.sessions}
            skipped["requests_in_time"] = serving.attainment
        print_json(
            {"scheduler": scheduler.label, "trace": source.name, "cluster": str(machine), **summary.to_dict(), **skipped}
        )
    else:
        out.print(summary_table(f"{scheduler.label} on {source.name}, {machine}", summary))
        if serving is not None:
            each_of = ", ".join(f"{one.session} {one.attainment:.2%}" for one in serving.sessions)
            out.print(f"requests in time: {serving.attainment:.2%} ({each_of})", highlight=False)
        for what, these in (("refused", refused), ("still waiting", waiting)):
            for name, why in islice(these.items(), 5):
                note(f"{what}: {name}: {why.text}")
            if len(these) > 5:
                note(f"{what}: … and {len(these) - 5} more (--json lists them)")
        if flagged:
            note(f"jobs that did what they had not declared: {len(flagged)} (--json lists them)")
    if report is not None:
        path = write_report([run.record], report, metrics, title=f"{scheduler.label} on {source.name}")
        note(f"report: {path}")
    if png is not None:
        note(f"plots: {', '.join(str(p) for p in write_figures([run.record], png, metrics))}")
    if events is not None:
        note(f"events: {events}")
