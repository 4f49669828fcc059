"""`fairlead compare --sweep`: what a sweep file asks for, run as far as it has not been, as a table and a report."""

from __future__ import annotations

from pathlib import Path

import typer
from rich.table import Table

from fairlead.cli.fitting import fitted
from fairlead.cli.output import kept_in, note, out, print_json, progress
from fairlead.cli.written import distinct
from fairlead.core.errors import InputError
from fairlead.study.sweep import Swept, read_sweep, run_sweep
from fairlead.study.sweep.page import headings, rows, write_page

_BESIDE = ("sweep", "folder", "processes", "json")
"""Options that go with --sweep; what else there is to say is said in the file."""


def sweep_over(path: Path, folder: Path | None, context: typer.Context, *, processes: int | None, json: bool) -> None:
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        if option.name not in _BESIDE and source is not None and source.name == "COMMANDLINE":
            raise InputError(f"--{(option.name or '').replace('_', '-')}", f"this in {path}, where the rest of the sweep is")
    given = read_sweep(path)
    place = folder or Path("out") / path.stem
    distinct([path], [], [place])
    with kept_in(place / "cases"), progress(len(given.points()) * len(given.seeds), "simulating", quiet=json) as bar:
        swept = run_sweep(given, place, processes=processes, on_done=lambda _: bar.advance())
    report = write_page(swept, place)
    if json:
        print_json(_told(swept))
    else:
        out.print(_table(swept))
        for why in dict.fromkeys(result.failed for result in swept.results if result.failed):
            note(f"failed: {why}")
        note(f"runs: {swept.ran}" + (f", kept from before: {swept.kept}" if swept.kept else "") + f"   report: {report}")
    if any(result.failed for result in swept.results):
        raise typer.Exit(1)


def _told(swept: Swept) -> dict[str, object]:
    sweep = swept.sweep
    results = [
        {
            "scheduler": sweep.arms[result.point.arm].label,
            "at": {axis.name: sweep.value(result.point, index) for index, axis in enumerate(sweep.axes)},
            "mean": result.mean,
            "half_width": result.half_width,
            "failed": result.failed or None,
        }
        for result in swept.results
    ]
    return {"title": sweep.title, "seeds": sweep.seeds, "ran": swept.ran, "kept": swept.kept, "results": results}


def _table(swept: Swept) -> Table:
    sweep = swept.sweep
    caption = f"mean ± half the 95 % interval over {len(sweep.seeds)} seeds" if len(sweep.seeds) > 1 else ""
    return fitted(sweep.title, headings(sweep), rows(swept), 1 + len(sweep.axes), caption)
