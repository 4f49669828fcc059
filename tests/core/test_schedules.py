"""What an owner has planned for its job's batch sizes: checked, kept, and compared with what the job does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fairlead.config.schedulers import SchedulerConfig, parse_part
from fairlead.core import events as ev
from fairlead.core.cluster import Cluster
from fairlead.core.errors import InputError, JournalError
from fairlead.core.job import Job, Regime, flags_of, planned_regimes, schedule_departure, wrong_schedule
from fairlead.engine.apply import apply_event
from fairlead.engine.codec import decode, encode
from fairlead.engine.state import State
from fairlead.engine.state_codec import load, save
from fairlead.experiments.simulate import Simulation, run_simulation
from fairlead.workloads.dynamics import Regimes
from fairlead.workloads.formats import read_trace_file
from fairlead.workloads.generate import Generator, declared_schedule
from fairlead.workloads.trace import Trace
from scenes import table_of

KIND = "A (batch size 8)"
PLAN = ((8, 0.3), (32, 0.7))
TABLE = table_of(["v100"], {(KIND, 1): [1.0], ("A (batch size 16)", 1): [0.75], ("A (batch size 32)", 1): [0.5]})


@pytest.mark.parametrize(
    ("schedule", "mode", "expected"),
    [
        (PLAN, "expert", ""),
        (((8, 1 / 3), (16, 1 / 3), (8, 1 / 3)), "expert", ""),
        (PLAN, "gns", "a schedule is for mode expert"),
        (((8, 0.3), (32, 0.3)), "expert", "shares that add up to 1; these make 0.6"),
        (((8, 0.5), (8, 0.5)), "expert", "differ from the one before"),
        (((0, 0.5), (8, 0.5)), "expert", "batch sizes of at least 1"),
        (((4, 1.5), (8, -0.5)), "expert", "shares above 0"),
    ],
)
def test_what_is_wrong_with_a_schedule_is_said(schedule, mode, expected):
    found = wrong_schedule(schedule, mode)
    assert expected in found if expected else not found


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ("expert,8@0.3|32", "field 'schedule' is '8@0.3|32': expected batch sizes and shares of the steps"),
        ("gns,8@0.3|32@0.7", "expected nothing, for a job of mode gns"),
        ("expert,8@0.3|32@0.6", "expected shares that add up to 1; these make 0.9"),
    ],
)
def test_a_trace_with_a_wrong_schedule_is_refused_by_its_line(row, expected, tmp_path: Path):
    file = tmp_path / "jobs.csv"
    file.write_text(f"submitted_s,steps,kind,mode,schedule\n0,900,{KIND},{row}\n")
    with pytest.raises(InputError) as told:
        read_trace_file(file)
    assert str(told.value).startswith(f"{file}:2: field 'schedule'")
    assert expected in str(told.value)


def test_a_journal_keeps_a_schedule_and_says_nothing_of_jobs_without_one():
    event = ev.JobSubmitted(1.0, 0, Job("a", 1.0, 900.0, KIND, mode="expert", schedule=PLAN))
    line = encode(event)
    assert b'"schedule":[[8,0.3],[32,0.7]]' in line
    assert decode(line) == event
    state = State(Cluster.parse("1xv100:1"))
    apply_event(state, event)
    assert load(save(state)).job_of[0] == event.job
    assert (
        encode(ev.JobSubmitted(1.0, 0, Job("a", 1.0, 900.0)))
        == b'{"event":"job_submitted","time":1.0,"number":0,"job":{"name":"a","steps":900.0}}'
    )


@pytest.mark.parametrize("written", [b"[8]", b"[[8]]", b'[["8",0.3]]', b"[[0,0.3]]", b"[[8,-1.0]]", b"7"])
def test_a_damaged_schedule_in_a_journal_is_told(written):
    line = encode(ev.JobSubmitted(1.0, 0, Job("a", 1.0, 900.0, KIND, mode="expert", schedule=PLAN)))
    with pytest.raises(JournalError, match="damaged"):
        decode(line.replace(b"[[8,0.3],[32,0.7]]", written))


def test_what_is_foreseen_follows_what_the_job_has_had():
    plan = ((8, 0.2), (16, 0.3), (8, 0.1), (32, 0.4))
    assert planned_regimes(plan, []) == planned_regimes(plan, [8]) == [*plan]
    assert planned_regimes(plan, [8, 16, 8]) == [*plan]
    assert planned_regimes(plan, [8, 32]) == [(8, 0.2), (32, 0.4)]
    assert planned_regimes(plan, [8, 64]) == [(8, 0.2), (64, 0.25)]
    assert planned_regimes(plan, [8, 64, 16]) == [(8, 0.2), (64, 0.25), *plan[1:]], "it has come back"


def test_who_departs_from_its_schedule_is_flagged_with_how():
    def told(done: float, *had: tuple[int, float]) -> str:
        return schedule_departure(PLAN, 1000.0, had, done)

    assert told(340.0, (8, 0.0)) == told(0.0) == told(1000.0, (8, 0.0), (32, 330.0)) == ""
    assert told(360.0, (8, 0.0)) == "its batch size is not yet 32 after 36% of its steps, as its schedule has it"
    assert told(999.0) == "its batch size is not yet 32 after 100% of its steps, as its schedule has it"
    assert schedule_departure(PLAN, 1000.0, (), 500.0, ended=True) == "its batch size never became 32, as its schedule has it"
    assert schedule_departure(PLAN, 1000.0, (), 300.0, ended=True) == "", "it ended before that was due"
    assert told(500.0, (8, 0.0), (32, 450.0)) == "its batch size became 32 after 45% of its steps, and 30% by its schedule"
    assert told(500.0, (8, 0.0), (16, 300.0)) == "its batch size became 16 where its schedule has 32"
    assert told(500.0, (8, 0.0), (32, 300.0), (64, 900.0)) == "its batch size became 64 behind the last of its schedule"
    job = Job("a", steps=1000.0, kind=KIND, mode="expert", schedule=PLAN)
    assert flags_of(job, (Regime(8, 0.0), Regime(16, 300.0)), False, 500.0) == (
        "declared a schedule, and its batch size became 16 where its schedule has 32",
    )


def test_a_job_that_misdeclares_its_schedule_runs_to_its_end_and_is_flagged():
    def of(name: str, *parts: tuple[int, float]) -> tuple[Job, Regimes]:
        job = Job(name, 0.0, 1000.0, KIND, mode="expert", schedule=PLAN)
        return job, Regimes.of(job, parts)

    made = [of("true", *PLAN), of("late", (8, 0.5), (32, 0.5)), of("never", (8, 1.0)), of("other", (8, 0.3), (16, 0.7))]
    trace = Trace.of([job for job, _ in made], dynamics={job.name: job_dynamics for job, job_dynamics in made})
    scheduler = SchedulerConfig(parse_part("shockwave"), round_s=120.0)
    run = run_simulation(Simulation(trace, Cluster.parse("2xv100:2"), scheduler, TABLE))
    assert not run.state.busy
    assert run.record.jobs.exclusive_s.tolist() == pytest.approx([300 + 350, 500 + 250, 1000, 300 + 700 / 1.5])
    flags = {run.state.job_of[number].name: flags for number, flags in run.state.flags().items()}
    assert set(flags) == {"late", "never", "other"}
    assert flags["never"] == ("declared a schedule, and its batch size never became 32, as its schedule has it",)


def test_generated_jobs_of_mode_expert_declare_what_they_do():
    made = Generator(jobs=30, modes={"expert": 0.5, "gns": 0.5}, schedule=((1.0, 0.25), (4.0, 0.75))).trace(2)
    assert {job.mode for job in made.jobs} > {"expert", "gns"} or {job.mode for job in made.jobs} == {"expert", "gns"}
    for job in made.jobs:
        if job.mode == "expert":
            job_dynamics = made.dynamics[job.name]
            assert isinstance(job_dynamics, Regimes)
            assert job.schedule == job_dynamics.parts
            assert not wrong_schedule(job.schedule, job.mode)
        else:
            assert job.schedule == ()


@pytest.mark.parametrize(
    ("parts", "declared"),
    [
        (((8, 0.3), (32, 0.9), (64, 0.2)), ((8, 0.3), (32, 0.7))),
        (((8, 0.3), (32, 0.3)), ((8, 0.3), (32, 0.7))),
        (((8, 0.3), (8, 0.3), (32, 0.4)), ((8, 0.6), (32, 0.4))),
        (((8, 1e-12), (32, 1e-12)), ((32, 1.0),)),
    ],
)
def test_a_schedule_ends_with_the_declared_steps(parts, declared):
    assert np.allclose(declared_schedule(parts), declared)
