"""Gangs that stand on more nodes than they need are measured apart, and what was measured can be read out again."""

from __future__ import annotations

import pytest

from fairlead.config.schedulers import SchedulerConfig
from fairlead.estimators.measured import EXTRAPOLATED, Measured, measured_rates
from fairlead.testing import Harness
from fairlead.testing.builders import cluster, job, random_table


@pytest.mark.parametrize(("placement", "spread"), [("consolidated", False), ("spread", True)])
def test_a_gang_is_remembered_by_how_it_stood(placement, spread):
    table = random_table(1, ("v100",), kinds=1)
    scheduler = SchedulerConfig.from_data({"policy": "fifo", "estimator": "measured", "placement": placement, "rounds": 60.0})
    made = (
        Harness(scheduler, table=table).cluster(cluster("v100:2,v100:2")).submit(job("gang").of_kind("kind-0", 1e4).workers(2))
    )
    made.round()
    made.round()
    rate = float((table.spread if spread else table.alone)[table.row("kind-0", 2), 0])
    assert list(measured_rates(made.state.observations)) == [("kind-0", 2, "v100", spread, pytest.approx(rate))]
    seen = Measured().rates(made.state.snapshot())
    assert seen.alone[0, 0] == seen.spread[0, 0] == pytest.approx(rate)  # what was not seen is like what was
    assert seen.uncertainty is not None
    assert seen.spread_uncertainty is not None
    sure, guessed = (seen.spread_uncertainty, seen.uncertainty) if spread else (seen.uncertainty, seen.spread_uncertainty)
    assert (sure[0, 0], guessed[0, 0]) == (0.0, EXTRAPOLATED)
    made.run()


def test_kinds_with_odd_names_are_read_out_as_they_are():
    facts = {
        "measured 4 × a × b on the go (batch size 3) on k80 spread": 2.0,
        "measured 1 × x\ny on v100": 3.0,
        "rate x|1 on v100": {"seen": []},
    }
    assert list(measured_rates(facts)) == [
        ("a × b on the go (batch size 3)", 4, "k80", True, 2.0),
        ("x\ny", 1, "v100", False, 3.0),
    ]
