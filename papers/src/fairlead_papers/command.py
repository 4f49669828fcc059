"""`fairlead reproduce`: a paper's evaluation, run again and put beside what the paper says."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from fairlead.cli import options as opt
from fairlead.cli.output import check_paths, note, out, page_source, print_json, progress, say_resumable
from fairlead.core.errors import InputError
from fairlead.experiments.inputs import ExperimentInputs
from fairlead_papers import PUBLIC, TABLE, TRIAL, GavelInputs, Paper, Reproduction
from fairlead_papers import reproduce as run_reproduction
from fairlead_papers.blox import BLOX, PublicTraces
from fairlead_papers.blox.own_clusters import own_clusters
from fairlead_papers.gavel import GAVEL
from fairlead_papers.horus import HORUS, MeasuredPairs
from fairlead_papers.pages import shown_ours, shown_paper
from fairlead_papers.reproduce import Outcome
from fairlead_papers.shockwave import SHOCKWAVE, AdaptiveJobs
from fairlead_papers.study import S

SHARED = Path(__file__).resolve().parents[3] / ".." / "shared" / "data"
"""Where the public traces and tables lie, seen from the project's root."""

WIDE = 120
"""Columns of a terminal in which most claims have room."""

MOST_SEEDS = 1_000

HEADINGS = ("study", "claim", "paper", "ours", "verdict")

LONGEST_FIGURE, SHORTEST_CLAIM = 16, 16
"""Letters of them, where each claim has one line."""

PADDING = 3 * 5 + 1
"""Columns between those of a table."""

reproduce_app = typer.Typer(
    help="Reproduce the evaluation of a paper and compare the results with its claims.", no_args_is_help=True
)

ScaleOption = Annotated[
    str, typer.Option("--scale", help=f"Size of the reproduction: {', '.join(PUBLIC)}; or {TRIAL} for a trial run.")
]
OnlyOption = Annotated[str | None, typer.Option("--only", help="Studies, separated by commas. [default: all]")]
FolderOption = Annotated[
    Path | None,
    typer.Option(
        "--out",
        help="The folder for the report and the finished cases of one scale. [default: out/PAPER, or out/PAPER-SCALE]",
    ),
]


class Loads(enum.StrEnum):
    ALL = "all"
    HIGH = "high"


def _help(paper: Paper[S], what: str, *examples: str, scales_too: Sequence[str] = ()) -> str:
    return "\n\n".join(
        [
            f"Reproduce {what}: tables, figures, and the paper's claims with our results.",
            "The output folder keeps finished cases; run the same command again to resume.",
            "Scales:",
            *(_told(paper, name) for name in PUBLIC),
            f"  {TRIAL}: a trial run that checks that everything works\n    takes {paper.takes[TRIAL]}",
            *scales_too,
            f"Studies: {', '.join(study.name for study in paper.studies)}.",
            "Examples:",
            *(f"  fairlead reproduce {example}" for example in examples),
        ]
    )


def _told(paper: Paper[S], scale: str) -> str:
    takes = [f"takes {paper.takes[scale]}"] if scale in paper.takes else []
    return "  " + "\n    ".join([*paper.scales[scale].description.split("; "), *takes])


_GAVEL_HELP = _help(
    GAVEL,
    "Gavel's evaluation (OSDI'20, section 7)",
    "gavel",
    "gavel --scale medium --only fig9,fig10 --out out/gavel-medium",
    "gavel --scale full --loads high --seeds 1 --only fig9,fig11,fifo,priorities --out out/gavel-full",
)
_BLOX_HELP = _help(
    BLOX,
    "Blox' evaluation (EuroSys'24, sections 4, 5 and A)",
    "blox",
    "blox --scale full --processes 16 --out out/blox-full",
    scales_too=[
        "Scales of fig3, fig5, fig8 and fig9, which have their own clusters:",
        *(f"  {name}: " + "\n    ".join(own_clusters(BLOX.scale(name)).description.split("; ")) for name in PUBLIC),
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
    "Horus' evaluation (TPDS'21, sections 3 to 6)",
    "horus",
    "horus --scale medium --only table7,queues --out out/horus-medium",
)


@reproduce_app.callback()
def papers() -> None:
    """Reproduce the evaluation of a paper and compare the results with its claims."""


@reproduce_app.command("gavel", help=_GAVEL_HELP)
def gavel(
    scale: ScaleOption = "small",
    only: OnlyOption = None,
    loads: Annotated[
        Loads,
        typer.Option(
            "--loads",
            help="'all' loads of the scale, or only the 'high' load of the paper's claims. At full scale with one seed,"
            " fig9, fig10, fig11 and priorities take 3 to 8 CPU minutes each, and fifo takes more.",
        ),
    ] = Loads.ALL,
    seeds: Annotated[
        int | None, typer.Option("--seeds", help="Number of seeds. [default: that of the scale]", min=1, max=MOST_SEEDS)
    ] = None,
    throughputs: Annotated[
        Path | None,
        typer.Option(
            "--throughputs",
            help=f"Gavel's {TABLE}; its traces are expected in the same folder. [default: the bundled catalogue]",
        ),
    ] = None,
    folder: FolderOption = None,
    processes: int | None = opt.PROCESSES,
    on: str | None = opt.ON,
    json: opt.JsonOption = False,
) -> None:
    asked = _asked(GAVEL, scale, only, folder, lambda: GavelInputs(_table(throughputs)))
    size = asked.scale.at_high_load() if loads is Loads.HIGH else asked.scale
    _run(replace(asked, scale=size.with_seeds(seeds) if seeds else size), processes, on, json)


@reproduce_app.command("blox", help=_BLOX_HELP)
def blox(
    scale: ScaleOption = "small",
    only: OnlyOption = None,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            help="A folder with philly/philly.csv, tiresias/60_job.csv and pollux/. [default: only generated durations]",
        ),
    ] = None,
    folder: FolderOption = None,
    processes: int | None = opt.PROCESSES,
    on: str | None = opt.ON,
    json: opt.JsonOption = False,
) -> None:
    _run(_asked(BLOX, scale, only, folder, lambda: PublicTraces(data=_data(data, "Philly's durations"))), processes, on, json)


@reproduce_app.command("shockwave", help=_SHOCKWAVE_HELP)
def shockwave(
    scale: ScaleOption = "small",
    only: OnlyOption = None,
    data: Annotated[
        Path | None,
        typer.Option("--data", help="A folder with shockwave/*.trace and its other files. [default: only generated jobs]"),
    ] = None,
    folder: FolderOption = None,
    processes: int | None = opt.PROCESSES,
    on: str | None = opt.ON,
    json: opt.JsonOption = False,
) -> None:
    _run(
        _asked(SHOCKWAVE, scale, only, folder, lambda: AdaptiveJobs(data=_data(data, "Shockwave's traces"))),
        processes,
        on,
        json,
    )


@reproduce_app.command("horus", help=_HORUS_HELP)
def horus(
    scale: ScaleOption = "small",
    only: OnlyOption = None,
    folder: FolderOption = None,
    processes: int | None = opt.PROCESSES,
    on: str | None = opt.ON,
    json: opt.JsonOption = False,
) -> None:
    _run(_asked(HORUS, scale, only, folder, MeasuredPairs), processes, on, json)


def _asked(
    paper: Paper[S], scale: str, only: str | None, folder: Path | None, inputs: Callable[[], ExperimentInputs]
) -> Reproduction[S]:
    names = [name.strip() for name in (only or "").split(",") if name.strip()]
    if only is not None and not names:
        raise InputError("--only", "names of studies, separated by commas", field="only", value=only)
    studies, size, rates = paper.chosen(names), paper.scale(scale), inputs()
    _ = rates.fingerprint, rates.table  # what cannot be read is told before anything runs
    apart = paper.title.lower() if scale == PUBLIC[0] else f"{paper.title.lower()}-{scale}"
    return Reproduction(paper, size, rates, folder or Path("out") / apart, studies)


def _run(given: Reproduction[S], processes: int | None, on: str | None, json: bool) -> None:
    check_paths([], [], [given.folder])
    with say_resumable(given.folder / "cases"), progress(len(given.cases()), "running", quiet=json) as bar:
        outcome = run_reproduction(
            given,
            processes=processes,
            on=on,
            on_done=lambda _: bar.advance(),
            report=lambda what: bar.show(what=what),
            source=page_source(),
        )
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
        print_json({"scale": given.scale.name, "rates": given.inputs.rates_note, "ran": outcome.ran, "rows": rows})
        return
    title = f"{given.paper.title}, reproduced"
    narrow = out.is_terminal and out.width < WIDE
    caption = f"{given.scale.description}; {given.inputs.rates_note}"
    out.print(_shown(outcome, title, caption, out.width if narrow else None))
    for reason in _why_not(outcome):
        note(reason)
    if narrow:
        note(f"each claim is shortened to one line; in full: {given.folder / 'report.md'}")
    kept = len(given.cases()) - outcome.ran
    note(f"cases run: {outcome.ran}" + (f", from earlier runs: {kept}" if kept else ""))
    others = f"; as they were before: {', '.join(outcome.kept)}" if outcome.kept else ""
    note(f"report: {given.folder / 'report.html'}{others}")


def _table(given: Path | None) -> Path | None:
    """The file that was asked for, or the published one beside the project, or none."""
    if given is not None:
        return given
    beside = SHARED / "gavel" / TABLE
    if beside.is_file():
        return beside.resolve()
    note("using the bundled catalogue's rates; for Gavel's own, pass its simulation_throughputs.json as --throughputs")
    return None


def _data(given: Path | None, what: str) -> Path | None:
    if given is not None:
        return given
    if SHARED.is_dir():
        return SHARED.resolve()
    note(f"using generated jobs only; for {what}, pass the folder of public traces as --data")
    return None


def _shown(outcome: Outcome, title: str, caption: str, width: int | None = None) -> Table:
    """With a width, a line for each claim, cut where it ends."""
    rows = [(study.name, row.what, shown_paper(row), shown_ours(row), row.verdict) for study, row in outcome.rows]
    table = Table(title=title, caption=caption, box=box.SIMPLE, title_justify="left", caption_justify="left")
    cut = width is not None
    others = [max(len(row[column]) for row in (HEADINGS, *rows)) for column in (0, 2, 3, 4)]
    claims = None if width is None else max(width - sum(min(one, LONGEST_FIGURE) for one in others) - PADDING, SHORTEST_CLAIM)
    table.add_column(HEADINGS[0], no_wrap=True)
    table.add_column(HEADINGS[1], no_wrap=cut, overflow="ellipsis", max_width=claims)
    for heading in HEADINGS[2:4]:
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column(HEADINGS[4], no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def _why_not(outcome: Outcome) -> list[str]:
    """What claims without a figure of ours lack, each reason once, with the studies that it holds up."""
    lacking: dict[str, list[str]] = {}
    for study, row in outcome.rows:
        if row.ours is None:
            reason = row.note if row.note.startswith(row.verdict) else f"{row.verdict}: {row.note}"
            lacking.setdefault(reason, []).append(study.name)
    return [
        f"{reason} ({len(names)} claim{'' if len(names) == 1 else 's'} of {', '.join(dict.fromkeys(names))})"
        for reason, names in lacking.items()
    ]
