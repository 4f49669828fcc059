"""`fairlead synthesize` and `advise`: choose the best scheduler again every few rounds, in simulation or on a cluster."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from rich import box
from rich.table import Table

from fairlead.cli import options as opt
from fairlead.cli.output import check_paths, event_log, note, option_error, out, print_json, progress
from fairlead.cli.selectors import control_plane
from fairlead.config.schedulers import SchedulerConfig, parse_part, scheduler_of
from fairlead.core.errors import require
from fairlead.experiments.compare import Comparison, Workload, run_comparison
from fairlead.experiments.inputs import read_table, table_for
from fairlead.experiments.live_inputs import fetch_state, measured_table, with_colocated_rates
from fairlead.experiments.metric_columns import format_duration
from fairlead.experiments.metrics import summarize
from fairlead.experiments.scenarios import ArrivalForecast
from fairlead.experiments.simulate import Simulation
from fairlead.experiments.synthesize import Advice, Advisor, Objective, combinations
from fairlead.experiments.synthesize import advise as advise_state
from fairlead.experiments.synthesize import synthesize as run_synthesis
from fairlead.reporting.html import write_report
from fairlead.reporting.tables import comparison_table
from fairlead.runtime.http_client import CONFLICT, ControlPlaneClient, RefusedRequest, Unreachable
from fairlead.simulator.costs import Costs
from fairlead.workloads.throughput_tables import ThroughputTable

EVERY = typer.Option(10, help="Rounds between two decisions.", min=1)


@dataclass(frozen=True)
class AdvisorOptions:
    """The candidates of the advisor, and how it compares them. The defaults are the nine combinations of Blox §5.2."""

    policies: str = typer.Option("fifo,srtf,las", help="Policies to choose from, separated by commas.")
    admissions: str = typer.Option(
        "accept-all,accept-up-to:factor=1.2,accept-up-to:factor=1.4",
        help="Admission stages to combine with the policies, as in 'accept-all,accept-up-to:factor=1.2'.",
    )
    placements: str = typer.Option("", help="Placements to combine with the policies. [default: the current one]")
    metric: str = typer.Option(
        "jct", help="What to minimize: jct, responsiveness, or a weighted sum: 'jct=2,responsiveness=1'."
    )
    forecast: str = typer.Option("none", help="Jobs that will arrive: 'none', or as in the 'recent' past.")
    window: float = typer.Option(
        6.0, help="With --forecast recent: arrivals of this many past hours are expected again in as many hours.", min=0.01
    )
    margin: float = typer.Option(0.01, help="Switch only if the expected gain is larger than this share.", min=0.0)
    processes: int | None = opt.PROCESSES

    def __post_init__(self) -> None:
        _ = _objective(self.metric), self._forecast(0)  # errors come before a long trace is read

    def candidates(self, base: SchedulerConfig) -> tuple[SchedulerConfig, ...]:
        """Return every combination of the parts, each in place of the base's own."""
        texts = (self.policies, self.admissions, self.placements)
        return combinations(base, *([parse_part(name) for name in opt.split_names(text)] for text in texts))

    def advisor(
        self, candidates: Sequence[SchedulerConfig], table: ThroughputTable, costs: Costs | None = None, seed: int = 0
    ) -> Advisor:
        """Return the advisor that compares the candidates."""
        return Advisor(
            candidates,
            table,
            objective=_objective(self.metric),
            arrivals=self._forecast(seed),
            costs=costs,
            margin=self.margin,
            processes=self.processes or os.cpu_count() or 1,
        )

    def _forecast(self, seed: int) -> ArrivalForecast:
        arrivals: Any = "none" if self.forecast == "nobody" else self.forecast  # "nobody" is the former name
        return ArrivalForecast(arrivals, 3600.0 * self.window, seed)


def _objective(metric: str) -> Objective:
    weights: dict[str, float] = {}
    for one in opt.split_names(metric):
        name, equals, weight = one.partition("=")
        try:
            weights[name.strip()] = float(weight) if equals else 1.0
        except ValueError:
            raise option_error("metric", "jct, responsiveness, or name=weight", one) from None
    return Objective(weights)


def _forecast_table(advice: Advice) -> Table:
    """Return the forecast of every candidate; the chosen one is marked."""
    table = Table(box=box.SIMPLE, title=f"from second {advice.time:,.0f} on", title_justify="left")
    for name, side in (("scheduler", "left"), ("average JCT", "right"), ("first start", "right"), ("", "left")):
        table.add_column(name, justify=side)  # type: ignore[arg-type]
    for label, found in advice.forecasts:
        least = "" if found.complete else "> "
        marks = [
            mark
            for mark, holds in (("current", label == advice.running.label), ("best", label == advice.chosen.label))
            if holds
        ]
        if found.problem:
            table.add_row(label, "", "", found.problem)
        else:
            seconds = (found.jct_s, found.responsiveness_s)
            table.add_row(label, *(f"{least}{format_duration(one)}" for one in seconds), ", ".join(marks))
    return table


def _advice_data(advice: Advice) -> dict[str, object]:
    """Return advice for --json."""
    return {
        "time": advice.time,
        "running": advice.running.label,
        "chosen": advice.chosen.label,
        "switch": advice.switch,
        "gain": advice.gain,
        "took_s": advice.took_s,
        "forecasts": {
            label: {"jct_s": seen.jct_s, "responsiveness_s": seen.responsiveness_s, "complete": seen.complete}
            if not seen.problem
            else {"problem": seen.problem}
            for label, seen in advice.forecasts
        },
    }


@opt.option_groups
def synthesize_command(
    *,
    asked: AdvisorOptions,
    every: int = EVERY,
    alone: bool = typer.Option(True, "--alone/--no-alone", help="Also simulate every combination alone, to compare with."),
    workload: opt.WorkloadOptions,
    cluster: opt.ClusterOption = opt.DEFAULT_CLUSTER,
    round: float | None = opt.ROUND,
    cost: opt.CostOptions,
    load: float | None = opt.LOAD,
    seed: int = opt.SEED,
    measure: str | None = opt.MEASURE,
    events: Path | None = opt.EVENTS,
    report: Path | None = opt.REPORT,
    json: opt.JsonOption = False,
) -> None:
    """Choose the best scheduler every few rounds, by simulating each candidate ahead from the current state.

    The candidates are all combinations of --policies, --admissions and --placements. Each switch is an event in the log, with
    its expected gain. 'fairlead advise' does the same for a running cluster.

    Examples:

      fairlead synthesize --load 8

      fairlead synthesize --trace philly.csv --cluster 128xv100:4 --metric jct=1,responsiveness=1 --report out.html

      fairlead synthesize --policies las,tiresias,max-min-fairness-perf --admissions accept-all --forecast recent
    """
    check_paths([*workload.inputs, cost.costs], [events, report])
    metrics = opt.DefinitionOptions().read(measure)
    machine = opt.cluster_of(cluster)
    spent = cost.read()
    base = opt.SchedulerOptions(round=round).apply(SchedulerConfig())
    candidates = asked.candidates(base)
    for candidate in candidates:
        candidate.build(None)
    known = workload.table()
    source = workload.read(load, seed, known)
    opt.note_skipped(source, quiet=json)
    opt.note_unknown_types(machine, source)
    opt.note_protected_starts(spent, candidates)
    opt.check_measure(metrics, len(source))
    table = table_for(source, machine, known, fill=workload.fill_workers)
    given = Simulation(source, machine, candidates[0], table, spent, seed=seed, measure=metrics.measure)
    advisor = asked.advisor(candidates, table, spent, seed)
    with event_log(events) as journal, advisor, progress(None, f"synthesizing on {source.name}", quiet=json) as bar:
        found = run_synthesis(given, advisor, every=every, journal=journal, gantt=report is not None, on_progress=bar.show)
    rows = [("synthesized", summarize(found.run.record, metrics))]
    if alone:
        static = Comparison(Workload(source, table), machine, candidates, costs=spent, measure=metrics.measure, metrics=metrics)
        with progress(len(candidates), "each by itself", quiet=json) as bar:
            outcomes = run_comparison(static, processes=asked.processes, on_done=lambda _: bar.advance())
        rows += [(candidates[one.case.scheduler].label, one.summary) for one in outcomes]
    switches = [one for one in found.advice if one.switch]
    shares = dict(sorted(found.shares.items(), key=lambda one: -one[1]))
    if json:
        print_json(
            {
                "trace": source.name,
                "cluster": str(machine),
                "decisions": len(found.advice),
                "switches": [_advice_data(one) for one in switches],
                "shares": shares,
                "results": [{"scheduler": label, **summary.to_dict()} for label, summary in rows],
            }
        )
    else:
        out.print(comparison_table(rows, title=f"{source.name} on {machine}", width=out.width))
        decided = ", ".join(f"{label} {share:.0%}" for label, share in shares.items())
        note(f"{len(found.advice)} decisions, {len(switches)} switches; time under each scheduler: {decided}")
        if switches:
            note(f"the last switch: {switches[-1].why.removeprefix('synthesizer: ')}")
    if report is not None:
        note(f"report: {write_report([found.run.record], report, metrics, title=f'synthesized on {source.name}')}")
    if events is not None:
        note(f"events: {events}")


@opt.option_groups
def advise_command(
    *,
    asked: AdvisorOptions,
    every: int = EVERY,
    throughputs: Path | None = opt.THROUGHPUTS,
    cost: opt.CostOptions,
    simulations: int | None = typer.Option(
        None, help="Number of decisions; 0: until Ctrl-C. [default: 1; 0 with --switch]", min=0
    ),
    switch: bool = typer.Option(False, "--switch/--dry-run", help="Switch the cluster's scheduler, or only print the advice."),
    json: bool = typer.Option(
        False, "--json", help="Print one JSON object per decision, each on its own line.", rich_help_panel=opt.OUTPUT
    ),
) -> None:
    """Recommend a scheduler for a running cluster, by simulating candidates ahead from its state.

    With --switch it repeats this every few rounds and switches to the best candidate. It needs an admin token.

    Throughputs are those that the cluster has measured, or those of --throughputs. A job of a type that was never measured is
    assumed to run for an hour. Starts and checkpoints cost nothing unless you give costs. 'fairlead scheduler show' prints the
    current scheduler; the journal records why it was switched.

    Examples:

      fairlead advise

      fairlead advise --policies las,srtf,tiresias --admissions accept-all --switch --every 5
    """
    spent = cost.read()
    plane, known, made = control_plane(), read_table(throughputs), 0
    limit = simulations if simulations is not None else 0 if switch else 1
    while True:
        try:
            state = fetch_state(plane)
            measured = None if known is not None else plane.rates()
        except Unreachable as problem:  # it may return; the current scheduler stays
            if made == 0:
                raise
            note(f"{problem}; trying again in a minute")
            time.sleep(60.0)
            continue
        running = scheduler_of(state.scheduler)
        require(running.round_s != 0, "advise", "a cluster with rounds", "rounds", "event-driven")
        table = known.for_types(state.cluster.type_names) if known is not None else measured_table(measured or {}, state)
        table = with_colocated_rates(table, state)
        candidates, alive = asked.candidates(running), len(state.live) + len(state.queue)
        looking = f"{len(candidates)} candidates, {alive} jobs"
        with asked.advisor(candidates, table, spent) as advisor, progress(None, looking, quiet=json):
            advice = advise_state(state, advisor)
        if json:
            print_json(_advice_data(advice))
        else:
            out.print(_forecast_table(advice))
        if advice.switch and switch:
            note(_switched(plane, advice.chosen.to_data(), advice.why, state.scheduler))
        elif advice.switch:
            note(f"recommended: {advice.why.removeprefix('synthesizer: ')}")
        elif not alive:
            note("there are no jobs, so no scheduler is better")
        else:
            note(f"no scheduler is better by more than {asked.margin:.0%}")
        made += 1
        if made == limit:
            return
        note(f"next decision in {format_duration(every * running.round_s)}; Ctrl-C ends it")
        time.sleep(every * running.round_s)


def _switched(plane: ControlPlaneClient, chosen: Mapping[str, Any], why: str, instead_of: Mapping[str, Any]) -> str:
    """Switch the scheduler, unless a user has switched it during the simulations; return what happened."""
    try:
        plane.switch(chosen, why, instead_of=instead_of)
    except RefusedRequest as answer:
        if answer.status != CONFLICT:
            raise
        return f"not switched, because a user switched the scheduler in the meantime; the advice was: {why}"
    except Unreachable as problem:
        return f"it is unknown whether the switch succeeded: {problem}"
    return f"switched: {why}"
