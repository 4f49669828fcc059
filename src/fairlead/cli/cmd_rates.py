"""`fairlead rates`: throughputs that a cluster has measured, for the simulator."""

from __future__ import annotations

from pathlib import Path

import typer

from fairlead.cli.output import JsonOption, note, print_json
from fairlead.cli.selectors import control_plane
from fairlead.workloads.table_files import write_throughputs
from fairlead.workloads.throughput_tables import MeasuredRate, draft_table

rates_app = typer.Typer(help="Export the throughputs that a cluster has measured.", no_args_is_help=True, rich_markup_mode=None)


@rates_app.callback()
def rates_group() -> None:
    """Export the throughputs that a cluster has measured."""


@rates_app.command()
def export(
    to: Path = typer.Option(Path("rates.csv"), "--out", help="The file to write: .csv or .parquet."),
    all_types: bool = typer.Option(
        False, "--all-types", help="Fill in GPU types that were not measured with the mean over the others."
    ),
    json: JsonOption = False,
) -> None:
    """Write measured throughputs as a table for the simulator.

    Examples:

      fairlead rates export --out rates.csv
      fairlead simulate --policy las --throughputs rates.csv --trace jobs.csv

    The table has steps per second by job type, workers, GPU type, and consolidated or spread placement. A simulation does not
    place a job on a GPU type for which its job type was not measured, unless you pass --all-types. Jobs of one type should do
    the same work: set 'kind' in the task file. The default is the name of the script.
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
    note(f"wrote {to}: {len(draft.alone)} rates of {len(draft.sources)} job types and gang sizes")
    pairs = [(kind, workers, name) for kind, workers in draft.sources for name in told["types"]]
    unseen = [f"{kind} on {name}" for kind, workers, name in pairs if ((kind, workers), name) not in draft.alone]
    if unseen:
        some = ", ".join(unseen[:5]) + (" …" if len(unseen) > 5 else "")
        note(f"not measured, so 0 in the table: {some}; --all-types fills them in")
