"""Horus' evaluation, run again: every study end to end at a tiny size, its jobs, and what is true and believed in it."""

from __future__ import annotations

import math
from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest
import yaml

from cli.command import fairlead
from fairlead.config.registry import preset_named
from fairlead.core.cluster import Cluster
from fairlead.core.events import JobSubmitted, JournalOpened, MetricsReported, ProgressReported, RoundPlanned
from fairlead.core.job import Job
from fairlead.core.plan import Launches, RoundPlan
from fairlead.prediction.measured_profiles import mean_slowdowns, shipped_profiles
from fairlead.profiling.results import measured_set
from fairlead_papers import Reproduction, reproduce
from fairlead_papers.command import _why_not
from fairlead_papers.horus import HORUS, MeasuredPairs
from fairlead_papers.horus.bound import Bound
from fairlead_papers.horus.fairness import FAIR
from fairlead_papers.horus.jobs import GANGS, LIGHT, LONG_S, MONTH, SHARES, SHORT_S, trace
from fairlead_papers.horus.runs import HORUS as HORUS_ARM
from fairlead_papers.horus.runs import SOONEST, Run, Watch
from fairlead_papers.horus.truth import H200

pytestmark = pytest.mark.long

WORLD = MeasuredPairs()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    given = Reproduction(HORUS, HORUS.scale("tiny"), WORLD, tmp_path_factory.mktemp("horus"))
    return given, reproduce(given, processes=1)


def test_every_study_is_told_and_none_fails(finished):
    given, outcome = finished
    measured, ours = {"fig3", "fig4", "fig5", "fig7", "table4"}, {"limits", "seeds", "sessions", "slo"}
    papers = {"table6", "fig8", "fig9", "table7", "fig10", "queues"}
    assert {study.name for study in given.studies} == measured | papers | ours
    failed = [(study.name, told.what, told.note) for study, told in outcome.rows if told.verdict == "failed"]
    assert not [one for one in failed if one[2] != "no job had to wait"]


def test_a_learner_whose_library_is_not_there_is_not_installed_and_has_not_failed(tmp_path, monkeypatch):
    def without(name: str) -> object:
        if name == "lightgbm":
            raise ImportError(name)
        return import_module(name)

    monkeypatch.setattr("fairlead.prediction.learners.import_module", without)
    scale = replace(HORUS.scale("tiny"), learners=("linear", "lightgbm"))
    given = Reproduction(HORUS, scale, WORLD, tmp_path, HORUS.chosen(["table4"]))
    outcome = reproduce(given, processes=1)
    assert [told.verdict for _, told in outcome.rows] == ["met", "", "not installed", "not installed"]
    note = "not installed: this learner needs lightgbm: run pip install 'fairlead[predict]'"
    assert {told.note for _, told in outcome.rows} == {"", note}
    assert _why_not(outcome) == [f"{note} (2 claims of table4)"]
    assert "failed" not in (tmp_path / "report.md").read_text()


def test_true_is_the_mean_of_the_sessions_or_what_one_says_and_nothing_of_that_is_believed():
    assert WORLD.sessions == ("h200_pairs", "h200_pairs_beside")
    alone = shipped_profiles("h200").alone
    by_session = {name: mean_slowdowns(measured_set(name)[1], alone) for name in WORLD.sessions}
    mean = {
        pair: [(one + other) / 2 for one, other in zip(*(found[pair] for found in by_session.values()))]
        for pair in by_session["h200_pairs"]
    }
    kinds = [one.kind for one in WORLD.trainings]
    for session, slower in (("", mean), *by_session.items()):
        inputs = replace(WORLD, session=session)
        for one, two in ((kinds[0], kinds[-1]), (kinds[-1], kinds[-2])):
            row, beside = inputs.table.row(one, 1), inputs.table.row(two, 1)
            found = inputs.table.alone[row, 0] / inputs.table.paired[row, beside, 0]
            assert found == pytest.approx(max(1.0, slower[one, two][0]))
        assert (inputs.believed(), inputs.fingerprint) == (WORLD.believed(), WORLD.fingerprint)
    runs = [Run(HORUS_ARM.policy, "2xh200:2", "W-Large", 12, 0, session=each) for each in ("", *WORLD.sessions)]
    assert len({run.run(WORLD)["makespan_s"] for run in runs}) == 3


def test_pairs_through_mps_are_of_those_that_fill_the_card_and_told_by_what_the_other_holds(finished):
    _, outcome = finished
    rows = {told.what: told for study, told in outcome.rows if study.name == "fig4"}
    assert rows["pairs measured, mps"].ours == rows["pairs measured, time-slicing"].ours == 595
    finer = rows["R² on pairs left out, of multiprocessors and kernels, mps"]
    assert finer.ours > 0.75 > rows["R² on pairs left out, of both apart, mps"].ours
    assert "R² on pairs left out, of multiprocessors and kernels, time-slicing" not in rows


def test_the_report_says_which_pairs_were_measured_and_what_was_believed(finished):
    given, _ = finished
    text = (given.folder / "report.md").read_text()
    assert text.startswith("# Horus's evaluation, reproduced")
    assert "34 trainings on NVIDIA H200, and all 595 pairs of them, time-slicing" in text
    assert "What the scheduler believes" in text


def test_a_limit_is_kept_while_company_goes_on(finished):
    _, outcome = finished
    rows = {told.what: told for study, told in outcome.rows if study.name == "slo"}
    for workload in SHARES:
        assert rows[f"longest stretch beyond it, Horus, SLO 1.5: {workload}"].verdict == "met"
        assert rows[f"accelerator time in company, Horus, SLO 1.5: {workload}"].ours > 0


@pytest.mark.parametrize(("name", "shares"), SHARES.items())
def test_a_workload_has_its_classes_exactly(name, shares):
    jobs = trace(name, 100, WORLD.trainings, 3).jobs
    busy = {one.kind: one.utilization for one in WORLD.trainings}
    speed = {one.kind: one.steps_per_s for one in WORLD.trainings}
    classes = []
    for job in jobs:
        seconds = job.steps / speed[job.kind]
        assert SHORT_S[0] <= seconds <= LONG_S[1]
        classes.append((seconds > SHORT_S[1]) * 2 + (busy[job.kind] >= LIGHT))
    assert np.bincount(classes).tolist() == [round(100 * share) for share in shares]
    assert trace(name, 100, WORLD.trainings, 3) == trace(name, 100, WORLD.trainings, 3)
    assert trace(name, 100, WORLD.trainings, 4) != trace(name, 100, WORLD.trainings, 3)


def test_the_month_lasts_as_long_as_the_papers():
    jobs = trace(MONTH, 398, WORLD.trainings, 0).jobs
    speed = {one.kind: one.steps_per_s for one in WORLD.trainings}
    minutes = [job.steps / speed[job.kind] / job.workers / 60 for job in jobs]
    assert np.median(minutes) == pytest.approx(300, rel=0.15)
    assert np.mean(minutes) == pytest.approx(470, rel=0.15)
    assert sum(job.workers == 1 for job in jobs) == pytest.approx(398 * GANGS[1], abs=1)


def test_half_of_the_trainings_are_unseen_and_believed_to_be_what_their_graphs_say():
    busy = {one.kind: one.utilization for one in WORLD.trainings}
    off = {kind: abs(math.log(max(use, 1e-9) / busy[kind])) for kind, (use, _) in WORLD.uses.items()}
    unseen = [kind for kind in busy if kind not in WORLD.seen]
    assert len(unseen) * 2 >= len(busy) == 34
    assert np.median([off[kind] for kind in unseen]) > 0.05 > np.median([off[kind] for kind in WORLD.seen])
    families = {shipped_profiles().alone[kind].family for kind in unseen}
    assert families.isdisjoint(shipped_profiles().alone[kind].family for kind in WORLD.seen)


def test_its_policies_are_those_of_the_presets():
    for name, policy in (("horus", HORUS_ARM.policy), ("horus-f", FAIR.policy), ("horus-makespan", SOONEST.policy)):
        assert yaml.safe_load(preset_named(name).text)["policy"] == yaml.safe_load(policy)


def test_nobody_is_below_the_bound(finished):
    _, outcome = finished
    rows = [told for _, told in outcome.rows if "the least there can be" in told.what]
    assert len(rows) == 6
    assert all(told.ours >= 1 for told in rows)


def test_a_bound_has_pairs_where_they_gain_and_the_longest_job_where_that_is_longer():
    """Eight jobs on one accelerator take at least half of their time alone, on a hundred as long as the longest."""
    few = Bound("1xh200:1", "W-Large", 8, 0).run(WORLD)["makespan_s"]
    speed = {one.kind: one.steps_per_s for one in WORLD.trainings}
    alone = [job.steps / speed[job.kind] for job in trace("W-Large", 8, WORLD.trainings, 0).jobs]
    assert sum(alone) / 2 <= few < 0.7 * sum(alone)
    assert Bound("100xh200:4", "W-Large", 8, 0).run(WORLD)["makespan_s"] == pytest.approx(max(alone))


def test_a_run_tells_what_was_shared_and_how_busy_it_was():
    alone = Run("fifo", "4xh200:4", "W-Small", 8, 0).run(WORLD)
    packed = Run("opportunistic-packing", "4xh200:4", "W-Small", 8, 0).run(WORLD)
    assert alone["shared"] == alone["longest_beyond_s"] == 0
    assert packed["shared"] > 0
    work = packed["utilization"] * packed["makespan_s"]
    assert work == pytest.approx(alone["utilization"] * alone["makespan_s"], rel=1e-6), "whoever is beside it"
    minutes, percent = packed["busy"]
    assert np.mean(percent) / 100 == pytest.approx(packed["utilization"], rel=0.1)
    assert minutes[0] == 0


def test_time_beyond_a_limit_counts_from_the_second_in_which_a_job_makes_steps():
    """The journal says nothing more between a start at second 0, with 30 s to load, and the end."""
    one = WORLD.trainings[0]
    alone = float(WORLD.table.alone[WORLD.table.row(one.kind, 1), 0])
    zero = np.array([0])
    launches = Launches(zero, zero, np.array([0, 1]), zero)
    events = [
        JournalOpened(0.0, Cluster.parse("1xh200:1", (H200,)), {}),
        JobSubmitted(0.0, 0, Job("j", 0.0, 1e9, one.kind)),
        RoundPlanned(RoundPlan(0.0, admitted=zero, launches=launches)),
        ProgressReported(0.0, zero, np.zeros(1), np.array([alone / 2]), np.array([30.0])),
        MetricsReported(100.0, "loss", zero, np.ones(1)),
    ]
    seen = Watch(WORLD).over(events)
    assert seen.beyond_s == seen.longest_beyond_s == pytest.approx(70.0)
    assert seen.job_s == 100.0


def test_the_command_knows_it():
    told = fairlead("reproduce", "horus", "--help")
    assert "table6" in told.stdout
    assert "128 × 8 H200, 398 jobs" in " ".join(told.stdout.split())
