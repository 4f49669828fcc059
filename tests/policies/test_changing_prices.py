"""Prices that change: the cost policies follow them, and the cost of a run is their integral. Cases by hand, and a second
opinion second by second."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.config.clusters import read_cluster
from fairlead.config.schedulers import Part, SchedulerConfig
from fairlead.core import events as ev
from fairlead.core.allocation import AllocationPending
from fairlead.core.cluster import AcceleratorType, Cluster, Node
from fairlead.core.errors import InputError, JournalError
from fairlead.core.job import Job
from fairlead.engine.codec import decode, encode
from fairlead.experiments.metrics import summarize
from fairlead.experiments.simulate import Simulation, run_simulation
from fairlead.policies.allocation.mechanism.round_mechanism import RoundMechanism
from fairlead.policies.allocation.sum_objectives import MinCost
from fairlead.workloads.trace import Trace
from scenes import state_of, table_of, view_of

TABLE = table_of(("fast", "slow"), {("m", 1): [2.0, 1.0]})
# Steps per dollar on fast and slow: 2/3 and 1; from 1000 s on 4/3 and 1; from 1500 s on 2/5 and 1.
SPOT = Cluster(
    (Node("f", "fast", 1), Node("s", "slow", 1)),
    (
        AcceleratorType("fast", price_per_hour=3.0, price_changes=((1000.0, 1.5), (1500.0, 5.0))),
        AcceleratorType("slow", price_per_hour=1.0),
    ),
)


def simulated(
    policy: Part, cluster: Cluster = SPOT, steps: float = 2500.0, deadline_s: float = float("inf"), round_s: float = 100.0
):
    trace = Trace((Job("one", 0.0, steps, "m", deadline_s=deadline_s),))
    mechanism = Part("gavel-rounds", {"work_conserving": False, "stickiness": 0.0})
    scheduler = SchedulerConfig(policy, round_s=round_s, mechanism=mechanism)
    return run_simulation(Simulation(trace, cluster, scheduler, table=TABLE))


@pytest.mark.parametrize("policy", ["min-cost", "min-cost-slo"])
@pytest.mark.parametrize("round_s", [100.0, 0.0])
def test_a_job_moves_when_another_type_becomes_cheaper(policy, round_s):
    """1,000 steps on slow, 1,000 on fast from 1000 to 1500 s, and the last 500 on slow until 2000 s."""
    run = simulated(Part(policy), round_s=round_s)
    assert run.record.jobs.ended_s.tolist() == pytest.approx([2000.0])
    assert run.record.jobs.moves.tolist() == [2]
    assert summarize(run.record).cost == pytest.approx((1000 * 1.0 + 500 * 1.5 + 500 * 1.0) / 3600)


def test_a_change_between_rounds_counts_from_the_next_round_on():
    """Rounds of 300 s: the job is on fast from 1200 to 1500 s."""
    run = simulated(Part("min-cost"), round_s=300.0)
    assert run.record.jobs.ended_s.tolist() == [1500.0 + (2500 - 1200 - 600)]
    assert summarize(run.record).cost == pytest.approx((1200 * 1.0 + 300 * 1.5 + 700 * 1.0) / 3600)


def test_without_changes_the_job_stays_on_the_cheapest_type():
    still = Cluster(SPOT.nodes, (AcceleratorType("fast", price_per_hour=3.0), SPOT.types[1]))
    run = simulated(Part("min-cost"), still)
    assert (run.record.jobs.ended_s.tolist(), run.record.jobs.moves.tolist()) == ([2500.0], [0])
    assert summarize(run.record).cost == pytest.approx(2500 / 3600)


def test_a_deadline_is_met_at_any_price():
    run = simulated(Part("min-cost-slo", {"margin_s": 0.0}), deadline_s=1300.0)
    assert run.record.jobs.ended_s[0] <= 1300.0
    assert summarize(run.record).cost > 2500 / 3600


def test_recomputations_are_still_at_least_the_shortest_interval_apart():
    scheduler = SchedulerConfig(
        Part("min-cost"), round_s=100.0, mechanism=Part("gavel-rounds", {"work_conserving": False, "min_interval_s": 1400.0})
    )
    trace = Trace((Job("one", 0.0, 2500.0, "m"),))
    run = run_simulation(Simulation(trace, SPOT, scheduler, table=TABLE))
    # On fast from 1400 s on, and after the change at 1500 s until the end: 2,500 = 1,400 + 2 · 550.
    assert run.record.jobs.ended_s.tolist() == [1950.0]
    assert summarize(run.record).cost == pytest.approx((1400 * 1.0 + 100 * 1.5 + 450 * 5.0) / 3600)


@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(0, 9)), max_size=6, unique_by=lambda change: change[0]),
    st.integers(0, 9),
    st.integers(0, 80),
    st.integers(0, 80),
)
@settings(max_examples=200)
def test_the_cost_is_the_sum_of_the_price_of_every_second(changes, first, one, other):
    changes = tuple(sorted((float(second), float(price)) for second, price in changes))
    cluster = Cluster((Node("n", "v100", 1),), (AcceleratorType("v100", price_per_hour=float(first), price_changes=changes),))
    begin, end = sorted((one, other))
    cost = cluster.cost_until(0, np.array([begin, end], dtype=np.float64))
    by_second = sum(float(cluster.prices_at(float(second))[0]) for second in range(begin, end))
    assert (cost[1] - cost[0]) * 3600 == pytest.approx(by_second)
    assert cluster.price_changes_s == [second for second, _ in changes]


def test_a_journal_has_price_changes_only_where_there_are_some():
    opened = ev.JournalOpened(0.0, SPOT, {"policy": "fifo"}, "t", None)
    again = decode(encode(opened))
    assert isinstance(again, ev.JournalOpened)
    assert again.cluster == SPOT
    fast, slow = orjson.loads(encode(opened))["cluster"]["types"]
    assert fast["price_changes"] == [[1000.0, 1.5], [1500.0, 5.0]]
    assert "price_changes" not in slow
    for wrong in (b"[[1500.0,5.0],[1000.0,1.5]]", b"[[1000.0,-1.5]]", b"[[1000.0]]"):
        with pytest.raises(JournalError):
            decode(encode(opened).replace(b"[[1000.0,1.5],[1500.0,5.0]]", wrong))


def test_a_cluster_file_has_a_series_of_prices_or_a_csv_file_of_it(tmp_path: Path):
    (tmp_path / "spot.csv").write_text("second,price_per_hour,zone\n0,3,a\n1000,1.5,b\n1500,5,a\n")
    file = tmp_path / "cluster.yaml"
    nodes = "nodes: [{type: fast, accelerators: 1}]\n"
    expected = AcceleratorType("fast", price_per_hour=3.0, price_changes=((1000.0, 1.5), (1500.0, 5.0)))
    for series in ("[[0, 3], [1000, 1.5], [1500, 5]]", "spot.csv"):
        file.write_text(f"types: {{fast: {{price_per_hour: {series}}}}}\n{nodes}")
        assert read_cluster(str(file)).types == (expected,)
    file.write_text(f"types: {{fast: {{price_per_hour: 2}}}}\n{nodes}")
    assert read_cluster(str(file), [expected]).types == (AcceleratorType("fast", price_per_hour=2.0),)
    file.write_text(f"types: {{fast: {{memory_gb: 2}}}}\n{nodes}")
    assert read_cluster(str(file), [expected]).types == (AcceleratorType("fast", 2.0, 3.0, expected.price_changes),)


@pytest.mark.parametrize(
    ("series", "said"),
    [
        ("[[5, 3]]", r"cluster\.yaml:1: field 'price_per_hour' is .*: expected prices from second 0 on, at ascending seconds"),
        ("[[0, 3], [9, 2], [9, 1]]", "at ascending seconds"),
        ("[]", "prices from second 0 on"),
        ("[[0, 3, 1]]", "a second of at least 0 and a price"),
        ("[[0, -3]]", "a price of at least 0"),
        ("cheap", r"a price of at least 0, a list of \[second, price\], or a \.csv file"),
        ("none.csv", "none.csv: expected a readable CSV file"),
        ("bad.csv", r"bad\.csv:3: field 'price_per_hour' is 'free': expected a number of at least 0"),
        ("odd.csv", r"odd\.csv:2: field 'price_per_hour' is '1_0': expected a number of at least 0"),
        ("other.csv", "expected the columns second and price_per_hour"),
    ],
)
def test_wrong_prices_are_refused_with_their_place(tmp_path: Path, series: str, said: str):
    (tmp_path / "bad.csv").write_text("second,price_per_hour\n0,3\n5,free\n")
    (tmp_path / "odd.csv").write_text("second,price_per_hour\n0,1_0\n")
    (tmp_path / "other.csv").write_text("time,price\n0,3\n")
    file = tmp_path / "cluster.yaml"
    file.write_text(f"types: {{v100: {{price_per_hour: {series}}}}}\nnodes: [{{type: v100, accelerators: 1}}]\n")
    with pytest.raises(InputError, match=said):
        read_cluster(str(file))


class _Late:
    """Min-cost whose second answer comes a call later, for the moment of the question."""

    def __init__(self) -> None:
        self.inner, self.calls, self.asked = MinCost(), 0, None

    def changes_s(self, view):
        return self.inner.changes_s(view)

    def allocate(self, view, memo):
        self.calls += 1
        if self.calls == 2:
            self.asked = view
            raise AllocationPending("late")
        asked, self.asked = self.asked or view, None
        allocation, memo = self.inner.allocate(asked, memo)
        return replace(allocation, moment=asked) if asked is not view else allocation, memo


def test_a_change_between_a_question_and_its_late_answer_is_asked_about_again():
    mechanism, late, memo, types = RoundMechanism(work_conserving=False), _Late(), None, {}
    jobs = [Job("one", 0.0, 1e6, "m"), Job("two", 0.0, 1e6, "m")]
    for time, there in ((0, jobs), (900, jobs[:1]), (1000, jobs[:1]), (1100, jobs[:1])):
        view = view_of(state_of(SPOT, there, {}), float(time), TABLE, round_s=100.0)
        selection, memo = mechanism.select(late, view, memo)
        types[time] = [SPOT.types[at].name for at in selection.types]
    assert types[1100] == ["fast"]
