"""A state that was saved is the state it was, and goes on as it would have gone on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.config.schedulers import SchedulerConfig
from fairlead.core.errors import JournalError
from fairlead.core.events import Event, JobCancelled, JobSubmitted, JournalOpened, MetricsReported, ObservationsRecorded
from fairlead.core.job import Job
from fairlead.engine.apply import apply_event, replay_events
from fairlead.engine.state import State
from fairlead.engine.state_codec import freeze, load, save
from fairlead.simulator.costs import Costs
from fairlead.testing import cluster
from fairlead.testing.contracts import SCENES, every_event, play

SCHEDULERS: dict[str, dict[str, Any]] = {
    "plain": {"policy": "las"},
    "with a memo": {"policy": "max-min-fairness"},
    "sharing accelerators": {"policy": "gandiva-packing"},
    "sharing, with a memo": {"policy": {"name": "max-min-fairness-perf", "space_sharing": True}},
    "learning": {"policy": "gandiva-packing", "estimator": "online"},
}


def comparable(value: Any) -> Any:
    """Arrays as their type, shape and bytes (NaN is like NaN), tuples as the lists that a journal makes of them."""
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, dict):
        return {key: comparable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [comparable(item) for item in value]
    return value


def contents(state: State) -> dict[str, Any]:
    """All attributes there are, so that a new one which is not saved fails here; room beyond the last job is nobody's."""
    size = state.next_number
    parts = {**vars(state), "_queue": state.queue, "_arrived": []}
    del parts["_signature_columns"], parts["_template"]  # a cache, and what views are made from
    store, device_map = parts.pop("store"), parts.pop("device_map")
    parts["columns"] = {name: column[:size] for name, column in store.columns.items()}
    parts["metrics"] = {name: store.metrics[name][:size] for name in sorted(store.metrics)}
    parts["last"], parts["layers"], parts["marks"] = device_map.last[:size], device_map.layers, device_map._marks.any()
    parts["_history"] = state._history[: state._finished_count]
    return {name: comparable(part) for name, part in parts.items()}


def run_of(name: str, scene: int) -> list[Event]:
    where, seed = SCENES[scene]
    stages = SchedulerConfig.from_data(SCHEDULERS[name]).build
    _, events = play(stages, where, seed, costs=Costs(10.0, 30.0, 5.0, 600.0), faults=True)
    with_metrics: list[Event] = []
    for event in events:
        with_metrics.append(event)
        if type(event).__name__ == "ProgressReported":
            with_metrics.append(MetricsReported(event.time, "loss", event.jobs, np.sqrt(event.steps)))
    return with_metrics


RUNS: dict[tuple[str, int], list[Event]] = {}


@pytest.mark.long
@settings(max_examples=40)
@given(st.sampled_from(sorted(SCHEDULERS)), st.integers(0, len(SCENES) - 1), st.floats(0, 1))
def test_a_saved_state_is_the_same_and_goes_on_the_same(name: str, scene: int, share: float) -> None:
    key = (name, scene)
    events = RUNS.get(key) or RUNS.setdefault(key, run_of(name, scene))
    moment = 1 + int(share * (len(events) - 1))
    state = replay_events(events[:moment])
    data, frozen = save(state), freeze(state)
    again = load(data)
    assert again.digest() == state.digest()
    assert contents(again) == contents(state)
    assert save(again) == data
    for event in events[moment:]:
        apply_event(state, event)
        apply_event(again, event)
    assert again.digest() == state.digest()
    assert contents(again) == contents(state)
    assert frozen() == data, "a frozen state has moved on with the other"


@pytest.mark.parametrize("moment", range(1, len(every_event()) + 1))
def test_a_state_can_be_saved_after_any_kind_of_event(moment: int) -> None:
    state = replay_events(every_event()[:moment])
    again = load(save(state))
    assert contents(again) == contents(state)
    for event in every_event()[moment:]:
        apply_event(state, event)
        apply_event(again, event)
        assert again.digest() == state.digest()


def test_the_runs_above_have_all_that_can_be_lost() -> None:
    """Memos, facts, metrics, shared accelerators and refusals occur in what is saved; else the property would say little."""
    seen: set[str] = set()
    for name in SCHEDULERS:
        state = State(cluster(SCENES[1][0]))
        for event in run_of(name, 1):
            apply_event(state, event)
            seen |= {"memo"} if state.memo else set()
            seen |= {"learned"} if state.observations else set()
            seen |= {"metrics"} if state.store.metrics else set()
            seen |= {"shared"} if state.device_map.shared else set()
    seen |= {"refusals"} if replay_events(every_event()).refusals else set()
    assert seen == {"memo", "learned", "metrics", "shared", "refusals"}


def test_facts_about_who_has_ended_are_not_read_from_a_snapshot_of_before() -> None:
    come = [JobSubmitted(0.0, number, Job(f"j{number}")) for number in range(2)]
    facts = {"speed of 0": [1, 2], "speed of 1": [3, 4], "use of a": 5}
    events = [JournalOpened(0.0, cluster("v100:2"), {}), *come, ObservationsRecorded(1.0, facts), JobCancelled(2.0, 0)]
    replayed, before = replay_events(events), replay_events(events)
    before.observations = facts
    again = load(save(before))
    assert again.observations == {"speed of 1": [3, 4], "use of a": 5}
    assert again.digest() == replayed.digest()


def test_every_damaged_byte_is_noticed() -> None:
    data = save(replay_events(every_event()))
    for at in range(len(data)):
        with pytest.raises(JournalError):
            load(data[:at] + bytes([data[at] ^ 0x20]) + data[at + 1 :])
    for cut in range(0, len(data), 7):
        with pytest.raises(JournalError):
            load(data[:cut])


def test_another_version_is_refused_by_its_number() -> None:
    data = save(State(cluster("v100:2")))
    with pytest.raises(JournalError, match="a saved state of version 7; this Fairlead reads versions 2 and 3"):
        load(data.replace(b"fairlead state 3\n", b"fairlead state 7\n", 1))
