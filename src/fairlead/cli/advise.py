"""`fairlead advise`: the synthesizer beside a running cluster."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from fairlead.cli import options as opt
from fairlead.cli import synthesizing as syn
from fairlead.cli.output import note, out, print_json, progress
from fairlead.cli.people import control_plane
from fairlead.config.wall_time import scheduler_of
from fairlead.core.errors import InputError
from fairlead.report.columns import duration
from fairlead.runtime.people import OVERTAKEN, ControlPlane, RefusedRequest, Unreachable
from fairlead.study.company import with_company
from fairlead.study.inputs import read_table
from fairlead.study.synthesizer.live import advise as look_at
from fairlead.study.synthesizer.live import rates_of, state_of


def advise(
    policies: syn.PoliciesOption = syn.POLICIES,
    admissions: syn.AdmissionsOption = syn.ADMISSIONS,
    placements: syn.PlacementsOption = "",
    every: syn.EveryOption = syn.EVERY,
    metric: syn.MetricOption = syn.METRIC,
    forecast: syn.ForecastOption = syn.FORECAST,
    window: syn.WindowOption = syn.WINDOW_H,
    margin: syn.MarginOption = syn.MARGIN,
    throughputs: opt.ThroughputsOption = None,
    launch_cost: opt.LaunchCostOption = 0.0,
    restart_cost: opt.RestartCostOption = 0.0,
    checkpoint_cost: opt.CheckpointCostOption = 0.0,
    checkpoint_every: opt.CheckpointEveryOption = None,
    costs: opt.CostsOption = None,
    looks: Annotated[
        int | None,
        typer.Option("--looks", help="End after so many looks; 0: go on until Ctrl-C. [default: 1; 0 with --switch]", min=0),
    ] = None,
    switch: Annotated[
        bool, typer.Option("--switch/--dry-run", help="Switch the cluster's scheduler, or only say what would be better.")
    ] = False,
    processes: opt.ProcessesOption = None,
    json: opt.JsonOption = False,
) -> None:
    """Say which scheduler would do best from here. It looks ahead from a running cluster's state; with --switch every few
    rounds, and lets the best decide. It needs an admin's token.

    Rates are what the cluster has measured, or --throughputs; a kind that nobody has measured yet is taken to run for an hour.
    Starts and saves are taken to cost nothing where no cost is given.
    With --json, a line of JSON for every look. `fairlead scheduler show` tells who decides; the journal says why.

    Examples:

      fairlead advise

      fairlead advise --policies las,srtf,tiresias --admissions accept-all --switch --every 5
    """
    asked = syn.Asked(policies, admissions, placements, metric, forecast, window, margin, processes)
    spent = opt.costs_of(launch_cost, restart_cost, checkpoint_cost, checkpoint_every, costs)
    plane, known, made = control_plane(), read_table(throughputs), 0
    most = looks if looks is not None else 0 if switch else 1
    while True:
        try:
            state = state_of(plane)
            measured = None if known is not None else plane.rates()
        except Unreachable as problem:  # it may come back; whoever decided last goes on deciding
            if made == 0:
                raise
            note(f"{problem}; looking again in a minute")
            time.sleep(60.0)
            continue
        running = scheduler_of(state.scheduler)
        if running.round_s == 0:
            raise InputError("advise", "a cluster with rounds", field="rounds", value="event-driven")
        table = known.for_types(state.cluster.type_names) if known is not None else rates_of(measured or {}, state)
        table = with_company(table, state)
        candidates, alive = asked.candidates(running), len(state.live) + len(state.queue)
        looking = f"{len(candidates)} candidates, {alive} jobs"
        with asked.advisor(candidates, table, spent) as advisor, progress(None, looking, quiet=json):
            advice = look_at(state, advisor)
        if json:
            print_json(syn.advice_data(advice))
        else:
            out.print(syn.outlook_table(advice))
        if advice.switch and switch:
            note(_switched(plane, advice.chosen.to_data(), advice.why, state.scheduler))
        elif advice.switch:
            note(f"better: {advice.why}")
        elif not alive:
            note("nobody is there: nothing would be better or worse")
        else:
            note(f"nothing would be better by more than {margin:.0%}")
        made += 1
        if made == most:
            return
        note(f"looking again in {duration(every * running.round_s)}; Ctrl-C ends it")
        time.sleep(every * running.round_s)


def _switched(plane: ControlPlane, chosen: Mapping[str, Any], why: str, instead_of: Mapping[str, Any]) -> str:
    """A look takes a while. Whoever has switched meanwhile meant it: what was found is about another scheduler by now."""
    try:
        plane.switch(chosen, why, instead_of=instead_of)
    except RefusedRequest as answer:
        if answer.status != OVERTAKEN:
            raise
        return f"not switched, somebody else has switched the scheduler during this look; it would have been: {why}"
    except Unreachable as problem:
        return f"not known whether it is switched: {problem}"
    return f"switched: {why}"
