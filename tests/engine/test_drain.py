"""Nodes that are to be left: who runs there moves or waits, nobody comes, and all of it follows from events."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fairlead.core import events as ev
from fairlead.core.plan import Launches, Placed, Selection
from fairlead.core.reasons import Code, Reasons
from fairlead.core.snapshot import Snapshot
from fairlead.engine import state_codec as saved
from fairlead.engine.codec import decode, encode
from fairlead.engine.explain import why_not_running
from fairlead.engine.state import State
from fairlead.testing.builders import job


def drain(harness, node: int, *, undo: bool = False) -> None:
    harness.loop.record(ev.NodeDrained(harness.state.time, node, undo))


@pytest.mark.parametrize("policy", ["fifo", "las", "max-min-fairness", "srtf"])
def test_who_runs_there_moves_and_nobody_comes(harness, policy):
    harness.cluster("v100:2,v100:2").policy(policy).submit(job("a"), job("b"), job("c"))
    assert harness.round().running == {"a", "b", "c"}
    drain(harness, 0)
    now = harness.round()
    assert len(now.running) == 2
    assert all(place >= 2 for name in now.running for place in harness.places(name))
    assert now.reason(*now.waiting).code in (Code.WAITING_FOR_RESOURCES, Code.BEHIND_HEAD, Code.NOT_PLACED), now.reasons
    harness.submit(job("late"))
    assert all(place >= 2 for name in harness.round().running for place in harness.places(name))
    drain(harness, 0, undo=True)
    assert harness.round().running == {"a", "b", "c", "late"}
    harness.run()


@pytest.mark.parametrize("away", ["drained", "down"])
def test_who_waits_behind_a_head_that_has_nothing_up_to_run_on_is_told_so(harness, away):
    harness.cluster("v100:1,k80:2").policy("fifo").submit(job("busy").with_(allowed_types=("k80",)))
    harness.round()
    lost = ev.NodeLost(harness.state.time, 0) if away == "down" else ev.NodeDrained(harness.state.time, 0)
    harness.loop.record(lost)
    harness.submit(job("head").with_(allowed_types=("v100",)), job("behind").with_(allowed_types=("k80",)))
    now = harness.round()
    assert now.running == {"busy"}
    assert now.reason("head") == Reasons.nodes_down(1, up=0)
    assert now.reason("behind") == Reasons.behind("head", needed=1, up=0)
    assert now.reason("behind").text == (
        "Waiting behind the head of the queue, job head, which needs 1 GPU; only 0 eligible GPUs are up, so no job"
        " behind it starts until more are up"
    )
    number = harness.state.next_number - 2
    harness.loop.record(ev.JobCancelled(harness.state.time, number))
    last = why_not_running(harness.state, harness.loop.plan, number + 1, harness.state.time)
    assert last == Reasons.behind("head", needed=1).at_position(1, 1), "a head that has left needs nothing any more"


def test_a_job_inside_its_minimum_run_leaves_too(harness):
    harness.cluster("v100:1,v100:1").submit(job("a").with_(min_run_s=3000.0))
    harness.round()
    node = harness.places("a")[0]
    drain(harness, node)
    now = harness.round()
    assert (now.suspended, harness.places("a")) == ({"a"}, [1 - node])


def test_a_gang_that_stands_on_it_in_part_leaves_as_one(harness):
    harness.cluster("v100:2,v100:2,v100:2").submit(job("gang").workers(4))
    harness.round()
    drain(harness, 0)
    harness.round()
    assert harness.places("gang") == [2, 3, 4, 5]


class Stays:
    """A placement that knows nothing of drains: who runs stays, others take what is free."""

    def place(self, selection: Selection, view: Snapshot) -> Placed:
        stays = view.jobs.of(selection.jobs).held == selection.workers
        free = view.up & ~view.device_map.held_by(selection.jobs[stays])
        new, spots = selection.jobs[~stays], free.nonzero()[0]
        count = min(len(new), len(spots))
        launches = Launches(new[:count], selection.types[~stays][:count], np.arange(count + 1), spots[:count])
        return Placed(selection.jobs[stays], launches, (len(spots) - count,))


def test_a_placement_that_does_not_know_of_it_does_not_matter(harness):
    harness.cluster("v100:1,v100:1").policy("fifo").submit(job("a"))
    harness.loop.stages = replace(harness.loop.stages, placement=Stays())
    harness.round()
    drain(harness, 0)
    assert harness.round().suspended == {"a"}
    harness.round()
    assert harness.places("a") == [1]


def test_a_drained_node_that_comes_back_is_still_drained(harness):
    harness.cluster("v100:1,v100:1").submit(job("a"), job("b"))
    harness.round()
    drain(harness, 1)
    for event in (ev.NodeLost(harness.state.time, 1), ev.NodeRepaired(harness.state.time, 1)):
        harness.loop.record(event)
    assert harness.state.up.tolist() == [True, False]
    drain(harness, 1, undo=True)
    assert harness.state.up.all()


def test_the_event_the_saved_state_and_a_fork_know_of_it(harness):
    for event in (ev.NodeDrained(1.0, 3), ev.NodeDrained(2.0, 3, undo=True)):
        assert decode(encode(event)) == event
    harness.cluster("v100:1,v100:1").submit(job("a"))
    harness.round()
    drain(harness, 1)
    state = harness.state
    again = saved.load(saved.save(state))
    assert again.digest() == state.digest()
    for other in (again, State.from_snapshot(state.snapshot().detached())):
        assert (other.up.tolist(), other.present.all(), other.capacity.tolist()) == ([True, False], True, [1])
