"""The control plane that commands speak to, and the jobs that they name: several names, numbers, patterns, arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairlead.cli.output import option_error
from fairlead.core.errors import FairleadError, InputError, NotFound
from fairlead.core.job import ENDED, Phase

if TYPE_CHECKING:
    from fairlead.runtime.http_client import ControlPlaneClient

LIVE = ("queued", "waiting", "running")
"""Phases of jobs that have not ended."""

STATES = {
    **{phase.name.lower(): (phase.name.lower(),) for phase in Phase},
    "live": LIVE,
    "ended": tuple(phase.name.lower() for phase in sorted(ENDED)),
}
"""What --state takes, and the phases that it means."""

_JOBS = "Names, numbers, patterns of your jobs ('train-*'), arrays (sweep) or members of an array ('sweep[0-4]')."
JobsArgument = Annotated[list[str], typer.Argument(metavar="JOB...", help=_JOBS, show_default=False)]
JobsOrNoneArgument = Annotated[list[str] | None, typer.Argument(metavar="[JOB...]", help=_JOBS, show_default=False)]

UserOption = Annotated[str, typer.Option("--user", help="Match only this user's jobs (admin).", show_default=False)]

StateOption = Annotated[
    list[str] | None,
    typer.Option("--state", help=f"Only jobs in this state: {', '.join(STATES)}; repeatable.", show_default=False),
]

ArrayOption = Annotated[str, typer.Option("--array", help="Only jobs of this array or grid.", show_default=False)]


def states_of(words: Sequence[str] | None) -> tuple[str, ...]:
    """Return the phases that --state names, separated by commas or repeated; empty for all."""
    names = [name.strip().lower() for word in words or () for name in word.split(",")]
    if unknown := [name for name in names if name not in STATES]:
        raise option_error("state", f"one of {', '.join(STATES)}", unknown[0])
    return tuple(dict.fromkeys(phase for name in names for phase in STATES[name]))


def select_jobs(
    plane: ControlPlaneClient,
    words: Sequence[str] | None = (),
    *,
    user: str = "",
    states: Sequence[str] = (),
    array: str = "",
    all_users: bool = False,
) -> list[dict[str, Any]]:
    """Return the records of the jobs that a command names, in the order of their numbers.

    Args:
        plane: The control plane.
        words: Names (the most recent job of that name), numbers, patterns such as `train-*` (the most recent job of each name),
            an array's name (all its members), `sweep[0-4]`. None: every job that the other arguments leave.
        user: Only jobs of this user; needs an admin token for others.
        states: Only jobs in these phases.
        array: Only jobs of arrays and grids with this name.
        all_users: Patterns, and the lack of words, mean the jobs of all users.

    Returns:
        At least one record, as in `GET /v1/jobs`.

    Raises:
        NotFound: No job is left.
        RefusedRequest: One of the words matches no job, or the request is not allowed.
    """
    found = plane.find_jobs(list(words or ()), user=user, phases=states, array=array, all_users=all_users)
    if not found:
        limits = (", ".join(words or ()), f"user {user}" * bool(user), f"array {array}" * bool(array), " or ".join(states))
        raise NotFound(f"no job matches: {'; '.join(filter(None, limits)) or 'you have none'}")
    return found


def choose_jobs(
    command: str, words: Sequence[str] | None, user: str, state: Sequence[str] | None, array: str, usual: Sequence[str]
) -> tuple[ControlPlaneClient, list[dict[str, Any]]]:
    """Return the jobs that a command names. With filters only, those in a phase for which the command makes sense."""
    if not (words or user or state or array):
        raise InputError(command, "a job, or one of --user, --state and --array")
    plane, states = control_plane(), states_of(state)
    return plane, select_jobs(plane, words, user=user, states=states or (() if words else usual), array=array)


def change_jobs(
    plane: ControlPlaneClient, change: str, jobs: Sequence[dict[str, Any]], **more: Any
) -> tuple[list[tuple[dict[str, Any], dict[str, Any]]], FairleadError | None]:
    """Change each job, by number. Jobs may end, start or stop meanwhile: a refusal does not keep the others from being changed.

    Returns:
        The jobs that were changed, with the answers; and the error to raise at the end, None if no job was refused.
    """
    from fairlead.runtime.http_client import CONFLICT, RefusedRequest

    changed: list[tuple[dict[str, Any], dict[str, Any]]] = []
    refusals: list[tuple[str, RefusedRequest]] = []
    for job, answer in zip(jobs, plane.change_jobs(change, [job["number"] for job in jobs], **more)):
        if not isinstance(answer, RefusedRequest):
            changed.append((job, answer))
        else:
            refusals.append((job["name"], answer))
    if not refusals:
        return changed, None
    name, worst = next((one for one in refusals if one[1].status != CONFLICT), refusals[0])
    if len(jobs) == 1:
        return changed, worst
    why = str(worst).removeprefix(f"{name}: ")
    return changed, RefusedRequest(worst.status, f"{len(refusals):,} of {len(jobs):,} jobs refused; {name}: {why}")


def control_plane() -> ControlPlaneClient:
    """Return the client of the control plane that the environment or this directory names."""
    from fairlead.runtime.http_client import ControlPlaneClient  # needs the extra `cluster`, and is slow to import

    return ControlPlaneClient.from_environment()
