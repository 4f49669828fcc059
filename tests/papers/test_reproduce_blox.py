"""Blox' evaluation, run again: every study end to end at a tiny size, its workloads, and what its rows rest on."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from cli.command import fairlead
from fairlead.core.cluster import Cluster
from fairlead.core.errors import InputError
from fairlead.core.job import Job
from fairlead.experiments.inputs import TraceFile
from fairlead.experiments.simulate import Simulation, run_simulation
from fairlead.workloads.trace import Trace
from fairlead_papers import Reproduction, reproduce
from fairlead_papers.blox import BLOX, PublicTraces
from fairlead_papers.blox.runs import Arm, demand, made
from fairlead_papers.blox.scale import SCALES, WORK_H, at_share, share_of
from fairlead_papers.blox.synthesis import BINS, JCT, Ranked, Setting, candidates
from fairlead_papers.blox.traces import GANGS, KINDS, SKEWED, Workload
from fairlead_papers.findings import Row, Wants, row

pytestmark = pytest.mark.long

TINY = SCALES["tiny"]
GENERATED = Workload("gavel", 2.0, (0, 20))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """All studies once, without the public traces; the tests look at what came of it."""
    given = Reproduction(BLOX, TINY, PublicTraces(), tmp_path_factory.mktemp("blox"))
    return given, reproduce(given, processes=1)


def test_every_study_is_told_and_fails_only_for_want_of_the_public_traces(finished):
    given, outcome = finished
    names = {study.name for study in given.studies}
    assert names == {f"fig{n}" for n in (3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 16, 20)} | {"table3", "table4"}
    for study, told in outcome.rows:
        absent = "Philly" in told.what or study.name in ("fig3", "fig4", "fig8", "fig9")
        assert (told.verdict == "no data") == absent, (study.name, told)
        assert told.verdict != "failed", (study.name, told)
        assert not absent or "pass --data FOLDER" in told.note


def test_the_report_says_whose_evaluation_it_is_and_what_is_missing(finished):
    given, outcome = finished
    text = (given.folder / "report.md").read_text()
    assert text.startswith("# Blox's evaluation, reproduced")
    assert "Philly's durations are not here" in text
    assert "16 V100" in text
    for one in outcome.told:
        assert one.study.title in text


def test_what_is_finished_is_kept(finished):
    given, outcome = finished
    some = replace(given, only=BLOX.chosen(["fig14"]))
    again = reproduce(some, processes=1)
    philly = sum("philly" in str(case) for case in some.cases())
    assert again.ran == philly  # failures are tried again
    assert again.rows == [(study, told) for study, told in outcome.rows if study.name == "fig14"]


def test_a_smaller_cluster_is_as_loaded_and_measured_in_the_same_hours_but_for_the_small_scale():
    hours = [tuple(job / scale.load(8.0) for job in scale.measure) for scale in map(BLOX.scale, ("small", "medium", "full"))]
    assert hours == [(112.5, 150.0), (375.0, 500.0), (375.0, 500.0)]


def test_a_load_is_a_share_of_capacity_by_the_work_of_the_durations():
    minutes = 0.8 * (1e3 - 10**1.5) / (1.5 * math.log(10)) + 0.2 * (1e4 - 1e3) / math.log(10)
    assert WORK_H["gavel"] == pytest.approx(1.9 * minutes / 60, rel=1e-3)
    assert share_of("gavel", at_share("gavel", 0.9)) == pytest.approx(0.9, rel=1e-3)


def test_phillys_work_is_that_of_its_gangs(public_data):
    known = TraceFile(public_data / "philly" / "philly.csv", "philly", skip_bad=True).read()
    hours = [job.steps * job.workers / 3600 for job in known.jobs if job.workers in GANGS]
    assert WORK_H["philly"] == pytest.approx(np.mean(hours), rel=1e-3)


def test_at_another_load_the_same_philly_jobs_come_at_other_times(public_data):
    inputs = PublicTraces(data=public_data)
    few, many = (inputs.jobs(Workload("philly", load, (0, 20)), 0) for load in (1.0, 4.0))
    assert [(job.kind, job.steps, job.workers) for job in few.jobs] == [(job.kind, job.steps, job.workers) for job in many.jobs]
    assert few.span_s == pytest.approx(4 * many.span_s)
    assert inputs.jobs(Workload("philly", 1.0, (0, 20)), 1).jobs != few.jobs


def test_what_comes_on_top_leaves_the_usual_jobs_alone():
    inputs = PublicTraces()
    usual, spiked, bursty = (inputs.jobs(replace(GENERATED, **more), 0) for more in ({}, {"spike": 3}, {"bursts": True}))
    times = {job.name: job.submitted_s for job in usual.jobs}
    for trace, prefix in ((spiked, "spike"), (bursty, "burst")):
        extra = [job for job in trace.jobs if job.name not in times]
        assert extra
        assert all(job.name.startswith(prefix) for job in extra)
        assert {job.name: job.submitted_s for job in trace.jobs if job.name in times} == times
        assert all(job.kind in inputs.table.kinds for job in trace.jobs)


def test_of_figure_11s_models_the_last_ones_become_sensitive_one_by_one():
    inputs = PublicTraces()
    whole, column = inputs.table, inputs.table.types.index("v100")
    for count in (5, 7, 8):
        table = inputs.table_with(count)
        kept = {kind for row, (kind, n) in enumerate(table.keys) if n == 4 and (table.spread[row] == whole.spread[row]).all()}
        assert kept.issuperset(KINDS[:count])
        assert kept.isdisjoint(KINDS[count:])
    loses = whole.spread[:, column] / whole.alone[:, column]
    assert all(loses[whole.row(kind, 4)] < 0.67 for kind in KINDS)
    assert set(SKEWED) < set(KINDS)
    assert {job.kind for job in inputs.jobs(replace(GENERATED, sensitive=5), 0).jobs} <= set(KINDS)


def test_sides_of_a_comparison_have_the_same_jobs():
    one, other = (made(TINY, "gavel", Arm(name, f"policy: {name}"), 8.0, 1, spike=16) for name in ("las", "fifo"))
    assert replace(one, scheduler="") == replace(other, scheduler="")
    assert one.workload.spike == 2
    assert one.workload.load == 1.0


def test_somebody_always_decides_and_the_nine_are_nine():
    case = Setting(TINY, "gavel", "bursty", 1.2).chosen(JCT)[0]
    told = case.run(PublicTraces())
    assert np.sum(list(told["decided"].values()), axis=0) == pytest.approx(np.ones(BINS), abs=1e-3)
    assert set(told["decided"]) <= {one.name for one in candidates()}
    assert len(candidates()) == 9
    assert told["looks"] >= told["switches"]


def test_what_is_wanted_is_what_would_be_in_use_if_nobody_waited():
    jobs = [
        Job("before", 0.0, 150.0, workers=2),
        Job("first", 100.0, 1000.0),
        Job("last", 200.0, 1.0),
        Job("after", 300.0, 9.0),
    ]
    record = run_simulation(Simulation(Trace.of(jobs), Cluster.parse("2xv100:2"))).record
    assert record.jobs.first_started_s[1] > 100.0
    assert demand(record, (1, 3)) == pytest.approx((2 * 50.0 + 100.0) / (2 * 100.0))


def test_places_are_by_the_mean_over_seeds():
    order = Ranked((("best", [1.0, 3.0]), ("second", [3.0, 3.0]), ("worst", [8.0, 8.0])), [2.0, 2.0])
    assert [order.over(place) for place in (0, 1, -1)] == [1.0, 1.5, 4.0]


def test_rows_over_seeds_have_an_interval_and_bounds_from_below():
    assert row("a", 1.0, lambda: [1.0, 2.0, 3.0], wants=Wants.LEAST).within == pytest.approx(2.484, abs=1e-3)
    assert row("a", 1.0, lambda: 2.0).within is None
    assert Row("a", 1.0, 0.99, wants=Wants.LEAST).verdict == "not met"
    assert Row("a", 1.0, 1.0, wants=Wants.LEAST).verdict == "met"


def test_an_order_is_what_no_seed_contradicts():
    seeds = {"met": (1.3, 1.005), "not met": (0.7, 1.0), "alike": (1.0, 0.995), "open": (1.3, 0.9)}
    for verdict, values in seeds.items():
        assert row("a", 1.0, lambda values=values: values, wants=Wants.MORE).verdict == verdict


def test_an_order_of_means_is_what_the_interval_over_seeds_leaves_no_doubt_of():
    seeds = {"met": (1.3, 1.2, 0.99, 1.3, 1.2), "not met": (0.7, 0.8, 1.01, 0.7, 0.7, 0.8), "open": (1.3, 0.9, 1.2)}
    for verdict, values in seeds.items():
        assert row("a", 1.0, lambda values=values: values, wants=Wants.AHEAD).verdict == verdict
    assert Row("a", 1.0, 1.2, wants=Wants.AHEAD).verdict == "met"


def test_tiresias_trace_comes_out_as_its_own_simulator_says(public_data, expected_results, tmp_path):
    given = Reproduction(BLOX, TINY, PublicTraces(data=public_data), tmp_path, BLOX.chosen(["fig4"]))
    assert {told.verdict for _, told in reproduce(given, processes=1).rows} == {"met"}


def test_a_folder_without_the_traces_is_told_before_anything_runs(tmp_path):
    with pytest.raises(InputError, match=r"philly\.csv"):
        _ = PublicTraces(data=tmp_path).fingerprint
    absent = fairlead("reproduce", "blox", "--data", tmp_path, "--out", tmp_path)
    assert absent.returncode == 2
    assert "philly.csv" in absent.stderr.replace("\n", "")


def test_the_command_tells_its_studies_and_writes_the_report(tmp_path):
    told = " ".join(fairlead("reproduce", "blox", "--help").stdout.split())
    for word in ("128 V100", "32 V100", "3 seeds", "minutes on one core", "fig20", "--data"):
        assert word in told
    done = fairlead("reproduce", "blox", "--scale", "tiny", "--only", "table3", "--out", tmp_path, "--processes", 1)
    assert done.returncode == 0, done.stderr
    assert "tiresias, beyond FIFO" in done.stdout
    assert (tmp_path / "report.html").is_file()
