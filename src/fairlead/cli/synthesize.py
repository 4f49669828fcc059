"""`fairlead synthesize`: a simulation whose scheduler is chosen anew every few rounds."""

from __future__ import annotations

from typing import Annotated

import typer

from fairlead.cli import options as opt
from fairlead.cli import synthesizing as syn
from fairlead.cli.event_log import event_log
from fairlead.cli.output import note, out, print_json, progress
from fairlead.cli.written import distinct
from fairlead.config import SchedulerConfig
from fairlead.report.html import write_report
from fairlead.report.metrics import summarize
from fairlead.report.tables import comparison_table
from fairlead.study.compare import Comparison, Workload
from fairlead.study.compare import compare as run_comparison
from fairlead.study.inputs import TraceFile, read_table, table_for
from fairlead.study.simulate import Simulation
from fairlead.study.synthesizer.run import synthesize as run_synthesis


def synthesize(
    policies: syn.PoliciesOption = syn.POLICIES,
    admissions: syn.AdmissionsOption = syn.ADMISSIONS,
    placements: syn.PlacementsOption = "",
    every: syn.EveryOption = syn.EVERY,
    metric: syn.MetricOption = syn.METRIC,
    forecast: syn.ForecastOption = syn.FORECAST,
    window: syn.WindowOption = syn.WINDOW_H,
    margin: syn.MarginOption = syn.MARGIN,
    alone: Annotated[
        bool, typer.Option("--alone/--no-alone", help="Run every combination by itself too, to compare with.")
    ] = True,
    trace: opt.TraceOption = None,
    format: opt.FormatOption = None,
    skip_bad: opt.SkipBadOption = False,
    throughputs: opt.ThroughputsOption = None,
    fill_workers: opt.FillWorkersOption = False,
    cluster: opt.ClusterOption = opt.DEFAULT_CLUSTER,
    round: opt.RoundOption = None,
    launch_cost: opt.LaunchCostOption = 0.0,
    restart_cost: opt.RestartCostOption = 0.0,
    checkpoint_cost: opt.CheckpointCostOption = 0.0,
    checkpoint_every: opt.CheckpointEveryOption = None,
    costs: opt.CostsOption = None,
    jobs: opt.JobsOption = 200,
    load: opt.LoadOption = 6.0,
    workers: opt.WorkersOption = "multiple",
    seed: opt.SeedOption = 0,
    measure: opt.MeasureOption = None,
    processes: opt.ProcessesOption = None,
    events: opt.EventsOption = None,
    report: opt.ReportOption = None,
    json: opt.JsonOption = False,
) -> None:
    """Choose the scheduler anew every few rounds. Every combination is simulated forward from where things stand, and the best
    is taken.

    The candidates are every policy with every admission (and placement, where several are given). A switch is an event in the
    log, with what was expected of it. `fairlead advise` does the same for a running cluster.

    Examples:

      fairlead synthesize --load 8

      fairlead synthesize --trace philly.csv --cluster 128xv100:4 --metric jct=1,responsiveness=1 --report out.html

      fairlead synthesize --policies las,tiresias,max-min-fairness-perf --admissions accept-all --forecast recent
    """
    asked = syn.Asked(policies, admissions, placements, metric, forecast, window, margin, processes)
    distinct([trace, throughputs, costs], [events, report])
    metrics = opt.metrics_of(measure, "first-submission", "submission", "average", 1.05)
    machine = opt.cluster_of(cluster)
    spent = opt.costs_of(launch_cost, restart_cost, checkpoint_cost, checkpoint_every, costs)
    base = opt.override(SchedulerConfig(), round, False, None, None, False)
    candidates = asked.candidates(base)
    for candidate in candidates:
        candidate.build(None)
    known = read_table(throughputs)
    source = (
        opt.generator_of(jobs, load, workers).trace(seed) if trace is None else TraceFile(trace, format, skip_bad).read(known)
    )
    opt.tell_skipped(source, quiet=json)
    opt.tell_strange_types(machine, source)
    opt.tell_left_alone(spent, candidates)
    opt.check_measure(metrics, len(source))
    table = table_for(source, machine, known, fill=fill_workers)
    given = Simulation(source, machine, candidates[0], table, spent, seed=seed, measure=metrics.measure)
    advisor = asked.advisor(candidates, table, spent, seed)
    with event_log(events) as journal, advisor, progress(None, f"synthesizing on {source.name}", quiet=json) as bar:
        found = run_synthesis(given, advisor, every=every, journal=journal, gantt=report is not None, on_progress=bar.show)
    rows = [("synthesized", summarize(found.run.record, metrics))]
    if alone:
        static = Comparison(Workload(source, table), machine, candidates, costs=spent, measure=metrics.measure, metrics=metrics)
        with progress(len(candidates), "each by itself", quiet=json) as bar:
            outcomes = run_comparison(static, processes=processes, on_done=lambda _: bar.advance())
        rows += [(candidates[one.case.scheduler].label, one.summary) for one in outcomes]
    switches = [one for one in found.advice if one.switch]
    shares = dict(sorted(found.shares.items(), key=lambda one: -one[1]))
    if json:
        print_json(
            {
                "trace": source.name,
                "cluster": str(machine),
                "looks": len(found.advice),
                "switches": [syn.advice_data(one) for one in switches],
                "shares": shares,
                "results": [{"scheduler": label, **summary.to_dict()} for label, summary in rows],
            }
        )
    else:
        out.print(comparison_table(rows, title=f"{source.name} on {machine}", width=out.width))
        decided = ", ".join(f"{label} {share:.0%}" for label, share in shares.items())
        note(f"{len(found.advice)} looks ahead, {len(switches)} switches; who decided: {decided}")
        if switches:
            note(f"the last switch: {switches[-1].why.removeprefix('synthesizer: ')}")
    if report is not None:
        note(f"report: {write_report([found.run.record], report, metrics, title=f'synthesized on {source.name}')}")
    if events is not None:
        note(f"events: {events}")
