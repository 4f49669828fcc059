"""`fairlead submit`, `queue`, `info`, `why`, `logs`, `cancel`, `nodes`, `drain` and `usage`: requests to a control plane."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from fairlead.cli.job_tables import job_details, jobs_table, legible
from fairlead.cli.output import JsonOption, note, option_error, out, print_json
from fairlead.config.yaml_source import read_yaml
from fairlead.core.errors import FairleadError, InputError
from fairlead.core.job import FORMER_FIELDS
from fairlead.experiments.metric_columns import format_delay, format_duration
from fairlead.runtime.protocol.code_archive import archive_digest, pack_code
from fairlead.runtime.protocol.task_file import TaskSpec, parse_task

if TYPE_CHECKING:
    from fairlead.runtime.http_client import ControlPlaneClient

MAX_LISTED = 1000
"""Jobs in one answer of a control plane."""

LIVE = ("queued", "waiting", "running")
"""Phases of jobs that have not ended."""

MAX_ARRAY = 10_000
"""Jobs of one array."""

LAST_LINES = 5
"""Lines of the log of a failed job: usually the end of a stack trace and the error."""

NameArgument = Annotated[
    str, typer.Argument(metavar="JOB", help="Number of a job, or its name (the most recent job of that name).")
]


def submit_command(
    words: list[str] | None = typer.Argument(None, help="Task files (x.yaml), or a program and its arguments after --."),
    name: str = typer.Option("", help="[default: job-NUMBER]"),
    workers: int = typer.Option(1, help="Number of workers (gang size).", min=1),
    mode: str = typer.Option(
        "", help="elastic: the scheduler may change the number of workers. Also: static, accordion, gns, expert."
    ),
    kind: str = typer.Option("", help="Job type, as in 'resnet (batch size 32)'. [default: the name of the script or program]"),
    schedule: str = typer.Option("", help="For mode expert, with --steps: batch sizes and shares, as in '32@0.3|256@0.7'."),
    types: str = typer.Option("", help="GPU types that the job may use, separated by commas."),
    steps: float | None = typer.Option(None, help="Total number of steps, if known."),
    array: int = typer.Option(1, help="Submit this many copies, at most 10,000; JOB_INDEX is the number of each.", min=1),
    after: list[str] | None = typer.Option(None, help="A job that must finish first; repeatable."),
    code: Path | None = typer.Option(None, help="A directory or zip file to send along; the job runs in it."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Only check on which GPU types the job can run."),
    json: JsonOption = False,
) -> None:
    """Submit a job: fairlead submit -- python train.py. Or a task in a file: fairlead submit task.yaml.

    When the command returns, the job is in the journal. Without --code, the job runs in this directory, which the nodes must
    have too. With --code DIR (or code: DIR in the file), the directory is sent and unpacked on the node. Each launch gets its
    own copy; an archive that was sent before is not sent again.

    --after JOB (or after: [a, b] in the file) makes the job wait until that job has finished; if that job fails or is
    cancelled, this one is cancelled too. Several files are one submission: all are accepted or none. They may name each other:
    fairlead submit prepare.yaml train.yaml. Exit codes: 0 accepted, 2 refused.
    """
    if not words:
        raise InputError("submit", "a task file, or a program after --")
    if array > MAX_ARRAY:
        raise option_error("array", f"a number from 1 to {MAX_ARRAY:,}", array)
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
            out.print(f"{job['name'] or 'the job'} can run on {', '.join(job['types'])}")
        else:
            out.print(f"{job['name']} (number {job['number']})")


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
    """Return the archive of --code, or of the task file's `code`, relative to that file; empty for none."""
    named = task.get("code")
    if place is None and isinstance(named, str) and named:
        place = folder / named
    return b"" if place is None else pack_code(place)


def queue_command(
    all_users: bool = typer.Option(False, "--all", help="Jobs of all users (admin), and jobs that have ended."),
    json: JsonOption = False,
) -> None:
    """List the jobs that have not ended. Shows what each waits for."""
    plane = control_plane()
    jobs = plane.jobs(() if all_users else LIVE, all_users=all_users)
    if json:
        print_json({"jobs": jobs})
        return
    if not jobs:
        others = 0 if all_users else len(plane.jobs(LIVE, all_users=True))  # 0 without the right to see them
        out.print(f"no jobs of yours; --all shows all {others:,} active jobs" if others else "no jobs")
        return
    out.print(jobs_table(jobs, out.width, users=all_users))
    if len(jobs) == MAX_LISTED:
        note(f"only running and the most recent jobs are shown, {MAX_LISTED:,} in all")


def info_command(name: NameArgument, json: JsonOption = False) -> None:
    """Show everything about one job. For a failed job, also the last lines of its log."""
    plane = control_plane()
    job = _with_last_lines(plane, plane.job(name))
    if json:
        print_json(job)
        return
    for what, value in job_details(job):
        out.print(f"{what:>16}  {value}", soft_wrap=True)


def why_command(name: NameArgument, json: JsonOption = False) -> None:
    """Explain why a job does not run, or failed. For a failed job, also the last lines of its log."""
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
    out.print(told, soft_wrap=True)
    for line in job.get("last_lines", ()):
        out.print(f"  {legible(line)}", soft_wrap=True)


def decided_next(job: Mapping[str, Any]) -> str:
    """Return when the next decision on a waiting job comes: at a fixed time, or at the next event, within bounds.

    Empty if no bound is known, such as while a decision takes longer than a round."""
    soonest_s, latest_s = job.get("next_decision_s"), job.get("latest_decision_s")
    if soonest_s is not None and soonest_s == latest_s:
        return f"; the next decision comes {format_delay(soonest_s)}"
    bounds = [(soonest_s, "soonest"), (latest_s, "latest")]
    within = " and ".join(f"{format_delay(bound_s)} at the {which}" for bound_s, which in bounds if bound_s is not None)
    return f"; the next decision comes when something happens, {within}" if within else ""


def _with_last_lines(plane: ControlPlaneClient, job: dict[str, Any]) -> dict[str, Any]:
    """Add the last lines of the worker that failed, if the job has not started again and the node's log can be read."""
    failure = job.get("last_failure")
    if failure is None or job["phase"] == "running" or failure["launch"] != job["starts"]:
        return job
    try:
        pieces = list(plane.logs(str(job["number"]), launch=failure["launch"], rank=failure["rank"], tail=LAST_LINES))
    except FairleadError:
        return job
    lines = "".join(piece["text"] for piece in pieces).splitlines()[-LAST_LINES:]
    return {**job, "last_lines": lines} if lines else job


def cancel_command(name: NameArgument, json: JsonOption = False) -> None:
    """Cancel a job. Its checkpoints are kept for a while."""
    answer = control_plane().cancel(name)
    if json:
        print_json(answer)
    else:
        out.print(f"job number {answer['number']} is cancelled")


def nodes_command(json: JsonOption = False) -> None:
    """List the nodes of the cluster. Shows their GPUs, agents and jobs."""
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
        there = "connected" if node["connected"] else "unreachable"
        up = "draining" if node["drained"] and node["jobs"] else "drained" if node["drained"] else "yes" if node["up"] else "no"
        up = "backing off" if node.get("backoff_s") else up
        counts = (str(node[what]) for what in counted)
        table.add_row(*map(Text, (node["name"], node["type"], *counts, up, there, ", ".join(node["jobs"]))))
    out.print(table)
    for node in found:
        if why := node.get("launch_error"):
            again = f"; retried {format_delay(node['backoff_s'])}" if node["backoff_s"] else ""
            told = f"{node['name']} could not start a job: {legible(why)}{again}"
            out.print(told, soft_wrap=True)


def drain_command(
    node: str = typer.Argument(..., metavar="NODE", help="A node's name, as in `fairlead nodes`."),
    undo: bool = typer.Option(False, "--undo", help="Use the node again."),
    json: JsonOption = False,
) -> None:
    """Drain a node: its jobs resume elsewhere.

    fairlead drain n1, and after the maintenance fairlead drain n1 --undo. At the next round the node's jobs checkpoint and
    resume elsewhere, or wait for room, and no job is placed on the node. fairlead nodes shows when it is empty. The node stays
    drained over restarts. Needs an admin token. Exit codes: 0 done, 2 failed.
    """
    answer = control_plane().drain(node, undo=undo)
    if json:
        print_json(answer)
    elif undo:
        out.print(f"{node} is used again")
    else:
        left = f"; jobs to move at the next round: {', '.join(answer['jobs'])}" if answer["jobs"] else "; no job runs on it"
        out.print(f"{node} is drained{left}")


def usage_command(json: JsonOption = False) -> None:
    """Show GPU time by user and account. A GPU that two jobs share counts for both."""
    found = control_plane().usage()
    if json:
        print_json({"usage": found})
        return
    table = Table("user", "account", "jobs", "GPU time", box=box.SIMPLE)
    for row in found:
        table.add_row(row["user"], row["account"], str(row["jobs"]), format_duration(3600 * row["accelerator_hours"]))
    out.print(table)


def control_plane() -> ControlPlaneClient:
    """Return the client of the control plane that the environment or this directory names."""
    from fairlead.runtime.http_client import ControlPlaneClient  # needs the extra `cluster`, and is slow to import

    return ControlPlaneClient.from_environment()


def logs_command(
    name: NameArgument,
    follow: bool = typer.Option(False, "-f", "--follow", help="Follow the log until the job ends."),
    rank: int = typer.Option(0, help="Rank of the worker in a gang.", min=0),
    launch: int = typer.Option(0, help="Number of the launch, from 1.  [default: the last]", min=0, show_default=False),
    tail: int | None = typer.Option(None, help="Only this many lines from the end.", min=0),
    json: JsonOption = False,
) -> None:
    """Print the log of a job: fairlead logs -f JOB.

    Prints standard output and error of the last launch. With -f it follows the job from launch to launch, over preemptions and
    migrations; --launch 1 begins at the first. Logs are kept on the nodes that ran the job; an unreachable node has to return
    first. With --json, it prints one object per line for each piece of the log. Exit codes: 0 read (with -f: the job has
    ended), 2 no such job or log, or its node is unreachable, 130 interrupted.
    """
    before = launch
    for piece in control_plane().logs(name, launch=launch, rank=rank, tail=tail, follow=follow):
        if json:
            print_json(piece)
            continue
        if piece["launch"] != before and (before or piece["launch"] > 1):
            note(f"launch {piece['launch']}" + ("" if before else ", the last; --launch N shows earlier ones"))
        before = piece["launch"]
        sys.stdout.write(piece["text"])
        sys.stdout.flush()
