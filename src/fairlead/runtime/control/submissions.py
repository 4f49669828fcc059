"""Submissions of jobs: their names, the order of their dependencies, and whether they can ever run here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Annotated

from fastapi import HTTPException
from pydantic import BaseModel, ConfigDict, Field

from fairlead.core.errors import near_names
from fairlead.core.job import Job, Phase
from fairlead.engine.feasibility import feasible_types, infeasible_reason
from fairlead.engine.state import State
from fairlead.runtime.control.control_plane import ControlPlane
from fairlead.runtime.protocol.task_file import TaskSpec, task_of

MAX_COMPARED = 200  # jobs whose names are compared with an unknown name; a comparison is slow, and other requests wait

MAX_SEARCHED = 10_000  # the most recent jobs, among which these are looked for

MAX_JOBS = 1000


class JobNames:
    """Jobs by name; a lookup takes the same time with any number of jobs. Use it under the control plane's lock. A name means
    the most recent job that has it. It is free again when that job has ended."""

    def __init__(self) -> None:
        self._numbers: dict[str, list[int]] = {}
        self._read = 0

    def numbers(self, state: State, name: str) -> Sequence[int]:
        """Return all jobs with a name, the most recent last."""
        for number in range(self._read, state.next_number):
            self._numbers.setdefault(state.job_of[number].name, []).append(number)
        self._read = state.next_number
        return self._numbers.get(name, ())

    def near(self, state: State, name: str, may_see: Callable[[int], bool]) -> list[str]:
        """Return similar names of recent jobs that a user may see."""
        recent = islice(range(state.next_number - 1, -1, -1), MAX_SEARCHED)
        numbers = (number for number in recent if may_see(number))
        return near_names(name, dict.fromkeys(state.job_of[number].name for number in islice(numbers, MAX_COMPARED)))

    def taken(self, state: State, name: str) -> bool:
        """Return whether a job with this name has not ended."""
        numbers = self.numbers(state, name)
        return bool(numbers) and bool(state.columns["phase"][numbers[-1]] <= Phase.RUNNING)


def submission_order(tasks: Sequence[TaskSpec], known: Callable[[str], int]) -> tuple[list[int], list[tuple[int, ...]]]:
    """Order the jobs of a submission so that each comes behind its dependencies. Returns the order, and for each job its
    dependencies: the number of an existing job (from `known`), or -1 for the first of this order, -2 for the second, and so on.
    Cycles are refused."""
    place_of = {task.name: place for place, task in enumerate(tasks) if task.name}
    order: list[int] = []
    at: dict[int, int] = {}  # positions in the order
    after: dict[int, tuple[int, ...]] = {}

    for begin in range(len(tasks)):
        path = [begin]
        while path:
            here = path[-1]
            ahead = [place_of[str(name)] for name in tasks[here].after if str(name) in place_of]
            missing = next((place for place in ahead if place not in at), None)
            if here in at:
                path.pop()
            elif missing is None:
                at[here] = len(order)
                order.append(here)
                names = [str(name) for name in tasks[here].after]
                after[here] = tuple(
                    dict.fromkeys(-1 - at[place_of[name]] if name in place_of else known(name) for name in names)
                )
                path.pop()
            elif missing in path:
                cycle = [*path[path.index(missing) :], missing]
                raise HTTPException(422, f"after: {' after '.join(tasks[place].name for place in cycle)} is a cycle")
            else:
                path.append(missing)
    return order, [after[place] for place in order]


class Submission(BaseModel):
    """A request to submit jobs, or (`dry_run`) only to check them."""

    model_config = ConfigDict(extra="forbid")

    jobs: Annotated[list[TaskSpec], Field(min_length=1, max_length=MAX_JOBS)]
    dry_run: bool = False


def reserve_names(
    plane: ControlPlane, jobs: Sequence[Job], names: JobNames, pending: set[str], claimed: set[str]
) -> list[list[str]]:
    """Return the types that each job can run on, and reserve the `claimed` names. A job that can never run here, or whose name
    is taken, is refused."""
    state = plane.loop.state
    types: list[list[str]] = []
    seen: set[str] = set()
    for job in jobs:
        code = task_of(job).code
        if code and (plane.code is None or not plane.code.has(code)):
            raise HTTPException(422, f"the code of {job.name or 'it'} was not sent: PUT /v1/code/{code} first")
        mask = feasible_types(job, state.cluster)
        if not mask:
            raise HTTPException(422, f"{job.name or 'it'} can never run here: {infeasible_reason(job, state.cluster).text}")
        if job.name and (job.name in seen or job.name in pending or names.taken(state, job.name)):
            raise HTTPException(409, f"the name {job.name!r} is taken by a job that has not ended")
        seen.add(job.name)
        types.append([name for code, name in enumerate(state.cluster.type_names) if mask >> code & 1])
    pending |= claimed
    return types
