"""The preset on Shockwave's trace of 120 jobs, where it lies beside the clone; `benchmarks/shockwave_traces.py` has more."""

from __future__ import annotations

import pytest
from trajectories import TRACES

from fairlead.config import SchedulerConfig
from fairlead.core.cluster import Cluster
from fairlead.experiments.inputs import TraceFile, read_table
from fairlead.experiments.metrics import MetricOptions, summarize
from fairlead.experiments.simulate import Simulation, run_simulation
from fairlead.simulator.costs import Costs


@pytest.mark.skipif(not TRACES.exists(), reason="no ../shared/data/shockwave")
def test_120_jobs_that_adapt_end_in_time_and_fairly() -> None:
    rates = read_table(TRACES / "tacc_throughputs.json")
    trace = TraceFile(next(TRACES.glob("120_*.trace")), regimes=TRACES / "trace120_regimes.json").read(rates)
    given = Simulation(trace, Cluster.parse("32xv100:32"), SchedulerConfig.preset("shockwave"), rates, Costs(restart_s=20.0))
    found = summarize(run_simulation(given).record, MetricOptions(contention="static", makespan_from="zero"))
    assert found.finished == 120
    assert found.makespan_s <= 24_700
    assert found.average_jct_s <= 10_260
    assert found.worst_ftf <= 1.79
    assert round(120 * found.unfair_fraction) <= 8
