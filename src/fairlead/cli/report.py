"""`fairlead report`: pictures and tables of runs that are over, from their event logs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fairlead.cli import options as opt
from fairlead.cli.output import note, out, print_json
from fairlead.cli.written import distinct
from fairlead.report.figures import write_figures
from fairlead.report.html import write_report
from fairlead.report.metrics import summarize
from fairlead.report.tables import comparison_table
from fairlead.study.record import record_from_journal


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
