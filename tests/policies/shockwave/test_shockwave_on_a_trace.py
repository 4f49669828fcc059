"""The preset on Shockwave's trace of 120 jobs, where it lies beside the clone; `benchmarks/shockwave_traces.py` has more."""

from __future__ import annotations

import json

import pytest
from trajectories import TRACES

from fairlead.config.schedulers import SchedulerConfig
from fairlead.core.cluster import Cluster
from fairlead.experiments.inputs import TraceFile, read_table
from fairlead.experiments.metrics import MetricOptions, Summary, summarize
from fairlead.experiments.simulate import Simulation, run_simulation
from fairlead.simulator.costs import Costs

pytestmark = pytest.mark.long

needs_traces = pytest.mark.skipif(not TRACES.exists(), reason="no ../shared/data/shockwave")


def ran(scheduler: SchedulerConfig) -> Summary:
    rates = read_table(TRACES / "tacc_throughputs.json")
    trace = TraceFile(next(TRACES.glob("120_*.trace")), regimes=TRACES / "trace120_regimes.json").read(rates)
    given = Simulation(trace, Cluster.parse("32xv100:32"), scheduler, rates, Costs(restart_s=20.0))
    found = summarize(run_simulation(given).record, MetricOptions(contention="static", makespan_from="zero"))
    assert found.finished == 120
    return found


@needs_traces
def test_120_jobs_that_adapt_end_in_time_and_fairly() -> None:
    found = ran(SchedulerConfig.preset("shockwave"))
    assert found.makespan_s <= 24_700
    assert found.average_jct_s <= 10_260
    assert found.worst_ftf <= 1.79
    assert round(120 * found.unfair_fraction) <= 8


@needs_traces
def test_with_the_program_of_the_text_no_job_ends_after_its_fair_end() -> None:
    found = ran(SchedulerConfig.from_data({"policy": "shockwave", "rounds": 120}))
    assert found.average_jct_s <= 8_100
    assert found.worst_ftf <= 0.9
    assert found.makespan_s <= 31_700


@needs_traces
@pytest.mark.parametrize(
    ("baseline", "authors"), [("gavel", "max_min_fairness"), ("themis", "finish_time_fairness"), ("ossp", "min_total_duration")]
)
def test_baselines_are_near_those_of_its_authors_simulator(baseline: str, authors: str) -> None:
    """The worst ratio is that of one job; it is the less near."""
    published = json.loads((TRACES.parents[1] / "expected" / "shockwave" / "tacc_32gpus.json").read_text())[authors]
    found = ran(SchedulerConfig.preset(f"{baseline}-as-in-shockwave"))
    assert found.makespan_s == pytest.approx(published["makespan"], rel=0.05)
    assert found.average_jct_s == pytest.approx(published["avg_jct"], rel=0.05)
    assert found.worst_ftf == pytest.approx(published["worst_ftf"], rel=0.13)
