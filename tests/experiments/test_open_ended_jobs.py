"""Forecasts for a cluster with jobs that declared no number of steps."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fairlead.config.schedulers import Part, SchedulerConfig
from fairlead.core import events as ev
from fairlead.core.errors import UnknownName
from fairlead.core.job import Job
from fairlead.core.plan import RoundPlan
from fairlead.engine.apply import apply_event
from fairlead.engine.loop import Loop
from fairlead.engine.state import State
from fairlead.experiments.live_inputs import (
    ASSUMED_RUN_S,
    RunTimePrior,
    open_ended_jobs,
    run_time_priors,
    with_assumed_ends,
)
from fairlead.experiments.lookahead import ClusterForecast, ForecastOptions, JobForecast, JobTimes, forecast
from fairlead.runtime.protocol.task_file import UNKNOWN_STEPS
from fairlead.testing.builders import cluster
from scenes import state_of, table_of

TABLE = table_of(["v100"], {("known", 1): [2.0]})


def scene(*kinds: str, steps: float = UNKNOWN_STEPS) -> State:
    """One job of each kind; the last one runs and has done 100 steps, and the others have finished before."""
    jobs = [Job(f"job-{place}", kind=kind, steps=steps) for place, kind in enumerate(kinds)]
    state = state_of(cluster("v100:4"), jobs, {number: [number] for number in range(len(jobs))})
    over = np.arange(len(jobs) - 1)
    apply_event(state, ev.JobsFinished(9.0, over, np.full(len(over), 9.0)))
    apply_event(state, ev.ProgressReported(9.0, np.array([len(over)]), np.array([100.0]), np.zeros(1), np.array([9.0])))
    state.scheduler = {"policy": "fifo", "rounds": 5.0}
    return state


def assumed(state: State) -> State:
    return with_assumed_ends(state, TABLE, open_ended_jobs(state))


def test_a_job_without_steps_runs_as_long_as_jobs_of_its_kind_did():
    state = assumed(scene("known", "known"))
    assert state.job_of[0].steps == 18.0, "it ran for 9 s"
    assert state.job_of[1].steps == 100.0 + 2 * 9.0, "it has run as long as the other, so as long again in the median"
    state = assumed(scene("strange", "known"))
    assert state.job_of[1].steps == 100.0 + 2 * 9.0, "no job of its kind has finished, but another one has"
    assert assumed(scene("known")).job_of[0].steps == 100.0 + 2 * ASSUMED_RUN_S, "no job has finished"


def test_open_ended_jobs_are_not_searched_for_one_by_one():
    class Listed(list[int]):
        def __contains__(self, number: object) -> bool:
            raise AssertionError("a search through the whole list, for each job")

    state = scene("known", "known")
    assert with_assumed_ends(state, TABLE, Listed(open_ended_jobs(state))).job_of[0].steps == 18.0


def members(ids: list[str], ran_s: list[float], user: str = "ann", kind: str = "known") -> State:
    """Members of arrays that ran so long and finished; the last one waits."""
    array = '{{"run": ["x"], "array": {{"name": "sweep", "id": "{}", "index": {}, "size": 9}}}}'
    jobs = [Job(f"m{n}", kind=kind, steps=UNKNOWN_STEPS, user=user, command=array.format(i, n)) for n, i in enumerate(ids)]
    state = state_of(cluster("v100:8"), jobs, {number: [number] for number in range(len(ran_s))})
    apply_event(state, ev.JobsFinished(max(ran_s), np.arange(len(ran_s)), np.array(ran_s)))
    return state


def test_finished_members_of_the_same_array_are_the_prior_before_others_of_the_kind():
    state = members(["a", "b", "b", "b", "b"], [9000.0, 90.0, 96.0, 100.0])
    assert run_time_priors(state, [4]) == {4: RunTimePrior(96.0, 3, 96.0, (90.0, 100.0))}
    assert run_time_priors(members(["a", "c"], [96.0]), [1]) == {1: RunTimePrior(96.0, 1, 96.0, (96.0, 96.0))}
    assert run_time_priors(members(["a", "c"], [96.0], kind=""), [1]) == {1: RunTimePrior(96.0, 1, 96.0, (96.0, 96.0))}


def test_a_finished_job_that_was_requeued_has_run_only_since_then():
    state = members(["a", "a", "a"], [96.0, 96.0])
    apply_event(state, ev.JobRequeued(200.0, 1, False, "ann"))
    assert run_time_priors(state, [1, 2]) == dict.fromkeys((1, 2), RunTimePrior(96.0, 1, 96.0, (96.0, 96.0)))


@pytest.mark.parametrize(("ran_s", "left_s"), [(30.0, 60.0), (80.0, 10.0), (83.0, 7.0), (90.0, 90.0), (500.0, 500.0)])
def test_a_job_that_has_outlived_all_others_runs_as_long_again_in_the_median(ran_s: float, left_s: float):
    jobs = [Job(name, kind="known", steps=UNKNOWN_STEPS) for name in ("done", "runs")]
    state = state_of(cluster("v100:2"), jobs, {0: [0], 1: [1]})
    apply_event(state, ev.JobsFinished(90.0, np.array([0]), np.array([90.0])))
    state.time = ran_s
    assert run_time_priors(state, [1]) == {1: RunTimePrior(left_s, 1, 90.0, (90.0, 90.0))}


def plain_scripts(policy: str, *others: Job, now: float = 10.0) -> State:
    """Four scripts that report nothing hold all GPUs; behind them the others."""
    scripts = [Job(f"s{n}", kind="sleep", steps=UNKNOWN_STEPS) for n in range(4)]
    free = [4 + place for place, job in enumerate(others) if not job.after]
    state = state_of(cluster("v100:4"), [*scripts, *others], {n: [n] for n in range(4)}, waiting=free)
    apply_event(state, ev.ProgressReported(0.0, np.arange(4), np.zeros(4), np.zeros(4), np.zeros(4)))
    state.scheduler = SchedulerConfig(Part(policy), round_s=5.0, first_step_s=120.0).to_data()
    state.time = now
    return state


def forecast_by_name(state: State, simulations: int = 1) -> tuple[ClusterForecast, dict[str, JobForecast]]:
    found = forecast(state, {"rates": []}, ForecastOptions(simulations=simulations))
    return found, {one.name: one for one in found.jobs}


def test_a_job_behind_jobs_of_unknown_end_has_no_invented_start():
    waits = Job("waits", kind="", steps=60.0)
    found, jobs = forecast_by_name(
        plain_scripts("fifo", waits, Job("after", steps=9.0, after=(0,)), Job("after-2", after=(5,)))
    )
    assert found.unknown == {0, 1, 2, 3}
    for name in ("waits", "after", "after-2"):
        assert jobs[name].without_arrivals == JobTimes(math.inf, math.inf)
        assert jobs[name].blocked


def test_a_script_that_reports_nothing_is_preempted_when_its_protection_ends():
    """Not a second from now, as it would be if its first step came at once."""
    found, jobs = forecast_by_name(plain_scripts("las", Job("next", kind="sleep", steps=UNKNOWN_STEPS), now=30.0))
    assert jobs["next"].without_arrivals.starts_s == 90.0, "120 s after the start of the others"
    assert 4 in found.unknown
    found, jobs = forecast_by_name(plain_scripts("srtf", Job("short", steps=60.0), now=30.0))
    assert jobs["short"].without_arrivals == JobTimes(90.0, 150.0)
    assert not jobs["short"].blocked


def test_jobs_of_unknown_end_are_not_simulated_up_to_the_horizon(monkeypatch):
    decided: list[RoundPlan] = []
    act = Loop._act

    def counted(self: Loop, plan: RoundPlan, memo: object) -> RoundPlan:
        decided.append(plan)
        return act(self, plan, memo)

    monkeypatch.setattr(Loop, "_act", counted)
    never = Job("never", steps=60.0, after=(0,))
    found, jobs = forecast_by_name(plain_scripts("las", Job("turns", kind="sleep", steps=UNKNOWN_STEPS), never), simulations=2)
    assert jobs["never"].blocked
    assert found.completed == 3, "also with others like them"
    assert len(decided) < 450, "otherwise they take turns until the horizon"


def test_a_time_limit_is_the_end_of_a_job_that_declared_no_steps():
    limited = [Job(f"s{n}", kind="sleep", steps=UNKNOWN_STEPS, time_limit_s=600.0) for n in range(4)]
    state = state_of(cluster("v100:4"), [*limited, Job("waits", steps=60.0)], {n: [n] for n in range(4)})
    state.scheduler, state.time = {"policy": "fifo", "rounds": 5.0}, 100.0
    found, jobs = forecast_by_name(state)
    assert (found.unknown, found.limited) == (frozenset(), {0, 1, 2, 3})
    assert jobs["s0"].without_arrivals.ends_s == 500.0
    assert jobs["waits"].without_arrivals == JobTimes(500.0, 560.0)


def test_a_job_type_that_was_never_measured_has_no_known_end():
    state = state_of(cluster("v100:1"), [Job("new", kind="new", steps=9.0), Job("waits", steps=60.0)], {})
    state.scheduler = {"policy": "fifo", "rounds": 5.0}
    found, jobs = forecast_by_name(state)
    assert found.unknown == {0}
    assert jobs["new"].without_arrivals.starts_s == 0.0
    assert jobs["waits"].blocked


@pytest.mark.parametrize(("said", "taken"), [(99.0, 118.0), (100.0, 100.0), (300.0, 300.0)])
def test_a_job_that_has_done_more_steps_than_it_declared_is_open_ended(said: float, taken: float):
    state = scene("known", "known", steps=said)
    assert open_ended_jobs(state) == ([1] if said < 100 else [])
    assert [assumed(state).job_of[number].steps for number in (0, 1)] == [said, taken]
    assert state.columns["steps"][1] == taken


def test_kinds_that_have_ended_and_are_not_in_the_table_keep_nobody_from_looking_ahead():
    state = assumed(scene("strange", "known"))
    assert [state.job_of[number].steps for number in (0, 1)] == [UNKNOWN_STEPS, 118.0]
    with pytest.raises(UnknownName):
        assumed(scene("known", "strange"))
