"""`fairlead resimulate` and `fairlead report`: recorded runs, under other policies and as pictures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import typer

from fairlead.cli import options as opt
from fairlead.cli.output import check_paths, note, option_error, out, page_source, print_json, progress
from fairlead.config.schedulers import SchedulerConfig, parse_part, with_policy_files
from fairlead.core.errors import require
from fairlead.experiments.compare import run_comparison
from fairlead.experiments.metrics import summarize
from fairlead.experiments.resimulate import ControlCheck, RecordedRun, comparison_rows, resimulation, resimulation_records
from fairlead.experiments.run_record import record_from_journal
from fairlead.reporting.figures import write_figures
from fairlead.reporting.html import write_report
from fairlead.reporting.tables import comparison_table


@opt.option_groups
def resimulate_command(
    journal: str = typer.Argument(..., help="x.sqlite, x.jsonl or postgresql://…; the cluster may be running."),
    *,
    policies: str = typer.Option(
        "fifo,srtf,max-min-fairness-perf",
        help="Policies, separated by commas; parameters as in 'las:by=time'; your own as 'mine.py:MyPolicy'.",
    ),
    config: list[Path] | None = typer.Option(None, help="A scheduler file in YAML to simulate as well; repeatable."),
    definitions: opt.DefinitionOptions,
    processes: int | None = opt.PROCESSES,
    report: Path | None = typer.Option(None, help="Write an HTML report of all of them to this file."),
    png: Path | None = opt.PNG,
    json: opt.JsonOption = False,
) -> None:
    """Simulate a recorded run under other policies.

    The simulations keep the jobs with their arrival times and real work, cancellations, outages, drains, the cluster, and the
    measured throughputs and start costs. A policy of --policies replaces that of the last scheduler, whose other parts stay.

    The first row is the recorded run. The second row is a control: the same schedulers, switched at the same times, simulated.
    Its error says how far the rows below it can be trusted; the command warns where an error is above 10 %.

    A throughput that was never measured is the mean over the other GPU types; the command lists these.

    Examples:

      fairlead resimulate .fairlead/journal.sqlite

      fairlead resimulate out/demo.jsonl --policies srtf,las,tiresias --report whatif.html
    """
    metrics = definitions.read()
    check_paths([Path(journal), *(config or ())], [report], [png])
    run = RecordedRun.read(journal)
    names, registry = with_policy_files(opt.split_names(policies))
    schedulers = [run.under(parse_part(name)) for name in names]
    schedulers += [SchedulerConfig.from_file(path) for path in config or ()]
    if not schedulers:
        raise option_error("policies", "at least one policy", policies)
    for scheduler in schedulers:
        scheduler.build(None, registry)
    require(run.world.trace.jobs, journal, "a journal with jobs in it")
    given = resimulation(run, schedulers, metrics)
    given = replace(given, registries=[registry] * len(given.schedulers))
    pictures = report is not None or png is not None
    with progress(len(given.schedulers), "simulating", quiet=json) as bar:
        outcomes = run_comparison(given, processes=processes, keep_records=pictures, on_done=lambda _: bar.advance())
    rows = comparison_rows(run, given, outcomes)
    check = ControlCheck.of(rows[0][1], rows[1][1])
    if json:
        costs = {"launch_s": given.costs.launch_s, "restart_s": given.costs.restart_s}
        runs = [{"scheduler": label, **summary.to_dict()} for label, summary in rows]
        about = {"cluster": str(given.cluster), "control": check.to_dict(), "costs": costs}
        print_json({**about, "unmeasured": list(run.world.guessed), "runs": runs})
    else:
        out.print(comparison_table(rows, title=f"{given.cluster}", width=out.width))
        out.print(check.text)
        if run.world.guessed:
            note(f"not measured, so assumed to be the mean of the other GPU types: {'; '.join(run.world.guessed)}")
    if check.warning:
        note(f"warning: {check.warning}")
    shown = resimulation_records(run, given, outcomes)
    if report is not None:
        title, notes = "Recorded run under other policies", [check.text, *filter(None, [check.warning])]
        note(f"report: {write_report(shown, report, metrics, title=title, notes=notes, source=page_source())}")
    if png is not None:
        note(f"plots: {', '.join(map(str, write_figures(shown, png, metrics)))}")


@opt.option_groups
def report_command(
    journals: list[Path] = typer.Argument(..., help="Event logs from 'fairlead simulate --events', or journals of a cluster."),
    *,
    output: Path = typer.Option(Path("report.html"), "--out", "--output", "-o", help="The HTML file to write."),
    png: Path | None = typer.Option(None, help="Also write the plots as PNG files into this folder."),
    title: str = typer.Option("Fairlead report", help="The report's title."),
    measure: str | None = typer.Option(
        None, help="Measure only these jobs, by submission order, as in 50:150.", rich_help_panel=opt.METRICS
    ),
    definitions: opt.DefinitionOptions,
    json: opt.JsonOption = False,
) -> None:
    """Write an HTML report of one or several event logs.

    Example:

      fairlead simulate --policy las --events las.jsonl && fairlead report las.jsonl -o las.html
    """
    check_paths(journals, [output], [png])
    metrics = definitions.read(measure)
    records = [record_from_journal(path) for path in journals]
    summaries = [(record.scheduler, summarize(record, metrics)) for record in records]
    path = write_report(records, output, metrics, title=title, source=page_source())
    figures = write_figures(records, png, metrics) if png is not None else []
    if json:
        runs = [{"scheduler": label, "journal": str(j), **s.to_dict()} for j, (label, s) in zip(journals, summaries)]
        print_json({"report": str(path), "figures": [str(p) for p in figures], "runs": runs})
        return
    out.print(comparison_table(summaries, width=out.width))
    note(f"report: {path}")
    if figures:
        note(f"plots: {', '.join(map(str, figures))}")
