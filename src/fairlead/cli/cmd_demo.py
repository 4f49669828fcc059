"""`fairlead demo`: real jobs on a cluster of this machine, the same jobs under other policies, and a larger simulation."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import typer
from rich import box
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fairlead.cli.output import note, out, progress
from fairlead.config.clusters import read_cluster
from fairlead.config.schedulers import Part, SchedulerConfig
from fairlead.core.events import Event
from fairlead.demo.story import Story
from fairlead.experiments.compare import Comparison, Workload, run_comparison
from fairlead.experiments.resimulate import RecordedRun, comparison_rows, resimulation, resimulation_records
from fairlead.experiments.run_record import RunRecord
from fairlead.reporting.figures import write_figures
from fairlead.reporting.html import write_report
from fairlead.reporting.tables import comparison_table
from fairlead.simulator.costs import Costs
from fairlead.workloads.catalogue import accelerator_types
from fairlead.workloads.generate import Generator

POLICY = "las"
OTHERS = ("fifo", "srtf", "max-min-fairness-perf")
SEVEN = ("fifo", "sjf", "srtf", "las", "tiresias", "gittins", "largest-first")
MACHINES = "16xv100:4,16xp100:4,32xk80:4"
IN_THE_REPORT = "see the report"


def demo_command(
    to: Path = typer.Option(Path("out"), "--out", help="The folder for the report, the plots and the journal."),
    quick: bool = typer.Option(False, "--quick", help="Run 6 real and 20 simulated jobs, without plots."),
) -> None:
    """Show what Fairlead does, in under two minutes.

    The demo starts a cluster of two nodes with simulated GPUs on this machine, and runs a dozen small jobs as real processes.
    One is a gang, one fails and is retried, one is cancelled, and one changes its batch size. Every few seconds the scheduler
    selects the jobs with the least attained service.

    Then the demo simulates the same jobs under three other policies, and 300 larger jobs under seven. It writes the report
    OUT/demo.html and the journal OUT/demo.jsonl. Ctrl-C ends all its processes.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _: sys.exit(128 + received))
    to.mkdir(parents=True, exist_ok=True)
    larger_jobs = 20 if quick else 300
    out.print("\n1. Real jobs on a cluster on this machine\n", style="bold")
    journal = to / "demo.jsonl"
    _play(journal, quick)
    out.print("\n2. The same jobs, simulated under other policies\n", style="bold")
    same = _again(journal)
    out.print(f"\n3. {larger_jobs} larger jobs, simulated under seven schedulers\n", style="bold")
    larger = _seven(quick, larger_jobs)
    parts = {"the real run, and other policies": same, "seven schedulers": larger}
    report = write_report(parts, to / "demo.html", title="Fairlead: the demo")
    if not quick:
        for runs, plots in ((same, to / "demo-live-plots"), (larger, to / "demo-plots")):
            write_figures(runs, plots)
            note(f"plots: {plots}")
    note(f"journal: {journal}")
    note(f"report: {report}")


def _play(journal: Path, quick: bool) -> None:
    from fairlead.demo.demo_cluster import (
        CLUSTER,
        a_dozen,
        a_few,
        run_demo,  # slow to import
    )

    coming, round_s = (a_few(), 2.0) if quick else (a_dozen(), 3.0)
    out.print(f"{CLUSTER}, policy {POLICY}, rounds of {round_s:g} s, {len(coming)} jobs")
    with Live(console=out, auto_refresh=False, transient=True) as live:

        def show(story: Story, new: Sequence[tuple[Event, Sequence[str]]]) -> None:
            for event, lines in new:
                for line in lines:
                    live.console.print(f"{event.time:6.1f} s  {line}")
            if out.is_terminal:
                live.update(_holders(story), refresh=True)

        story = run_demo(coming, policy=POLICY, round_s=round_s, journal=journal, on_events=show)
    told = f"{story.preemptions} preemptions; jobs resumed from a checkpoint {story.resumed} times."
    out.print(f"\nAll {len(coming)} have ended. {told}")


def _holders(story: Story) -> Group:
    """Return the GPUs with their jobs, and the waiting jobs."""
    table = Table("node", "GPUs", box=box.SIMPLE)
    for node, holders in story.running():
        table.add_row(node, Text("  ".join(f"[{holder or 'free':^12}]" for holder in holders)))
    return Group(table, Text(f"  waiting: {', '.join(story.waiting()) or 'no job'}"))


def _again(journal: Path) -> list[RunRecord]:
    run = RecordedRun.read(str(journal))
    given = resimulation(run, [run.under(Part(name)) for name in OTHERS])
    with progress(len(given.schedulers), "simulating", quiet=False) as bar:
        outcomes = run_comparison(given, processes=1, keep_records=True, on_done=lambda _: bar.advance())
    out.print(
        comparison_table(
            comparison_rows(run, given, outcomes), title=f"{given.cluster}", width=out.width, elsewhere=IN_THE_REPORT
        )
    )
    if run.world.guessed:
        note(f"not measured, so assumed to be the mean of the other GPU types: {'; '.join(run.world.guessed)}")
    return resimulation_records(run, given, outcomes)


def _seven(quick: bool, jobs: int) -> list[RunRecord]:
    schedulers = [SchedulerConfig(Part(name)) for name in SEVEN]
    workload = Workload(Generator(jobs=jobs, jobs_per_hour=5.0, workers="multiple"))
    machines = read_cluster(MACHINES, accelerator_types())
    given = Comparison(workload, machines, schedulers, costs=Costs(restart_s=30.0))
    with progress(len(SEVEN), "simulating", quiet=False) as bar:
        outcomes = run_comparison(given, processes=1 if quick else None, keep_records=True, on_done=lambda _: bar.advance())
    rows = [(schedulers[o.case.scheduler].label, o.summary) for o in outcomes]
    out.print(comparison_table(rows, title=f"{machines}", width=out.width, elsewhere=IN_THE_REPORT))
    return [replace(o.record, scheduler=schedulers[o.case.scheduler].label) for o in outcomes if o.record is not None]
