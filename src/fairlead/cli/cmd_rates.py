"""`fairlead rates`: what a cluster has measured, for the simulator."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fairlead.cli.cmd_jobs import control_plane
from fairlead.cli.output import JsonOption, note, print_json
from fairlead.workloads.table_files import write_throughputs
from fairlead.workloads.throughput_tables import MeasuredRate, draft_table

rates_app = typer.Typer(help="Throughputs as a cluster has measured them.", no_args_is_help=True, rich_markup_mode=None)


@rates_app.callback()
def rates() -> None:
    """Throughputs as a cluster has measured them."""


@rates_app.command()
def export(
    to: Annotated[Path, typer.Option("--out", help="Where to: CSV, or Parquet by its name.")] = Path("rates.csv"),
    all_types: Annotated[
        bool, typer.Option("--all-types", help="Where a kind was not seen on a type: its mean elsewhere, marked as guessed.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Write what running jobs showed as a table for the simulator. As in: fairlead rates export --out rates.csv, then
    fairlead simulate --throughputs rates.csv --trace ….

    Steps per second by kind, workers, type, consolidated or spread over more nodes than needed. A kind that was not seen on a
    type does not run there in a simulation, unless --all-types is given. Jobs of one kind should do the same work: say kind: in
    the task file, otherwise it is the script's name. Exit codes: 0 written, 2 nothing was measured yet, or not written.
    """
    told = control_plane().rates()
    if json:
        print_json(told)
        return
    rates = [
        MeasuredRate(one["kind"], one["workers"], one["type"], one["placement"] == "spread", one["steps_per_s"])
        for one in told["rates"]
    ]
    draft = draft_table(rates, told["types"] if all_types else (), to)
    write_throughputs(draft.finish(), to)
    note(f"{to}: rates: {len(draft.alone)}, of kinds and gang sizes: {len(draft.sources)}")
    pairs = [(kind, workers, name) for kind, workers in draft.sources for name in told["types"]]
    unseen = [f"{kind} on {name}" for kind, workers, name in pairs if ((kind, workers), name) not in draft.alone]
    if unseen:
        some = ", ".join(unseen[:5]) + (" …" if len(unseen) > 5 else "")
        note(f"never measured, so 0 in the table: {some}; --all-types fills them in")
