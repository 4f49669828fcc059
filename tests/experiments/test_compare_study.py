"""Several schedulers, loads and seeds: the same jobs for all, the same answer from one process or several."""

from __future__ import annotations

import math

import pytest

from fairlead.api.run_results import ComparisonResult
from fairlead.config.schedulers import Part, SchedulerConfig
from fairlead.core.cluster import Cluster
from fairlead.core.errors import InputError
from fairlead.experiments.compare import Comparison, Workload, run_comparison
from fairlead.experiments.inputs import TraceFile
from fairlead.workloads.generate import Generator

FIGURES = ("jobs", "finished", "average_jct_s", "makespan_s", "utilization", "preemptions")


def comparison(**changes) -> Comparison:
    given = {
        "workload": Workload(Generator(jobs=12, jobs_per_hour=6.0, workers="multiple")),
        "cluster": Cluster.parse("8xv100:4"),
        "schedulers": [SchedulerConfig(Part("fifo")), SchedulerConfig(Part("srtf"))],
        "seeds": (0, 1),
    }
    return Comparison(**{**given, **changes})


def figures(outcomes):
    return [(outcome.case, *(outcome.summary.to_dict()[name] for name in FIGURES)) for outcome in outcomes]


def test_every_scheduler_meets_every_load_and_seed():
    cases = comparison(loads=(2.0, 4.0)).cases()
    assert len(cases) == len(set(cases)) == 8
    assert {(case.scheduler, case.load, case.seed) for case in cases} == {
        (index, load, seed) for index in (0, 1) for load in (2.0, 4.0) for seed in (0, 1)
    }


def test_one_process_or_two_give_the_same_figures_in_the_same_order():
    given = comparison()
    seen = []
    alone = run_comparison(given, processes=1, on_done=lambda outcome: seen.append(outcome.case))
    together = run_comparison(given, processes=2)
    assert figures(alone) == figures(together)
    assert seen == given.cases()
    assert [outcome.case for outcome in together] == given.cases()


def test_the_mean_over_seeds_comes_with_its_width():
    given = comparison(seeds=(0, 1, 2))
    outcomes = run_comparison(given, processes=1)
    arms = ComparisonResult.of(given, outcomes).summary
    assert [(arm["scheduler"], arm["seeds"]) for arm in arms] == [("fifo", 3), ("srtf", 3)]
    for index, arm in enumerate(arms):
        jct = [o.summary.average_jct_s for o in outcomes if o.case.scheduler == index]
        assert arm["average_jct_s"] == pytest.approx(sum(jct) / 3)
        assert arm["average_jct_s_ci95"] > 0
    single = comparison(seeds=(0,))
    alone = ComparisonResult.of(single, run_comparison(single, processes=1)).summary[0]
    assert not math.isfinite(alone["average_jct_s_ci95"])


def test_records_are_kept_of_the_first_seeds_where_they_are_asked_for(monkeypatch):
    monkeypatch.setattr("fairlead.experiments.compare.MAX_KEPT", 1)
    outcomes = run_comparison(comparison(), processes=1, keep_records=True)
    assert [outcome.record is not None for outcome in outcomes] == [o.case.seed == 0 for o in outcomes]
    assert outcomes[0].record.device_intervals is not None
    assert run_comparison(comparison(seeds=(0,)), processes=1)[0].record is None


def test_a_load_re_times_a_trace_and_leaves_its_jobs(tmp_path):
    path = tmp_path / "jobs.csv"
    path.write_text("name,submitted_s,duration_s\n" + "".join(f"j{i},{i},60\n" for i in range(30)))
    workload = Workload(TraceFile(path))
    assert workload.trace(None, 0).span_s == 29.0
    slow, fast = workload.trace(6.0, 0), workload.trace(60.0, 0)
    assert slow.span_s > 5 * fast.span_s
    assert [job.name for job in slow.jobs] == [job.name for job in fast.jobs]
    assert workload.trace(6.0, 1).span_s != slow.span_s


def test_what_goes_wrong_in_another_process_comes_back_as_it_was(tmp_path):
    path = tmp_path / "jobs.csv"
    path.write_text("name,submitted_s,duration_s\na,0,ten\n")
    with pytest.raises(InputError, match=r"jobs\.csv:2: field 'duration_s' is 'ten'"):
        run_comparison(comparison(workload=Workload(TraceFile(path)), seeds=(0,)), processes=2)
