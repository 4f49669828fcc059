"""`fairlead hold`, `release`, `requeue` and `update`: changes of submitted jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from fairlead.cli.output import JsonOption, option_error, out, print_json
from fairlead.cli.selectors import ArrayOption, JobsOrNoneArgument, StateOption, UserOption, change_jobs, choose_jobs
from fairlead.core.durations import EXPECTED, parse_duration
from fairlead.core.errors import FairleadError, InputError

if TYPE_CHECKING:
    from fairlead.runtime.http_client import ControlPlaneClient

WAITING, RUNNING = ("queued", "waiting"), ("running",)
NO_LIMIT = "none"


def hold_command(
    words: JobsOrNoneArgument = None,
    user: UserOption = "",
    state: StateOption = None,
    array: ArrayOption = "",
    json: JsonOption = False,
) -> None:
    """Hold waiting jobs: they do not start until you release them.

    Examples:

      fairlead hold train-1
      fairlead hold 'sweep[5-9]'

    A running job cannot be held: use 'fairlead requeue --hold'. Exit codes: 0 done, 3 no such job, 4 a job runs or has ended.
    """
    plane, jobs = choose_jobs("hold", words, user, state, array, WAITING)
    _apply(plane, "hold", jobs, "is held", json)


def release_command(
    words: JobsOrNoneArgument = None,
    user: UserOption = "",
    state: StateOption = None,
    array: ArrayOption = "",
    json: JsonOption = False,
) -> None:
    """Release held jobs.

    Examples:

      fairlead release train-1
      fairlead release --array sweep

    Exit codes: 0 done, 3 no such job, 4 a job is not held.
    """
    plane, jobs = choose_jobs("release", words, user, state, array, WAITING)
    if not words or len(jobs) > 1:
        jobs = [job for job in jobs if job.get("held_by")] or jobs
    _apply(plane, "release", jobs, "is released", json)


def requeue_command(
    words: JobsOrNoneArgument = None,
    user: UserOption = "",
    state: StateOption = None,
    array: ArrayOption = "",
    hold: bool = typer.Option(False, "--hold", help="Also hold the job, so that it does not start again by itself."),
    json: JsonOption = False,
) -> None:
    """Put jobs back into the queue: a running job checkpoints and stops; an ended job runs again.

    Examples:

      fairlead requeue train-1
      fairlead requeue train-1 --hold

    A failed or cancelled job resumes from its last checkpoint, with all its retries and its full time limit. A finished job
    starts from its first step, and its old checkpoints are removed. Exit codes: 0 done, 3 no such job, 4 a job already waits.
    """
    plane, jobs = choose_jobs("requeue", words, user, state, array, RUNNING)
    _apply(plane, "requeue", jobs, "is requeued and held" if hold else "is requeued", json, hold=hold)


def update_command(
    words: JobsOrNoneArgument = None,
    user: UserOption = "",
    state: StateOption = None,
    array: ArrayOption = "",
    priority: int | None = typer.Option(None, help="Priority, from -1000 to 1000.", show_default=False),
    weight: float | None = typer.Option(None, help="Weight, from 0.001 to 1000.", show_default=False),
    time: str = typer.Option("", help="Limit of the run time of all launches, as in 2h; none removes it.", show_default=False),
    deadline: str = typer.Option("", help="Deadline after submission, as in 1d; none removes it.", show_default=False),
    retries: int | None = typer.Option(None, help="How many times a failed job is retried.", show_default=False),
    name: str = typer.Option("", help="New name, for one job.", show_default=False),
    account: str = typer.Option("", help="New account.", show_default=False),
    json: JsonOption = False,
) -> None:
    """Change fields of submitted jobs.

    Example:

      fairlead update train-1 --priority 5 --time 4h

    The next decision uses the new values. Waiting does not count for the time limit. An ended
    job only takes a new name or account. Exit codes: 0 done, 2 a wrong value, 3 no such job, 4 a job has ended.
    """
    given: dict[str, Any] = {"priority": priority, "weight": weight, "retries": retries}
    changes = {field: value for field, value in given.items() if value is not None}
    changes |= {field: value for field, value in (("name", name), ("account", account)) if value}
    limits = (("time_limit_s", "time", time), ("deadline_s", "deadline", deadline))
    changes |= {field: _limit(option, text) for field, option, text in limits if text}
    if not changes:
        raise InputError(
            "update", "something to change: --priority, --weight, --time, --deadline, --retries, --name, --account"
        )
    plane, jobs = choose_jobs("update", words, user, state, array, (*WAITING, *RUNNING))
    if name and len(jobs) > 1:
        raise FairleadError(f"--name takes one job; {len(jobs)} match")
    _apply(plane, "update", jobs, "is updated", json, fields=changes)


def _limit(option: str, text: str) -> float | None:
    if text == NO_LIMIT:
        return None
    try:
        return parse_duration(text)
    except ValueError:
        raise option_error(option, f"{EXPECTED}, or none", text) from None


def _apply(plane: ControlPlaneClient, change: str, jobs: Sequence[dict[str, Any]], what: str, json: bool, **more: Any) -> None:
    """Change each job and print it; then raise if one was refused."""
    changed, refusal = change_jobs(plane, change, jobs, **more)
    answers = [{"name": job["name"], **answer} for job, answer in changed]
    if json and (answers or refusal is None):
        print_json(answers[0] if len(jobs) == 1 else {"jobs": answers})
    for job, _ in () if json else changed:
        out.print(f"{job['name']} (number {job['number']}) {what}")
    if refusal is not None:
        raise refusal
