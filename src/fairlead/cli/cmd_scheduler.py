"""`fairlead scheduler`, `policies` and `presets`: the scheduler of a running cluster, and what schedulers are made of."""

from __future__ import annotations

import dataclasses
import inspect
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from fairlead.cli.output import JsonOption, note, out, print_json, print_lines
from fairlead.cli.selectors import control_plane
from fairlead.config.registry import FORMER_KINDS, GROUPS, Preset, Registered, Registry, current_name, preset_named, presets
from fairlead.config.schedulers import SchedulerConfig, parse_part, read_scheduler, scheduler_of
from fairlead.core.errors import InputError, UnknownName, near_names
from fairlead.runtime.control.snapshotter import check_serializable
from fairlead.runtime.http_client import ControlPlaneClient

scheduler_app = typer.Typer(help="Show or change the scheduler of a cluster.", no_args_is_help=True)


@scheduler_app.command("show")
def show_scheduler(json: JsonOption = False) -> None:
    """Print the current scheduler as a scheduler file. If it cannot decide now, also print why.

    Examples:

      fairlead scheduler show

      fairlead scheduler show > mine.yaml
    """
    plane = control_plane()
    _tell(scheduler_of(plane.scheduler()), json, plane.decision_error())


@scheduler_app.command(name="set")
def set_scheduler(
    file: Path | None = typer.Argument(None, help="A scheduler file in YAML."),
    preset: str = typer.Option("", help="A scheduler that ships with Fairlead, instead of a file; see 'fairlead presets'."),
    policy: str = typer.Option("", help="Change only the policy; see 'fairlead policies'."),
    round_s: float | None = typer.Option(None, "--round", help="Change only the length of rounds, in seconds.", min=0.1),
    why: str = typer.Option("", help="The reason, for the journal."),
    json: JsonOption = False,
) -> None:
    """Change the scheduler of a running cluster, from the next round on.

    Examples:

      fairlead scheduler set scheduler.yaml --why "try tiresias"
      fairlead scheduler set --preset tiresias
      fairlead scheduler set --policy srtf --round 30

    Jobs keep running. The state of the old policy is dropped; measured throughputs are kept. An invalid scheduler is refused
    with the reason, and the current one stays. --policy and --round change only that part.
    """
    if file is None and not preset and not policy and round_s is None:
        raise InputError("scheduler set", "a scheduler file, --preset, --policy or --round")
    if file is not None and preset:
        raise InputError("scheduler set", "either a scheduler file or --preset", field="preset", value=preset)
    plane = control_plane()
    present = None if file is not None or preset else plane.scheduler()  # the other parts stay
    asked = {"preset": preset} if preset else present or {}
    config = read_scheduler(file) if file is not None else scheduler_of(asked, "--preset" if preset else "scheduler")
    if policy:
        config = replace(config, policy=parse_part(policy), name="")
    if round_s is not None:
        config = replace(config, round_s=round_s)
    switch_to(plane, config, present, why, json)


def switch_to(plane: ControlPlaneClient, config: SchedulerConfig, present: Any, why: str, json: bool) -> None:
    """Switch a cluster to a scheduler and print it; with `present`, only if that is still the scheduler in use."""
    from fairlead.cli.options import note_unmonitored  # slow to import

    check_serializable(config.to_data())
    note_unmonitored(config)
    _tell(scheduler_of(plane.switch(config.to_data(), why, instead_of=present)), json)


def _tell(config: SchedulerConfig, json: bool, trouble: str = "") -> None:
    if json:
        print_json({"scheduler": config.to_data(), "problem": trouble})
        return
    out.print(config.to_yaml(), end="", soft_wrap=True)
    if trouble:
        note(f"the scheduler makes no decisions, so no new job starts: {trouble}; 'fairlead scheduler set' switches it")


KINDS = {**{kind: kind for kind in GROUPS}, **{f"{kind}s": kind for kind in GROUPS}, "policies": "policy", **FORMER_KINDS}
"""Kinds of parts by the names that users type."""


def policies_command(
    what: str = typer.Argument(
        "policy", metavar="PART", help=f"A kind ({', '.join(GROUPS)}), 'all' of them, or the name of one part."
    ),
    json: JsonOption = False,
) -> None:
    """List policies and other parts of schedulers, or describe one with its parameters and its paper.

    Examples:

      fairlead policies

      fairlead policies tiresias

      fairlead policies placement

      fairlead policies all --json
    """
    installed = Registry.installed()
    if what == "all" or what in KINDS:
        kinds = list(GROUPS) if what == "all" else [KINDS[what]]
        found = {kind: [_part_data(entry) for entry in installed.of(kind)] for kind in kinds}
        if json:
            print_json({"parts": [part for parts in found.values() for part in parts]})
            return
        for kind, parts in found.items():
            print_lines([(part["name"], part["summary"]) for part in parts], kind)
        note("details and parameters: fairlead policies NAME")
        return
    wanted = {kind: current_name(kind, what).replace("_", "-") for kind in GROUPS}
    claims = [(kind, name) for kind, name in wanted.items() if name in installed.entries.get(kind, {})]
    if not claims:
        known = {*KINDS, "all", *(name for kind in GROUPS for name in installed.entries.get(kind, {}))}
        if not near_names(what, known):
            raise InputError("policies", f"a kind ({', '.join(GROUPS)}) or a part that 'all' lists", field="what", value=what)
        raise UnknownName("kind or part", what, known)
    named = [installed.find(kind, name) for kind, name in claims]
    if json:
        print_json({"parts": [_part_data(entry) for entry in named]})
        return
    for index, entry in enumerate(named):
        out.print("\n" * bool(index) + "\n".join(_description(entry)), soft_wrap=True)


def _description(entry: Registered) -> list[str]:
    """Return the description of a part, line by line."""
    about = _part_data(entry)
    parameters = about["parameters"]
    text = inspect.getdoc(entry.load()) or ""
    lines = [f"{entry.name} ({entry.what})", ""]
    lines += [f"  {line}".rstrip() for line in (text if text.startswith(about["summary"]) else about["summary"]).splitlines()]
    lines += ["", "  parameters, and their defaults:"] if parameters else ["", "  no parameters"]
    lines += [f"    {name} = {value}" for name, value in parameters.items()]
    return [*lines, f"  from {entry.paper or entry.origin}"]


def _part_data(entry: Registered) -> dict[str, Any]:
    found = entry.load()
    parameters = {}
    if dataclasses.is_dataclass(found):
        for field in (field for field in dataclasses.fields(found) if field.repr):  # others are for tests
            if field.init and field.default is not dataclasses.MISSING:
                parameters[field.name] = field.default
            elif field.init and field.default_factory is not dataclasses.MISSING:
                parameters[field.name] = field.default_factory()
    summary = str(getattr(found, "summary", "")) or entry.summary  # formats have their own summary
    return {
        "kind": entry.what,
        "name": entry.name,
        "summary": summary,
        "parameters": parameters,
        "paper": entry.paper,
        "origin": entry.origin,
    }


presets_app = typer.Typer(invoke_without_command=True)


@presets_app.callback()
def presets_command(context: typer.Context, json: JsonOption = False) -> None:
    """List the schedulers that ship with Fairlead, or show one as a scheduler file.

    Examples:

      fairlead presets

      fairlead presets show tiresias > mine.yaml

      fairlead simulate --preset tiresias --placement spread --round 60
    """
    if context.invoked_subcommand is not None:
        return
    found = presets().values()
    if json:
        print_json({"presets": [_preset_data(preset) for preset in found]})
        return
    print_lines([(preset.name, preset.about) for preset in found], "presets")
    note("print one as a scheduler file: fairlead presets show NAME")


@presets_app.command("show")
def show_preset(
    name: str = typer.Argument(..., metavar="PRESET", help="A preset; 'fairlead presets' lists them."), json: JsonOption = False
) -> None:
    """Print a preset as a scheduler file. Use it with --config, or change it.

    Example:

      fairlead presets show tiresias > mine.yaml
    """
    preset = preset_named(name)
    if json:
        print_json(_preset_data(preset))
    else:
        typer.echo(preset.text, nl=False)


def _preset_data(preset: Preset) -> dict[str, object]:
    scheduler = SchedulerConfig.preset(preset.name).to_data()
    return {"name": preset.name, "about": preset.about, "paper": preset.paper, "scheduler": scheduler}
