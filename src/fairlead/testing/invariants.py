"""What must hold after every event of every run, whatever the scheduler: checked on a journal as it is replayed."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from fairlead.core import events as ev
from fairlead.core.cluster import Floats
from fairlead.core.job import Phase
from fairlead.core.plan import RoundPlan
from fairlead.core.reasons import Code
from fairlead.core.snapshot import Snapshot
from fairlead.engine.apply import apply_event
from fairlead.engine.codec import decode, encode
from fairlead.engine.decide import why_waiting
from fairlead.engine.state import State


class InvariantBroken(AssertionError):
    """Something that must always hold does not."""


def check_events(events: Iterable[ev.Event], *, residents: int = 1, real: bool = False, hosts: bool = False) -> State:
    """Replay events, checking the state after each; also that each can be encoded and decoded. Returns the last state. `real`
    jobs report progress between saves too, so a report is not their resume point. `hosts`: also check that no node's CPUs and
    memory are exceeded, which holds under placements that count them."""
    stream = iter(events)
    opened = next(stream)
    if not isinstance(opened, ev.JournalOpened):
        raise InvariantBroken("a journal begins with a JournalOpened event")
    state, copy = State(opened.cluster), State(opened.cluster)
    saved: Floats = np.zeros(0)
    for event in (opened, *stream):
        jobs = state.all_jobs()
        before = jobs.steps_done.copy()
        # Progress of a co-located job is reported again when a neighbour comes or goes, which saves nothing: its saved
        # progress is that at its start.
        begun = jobs.running if residents > 1 else np.zeros(len(jobs), dtype=np.bool_)
        saved = np.where(begun, np.pad(saved, (0, len(jobs) - len(saved))), jobs.base_steps)
        apply_event(state, event)
        apply_event(copy, decode(encode(event)))
        check_state(state, residents=residents)
        if hosts:
            check_hosts(state)
        # Progress of co-located jobs is also reported when a neighbour comes or goes, which saves nothing.
        _check_progress(state, event, before, saved if residents == 1 and not real else np.zeros(len(saved)))
    if state.digest() != copy.digest():
        raise InvariantBroken("events that were encoded and decoded give another state")
    return state


def check_state(state: State, *, residents: int = 1) -> None:
    """Accelerators, gangs and phases agree with each other. Any number of sessions may share an accelerator."""
    jobs = state.all_jobs()
    held, serving = np.zeros(state.cluster.size, dtype=np.int64), np.zeros(state.cluster.size, dtype=np.int64)
    for number, phase, size, type_ in zip(*(c.tolist() for c in (jobs.number, jobs.phase, jobs.held, jobs.type))):
        places = state.device_map.of(number)
        name = state.job_of[number].name
        if phase != Phase.RUNNING:
            _require(len(places) == 0 and size == 0, f"{name} is {Phase(phase).name.lower()} and holds {places.tolist()}")
            continue
        _require(len(places) == size > 0, f"{name} runs with {len(places)} GPUs instead of {size}: not a whole gang")
        _require(len(set(places.tolist())) == size, f"{name} holds a GPU twice: {places.tolist()}")
        _require(bool((state.cluster.type_of[places] == type_).all()), f"{name} runs on several types")
        held[places] += 1
        if (route := state.routes.get(number)) is not None:
            serving[places] += 1
            _require(list(route.accelerators) == places.tolist(), f"{name} is routed to {route.accelerators}, not {places}")
    _require(set(state.routes) <= set(state.running.tolist()), "a job has a route and does not run")
    _require(bool((held == state.device_map.occupancy).all()), "occupancy does not add up")
    held -= np.maximum(serving - 1, 0)
    _require(int(held.max(initial=0)) <= residents, f"a GPU holds {held.max(initial=0)} jobs, at most {residents}")
    _require(not ((serving > 0) & (held > 1)).any(), "a GPU that serves holds other jobs too")
    alive = jobs.number[jobs.phase <= int(Phase.RUNNING)]
    known = np.sort(np.concatenate((state.live, state.queue)))
    _require(np.array_equal(alive, known), "the lists of live and queued jobs do not match their phases")


def check_hosts(state: State) -> None:
    """No node has more workers on it than it has CPUs and memory for."""
    cluster, jobs = state.cluster, state.all_jobs().runners
    owner, place = state.device_map.places(jobs.number)
    needs = jobs.of(owner)
    for what, each, there in (
        ("CPUs", needs.cpus, cluster.node_cpus),
        ("GB of memory", needs.host_memory_gb, cluster.node_memory_gb),
    ):
        used = np.bincount(cluster.node_of[place], each, len(cluster.nodes))
        for node in np.flatnonzero(used > there * (1 + 1e-6)).tolist():
            _require(False, f"{used[node]:g} {what} are in use on {cluster.nodes[node].name}, which has {there[node]:g}")


def check_reasons(plan: RoundPlan, view: Snapshot) -> None:
    """Every waiting job has a reason with a text, and the numbers in it are right."""
    if np.isin(plan.launches.jobs, view.jobs.runners.number).all():  # no job failed as it started
        idle = np.bincount(view.cluster.type_of[view.up & (view.device_map.occupancy == 0)], minlength=len(plan.free)).tolist()
        _require(list(plan.free) == idle, f"a plan says that {list(plan.free)} GPUs are free, by type, and {idle} are")
    waiting = [*view.queued.number.tolist(), *view.jobs.number[~view.jobs.running].tolist()]
    for number in waiting:
        reason = why_waiting(plan, number, view.job_of[number], view)
        _require(bool(str(reason)), f"{view.job_of[number].name} waits without a reason")
        if reason.code in (Code.WAITING_FOR_RESOURCES, Code.NOT_SELECTED):
            facts = dict(reason.facts)
            enough = float(facts["needed"]) <= float(facts.get("one_type", facts["free"]))
            _require(enough == (reason.code is Code.NOT_SELECTED), f"{view.job_of[number].name} waits for no reason: {reason}")


def _check_progress(state: State, event: ev.Event, before: Floats, saved: Floats) -> None:
    """Steps are lost only to interruptions and to the cost of saving, and never beyond the last checkpoint."""
    after = state.all_jobs().steps_done
    same = after[: len(before)]
    lost = same < before - 1e-6 * np.maximum(before, 1.0)
    if not lost.any():
        return
    if isinstance(event, ev.JobsFailed):  # reported a little after it happened; until then they seemed to run
        lost[np.isin(state.all_jobs().number[: len(before)], event.jobs)] = False
    if isinstance(event, ev.JobRequeued):  # a finished job begins again
        lost[state.all_jobs().number[: len(before)] == event.number] = False
    allowed = isinstance(event, (ev.JobsInterrupted, ev.ProgressReported)) or not lost.any()
    _require(allowed, f"{type(event).__name__} took steps away from {np.flatnonzero(lost).tolist()}")
    beyond = same < saved - 1e-6 * np.maximum(saved, 1.0)
    if isinstance(event, ev.JobsInterrupted):
        _require(not beyond.any(), f"jobs {np.flatnonzero(beyond).tolist()} fell back behind their last checkpoint")


def _require(good: bool, message: str) -> None:
    if not good:
        raise InvariantBroken(message)
