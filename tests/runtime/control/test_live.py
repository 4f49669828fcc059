"""The backend of a real cluster, with agents that the test plays: orders go out, words come in, and the loop in between is the
one that simulations run."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from fairlead.config import SchedulerConfig
from fairlead.core import events as ev
from fairlead.core.job import Job, Phase
from fairlead.engine.codec import decode, encode
from fairlead.engine.journal import MemoryJournal
from fairlead.engine.loop import Loop
from fairlead.engine.state import State
from fairlead.registry import Registry
from fairlead.runtime.control.clock import WallClock, origin_of
from fairlead.runtime.control.launches import Fate, Launches, Seat
from fairlead.runtime.control.live import Live
from fairlead.runtime.control.measures import MOST_OF_ONE_USER, Measures
from fairlead.runtime.orders import MOST_METRICS, Ended, Extend, Kill, Launch, Metric, Order, Progress, Revoke, Task, Wants
from fairlead.termination.by_loss import ByLoss
from fairlead.testing import check_events
from fairlead.testing.builders import cluster
from fairlead.testing.invariants import check_state
from scenes import table_of

ROUND = 10.0


@dataclass
class Played:
    """Agents that do nothing but remember their orders."""

    orders: list[tuple[int, Order]] = field(default_factory=list)

    def send(self, node: int, order: Order) -> None:
        self.orders.append((node, order))

    def address_of(self, node: int) -> str:
        return f"node-{node}"

    def new(self, kind: type = Order) -> list[tuple[int, Order]]:
        found, self.orders = self.orders, []
        return found


class Scene:
    def __init__(
        self,
        machines: str = "v100:2,v100:2",
        policy: str = "las",
        state: State | None = None,
        journal=None,
        table=None,
        **parts: str,
    ) -> None:
        self.second = 0.0 if state is None else state.time
        self.wire = Played()
        self.cluster = cluster(machines)
        clock = WallClock(0.0, self.second, lambda: 0.0, lambda: self.second)
        clock._offset = 0.0
        number = 0 if state is None else state.next_number
        self.live = Live(self.cluster, self.wire, clock, lambda job: Task((job.command or "true",)), number)
        self.live.lock.acquire()
        self.journal = journal or MemoryJournal()
        stages = SchedulerConfig.from_data({"policy": policy, "rounds": ROUND, **parts}).build(
            table or table_of(self.cluster.type_names, {("", 2): [1.0], ("", 3): [1.0]}), Registry.installed()
        )
        self.loop = Loop(state or State(self.cluster), self.live, stages, journal=self.journal, patient=True)
        if state is None:
            self.loop.record(ev.Opened(0.0, self.cluster, {}))
            for node in range(len(self.cluster.nodes)):
                self.loop.record(ev.NodeLost(0.0, node))
        self.answers: list[object] = []

    def at(self, second: float) -> list[tuple[int, Order]]:
        """What is ordered when the clock stands at this second."""
        self.second = second
        self.loop.run(until=second)
        return self.wire.new()

    def join(self, *nodes: int) -> None:
        for node in nodes or range(len(self.cluster.nodes)):
            self.live.joined(node, ())

    def job(self, name: str, **about) -> None:
        self.live.submit_jobs([Job(name, **about)], self.answers.append)

    def phase(self, number: int) -> Phase:
        return Phase(int(self.loop.state.store.arrays["phase"][number]))

    def check(self) -> None:
        check_state(self.loop.state)
        check_events(list(self.journal), real=True)
        assert State.replay(self.journal).digest() == self.loop.state.digest()


def test_a_job_is_launched_reports_and_finishes():
    scene = Scene()
    scene.join()
    scene.job("a", steps=100.0)
    assert scene.at(0.0) == [(0, Launch(0, 1, "a", Task(("true",)), (0,), (0,), master_address="node-0"))]
    scene.live.tell(0, [Progress(0, 1, steps=20, saved=0, rate=2.0), Metric(0, 1, "loss", 0.5)])
    scene.at(12.0)
    assert scene.loop.state.snapshot(22.0).jobs.steps_done.tolist() == [40.0]
    assert scene.loop.state.snapshot(22.0).jobs.metric("loss").tolist() == [0.5]
    scene.live.tell(0, [Ended(0, 1, 0, False, 100, 100)])
    assert scene.at(40.0) == []
    assert scene.phase(0) is Phase.FINISHED
    scene.check()


def test_who_has_converged_is_done_and_may_save_before_it_leaves():
    scene = Scene("v100:1", "fifo")
    scene.loop.stages = replace(scene.loop.stages, termination=ByLoss(0.01))
    scene.join()
    scene.job("a", steps=100.0)
    scene.job("b", steps=100.0)
    scene.at(0.0)
    told = [Progress(0, 1, 20, 0, 2.0), Metric(0, 1, "target_loss", 0.5), Metric(0, 1, "loss", 0.6)]
    scene.live.tell(0, told)
    assert scene.at(10.0) == []
    scene.live.tell(0, [Metric(0, 1, "loss", 0.504)])
    assert scene.at(20.0) == [(0, Revoke(0, 1))]
    assert scene.phase(0) is Phase.FINISHED
    scene.live.tell(0, [Ended(0, 1, 0, True, 45, 45)])
    assert [order.job for _, order in scene.at(21.0)] == [1]
    assert scene.loop.state.store.arrays["ended_s"][0] == 20.0
    scene.check()


def test_a_launch_that_its_node_could_not_prepare_costs_no_try():
    scene = Scene()
    scene.join()
    scene.job("a", steps=100.0, retry_limit=0)
    scene.at(0.0)
    scene.live.tell(0, [Ended(0, 1, 126, True, 0, 0, "/full: No space left on device")])
    assert [order.generation for _, order in scene.at(10.0)] == [2]
    assert scene.loop.state.store.arrays["failures"][0] == 0
    (told,) = [event for event in scene.journal if isinstance(event, ev.JobsInterrupted)]
    assert (told.own_fault, told.why) == (False, "/full: No space left on device")
    scene.check()


def test_submissions_are_answered_when_they_are_in_the_journal():
    scene = Scene()
    scene.job("a")
    scene.at(1.0)
    assert not scene.answers or len(list(scene.journal)) > 3
    scene.at(2.0)
    (events,) = scene.answers
    assert [event.job.name for event in events] == ["a"]


def test_nothing_runs_before_an_agent_is_there():
    scene = Scene()
    scene.job("a")
    assert scene.at(10.0) == []
    assert scene.phase(0) is Phase.WAITING
    scene.join(1)
    assert [(node, order.accelerators) for node, order in scene.at(20.0)] == [(1, (0,))]


def test_a_newcomer_starts_when_the_one_before_it_has_left():
    scene = Scene("v100:1")
    scene.join()
    scene.job("old", steps=1000.0)
    scene.at(0.0)
    scene.live.tell(0, [Progress(0, 1, 10, 0, 1.0)])
    scene.at(10.0)
    scene.job("new", steps=1000.0)
    assert scene.at(20.0) == [(0, Revoke(0, 1))]  # the new one waits for the accelerator, though the plan has it running
    assert scene.phase(1) is Phase.RUNNING
    scene.live.tell(0, [Ended(0, 1, 0, True, 25, 25)])
    assert [order.job for _, order in scene.at(21.0)] == [1]
    assert scene.loop.state.store.arrays["base_steps"][0] == 25.0
    scene.check()


def test_a_gang_is_one_launch_on_several_nodes_and_dies_as_one():
    scene = Scene()
    scene.join()
    scene.job("wide", workers=3, steps=50.0)
    orders = scene.at(0.0)
    assert [(node, order.ranks, order.accelerators, order.world_size) for node, order in orders] == [
        (0, (0, 1), (0, 1), 3),
        (1, (2,), (0,), 3),
    ]
    (one, two) = (order for _, order in orders)
    assert (one.master_port, one.gang_port) == (two.master_port, two.gang_port) != (0, 0)
    assert one.master_address == two.master_address == "node-0"
    assert one.gang_token == two.gang_token != ""
    scene.live.tell(1, [Ended(0, 1, 1, False, 7, 5, "exit code 1")])
    assert scene.at(3.0) == [(0, Kill(0, 1))]
    assert scene.phase(0) is Phase.RUNNING
    scene.live.tell(0, [Ended(0, 1, -9, False, 7, 5)])
    again = [order for _, order in scene.at(10.0)]
    assert [order.generation for order in again] == [2, 2]  # its own fault, and it may try again
    assert again[0].gang_token != one.gang_token
    assert scene.loop.state.store.arrays["failures"][0] == 1
    assert scene.loop.state.store.arrays["base_steps"][0] == 5.0
    scene.check()


def test_who_was_killed_because_its_agent_was_to_leave_has_not_failed_and_neither_has_its_gang():
    scene = Scene()
    scene.join()
    scene.job("wide", workers=3, steps=50.0, retry_limit=0)
    scene.at(0.0)
    scene.live.tell(1, [Ended(0, 1, -9, True, 7, 5, "killed 30 s after it was asked to stop")])
    assert scene.at(3.0) == [(0, Kill(0, 1))], "half a gang is no gang"
    scene.live.tell(0, [Ended(0, 1, -9, False, 7, 5, "killed because it was not wanted any more")])
    assert [order.generation for _, order in scene.at(10.0)] == [2, 2]
    a = scene.loop.state.store.arrays
    assert (a["failures"][0], a["base_steps"][0]) == (0, 5.0)
    scene.check()


def test_half_a_gang_whose_agent_was_away_when_the_other_failed_is_ended_when_it_is_back():
    scene = Scene()
    scene.join()
    scene.job("wide", workers=3, steps=50.0)
    scene.at(0.0)
    scene.live.tell(1, [Ended(0, 1, 1, False, 7, 5, "exit code 1")])
    scene.at(3.0)  # an order to end it that nobody hears
    scene.live.joined(0, [(0, 1)])
    assert scene.at(4.0) == [(0, Kill(0, 1))]
    scene.live.tell(0, [Ended(0, 1, -9, False, 7, 5)])
    assert [order.generation for _, order in scene.at(10.0)] == [2, 2]
    scene.check()


def test_half_a_gang_that_never_began_does_not_begin_when_the_other_has_failed():
    scene = Scene()
    scene.join()
    scene.job("wide", workers=3, steps=50.0)
    scene.at(0.0)
    scene.live.tell(1, [Ended(0, 1, 1, False, 7, 5, "exit code 1")])
    scene.at(3.0)
    scene.live.joined(0, ())
    assert scene.at(4.0) == []
    assert [order.generation for _, order in scene.at(10.0)] == [2, 2]
    scene.check()


def test_a_job_that_fails_too_often_has_failed():
    scene = Scene("v100:1")
    scene.join()
    scene.job("bad", retry_limit=1)
    scene.at(0.0)
    scene.live.tell(0, [Ended(0, 1, 3, False, 0, 0, "exit code 3")])
    scene.at(10.0)
    assert scene.phase(0) is Phase.RUNNING
    scene.live.tell(0, [Ended(0, 2, 3, False, 0, 0, "exit code 3")])
    scene.at(20.0)
    assert scene.phase(0) is Phase.FAILED
    scene.check()


def test_what_is_said_of_an_older_launch_is_dropped():
    scene = Scene("v100:1")
    scene.join()
    scene.job("a", retry_limit=5)
    scene.at(0.0)
    scene.live.tell(0, [Ended(0, 1, 1, False, 0, 0)])
    scene.at(10.0)
    scene.live.tell(0, [Ended(0, 1, 1, False, 0, 0), Progress(0, 1, 99, 99, 9.0)])
    scene.at(11.0)
    assert scene.phase(0) is Phase.RUNNING
    assert scene.loop.state.store.arrays["failures"][0] == 1
    assert scene.loop.state.store.arrays["base_steps"][0] == 0.0


def test_a_cancelled_job_is_killed_and_its_place_given_when_it_is_gone():
    scene = Scene("v100:1")
    scene.join()
    scene.job("a")
    scene.job("b")
    scene.at(0.0)
    scene.live.cancel(0)
    assert scene.at(10.0) == []  # not before it is in the journal
    assert scene.at(10.5) == [(0, Kill(0, 1))]
    assert (scene.phase(0), scene.phase(1)) == (Phase.CANCELLED, Phase.RUNNING)
    scene.live.tell(0, [Ended(0, 1, -9, False, 0, 0)])
    assert [(order.job, order.generation) for _, order in scene.at(11.0)] == [(1, 1)]
    scene.check()


def test_a_job_that_finishes_while_it_is_asked_to_leave_has_finished():
    scene = Scene("v100:1")
    scene.join()
    scene.job("a", steps=30.0)
    scene.at(0.0)
    scene.job("b")
    assert scene.at(10.0) == [(0, Revoke(0, 1))]
    scene.live.tell(0, [Ended(0, 1, 0, False, 30, 30)])
    assert [order.job for _, order in scene.at(11.0)] == [1]
    assert scene.phase(0) is Phase.FINISHED
    scene.check()


def test_a_job_that_fails_while_it_is_asked_to_leave_has_failed():
    scene = Scene("v100:1")
    scene.join()
    scene.job("a", retry_limit=1)
    for generation in (1, 2):
        scene.at(20.0 * generation)
        scene.job(f"b-{generation}")
        assert (0, Revoke(0, generation)) in scene.at(20.0 * generation + 10.0)
        scene.live.tell(0, [Ended(0, generation, 3, False, 5, 5)])
        (order,) = scene.at(20.0 * generation + 11.0)
        assert scene.loop.state.store.arrays["failures"][0] == 1
        if generation == 1:
            assert scene.phase(0) is Phase.WAITING
            scene.live.tell(0, [Ended(order[1].job, 1, 0, False, 1, 1)])
    assert scene.phase(0) is Phase.FAILED
    scene.check()


def test_jobs_of_a_node_that_left_go_on_elsewhere_from_what_they_saved():
    scene = Scene()
    scene.join()
    scene.job("a", steps=100.0)
    scene.at(0.0)
    scene.live.tell(0, [Progress(0, 1, 30, 20, 3.0)])
    scene.at(10.0)
    scene.live.left(0)
    (order,) = scene.at(20.0)
    assert (order[0], order[1].generation) == (1, 2)
    assert scene.loop.state.store.arrays["base_steps"][0] == 20.0
    scene.check()


def test_who_waited_for_somebody_on_a_node_that_is_gone_is_not_started_there():
    """Its agent may have come back by the time the order goes out, and would begin what counts as lost."""
    scene = Scene("v100:1")
    scene.join()
    scene.job("first", steps=100.0)
    scene.at(0.0)
    scene.job("second", steps=100.0)
    assert scene.at(10.0) == [(0, Revoke(0, 1))]
    scene.live.left(0)
    assert scene.at(11.0) == []
    assert (scene.phase(0), scene.phase(1)) == (Phase.WAITING, Phase.WAITING)
    scene.join()
    assert [(order.job, order.generation) for _, order in scene.at(20.0)] == [(1, 2)]
    scene.check()


def test_an_agent_that_comes_back_with_strangers_is_told_to_end_them():
    scene = Scene()
    scene.join(0)
    scene.job("a")
    scene.at(0.0)
    scene.live.joined(1, [(5, 1)])
    scene.live.joined(0, [(0, 1)])  # a second time: its connection was cut for a moment
    assert scene.at(1.0) == [(1, Kill(5, 1))]
    assert scene.phase(0) is Phase.RUNNING


def test_who_follows_a_leaver_does_not_begin_beside_a_stranger():
    scene = Scene("v100:1")
    scene.join()
    scene.job("old", steps=1000.0)
    scene.at(0.0)
    scene.live.tell(0, [Progress(0, 1, 10, 0, 1.0)])
    scene.at(10.0)
    scene.job("new", steps=1000.0)
    assert scene.at(20.0) == [(0, Revoke(0, 1))]
    scene.live.joined(0, [(5, 1)])  # the old one is gone, and somebody else is there
    assert scene.at(21.0) == [(0, Kill(5, 1))]
    scene.live.tell(0, [Ended(5, 1, -9, False, 0, 0)])
    assert [order.job for _, order in scene.at(22.0)] == [1]
    scene.check()


@pytest.mark.parametrize("revoked", [False, True])
def test_half_a_gang_that_nobody_heard_of_does_not_begin_beside_a_stranger(revoked):
    scene = Scene()
    scene.join()
    scene.job("wide", workers=4, steps=50.0)
    launches = scene.at(0.0)
    scene.live.joined(1, [(5, 1)])
    assert scene.at(1.0) == [(1, Kill(5, 1))]
    if revoked:  # then it is not begun at all
        assert scene.live.launches.revoke(0) == [(0, Revoke(0, 1))]
    scene.live.tell(1, [Ended(5, 1, -9, False, 0, 0)])
    assert scene.at(2.0) == ([] if revoked else launches[1:])
    if revoked:
        scene.live.tell(0, [Ended(0, 1, 0, True, 3, 3)])
        scene.at(3.0)
        assert scene.live.launches.latest(0) is None


@pytest.mark.parametrize("found", [True, False])
def test_after_a_restart_what_runs_is_looked_for_first(found):
    before = Scene()
    before.join()
    before.job("a", steps=100.0)
    before.job("b", steps=100.0, workers=2)
    before.at(0.0)
    before.live.tell(0, [Progress(0, 1, 30, 20, 3.0)])
    before.at(10.0)
    state = State.replay(before.journal)
    scene = Scene(state=state, journal=before.journal)
    scene.second = 15.0
    here = {seat.node for run in before.live.launches._all.values() if run.job == 0 for seat in run.seats}
    for node in (0, 1):
        mine = [run.key for run in before.live.launches._all.values() if any(seat.node == node for seat in run.seats)]
        scene.live.joined(node, mine if found or node not in here else [key for key in mine if key[0] != 0])
    for event in scene.live.reconcile(state.snapshot(15.0)):
        scene.loop.record(event)
    orders = scene.at(20.0)
    if found:
        assert orders == []
        assert (scene.phase(0), scene.phase(1)) == (Phase.RUNNING, Phase.RUNNING)
    else:
        assert [(order.job, order.generation) for _, order in orders] == [(0, 1)]  # its agent never heard of it: once more
        assert scene.phase(1) is Phase.RUNNING
    scene.live.tell(next(iter(here)), [Ended(0, 1, 0, False, 100, 100)])
    scene.at(21.0)
    assert scene.phase(0) is Phase.FINISHED
    scene.check()


def restarted(before: Scene, machines: str, second: float) -> Scene:
    """A control plane that has read its journal, and to which nobody has spoken yet."""
    scene = Scene(machines, state=State.replay(before.journal), journal=before.journal)
    scene.second = second
    return scene


def test_an_end_that_is_told_while_another_node_is_waited_for_counts():
    before = Scene("v100:1,v100:1")
    before.join()
    before.job("a", steps=100.0)
    before.job("b", steps=100.0)
    before.at(0.0)
    scene = restarted(before, "v100:1,v100:1", 5.0)
    scene.live.joined(0, [(0, 1)])
    scene.live.tell(0, [Ended(0, 1, 0, False, 100, 100)])
    scene.live.joined(1, [(1, 1)])
    for event in scene.live.reconcile(scene.loop.state.snapshot(5.0)):
        scene.loop.record(event)
    assert (scene.phase(0), scene.phase(1)) == (Phase.FINISHED, Phase.RUNNING)
    scene.check()


def test_a_job_that_was_moving_when_the_plane_died_waits_for_the_node_that_it_leaves():
    before = Scene("v100:1,v100:1")
    before.join()
    before.job("a", steps=100.0)
    ((old, _),) = before.at(0.0)
    before.live.drain(old, False)
    assert before.at(10.0) == [(old, Revoke(0, 1))]  # by the state it runs on the other node now
    scene = restarted(before, "v100:1,v100:1", 11.0)
    scene.live.joined(1 - old, ())
    scene.live.joined(old, [(0, 1)])
    kept: list[ev.Event] = []
    first, waiting = scene.live._next, scene.live.inbox._requests

    def one_by_one(until: float) -> list[ev.Event]:
        later = [waiting.pop() for _ in range(len(waiting) - 1)]
        events = first(until)
        waiting.extend(reversed(later))
        return events

    scene.live._next = one_by_one  # type: ignore[method-assign]
    for event in scene.live.reconcile(scene.loop.state.snapshot(11.0), kept.extend):
        scene.loop.record(event)
    scene.live._next = first  # type: ignore[method-assign]
    assert scene.wire.new() == [(old, Revoke(0, 1))], "not twice at once"
    scene.live.tell(old, [Ended(0, 1, 0, True, 30, 30)])
    assert [(node, order.generation) for node, order in scene.at(12.0)] == [(1 - old, 2)]
    scene.check()


def test_half_a_gang_on_a_node_that_was_given_up_before_the_plane_died_is_not_waited_for():
    before = Scene()
    before.join()
    before.job("wide", workers=3, steps=50.0)
    before.at(0.0)
    before.live.left(1)
    assert before.at(3.0) == [(0, Kill(0, 1))]
    scene = restarted(before, "v100:2,v100:2", 5.0)
    scene.live.joined(0, [(0, 1)])
    for event in scene.live.reconcile(scene.loop.state.snapshot(5.0)):
        scene.loop.record(event)
    assert set(scene.wire.new()) == {(0, Kill(0, 1))}
    scene.live.tell(0, [Ended(0, 1, -9, False, 7, 5)])
    scene.at(6.0)
    assert scene.phase(0) is Phase.WAITING
    scene.check()


@pytest.mark.parametrize("how", ["cancelled", "revoked", "failed", "lost"])
def test_half_a_gang_that_was_still_to_begin_never_does_once_the_other_half_leaves(how):
    """After a restart one node has lost its half, and still has a stranger on the same accelerator, who leaves late."""
    launches = Launches(lambda node: f"node-{node}", lambda key: (1000, 1001))
    launches.adopt(7, 1, "gang", Task(("true",)), (Seat(0, (0,), (0,)), Seat(1, (1,), (0,))))
    orders, _ = launches.compare({0: {(7, 1)}, 1: {(3, 2)}}, lambda node: (0, 1), lambda job: True)
    assert orders == [(1, Revoke(3, 2))]
    if how == "cancelled":
        assert launches.drop(7) == [(0, Kill(7, 1))]
    elif how == "revoked":
        assert launches.revoke(7) == [(0, Revoke(7, 1))]
    elif how == "failed":
        orders, (became,) = launches.heard(0, Ended(7, 1, 1, False, 9, 5))
        assert (orders, became.fate) == ([], Fate.LOST), "without its other half"
    else:
        orders, (became,) = launches.node_gone(0)
        assert (orders, became.fate) == ([], Fate.LOST)
    assert launches.heard(1, Ended(3, 2, 0, True, 0, 0))[0] == []
    if how in ("cancelled", "revoked"):
        orders, (became,) = launches.heard(0, Ended(7, 1, 0, True, 9, 9))
        assert (orders, became.fate) == ([], Fate.DROPPED if how == "cancelled" else Fate.YIELDED)
    assert launches.everybody() == []


def test_a_gang_that_two_nodes_have_lost_one_after_the_other_begins_on_both():
    launches = Launches(lambda node: f"node-{node}", lambda key: (1000, 1001))
    launches.adopt(7, 1, "gang", Task(("true",)), tuple(Seat(node, (node,), (0,)) for node in range(3)))
    launches.compare({0: {(7, 1)}, 1: {(3, 2)}, 2: {(7, 1)}}, lambda node: (0, 1), lambda job: True)
    assert launches.compare({2: ()}, lambda node: (0, 1), lambda job: True) == ([], [])
    orders, _ = launches.heard(1, Ended(3, 2, 0, True, 0, 0))
    assert [node for node, order in orders if isinstance(order, Launch)] == [1, 2]


@pytest.mark.parametrize("how", ["converged", "cancelled"])
def test_who_was_done_when_the_plane_died_may_save_and_who_was_cancelled_may_not(how):
    before = Scene("v100:1", "fifo")
    before.loop.stages = replace(before.loop.stages, termination=ByLoss(0.01))
    before.join()
    before.job("a", steps=100.0)
    before.at(0.0)
    before.live.tell(0, [Progress(0, 1, 20, 0, 2.0)])
    before.at(5.0)
    if how == "cancelled":
        before.live.cancel(0)
    else:
        before.live.tell(0, [Metric(0, 1, "target_loss", 0.5), Metric(0, 1, "loss", 0.504)])
    before.at(10.0)
    assert before.phase(0) is (Phase.CANCELLED if how == "cancelled" else Phase.FINISHED)
    scene = restarted(before, "v100:1", 12.0)
    scene.live.joined(0, [(0, 1)])  # the order to leave was lost with the control plane
    for event in scene.live.reconcile(scene.loop.state.snapshot(12.0)):
        scene.loop.record(event)
    scene.job("next")
    orders = [*scene.wire.new(), *scene.at(13.0)]
    assert orders == [(0, Kill(0, 1) if how == "cancelled" else Revoke(0, 1))], "and the next waits for it"
    scene.live.tell(0, [Ended(0, 1, 0, True, 45, 45)])
    assert [order.job for _, order in scene.at(20.0)] == [1]
    scene.check()


def test_orders_that_nobody_heard_are_given_again_when_the_agent_is_back():
    scene = Scene("v100:2")
    scene.join()
    scene.job("a")
    launched = scene.at(0.0)
    scene.live.joined(0, [])
    assert scene.at(1.0) == launched
    scene.live.joined(0, [(0, 1)])
    assert scene.at(2.0) == []
    scene.live.cancel(0)
    scene.at(3.0)
    assert scene.at(3.5) == [(0, Kill(0, 1))]
    scene.live.joined(0, [(0, 1)])
    assert scene.at(4.0) == [(0, Kill(0, 1))]


def test_a_job_that_was_on_its_way_out_when_the_plane_died_may_save_and_is_waited_for():
    before = Scene("v100:1")
    before.join()
    before.job("old", steps=1000.0)
    before.at(0.0)
    before.job("new", steps=1000.0)
    before.at(10.0)  # planned, and the order to leave is lost with the control plane
    scene = restarted(before, "v100:1", 12.0)
    scene.live.joined(0, [(0, 1)])
    for event in scene.live.reconcile(scene.loop.state.snapshot(12.0)):
        scene.loop.record(event)
    assert scene.wire.new() == [(0, Revoke(0, 1))]
    scene.live.tell(0, [Ended(0, 1, 0, True, 25, 25)])
    assert [(order.job, order.generation) for _, order in scene.at(13.0)] == [(1, 1)]
    assert scene.loop.state.store.arrays["base_steps"][0] == 25.0
    scene.check()


def test_progress_that_was_foreseen_is_no_event():
    scene = Scene("v100:1")
    scene.join()
    scene.job("a", steps=1e6)
    scene.at(0.0)
    for second in range(1, 200):
        scene.live.tell(0, [Progress(0, 1, 4 * second, 0, 4.0 + 0.01 * np.sin(second))])
        scene.at(float(second))
    told = [event for event in scene.journal if isinstance(event, ev.ProgressReported)]
    assert len(told) < 5


def test_what_jobs_report_is_one_event_for_each_name_and_second():
    scene = Scene()
    scene.join()
    for name in ("a", "b", "c"):
        scene.job(name, steps=100.0)
    scene.at(0.0)
    scene.live.tell(0, [Metric(0, 1, "loss", 9.0), Metric(0, 1, "loss", 0.5), Metric(1, 1, "loss", 0.6)])
    scene.live.tell(1, [Metric(2, 1, "loss", 0.7)])
    scene.at(2.0)
    scene.live.tell(1, [Metric(2, 1, "loss", 0.4)])
    scene.at(2.5)  # too early to be told
    scene.live.tell(0, [Metric(0, 1, "loss", 0.3)])
    scene.at(3.0)
    scene.live.tell(0, [Metric(1, 1, "loss", 0.2), Ended(1, 1, 0, False, 100, 100)])
    scene.at(3.1)  # but at an end nothing is held back
    told = [(e.time, e.jobs.tolist(), e.values.tolist()) for e in scene.journal if isinstance(e, ev.MetricsReported)]
    assert told == [(2.0, [0, 1, 2], [0.5, 0.6, 0.7]), (3.0, [2, 0], [0.4, 0.3]), (3.1, [1], [0.2])]
    scene.check()


def test_a_loss_that_is_no_number_any_more_is_in_the_journal_as_infinity():
    scene = Scene()
    scene.join()
    scene.job("a", steps=100.0)
    scene.at(0.0)
    scene.live.tell(0, [Metric(0, 1, "loss", 0.5)])
    scene.at(2.0)
    scene.live.tell(0, [Metric(0, 1, "loss", math.inf), Metric(0, 1, "loss.lowest", 0.0)])
    scene.at(4.0)
    told = [decode(encode(e)) for e in scene.journal if isinstance(e, ev.MetricsReported)]
    assert [e.values.tolist() for e in told if isinstance(e, ev.MetricsReported)] == [[0.5], [math.inf]]
    assert scene.loop.state.store.metric("loss.lowest")[0] == 0.5  # which nobody can report
    scene.check()


def test_a_job_reports_under_a_bounded_number_of_names_over_restarts_too():
    scene = Scene()
    scene.join()
    scene.job("a", steps=100.0)
    scene.at(0.0)
    scene.live.tell(0, [Metric(0, 1, f"name-{n}", 1.0) for n in range(1000)])
    scene.at(2.0)
    assert len(scene.loop.state.store.metrics) == MOST_METRICS
    again = Scene(state=State.replay(scene.journal), journal=scene.journal)
    for node in range(2):
        again.live.joined(node, [(0, 1)] if node == 0 else [])
    again.live.reconcile(again.loop.state.snapshot(3.0))
    again.live.tell(0, [Metric(0, 1, "name-0", 2.0), Metric(0, 1, "one-more", 1.0)])
    again.at(5.0)
    assert len(again.loop.state.store.metrics) == MOST_METRICS
    assert again.loop.state.store.metric("name-0")[0] == 2.0


def test_names_of_metrics_are_free_again_with_their_last_job_and_nobody_takes_all_of_them():
    measures = Measures()

    def heard(job: int, name: str, user: str) -> bool:
        measures.hear(Metric(job, 1, name, 1.0), user)
        return any(event.name == name for event in measures.told(0.0))

    mine = [heard(number, f"mine-{number}-{n}", "ann") for number in range(10) for n in range(MOST_METRICS)]
    assert sum(mine) == MOST_OF_ONE_USER
    assert heard(50, "theirs", "ben")
    assert heard(9, "loss", "ann"), "a decision may be made of it"
    measures.forget(0)
    assert heard(11, "one-more", "ann")
    assert heard(12, "one-more", "ann")
    measures.forget(11)
    assert heard(13, "one-more", "ann"), "another one still uses it"
    for number in range(100, 200):
        heard(number, "a", f"user-{number}")
        for n in range(MOST_METRICS - 1):
            heard(number, f"{number}-{n}", f"user-{number}")
    assert not heard(300, "new", "eve")
    assert heard(300, "a", "eve")
    assert heard(300, "loss", "eve")
    for number in range(200):
        measures.forget(number)
    assert heard(300, "new", "eve")


def test_the_state_forgets_names_of_metrics_that_nobody_alive_uses(monkeypatch):
    monkeypatch.setattr("fairlead.engine.state.MOST_METRICS_KEPT", 8)
    scene = Scene("v100:1", "fifo")
    scene.join()
    for number in range(6):
        scene.job(f"job-{number}", steps=100.0)
    for number in range(6):
        scene.at(20.0 * number)
        scene.live.tell(0, [Metric(number, 1, name, 0.5) for name in ("loss", f"a-{number}", f"b-{number}")])
        scene.at(20.0 * number + 1)
        assert scene.loop.state.snapshot().jobs.metric(f"b-{number}")[0] == 0.5
        scene.live.tell(0, [Ended(number, 1, 0, False, 100, 100)])
    assert len(scene.loop.state.store.metrics) <= 8 + 4
    scene.check()


def test_a_clock_that_is_set_back_does_not_go_back():
    calendar, steady = [1000.0], [5.0]
    clock = WallClock(900.0, 0.0, lambda: calendar[0], lambda: steady[0])
    assert clock.now() == 100.0
    calendar[0], steady[0] = 0.0, 6.0
    assert clock.now() == 101.0
    assert WallClock(900.0, 101.0, lambda: 0.0, lambda: 0.0).now() == 101.0


def test_a_lease_is_renewed_unless_it_was_revoked_and_nothing_is_written_down():
    scene = Scene("v100:1")
    scene.live.task_of = lambda job: Task(("true",), max_steps=100, max_s=60.0)
    scene.join()
    scene.job("old", steps=1000.0)
    scene.at(0.0)
    before = len(scene.journal.events)
    scene.live.tell(0, [Wants(0, 1, 1), Wants(0, 2, 1), Wants(7, 1, 1)])
    assert scene.at(2.0) == [(0, Extend(0, 1, 1, 200, 120.0))]
    scene.live.tell(0, [Wants(0, 1, 2), Wants(0, 1, 2)])
    assert scene.at(3.0) == 2 * [(0, Extend(0, 1, 2, 300, 180.0))]
    scene.live.tell(0, [Wants(0, 1, 2**53)])
    assert scene.at(4.0) == [(0, Extend(0, 1, 2**53, 2**53, 1e9))]
    assert len(scene.journal.events) == before
    scene.live.tell(0, [Progress(0, 1, 10, 0, 1.0)])
    scene.at(10.0)
    scene.job("new", steps=1000.0)
    assert scene.at(20.0) == [(0, Revoke(0, 1))]
    scene.live.tell(0, [Wants(0, 1, 3)])
    assert scene.at(21.0) == []
    scene.check()


def test_what_was_ordered_while_an_agent_was_away_is_ordered_again():
    scene = Scene("v100:1,v100:1,v100:1")
    scene.join()
    for name in ("lost", "revoked", "cancelled"):
        scene.job(name, steps=1000.0)
    launches = scene.at(0.0)
    assert [node for node, _ in launches] == [0, 1, 2]
    scene.live.joined(0, ())  # it came back, and never heard of its job
    assert scene.at(1.0) == [launches[0]]
    scene.live.joined(0, [(0, 1)])
    assert scene.at(2.0) == []
    scene.live.launches.revoke(1)
    scene.live.cancel(2)
    scene.at(3.0)
    assert scene.at(4.0) == [(2, Kill(2, 1))]
    for node, found in ((1, [(1, 1)]), (2, [(2, 1)])):
        scene.live.joined(node, found)
    assert scene.at(5.0) == [(1, Revoke(1, 1)), (2, Kill(2, 1))]
    for node in (1, 2):
        scene.live.joined(node, ())
    assert scene.at(6.0) == []  # they are gone
    assert scene.live.launches.latest(1) is None


def test_a_launch_that_came_to_nothing_takes_no_steps_away():
    scene = Scene("v100:1")
    scene.join()
    scene.job("old", steps=1000.0, retry_limit=5)
    scene.at(0.0)
    scene.live.tell(0, [Progress(0, 1, 40, 40, 1.0)])
    scene.at(5.0)
    scene.live.tell(0, [Ended(0, 1, 1, False, 50, 40, "exit code 1")])
    scene.at(10.0)
    assert scene.phase(0) is Phase.RUNNING
    scene.live.tell(0, [Ended(0, 2, 1, False, 0, 0, "exit code 1")])  # before it had read its checkpoint
    scene.at(11.0)
    assert scene.loop.state.store.arrays["base_steps"][0] == 40.0
    scene.check()


def test_a_launch_that_is_taken_back_before_it_was_sent_changes_no_progress():
    scene = Scene("v100:1,v100:1")
    scene.join()
    scene.job("moving", steps=1000.0)
    scene.at(0.0)
    scene.live.tell(0, [Progress(0, 1, 30, 30, 1.0)])
    scene.at(5.0)
    launches = scene.live.launches
    launches.revoke(0)
    assert launches.start(0, 2, "moving", Task(("true",)), [Seat(1, (0,), (0,))]) == []  # the first has not left yet
    assert launches.revoke(0) == []
    orders, (became,) = launches.heard(0, Ended(0, 1, 0, True, 33, 33))
    assert (orders, became.fate, became.saved) == ([], Fate.YIELDED, 33)


def test_a_job_that_has_used_its_time_limit_up_has_failed_and_is_killed():
    scene = Scene("v100:1")
    scene.join()
    scene.job("limited", steps=1000.0, time_limit_s=25.0)
    scene.at(0.0)
    scene.live.tell(0, [Progress(0, 1, 10, 10, 1.0)])
    scene.at(10.0)
    scene.job("other", steps=1000.0)
    assert scene.at(20.0) == [(0, Revoke(0, 1))]  # it has run for 20 s
    scene.live.tell(0, [Ended(0, 1, 0, True, 20, 20)])
    assert [order.job for _, order in scene.at(21.0)] == [1]
    again = Scene("v100:1", state=State.replay(scene.journal), journal=scene.journal)
    again.second = 40.0
    again.live.joined(0, [(1, 1)])
    for event in again.live.reconcile(again.loop.state.snapshot(40.0)):
        again.loop.record(event)
    again.live.tell(0, [Ended(1, 1, 0, False, 1000, 1000)])
    assert [order.job for _, order in again.at(50.0)] == [0]
    assert again.at(54.0) == []
    assert again.phase(0) is Phase.RUNNING
    again.at(56.0)
    assert again.phase(0) is Phase.FAILED
    assert again.at(57.0) == [(0, Kill(0, 2))]  # once it is in the journal
    again.live.tell(0, [Ended(0, 2, -9, False, 25, 20)])
    again.at(60.0)
    again.check()


def test_a_calendar_that_is_set_while_nobody_runs_takes_second_0_along(tmp_path):
    calendar = [1000.0]
    first = origin_of(tmp_path / "origin", lambda: calendar[0])
    assert first == pytest.approx(1000.0, abs=1.0)
    calendar[0] = 90_000.0
    assert origin_of(tmp_path / "origin", lambda: calendar[0]) == pytest.approx(90_000.0, abs=1.0)
    (tmp_path / "origin").write_text("500.0 another-boot 7.0")  # the machine was started anew: only the calendar is left
    assert origin_of(tmp_path / "origin", lambda: calendar[0]) == 500.0
