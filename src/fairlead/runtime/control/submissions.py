"""Submissions of jobs: their names, the order of their dependencies, and whether they can ever run here; and the selection of
jobs by name, number, pattern or array."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Annotated

from fastapi import HTTPException
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator

from fairlead.core.errors import near_names, near_or_all
from fairlead.core.job import Job, Phase
from fairlead.engine.feasibility import feasible_types, infeasible_reason
from fairlead.engine.state import State
from fairlead.prediction.step_prediction import job_prediction
from fairlead.runtime.control.control_plane import ControlPlane
from fairlead.runtime.control.tokens import Bearer
from fairlead.runtime.protocol.task_file import MAX_NAME, TaskSpec, task_of
from fairlead.runtime.protocol.task_parts import MAX_ARRAY, ArrayMember, array_of, parse_indices

MAX_JOBS_PER_REQUEST = 1000
MAX_COMPARED = 200  # jobs whose names are compared with an unknown name; a comparison is slow, and other requests wait
MAX_SEARCHED = 10_000  # the most recent jobs, among which these are looked for
MAX_DEPENDENCIES = 1_000_000  # of all jobs of a submission: every one is stored, and the loop waits while they are resolved
MAX_PATTERNS = 20  # different patterns in a request: each is compared with all names, and the loop waits
MAX_SUBMISSION_BYTES = 64 << 20  # of all tasks of a submission, with the members of arrays

_MEMBERS = re.compile(r"(?P<name>[^\[\]*?]+)\[(?P<indices>[\d,:-]+)\]\Z")  # sweep[0-4]


class JobNames:
    """Jobs by name; a lookup takes the same time with any number of jobs. Use it under the control plane's lock. A name belongs
    to a user, and means the most recent job or array of the user that has it. It is free again when that has ended. `ann/train`
    is the job `train` of ann, for users who may see the jobs of others."""

    def __init__(self) -> None:
        self._numbers: dict[str, list[int]] = {}
        self._arrays: dict[str, dict[str, dict[int, int]]] = {}  # name -> identifier -> index -> number; the most recent last
        self._read = 0
        self.pending: set[tuple[str, str]] = set()  # users and names that are reserved, and not in the journal yet

    def _update(self, state: State) -> None:
        for number in range(self._read, state.next_number):
            if (job := state.job_of.get(number)) is None:
                continue  # a number that was left out
            self._numbers.setdefault(job.name, []).append(number)
            if array := array_of(job):
                self._arrays.setdefault(array["name"], {}).setdefault(array["id"], {})[array["index"]] = number
        self._read = state.next_number

    def rename(self, state: State, former: Mapping[int, str]) -> None:
        """Jobs have other names now than these former ones."""
        self._update(state)
        for number, old in former.items():
            if number in self._numbers.get(old, ()):
                self._numbers[old].remove(number)
                named = self._numbers.setdefault(state.job_of[number].name, [])
                named.append(number)
                named.sort()

    def numbers(self, state: State, name: str) -> Sequence[int]:
        """Return all jobs with a name, the most recent last."""
        self._update(state)
        return self._numbers.get(name, ())

    def namesakes(self, state: State, name: str, may_see: Callable[[int], bool]) -> list[int]:
        """Return all jobs with a name, or the one with a number, that a user may see, the most recent last."""
        numbers = [int(name)] if name.isdecimal() and len(name) < 10 else self.numbers(state, name)
        return [number for number in numbers if may_see(number)]

    def members(self, state: State, name: str, may_see: Callable[[int], bool]) -> Mapping[int, int]:
        """Return the members of the most recent array with a name, by index; none if there is no array that a user may see."""
        self._update(state)
        arrays = reversed(self._arrays.get(name, {}).values())
        return next((members for members in arrays if may_see(next(iter(members.values())))), {})

    def of_one_user(
        self, state: State, word: str, may_see: Callable[[int], bool], user: str
    ) -> tuple[str, Callable[[int], bool]]:
        """Return the name in a word such as `train` or `ann/train`, and whether a job belongs to the user that it means: to
        `user`, if one of theirs has that name, or else to the only user with such a job that has not ended.

        Raises:
            HTTPException: It may mean jobs of several other users (409)."""
        owner, slash, name = word.partition("/")
        if not slash:
            name, part = word, _MEMBERS.match(word)
            numbers = [number for number in self._named(state, part["name"] if part else word) if may_see(number)]
            own = any(state.job_of[number].user == user for number in numbers)
            owners = {user} if own else {state.job_of[number].user for number in _live(state, numbers)}
            if not owners:
                return name, may_see
            owner = min(owners)
            if len(owners) > 1:
                several = ", ".join(f"{one}/{name}" for one in sorted(owners)[:5])
                raise HTTPException(
                    409, f"{name[:80]!r} is the name of several users' jobs; choose one: {several}; or a number"
                )
        return name, lambda number: may_see(number) and state.job_of[number].user == owner

    def _named(self, state: State, name: str) -> list[int]:
        """The jobs and members of arrays with a name."""
        self._update(state)
        arrays = self._arrays.get(name, {}).values()
        return [*self.numbers(state, name), *(number for members in arrays for number in members.values())]

    def select(
        self, state: State, word: str, may_see: Callable[[int], bool], among: Callable[[int], bool], user: str = ""
    ) -> list[int]:
        """Return the jobs that a word means, in the order of their numbers. A name, a number or an array's name finds every job
        that a user may see; a pattern such as `train-*` only the most recent jobs of each name `among` some.

        Raises:
            HTTPException: No job matches (404), or it may mean jobs of several users (409)."""
        explicit = "/" in word
        word, may_see = self.of_one_user(state, word, may_see, user)
        among = may_see if explicit else among
        if word.isdecimal() and len(word) < 10:
            found = self.namesakes(state, word, may_see)
        elif (part := _MEMBERS.match(word)) and (members := self.members(state, part["name"], may_see)):
            try:
                wanted = parse_indices(part["indices"])
            except ValueError as error:
                raise HTTPException(422, f"{word[:80]!r}: expected {error}") from None
            found = [members[index] for index in wanted if index in members]
        elif any(sign in word for sign in "*?["):
            pattern = re.compile(fnmatch.translate(word))
            self._update(state)
            matching = [many for name, many in self._numbers.items() if pattern.match(name)]
            found = [number for many in matching for number in {state.job_of[n].user: n for n in many if among(n)}.values()]
            if not found and (others := {state.job_of[n].user for many in matching for n in many if may_see(n)}):
                hint = f"jobs of {', '.join(sorted(others)[:3])} do: pass --user NAME, or full names"
                raise HTTPException(404, f"no job of yours matches {word[:80]!r}, but {hint}")
        else:
            members = self.members(state, word, may_see)
            named = self.namesakes(state, word, may_see)[-1:]
            found = named if named and named[0] > max(members.values(), default=-1) else list(members.values())
        if not found:
            raise HTTPException(404, self.missing(state, word, may_see))
        return sorted(found)

    def missing(self, state: State, name: str, may_see: Callable[[int], bool], hint: bool = True) -> str:
        """Return that there is no such job, with similar names as a hint."""
        near = self.near(state, name, may_see) if hint else []
        return f"there is no job {name[:80]!r}" + (f"; {near_or_all(name, near)}" if near else "")

    def near(self, state: State, name: str, may_see: Callable[[int], bool]) -> list[str]:
        """Return similar names of recent jobs that a user may see."""
        recent = islice(range(state.next_number - 1, -1, -1), MAX_SEARCHED)
        numbers = (number for number in recent if may_see(number))
        return near_names(name, dict.fromkeys(state.job_of[number].name for number in islice(numbers, MAX_COMPARED)))

    def taken(self, state: State, user: str, name: str) -> bool:
        """Return whether a job or an array of a user with this name has not ended, or is about to be submitted."""
        return (user, name) in self.pending or any(
            state.job_of[number].user == user for number in _live(state, self._named(state, name))
        )

    def claim(self, state: State, user: str, name: str) -> bool:
        """Reserve a name until it is removed from `pending`; return False if it is taken."""
        if free := not self.taken(state, user, name):
            self.pending.add((user, name))
        return free


def _live(state: State, numbers: list[int]) -> list[int]:
    """Those of some jobs that have not ended."""
    phases = state.columns["phase"][numbers] if numbers else ()
    return [number for number, phase in zip(numbers, phases) if phase <= int(Phase.RUNNING)]


def visibility(state: State, caller: Bearer, *, all_users: bool = False) -> tuple[Callable[[int], bool], Callable[[int], bool]]:
    """Return whether a caller may see a job, and whether their patterns match it (without `all_users`: only their own jobs)."""
    visible_to, matching = caller.visible_user, caller.visible_user if all_users else caller.user

    def may_see(number: int) -> bool:
        job = state.job_of.get(number)
        return job is not None and visible_to in (None, job.user)

    return may_see, lambda number: may_see(number) and matching in (None, state.job_of[number].user)


_Word = Annotated[str, StringConstraints(max_length=2 * MAX_NAME + 64)]  # a user, a name and indices


class JobQuery(BaseModel):
    """The parameters of a request for jobs."""

    phase: Annotated[list[str] | None, Field(max_length=10, description="only jobs in these phases")] = None
    all_users: Annotated[bool, Field(description="jobs of all users; needs an admin token")] = False
    everybody: Annotated[bool, Field(deprecated=True, description="former name of all_users")] = False
    limit: Annotated[int, Field(ge=1, le=10_000)] = 1000
    select: Annotated[
        list[_Word] | None,
        Field(
            max_length=200,
            description="names, numbers, patterns (train-*), arrays (sweep), members (sweep[0-4]); of a user: ann/train",
        ),
    ] = None
    user: Annotated[str | None, Field(max_length=128, description="only jobs of this user")] = None
    array: Annotated[str | None, Field(max_length=128, description="only jobs of arrays and grids with this name")] = None
    from_number: Annotated[int | None, Field(ge=0, description="a page: the first `limit` jobs from this number on")] = None

    @field_validator("phase")
    @classmethod
    def _known_phases(cls, phase: list[str] | None) -> list[str] | None:
        known = {one.name.lower() for one in Phase}
        if not known.issuperset(phase or ()):
            raise ValueError(f"phases are {', '.join(sorted(known))}")
        return phase

    def numbers(self, state: State, names: JobNames, caller: Bearer) -> list[int]:
        """Return the jobs that a caller asks for, in the order of their numbers; use it under the control plane's lock."""
        if self.user is not None and caller.visible_user not in (None, self.user):
            raise HTTPException(403, "jobs of other users need an admin token")
        former = self.model_dump(include={"everybody"})["everybody"]  # reading the field itself would warn
        may_see, among = visibility(state, caller, all_users=self.all_users or former or self.user is not None)
        if self.user is not None:  # a name means this user's job
            may_see = among = lambda number: number in state.job_of and state.job_of[number].user == self.user
        if self.select is None:
            found = [number for number in state.job_of if among(number)]
        else:
            _limit_patterns(self.select, "select: a request has")
            found = sorted(
                {number for word in self.select for number in names.select(state, word, may_see, among, caller.user)}
            )
        phases = state.columns["phase"]
        if self.phase is not None:
            found = [number for number in found if Phase(int(phases[number])).name.lower() in self.phase]
        if self.array is not None:
            found = [number for number in found if (array_of(state.job_of[number]) or {}).get("name") == self.array]
        if self.from_number is not None:
            found = [number for number in found if number >= self.from_number][: self.limit]
        if len(found) > self.limit:
            found = sorted(sorted(found, key=lambda number: (phases[number] == Phase.RUNNING, number))[-self.limit :])
        return found


@dataclass(frozen=True)
class SubmittedJob:
    """One job of a submission: a task, or a member of the array that a task describes."""

    task: TaskSpec
    member: ArrayMember | None = None

    @property
    def name(self) -> str:
        return self.task.name if self.member is None else self.member.job_name


def expand_arrays(tasks: Sequence[TaskSpec], new_id: Callable[[], str]) -> list[SubmittedJob]:
    """Return the jobs of a submission, with the members of its arrays and grids. Too many are refused."""
    members = (SubmittedJob(task, member) for task in tasks for member in task.members(new_id()))
    expanded = list(islice(members, MAX_ARRAY + 1))
    if len(expanded) > MAX_ARRAY:
        raise HTTPException(422, f"a submission has at most {MAX_ARRAY:,} jobs, with those of its arrays; submit fewer at once")
    return expanded


def _limit_patterns(words: Iterable[str], what: str) -> None:
    if sum("*" in word or "?" in word for word in set(words)) > MAX_PATTERNS:
        raise HTTPException(422, f"{what} at most {MAX_PATTERNS} different patterns")


def submission_order(
    jobs: Sequence[SubmittedJob], known: Callable[[str], Sequence[int]]
) -> tuple[list[int], list[tuple[int, ...]]]:
    """Order the jobs of a submission so that each comes behind its dependencies. Returns the order, and for each job its
    dependencies: the number of an existing job (from `known`), or -1 for the first of this order, -2 for the second, and so on.
    The name of an array means all its members. Cycles are refused."""
    places_of: dict[str, list[int]] = {}
    for place, job in enumerate(jobs):
        for name in {job.name, job.member.name if job.member else ""} - {""}:
            places_of.setdefault(name, []).append(place)
    order: list[int] = []
    at: dict[int, int] = {}  # positions in the order
    after: dict[int, tuple[int, ...]] = {}
    count = 0  # of all dependencies
    wanted = {str(name) for job in jobs for name in job.task.after} - places_of.keys()
    _limit_patterns(wanted, "after: the jobs of a submission have")
    known = cache(known)

    for begin in range(len(jobs)):
        path = [begin]
        while path:
            here = path[-1]
            names = [str(name) for name in jobs[here].task.after]
            missing = next((place for name in names for place in places_of.get(name, ()) if place not in at), None)
            if here in at:
                path.pop()
            elif missing is None:
                at[here] = len(order)
                order.append(here)
                numbers = (
                    [-1 - at[place] for place in places_of[name]] if name in places_of else known(name) for name in names
                )
                after[here] = tuple(dict.fromkeys(number for several in numbers for number in several))
                if (count := count + len(after[here])) > MAX_DEPENDENCIES:
                    raise HTTPException(
                        422,
                        f"after: the jobs of a submission depend on at most {MAX_DEPENDENCIES:,} jobs in all, counted for each;"
                        " let the jobs of an array depend on one job that depends on the other array",
                    )
                path.pop()
            elif missing in path:
                cycle = [*path[path.index(missing) :], missing]
                raise HTTPException(422, f"after: a cycle of jobs: {' after '.join(jobs[place].name for place in cycle)}")
            else:
                path.append(missing)
    return order, [after[place] for place in order]


def jobs_of(submitted: Iterable[tuple[SubmittedJob, Sequence[int]]], user: str) -> list[Job]:
    """Return the jobs of a submission, with their dependencies. More than `MAX_SUBMISSION_BYTES` of tasks are refused."""
    jobs, size = list[Job](), 0
    for one, after in submitted:
        jobs.append(one.task.job(one.name, user, after, one.member))
        size += len(jobs[-1].command) + len(jobs[-1].prediction)
        if size > MAX_SUBMISSION_BYTES:
            raise HTTPException(422, f"the tasks of a submission have at most {MAX_SUBMISSION_BYTES:,} bytes together")
    return jobs


class Submission(BaseModel):
    """A request to submit jobs, or (`dry_run`) only to check them."""

    model_config = ConfigDict(extra="forbid")

    jobs: Annotated[
        list[TaskSpec], Field(min_length=1, max_length=MAX_JOBS_PER_REQUEST, description="Tasks, as in task files.")
    ]
    dry_run: Annotated[bool, Field(description="Only check the jobs.")] = False


def feasible_types_of(plane: ControlPlane, jobs: Sequence[Job]) -> list[list[str]]:
    """Return the types that each job can run on. A job that suits no node, or whose code was not sent, is refused."""
    cluster = plane.loop.state.cluster
    types: list[list[str]] = []
    masks: dict[tuple[object, ...], int] = {}  # by request: the members of an array are alike
    for job in jobs:
        code = task_of(job).code
        if code and (plane.code is None or not plane.code.has(code)):
            raise HTTPException(422, f"the code of {job.name or 'the job'} was not sent: PUT /v1/code/{code} first")
        if job.prediction and cluster.types and (device := job_prediction(job.prediction).device) not in cluster.type_names:
            here = ", ".join(cluster.type_names)
            raise HTTPException(422, f"prediction: it is for {device!r}, and this cluster has {here}; predict for one of these")
        needs = (job.allowed_types, job.memory_gb, job.workers, job.cpus, job.host_memory_gb)
        if needs not in masks:
            masks[needs] = feasible_types(job, cluster)
        if not (mask := masks[needs]) and cluster.number_of_node:  # without nodes, the job waits for one
            why = "; ".join((infeasible_reason(job, cluster).text, *plane.hub.engines.problems))
            raise HTTPException(409, f"{job.name or 'the job'} can never run on this cluster: {why}")
        types.append([name for code, name in enumerate(cluster.type_names) if mask >> code & 1])
    return types


def reserve_names(state: State, user: str, jobs: Sequence[SubmittedJob], names: JobNames, claimed: set[str]) -> None:
    """Reserve the `claimed` names for a user. A submission with a name that is taken, or that it has twice, is refused."""
    seen: set[str] = set()
    arrays: set[str] = set()
    for job in jobs:
        array_name, array_id = (job.member.name, job.member.id) if job.member else ("", "")
        for name in (job.name, array_name if array_id not in arrays else ""):
            if name and (name in seen or names.taken(state, user, name)):
                raise HTTPException(409, f"the name {name!r} is taken by a job that has not ended; choose another name")
            seen.add(name)
        arrays.add(array_id)
    names.pending |= {(user, name) for name in claimed}
