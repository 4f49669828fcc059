"""`fairlead queue`, `info`, `why`, `cancel` and `logs`: requests about jobs to a control plane."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import typer

from fairlead.cli.job_tables import job_details, jobs_table, legible
from fairlead.cli.output import JsonOption, note, out, print_json
from fairlead.cli.selectors import NameArgument, control_plane
from fairlead.core.errors import FairleadError
from fairlead.experiments.metric_columns import format_delay

if TYPE_CHECKING:
    from fairlead.runtime.http_client import ControlPlaneClient

MAX_LISTED = 1000
"""Jobs in one answer of a control plane."""

LIVE = ("queued", "waiting", "running")
"""Phases of jobs that have not ended."""

LAST_LINES = 5
"""Lines of the log of a failed job: usually the end of a stack trace and the error."""


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
