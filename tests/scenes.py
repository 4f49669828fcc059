"""A moment of a cluster in a few words, for tests of stages: who is there, who runs where, what they could see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fairlead.core import events as ev
from fairlead.core.cluster import Cluster
from fairlead.core.device_map import ragged
from fairlead.core.job import TIMED, Job
from fairlead.core.plan import Launches, Placed, RoundPlan, Selection
from fairlead.core.snapshot import Snapshot
from fairlead.engine.apply import apply_event
from fairlead.engine.state import State
from fairlead.estimators.oracle import Oracle
from fairlead.workloads.throughput_tables import ThroughputTable


def table_of(types: Sequence[str], rates: Mapping[tuple[str, int], Sequence[float]], **others: np.ndarray) -> ThroughputTable:
    """Rates by (kind, workers), a number for each type; spread as consolidated and no sharing, unless given."""
    keys = ((TIMED, 1), *rates)
    alone = np.array([[1.0] * len(types), *rates.values()], dtype=np.float64)
    given = {"spread": alone, "paired": np.zeros((len(keys), len(keys), len(types))), **others}
    return ThroughputTable(tuple(types), keys, alone, given["spread"], given["paired"], "made up")


def state_of(
    cluster: Cluster,
    jobs: Sequence[Job],
    running: Mapping[int, Sequence[int]] | None = None,
    *,
    started_s: float = 0.0,
    waiting: Sequence[int] | None = None,
    down: Sequence[int] = (),
    done: Mapping[int, float] | None = None,
) -> State:
    """Jobs by their place in the list; `running` tells who holds which accelerators. All are inside, or those `waiting`."""
    state = State(cluster)
    for number, job in enumerate(jobs):
        apply_event(state, ev.JobSubmitted(0.0, number, job))
    running = running or {}
    inside = sorted({*running, *(range(len(jobs)) if waiting is None else waiting)})
    launches = Launches.none()
    if running:
        offsets, places = ragged(np.array(place, dtype=np.int64) for place in running.values())
        launches = Launches(np.array(list(running)), cluster.type_of[places[offsets[:-1]]], offsets, places)
    apply_event(state, ev.RoundPlanned(RoundPlan(started_s, admitted=np.array(inside, dtype=np.int64), launches=launches)))
    if running:
        numbers = np.array(list(running))
        steps = np.array([(done or {}).get(number, 0.0) for number in running])
        ones = np.ones(len(numbers))
        apply_event(state, ev.ProgressReported(started_s, numbers, steps, ones, ones * started_s))
    for node in down:
        apply_event(state, ev.NodeLost(started_s, node))
    return state


def view_of(state: State, time: float = 0.0, table: ThroughputTable | None = None, **how: Any) -> Snapshot:
    """What a stage sees, with true rates (by default: of jobs that last so many seconds)."""
    known = table or ThroughputTable.timed(state.cluster.type_names)
    return state.snapshot(time, **how).with_changes(estimate=Oracle(known).rates)


def selection_of(jobs: Sequence[int], types: Sequence[int], workers: Sequence[int], **others: object) -> Selection:
    columns = (np.array(column, dtype=np.int64) for column in (jobs, types, workers))
    return Selection(*columns, **others)


def places_in(placed: Placed) -> dict[int, list[int]]:
    """Who is launched where."""
    starts = placed.launches
    bounds = starts.offsets.tolist()
    return {n: sorted(starts.accelerators[a:b].tolist()) for n, a, b in zip(starts.jobs.tolist(), bounds, bounds[1:])}
