"""Looking ahead from a cluster with jobs that did not say how many steps they will do."""

from __future__ import annotations

import numpy as np
import pytest

from fairlead.core import events as ev
from fairlead.core.errors import UnknownName
from fairlead.core.job import Job
from fairlead.engine.apply import apply_event
from fairlead.engine.state import State
from fairlead.experiments.live_inputs import RunTimePrior, open_ended_jobs, run_time_priors, with_assumed_ends
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
    return state


def test_a_job_without_steps_runs_as_long_as_jobs_of_its_kind_did():
    state = with_assumed_ends(scene("known", "known"), TABLE)
    assert [state.job_of[number].steps for number in (0, 1)] == [18.0, 118.0], "9 s; longer than any: as long again as it ran"
    state = with_assumed_ends(scene("strange", "known"), TABLE)
    assert state.job_of[1].steps == 7300.0, "no job of its kind has finished: an hour, for the start of others"


def members(ids: list[str], ran_s: list[float], user: str = "ann", kind: str = "known") -> State:
    """Members of arrays that ran so long and finished; the last one waits."""
    array = '{{"run": ["x"], "array": {{"name": "sweep", "id": "{}", "index": {}, "size": 9}}}}'
    jobs = [Job(f"m{n}", kind=kind, steps=UNKNOWN_STEPS, user=user, command=array.format(i, n)) for n, i in enumerate(ids)]
    state = state_of(cluster("v100:8"), jobs, {number: [number] for number in range(len(ran_s))})
    apply_event(state, ev.JobsFinished(max(ran_s), np.arange(len(ran_s)), np.array(ran_s)))
    return state


def test_finished_members_of_the_same_array_are_the_prior_before_others_of_the_kind():
    state = members(["a", "b", "b", "b", "b"], [9000.0, 90.0, 96.0, 100.0])
    assert run_time_priors(state) == {4: RunTimePrior(96.0, 3)}
    assert run_time_priors(members(["a", "c"], [96.0])) == {1: RunTimePrior(96.0, 1)}
    assert run_time_priors(members(["a", "c"], [96.0], kind="")) == {}


@pytest.mark.parametrize(("said", "taken"), [(99.0, 118.0), (100.0, 100.0), (300.0, 300.0)])
def test_who_has_done_more_than_it_said_goes_on_as_long_again(said: float, taken: float):
    state = scene("known", "known", steps=said)
    assert open_ended_jobs(state) == ([1] if said < 100 else [])
    assert [with_assumed_ends(state, TABLE).job_of[number].steps for number in (0, 1)] == [said, taken]
    assert state.columns["steps"][1] == taken


def test_kinds_that_have_ended_and_are_not_in_the_table_keep_nobody_from_looking_ahead():
    state = with_assumed_ends(scene("strange", "known"), TABLE)
    assert [state.job_of[number].steps for number in (0, 1)] == [UNKNOWN_STEPS, 7300.0]
    with pytest.raises(UnknownName):
        with_assumed_ends(scene("known", "strange"), TABLE)
