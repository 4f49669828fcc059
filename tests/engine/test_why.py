"""Why a job does not run, told from the state and the last plan; also of those that failed, after a replay and after a restart
from a snapshot of before."""

from __future__ import annotations

import io
import zlib
from dataclasses import replace

import numpy as np
import orjson
import pytest

from fairlead.core import events as ev
from fairlead.core.cluster import AcceleratorType, Cluster, Node
from fairlead.core.errors import InvalidPlan
from fairlead.core.job import Failure, Job
from fairlead.core.plan import Launches, RoundPlan
from fairlead.core.reasons import Code, Reasons
from fairlead.engine import state_codec as saved
from fairlead.engine.apply import apply_event, replay_events
from fairlead.engine.codec import decode, encode
from fairlead.engine.explain import why_not_running
from fairlead.engine.state import State
from fairlead.engine.validate import revalidate_plan
from fairlead.testing import Harness, job
from scenes import state_of

ONE = np.array([0])
STARTS = Launches(ONE, ONE * 0, np.array([0, 1]), ONE)
STATUS_3 = ("worker 1 ended with status 3", 3, 0, 1)


def events(*more: ev.Event) -> list[ev.Event]:
    """A job with two tries that was started at second 10."""
    return [
        ev.JournalOpened(0.0, Cluster.parse("2xv100:2"), {"policy": "fifo"}),
        ev.JobSubmitted(1.0, 0, Job("a", 1.0, retry_limit=1)),
        ev.RoundPlanned(RoundPlan(10.0, admitted=ONE, launches=STARTS)),
        *more,
    ]


LAUNCHED = RoundPlan(10.0, launches=STARTS, up=(4,), free=(3,))
FAILS = ev.JobsInterrupted(12.0, ONE, np.array([0.0]), True, *STATUS_3)
FAILS_FOR_GOOD = (
    ev.RoundPlanned(RoundPlan(20.0, launches=STARTS)),
    ev.JobsFailed(21.0, ONE, np.array([21.0]), *STATUS_3),
)


def told(state: State, plan: RoundPlan | None) -> str:
    reason = why_not_running(state, plan, 0, state.time)
    return "" if reason is None else str(reason)


def test_who_failed_and_is_tried_again_says_so_with_the_numbers():
    state = replay_events(events(FAILS))
    reason = why_not_running(state, LAUNCHED, 0, 12.5)
    assert reason is not None
    assert reason.code is Code.RETRYING
    expected = {"status": 3, "node": "v100-0", "next": 2, "attempts": 2}
    assert expected.items() <= dict(reason.facts).items()
    assert reason.text == "The last attempt failed: worker 1 ended with status 3 on v100-0; attempt 2 of 2 at the next decision"
    assert told(state, None) == str(reason), "before the first decision after a restart"


def test_who_failed_says_how_for_as_long_as_it_is_remembered():
    state = replay_events(events(FAILS, *FAILS_FOR_GOOD))
    expected = "backend: worker 1 ended with status 3 on v100-0, in attempt 2 of 2"
    again = replay_events([decode(encode(event)) for event in events(FAILS, *FAILS_FOR_GOOD)])
    for one in (state, again, saved.load(saved.save(state))):
        assert told(one, LAUNCHED) == expected
        assert one.last_failure == {0: Failure(*STATUS_3, start=2)}


def test_a_signal_is_named_and_who_finishes_in_the_end_has_not_failed():
    killed = replace(FAILS, why="worker 0 was ended by SIGKILL", code=-9)
    state = replay_events(events(killed))
    assert dict(why_not_running(state, LAUNCHED, 0, 12.5).facts)["signal"] == "SIGKILL"
    for event in (ev.RoundPlanned(RoundPlan(20.0, launches=STARTS)), ev.JobsFinished(30.0, ONE, np.array([30.0]))):
        apply_event(state, event)
        assert told(state, LAUNCHED) == ""
    assert state.last_failure == {}


def test_who_lost_its_node_waits_for_the_next_decision_and_not_for_others():
    state = replay_events(events(ev.JobsInterrupted(12.0, ONE, np.array([0.0]))))
    assert why_not_running(state, LAUNCHED, 0, 12.5) == Reasons.next_decision()


def test_who_fails_while_a_decision_is_made_waits_for_the_next_and_who_it_suspends_does_not():
    goes_on = RoundPlan(11.0, up=(4,), free=(3,))
    state = replay_events(events(FAILS))
    late = revalidate_plan(goes_on, state.snapshot(15.0))
    assert why_not_running(state, late, 0, 20.0).code is Code.RETRYING
    state = replay_events(events())
    late = revalidate_plan(replace(goes_on, suspended=ONE), state.snapshot(15.0))
    apply_event(state, ev.RoundPlanned(late))
    assert why_not_running(state, late, 0, 20.0) == Reasons.not_selected(1, free=3, eligible=4)


def test_accelerators_that_are_too_small_for_a_job_are_none_that_it_could_have():
    small, large = AcceleratorType("k80", memory_gb=12.0), AcceleratorType("v100", memory_gb=32.0)
    cluster = Cluster((Node("a", "k80", 4), Node("b", "v100", 1)), (small, large))
    state = State(cluster)
    apply_event(state, ev.JobSubmitted(1.0, 0, Job("a", 1.0, memory_gb=16.0)))
    apply_event(state, ev.RoundPlanned(RoundPlan(10.0, admitted=ONE)))
    plan = RoundPlan(10.0, up=(4, 1), free=(4, 0))
    assert why_not_running(state, plan, 0, 11.0) == Reasons.waiting(1, free=0, eligible=1)
    assert why_not_running(state, replace(plan, up=(4, 0)), 0, 11.0) == Reasons.nodes_down(1, up=0)


def test_who_comes_after_others_says_so_before_the_first_decision_too():
    state = replay_events([*events()[:2], ev.JobSubmitted(1.0, 1, Job("b", 1.0, after=(0,)))])
    assert why_not_running(state, None, 1, 1.0) == Reasons.after("a")
    assert why_not_running(state, None, 0, 1.0) == Reasons.next_decision()


def test_a_failure_of_an_earlier_start_is_not_the_last_try():
    ran_on = (ev.RoundPlanned(RoundPlan(20.0, launches=STARTS)), ev.JobsInterrupted(86_400.0, ONE, np.array([0.0])))
    state = replay_events(events(FAILS, *ran_on))
    for one in (state, saved.load(saved.save(state))):
        assert why_not_running(one, replace(LAUNCHED, time=20.0), 0, 86_401.0) == Reasons.next_decision()


@pytest.mark.parametrize(
    ("free", "expected"),
    [(3, Reasons.not_selected(1, free=3, eligible=4)), (0, Reasons.waiting(1, free=0, eligible=4))],
)
def test_others_go_first_only_where_too_little_is_free(free, expected):
    state = replay_events(events(ev.JobsInterrupted(12.0, ONE, np.array([0.0]))))
    assert why_not_running(state, RoundPlan(20.0, up=(4,), free=(free,)), 0, 21.0) == expected


def test_who_failed_and_finds_no_room_says_both():
    state = replay_events(events(FAILS))
    reason = why_not_running(state, RoundPlan(20.0, up=(4,), free=(0,)), 0, 21.0)
    assert reason.code is Code.WAITING_FOR_RESOURCES
    assert {"needed": 1, "free": 0, "status": 3, "node": "v100-0"}.items() <= dict(reason.facts).items()
    assert reason.text == (
        "Waiting for resources: needs 1 GPU; 0 of the 4 eligible GPUs are free; "
        "failed in attempt 1 of 2: worker 1 ended with status 3 on v100-0"
    )


def test_lines_of_before_are_read_and_what_says_nothing_new_is_spelled_as_before():
    line = b'{"event":"jobs_interrupted","time":12.0,"jobs":[0],"steps":[0.0],"own_fault":true}'
    failed = b'{"event":"jobs_failed","time":21.0,"jobs":[0],"at":[21.0],"why":"time limit"}'
    for old in (line, failed):
        assert encode(decode(old)) == old
    state = replay_events(events(decode(line)))
    assert told(state, LAUNCHED) == "loop: The last attempt failed: no details are known; attempt 2 of 2 at the next decision"
    apply_event(state, FAILS_FOR_GOOD[0])
    apply_event(state, decode(failed))
    assert told(state, LAUNCHED) == "backend: reached its time limit"


def test_a_snapshot_of_before_is_read_and_nobody_in_it_has_a_failure():
    state = replay_events(events(FAILS))
    again = saved.load(_without_failures(saved.save(state)))
    assert (again.digest(), again.last_failure) == (state.digest(), {})
    assert why_not_running(again, None, 0, 12.5) == Reasons.next_decision()


def _without_failures(data: bytes) -> bytes:
    """As it was written before failures were a part of it."""
    magic, _, rest = data.partition(b"\n")
    with np.load(io.BytesIO(zlib.decompress(rest[saved._CHECKSUM :]))) as arrays:
        parts = {name: arrays[name] for name in arrays.files}
    about = orjson.loads(parts["about"].tobytes())
    del about["last_failure"]
    parts["about"] = np.frombuffer(orjson.dumps(about), dtype=np.uint8)
    payload = io.BytesIO()
    np.savez(payload, **parts)
    body = zlib.compress(payload.getbuffer(), 1)
    return magic + b"\n" + saved._checksum(body) + body


@pytest.mark.parametrize("end", [FAILS, FAILS_FOR_GOOD[1]])
def test_nobody_fails_on_a_node_that_is_not_there(end: ev.JobsInterrupted | ev.JobsFailed):
    with pytest.raises(InvalidPlan, match="no node number 2"):
        replay_events(events(replace(end, node=2)))


def test_a_waiting_job_has_its_position_in_the_order_of_the_policy(harness: Harness):
    harness.cluster("v100:1").policy("srtf").submit(
        job("runs").lasting(10), job("long").lasting(3000), job("short").lasting(100), job("middle").lasting(1000)
    )
    now = harness.round()
    assert now.launched == {"runs"}
    state, plan = harness.loop.state, harness.loop.plan
    texts = {state.job_of[n].name: str(why_not_running(state, plan, n, state.time)) for n in range(1, 4)}
    needs = "policy: Waiting for resources: needs 1 GPU; 0 of the 1 eligible GPUs are free; position"
    assert texts == {"short": f"{needs} 1 of 3", "middle": f"{needs} 2 of 3", "long": f"{needs} 3 of 3"}


def test_a_job_whose_gpus_became_free_since_the_last_decision_waits_for_the_next_one():
    machines = Cluster.parse("1xv100:1")
    state = state_of(machines, [Job("runs", steps=10.0), Job("waits", steps=10.0)], {0: [0]})
    plan = RoundPlan(state.time, free=(0,), up=(1,))
    before = why_not_running(state, plan, 1, state.time)
    assert before is not None
    assert before.code is Code.WAITING_FOR_RESOURCES
    apply_event(state, ev.JobsFinished(state.time + 1.0, np.array([0]), np.array([state.time + 1.0])))
    after = why_not_running(state, plan, 1, state.time)
    assert after is not None
    assert after.code is Code.NEXT_DECISION


@pytest.mark.parametrize(
    ("workers", "free", "text"),
    [
        (1, (0, 0), "Waiting for resources: needs 1 GPU; 0 of the 6 eligible GPUs are free"),
        (2, (1, 1), "Waiting for resources: needs 2 GPUs; 2 of the 6 eligible GPUs are free, at most 1 of one type"),
        (2, (2, 1), "Not selected in this round: needs 2 GPUs; 3 of the 6 eligible GPUs are free"),
    ],
)
def test_gpus_of_all_types_that_a_job_may_use_are_counted(workers: int, free: tuple[int, int], text: str) -> None:
    machines = Cluster.parse("4xv100:2,2xk80:2,4xp100:4")
    job = Job("a", 1.0, workers=workers, allowed_types=("v100", "k80"))
    opened, entered = ev.JournalOpened(0.0, machines, {"policy": "fifo"}), ev.RoundPlanned(RoundPlan(10.0, admitted=ONE))
    state = replay_events([opened, ev.JobSubmitted(1.0, 0, job), entered])
    by_type = dict(zip(("v100", "k80", "p100"), (*free, 4)))
    up = {"v100": 4, "k80": 2, "p100": 4}
    plan = RoundPlan(20.0, up=tuple(up[t] for t in machines.type_names), free=tuple(by_type[t] for t in machines.type_names))
    reason = why_not_running(state, plan, 0, 20.0)
    assert reason is not None
    assert reason.text == text
