"""What a real run shows of this machine, for a simulation of another one: steps per second at every batch size, and what a
start costs. Pure: events in, values out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import numpy as np

from fairlead.core import events as ev
from fairlead.core.job import kind_of, model_of
from fairlead.engine.state import State
from fairlead.experiments.launch_observer import LaunchObserver, PlacementKey, startup_costs
from fairlead.simulator.costs import Costs
from fairlead.workloads.throughput_tables import MeasuredRate, ThroughputTable, draft_table


@dataclass(frozen=True)
class Measured:
    """What the simulator is told: rates, and what a first and a later start cost whoever it is."""

    table: ThroughputTable
    costs: Costs


def measured(events: Sequence[ev.Event], meant: ThroughputTable) -> Measured:
    """`meant` are the rates at which jobs were to sleep. What nobody was seen at counts as slower than meant by as much as the
    others are. Costs are of jobs that kept their batch size: what they would have done in the time is known."""
    opened = events[0]
    assert isinstance(opened, ev.JournalOpened)
    types = opened.cluster.type_names
    watched, seen = LaunchObserver(State(opened.cluster)), defaultdict[PlacementKey, list[float]](list)
    for _, moment in groupby(events, key=lambda event: event.time):  # a size is told behind the rate that is the first of it
        told = set[int]()
        for event in moment:
            watched.observe(event)
            told |= set(event.jobs.tolist()) if isinstance(event, ev.ProgressReported) else set()
        for place, rate in _announced(watched, sorted(told)):
            seen[place].append(rate)
    medians = {place: float(np.median(rates)) for place, rates in seen.items()}
    table = _table(medians, meant.for_types(types), types)
    grown = {number for number, past in watched.state.adaptations.regimes.items() if len(past) > 1}
    costs = startup_costs([one for one in watched.launches if one.job not in grown], table, types)
    return Measured(table, replace(costs, by_kind={}))


def _announced(watched: LaunchObserver, jobs: Iterable[int]) -> Iterable[tuple[PlacementKey, float]]:
    """Rates as of the batch sizes that jobs have announced, in steps of them."""
    state, a = watched.state, watched.state.columns
    for number in jobs:
        place, past, rate = watched.place(number), state.adaptations.regimes.get(number, ()), float(a["rate"][number])
        if place is None or not rate > 0 or (len(past) > 1 and a["base_steps"][number] < past[-1].from_steps):
            continue
        kind, workers, type_, spread = place
        if past:
            kind, rate = kind_of(model_of(kind), past[-1].batch_size), rate * past[0].batch_size / past[-1].batch_size
        yield (kind, workers, type_, spread), rate


def _table(medians: dict[PlacementKey, float], meant: ThroughputTable, types: Sequence[str]) -> ThroughputTable:
    def as_meant(kind: str, workers: int, type_: str) -> float:
        row = meant.row_of.get((kind, workers))
        return 0.0 if row is None else float(meant.alone[row, types.index(type_)])

    known = {place: rate for place, rate in medians.items() if as_meant(*place[:3]) > 0}
    slower = float(np.median([rate / as_meant(*place[:3]) for place, rate in known.items()])) if known else 1.0
    rates = [
        MeasuredRate(kind, workers, name, False, slower * as_meant(kind, workers, name))
        for kind, workers in meant.keys
        for name in types
        if kind and as_meant(kind, workers, name) > 0
    ]
    told = {rate[:4]: rate for rate in rates} | {place: MeasuredRate(*place, rate) for place, rate in known.items()}
    return draft_table(told.values(), types, Path("measured")).finish().for_types(types)
