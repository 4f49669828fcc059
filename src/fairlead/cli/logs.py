"""`fairlead logs`: what a job printed, or prints."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from fairlead.cli.output import JsonOption, note, print_json
from fairlead.cli.people import NameArgument, control_plane


def logs(
    name: NameArgument,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on until the job ends, wherever it moves.")] = False,
    rank: Annotated[int, typer.Option("--rank", help="Which worker of a gang.", min=0)] = 0,
    launch: Annotated[
        int, typer.Option("--launch", help="Which launch, from 1.  [default: the last]", min=0, show_default=False)
    ] = 0,
    tail: Annotated[int | None, typer.Option("--tail", help="Only so many lines from the end.", min=0)] = None,
    json: JsonOption = False,
) -> None:
    """What a job printed, or prints: fairlead logs -f JOB.

    Standard output and error together, of its last launch; with -f from there on, over preemptions and moves, from launch to
    launch. --launch 1 begins at the first. Logs stay on the nodes that ran the job and are read there; a node that is away has
    to come back first. With --json, one object a line for each piece of the log. Exit codes: 0 read (with -f: the job has
    ended), 2 no such job or log, or its node is away, 130 interrupted.
    """
    before = launch
    for piece in control_plane().logs(name, launch=launch, rank=rank, tail=tail, follow=follow):
        if json:
            print_json(piece)
            continue
        if piece["launch"] != before and (before or piece["launch"] > 1):
            note(f"launch {piece['launch']}" + ("" if before else ", the last; --launch N has earlier ones"))
        before = piece["launch"]
        sys.stdout.write(piece["text"])
        sys.stdout.flush()
