"""`fairlead wait` and `fetch`, and waiting for jobs in other commands: the exit code is the jobs' result."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import typer

from fairlead.cli.job_tables import legible
from fairlead.cli.output import CONTROLS, JsonOption, note, option_error, out, print_json
from fairlead.cli.selectors import JobsArgument, control_plane, select_jobs
from fairlead.core.durations import parse_duration
from fairlead.core.errors import FairleadError
from fairlead.core.job import ENDED
from fairlead.runtime.http_client import FOLLOW_WITHOUT_ANSWER_S, MISSING, RefusedRequest, is_temporary
from fairlead.runtime.log_chunks import POLL_S

if TYPE_CHECKING:
    from fairlead.runtime.http_client import ControlPlaneClient

MAX_POLL_S = 5.0
"""Seconds between two requests for the state of jobs; the first ones come sooner."""

_MAX_FOLLOWED = 50  # jobs whose logs one command prints at once
_REQUESTS_PER_S = 20.0  # for all of them together, well below the limit of a user
_CHANGING = re.compile(r"; position \d+ of \d+|, in \d+ s")  # parts of a reason that change without news
_UNSAFE = re.compile(r"(?P<colour>\x1b\[[0-9;:]*m)|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_OVER = frozenset(phase.name.lower() for phase in ENDED)


class JobNotFinished(FairleadError):
    """A job failed, was cancelled, or has not ended in time."""

    exit_code = 1


def wait_command(
    words: JobsArgument,
    timeout: str = typer.Option("", help="Give up after this time, such as 90s, 10m or 2h.", show_default=False),
    json: JsonOption = False,
) -> None:
    """Wait until jobs have ended. The exit code is their result.

    Examples:

      fairlead wait train
      fairlead wait 'sweep[0-4]' --timeout 2h

    The name of an array waits for all its jobs. Exit codes: 0 all have finished, 1 one failed, was cancelled or has not ended
    in time, 3 no such job, 5 unreachable.
    """
    plane = control_plane()
    try:
        timeout_s = parse_duration(timeout) if timeout else None
    except ValueError as error:
        raise option_error("timeout", str(error), timeout) from None
    numbers = [job["number"] for job in select_jobs(plane, words)]
    if json:
        jobs = ended_jobs(plane, numbers, timeout_s)
        print_json(jobs[0] if len(jobs) == 1 else {"jobs": jobs})
        check_finished(jobs)
    else:
        wait_for_jobs(plane, numbers, timeout_s)


def fetch_command(
    words: JobsArgument,
    to: Path | None = typer.Option(None, help="Folder to write to.  [default: the name of the job]", show_default=False),
    json: JsonOption = False,
) -> None:
    """Copy the declared outputs of ended jobs to this machine: fairlead fetch train --to results.

    A task declares them with outputs: [model.pt, 'logs/*.csv'], or --outputs. Each of several jobs, such as those of an array,
    has a folder of its own. Files of the same name are replaced. The outputs are those of worker 0's node in the
    last launch.

    Exit codes: 0 fetched, 1 a job has no outputs, 3 no such job, 4 the node of the outputs is unreachable, 5 the control plane
    is unreachable.
    """
    plane = control_plane()
    jobs = select_jobs(plane, words)
    answers, missing = list[dict[str, Any]](), list[str]()
    for job in jobs:
        folder = to if to is not None and len(jobs) == 1 else (to or Path()) / job["name"]
        try:
            files = plane.fetch(str(job["number"]), folder)
        except RefusedRequest as refused:
            if refused.status != MISSING:
                raise
            files, left_out = [], [{"path": "", "why": str(refused)}]
        else:
            left_out = plane.outputs(str(job["number"]))["left_out"]
            for left in left_out if files else ():
                note(f"{job['name']}: left out {left['path']}: {left['why']}")
        if not files:
            first = left_out[0] if left_out else {"path": "", "why": "no file matches"}
            missing.append(": ".join(filter(None, (job["name"], first["path"], first["why"]))))
        answers.append({"name": job["name"], "number": job["number"], "files": [str(file) for file in files]})
        if not json:
            for file in files:
                out.print(str(file))
    if json:
        print_json({"jobs": answers})
    if missing:
        more = f" ({len(missing):,} of {len(jobs):,} jobs have no outputs)" if len(jobs) > 1 else ""
        raise JobNotFinished(f"no outputs of {missing[0]}{more}")


def wait_for_jobs(
    plane: ControlPlaneClient, numbers: Sequence[int], timeout_s: float | None = None, *, quiet: bool = False
) -> None:
    """Wait until jobs have ended, and print how. Raises `JobNotFinished`: one of them has not finished."""
    jobs = ended_jobs(plane, numbers, timeout_s, told=None if quiet else note)
    if not quiet:
        for job in jobs if len(jobs) <= 20 else [job for job in jobs if job["phase"] != "finished"]:
            out.print(f"{job['name']} is {job['phase']}")
        if len(jobs) > 20:
            out.print(f"{sum(job['phase'] == 'finished' for job in jobs):,} of {len(jobs):,} jobs have finished")
    check_finished(jobs, quiet=True)


def ended_jobs(
    plane: ControlPlaneClient,
    numbers: Sequence[int],
    timeout_s: float | None = None,
    told: Callable[[str], object] | None = None,
) -> list[dict[str, Any]]:
    """Return the records of jobs when all have ended. A control plane that does not answer is waited for, for a minute. `told`
    gets a line when the reason changes for which a job waits; of several jobs, that of the first one.

    Raises:
        JobNotFinished: They have not ended within `timeout_s` seconds.
    """
    ended: dict[int, dict[str, Any]] = {}
    found: list[dict[str, Any]] = []
    left = sorted(set(numbers))
    begun = answered = time.monotonic()
    pause_s, before = POLL_S, ""
    while True:
        try:
            found = plane.find_jobs([str(number) for number in left])
        except FairleadError as problem:
            if not is_temporary(problem) or time.monotonic() > answered + FOLLOW_WITHOUT_ANSWER_S:
                raise
        else:
            answered = time.monotonic()
            ended |= {job["number"]: job for job in found if job["phase"] in _OVER}
            left = [number for number in left if number not in ended]
            waiting = [job for job in found if job["phase"] in ("queued", "waiting") and job.get("reason")]
            if told is not None and waiting:
                reason = waiting[0]["reason"]
                text = _CHANGING.sub("", legible(reason["text"]))
                if before not in (text, reason["code"]):
                    told(f"{legible(waiting[0]['name'])} waits: {text}" + f" ({len(waiting):,} jobs wait)" * (len(numbers) > 1))
                before = text if len(numbers) == 1 else reason["code"]
        if not left:
            return [ended[number] for number in sorted(ended)]
        now = time.monotonic()
        if timeout_s is not None and now >= begun + timeout_s:
            names = [job["name"] for job in found if job["number"] in left] if found else [str(number) for number in left]
            more = f" and {len(names) - 3:,} more" if len(names) > 3 else ""
            raise JobNotFinished(f"not ended within {timeout_s:g} s: {', '.join(names[:3])}{more}")
        time.sleep(pause_s if timeout_s is None else min(pause_s, begun + timeout_s - now))
        pause_s = min(MAX_POLL_S, pause_s * 1.2)


def check_finished(jobs: Sequence[dict[str, Any]], *, quiet: bool = False) -> None:
    """Raise `JobNotFinished`, with the reason, or end with its exit code, unless all jobs have finished."""
    bad = [job for job in jobs if job["phase"] != "finished"]
    if not bad:
        return
    if quiet:
        raise typer.Exit(JobNotFinished.exit_code)
    raise JobNotFinished(f"{bad[0]['name']} is {bad[0]['phase']}")


def follow_jobs(plane: ControlPlaneClient, jobs: Sequence[dict[str, Any]], **options: Any) -> None:
    """Print the logs of jobs until all have ended, with the options of `print_log`; of several, each line begins with the name
    of its job, and only the first 50 are printed. Raises `typer.Exit` with code 1: one of them has not finished."""

    def follow(number: str, name: str) -> None:
        try:
            print_log(plane, number, follow=True, name=name, poll_s=poll_s, **options)
        except FairleadError as problem:
            note(f"[{name}] {problem}")

    if len(jobs) == 1:
        print_log(plane, str(jobs[0]["number"]), follow=True, **options)
    if len(jobs) > _MAX_FOLLOWED:
        note(f"following the logs of the first {_MAX_FOLLOWED} of {len(jobs):,} jobs; name others to follow them")
    several = [(str(job["number"]), legible(job["name"])) for job in jobs[:_MAX_FOLLOWED] if len(jobs) > 1]
    poll_s = max(POLL_S, len(several) / _REQUESTS_PER_S)
    threads = [Thread(target=follow, args=each, daemon=True) for each in several]
    for do in (Thread.start, Thread.join):
        for thread in threads:
            do(thread)
    bad = [job for job in ended_jobs(plane, [job["number"] for job in jobs]) if job["phase"] != "finished"]
    for job in bad:
        note(f"{job['name']} is {job['phase']}" + (f": {job['reason']['text']}" if job.get("reason") else ""))
    if bad:
        raise typer.Exit(JobNotFinished.exit_code)


def print_log(
    plane: ControlPlaneClient,
    number: str,
    *,
    launch: int = 0,
    json: bool = False,
    raw: bool = False,
    name: str = "",
    **options: Any,
) -> None:
    """Print a worker's log, or one JSON object for each piece of it; with a name, each has it. On a terminal, control
    characters are made visible unless `raw`. Options: as `plane.logs`."""
    show = str if raw or not sys.stdout.isatty() else _visible
    before, prefix, rest = launch, f"[{name}] " * bool(name), ""
    for piece in plane.logs(number, launch=launch, **options):
        if json:
            print_json({"name": name, **piece} if name else piece)
            continue
        if piece["launch"] != before and (before or piece["launch"] > 1):
            note(f"{prefix}launch {piece['launch']}" + ("" if before else ", the last; --launch N shows earlier ones"))
        before = piece["launch"]
        lines = (rest + piece["text"]).splitlines(keepends=True)
        rest = lines.pop() if prefix and lines and not lines[-1].endswith("\n") else ""  # other jobs write lines between
        sys.stdout.write("".join(prefix + show(line) for line in lines))
        sys.stdout.flush()
    if rest:
        sys.stdout.write(f"{prefix}{show(rest)}\n")


def _visible(text: str) -> str:
    """A job's output for a terminal: colours stay, and other control characters cannot change the terminal or its title."""
    return _UNSAFE.sub(lambda found: found[0] if found["colour"] else found[0].translate(CONTROLS), text)
