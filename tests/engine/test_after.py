"""Jobs that come after others: they stay at the door until those have finished, and leave when one never will."""

from __future__ import annotations

import pickle
from dataclasses import replace
from functools import partial

import pytest

from fairlead.core import events as ev
from fairlead.core.errors import InputError, InvalidPlan
from fairlead.core.job import Blocked, Job, Phase
from fairlead.core.reasons import Reasons
from fairlead.engine import state_codec as saved
from fairlead.engine.apply import apply_event
from fairlead.engine.codec import decode, encode
from fairlead.engine.state import State
from fairlead.testing.builders import cluster, job
from fairlead.workloads.formats import read_trace_file
from fairlead.workloads.formats.native_trace import write_trace
from fairlead.workloads.trace import Trace


def follows(name: str, *numbers: int):
    return job(name).lasting(100).with_(after=numbers)


@pytest.mark.parametrize("policy", ["fifo", "las", "max-min-fairness"])
def test_it_begins_when_all_it_waits_for_have_finished(harness, policy):
    harness.cluster("v100:4").policy(policy)
    harness.submit(job("a").lasting(100), job("b").lasting(700), follows("c", 0, 1), follows("d", 2))
    now = harness.round()
    assert (now.running, now.waiting) == ({"a", "b"}, {"c", "d"})
    assert now.reason("c") == Reasons.after("a, b")
    assert harness.round().reason("c") == Reasons.after("b")
    harness.run()
    assert [harness.ended_s(name) for name in "abcd"] == [100, 700, 1000, 1300]


@pytest.mark.parametrize("why", ["failed", "cancelled", "refused"])
def test_it_is_cancelled_when_one_will_never_finish_and_so_are_those_behind_it(harness, why):
    first = job("first").lasting(1000)
    if why == "failed":
        first = first.with_(time_limit_s=100.0)
    elif why == "refused":
        first = first.workers(9)
    harness.cluster("v100:4").submit(first, follows("second", 0), follows("third", 1), follows("apart"))
    harness.round()
    if why == "cancelled":
        harness.loop.record(ev.JobCancelled(harness.state.time, 0))
        harness._backend.world.end(harness.state.columns["number"][:1].copy())
        harness.round()
    harness.run()
    assert [harness.phase(name) for name in ("second", "third", "apart")] == [
        Phase.CANCELLED,
        Phase.CANCELLED,
        Phase.FINISHED,
    ]
    how = {"failed": "has failed", "cancelled": "was cancelled", "refused": "was refused"}[why]
    assert harness.state.refusals[1] == Reasons.dependency_failed("first", how)
    assert harness.state.refusals[2] == Reasons.dependency_failed("second", "was cancelled")


def test_it_does_not_hold_up_those_behind_it_in_strict_order(harness):
    harness.cluster("v100:2").policy("fifo").submit(job("a"), follows("b", 0).workers(2), job("c"))
    assert harness.round().running == {"a", "c"}


@pytest.mark.parametrize("numbers", [(0,), (7,), (-1,)])
def test_only_what_was_submitted_before_can_be_waited_for(numbers):
    with pytest.raises(InvalidPlan, match="before it"):
        apply_event(State(cluster("v100:1")), ev.JobSubmitted(0.0, 0, Job("a", after=numbers)))


def test_the_event_the_saved_state_and_a_fork_know_of_it(harness):
    harness.cluster("v100:2").submit(job("a").lasting(1000), follows("b", 0), job("lost").workers(3), follows("never", 2))
    event = ev.JobSubmitted(1.0, 9, Job("x", submitted_s=1.0, after=(1, 2)))
    assert decode(encode(event)) == event
    harness.round()
    state = harness.state
    assert set(state.snapshot().blocked) == {1}
    for other in (saved.load(saved.save(state)), State.from_snapshot(state.snapshot().detached())):
        assert other.snapshot().blocked == state.snapshot().blocked
    fork = State.from_snapshot(state.snapshot().detached())
    for one, tell in ((state, harness.loop.record), (fork, partial(apply_event, fork))):
        tell(ev.JobsFailed(300.0, one.live.copy(), one.columns["since_s"][one.live] + 300, "x"))
        assert one.snapshot().blocked[1].lost == 0
    again = State.from_snapshot(state.snapshot().detached())
    assert again.snapshot().blocked == state.snapshot().blocked


@pytest.mark.parametrize("again", [False, True])
def test_in_a_fork_who_comes_after_somebody_that_has_ended_fares_as_in_the_run(harness, again):
    harness.cluster("v100:2").submit(job("done").lasting(10), job("lost").workers(3), job("long").lasting(5000))
    harness.round()
    harness.round()
    view = harness.state.snapshot().detached()
    if again:
        view = State.from_snapshot(view).snapshot().detached()
    fork = State.from_snapshot(pickle.loads(pickle.dumps(view)))
    for number, other in ((3, 0), (4, 1), (5, 2)):
        apply_event(fork, ev.JobSubmitted(1000.0, number, Job(f"after {other}", 1000.0, after=(other,))))
    assert fork.snapshot().blocked == {4: Blocked((), 1, Phase.REFUSED), 5: Blocked((2,))}


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_trace_carries_it(tmp_path, suffix):
    trace = Trace.of([Job("a", 0.0, 5.0), Job("b", 1.0, 5.0), Job("c", 2.0, 5.0, after=(0, 1))], "t")
    path = tmp_path / f"t.{suffix}"
    write_trace(trace, path)
    assert read_trace_file(path).jobs == trace.jobs
    assert trace.with_jobs(trace.jobs[1:]).jobs[1].after == ()
    assert trace.with_jobs(replace(job, user="x") for job in trace.jobs).jobs[2].after == (0, 1)


def test_a_trace_with_a_circle_is_refused(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("name,submitted_s,duration_s,after\na,0,5,1\nb,1,5,0\n")
    with pytest.raises(InputError, match=r"t.csv:2.*after"):
        read_trace_file(path)
