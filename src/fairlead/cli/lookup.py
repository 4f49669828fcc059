"""`fairlead policies`: what there is to choose from, a line each, and all about one of them."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Annotated, Any

import typer

from fairlead.cli.output import JsonOption, note, out, print_json, print_lines
from fairlead.core.errors import InputError, UnknownName, near_names
from fairlead.registry import GROUPS, Registered, Registry

KINDS = {**{kind: kind for kind in GROUPS}, **{f"{kind}s": kind for kind in GROUPS}, "policies": "policy"}
"""By what people call them."""


def policies(
    what: Annotated[
        str, typer.Argument(help=f"A kind ({', '.join(GROUPS)}), all of them (all), or the name of one part.")
    ] = "policy",
    json: JsonOption = False,
) -> None:
    """List policies and other parts, or tell all about one. A line each; of one, its parameters and the paper it comes from.

    Examples:

      fairlead policies

      fairlead policies tiresias

      fairlead policies placement

      fairlead policies all --json
    """
    installed = Registry.installed()
    if what == "all" or what in KINDS:
        kinds = list(GROUPS) if what == "all" else [KINDS[what]]
        found = {kind: [_described(entry) for entry in installed.of(kind)] for kind in kinds}
        if json:
            print_json({"parts": [part for parts in found.values() for part in parts]})
            return
        for kind, parts in found.items():
            print_lines([(part["name"], part["summary"]) for part in parts], kind)
        note("all about one, with its parameters: fairlead policies NAME")
        return
    claims = [(kind, name) for kind in GROUPS for name in installed.entries.get(kind, {}) if name == what.replace("_", "-")]
    if not claims:
        known = {*KINDS, "all", *(name for kind in GROUPS for name in installed.entries.get(kind, {}))}
        if not near_names(what, known):
            raise InputError("policies", f"a kind ({', '.join(GROUPS)}) or a part that 'all' lists", field="what", value=what)
        raise UnknownName("kind or part", what, known)
    named = [installed.find(kind, name) for kind, name in claims]
    if json:
        print_json({"parts": [_described(entry) for entry in named]})
        return
    for index, entry in enumerate(named):
        out.print("\n" * bool(index) + "\n".join(_told(entry)), highlight=False, markup=False, soft_wrap=True)


def _told(entry: Registered) -> list[str]:
    """Everything about a part, line by line."""
    about = _described(entry)
    parameters = about["parameters"]
    text = inspect.getdoc(entry.load()) or ""
    lines = [f"{entry.name} ({entry.what})", ""]
    lines += [f"  {line}".rstrip() for line in (text if text.startswith(about["summary"]) else about["summary"]).splitlines()]
    lines += ["", "  parameters, and their defaults:"] if parameters else ["", "  no parameters"]
    lines += [f"    {name} = {value}" for name, value in parameters.items()]
    return [*lines, f"  from {entry.paper or entry.origin}"]


def _described(entry: Registered) -> dict[str, Any]:
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
