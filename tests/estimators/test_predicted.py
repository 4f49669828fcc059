"""Company by prediction: what two do to each other follows from how busy each keeps an accelerator."""

from __future__ import annotations

import numpy as np
import pytest

from fairlead.config.schedulers import Part, SchedulerConfig
from fairlead.core import events as ev
from fairlead.core.cluster import AcceleratorType, Cluster, Node
from fairlead.core.errors import InputError
from fairlead.core.job import Job
from fairlead.core.plan import BUSY, TAKEN_GB, Launches, RoundPlan
from fairlead.engine.apply import apply_event
from fairlead.engine.state import State
from fairlead.estimators.colocated_rates import has_usage_observations, usage_observations
from fairlead.estimators.predicted import Predicted
from fairlead.experiments.simulate import Simulation, run_simulation
from fairlead.models.interference import Slowdown
from fairlead.prediction.measured_profiles import multiprocessor_use, shipped_profiles
from fairlead.prediction.predictor import shipped_predictor
from fairlead.testing.builders import cluster
from fairlead.workloads.throughput_tables import MeasuredTraining, colocation_table
from fairlead.workloads.trace import Trace
from scenes import state_of

KINDS = ("a", "b", "c")
TABLE = colocation_table("gpu", [MeasuredTraining(kind, 10.0, 50.0, 1.0) for kind in KINDS], lambda one, other: 1.2)
HERE = Cluster((Node("n", "gpu", 4),), (AcceleratorType("gpu", 16.0),))
MODEL = Slowdown((1.0, 0.0, 0.2), (0.2, 0.4, 0.5, 0.1, 0.5, 0.1))


def rates(where: Cluster = HERE, **parameters):
    made = Predicted(TABLE, {"a": (30.0, 4.0), "b": (90.0, 10.0)}, MODEL.below, MODEL.above, **parameters)
    return made.rates(State(where).snapshot(0.0))


def row(kind: str) -> int:
    return TABLE.row(kind, 1)


def test_rates_in_company_follow_from_both_utilizations():
    paired = rates().paired[:, :, 0]
    assert paired[row("a"), row("b")] == pytest.approx(10 / MODEL.slowdowns(np.array([30.0, 90.0]))[0])
    assert paired[row("b"), row("a")] == pytest.approx(10 / MODEL.slowdowns(np.array([30.0, 90.0]))[1])
    assert paired[row("a"), row("a")] == pytest.approx(10 / (1 + 0.2 * 0.3))
    assert np.array_equal(rates().alone, TABLE.alone)


def test_who_does_not_fit_or_is_unknown_has_no_company():
    found = rates()
    assert found.paired[row("b"), row("b"), 0] == 0, "20 of 16 GB"
    assert not found.paired[row("c")].any()
    assert not found.paired[:, row("c")].any()
    assert found.usage.utilization[[row("a"), row("b"), row("c")], 0].tolist() == [0.3, 0.9, 1.0]
    assert found.usage.memory_gb[[row("a"), row("c")], 0].tolist() == [4.0, np.inf]


def test_a_measured_set_can_be_what_is_known():
    kind = "mobilenet_v1@32:16"
    table = colocation_table("gpu", [MeasuredTraining(one, 10.0, 50.0, 1.0) for one in (kind, "a")], lambda one, other: 1.2)
    known = Predicted(table, {"a": (30.0, 4.0)}, profiles="h200").rates(State(HERE).snapshot(0.0))
    assert known.usage.utilization[table.row(kind, 1), 0] == pytest.approx(0.15)
    assert known.paired[table.row(kind, 1), table.row("a", 1), 0] > 0


def test_predictions_are_about_the_types_that_were_measured():
    assert not rates(types=("other",)).paired.any()
    assert np.isinf(rates(types=("other",)).usage.memory_gb).all()


def test_predicted_pairs_can_be_what_gavel_shares_by():
    policy = Part("max-min-fairness-perf", {"space_sharing": True})
    uses = {"usage": dict.fromkeys(KINDS, (30.0, 2.0))}
    trace = Trace.of([Job(f"j{i}", 0.0, 36000.0, KINDS[i % 3]) for i in range(8)])
    lengths = {}
    for estimator in (Part("predicted", uses), Part("predicted", {"usage": {}})):
        run = run_simulation(Simulation(trace, HERE, SchedulerConfig(policy, estimator=estimator), TABLE))
        lengths[bool(estimator.parameters["usage"])] = run.record.jobs.ended_s.max()
    assert lengths[True] < 6000, "two to an accelerator; without a prediction, in turns:"
    assert lengths[False] >= 7200


def test_each_way_of_sharing_has_its_own_costs_and_a_word_on_how_sure_they_are():
    heavy = {"a": (95.0, 4.0), "b": (95.0, 4.0)}
    view, pair = State(HERE).snapshot(0.0), (row("a"), row("b"), 0)
    by = {mode: Predicted(TABLE, heavy, sharing=mode).rates(view) for mode in ("time-slicing", "mps")}
    for mode, found in by.items():
        assert 10 / found.paired[pair] == pytest.approx(shipped_predictor().slowdowns(np.array([95.0, 95.0]), mode)[0])
        assert found.paired_uncertainty[pair] == pytest.approx(
            shipped_predictor().slowdown[mode].spread_above * found.paired[pair] / 10
        )
    assert by["mps"].paired[pair] > by["time-slicing"].paired[pair]


def test_through_mps_it_counts_what_the_other_holds_where_that_is_known_of_both():
    heavy = dict.fromkeys("abc", (98.0, 2.0))
    view = State(HERE).snapshot(0.0)
    plain = Predicted(TABLE, heavy, sharing="mps").rates(view)
    finer = Predicted(TABLE, heavy, sharing="mps", sm_usage={"a": (20.0, 30.0), "b": (80.0, 30.0)}).rates(view)
    small, large = (10 / finer.paired[row(one), row(other), 0] for one, other in ("ab", "ba"))
    want = shipped_predictor().slowdowns(np.array([98.0, 98.0]), "mps", np.array([20.0, 80.0]), np.array([3e-5, 3e-5]))
    assert [small, large] == pytest.approx(want.tolist())
    assert small > 1.4 > large
    unknown = finer.paired[row("a"), row("c"), 0]
    assert unknown == plain.paired[row("a"), row("c"), 0], "of one of them nothing is known"
    assert finer.paired_uncertainty[row("a"), row("b"), 0] != plain.paired_uncertainty[row("a"), row("b"), 0]
    turns = Predicted(TABLE, heavy, sm_usage={"a": (20.0, 30.0), "b": (80.0, 30.0)}).rates(view)
    assert np.array_equal(turns.paired, Predicted(TABLE, heavy).rates(view).paired), "by turns it does not count"


def test_a_measured_set_knows_what_its_configurations_hold():
    one, other = "lstm-650x2@128:64", "gpt2-small@512:2"
    table = colocation_table("gpu", [MeasuredTraining(kind, 10.0, 50.0, 1.0) for kind in (one, other)], lambda one, other: 1.2)
    found = Predicted(table, profiles="h200", sharing="mps").rates(State(HERE).snapshot(0.0))
    busy = np.array([shipped_profiles().alone[kind].utilization for kind in (one, other)])
    held = [multiprocessor_use()[kind] for kind in (one, other)]
    want = shipped_predictor().slowdowns(
        busy, "mps", np.array([hold.multiprocessors for hold in held]), np.array([hold.kernel_s for hold in held])
    )
    assert 10 / found.paired[table.row(one, 1), table.row(other, 1), 0] == pytest.approx(want[0])


def test_what_is_held_is_counted_or_else_said_by_the_graph():
    known = multiprocessor_use()
    assert known.keys() == shipped_profiles().alone.keys()
    assert 80 <= sum(hold.counted for hold in known.values()) < len(known)
    assert all(0 <= hold.multiprocessors <= 100 and hold.kernel_s > 0 for hold in known.values())
    counted = {name: one.multiprocessors for name, one in shipped_profiles().alone.items() if one.multiprocessors is not None}
    assert all(known[name].multiprocessors == value for name, value in counted.items())


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        ({"sm_usage": {"a": (101.0, 1.0)}}, "sm_usage"),
        ({"sm_usage": {"a": (50.0, 0.0)}}, "sm_usage"),
        ({"sharing": "turns"}, "sharing"),
        ({"above": (1.0,) * 6}, "below"),
        ({"usage": {"a": (101.0, 1.0)}}, "usage"),
        ({"usage": {"a": (50.0, -1.0)}}, "usage"),
        ({"below": (1.0, 2.0)}, "below"),
        ({"profiles": "h20"}, "profiles"),
        ({"above": (1.0,) * 5 + (np.inf,)}, "above"),
        ({"below": (1e308,) * 3, "above": (1.0,) * 6}, "below"),
        ({"below": (1.0,) * 3, "above": (-1e308,) * 6}, "above"),
    ],
)
def test_bad_predictions_are_told(parameters, field):
    with pytest.raises(InputError, match=f"field '{field}'"):
        Predicted(TABLE, **parameters)


def told(state: State, second: float, busy: float, memory_gb: float) -> None:
    for name, value in ((BUSY, busy), (TAKEN_GB, memory_gb)):
        apply_event(state, ev.MetricsReported(second, name, np.array([0]), np.array([value])))


def test_what_was_seen_on_one_type_is_nothing_known_of_another():
    state = state_of(cluster("v100:1,k80:1"), [Job("x", kind="a", steps=1e6), Job("y", kind="b", steps=1e6)], {0: [0]})
    told(state, 1.0, 0.3, 6.0)
    assert usage_observations(state.snapshot(2.0)) == {"use of a on v100": [30.0, 6.0]}
    one = np.array([0])
    moved = RoundPlan(3.0, suspended=one, launches=Launches(one, np.array([1]), np.array([0, 1]), np.array([1])))
    fork = State.from_snapshot(state.snapshot(2.0))
    for each in (state, fork):
        apply_event(each, ev.RoundPlanned(moved))
        assert usage_observations(each.snapshot(4.0)) == {}
        told(each, 5.0, 0.9, 7.0)
        assert usage_observations(each.snapshot(6.0)) == {"use of a on k80": [90.0, 7.0]}


def test_a_device_nobody_measured_is_told_in_a_sentence():
    with pytest.raises(InputError, match=r"'profiles' is 'nosuch': expected a device whose profiles ship \(known: h200\)"):
        Predicted(TABLE, profiles="nosuch")


def test_uses_are_known_once_agents_have_seen_one():
    assert not has_usage_observations({"measured 1 × net on v100": 2.0})
    assert has_usage_observations({"use of net on v100": [30.0, 4.0]})
