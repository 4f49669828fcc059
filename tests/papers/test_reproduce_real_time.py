"""Table 3 of Shockwave: the jobs of its real runs, how its answers are read, and cases that need the machine for themselves."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from fairlead.config.schedulers import compose
from fairlead.core.job import batch_size_of
from fairlead.experiments.cases import Answer, Answers, CaseStore, ReportProgress, key_of, run_cases
from fairlead.runtime.embedded import ClusterStartError
from fairlead.workloads.dynamics import Regimes
from fairlead_papers import GavelInputs, Reproduction, reproduce
from fairlead_papers.fidelity.sleepers import parts_of
from fairlead_papers.shockwave import SHOCKWAVE, AdaptiveJobs
from fairlead_papers.shockwave.fidelity import BY_SCALE, cases, read
from fairlead_papers.shockwave.real_jobs import LOOKED_AT_S
from fairlead_papers.shockwave.runs import ALLOX, GANDIVA_FAIR, GAVEL, MST, OSSP, THEMIS
from fairlead_papers.shockwave.runs import SHOCKWAVE as ARM

SMALL = BY_SCALE["small"].real


def test_jobs_come_amid_rounds_adapt_and_are_as_many_for_an_accelerator_as_the_papers():
    trace = SMALL.trace(0)
    assert len(trace) / SMALL.accelerators == 3.0
    assert {job.submitted_s % SMALL.round_s for job in trace.jobs} == {SMALL.round_s / 2}
    assert {job.mode for job in trace.jobs} == {"accordion", "gns"}
    assert {job.workers for job in trace.jobs} == {1, 2, 4}
    assert max(len(job_dynamics.parts) for job_dynamics in trace.dynamics.values() if isinstance(job_dynamics, Regimes)) > 2
    assert SMALL.trace(0) == trace
    assert SMALL.trace(1) != trace


@pytest.mark.parametrize("scale", ["tiny", "small", "medium", "full"])
def test_what_is_measured_before_are_other_jobs_of_every_kind_and_size_that_will_run(scale):
    real, seeds = BY_SCALE[scale].real, BY_SCALE[scale].seeds
    calibration = real.calibration()
    seen = {looks for job in calibration.jobs for looks in _looks(job, calibration)}
    runs = {looks for seed in seeds for job in real.trace(seed).jobs for looks in _looks(job, real.trace(seed))}
    assert runs <= seen
    assert not {job.name for job in calibration.jobs} & {job.name for job in real.trace(0).jobs}
    assert sum(job.workers for job in calibration.jobs) > real.accelerators, "somebody is preempted"


def test_no_regime_is_so_short_that_agents_would_not_see_it():
    trace, table = SMALL.trace(0), SMALL.cluster.table
    spans = [parts_of(job, trace.dynamics[job.name], table) for job in trace.jobs]
    assert min(part.steps * part.step_s["v100"] for parts in spans for part in parts) > 0.9 * LOOKED_AT_S
    assert all(parts[0].batch_size == batch_size_of(job.kind) for job, parts in zip(trace.jobs, spans))
    assert sum(len(parts) > 1 for parts in spans) > len(trace) / 2


def _looks(job, trace):
    """Models with their batch sizes and workers."""
    job_dynamics, model = trace.dynamics.get(job.name), job.kind.split(" (")[0]
    sizes = [size for size, _ in job_dynamics.parts] if job_dynamics else [int(job.kind.split()[-1].rstrip(")"))]
    return [(model, size, job.workers) for size in sizes]


def test_schedulers_have_the_real_rounds_and_what_they_count_in_seconds_goes_with_them():
    assert SMALL.scheduler(GAVEL.scheduler)["mechanism"]["min_interval_s"] == pytest.approx(1000 / 120 * SMALL.round_s)
    for arm in (ARM, GAVEL, THEMIS, ALLOX, OSSP, MST, GANDIVA_FAIR):
        assert compose(SMALL.scheduler(arm.scheduler)).round_s == SMALL.round_s


def _answer(makespan_s: float, jct_s: float, unfair: float) -> Answer:
    def figures(*values: float) -> dict[str, float]:
        return {**dict(zip(("makespan_s", "average_jct_s", "unfair_fraction"), values)), "preemptions": 3}

    sides = {"real": figures(200.0, 100.0, 0.5), "simulated": figures(makespan_s, jct_s, unfair)}
    return {**sides, "by_job": [0.02, 0.04], "launch_s": 0.5, "restart_s": 1.0}


def test_rows_are_means_over_policies_of_how_far_both_sides_are_apart():
    scale, inputs = SHOCKWAVE.scale("small"), AdaptiveJobs()
    told = [_answer(190.0, 104.0, 0.5), _answer(208.0, 97.0, 0.54), _answer(200.0, 100.0, 0.45)]
    keys = [key_of(case, inputs) for case in cases(scale)]
    found = read(scale, Answers(inputs, dict(zip(keys, told, strict=True)), {}))
    assert [row.ours for row in found.rows] == pytest.approx([3.0, 7 / 3, 3.0, 3.0])
    assert [row.verdict for row in found.rows] == ["met", "met", "met", ""]
    assert [note.split(",")[0] for note in found.notes[1:]] == ["Shockwave", "Gavel", "Themis"]
    (picture,) = found.pictures
    assert [y for _, _, y in picture.clouds] == pytest.approx(np.array([[5.0, 4.0, 0.0], [4.0, 3.0, 0.0], [0.0, 4.0, 5.0]]))


def test_a_machine_on_which_no_cluster_can_run_is_told_and_nothing_is_kept(tmp_path, monkeypatch):
    @contextmanager
    def nowhere(root: Path, *options: str):
        raise ClusterStartError("the cluster did not start: no port is free")
        yield

    monkeypatch.setattr("fairlead_papers.fidelity.real.embedded", nowhere)
    given = Reproduction(SHOCKWAVE, SHOCKWAVE.scale("tiny"), AdaptiveJobs(), tmp_path, SHOCKWAVE.chosen(["table3"]))
    outcome = reproduce(given, processes=1)
    assert {row.verdict for _, row in outcome.rows} == {"failed"}
    expected = "CaseFailed: a real cluster could not be run here: the cluster did not start: no port is free"
    assert {row.note for _, row in outcome.rows if row.note} >= {expected}
    assert not list((tmp_path / "cases").glob("*.json"))


@dataclass(frozen=True)
class Counted:
    """Says who ran it, and how many had been run before."""

    folder: str
    number: int

    def run(self, inputs: GavelInputs) -> Answer:
        before = len(os.listdir(self.folder))
        (Path(self.folder) / str(self.number)).touch()
        return {"before": before, "process": os.getpid()}


@dataclass(frozen=True)
class Alone(Counted):
    def run_alone(self, inputs: GavelInputs, report: ReportProgress) -> Answer:
        report(f"case {self.number}")
        return self.run(inputs)


@pytest.mark.parametrize("processes", [1, 2])
def test_who_needs_the_machine_for_itself_runs_behind_all_others_and_is_heard(tmp_path, processes):
    folder, said = tmp_path / "ran", list[str]()
    folder.mkdir()
    every = [Alone(str(folder), 0), Counted(str(folder), 1), Alone(str(folder), 2), Counted(str(folder), 3)]
    store = CaseStore(tmp_path / "cases", GavelInputs())
    answers = run_cases(every, store, processes=processes, report=said.append)
    alone = [answers.of(case) for case in every if isinstance(case, Alone)]
    assert [answer["before"] for answer in alone] == [2, 3]
    assert {answer["process"] for answer in alone} == {os.getpid()}
    assert said == ["case 0", "case 2"]


def test_a_place_where_no_answer_can_be_kept_is_told_before_the_work(tmp_path):
    (tmp_path / "ran").mkdir()
    (tmp_path / "cases").symlink_to(tmp_path / "nowhere")
    with pytest.raises(OSError, match="cases"):
        run_cases([Alone(str(tmp_path / "ran"), 0)], CaseStore(tmp_path / "cases", GavelInputs()))
    assert not list((tmp_path / "ran").iterdir())
