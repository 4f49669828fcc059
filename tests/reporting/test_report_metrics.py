"""The figures of a summary, each against a case small enough to work out by hand."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest
from made_up import PRICES, device_intervals, outcomes, played, record

from fairlead.core.cluster import Cluster
from fairlead.core.errors import InputError
from fairlead.core.job import Phase
from fairlead.experiments.metrics import MetricOptions, measure_from, summarize
from fairlead.experiments.run_record import RunRecord

REQUIRED = {
    "jobs", "finished", "failed", "refused", "cancelled", "unfinished", "average_jct_s", "median_jct_s", "p99_jct_s",
    "makespan_s", "average_responsiveness_s", "average_queueing_s", "utilization", "average_ftf", "worst_ftf",
    "unfair_fraction", "deadline_misses", "cost", "preemptions", "moves", "restarts",
}  # fmt: skip


@pytest.fixture
def three() -> RunRecord:
    """Three jobs on two accelerators; the second waits, the third is interrupted for 10 s."""
    jobs = outcomes([10, 20, 30], [12, 40, 35], [50, 60, 85], run=[38, 20, 40], exclusive=[40, 20, 20])
    return record(jobs)


def test_times_by_hand(three):
    got = summarize(three)
    assert got.average_jct_s == pytest.approx((40 + 40 + 55) / 3)
    assert got.median_jct_s == 40
    assert got.p99_jct_s == pytest.approx(40 + 0.98 * 15)
    assert got.makespan_s == 75
    assert got.average_responsiveness_s == pytest.approx((2 + 20 + 5) / 3)
    assert got.average_queueing_s == pytest.approx((2 + 20 + 15) / 3)
    assert got.utilization == pytest.approx(98 / 150)


def test_each_option_changes_its_own_figure_and_no_other(three):
    plain = summarize(three).to_dict()

    def changed(**option):
        other = summarize(three, MetricOptions(**option)).to_dict()
        return {name for name in plain if other[name] != plain[name]}

    assert changed(makespan_from="zero") == {"makespan_s"}
    assert changed(jct_from="first-start") == {"average_jct_s", "median_jct_s", "p99_jct_s", "average_queueing_s"}
    assert changed(contention="static") == {"average_ftf", "worst_ftf"}
    assert changed(unfair_above=0.5) == {"unfair_fraction"}
    assert summarize(three, MetricOptions(makespan_from="zero")).makespan_s == 85
    assert summarize(three, MetricOptions(jct_from="first-start")).average_jct_s == pytest.approx((38 + 20 + 50) / 3)


def test_fairness_by_hand(three):
    # Jobs present while each was there, per accelerator: 90/40/2, 100/40/2, and 105/55/2 which is below 1.
    assert summarize(three).average_ftf == pytest.approx((40 / (40 * 1.125) + 40 / (20 * 1.25) + 55 / 20) / 3)
    assert summarize(three).worst_ftf == pytest.approx(2.75)
    assert summarize(three, MetricOptions(contention="static")).worst_ftf == pytest.approx(55 / (20 * 1.5))


def test_unfair_is_strictly_above_the_threshold():
    run = record(outcomes([0, 100], [0, 100], [10, 121], exclusive=[10, 20]), "9xv100:9")
    assert summarize(run, MetricOptions(unfair_above=1.0)).unfair_fraction == 0.5
    assert summarize(run).unfair_fraction == 0.0  # ρ is 1.0 and 1.05; the default threshold is 1.05
    assert summarize(run).worst_ftf == pytest.approx(1.05)


def test_measure_takes_jobs_by_submission_order_as_a_slice_does(three):
    got = summarize(three, MetricOptions(measure=(1, 3)))
    assert (got.jobs, got.finished) == (2, 2)
    assert got.average_jct_s == pytest.approx((40 + 55) / 2)
    assert got.makespan_s == 65
    assert got.utilization == summarize(three).utilization  # the cluster's figures stay the whole run's
    assert summarize(three, MetricOptions(measure=(2, 100))).jobs == 1
    assert summarize(three, MetricOptions(measure=(7, 9))).to_dict()["average_jct_s"] is None


@pytest.mark.parametrize(
    ("text", "slice_"), [("50:150", (50, 150)), (":10", (0, 10)), (" 3 : 4 ", (3, 4))]
)  # fmt: skip
def test_measure_is_read_as_a_slice(text, slice_):
    assert measure_from(text) == slice_
    assert measure_from("5:")[1] > 10**9


@pytest.mark.parametrize("text", ["", "50", "a:b", "-5:3", "1:2:3", "5:2", "5:5", ":0"])
def test_a_bad_measure_is_named(text):
    with pytest.raises(InputError, match="--measure"):
        measure_from(text)


@pytest.mark.parametrize(
    "wrong",
    [
        {"jct_from": "end"},
        {"contention": "max"},
        {"makespan_from": "one"},
        {"unfair_above": 0},
        {"measure": (5, 2)},
        {"measure": (5, 5)},
    ],
)
def test_a_bad_option_names_its_field(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        MetricOptions(**wrong)


def test_only_finished_jobs_count_and_the_others_are_counted():
    phases = [Phase.FINISHED, Phase.FAILED, Phase.REFUSED, Phase.CANCELLED, Phase.RUNNING, Phase.WAITING, Phase.QUEUED]
    nan = math.nan
    jobs = outcomes([0] * 7, [1, 1, nan, nan, 2, nan, nan], [11, 500, 0, 9, nan, nan, nan], phase=phases)
    got = summarize(record(jobs))
    assert (got.jobs, got.finished, got.failed, got.refused, got.cancelled, got.unfinished) == (7, 1, 1, 1, 1, 3)
    assert got.average_jct_s == got.makespan_s == 11


@pytest.mark.parametrize("count", [0, 2])
def test_a_run_in_which_nothing_finished_has_a_valid_summary(count):
    nan = math.nan
    jobs = outcomes([5.0] * count, [nan] * count, [nan] * count, phase=[Phase.WAITING] * count)
    values = summarize(record(jobs)).to_dict()
    json.dumps(values, allow_nan=False)
    assert values["jobs"] == count
    assert values["average_jct_s"] is values["worst_ftf"] is values["makespan_s"] is None


def test_the_summary_is_valid_json_with_all_figures_and_the_facts_of_the_run():
    run = dataclasses.replace(played("las", 40), facts={"rounds": 12, "wall_s": math.nan, "jobs": 99})
    values = summarize(run).to_dict()
    assert values.keys() == REQUIRED | {"rounds", "wall_s"}
    assert (values["rounds"], values["wall_s"], values["jobs"]) == (12, None, 40)
    json.dumps(values, allow_nan=False)


def test_deadlines_are_missed_by_finishing_late_or_never():
    nan, inf = math.nan, math.inf
    phases = [Phase.FINISHED, Phase.FINISHED, Phase.FAILED, Phase.WAITING, Phase.WAITING, Phase.CANCELLED, Phase.FINISHED]
    jobs = outcomes(
        [0] * 7, [0, 0, 0, nan, nan, nan, 0], [10, 11, 5, nan, nan, 4, 99], phase=phases,
        deadline=[10, 10, 10, 10, 1000, 3, inf],
    )  # fmt: skip
    assert summarize(record(jobs)).deadline_misses == 3  # late, failed, and waiting past its deadline


def test_a_shared_accelerator_is_used_and_paid_once():
    jobs = outcomes([0, 0], [0, 0], [3600, 3600])
    cluster = Cluster.parse("1xv100:1,1xk80:1", PRICES)
    held = device_intervals([(0, 0, 0, 3600), (1, 0, 0, 1800), (1, 1, 1800, 3600)])
    got = summarize(RunRecord("pairs", "t", cluster, jobs, held))
    assert got.utilization == pytest.approx(0.75)
    assert got.cost == pytest.approx(2.48 + 0.45 / 2)


def test_without_stretches_cost_is_known_only_where_one_price_holds():
    jobs = outcomes([0], [0], [7200], workers=[2])
    one = RunRecord("a", "t", Cluster.parse("2xv100:2", PRICES), jobs)
    two = RunRecord("a", "t", Cluster.parse("2xv100:2,1xk80:1", PRICES), jobs)
    assert summarize(one).cost == pytest.approx(4 * 2.48)
    assert summarize(two).to_dict()["cost"] is None


def test_stretches_and_totals_agree_on_utilization():
    run = played("srtf", 80)
    without = dataclasses.replace(run, device_intervals=None)
    assert summarize(run).utilization == pytest.approx(summarize(without).utilization)
    assert 0 < summarize(run).utilization <= 1


def test_preemptions_and_restarts_are_of_the_measured_jobs(three):
    jobs = dataclasses.replace(three.jobs, preemptions=np.array([1, 2, 4]), restarts=np.array([1, 3, 5]))
    got = summarize(dataclasses.replace(three, jobs=jobs), MetricOptions(measure=(1, 3)))
    assert (got.preemptions, got.restarts) == (6, 8)
