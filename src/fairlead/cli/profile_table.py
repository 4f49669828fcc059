"""`fairlead profile table`: what was measured as a throughput table, which simulations read."""

from __future__ import annotations

import math
from collections.abc import Collection
from pathlib import Path
from typing import Annotated

import typer

from fairlead.cli.output import JsonOption, note, print_json
from fairlead.cli.written import distinct
from fairlead.core.cluster import is_type_name
from fairlead.core.errors import InputError, near_or_all
from fairlead.prediction.profiles import Profiles, devices, profiles, profiles_of
from fairlead.profiling.results import read_pairs, read_results
from fairlead.profiling.sharing import Sharing
from fairlead.runtime.agent.accelerators import type_of
from fairlead.workloads.shared_table import Measured, shared_table
from fairlead.workloads.tables import write_throughputs


def table(
    to: Annotated[Path, typer.Option("--out", help="Where to: CSV, or Parquet by its name.")],
    alone: Annotated[Path | None, typer.Option("--alone", help="A file of `profile alone`; else the set that ships.")] = None,
    pairs: Annotated[
        list[Path] | None, typer.Option("--pairs", help="A file of `profile pairs`; several times. Else those that ship.")
    ] = None,
    set_: Annotated[str, typer.Option("--set", help="The set that ships.")] = "h200",
    sharing: Annotated[Sharing, typer.Option("--sharing", help="Whose pairs are taken.")] = Sharing.TIME_SLICING,
    together: Annotated[
        bool,
        typer.Option(
            "--together", help="Only those of whom every two were measured at once: for schedulers that put any two together."
        ),
    ] = False,
    type_name: Annotated[str, typer.Option("--type", help="What the accelerator is called. [default: by its device]")] = "",
    json: JsonOption = False,
) -> None:
    """Write measurements as a throughput table. As in: fairlead profile table --out h200.csv, then
    fairlead simulate --throughputs h200.csv --trace ….

    A kind of job is a configuration, model@input:batch; rates are of one worker, alone and beside every other that it was
    measured with. Schedulers that go by the table put no others together; those that predict what company costs, such as
    Horus, put any two together, and want --together.
    """
    if type_name and not is_type_name(type_name):
        raise InputError("profile table", "a type's name, as a cluster has it: h200", field="type", value=type_name)
    distinct([alone, *(pairs or [])], [to])
    known = _known(alone, pairs or [], set_)
    slowdowns = known.pairs.get(sharing.value, {})
    found = {pair: max(1.0, slower) for pair, (slower, _) in slowdowns.items()}  # faster beside another than alone is noise
    wanted = _all_met(found) if together else known.alone.keys()
    if not wanted:
        raise InputError("profile table", f"pairs that were measured, {sharing.value}", field="together")
    rows = [
        Measured(one.name, one.steps_per_s, one.utilization, one.memory_mb / 1024)
        for one in known.alone.values()
        if one.name in wanted
    ]
    made = shared_table(
        type_name.lower() or type_of(known.device),
        rows,
        lambda one, other: found.get((one, other), math.inf),
        source="measured",
    )
    write_throughputs(made, to)
    met = {frozenset(pair) for pair in found if wanted >= {*pair}}
    told = {"out": str(to), "type": made.types[0], "kinds": len(rows), "pairs": len(met)}
    if json:
        print_json(told)
    else:
        note(f"{to}: {told['kinds']} kinds on {told['type']}, {told['pairs']} pairs of them, {sharing.value}")


def _all_met(pairs: Collection[tuple[str, str]]) -> set[str]:
    """Many of whom every two were measured together: who missed most others is left out, until nobody did."""
    names = {one for one, _ in pairs}
    while names:
        missed = {one: sum((one, other) not in pairs for other in names) for one in names}
        worst = max(names, key=lambda one: (missed[one], one))
        if not missed[worst]:
            break
        names.remove(worst)
    return names


def _known(alone: Path | None, pairs: list[Path], shipped: str) -> Profiles:
    if alone is None and not pairs:
        if shipped not in devices():
            raise InputError(
                "profile table", f"a set that ships ({near_or_all(shipped, devices())})", field="set", value=shipped
            )
        return profiles(shipped, None)
    if alone is None:
        raise InputError(
            "profile table", "--alone FILE beside --pairs: speeds are of one host", field="pairs", value=str(pairs[0])
        )
    return profiles_of(read_results(alone), {path: read_pairs(path) for path in pairs}, alone)
