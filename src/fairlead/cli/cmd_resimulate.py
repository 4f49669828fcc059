"""`fairlead resimulate`: what happened on a cluster, beside what would have under other policies."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fairlead.cli import options as opt
from fairlead.cli.output import distinct, note, out, print_json, progress
from fairlead.config import SchedulerConfig
from fairlead.config.schedulers import parse_part
from fairlead.core.errors import InputError
from fairlead.experiments.compare import compare
from fairlead.experiments.metrics import summarize
from fairlead.experiments.resimulate import Recorded, beside, comparison, records
from fairlead.experiments.run_record import record_from_journal
from fairlead.reporting.figures import write_figures
from fairlead.reporting.html import write_report
from fairlead.reporting.tables import comparison_table


def resimulate(
    journal: Annotated[str, typer.Argument(help="x.sqlite, x.jsonl or postgresql://…, also of a cluster that is at work.")],
    policies: Annotated[
        str, typer.Option("--policies", help="Policies, separated by commas; parameters as in 'las:by=time'.")
    ] = "fifo,srtf,max-min-fairness-perf",
    config: Annotated[
        list[Path] | None, typer.Option("--config", help="A scheduler file in YAML to simulate as well; repeatable.")
    ] = None,
    makespan_from: opt.MakespanFromOption = "first-submission",
    jct_from: opt.JctFromOption = "submission",
    contention: opt.ContentionOption = "average",
    unfair_above: opt.UnfairAboveOption = 1.05,
    processes: opt.ProcessesOption = None,
    report: Annotated[Path | None, typer.Option("--report", help="Write an HTML report of all of them to this file.")] = None,
    png: opt.PngOption = None,
    json: opt.JsonOption = False,
) -> None:
    """Simulate a recorded run under other policies.

    What came from outside stays: the same jobs at the same seconds with the work they really did, the same cancellations,
    outages and drains, on the same cluster, with the rates and the costs of starting that were measured in the run. Everything
    else about the scheduler stays as it was.

    The first row is what happened. Rates that were never measured are the mean of those on other types, and are named.

    Examples:

      fairlead resimulate .fairlead/journal.sqlite

      fairlead resimulate out/demo.jsonl --policies srtf,las,tiresias --report whatif.html
    """
    metrics = opt.metrics_of(None, makespan_from, jct_from, contention, unfair_above)
    distinct([Path(journal), *(config or ())], [report], [png])
    run = Recorded.read(journal)
    schedulers = [run.under(parse_part(name)) for name in opt.split(policies)]
    schedulers += [SchedulerConfig.from_file(path) for path in config or ()]
    if not schedulers:
        raise InputError("--policies", "at least one policy", field="policies", value=policies)
    for scheduler in schedulers:
        scheduler.build(None)
    if not run.world.trace.jobs:
        raise InputError(journal, "a journal with jobs in it")
    given = comparison(run, schedulers, metrics)
    pictures = report is not None or png is not None
    with progress(len(schedulers), "simulating", quiet=json) as bar:
        outcomes = compare(given, processes=processes, keep_records=pictures, on_done=lambda _: bar.advance())
    rows = beside(run, given, outcomes)
    if json:
        costs = {"launch_s": given.costs.launch_s, "restart_s": given.costs.restart_s}
        runs = [{"scheduler": label, **summary.to_dict()} for label, summary in rows]
        print_json({"cluster": str(given.cluster), "runs": runs, "costs": costs, "guessed": list(run.world.guessed)})
    else:
        out.print(comparison_table(rows, title=f"{given.cluster}", width=out.width))
        if run.world.guessed:
            note(f"never measured, so as fast as on other types: {'; '.join(run.world.guessed)}")
    shown = records(run, given, outcomes)
    if report is not None:
        note(f"report: {write_report(shown, report, metrics, title='Fairlead: the same days, other policies')}")
    if png is not None:
        note(f"plots: {', '.join(map(str, write_figures(shown, png, metrics)))}")


# `fairlead report`: pictures and tables of runs that are over, from their event logs.


def report(
    journals: Annotated[list[Path], typer.Argument(help="Event logs, as written by 'fairlead simulate --events'.")],
    output: Annotated[Path, typer.Option("--out", "--output", "-o", help="The HTML file to write.")] = Path("report.html"),
    png: Annotated[Path | None, typer.Option("--png", help="Write the plots as PNG files into this folder too.")] = None,
    title: Annotated[str, typer.Option("--title", help="The report's title.")] = "Fairlead report",
    measure: opt.MeasureOption = None,
    makespan_from: opt.MakespanFromOption = "first-submission",
    jct_from: opt.JctFromOption = "submission",
    contention: opt.ContentionOption = "average",
    unfair_above: opt.UnfairAboveOption = 1.05,
    json: opt.JsonOption = False,
) -> None:
    """Make one HTML file of event logs, and plots. It holds all that it shows, of one run or several.

    Example:

      fairlead simulate --policy las --events las.jsonl && fairlead report las.jsonl -o las.html
    """
    distinct(journals, [output], [png])
    metrics = opt.metrics_of(measure, makespan_from, jct_from, contention, unfair_above)
    records = [record_from_journal(path) for path in journals]
    summaries = [(record.scheduler, summarize(record, metrics)) for record in records]
    path = write_report(records, output, metrics, title=title)
    figures = write_figures(records, png, metrics) if png is not None else []
    if json:
        runs = [{"scheduler": label, "journal": str(j), **s.to_dict()} for j, (label, s) in zip(journals, summaries)]
        print_json({"report": str(path), "figures": [str(p) for p in figures], "runs": runs})
        return
    out.print(comparison_table(summaries, width=out.width))
    note(f"report: {path}")
    if figures:
        note(f"plots: {', '.join(map(str, figures))}")
