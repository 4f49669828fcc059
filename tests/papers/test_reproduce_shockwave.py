"""Shockwave's evaluation, run again: every study end to end at a tiny size, and the jobs it rests on."""

from __future__ import annotations

import numpy as np
import pytest

from fairlead.config.schedulers import Part, SchedulerConfig
from fairlead.core.errors import InputError
from fairlead.experiments.cases import CaseStore
from fairlead.experiments.simulate import Simulation, run_simulation
from fairlead.policies.shockwave.planning.planner import TOLERANCE
from fairlead.policies.shockwave.planning.relaxation import LEVELS
from fairlead_papers import Reproduction, reproduce
from fairlead_papers.findings import Wants
from fairlead_papers.shockwave import SHOCKWAVE, AdaptiveJobs
from fairlead_papers.shockwave.jobs import Jobs
from fairlead_papers.shockwave.overhead import CURVE, PAPER_GAP, STRONG, TEXT, Cut
from fairlead_papers.shockwave.overhead import made as windows
from fairlead_papers.shockwave.replayed import cluster_of, every_so_many, replayed
from fairlead_papers.shockwave.runs import SHOCKWAVE as ARM
from fairlead_papers.shockwave.runs import Run, makespan, noisy, worst_rho
from fairlead_papers.shockwave.schedules import made
from fairlead_papers.shockwave.windows import drawn

pytestmark = pytest.mark.long

ON_POLLUX_JOBS = ["fig11", "fig17"]
REAL = "table3"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """All studies once, without the public traces; but for the one that takes real time."""
    studies = tuple(study for study in SHOCKWAVE.studies if study.name != REAL)
    given = Reproduction(SHOCKWAVE, SHOCKWAVE.scale("tiny"), AdaptiveJobs(), tmp_path_factory.mktemp("shockwave"), studies)
    return given, reproduce(given, processes=1)


def test_every_study_is_told_and_none_fails_but_those_whose_jobs_are_not_here(finished):
    given, outcome = finished
    others = {"fig5", "fig7", "fig8", "fig9", "fig10", "fig12", "fig13", "fig16"}
    assert {study.name for study in given.studies} == others | {*ON_POLLUX_JOBS}
    assert {study.name for study in SHOCKWAVE.studies} == others | {*ON_POLLUX_JOBS, REAL}
    for study, told in outcome.rows:
        assert (told.verdict == "no data") == (study.name in ON_POLLUX_JOBS), (study.name, told)
        assert told.verdict != "failed", (study.name, told)
    assert "pass --data FOLDER" in (given.folder / "report.md").read_text()


def test_pollux_jobs_have_the_batch_sizes_they_had_and_the_workers_they_asked_for(public_data, tmp_path):
    inputs = AdaptiveJobs(data=public_data)
    given = Reproduction(SHOCKWAVE, SHOCKWAVE.scale("tiny"), inputs, tmp_path, SHOCKWAVE.chosen(ON_POLLUX_JOBS))
    outcome = reproduce(given, processes=1)
    assert [told for _, told in outcome.rows if told.verdict == "failed"] == []
    assert {file.name for file in outcome.files} >= {"fig11.png", "fig17.png"}
    asked = every_so_many(inputs.pollux_jobs(6), 16, 8)
    found = replayed(asked, 8)
    assert [(job.name, job.workers, job.submitted_s) for job in found.trace.jobs] == [
        (job.name, job.workers, job.submitted_s) for job in asked.jobs
    ]
    dynamics = [found.trace.dynamics[job.name] for job in found.trace.jobs]
    assert any(len(job_dynamics.parts) > 1 for job_dynamics in dynamics)
    assert all(sum(share for _, share in job_dynamics.parts) == pytest.approx(1.0) for job_dynamics in dynamics)
    record = run_simulation(Simulation(found.trace, cluster_of(8), SchedulerConfig(Part("fifo")), found.table)).record
    assert record.jobs.exclusive_s == pytest.approx(found.alone_s)


def test_what_shockwave_pays_beside_pollux_is_no_gain(finished):
    told = [row for study, row in finished[1].rows if study.name == "fig11" and row.paper in (3.0, 2.4)]
    assert [row.wants for row in told] == [Wants.NEAR] * 2


def test_the_report_says_whose_evaluation_it_is_and_which_jobs_it_had(finished):
    given, outcome = finished
    text = (given.folder / "report.md").read_text()
    assert text.startswith("# Shockwave's evaluation, reproduced")
    assert "generated jobs alone" in text
    assert all(one.study.title in text for one in outcome.told)


def test_what_is_foreseen_is_nearer_to_the_truth_than_what_is_not(finished):
    _, outcome = finished
    told = {row.what: row.ours for study, row in outcome.rows if study.name == "fig5"}
    assert told["error of run times, greedy / restatement"] > 1
    assert told["mean error of regimes' shares"] < 20


def test_the_longer_a_plan_is_searched_for_the_nearer_it_is_to_its_bound(finished):
    """A window in which the load alone counts, and one with a few very long jobs; how long it took is told and not judged."""
    given, _ = finished
    kept = CaseStore(given.folder / "cases", given.inputs)
    for penalty in (TEXT, STRONG):
        found = [kept.read(windows(given.scale, 60, penalty))[searched.name] for searched in CURVE]
        gaps = np.array([each["relative"] for each in found])
        assert gaps.shape == (6, 2)
        assert (np.diff(gaps, axis=0) <= 0).all()
        assert (gaps[0] > 0).all()
        assert (gaps[-1] < 1e-3).all()
        assert all(cpu_s > 0 for each in found for cpu_s in each["cpu_s"])


def test_gaps_beside_the_papers_are_of_the_search_that_the_policy_makes(finished):
    told = {row.what: row for study, row in finished[1].rows if study.name == "fig12"}
    assert 0 < told["gap, 60 jobs"].ours <= TOLERANCE
    assert 0.001 < told["relative gap, 60 jobs"].ours < 0.1
    given = windows(SHOCKWAVE.scale("small"), 2000, TEXT)
    assert (given.accelerators, given.windows, PAPER_GAP[given.jobs]) == (256, 10, 0.44)


def test_in_every_other_window_some_jobs_take_longer_than_any_of_the_others_can():
    longest_h = [drawn(60, 32, TEXT, seed)[0].left_s[:, 0].max() / 3600 for seed in range(4)]
    assert max(longest_h[::2]) <= 5 < min(longest_h[1::2])


def test_a_search_cut_short_is_the_preset_but_for_its_levels_and_its_plans_are_worse(finished):
    given, _ = finished
    kept = CaseStore(given.folder / "cases", given.inputs)
    whole, usual = kept.read(Cut(LEVELS, 15)), kept.read(Run(ARM.scheduler, Jobs(15, public=True), 4, 0))
    none = Cut(0, 15).run(given.inputs)
    assert makespan(whole) == makespan(usual)
    assert worst_rho(whole) == worst_rho(usual)
    assert none["gap"] > whole["gap"]


def test_a_schedule_is_divided_by_sizes_and_never_more_than_there_is():
    found = made(SHOCKWAVE.scale("tiny"), ARM).run(AdaptiveJobs())
    busy = np.array(found["busy"])
    assert 2 < busy.sum(axis=0).max() <= 3 + 1e-6
    assert (busy.sum(axis=1) > 0).sum() >= 3


def test_as_many_jobs_adapt_as_asked_for():
    trace, _ = AdaptiveJobs().jobs(Jobs(200, dynamic=0.4), 0)
    part = sum(job.mode != "static" for job in trace.jobs) / 200
    assert 0.3 < part < 0.5


def test_a_wrong_forecast_is_the_preset_but_for_its_noise():
    assert "noise: 0.4" in noisy(0.4).scheduler
    assert noisy(0.4).label == "40 %"


def test_a_folder_without_the_traces_is_told_what_it_lacks(tmp_path):
    """To pass --data is no mend for who has passed it."""
    given = AdaptiveJobs(data=tmp_path)
    with pytest.raises(InputError, match=f"^--data {tmp_path}: expected a folder with shockwave/tacc_throughputs.json in it$"):
        _ = given.fingerprint
    with pytest.raises(InputError, match=r"a folder with pollux/workloads/workload-6\.csv in it$"):
        given.pollux_jobs(6)
    (tmp_path / "shockwave").mkdir()
    (tmp_path / "shockwave" / "tacc_throughputs.json").write_text('{"v100": {"(\'net\', 1)": {"null": 1.0}}}')
    with pytest.raises(InputError, match=r"a folder with shockwave/120_\*\.trace in it$"):
        given.jobs(Jobs(120, public=True), 0)


def test_answers_are_kept_for_these_jobs_and_regimes_and_not_for_others(tmp_path):
    """What was kept under a mark is not run again."""
    folder = tmp_path / "shockwave"
    folder.mkdir()
    names = ("tacc_throughputs.json", "wisr_throughputs.json", "120_0.trace", "trace120_regimes.json")
    for name in names:
        (folder / name).write_text("some")
    marks = [AdaptiveJobs(data=tmp_path).fingerprint]
    for name in names:
        (folder / name).write_text("others")
        marks.append(AdaptiveJobs(data=tmp_path).fingerprint)
    assert len(set(marks)) == 5
    assert AdaptiveJobs(data=tmp_path).fingerprint == marks[-1]
