"""Plain functions on a state: its digest, what jobs did that they had not declared, and a state that continues a snapshot.
They read and build states; what events do to a state is in `state.py`."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from fairlead.core.columns import ALL_COLUMNS
from fairlead.core.job import Phase, flags_of
from fairlead.core.snapshot import Snapshot
from fairlead.engine.codec import encode_memo

if TYPE_CHECKING:
    from fairlead.engine.state import State


def continue_from(state: State, view: Snapshot) -> None:
    """Fill a new state with the live jobs of a snapshot, under the same numbers; jobs that have ended are not in it."""
    state.time, state.any_min_run, state.weighted = view.time, view.any_min_run, view.weighted
    state.given = True
    state.set_availability(view.present.copy(), view.drained.copy(), view.backoffs)
    state.observations, state.observation_count, state.routes = view.observations, view.observation_count, view.routes
    numbers = np.concatenate((view.jobs.number, view.queued.number))
    state.next_number = view.next_number
    state.store.reserve(state.next_number)
    state.store.arrays["phase"][: state.next_number] = int(Phase.FINISHED)  # who is not in the view
    state.store.arrays["phase"][view.lost[0]] = view.lost[1]
    for columns in (view.jobs, view.queued, view.completed_trials):
        for name in ALL_COLUMNS:
            state.store.arrays[name][columns.number] = getattr(columns, name)
        for name in columns.metrics:
            state.store.metric(name)[columns.number] = columns.metric(name)
    _continue_groups(state, view)
    state.followers = [number for number in view.queued.number.tolist() if view.job_of[number].after]
    state.live, state._queue = view.jobs.number.copy(), view.queued.number.copy()
    state.running = view.jobs.runners.number.copy()
    state.job_of = {number: view.job_of[number] for number in sorted(numbers.tolist())}
    state.adaptations = view.adaptations.of(state.job_of)
    state.device_map = view.device_map.copy()
    state.device_map.reserve(state.next_number)
    state.add_history(view.history)
    state._names = view.names
    codes = (view.names.kinds, view.names.users, view.names.accounts, view.names.groups)
    state._codes = {column: {name: code for code, name in enumerate(known)} for column, known in zip(state._codes, codes)}


def _continue_groups(state: State, view: Snapshot) -> None:
    """A snapshot has the size of each group, its live jobs, and its completed trials."""
    state.groups.sizes = dict(view.group_sizes)
    state.groups.since = dict.fromkeys(view.group_sizes, 0)
    there = Counter((*view.jobs.group.tolist(), *view.queued.group.tolist()))
    state.groups.there = {group: there[group] for group in view.group_sizes}
    for group, number in zip(view.completed_trials.group.tolist(), view.completed_trials.number.tolist()):
        state.groups.completed_trials.setdefault(group, set()).add(number)


def undeclared_changes(state: State) -> dict[int, tuple[str, ...]]:
    """By number, what jobs did that they had not declared."""
    every = state.all_jobs()
    planned = {number for number, job in state.job_of.items() if job.schedule}
    suspects = {*every.number[every.overran].tolist(), *state.adaptations.regimes, *planned}
    columns = (every.overran, every.steps_done, every.phase > Phase.RUNNING)
    over, done, ended = (dict(zip(every.number.tolist(), column.tolist())) for column in columns)
    regimes = state.adaptations.regimes
    found = {n: flags_of(state.job_of[n], regimes.get(n, ()), over[n], done[n], ended=ended[n]) for n in sorted(suspects)}
    return {number: flags for number, flags in found.items() if flags}


def digest_of(state: State) -> str:
    """A fingerprint of everything that events determine and decisions can rest on; equal states have equal ones."""
    digest = hashlib.blake2b(digest_size=16)
    for name in ALL_COLUMNS:
        digest.update(np.ascontiguousarray(state.store.arrays[name][: state.next_number]).tobytes())
    for metric in sorted(state.store.metrics):
        digest.update(metric.encode() + state.store.metrics[metric][: state.next_number].tobytes())
    last = state.device_map.last[: state.next_number]
    history, services = state._history[: state._finished_count], state.service_by_type
    parts = (state.up, state.capacity, state.device_map.occupancy, last, state.live, state.queue, history, services)
    for part in parts:
        digest.update(np.ascontiguousarray(part).tobytes())
    large = (state.store.arrays["held"][: state.next_number] > 1).nonzero()[0].tolist()
    gangs = [(number, state.device_map.of(number).tolist()) for number in large]
    digest.update(repr((float(state.time), gangs, sorted(state.job_of.items()), sorted(state.refusals), state._codes)).encode())
    digest.update(encode_memo(state.memo) + encode_memo(state.scheduler))
    if state.any_drained:
        digest.update(state.present.tobytes() + state.drained.tobytes())
    if state.backoffs:
        digest.update(repr(sorted(state.backoffs.items())).encode())
    if state.journal:
        digest.update(state.journal.encode())
    if state.adaptations:
        digest.update(encode_memo(state.adaptations.to_data()))
    if state.groups.since:
        digest.update(repr(sorted(state.groups.since.items())).encode())
    if state.observations:
        digest.update(encode_memo({"observation_count": state.observation_count, "values": state.observations}))
    if state.routes:
        digest.update(repr(sorted((number, route) for number, route in state.routes.items())).encode())
    return digest.hexdigest()
