"""`fairlead submit`, `queue`, `info`, `why`, `cancel`, `nodes` and `usage`: what people ask of a control plane."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from fairlead.cli.job_tables import job_table, legible, told
from fairlead.cli.output import JsonOption, note, out, print_json
from fairlead.config.yaml_source import read_yaml
from fairlead.core.errors import FairleadError, InputError
from fairlead.core.job import FORMER_FIELDS
from fairlead.experiments.metric_columns import format_delay, format_duration
from fairlead.runtime.protocol.code_archive import archive_digest, pack_code
from fairlead.runtime.protocol.task_file import TaskSpec, parse_task

if TYPE_CHECKING:
    from fairlead.runtime.http_client import ControlPlaneClient

MAX_LISTED = 1000
"""Jobs that a control plane tells of at a time."""

LIVE = ("queued", "waiting", "running")
"""Phases of jobs that have not ended."""

MOST_IN_ARRAY = 10_000
"""Jobs that one submission makes of one task."""

LAST_LINES = 5
"""Of a job that failed; a trace's end and the error."""

NameArgument = Annotated[str, typer.Argument(metavar="JOB", help="A job's number, or its name: the youngest of that name.")]


def submit(
    words: Annotated[
        list[str] | None, typer.Argument(help="Task files (x.yaml), or a program and its arguments after --.")
    ] = None,
    name: Annotated[str, typer.Option("--name", help="[default: job-NUMBER]")] = "",
    workers: Annotated[int, typer.Option("--workers", help="The gang's size.", min=1)] = 1,
    mode: Annotated[
        str,
        typer.Option(
            "--mode", help="elastic: it may be given another number of workers. Also: static, accordion, gns, expert."
        ),
    ] = "",
    kind: Annotated[
        str,
        typer.Option(
            "--kind", help="What it trains, as in 'resnet (batch size 32)'. [default: its script's name, or its program's]"
        ),
    ] = "",
    schedule: Annotated[
        str, typer.Option("--schedule", help="Of mode expert, with --steps: batch sizes and shares, as in '32@0.3|256@0.7'.")
    ] = "",
    types: Annotated[str, typer.Option("--types", help="Accelerator types it may use, separated by commas.")] = "",
    steps: Annotated[float | None, typer.Option("--steps", help="How many steps it will do, where that is known.")] = None,
    array: Annotated[
        int, typer.Option("--array", help="So many of it, at most 10,000; each finds its number in JOB_INDEX.", min=1)
    ] = 1,
    after: Annotated[list[str] | None, typer.Option("--after", help="A job that must have finished first; several.")] = None,
    code: Annotated[
        Path | None, typer.Option("--code", help="A directory or zip file that is sent along; it runs in it.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say whether, and on what, it can ever run.")] = False,
    json: JsonOption = False,
) -> None:
    """Submit a job: fairlead submit -- python train.py. Or a task in a file: fairlead submit task.yaml.

    It is accepted when this returns: it is in the journal then. Without --code it runs in this directory, which the nodes must
    have too. With --code DIR (or code: DIR in the file) the directory is packed, sent, and unpacked where the job runs; each
    launch gets a copy of its own, and what was sent before is not sent again.

    --after JOB (or after: [a, b] in the file) lets it wait until that job has finished; if that fails or is cancelled, so is
    this one. Several files are one submission, accepted as a whole, and may name each other: fairlead submit prepare.yaml
    train.yaml. Exit codes: 0 accepted, 2 refused or wrong (nothing was accepted).
    """
    if not words:
        raise InputError("submit", "a task file, or a program after --")
    if array > MOST_IN_ARRAY:
        raise InputError("--array", f"a number from 1 to {MOST_IN_ARRAY:,}", field="array", value=array)
    given = {
        "name": name,
        "workers": workers if workers > 1 else None,
        "mode": mode,
        "kind": kind,
        "schedule": schedule,
        "types": types.split(",") if types else None,
        "steps": steps,
        "after": after,
    }
    given = {key: value for key, value in given.items() if value}
    jobs: list[dict[str, Any]] = []
    archives: list[bytes] = []
    if all(word.endswith((".yaml", ".yml")) for word in words):
        written = [(word, _task_in(word)) for word in words]
    else:
        written = [("command line", {"run": list(words)})]
    for source, task in written:
        task |= given
        if archive := _code(code, task, Path(source).parent):
            task["code"] = archive_digest(archive)
            archives.append(archive)
        else:
            task.setdefault("directory", str(Path.cwd()))
        parse_task(task, source)
        jobs += _array(task, array)
    plane = control_plane()
    for archive in archives:
        plane.send_code(archive)
    answer = plane.submit(jobs, dry_run=dry_run)
    if json:
        print_json({"jobs": answer})
        return
    for job in answer:
        if dry_run:
            out.print(f"{job['name'] or 'it'} can run on {', '.join(job['types'])}", highlight=False)
        else:
            out.print(f"{job['name']} (number {job['number']})", highlight=False)


def _task_in(file: str) -> dict[str, Any]:

    written = read_yaml(file)
    written.mapping([*TaskSpec.model_fields, *FORMER_FIELDS])
    return dict(written.data)


def _array(task: dict[str, Any], count: int) -> list[dict[str, Any]]:
    if count == 1:
        return [task]
    env, stem = dict(task.get("env") or {}), task.get("name")
    return [{**task, **({"name": f"{stem}-{n}"} if stem else {}), "env": {**env, "JOB_INDEX": str(n)}} for n in range(count)]


def _code(place: Path | None, task: Mapping[str, Any], folder: Path) -> bytes:
    """The archive to send: of the option's place, or of the task file's, seen from where that lies. Empty: none."""
    named = task.get("code")
    if place is None and isinstance(named, str) and named:
        place = folder / named
    return b"" if place is None else pack_code(place)


def queue(
    everybody: Annotated[bool, typer.Option("--all", help="Everybody's jobs (admin), and those that have ended.")] = False,
    json: JsonOption = False,
) -> None:
    """The jobs that have not ended, with what they wait for."""
    plane = control_plane()
    jobs = plane.jobs(() if everybody else LIVE, everybody=everybody)
    if json:
        print_json({"jobs": jobs})
        return
    if not jobs:
        others = 0 if everybody else len(plane.jobs(LIVE, everybody=True))  # who may not see them is told of none
        out.print(f"none of yours; --all shows everybody's, {others:,} of them alive" if others else "no jobs", highlight=False)
        return
    out.print(job_table(jobs, out.width, users=everybody))
    if len(jobs) == MAX_LISTED:
        note(f"of all jobs, those that run and the youngest are shown, {MAX_LISTED:,} in all")


def info(name: NameArgument, json: JsonOption = False) -> None:
    """Everything about one job. Of one that failed also its last lines, where its log can be read."""
    plane = control_plane()
    job = _with_last_lines(plane, plane.job(name))
    if json:
        print_json(job)
        return
    for what, value in told(job):
        out.print(f"{what:>16}  {value}", highlight=False, markup=False, soft_wrap=True)


def why(name: NameArgument, json: JsonOption = False) -> None:
    """Why a job does not run, or failed. Who says so, and the numbers; of one that failed also its last lines."""
    plane = control_plane()
    job = _with_last_lines(plane, plane.job(name))
    reason = job.get("reason")
    if json:
        keys = ("name", "phase", "reason", "next_decision_s", "latest_decision_s", "last_lines")
        print_json({key: job.get(key) for key in keys if key in job or key == "reason"})
        return
    told = f"{job['name']} is {job['phase']}" + (f": {legible(reason['text'])}" if reason else "")
    if reason and "in_s" not in reason["facts"] and job["phase"] in ("queued", "waiting"):
        told += decided_next(job)
    out.print(told, highlight=False, markup=False, soft_wrap=True)
    for line in job.get("last_lines", ()):
        out.print(f"  {legible(line)}", highlight=False, markup=False, soft_wrap=True)


def decided_next(job: Mapping[str, Any]) -> str:
    """When a job that waits is decided on next: at a moment that is sure, or when something happens, within bounds. Nothing
    where no bound is known, such as while a decision takes longer than a round."""
    soonest_s, latest_s = job.get("next_decision_s"), job.get("latest_decision_s")
    if soonest_s is not None and soonest_s == latest_s:
        return f"; the next decision comes {format_delay(soonest_s)}"
    bounds = [(soonest_s, "soonest"), (latest_s, "latest")]
    within = " and ".join(f"{format_delay(bound_s)} at the {which}" for bound_s, which in bounds if bound_s is not None)
    return f"; the next decision comes when something happens, {within}" if within else ""


def _with_last_lines(plane: ControlPlaneClient, job: dict[str, Any]) -> dict[str, Any]:
    """Of a job that failed, or failed and has not begun again: what the worker who failed said last. Its log is on its node,
    and may be away or gone."""
    failure = job.get("last_failure")
    if failure is None or job["phase"] == "running" or failure["launch"] != job["starts"]:
        return job
    try:
        pieces = list(plane.logs(str(job["number"]), launch=failure["launch"], rank=failure["rank"], tail=LAST_LINES))
    except FairleadError:
        return job
    lines = "".join(piece["text"] for piece in pieces).splitlines()[-LAST_LINES:]
    return {**job, "last_lines": lines} if lines else job


def cancel(name: NameArgument, json: JsonOption = False) -> None:
    """End a job; what it saved stays until it is cleaned up."""
    answer = control_plane().cancel(name)
    if json:
        print_json(answer)
    else:
        out.print(f"job number {answer['number']} is cancelled", highlight=False)


def nodes(json: JsonOption = False) -> None:
    """The nodes of the cluster."""
    found = control_plane().nodes()
    if json:
        print_json({"nodes": found})
        return
    table = Table(box=box.SIMPLE_HEAD, collapse_padding=True)
    table.add_column("name", overflow="fold")
    counted = ("accelerators", "free", *(["shared"] if any(node.get("shared") for node in found) else ()))
    for heading in ("type", *counted, "up", "agent"):
        table.add_column(heading, no_wrap=True, justify="right" if heading in counted else "left")
    table.add_column("jobs", overflow="fold", min_width=16)
    for node in found:
        there = "connected" if node["connected"] else "away"
        up = "draining" if node["drained"] and node["jobs"] else "drained" if node["drained"] else "yes" if node["up"] else "no"
        up = "resting" if node.get("rests_s") else up
        counts = (str(node[what]) for what in counted)
        table.add_row(*map(Text, (node["name"], node["type"], *counts, up, there, ", ".join(node["jobs"]))))
    out.print(table)
    for node in found:
        if why := node.get("trouble"):
            again = f"; it is tried again {format_delay(node['rests_s'])}" if node["rests_s"] else ""
            told = f"{node['name']} could not begin a job: {legible(why)}{again}"
            out.print(told, highlight=False, markup=False, soft_wrap=True)


def drain(
    node: Annotated[str, typer.Argument(metavar="NODE", help="A node's name, as in `fairlead nodes`.")],
    undo: Annotated[bool, typer.Option("--undo", help="Use it again.")] = False,
    json: JsonOption = False,
) -> None:
    """Leave a node for a while; its jobs go on elsewhere.

    fairlead drain n1, and when all is done fairlead drain n1 --undo. At the next round its jobs save and go on elsewhere, or
    wait where there is no room, and none is placed on it any more. fairlead nodes shows when it is empty. It stays drained over
    restarts. Needs an admin's token. Exit codes: 0 done, 2 not.
    """
    answer = control_plane().drain(node, undo=undo)
    if json:
        print_json(answer)
    elif undo:
        out.print(f"{node} is used again", highlight=False)
    else:
        left = f"; to leave at the next round: {', '.join(answer['jobs'])}" if answer["jobs"] else "; nothing runs on it"
        out.print(f"{node} is drained{left}", highlight=False)


def usage(json: JsonOption = False) -> None:
    """Accelerator time by user and account. One that two jobs share counts for both."""
    found = control_plane().usage()
    if json:
        print_json({"usage": found})
        return
    table = Table("user", "account", "jobs", "accelerator time", box=box.SIMPLE)
    for row in found:
        table.add_row(row["user"], row["account"], str(row["jobs"]), format_duration(3600 * row["accelerator_hours"]))
    out.print(table)


def control_plane() -> ControlPlaneClient:
    """The one that is meant; every verb for people asks it."""
    from fairlead.runtime.http_client import ControlPlaneClient  # needs the extra `cluster`, and a quarter of a second

    return ControlPlaneClient.found()


# `fairlead logs`: what a job printed, or prints.


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
