"""The `fairlead` command. Every command is a thin layer over a study; names become objects here and nowhere below."""

from __future__ import annotations

import gc
import os
import sys
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from fairlead import __version__
from fairlead.core.errors import FairleadError, NotInstalled, install

# Commands that are imported when they are asked for: a quick question does not wait for what only other commands need.

FORMER_OPTIONS = {"estimation": "estimator", "looks": "simulations", "term": "lease"}
"""Options of earlier versions that are still read, and what they are called now."""

STYLE: dict[str, Any] = {
    "rich_markup_mode": None,
    "pretty_exceptions_enable": False,
    "context_settings": {
        "help_option_names": ["-h", "--help"],
        "max_content_width": 110,
        "token_normalize_func": lambda token: FORMER_OPTIONS.get(token, token),
    },
}

COMMANDS = {
    "demo": "fairlead.cli.cmd_demo:demo_command",
    "simulate": "fairlead.cli.cmd_simulate:simulate_command",
    "compare": "fairlead.cli.cmd_compare:compare_command",
    "resimulate": "fairlead.cli.cmd_resimulate:resimulate_command",
    "synthesize": "fairlead.cli.cmd_synthesize:synthesize_command",
    "profile": "fairlead.cli.cmd_profile:profile_app",
    "predict": "fairlead.cli.cmd_predict:predict_app",
    "inference": "fairlead.cli.cmd_inference:inference_app",
    "trace": "fairlead.cli.cmd_trace:trace_app",
    "report": "fairlead.cli.cmd_resimulate:report_command",
    "policies": "fairlead.cli.cmd_scheduler:policies_command",
    "presets": "fairlead.cli.cmd_scheduler:presets_app",
    "up": "fairlead.cli.cmd_cluster:up_command",
    "serve": "fairlead.cli.cmd_cluster:serve_command",
    "agent": "fairlead.cli.cmd_cluster:agent_command",
    "scheduler": "fairlead.cli.cmd_scheduler:scheduler_app",
    "advise": "fairlead.cli.cmd_synthesize:advise_command",
    "submit": "fairlead.cli.cmd_submit:submit_command",
    "queue": "fairlead.cli.cmd_jobs:queue_command",
    "info": "fairlead.cli.cmd_jobs:info_command",
    "why": "fairlead.cli.cmd_jobs:why_command",
    "when": "fairlead.cli.cmd_when:when_command",
    "logs": "fairlead.cli.cmd_jobs:logs_command",
    "cancel": "fairlead.cli.cmd_jobs:cancel_command",
    "nodes": "fairlead.cli.cmd_nodes:nodes_command",
    "drain": "fairlead.cli.cmd_nodes:drain_command",
    "top": "fairlead.cli.cmd_top:top_command",
    "usage": "fairlead.cli.cmd_nodes:usage_command",
    "rates": "fairlead.cli.cmd_rates:rates_app",
    "token": "fairlead.cli.cmd_tokens:token_app",
}
"""By name, in the order of `--help`: where the command stands, a function or a group of further ones."""


IN_PAPERS = ("reproduce", "predict evaluate", "predict pairs", "inference mixes")
"""Commands of the package fairlead-papers, which says so where it is not installed."""


def _added() -> dict[str, str]:
    """Return the commands of installed packages (entry points `fairlead.commands`); "predict pairs" is `pairs` of `predict`."""
    return {entry.name: entry.value for entry in sorted(entry_points(group="fairlead.commands"), key=lambda entry: entry.name)}


def commands() -> dict[str, str]:
    """Return all commands: the built-in ones, then those that installed packages add."""
    return {**COMMANDS, **{name: target for name, target in _added().items() if name not in COMMANDS and " " not in name}}


class OnDemand(TyperGroup):
    """A group whose commands are those of `COMMANDS`."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(commands())

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:  # typer would end without a word
            interrupted()

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in IN_PAPERS and cmd_name not in commands():
            return _in_papers(cmd_name)
        if cmd_name not in COMMANDS and cmd_name not in commands():  # all are there to be compared with
            self.commands = {name: self.get_command(ctx, name) for name in commands()}
            return None
        if cmd_name not in self.commands:
            self.commands[cmd_name] = _loaded(cmd_name, COMMANDS.get(cmd_name) or commands()[cmd_name])
        return self.commands[cmd_name]


class ExtensibleGroup(TyperGroup):
    """A group of commands to which installed packages add some."""

    def list_commands(self, ctx: Any) -> list[str]:
        added = (name.removeprefix(f"{self.name} ") for name in _added() if name.startswith(f"{self.name} "))
        return [*super().list_commands(ctx), *(name for name in added if name not in self.commands)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        full = f"{self.name} {cmd_name}"
        if cmd_name not in self.commands and full in (added := _added()):
            return _loaded(cmd_name, added[full])
        if cmd_name not in self.commands and full in IN_PAPERS:
            return _in_papers(full)
        return super().get_command(ctx, cmd_name)


def _in_papers(name: str) -> Any:
    """Return a command that says how to install itself."""

    def missing(_: list[str] | None = typer.Argument(None)) -> None:
        raise NotInstalled(
            f"fairlead {name} is in the package fairlead-papers: in the clone of Fairlead, pip install -e papers"
        )

    alone = typer.Typer(add_completion=False)
    settings = {"ignore_unknown_options": True, "help_option_names": []}
    alone.command(name.split()[-1], context_settings=settings)(missing)
    return typer.main.get_command(alone)


def interrupted() -> NoReturn:
    """How every command ends at Ctrl-C."""
    sys.stderr.write("fairlead: interrupted\n")
    sys.exit(130)


def _loaded(name: str, target: str) -> Any:
    module, _, attribute = target.partition(":")
    found = getattr(import_module(module), attribute)
    command: Any
    if isinstance(found, typer.Typer):
        found.rich_markup_mode, found.info.cls = None, ExtensibleGroup
        command = typer.main.get_group(found)
    else:
        alone = typer.Typer(add_completion=False, **STYLE)
        alone.command(name)(found)
        command = typer.main.get_command(alone)
    command.name = name
    return command


app = typer.Typer(
    name="fairlead",
    cls=OnDemand,
    no_args_is_help=True,
    **STYLE,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fairlead {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """A scheduler for deep-learning clusters: simulate it, run it, look at what it did.

    Try: fairlead demo, then fairlead simulate --policy las --report las.html, fairlead compare and fairlead policies. A real
    cluster on this machine: fairlead up, and in another terminal fairlead submit -- python train.py, then fairlead queue.

    Exit codes: 0 done, 1 the job or the check failed, 2 wrong usage or input, 3 not found, 4 refused or conflict,
    5 unreachable, 130 interrupted.
    """


_EXTRA = ("grpc", "fastapi", "uvicorn", "httpx", "starlette", "prometheus_client")
"""What only the processes of a real cluster need."""


_YOUNG = 50_000
"""So many new objects before the collector looks for cycles. Jobs and events are many, live long and have none: at its default
of 700 it looks hundreds of times while a long trace is read, and all the while a simulation runs."""


def run() -> None:
    """The console script: a foreseen error is one line on standard error and the exit code of its class."""
    gc.set_threshold(_YOUNG, *gc.get_threshold()[1:])
    try:
        app()
    except FairleadError as error:
        sys.stderr.write(f"fairlead: error: {' '.join(str(error).split())}\n")
        sys.exit(error.exit_code)
    except ModuleNotFoundError as error:
        if error.name not in _EXTRA:
            raise
        sys.stderr.write(f"fairlead: error: this needs {error.name}: {install('cluster')}\n")
        sys.exit(2)
    except KeyboardInterrupt:
        interrupted()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        sys.stderr.write(f"fairlead: error: {place}{error.strerror or error}\n")
        sys.exit(2)
    except MemoryError:
        sys.stderr.write("fairlead: error: out of memory\n")
        sys.exit(2)


if __name__ == "__main__":
    run()
