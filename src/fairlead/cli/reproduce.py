"""`fairlead reproduce`: a paper's evaluation, run again and put beside what the paper says."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from fairlead.cli.output import note, out, print_json, progress
from fairlead.study.reproduce import PUBLIC, SCALES, TABLE, Reproduction, World, chosen, scale_named
from fairlead.study.reproduce import reproduce as run_reproduction
from fairlead.study.reproduce.page import shown_value
from fairlead.study.reproduce.reproduce import STUDIES, Outcome

SHARED = Path("..") / "shared" / "data" / "gavel" / TABLE
"""Where the published table lies, seen from the project's root."""

reproduce_app = typer.Typer(help="Run a paper's evaluation again, and put it beside what the paper says.", no_args_is_help=True)

_HELP = "\n\n".join(
    [
        "Run Gavel's evaluation (OSDI'20, section 7) again: tables and figures, the paper's claims beside ours.",
        "Finished cases are kept in the output folder, and a second run reuses them.",
        "Scales:",
        *(f"{SCALES[name].description}." for name in PUBLIC),
        f"Studies: {', '.join(study.name for study in STUDIES)}.",
        "Examples:",
        "  fairlead reproduce gavel",
        "  fairlead reproduce gavel --scale medium --only fig9,fig10 --out out/gavel-medium",
    ]
)


@reproduce_app.callback()
def papers() -> None:
    """Run a paper's evaluation again, and put it beside what the paper says."""


@reproduce_app.command("gavel", help=_HELP)
def gavel(
    scale: Annotated[str, typer.Option("--scale", help=f"How large: {', '.join(PUBLIC)}.")] = "small",
    only: Annotated[str, typer.Option("--only", help="Studies, separated by commas. [default: all]")] = "",
    throughputs: Annotated[
        Path | None,
        typer.Option(
            "--throughputs",
            help=f"Gavel's {TABLE}; its traces are looked for beside it. [default: none, the bundled catalogue's rates]",
        ),
    ] = None,
    folder: Annotated[Path, typer.Option("--out", help="The folder for the report and the finished cases.")] = Path(
        "out/gavel"
    ),
    processes: Annotated[
        int | None, typer.Option("--processes", help="Parallel processes. [default: all cores]", min=1)
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    studies = chosen([name.strip() for name in only.split(",") if name.strip()])
    given = Reproduction(scale_named(scale), World(_table(throughputs)), folder, studies)
    _ = given.world.table  # a table that cannot be read is told before anything runs
    with progress(len(given.cases()), "running", quiet=json) as bar:
        outcome = run_reproduction(given, processes=processes, on_done=lambda _: bar.advance())
    if json:
        rows = [
            {
                "study": study.name,
                "claim": row.what,
                "paper": row.paper,
                "ours": row.ours,
                "verdict": row.verdict,
                "note": row.note,
            }
            for study, row in outcome.rows
        ]
        print_json({"scale": given.scale.name, "rates": given.world.rates_are, "ran": outcome.ran, "rows": rows})
        return
    out.print(_shown(outcome, f"{given.scale.description}; {given.world.rates_are}"))
    kept = len(given.cases()) - outcome.ran
    note(f"cases run: {outcome.ran}" + (f", kept from before: {kept}" if kept else ""))
    note(f"report: {folder / 'report.html'}")


def _table(given: Path | None) -> Path | None:
    """The file that was asked for, or the published one beside the project, or none."""
    if given is not None:
        return given
    beside = Path(__file__).resolve().parents[3] / SHARED
    if beside.is_file():
        return beside.resolve()
    note("going on with the bundled catalogue's rates; for Gavel's own, pass its simulation_throughputs.json as --throughputs")
    return None


def _shown(outcome: Outcome, caption: str) -> Table:
    table = Table(title="Gavel, reproduced", caption=caption, box=box.SIMPLE, title_justify="left", caption_justify="left")
    table.add_column("study", no_wrap=True)
    table.add_column("claim")
    for heading in ("paper", "ours"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("verdict")
    for study, row in outcome.rows:
        verdict = f"failed: {row.note}" if row.verdict == "failed" else row.verdict
        table.add_row(study.name, row.what, shown_value(row.paper, row.unit), shown_value(row.ours, row.unit), verdict)
    return table
