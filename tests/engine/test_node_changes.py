"""Clusters that change: nodes join and leave, with types that are known or new, and drains have reasons and ends."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.core import events as ev
from fairlead.core.cluster import AcceleratorType, Cluster, Drain, Node
from fairlead.core.errors import InvalidPlan
from fairlead.core.job import Job, Phase
from fairlead.core.plan import Launches, RoundPlan
from fairlead.engine.apply import apply_event, replay_events
from fairlead.engine.codec import decode, encode
from fairlead.engine.feasibility import infeasible_reason
from fairlead.engine.state import State
from fairlead.engine.state_codec import load, save
from fairlead.experiments.run_record import service_by_type
from fairlead.testing import check_state, cluster

EMPTY = Cluster(())
K80 = AcceleratorType("k80", 12.0)


def launch(time: float, number: int, type_: int, places: list[int], *, admitted: bool = True) -> ev.RoundPlanned:
    one = np.array([number])
    starts = Launches(one, np.array([type_]), np.array([0, len(places)]), np.array(places))
    return ev.RoundPlanned(RoundPlan(time, admitted=one if admitted else one[:0], launches=starts))


class History:
    """Random events that can happen. Each step is a kind and a number that chooses what it is about."""

    def __init__(self, first: Cluster) -> None:
        self.state, self.events = State(first), list[ev.Event]()
        self.happen(ev.JournalOpened(0.0, first, {"policy": "fifo"}))

    def happen(self, event: ev.Event) -> None:
        apply_event(self.state, event)
        self.events.append(event)

    def step(self, kind: str, x: int) -> None:
        getattr(self, f"_{kind}")(self.state.time + 1.0, x)

    def _submit(self, now: float, x: int) -> None:
        allowed = ((), ("k80",), ("h100", "v100"))[x % 3]
        self.happen(ev.JobSubmitted(now, self.state.next_number, Job(f"j{x}", now, workers=1 + x % 2, allowed_types=allowed)))

    def _launch(self, now: float, x: int) -> None:
        state = self.state
        waiting = [n for n in (*state.live.tolist(), *state.queue.tolist()) if n not in state.running]
        for number in waiting[x % len(waiting) :] if waiting else ():
            for type_ in range(len(state.cluster.types)):
                free = (state.up & (state.device_map.occupancy == 0) & (state.cluster.type_of == type_)).nonzero()[0]
                if int(state.columns["fits"][number]) >> type_ & 1 and len(free) >= state.job_of[number].workers:
                    places = free[: state.job_of[number].workers].tolist()
                    return self.happen(launch(now, number, type_, places, admitted=number in state.queue))

    def _finish(self, now: float, x: int) -> None:
        if len(running := self.state.running):
            self.happen(ev.JobsFinished(now, running[x % len(running)][None], np.array([now])))

    def _suspend(self, now: float, x: int) -> None:
        if len(running := self.state.running):
            self.happen(ev.RoundPlanned(RoundPlan(now, suspended=running[x % len(running)][None])))

    def _requeue(self, now: float, x: int) -> None:
        if self.state.next_number:
            self.happen(ev.JobRequeued(now, x % self.state.next_number))

    def _memo(self, now: float, x: int) -> None:
        self.happen(ev.MemoChanged(now, {"by_type": np.ones(len(self.state.cluster.types))}))

    def _add(self, now: float, x: int) -> None:
        machines = self.state.cluster
        spec = Node(f"n{x % 4}", ("v100", "k80", "h100")[x // 4 % 3], 1 + x // 12 % 2, cpus=float(8 + x % 3))
        if spec.name not in machines.number_of_node:
            new = AcceleratorType(spec.type, 16.0) if spec.type not in machines.type_code and x % 2 else None
            self.happen(ev.NodeAdded(now, machines.number_for(spec), spec, new))
            assert not self.state.present[self.state.cluster.node_of == machines.number_for(spec)].any()

    def _nodes(self, x: int) -> list[int]:
        there = [*self.state.cluster.number_of_node.values()]
        return there[x % len(there) :][:1] if there else []

    def _join(self, now: float, x: int) -> None:
        for node in self._nodes(x):
            self.happen(ev.NodeRepaired(now, node))

    def _lose(self, now: float, x: int) -> None:
        for node in self._nodes(x):
            jobs = self.state.device_map.on(self.state.cluster.node_of == node)
            self.happen(ev.NodeLost(now, node))
            if len(jobs):
                self.happen(ev.JobsInterrupted(now, jobs, np.zeros(len(jobs)), node=node))

    def _drain(self, now: float, x: int) -> None:
        for node in self._nodes(x):
            drain = Drain("disk" * (x % 2), "ann" * (x % 3), now + x if x % 5 else None)
            self.happen(ev.NodeDrained(now, node, x % 4 == 0, *drain))

    def _remove(self, now: float, x: int) -> None:
        for node in self._nodes(x):
            if not len(self.state.device_map.on(self.state.cluster.node_of == node)):
                self.happen(ev.NodeRemoved(now, node))


KINDS = [name[1:] for name in vars(History) if name.startswith("_") and name not in ("_nodes",) and not name.endswith("__")]
STEPS = st.lists(st.tuples(st.sampled_from([*KINDS, "submit", "launch", "add", "join"]), st.integers(0, 999)), max_size=60)


@given(st.sampled_from([EMPTY, cluster("v100:2"), cluster("v100:2,k80:1")]), STEPS, st.floats(0, 1))
@settings(max_examples=150, deadline=None)
def test_a_history_with_added_and_removed_nodes_replays_to_the_same_state(first, steps, part):
    history = History(first)
    for kind, x in steps:
        history.step(kind, x)
    state, events = history.state, [decode(encode(event)) for event in history.events]
    check_state(state)
    assert state.capacity.tolist() == np.bincount(state.cluster.type_of[state.up], minlength=len(state.cluster.types)).tolist()
    assert (state.capacity <= state.cluster.size_of_type).all()
    assert len(state.service_by_type) == len(state.cluster.types)
    assert replay_events(events).digest() == state.digest()
    cut = 1 + int(part * (len(events) - 1))
    again = load(save(replay_events(events[:cut])))
    for event in events[cut:]:
        apply_event(again, event)
    assert again.digest() == state.digest()
    assert again.cluster == state.cluster
    assert again.drains == state.drains
    view = state.snapshot()
    going_on = State.from_snapshot(view)
    assert (going_on.cluster, going_on.drains, going_on.up.tolist()) == (state.cluster, state.drains, state.up.tolist())


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (ev.NodeAdded(9.0, 3, Node("v100-0", "v100", 2)), "already has a node 'v100-0'"),
        (ev.NodeAdded(9.0, 2, Node("new", "v100", 2)), "would get number 3, not 2"),
        (ev.NodeAdded(9.0, 3, Node("gone", "v100", 2)), "would get number 2, not 3"),
        (ev.NodeAdded(9.0, 3, Node("new", "v100", 2, removed=True)), "would get number 3"),
        (ev.NodeAdded(9.0, 3, Node("new", "v100", 2), AcceleratorType("v100")), "cannot be set by a node of type 'v100'"),
        (ev.NodeAdded(9.0, 3, Node("new", "h100", 2), K80), "cannot be set by a node of type 'h100'"),
        (ev.NodeAdded(9.0, 3, Node("new", "v100", 0)), "has 0 GPUs"),
        (ev.NodeAdded(9.0, 3, Node("new", "v100", 1_000_000)), "1,000,000 in the cluster"),
        (ev.NodeRemoved(9.0, 0), "job 'a' runs there"),
        (ev.NodeRemoved(9.0, 2), "'gone' was removed"),
        (ev.NodeRemoved(9.0, 3), "there is no node number 3"),
        (ev.NodeRepaired(9.0, 2), "'gone' was removed"),
        (ev.NodeLost(9.0, 2), "'gone' was removed"),
        (ev.NodeDrained(9.0, 2), "'gone' was removed"),
        (ev.NodeBackedOff(9.0, 2, 60.0), "'gone' was removed"),
    ],
)
def test_an_event_of_a_node_that_cannot_have_happened_is_refused(event, why):
    state = State(Cluster((*cluster("v100:2,v100:2").nodes, Node("gone", "v100", 2))))
    before = [ev.NodeRemoved(1.0, 2), ev.JobSubmitted(2.0, 0, Job("a", 2.0)), launch(3.0, 0, 0, [1])]
    for one in before:
        apply_event(state, one)
    digest = state.digest()
    with pytest.raises(InvalidPlan, match=why):
        apply_event(state, event)
    assert state.digest() == digest


def test_a_cluster_has_as_many_types_as_its_jobs_can_tell_apart():
    state = State(Cluster(tuple(Node(f"n{k}", f"t{k}", 1) for k in range(62))))
    apply_event(state, ev.JobSubmitted(1.0, 0, Job("a", 1.0)))
    apply_event(state, ev.NodeAdded(2.0, 62, Node("n62", "t62", 1)))
    assert int(state.columns["fits"][0]) == 2**63 - 1
    with pytest.raises(InvalidPlan, match="the cluster has 63 types already"):
        apply_event(state, ev.NodeAdded(3.0, 63, Node("n63", "t63", 1)))
    apply_event(state, ev.NodeAdded(4.0, 63, Node("n63", "t0", 1)))


def test_removed_nodes_leave_room_for_others():
    state = State(Cluster((Node("large", "v100", 999_999),)))
    with pytest.raises(InvalidPlan, match="1,000,000 in the cluster"):
        apply_event(state, ev.NodeAdded(1.0, 1, Node("new", "v100", 2)))
    apply_event(state, ev.NodeRemoved(2.0, 0))
    apply_event(state, ev.NodeAdded(3.0, 1, Node("new", "v100", 2)))
    with pytest.raises(InvalidPlan, match="1,000,000 in the cluster"):
        apply_event(state, ev.NodeAdded(4.0, 0, Node("large", "v100", 999_999)))


def test_an_added_node_is_down_until_its_agent_has_joined_and_waiting_jobs_may_use_it():
    state = State(cluster("v100:2"))
    for number, wanted in enumerate((("k80",), ("k80", "v100"), ("p100",))):
        apply_event(state, ev.JobSubmitted(1.0, number, Job(f"j{number}", 1.0, allowed_types=wanted)))
    apply_event(state, ev.MemoChanged(2.0, {"share": np.ones(1)}))
    assert state.columns["fits"][:3].tolist() == [0, 1, 0]
    apply_event(state, ev.NodeAdded(3.0, 1, Node("k80-1", "k80", 4), K80))
    assert (state.capacity.tolist(), state.memo) == ([2, 0], None)
    assert state.columns["fits"][:3].tolist() == [2, 3, 0]
    assert state.cluster.types[1] == K80
    apply_event(state, ev.MemoChanged(3.0, {"share": np.ones(2)}))
    apply_event(state, ev.NodeRepaired(4.0, 1))
    apply_event(state, ev.NodeAdded(5.0, 2, Node("k80-2", "k80", 2)))
    assert (state.capacity.tolist(), str(state.cluster)) == ([2, 4], "2 × v100, 6 × k80")
    assert state.memo is not None, "a node of a known type does not reset it"


def test_a_removed_node_counts_in_no_size_and_its_number_is_used_again_only_for_the_same_node():
    state = State(cluster("v100:2,k80:4"))
    apply_event(state, ev.JobSubmitted(1.0, 0, Job("wide", 1.0, workers=4)))
    apply_event(state, ev.NodeDrained(1.5, 1, reason="old"))
    apply_event(state, ev.NodeRemoved(2.0, 1))
    machines = state.cluster
    assert (str(machines), machines.size, machines.number_of_node) == ("2 × v100", 6, {"v100-0": 0})
    assert (machines.size_of_type.tolist(), machines.largest_node_of_type.tolist()) == ([2, 0], [2, 1])
    assert machines.workers_hosted("k80", 1.0, 0.0) == 0
    assert (state.capacity.tolist(), state.drains, state.drained.any()) == ([2, 0], {}, False)
    assert state.columns["fits"][0] == 2, "the job waits for such a node, as for a lost one"
    apply_event(state, ev.JobSubmitted(3.0, 1, Job("later", 3.0, workers=4)))
    assert state.columns["fits"][1] == 0
    assert machines.number_for(Node("k80-1", "k80", 4, cpus=3.0)) == 1
    assert machines.number_for(Node("k80-1", "k80", 2)) == 2
    apply_event(state, ev.NodeAdded(4.0, 1, Node("k80-1", "k80", 4, cpus=3.0)))
    apply_event(state, ev.NodeRepaired(5.0, 1))
    assert (state.capacity.tolist(), state.cluster.size, state.cluster.nodes[1].cpus) == ([2, 4], 6, 3.0)
    assert state.columns["fits"][1] == 2


def test_service_by_type_is_known_when_a_cluster_of_one_type_gets_another():
    state = State(cluster("v100:2"))
    events = [
        *(ev.JobSubmitted(0.0, number, Job(f"j{number}", 0.0)) for number in range(2)),
        launch(0.0, 0, 0, [0]),
        launch(0.0, 1, 0, [1]),
        ev.JobsFinished(100.0, np.array([0]), np.array([100.0])),
        ev.NodeAdded(150.0, 1, Node("k80-1", "k80", 1)),
        ev.JobsFinished(200.0, np.array([1]), np.array([200.0])),
    ]
    for event in events:
        apply_event(state, event)
    assert service_by_type(state).tolist() == [300.0, 0.0]


def test_a_refused_job_that_is_requeued_may_use_nodes_that_were_added_meanwhile():
    state = State(EMPTY)
    job = Job("early", 1.0)
    apply_event(state, ev.JobSubmitted(1.0, 0, job))
    why = infeasible_reason(job, state.cluster)
    assert "the cluster has no nodes yet" in why.text
    apply_event(state, ev.RoundPlanned(RoundPlan(2.0, refused=((0, why),))))
    apply_event(state, ev.NodeAdded(3.0, 0, Node("k80-0", "k80", 1)))
    assert state.columns["phase"][0] == int(Phase.REFUSED)
    apply_event(state, ev.JobRequeued(4.0, 0))
    assert (state.columns["fits"][0], state.columns["phase"][0]) == (1, int(Phase.QUEUED))


def test_a_later_drain_replaces_the_reason_and_the_end_and_drains_of_older_journals_have_none():
    state = State(cluster("v100:2"))
    old = decode(b'{"event":"node_drained","time":1.0,"node":0}')
    assert old == ev.NodeDrained(1.0, 0)
    assert encode(old) == b'{"event":"node_drained","time":1.0,"node":0}'
    apply_event(state, old)
    assert state.drains == {}
    apply_event(state, ev.NodeDrained(2.0, 0, False, "disk", "ann", 50.0))
    apply_event(state, ev.NodeDrained(3.0, 0, False, "fan", "ben"))
    assert state.drains == state.snapshot().drains == {0: Drain("fan", "ben")}
    apply_event(state, ev.NodeDrained(4.0, 0, undo=True))
    assert (state.drains, state.drained.any()) == ({}, False)


def test_whole_numbers_of_the_catalogue_are_the_same_after_a_replay():
    history = History(cluster("v100:2"))
    history.happen(ev.NodeAdded(1.0, 1, Node("new", "k80", 2, cpus=8), AcceleratorType("k80", 12)))
    assert replay_events([decode(encode(event)) for event in history.events]).digest() == history.state.digest()
