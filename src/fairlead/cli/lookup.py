"""`fairlead policies`: what there is to choose from."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer
from rich.table import Table

from fairlead.cli.options import JsonOption
from fairlead.cli.output import out, print_json
from fairlead.core.errors import UnknownName
from fairlead.registry import GROUPS, Registered, Registry


def policies(
    what: Annotated[str, typer.Argument(help=f"{', '.join(GROUPS)}, or all.")] = "policy",
    json: JsonOption = False,
) -> None:
    """List policies (or other parts): name, one line, parameters and the paper it comes from."""
    kinds = list(GROUPS) if what == "all" else [what.removesuffix("s") if what != "policies" else "policy"]
    if kinds[0] not in GROUPS:
        raise UnknownName("kind of part", what, (*GROUPS, "all"))
    found = [entry for kind in kinds for entry in Registry.installed().of(kind)]
    if json:
        print_json({"parts": [_described(entry) for entry in found]})
        return
    for kind in kinds:
        table = Table(title=kind, title_justify="left", expand=False)
        table.add_column("name", no_wrap=True, min_width=max(len(entry.name) for entry in found if entry.what == kind))
        for heading in ("what it does", "parameters (defaults)", "from"):
            table.add_column(heading, overflow="fold")
        for entry in found:
            if entry.what == kind:
                line = _described(entry)
                given = ", ".join(f"{k}={v}" for k, v in line["parameters"].items())  # type: ignore[attr-defined]
                table.add_row(f"[bold]{entry.name}[/bold]", str(line["summary"]), given, entry.paper or entry.origin)
        out.print(table)


def _described(entry: Registered) -> dict[str, object]:
    found = entry.load()
    parameters = {}
    if dataclasses.is_dataclass(found):
        for field in dataclasses.fields(found):
            if field.init and field.default is not dataclasses.MISSING:
                parameters[field.name] = field.default
            elif field.init and field.default_factory is not dataclasses.MISSING:
                parameters[field.name] = field.default_factory()
    summary = str(getattr(found, "summary", "")) or entry.summary  # formats carry a line for people of their own
    return {
        "kind": entry.what,
        "name": entry.name,
        "summary": summary,
        "parameters": parameters,
        "paper": entry.paper,
        "origin": entry.origin,
    }
