"""The `fairlead` command. Every command is a thin layer over a study; names become objects here and nowhere below."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from fairlead import __version__
from fairlead.cli.cluster import agent, serve, up
from fairlead.cli.compare import compare
from fairlead.cli.logs import logs
from fairlead.cli.lookup import policies
from fairlead.cli.people import cancel, drain, info, nodes, queue, submit, usage, why
from fairlead.cli.rates import rates_app
from fairlead.cli.report import report
from fairlead.cli.reproduce import reproduce_app
from fairlead.cli.simulate import simulate
from fairlead.cli.tokens import token_app
from fairlead.cli.top import top
from fairlead.cli.trace import trace_app
from fairlead.core.errors import FairleadError

app = typer.Typer(
    name="fairlead",
    help="A scheduler for deep-learning clusters: simulate it, run it, look at what it did.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
app.command()(simulate)
app.command()(compare)
app.add_typer(trace_app, name="trace")
app.command()(report)
app.add_typer(reproduce_app, name="reproduce")
app.command()(policies)
for process in (up, serve, agent):
    app.command()(process)
for verb in (submit, queue, info, why, logs, cancel, nodes, drain, top, usage):
    app.command()(verb)
app.add_typer(rates_app, name="rates")
app.add_typer(token_app, name="token")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fairlead {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """A scheduler for deep-learning clusters: simulate it, run it, look at what it did.

    Try: fairlead compare, then fairlead simulate --policy las --report las.html, then fairlead policies. A real cluster on this
    machine: fairlead up, and in another terminal fairlead submit -- python train.py, then fairlead queue.

    Exit codes: 0 done, 1 found something wrong (trace check), 2 bad input, 130 interrupted.
    """


_EXTRA = ("grpc", "fastapi", "uvicorn", "httpx", "starlette")
"""What only the processes of a real cluster need."""


def run() -> None:
    """The console script: foreseen errors are one line on standard error and exit code 2."""
    try:
        app()
    except FairleadError as error:
        sys.stderr.write(f"fairlead: error: {' '.join(str(error).split())}\n")
        sys.exit(2)
    except ModuleNotFoundError as error:
        if error.name not in _EXTRA:
            raise
        sys.stderr.write(f"fairlead: error: this needs {error.name}: pip install 'fairlead[cluster]'\n")
        sys.exit(2)
    except KeyboardInterrupt:
        sys.stderr.write("fairlead: interrupted\n")
        sys.exit(130)
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
