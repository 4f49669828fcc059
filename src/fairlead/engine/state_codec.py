"""A state as bytes and back, so that a restart need not read a journal from its beginning.

The bytes are numpy arrays and a few events encoded by `codec`, compressed, behind a version and a checksum. A column that is
missing in the bytes gets its default; where that would be wrong, the version changes."""

from __future__ import annotations

import hashlib
import io
import math
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import astuple
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from fairlead.core import events as ev
from fairlead.core.cluster import BackoffPeriod, Drain
from fairlead.core.columns import FLOAT_COLUMNS, INT_COLUMNS
from fairlead.core.device_map import DeviceMap
from fairlead.core.errors import FairleadError, JournalError
from fairlead.core.job import Adaptations, EndedRun, Failure, Phase
from fairlead.core.plan import RoundPlan
from fairlead.core.snapshot import NameTable
from fairlead.engine.codec import decode, encode
from fairlead.engine.codec_v1 import migrate_state
from fairlead.engine.fairness_ledger import FairnessLedger
from fairlead.engine.interference_monitor import InterferenceRecord
from fairlead.engine.state import State
from fairlead.engine.transitions import drop_ended

VERSION = 3
_OLDEST_READABLE = 2
"""The earlier version that is also read; no release wrote version 1."""

_MAGIC = b"fairlead state %d\n"
_CHECKSUM = 16

Arrays = Mapping[str, npt.NDArray[Any]]


def save(state: State) -> bytes:
    """Everything that events have changed in a state. The same state gives the same bytes."""
    return freeze(state)()


def freeze(state: State) -> Callable[[], bytes]:
    """Copy the present state, which is quick; return a function that encodes the copy, which is slow, in any thread."""
    arrays, fixed, jobs = _arrays(state), _state_as_events(state), tuple(state.job_of.items())

    def encode_frozen() -> bytes:
        events = (*fixed, *(ev.JobSubmitted(job.submitted_s, number, job) for number, job in jobs))
        payload = io.BytesIO()
        np.savez(payload, events=_text(b"\n".join(map(encode, events))), **arrays)  # type: ignore[arg-type]
        body = zlib.compress(payload.getbuffer(), 1)
        return _MAGIC % VERSION + _checksum(body) + body

    return encode_frozen


def load(data: bytes) -> State:
    """The state that was saved; it behaves exactly like the saved one."""
    magic, line, _ = data[:64].partition(b"\n")
    if not line or not magic.startswith(b"fairlead state "):
        raise JournalError("not a saved state")
    if magic + line not in (_MAGIC % VERSION, _MAGIC % _OLDEST_READABLE):
        found = magic.removeprefix(b"fairlead state ").decode(errors="replace")
        raise JournalError(f"a saved state of version {found}; this Fairlead reads versions {_OLDEST_READABLE} and {VERSION}")
    start = len(magic) + len(line)
    body = data[start + _CHECKSUM :]
    if data[start : start + _CHECKSUM] != _checksum(body):
        raise JournalError("a damaged state: its checksum is wrong")
    try:
        with np.load(io.BytesIO(zlib.decompress(body)), allow_pickle=False) as arrays:
            return _state({name: arrays[name] for name in arrays.files}, migrate=magic + line != _MAGIC % VERSION)
    except (KeyError, ValueError, TypeError, IndexError, zlib.error, zipfile.BadZipFile, FairleadError) as error:
        raise JournalError(f"a damaged state: {type(error).__name__} {error}") from error


def _checksum(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=_CHECKSUM).digest()


def _state_as_events(state: State) -> tuple[ev.Event, ...]:
    """The parts of a state that are neither jobs nor arrays, as events that restore them."""
    return (
        ev.JournalOpened(0.0, state.cluster, state.scheduler, journal=state.journal, origin=state.origin),
        ev.MemoChanged(0.0, state.memo),
        ev.ObservationsRecorded(0.0, state.observations),
        ev.RoundPlanned(RoundPlan(0.0, refused=tuple(state.refusals.items()), routes=state.routes)),
    )


def _arrays(state: State) -> Arrays:
    size, store, metrics = state.next_number, state.store, sorted(state.store.metrics)
    about = {
        "time": float(state.time),
        "any_min_run": state.any_min_run,
        "given": state.has_launch_overrides,
        "observation_count": state.observation_count,
        "ints": tuple(INT_COLUMNS),
        "floats": tuple(FLOAT_COLUMNS),
        "metrics": metrics,
        "adaptations": state.adaptations.to_data(),
        "last_failure": {str(number): astuple(failure) for number, failure in sorted(state.last_failure.items())},
        "ended_runs": {str(number): list(map(astuple, runs)) for number, runs in sorted(state.ended_runs.items())},
        "rerun_started_s": {str(number): second for number, second in sorted(state.rerun_started_s.items())},
        "held": {str(number): by for number, by in sorted(state.held.items())},
        "lost_work": {str(number): lost for number, lost in sorted(state.lost_work.items())},
        "reported_steps": {str(number): steps for number, steps in sorted(state.reported_steps.items())},
        "backoffs": {str(node): list(backoff) for node, backoff in sorted(state.backoffs.items())},
        "drains": {str(node): list(drain) for node, drain in sorted(state.drains.items())},
        "node_changes": state.node_changes,
        "lost_since": {str(node): second for node, second in sorted(state.lost_since.items())},
        "outages": state.outages,
        "forecasts": state.forecasts,  # infinity is null
        "interference": state.interference.to_data(),
        "groups_since": {str(group): number for group, number in state.groups.since.items()},
        "codes": {column: tuple(codes) for column, codes in state._codes.items()},
    }
    changing = {
        "ints": store.ints[:, :size],
        "floats": store.floats[:, :size],
        "last": state.device_map.last[:size],
        "present": state.present,
        "drained": state.drained,
        "live": state.live,
        "running": state.running,
        "queue": state.queue,
        "service_by_type": state.service_by_type,
        "history": state._history[: state._finished_count],
    }
    return {
        "about": _text(orjson.dumps(about)),
        "metrics": np.array([store.metrics[name][:size] for name in metrics]).reshape(len(metrics), size),
        "layers": state.device_map.layers,
        **({} if state.ledger is None else {"ledger": _text(state.ledger.save())}),
        **{name: array.copy() for name, array in changing.items()},
    }


def _state(arrays: Arrays, *, migrate: bool) -> State:
    about = orjson.loads(arrays["about"].tobytes())
    if migrate:
        about = migrate_state(about)
    opened, memo, observed, planned, *submitted = map(decode, arrays["events"].tobytes().split(b"\n"))
    if not (
        isinstance(opened, ev.JournalOpened)
        and isinstance(memo, ev.MemoChanged)
        and isinstance(observed, ev.ObservationsRecorded)
        and isinstance(planned, ev.RoundPlanned)
    ):
        raise ValueError("its events are not in the expected order")
    state = State(opened.cluster)
    state.time, state.any_min_run, state.observation_count = about["time"], about["any_min_run"], about["observation_count"]
    state.scheduler, state.memo, state.origin = opened.scheduler, memo.memo, opened.origin
    state.journal, state.has_launch_overrides = opened.journal, about.get("given", True)
    state.refusals, state.routes = dict(planned.plan.refused), planned.plan.routes
    state.last_failure = {int(number): Failure(*how) for number, how in about.get("last_failure", {}).items()}
    runs_of = about.get("ended_runs", {}).items()
    state.ended_runs = {int(number): tuple(EndedRun(*run) for run in runs) for number, runs in runs_of}
    state.rerun_started_s = {int(number): second for number, second in about.get("rerun_started_s", {}).items()}
    state.job_of = {event.number: event.job for event in submitted if isinstance(event, ev.JobSubmitted)}
    state.predictions = {job.kind: job.prediction for _, job in sorted(state.job_of.items()) if job.prediction}
    size = arrays["ints"].shape[1]
    state.next_number = size
    state.store.reserve(size)
    for block in ("ints", "floats"):
        for name, column in zip(about[block], arrays[block]):
            state.store.arrays[name][:size] = column
    state.observations = drop_ended(state, observed.values)  # earlier versions kept observations of ended jobs
    for name, column in zip(about["metrics"], arrays["metrics"]):
        state.store.metric(name)[:size] = column
    state.weighted = bool((state.store.arrays["weight"][:size] != 1.0).any())
    state.device_map = DeviceMap.of_layers(arrays["layers"], arrays["last"])
    state.drains = {int(node): Drain(*drain) for node, drain in about.get("drains", {}).items()}
    state.node_changes = about.get("node_changes", 0)
    state.lost_since = {int(node): second for node, second in about.get("lost_since", {}).items()}
    state.forecasts = [tuple(math.inf if value is None else value for value in row) for row in about.get("forecasts", ())]
    state.outages = [(lost_s, back_s) for lost_s, back_s in about.get("outages", ())]
    backoffs = {int(node): BackoffPeriod(*backoff) for node, backoff in about.get("backoffs", {}).items()}
    state.set_availability(arrays["present"], arrays["drained"], backoffs)
    state.live, state.running, state._queue = arrays["live"], arrays["running"], arrays["queue"]
    state.held = {int(number): by for number, by in about.get("held", {}).items()}
    state.reported_steps = {int(number): steps for number, steps in about.get("reported_steps", {}).items()}
    state.lost_work = {int(number): (run_s, times) for number, (run_s, times) in about.get("lost_work", {}).items()}
    if "interference" in about:
        state.interference = InterferenceRecord.from_data(about["interference"])
    if "adaptations" in about:
        state.adaptations = Adaptations.from_data(about["adaptations"])
    state.dependents = [number for number in state.queue.tolist() if state.job_of[number].after]
    _restore_groups(state, {int(group): number for group, number in about["groups_since"].items()})
    state.service_by_type = arrays["service_by_type"]
    state.add_history(arrays["history"])
    state._codes = {column: {name: code for code, name in enumerate(names)} for column, names in about["codes"].items()}
    state._names = NameTable(*(tuple(codes) for codes in state._codes.values()))
    if "ledger" in arrays:
        state.ledger = FairnessLedger.load(arrays["ledger"].tobytes())
    elif state.journal:  # earlier versions had none: it begins here
        state.ledger = FairnessLedger.beginning_with(state)
    return state


def _restore_groups(state: State, since: Mapping[int, int]) -> None:
    """Rebuild the members of each group."""
    a, groups = state.store.arrays, state.groups
    groups.since = dict(since)
    grouped = [(int(a["group"][number]), number) for number, job in state.job_of.items() if job.group]
    members = [(group, number) for group, number in grouped if number >= since[group]]
    for group, number in members:
        groups.sizes[group] = groups.sizes.get(group, 0) + 1
        groups.alive[group] = groups.alive.get(group, 0) + bool(a["phase"][number] <= int(Phase.RUNNING))
    for group, number in members:
        whole = a["phase"][number] == int(Phase.FINISHED) and a["base_steps"][number] >= a["steps"][number]
        if whole and groups.alive[group]:
            groups.completed_trials.setdefault(group, set()).add(number)


def _text(data: bytes) -> npt.NDArray[np.uint8]:
    return np.frombuffer(data, dtype=np.uint8)
