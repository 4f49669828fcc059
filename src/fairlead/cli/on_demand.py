"""Commands that are imported when they are asked for: a quick question does not wait for what only other commands need."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

STYLE: dict[str, Any] = {
    "rich_markup_mode": None,
    "pretty_exceptions_enable": False,
    "context_settings": {"help_option_names": ["-h", "--help"], "max_content_width": 110},
}

COMMANDS = {
    "demo": "fairlead.cli.demo:demo",
    "simulate": "fairlead.cli.simulate:simulate",
    "compare": "fairlead.cli.compare:compare",
    "resimulate": "fairlead.cli.resimulate:resimulate",
    "synthesize": "fairlead.cli.synthesize:synthesize",
    "profile": "fairlead.cli.profile:profile_app",
    "predict": "fairlead.cli.predict:predict_app",
    "inference": "fairlead.cli.inference:inference_app",
    "trace": "fairlead.cli.trace:trace_app",
    "report": "fairlead.cli.report:report",
    "reproduce": "fairlead.cli.reproduce:reproduce_app",
    "policies": "fairlead.cli.lookup:policies",
    "presets": "fairlead.cli.presets:presets_app",
    "up": "fairlead.cli.cluster:up",
    "serve": "fairlead.cli.cluster:serve",
    "agent": "fairlead.cli.cluster:agent",
    "scheduler": "fairlead.cli.scheduler:scheduler_app",
    "advise": "fairlead.cli.advise:advise",
    "submit": "fairlead.cli.people:submit",
    "queue": "fairlead.cli.people:queue",
    "info": "fairlead.cli.people:info",
    "why": "fairlead.cli.people:why",
    "when": "fairlead.cli.when:when",
    "logs": "fairlead.cli.logs:logs",
    "cancel": "fairlead.cli.people:cancel",
    "nodes": "fairlead.cli.people:nodes",
    "drain": "fairlead.cli.people:drain",
    "top": "fairlead.cli.top:top",
    "usage": "fairlead.cli.people:usage",
    "rates": "fairlead.cli.rates:rates_app",
    "token": "fairlead.cli.tokens:token_app",
}
"""By name, in the order of `--help`: where the command stands, a function or a group of further ones."""


class OnDemand(TyperGroup):
    """A group whose commands are those of `COMMANDS`."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:  # typer would end without a word
            interrupted()

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:  # all are there to be compared with
            self.commands = {name: self.get_command(ctx, name) for name in COMMANDS}
            return None
        if cmd_name not in self.commands:
            self.commands[cmd_name] = _loaded(cmd_name)
        return self.commands[cmd_name]


def interrupted() -> NoReturn:
    """How every command ends at Ctrl-C."""
    sys.stderr.write("fairlead: interrupted\n")
    sys.exit(130)


def _loaded(name: str) -> Any:
    module, _, attribute = COMMANDS[name].partition(":")
    found = getattr(import_module(module), attribute)
    command: Any
    if isinstance(found, typer.Typer):
        found.rich_markup_mode = None
        command = typer.main.get_group(found)
    else:
        alone = typer.Typer(add_completion=False, **STYLE)
        alone.command(name)(found)
        command = typer.main.get_command(alone)
    command.name = name
    return command
