"""`fairlead presets`: the schedulers that ship with the package."""

from __future__ import annotations

from typing import Annotated

import typer

from fairlead.cli.output import JsonOption, note, print_json, print_lines
from fairlead.config import SchedulerConfig
from fairlead.config.presets import Preset, preset_named
from fairlead.config.presets import presets as all_presets

presets_app = typer.Typer(help="List the schedulers that ship with Fairlead, or show one.", invoke_without_command=True)


@presets_app.callback()
def presets(context: typer.Context, json: JsonOption = False) -> None:
    """List the schedulers that ship with Fairlead, or show one. Each is a named set of parts.

    Examples:

      fairlead presets

      fairlead presets show tiresias > mine.yaml

      fairlead simulate --preset tiresias --placement spread --round 60
    """
    if context.invoked_subcommand is not None:
        return
    found = all_presets().values()
    if json:
        print_json({"presets": [_described(preset) for preset in found]})
        return
    print_lines([(preset.name, preset.about) for preset in found], "presets")
    note("one as the scheduler file that it is: fairlead presets show NAME")


@presets_app.command()
def show(
    name: Annotated[str, typer.Argument(help="A preset; `fairlead presets` lists them.")],
    json: JsonOption = False,
) -> None:
    """Print a preset as a scheduler file. It is one for --config, or to begin one of your own with."""
    preset = preset_named(name)
    if json:
        print_json(_described(preset))
    else:
        typer.echo(preset.text, nl=False)


def _described(preset: Preset) -> dict[str, object]:
    scheduler = SchedulerConfig.preset(preset.name).to_data()
    return {"name": preset.name, "about": preset.about, "paper": preset.paper, "scheduler": scheduler}
