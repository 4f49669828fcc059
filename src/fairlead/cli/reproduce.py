"""`fairlead reproduce`: a paper's evaluation, run again and put beside what the paper says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from fairlead.cli import options as opt
from fairlead.cli.output import note, out, print_json, progress
from fairlead.core.errors import InputError
from fairlead.study.reproduce import PUBLIC, TABLE, Paper, Reproduction, World
from fairlead.study.reproduce import reproduce as run_reproduction
from fairlead.study.reproduce.blox import BLOX, PublicTraces
from fairlead.study.reproduce.blox.own_clusters import own_clusters
from fairlead.study.reproduce.gavel import GAVEL
from fairlead.study.reproduce.horus import HORUS, MeasuredPairs
from fairlead.study.reproduce.page import shown_ours, shown_paper
from fairlead.study.reproduce.reproduce import Outcome
from fairlead.study.reproduce.shockwave import SHOCKWAVE, AdaptiveJobs
from fairlead.study.reproduce.study import S

SHARED = Path(__file__).resolve().parents[3] / ".." / "shared" / "data"
"""Where the public traces and tables lie, seen from the project's root."""

reproduce_app = typer.Typer(help="Run a paper's evaluation again, beside what it says.", no_args_is_help=True)

ScaleOption = Annotated[str, typer.Option("--scale", help=f"How large: {', '.join(PUBLIC)}.")]
OnlyOption = Annotated[str | None, typer.Option("--only", help="Studies, separated by commas. [default: all]")]
FolderOption = Annotated[Path, typer.Option("--out", help="The folder for the report and the finished cases.")]


def _help(paper: Paper[S], what: str, *examples: str, scales_too: Sequence[str] = ()) -> str:
    return "\n\n".join(
        [
            f"Run {what} again: tables and figures, the paper's claims beside ours.",
            "Finished cases are kept in the output folder, and a second run reuses them.",
            "Scales:",
            *(_told(paper, name) for name in PUBLIC),
            *scales_too,
            f"Studies: {', '.join(study.name for study in paper.studies)}.",
            "Examples:",
            *(f"  fairlead reproduce {example}" for example in examples),
        ]
    )


def _told(paper: Paper[S], scale: str) -> str:
    takes = f"; takes {paper.takes[scale]}" if scale in paper.takes else ""
    return f"{paper.scales[scale].description}{takes}."


_GAVEL_HELP = _help(
    GAVEL,
    "Gavel's evaluation (OSDI'20, section 7)",
    "gavel",
    "gavel --scale medium --only fig9,fig10 --out out/gavel-medium",
)
_BLOX_HELP = _help(
    BLOX,
    "Blox' evaluation (EuroSys'24, sections 4 and 5)",
    "blox",
    "blox --scale full --processes 16 --out out/blox-full",
    scales_too=[
        "On clusters of their own, fig3, fig5, fig8 and fig9:",
        *(f"{name}: {own_clusters(BLOX.scale(name)).description}." for name in PUBLIC),
    ],
)

_SHOCKWAVE_HELP = _help(
    SHOCKWAVE,
    "Shockwave's evaluation (NSDI'23, sections 5 and 8)",
    "shockwave",
    "shockwave --scale medium --only fig7,fig9 --out out/shockwave-medium",
)
_HORUS_HELP = _help(
    HORUS,
    "Horus' evaluation (TPDS'21, section 6)",
    "horus",
    "horus --scale medium --only table7,queues --out out/horus-medium",
)


@reproduce_app.callback()
def papers() -> None:
    """Run a paper's evaluation again, beside what it says."""


@reproduce_app.command("gavel", help=_GAVEL_HELP)
def gavel(
    scale: ScaleOption = "small",
    only: OnlyOption = None,
    throughputs: Annotated[
        Path | None,
        typer.Option(
            "--throughputs",
            help=f"Gavel's {TABLE}; its traces are looked for beside it. [default: none, the bundled catalogue's rates]",
        ),
    ] = None,
    folder: FolderOption = Path("out/gavel"),
    processes: opt.ProcessesOption = None,
    json: opt.JsonOption = False,
) -> None:
    _run(_asked(GAVEL, scale, only, folder, lambda: World(_table(throughputs))), processes, json)


@reproduce_app.command("blox", help=_BLOX_HELP)
def blox(
    scale: ScaleOption = "small",
    only: OnlyOption = None,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            help="A folder with philly/philly.csv, tiresias/60_job.csv and pollux/. [default: none, generated durations alone]",
        ),
    ] = None,
    folder: FolderOption = Path("out/blox"),
    processes: opt.ProcessesOption = None,
    json: opt.JsonOption = False,
) -> None:
    _run(_asked(BLOX, scale, only, folder, lambda: PublicTraces(data=_data(data, "Philly's durations"))), processes, json)


@reproduce_app.command("shockwave", help=_SHOCKWAVE_HELP)
def shockwave(
    scale: ScaleOption = "small",
    only: OnlyOption = None,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data", help="A folder with shockwave/*.trace and what lies beside. [default: none, generated jobs alone]"
        ),
    ] = None,
    folder: FolderOption = Path("out/shockwave"),
    processes: opt.ProcessesOption = None,
    json: opt.JsonOption = False,
) -> None:
    _run(_asked(SHOCKWAVE, scale, only, folder, lambda: AdaptiveJobs(data=_data(data, "Shockwave's traces"))), processes, json)


@reproduce_app.command("horus", help=_HORUS_HELP)
def horus(
    scale: ScaleOption = "small",
    only: OnlyOption = None,
    folder: FolderOption = Path("out/horus"),
    processes: opt.ProcessesOption = None,
    json: opt.JsonOption = False,
) -> None:
    _run(_asked(HORUS, scale, only, folder, MeasuredPairs), processes, json)


def _asked(paper: Paper[S], scale: str, only: str | None, folder: Path, world: Callable[[], World]) -> Reproduction[S]:
    names = [name.strip() for name in (only or "").split(",") if name.strip()]
    if only is not None and not names:
        raise InputError("--only", "names of studies, separated by commas", field="only", value=only)
    studies, size, rates = paper.chosen(names), paper.scale(scale), world()
    _ = rates.mark, rates.table  # what cannot be read is told before anything runs
    return Reproduction(paper, size, rates, folder, studies)


def _run(given: Reproduction[S], processes: int | None, json: bool) -> None:
    opt.distinct([], [], [given.folder])
    with progress(len(given.cases()), "running", quiet=json) as bar:
        outcome = run_reproduction(given, processes=processes, on_done=lambda _: bar.advance())
    if json:
        rows = [
            {
                "study": study.name,
                "claim": row.what,
                "paper": row.paper,
                "ours": row.ours,
                "within": row.within,
                "verdict": row.verdict,
                "note": row.note,
            }
            for study, row in outcome.rows
        ]
        print_json({"scale": given.scale.name, "rates": given.world.rates_are, "ran": outcome.ran, "rows": rows})
        return
    title = f"{given.paper.title}, reproduced"
    out.print(_shown(outcome, title, f"{given.scale.description}; {given.world.rates_are}"))
    kept = len(given.cases()) - outcome.ran
    note(f"cases run: {outcome.ran}" + (f", kept from before: {kept}" if kept else ""))
    note(f"report: {given.folder / 'report.html'}")


def _table(given: Path | None) -> Path | None:
    """The file that was asked for, or the published one beside the project, or none."""
    if given is not None:
        return given
    beside = SHARED / "gavel" / TABLE
    if beside.is_file():
        return beside.resolve()
    note("going on with the bundled catalogue's rates; for Gavel's own, pass its simulation_throughputs.json as --throughputs")
    return None


def _data(given: Path | None, what: str) -> Path | None:
    if given is not None:
        return given
    if SHARED.is_dir():
        return SHARED.resolve()
    note(f"going on with generated jobs alone; for {what}, pass the folder of public traces as --data")
    return None


def _shown(outcome: Outcome, title: str, caption: str) -> Table:
    table = Table(title=title, caption=caption, box=box.SIMPLE, title_justify="left", caption_justify="left")
    table.add_column("study", no_wrap=True)
    table.add_column("claim")
    for heading in ("paper", "ours"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("verdict")
    for study, row in outcome.rows:
        verdict = f"failed: {row.note}" if row.verdict == "failed" else row.verdict
        table.add_row(study.name, row.what, shown_paper(row), shown_ours(row), verdict)
    return table
