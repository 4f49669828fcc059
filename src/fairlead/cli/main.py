"""The `fairlead` command. Every command is a thin layer over a study; names become objects here and nowhere below."""

from __future__ import annotations

import gc
import os
import sys
from typing import Annotated

import typer

from fairlead import __version__
from fairlead.cli.on_demand import STYLE, OnDemand, interrupted
from fairlead.core.errors import FairleadError
from fairlead.core.extras import install

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
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """A scheduler for deep-learning clusters: simulate it, run it, look at what it did.

    Try: fairlead demo, then fairlead simulate --policy las --report las.html, fairlead compare and fairlead policies. A real
    cluster on this machine: fairlead up, and in another terminal fairlead submit -- python train.py, then fairlead queue.

    Exit codes: 0 done, 1 found something wrong (trace check), 2 bad input, 130 interrupted.
    """


_EXTRA = ("grpc", "fastapi", "uvicorn", "httpx", "starlette", "prometheus_client")
"""What only the processes of a real cluster need."""


_YOUNG = 50_000
"""So many new objects before the collector looks for cycles. Jobs and events are many, live long and have none: at its default
of 700 it looks hundreds of times while a long trace is read, and all the while a simulation runs."""


def run() -> None:
    """The console script: foreseen errors are one line on standard error and exit code 2."""
    gc.set_threshold(_YOUNG, *gc.get_threshold()[1:])
    try:
        app()
    except FairleadError as error:
        sys.stderr.write(f"fairlead: error: {' '.join(str(error).split())}\n")
        sys.exit(2)
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
