"""Rates of jobs that run at another batch size than they declared: those of the size that they reported last."""

from __future__ import annotations

import numpy as np
import pytest

from fairlead.config.schedulers import SchedulerConfig, parse_part
from fairlead.core import events as ev
from fairlead.core.cluster import Cluster, Floats
from fairlead.core.job import BATCH_SIZE, Adaptations, Job, Regime, flags_of, kind_of
from fairlead.core.plan import RoundPlan
from fairlead.core.rng import stream
from fairlead.engine.apply import apply_event
from fairlead.engine.codec import encode
from fairlead.engine.journal import MemoryJournal
from fairlead.engine.state import State
from fairlead.engine.state_codec import load, save
from fairlead.estimators.oracle import Oracle
from fairlead.experiments.simulate import Faults, Simulation, run_simulation
from fairlead.simulator.costs import Costs
from fairlead.simulator.faults import Outage
from fairlead.testing.invariants import check_events
from fairlead.workloads.dynamics import Regimes
from fairlead.workloads.throughput_tables import ThroughputTable
from fairlead.workloads.trace import Trace

SIZES = (8, 16, 32)
TYPES = ("v100", "k80")


def table() -> ThroughputTable:
    """Steps per second fall with the batch size, on the slow type faster; gangs of two are 1.8 times as fast."""
    keys = [("", 1), *((kind_of(model, size), n) for model in "AB" for size in SIZES for n in (1, 2))]
    rows = [(1.0, 1.0)]
    for model, size, n in ((m, s, n) for m in (1.0, 3.0) for s in SIZES for n in (1, 2)):
        rows.append((model * 1.8 ** (n - 1) * (8 / size) ** 0.6, model * 0.4 * 1.8 ** (n - 1) * (8 / size) ** 0.9))
    alone = np.array(rows)
    paired = np.repeat(alone[:, None, :] * 0.6, len(keys), axis=1)
    return ThroughputTable(TYPES, tuple(keys), alone, alone * 0.8, paired)


def rates_of(state: State, oracle: Oracle) -> Floats:
    return state.snapshot().with_changes(estimate=oracle.rates).rates.of_jobs


def told(state: State, size: float, second: float) -> None:
    apply_event(state, ev.MetricsReported(second, BATCH_SIZE, np.array([1]), np.array([size])))


def test_the_oracle_knows_the_rate_at_the_batch_size_that_was_reported_last():
    known, cluster = table(), Cluster.parse("4xv100:4,4xk80:4")
    state, oracle = State(cluster), Oracle(known.for_types(cluster.type_names))
    kind = kind_of("B", 8)
    for number, name in enumerate(("as said", "changes")):
        apply_event(state, ev.JobSubmitted(0.0, number, Job(name, 0.0, 100.0, kind, 2)))
    apply_event(state, ev.RoundPlanned(RoundPlan(0.0, admitted=np.array([0, 1]))))
    own = oracle.table.alone[oracle.table.row(kind, 2)]
    assert rates_of(state, oracle).tolist() == [own.tolist(), own.tolist()]
    told(state, 32.0, 1.0)
    larger = oracle.table.alone[oracle.table.row(kind_of("B", 32), 2)] * 32 / 8
    assert np.allclose(rates_of(state, oracle), [own, larger], rtol=1e-12)
    assert np.allclose(rates_of(load(save(state)), Oracle(oracle.table)), [own, larger], rtol=1e-12)
    told(state, 24.0, 2.0)  # of which the table knows nothing
    assert np.allclose(rates_of(state, oracle), [own, own], rtol=1e-12)
    told(state, 8.0, 3.0)
    assert np.allclose(rates_of(state, oracle), [own, own], rtol=1e-12)
    assert state.adaptations.changes == 3


@pytest.mark.parametrize("size", [0.0, -1.0, 0.5, np.nan, np.inf, 1e300])
def test_what_cannot_be_a_batch_size_is_passed_over(size):
    noted = Adaptations()
    noted.note(0, float(size), 10.0, kind_of("A", 8), 0, 1)
    assert not noted


def adapting(count: int) -> Trace:
    rng = stream(11, "adapting")
    jobs, dynamics = [], {}
    for index in range(count):
        size = int(rng.choice(SIZES))
        at = round(float(rng.uniform(0, 4000)), 1)
        job = Job(f"job-{index}", at, round(float(rng.uniform(500, 5000)), 1), kind_of("AB"[index % 2], size), 1 + index % 2)
        jobs.append(job)
        if index % 3:
            parts = [(int(rng.choice(SIZES)), float(rng.uniform(0.1, 0.5))) for _ in range(4)]
            dynamics[job.name] = Regimes.of(job, parts)
    return Trace.of(jobs, dynamics=dynamics)


@pytest.mark.parametrize(
    "policy",
    [
        "las",
        "srtf",
        "max-min-fairness-perf",
        "finish-time-fairness-perf",
        "min-total-duration-perf",
        "gandiva-packing",
        "allox",
    ],
)
def test_rounds_are_skipped_exactly_where_rates_change_with_regimes(policy):
    logs = []
    for skip in (True, False):
        journal = MemoryJournal()
        given = Simulation(
            adapting(10),
            Cluster.parse("4xv100:4,4xk80:2"),
            SchedulerConfig(parse_part(policy), round_s=200.0),
            table(),
            Costs(restart_s=20.0),
            Faults((Outage(0, 2500.0, 3300.0),)),
            skip_quiet_rounds=skip,
        )
        run = run_simulation(given, journal=journal)
        assert not run.state.busy
        logs.append(journal.events)
    assert [encode(event) for event in logs[0]] == [encode(event) for event in logs[1]]
    assert check_events(logs[0], residents=2).digest() == run.state.digest()


def test_who_does_what_it_did_not_declare_is_flagged():
    fell = (Regime(8, 0.0), Regime(16, 5.0), Regime(8, 9.0))
    assert flags_of(Job("a", mode="static"), fell[:1], False) == ()
    assert flags_of(Job("a", mode="static"), fell[:2], False) == ("declared static, and its batch size became 16",)
    assert flags_of(Job("a", mode="accordion"), fell, False) == ()
    assert flags_of(Job("a", mode="gns"), fell, True) == (
        "did more steps than it declared",
        "declared gns, and its batch size fell to 8",
    )
