"""`fairlead queue`, `info`, `why`, `cancel` and `logs`: requests about jobs to a control plane."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from fairlead.cli.cmd_wait import follow_jobs, print_log
from fairlead.cli.job_info import array_lines, detail_lines, next_decision, prediction_facts
from fairlead.cli.job_tables import array_record, jobs_table, legible, lost_work, slowdown_text, with_arrays
from fairlead.cli.output import JsonOption, note, out, print_json, progress
from fairlead.cli.selectors import (
    LIVE,
    ArrayOption,
    JobsArgument,
    JobsOrNoneArgument,
    StateOption,
    UserOption,
    change_jobs,
    choose_jobs,
    control_plane,
    select_jobs,
    states_of,
)
from fairlead.core.errors import FairleadError
from fairlead.experiments.metric_columns import format_duration, format_seconds
from fairlead.runtime.http_client import MISSING, RefusedRequest

if TYPE_CHECKING:
    from fairlead.runtime.http_client import ControlPlaneClient

MAX_LISTED = 1000
"""Jobs in one answer of a control plane."""

LAST_LINES = 5
"""Lines of the log of a failed job: usually the end of a stack trace and the error."""


def queue_command(
    words: JobsOrNoneArgument = None,
    user: UserOption = "",
    state: StateOption = None,
    array: ArrayOption = "",
    all_users: bool = typer.Option(False, "--all", help="Jobs of all users (admin), and jobs that have ended."),
    expand: bool = typer.Option(False, "--expand", help="List the jobs of arrays and grids one by one."),
    json: JsonOption = False,
) -> None:
    """List the jobs that have not ended. Shows what each waits for.

    An array or a grid is one row; --expand lists its jobs. fairlead queue 'train-*' --state waiting lists only some jobs. With
    --state, --all or the name of a job, jobs that have ended are listed too. --json lists every job.
    """
    plane = control_plane()
    states = states_of(state) or (() if all_users or words else LIVE)
    chosen = bool(words or user or state or array)
    if words:
        jobs = select_jobs(plane, words, user=user, states=states, array=array, all_users=all_users)
    elif all_users and not chosen:
        jobs = plane.jobs(states, all_users=True)
    else:
        jobs = plane.find_jobs(user=user, phases=states, array=array, all_users=all_users)
    if json:
        print_json({"jobs": jobs})
        return
    if not jobs:
        others = 0 if all_users or chosen else len(plane.jobs(LIVE, all_users=True))  # 0 without the right to see them
        out.print(f"no jobs of yours; --all shows all {others:,} active jobs" if others else "no jobs")
        return
    rows = jobs if expand else with_arrays(jobs, lambda array: _members(plane, array, jobs))
    out.print(jobs_table(rows, out.width, users=all_users))
    if all_users and len(jobs) == MAX_LISTED and not chosen:
        note(f"only running and the most recent jobs are shown, {MAX_LISTED:,} in all")


def _members(plane: ControlPlaneClient, array: Mapping[str, Any], known: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The jobs of an array, also those that a list leaves out."""
    there = [job for job in known if job["array"] and job["array"]["id"] == array["id"]]
    if len(there) == array["size"]:
        return there
    every = plane.find_jobs(array=array["name"], all_users=True)
    return [job for job in every if job["array"]["id"] == array["id"]]


def info_command(words: JobsArgument, json: JsonOption = False) -> None:
    """Show everything about a job, or about several. For a failed job, also the last lines of its log.

    The name of an array or a grid shows it as one object, with the number of its jobs in each phase.
    """
    plane = control_plane()
    found = jobs_in_detail(plane, words)
    if len(words) == 1 and found[0]["array"] and words[0] == found[0]["array"]["name"]:
        array = array_record(found)
        if json:
            print_json({**array, "members": found})
            return
        for line in array_lines(array):
            out.print(line, soft_wrap=True)
        return
    jobs = [_with_last_lines(plane, job) for job in found]
    if json:
        print_json(jobs[0] if len(jobs) == 1 else {"jobs": jobs})
        return
    for place, job in enumerate(jobs):
        if place:
            out.print()
        for line in detail_lines(job):
            out.print(line, soft_wrap=True)


def why_command(
    words: JobsArgument,
    fix: bool = typer.Option(False, "--fix", help="Also find the smallest changes that would start the job."),
    json: JsonOption = False,
) -> None:
    """Explain why jobs wait or why they failed. For a failed job, also print the last lines of its log.

    With --fix, print the smallest change of each kind that would start a waiting job at the next decision. Kinds are: fewer
    GPUs, another GPU type, a node that comes back, a higher quota, priority or weight, more GPUs, jobs that end. The
    control plane tries each on a simulated copy of the cluster, with its scheduler. The cluster does not change. The search
    takes at most 4 seconds. Delays of other jobs come from simulations without further arrivals.

    Examples:

      fairlead why train-7

      fairlead why train-7 --fix
    """
    plane = control_plane()
    jobs = [_with_last_lines(plane, job) for job in jobs_in_detail(plane, words)]
    if json:
        keys = ["name", "phase", "reason", "next_decision_s", "latest_decision_s", "quota_jobs", "unreachable", "last_lines"]
        keys += ["not_begun", "engine_problems", "slowdown", "separations", "prediction"]
        answers = [{key: job.get(key) for key in keys if key in job or key == "reason"} for job in jobs]
        for answer, found in zip(answers, _fixes(plane, jobs, quiet=True) if fix else ()):
            answer["fixes"] = found
        print_json(answers[0] if len(answers) == 1 else {"jobs": answers})
        return
    for job in jobs:
        reason = job.get("reason")
        text = f"{job['name']} is {job['phase']}" + (f": {legible(reason['text'])}" if reason else "")
        if holders := job.get("quota_jobs"):
            text += f"; the quota is held by {', '.join(map(legible, holders))}"
        if reason and "in_s" not in reason["facts"] and job["phase"] in ("queued", "waiting"):
            text += f"; the next decision comes {comes}" if (comes := next_decision(job)) else ""
        for node, silent_s in (job.get("unreachable") or {}).items():
            text += f"; the agent of its node {node} is unreachable for {format_seconds(silent_s)}"
        for node, why in (job.get("not_begun") or {}).items():
            text += f"; it has not started on {node}: {legible(why)}"
        text += "".join(f"; {legible(why)}" for why in job.get("engine_problems") or ())
        text += f"; it is {slow}, and will be separated" if (slow := slowdown_text(job)) else ""
        text += f"; lost work: {lost_work(job)}" if job.get("lost_work") else ""
        out.print(text, soft_wrap=True)
        if predicted := [f"{label}: {text}" for label, text in prediction_facts(job) if text]:
            out.print(f"  predicted for {'; '.join(predicted)}", soft_wrap=True)
        for line in job.get("last_lines", ()):
            out.print(f"  {legible(line)}", soft_wrap=True)
    for job, found in zip(jobs, _fixes(plane, jobs, quiet=False) if fix else ()):
        _tell_fixes(job, found)


def _fixes(plane: ControlPlaneClient, jobs: Sequence[Mapping[str, Any]], *, quiet: bool) -> list[dict[str, Any] | None]:
    """The smallest changes for each job that waits; None for others."""
    found: list[dict[str, Any] | None] = []
    with progress(len(jobs), "trying changes", quiet=quiet) as bar:
        for job in jobs:
            waits = job["phase"] in ("queued", "waiting") and not job["held_by"]
            found.append(plane.fix(str(job["number"])) if waits else None)
            bar.advance()
    return found


def _tell_fixes(job: Mapping[str, Any], found: Mapping[str, Any] | None) -> None:
    name = legible(job["name"])
    if found is None:
        return
    if found["starts"]:
        out.print(f"{name} should start at the next decision", soft_wrap=True)
        return
    text = f"{name} would start at the next decision" if found["changes"] else f"no small change starts {name}"
    out.print(text, soft_wrap=True)
    for one in found["changes"]:
        out.print(f"  if you {legible(one['text'])}{_delayed(one['delays'])}", soft_wrap=True)
    if found["unsearched"]:
        note(f"not searched to the end, for lack of time: {', '.join(found['unsearched'])}")


def _delayed(delays: Sequence[Mapping[str, Any]] | None) -> str:
    if delays is None:
        return ""
    if not delays:
        return "; it delays no job"
    others = f" and {len(delays) - 1} more" if len(delays) > 1 else ""
    seconds = delays[0]["seconds"]
    how_long = "beyond the simulation" if seconds is None else f"by {format_duration(seconds)}"
    return f"; it delays {legible(delays[0]['name'])} {how_long}{others}"


def jobs_in_detail(plane: ControlPlaneClient, words: Sequence[str]) -> list[dict[str, Any]]:
    """Return the records of the jobs that a command names, with all their fields."""
    if len(words) == 1:
        try:
            return [plane.job(words[0])]
        except RefusedRequest as refused:
            if refused.status == MISSING and not set(words[0]) & set("*?["):
                raise
    return [plane.job(str(job["number"])) for job in select_jobs(plane, words)]


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


def cancel_command(
    words: JobsOrNoneArgument = None,
    user: UserOption = "",
    state: StateOption = None,
    array: ArrayOption = "",
    json: JsonOption = False,
) -> None:
    """Cancel jobs.

    Examples:

      fairlead cancel train
      fairlead cancel 'sweep[5-9]'
      fairlead cancel --state waiting

    A pattern matches your own jobs, also for an admin; with --user, those of that user. Of several jobs, those that have
    ended are left as they are. Checkpoints are kept for a while. Exit codes: 0 cancelled, 3 no such job, 4 all have ended.
    """
    plane, jobs = choose_jobs("cancel", words, user, state, array, LIVE)
    live = [job for job in jobs if job["phase"] in LIVE]
    changed, refusal = change_jobs(plane, "cancel", live or jobs[:1])
    if refusal is not None and not changed:  # all have ended
        raise refusal
    live, answers = [job for job, _ in changed], [answer for _, answer in changed]
    if json:
        print_json(answers[0] if len(answers) == 1 else {"jobs": answers})
        return
    arrays = Counter(job["array"]["id"] for job in live if job["array"])
    for job in live:
        many = arrays.pop(job["array"]["id"], 0) if job["array"] else 1
        if many > 1:
            out.print(f"{job['array']['name']}: {many:,} jobs are cancelled")
        elif many:
            out.print(f"{job['name']} (number {job['number']}) is cancelled")


def logs_command(
    words: JobsArgument,
    follow: bool = typer.Option(False, "-f", "--follow", help="Follow the logs until the jobs have ended."),
    rank: int = typer.Option(0, help="Rank of the worker in a gang.", min=0),
    launch: int = typer.Option(0, help="Number of the launch, from 1; 0 is the last.", min=0, show_default=False),
    tail: int | None = typer.Option(None, help="Only this many lines from the end.", min=0),
    raw: bool = typer.Option(False, "--raw", help="Print control characters to a terminal as they are. Pipes always get them."),
    json: bool = typer.Option(False, "--json", help="Print one JSON object per line, for each piece of the log."),
) -> None:
    """Print the log of a job, or of several. Of several, such as an array, each line begins with the name of its job.

    Examples:

      fairlead logs -f train
      fairlead logs train --launch 1 --tail 100
      fairlead logs sweep --tail 5

    Prints standard output and error of the last launch. With -f it follows the job from launch to launch, across preemptions
    and migrations; --launch 1 begins at the first. Logs are kept on the nodes that ran the job, so the node must be reachable.

    Exit codes: 0 printed, 3 no such job or log, 4 the node of the log is unreachable, 5 the control plane is unreachable,
    130 interrupted. With -f, 0 means that all jobs have finished, and 1 that one failed or was cancelled.
    """
    plane = control_plane()
    jobs = select_jobs(plane, words)
    if follow:
        follow_jobs(plane, jobs, launch=launch, rank=rank, tail=tail, json=json, raw=raw)
        return
    missing: list[RefusedRequest] = []
    for job in jobs:
        name = legible(job["name"]) if len(jobs) > 1 else ""
        try:
            print_log(plane, str(job["number"]), launch=launch, rank=rank, tail=tail, json=json, raw=raw, name=name)
        except RefusedRequest as refused:  # it has not started, or its node is unreachable
            missing.append(refused)
            if len(missing) == len(jobs):
                raise
            note(f"[{name}] {refused}")
