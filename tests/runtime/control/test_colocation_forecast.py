"""Looks ahead from a cluster whose jobs share accelerators: what company costs there is what its scheduler believes, and who
shares already goes on as it runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from emulated_agents import Scene

from fairlead.core.job import Phase
from fairlead.engine.state import State
from fairlead.engine.state_codec import load, save
from fairlead.experiments.live_inputs import measured_table, with_colocated_rates
from fairlead.experiments.lookahead import ForecastOptions, forecast
from fairlead.experiments.resimulate import exogenous_inputs
from fairlead.runtime.protocol.orders import Progress

USES = {"small": (30.0, 4.0), "other": (90.0, 4.0)}
RATES = {
    "rates": [{"kind": kind, "workers": 1, "type": "v100", "placement": "consolidated", "steps_per_s": 2.0} for kind in USES]
}


SCHEDULER = {"policy": "horus", "estimator": {"name": "monitored", "usage": USES}, "rounds": 10.0}


def shared() -> Scene:
    """Two on one accelerator, and a third behind them."""
    scene = Scene("v100:1", policy="horus", estimator=SCHEDULER["estimator"])
    scene.join()
    for name, kind in zip("abc", ("small", "other", "small")):
        scene.job(name, steps=1000, kind=kind)
    scene.at(0.0)
    scene.backend.report(0, [Progress(number, 1, 20, 0, 1.5) for number in (0, 1)])
    scene.at(10.0)
    assert [scene.phase(number) for number in range(3)] == [Phase.RUNNING, Phase.RUNNING, Phase.WAITING]
    return scene


def state_of(scene: Scene, **other: str) -> State:
    state = load(save(scene.loop.state))
    state.scheduler = SCHEDULER | other
    return state


def test_who_shares_is_looked_ahead_of_and_company_costs_what_is_believed():
    ahead = forecast(state_of(shared()), RATES, ForecastOptions(simulations=2))
    first, second, third = (one.without_arrivals for one in ahead.jobs)
    assert ahead.completed == 3
    assert (first.starts_s, second.starts_s) == (0.0, 0.0)
    assert third.starts_s >= min(first.ends_s, second.ends_s)
    assert 490 < first.ends_s < second.ends_s < third.ends_s, "980 steps are left, of 2 in a second alone"


def test_a_table_has_the_rates_in_company_that_estimation_believes():
    state = state_of(shared())
    table = with_colocated_rates(measured_table(RATES, state), state)
    small, other = (table.row(kind, 1) for kind in USES)
    assert table.paired[small, small, 0] == pytest.approx(2.0, rel=0.05), "two light ones do not feel each other"
    assert 1.0 < table.paired[other, other, 0] < 1.9 < table.paired[small, other, 0] <= 2.0 + 1e-9
    half = table.paired / 2
    measured = with_colocated_rates(replace(table, paired=half), state)
    assert np.array_equal(measured.paired, half), "what was measured stays"


def test_who_shares_goes_on_as_it_runs_where_nobody_believes_anything_of_company():
    state = state_of(shared(), policy="fifo", estimator="measured")
    table = with_colocated_rates(measured_table(RATES, state), state)
    small, other = (table.row(kind, 1) for kind in USES)
    assert (table.paired[small, other, 0], table.paired[other, small, 0]) == (1.5, 1.5)
    assert table.paired[small, small, 0] == 0
    assert forecast(state, RATES, ForecastOptions(simulations=0)).completed == 1


def test_the_same_days_are_simulated_again_with_company_as_it_was_believed_to_be():
    opened, *events = shared().journal
    world, _ = exogenous_inputs((replace(opened, scheduler=SCHEDULER), *events))
    rows = [row for row, (kind, _) in enumerate(world.table.keys) if kind in USES]
    assert all(world.table.paired[one, other, 0] > 0 for one in rows for other in rows)
