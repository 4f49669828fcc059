"""The smallest changes that would start a waiting job at the next decision, one of each kind, found by search over forks. Each
candidate is decided on by the cluster's own scheduler; candidates of a kind are tried in the order of their size, so the first
that starts the job is the smallest."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import combinations

from fairlead.core.cluster import Node
from fairlead.core.errors import FairleadError
from fairlead.core.job import Job
from fairlead.experiments.fork import QUOTAS, Fork, ForkChanges, ForkRun, run_fork

MAX_MORE = 64
"""GPUs that are added, or by which a quota is raised, at most."""

MAX_WEIGHT = 16
MAX_ENDED = 3
"""Jobs that would have to end, at most."""

MAX_POOL = 60
"""Running jobs of which sets are tried."""


@dataclass(frozen=True)
class Delay:
    """A job that would end later."""

    name: str
    user: str
    seconds: float


@dataclass(frozen=True)
class SmallestChange:
    """A change that starts the job: its kind, its size, in words, and the jobs that it would delay; None: not simulated."""

    kind: str
    size: float
    text: str
    changes: ForkChanges
    delays: tuple[Delay, ...] | None = None


@dataclass(frozen=True)
class FoundChanges:
    """The changes, one of each kind that has one. `starts`: without any change. `unsearched` are kinds for which there was no
    time."""

    starts: bool
    changes: tuple[SmallestChange, ...] = ()
    unsearched: tuple[str, ...] = ()


def smallest_changes(
    fork: Fork,
    number: int,
    *,
    budget_s: float = math.inf,
    delays: bool = True,
    on_found: Callable[[FoundChanges], None] = lambda found: None,
) -> FoundChanges:
    """Search for the smallest changes of each kind that start a job which waits.

    Args:
        budget_s: Seconds for the search. Kinds that it does not reach are `unsearched`.
        delays: Also simulate ahead, to find the jobs that each change would delay.
        on_found: Gets what is known so far, whenever that is more: one decision may take longer than the budget.
    """
    began, job = time.monotonic(), fork.start.view.job_of[number]

    def starts(changes: ForkChanges) -> bool:
        key = job.name if changes.submit else number
        return key in fork.launched_next(changes)

    found, unsearched = list[SmallestChange](), list[str]()

    def report(ahead: Iterable[str] = (), starts: bool = False) -> FoundChanges:
        known = FoundChanges(starts, tuple(found), (*unsearched, *ahead))
        on_found(known)
        return known

    report(_KINDS)
    if number in fork.launched_next(ForkChanges()):
        return report(starts=True)
    kinds = list(_KINDS)
    for place, (kind, candidates) in enumerate(_KINDS.items()):
        for size, text, changes in candidates(fork, number, job):
            if time.monotonic() - began > budget_s:
                unsearched.append(kind)
                break
            try:
                enough = starts(changes)
            except FairleadError:  # such a cluster cannot be, or its scheduler cannot decide
                continue
            if enough:
                found.append(SmallestChange(kind, size, text, changes))
                break
        report(kinds[place + 1 :])
    if delays and found:
        found = _with_delays(fork, number, found, lambda: time.monotonic() - began < budget_s)
    return report()


_Candidate = tuple[float, str, ForkChanges]


def _fewer_gpus(fork: Fork, number: int, job: Job) -> Iterator[_Candidate]:
    for workers in range(job.workers - 1, 0, -1):
        changes = ForkChanges(without=(number,), submit=(replace(job, workers=workers),))
        yield job.workers - workers, f"submit it again with {_gpus(workers)} instead of {job.workers}", changes


def _other_types(fork: Fork, number: int, job: Job) -> Iterator[_Candidate]:
    names = [name for name in fork.start.view.cluster.type_names if job.allowed_types and name not in job.allowed_types]
    for name in names:
        changes = ForkChanges(without=(number,), submit=(replace(job, allowed_types=(*job.allowed_types, name)),))
        yield 1.0, f"submit it again and also allow {name}", changes


def _nodes_back(fork: Fork, number: int, job: Job) -> Iterator[_Candidate]:
    view = fork.start.view
    nodes = [view.cluster.nodes[node] for node in sorted({*view.cluster.node_of[~view.up].tolist()})]
    for node in sorted((one for one in nodes if not one.removed), key=lambda one: one.accelerators):
        text = f"bring node {node.name} back ({_gpus(node.accelerators)})"
        yield float(node.accelerators), text, ForkChanges(restore=(node.name,))


def _more_gpus(fork: Fork, number: int, job: Job) -> Iterator[_Candidate]:
    cluster = fork.start.view.cluster
    types = [name for name in cluster.type_names if not job.allowed_types or name in job.allowed_types]
    for more in range(1, min(MAX_MORE, max(8, 2 * job.workers)) + 1):
        for name in types:
            node = Node(f"new-{name}", name, more)
            yield float(more), f"add a node with {more} × {name}", ForkChanges(add=(node,))


def _quota(fork: Fork, number: int, job: Job) -> Iterator[_Candidate]:
    admission = fork.start.scheduler.admission
    link = next((one for one in admission.links or (admission,) if one.name in QUOTAS), None)
    limit = None if link is None else link.parameters.get("limits", {}).get(job.user, link.parameters.get("default"))
    if link is None or limit is None:
        return
    what = "GPUs" if link.name == QUOTAS[0] else "jobs"
    for more in range(1, MAX_MORE + 1):
        text = f"raise the quota of user {job.user!r} by {more}, to {limit + more} {what}"
        yield float(more), text, ForkChanges(quotas={job.user: limit + more})


def _priority(fork: Fork, number: int, job: Job) -> Iterator[_Candidate]:
    higher = {other.priority for other in fork.start.view.job_of.values() if other.priority >= job.priority}
    for priority in sorted({p for one in higher for p in (one, one + 1)} - {job.priority}):
        changes = ForkChanges(updates={number: {"priority": priority}})
        yield float(priority - job.priority), f"give it priority {priority} instead of {job.priority}", changes


def _weight(fork: Fork, number: int, job: Job) -> Iterator[_Candidate]:
    for factor in range(2, MAX_WEIGHT + 1):
        changes = ForkChanges(updates={number: {"weight": factor * job.weight}})
        yield float(factor), f"give it weight {factor * job.weight:g} instead of {job.weight:g}", changes


def _ended_jobs(fork: Fork, number: int, job: Job) -> Iterator[_Candidate]:
    """Sets of running jobs, the fewest first, then those with the fewest GPUs."""
    running = fork.start.view.jobs.runners
    held = sorted(zip(running.held.tolist(), running.number.tolist()))
    names = fork.start.view.job_of
    for count in range(1, MAX_ENDED + 1):
        pool = held if count == 1 else held[:MAX_POOL]
        for group in sorted(combinations(pool, count), key=lambda jobs: sum(gpus for gpus, _ in jobs)):
            ended = tuple(n for _, n in group)
            listed = ", ".join(names[n].name for n in ended)
            text = f"end {'job' if count == 1 else f'{count} jobs'} {listed} ({_gpus(sum(gpus for gpus, _ in group))})"
            yield float(count), text, ForkChanges(without=ended)


_KINDS: dict[str, Callable[[Fork, int, Job], Iterator[_Candidate]]] = {
    "fewer GPUs": _fewer_gpus,
    "another GPU type": _other_types,
    "a node back": _nodes_back,
    "quota": _quota,
    "priority": _priority,
    "more GPUs": _more_gpus,
    "weight": _weight,
    "jobs that end": _ended_jobs,
}


def _gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"


def _with_delays(fork: Fork, number: int, found: list[SmallestChange], in_time: Callable[[], bool]) -> list[SmallestChange]:
    """The changes with the jobs that would end later, by a simulation without further arrivals."""

    def run(one: Fork) -> ForkRun | None:
        done = run_fork(one, keep_running=lambda simulated_s: in_time())
        return done if in_time() else None

    control = run(fork)
    if control is None:
        return found
    with_delays = []
    for change in found:
        changed = run(fork.changed(change.changes))
        late = None if changed is None else _delays(control, changed, number)
        with_delays.append(replace(change, delays=late))
    return with_delays


def _delays(control: ForkRun, changed: ForkRun, number: int) -> tuple[Delay, ...]:
    """Jobs that end later, those that lose most first. One that is ended by the change is not among them."""
    late = [
        Delay(job.name, job.user, changed.jobs[key].ends_s - job.ends_s)
        for key, job in control.jobs.items()
        if key != number and key in changed.jobs and job.ends_s < math.inf and changed.jobs[key].ends_s > job.ends_s + 1.0
    ]
    return tuple(sorted(late, key=lambda one: (-one.seconds, one.name)))
