"""What agents see of accelerators becomes the use of the jobs that have them to themselves, and corrects predictions."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from emulated_agents import Scene

from fairlead.config.schedulers import compose
from fairlead.core.errors import InputError
from fairlead.core.job import Phase
from fairlead.core.plan import BUSY, TAKEN_GB
from fairlead.engine.apply import replay_events
from fairlead.engine.state import State
from fairlead.estimators.predicted import Monitored, Predicted
from fairlead.runtime.control.job_metrics import MAX_STARTUP_HEARTBEATS, MIN_HEARTBEATS, MetricBuffer, UtilizationTracker
from fairlead.runtime.control.tracked_launch import NodeRanks, TrackedLaunch
from fairlead.runtime.protocol.messages import Heartbeat
from fairlead.runtime.protocol.orders import Metric, Progress, Task
from fairlead.testing.invariants import check_state
from scenes import table_of


def run(job: int, *places: int, node: int = 0, generation: int = 1, sent: bool = True) -> TrackedLaunch:
    return TrackedLaunch(job, generation, str(job), Task(("true",)), (NodeRanks(node, (0,), places),), sent=sent)


def seen(
    uses: UtilizationTracker,
    runs: list[TrackedLaunch],
    busy: tuple[float, ...],
    memory: tuple[float, ...],
    beats: int = 1 + MIN_HEARTBEATS,
):
    found = [list(uses.update({0: Heartbeat(busy, memory)}, runs)) for _ in range(beats)]
    assert not any(found[:-1])
    return dict(found[-1])


def test_who_has_its_accelerators_to_itself_is_told_of_and_others_are_not():
    uses = UtilizationTracker()
    runs = [run(1, 0), run(2, 1), run(3, 1), run(4, 2, 3), run(5, 4, sent=False), run(6, 0, node=1)]
    found = seen(uses, runs, (0.2, 0.9, 0.4, 0.6, 0.1), (3.0, 9.0, 5.0, 6.0, 1.0))
    assert found.keys() == {1, 4}
    assert found[1] == pytest.approx({BUSY: 0.2, TAKEN_GB: 3.0})
    assert found[4] == pytest.approx({BUSY: 0.5, TAKEN_GB: 6.0})


def test_it_is_said_again_when_it_is_another_and_a_new_launch_begins_anew():
    uses, runs = UtilizationTracker(), [run(1, 0)]
    assert seen(uses, runs, (0.2,), (3.0,))
    assert not seen(uses, runs, (0.21,), (3.0,), beats=30)
    assert any(list(uses.update({0: Heartbeat((0.6,), (3.0,))}, runs)) for _ in range(5))
    assert dict(uses.update({0: Heartbeat((0.6,), (8.0,))}, runs))[1][TAKEN_GB] == 8.0
    assert seen(uses, [run(1, 0, generation=2)], (0.2,), (3.0,))[1][TAKEN_GB] == 3.0
    assert not list(uses.update({0: Heartbeat()}, runs))
    uses.remove(1)
    uses.remove(1)


def test_what_is_seen_before_the_first_steps_is_no_use_of_a_job():
    uses, runs = UtilizationTracker(), [run(1, 0)]
    idle, at_work = Heartbeat((0.0,), (1.0,)), Heartbeat((0.9,), (4.0,))
    for _ in range(MAX_STARTUP_HEARTBEATS):
        assert not list(uses.update({0: idle}, runs, lambda job: False))
    between = Heartbeat((0.1,), (2.0,))
    assert not list(uses.update({0: between}, runs, lambda job: True)), "of a second in which it mostly was not"
    told = [dict(uses.update({0: at_work}, runs, lambda job: True)) for _ in range(MIN_HEARTBEATS)]
    assert told[-1][1] == pytest.approx({BUSY: 0.9, TAKEN_GB: 4.0})


def test_what_is_seen_of_the_second_in_which_company_left_is_no_use_of_who_stayed():
    uses, alone, both = UtilizationTracker(), [run(1, 0)], [run(1, 0), run(2, 0)]
    assert seen(uses, alone, (0.2,), (3.0,))[1][BUSY] == pytest.approx(0.2)
    for _ in range(MIN_HEARTBEATS):
        assert not list(uses.update({0: Heartbeat((1.0,), (40.0,))}, both))
    assert not list(uses.update({0: Heartbeat((1.0,), (40.0,))}, alone)), "its company had it until just now"
    for _ in range(MIN_HEARTBEATS):
        assert not list(uses.update({0: Heartbeat((0.2,), (3.0,))}, alone)), "what is known of it still holds"


def test_who_never_tells_of_steps_is_seen_after_a_while():
    uses, runs = UtilizationTracker(), [run(1, 0)]
    beat, beats = Heartbeat((0.9,), (4.0,)), MAX_STARTUP_HEARTBEATS + 1 + MIN_HEARTBEATS
    told = [dict(uses.update({0: beat}, runs, lambda job: False)) for _ in range(beats)]
    assert not any(told[:-1])
    assert told[-1][1] == pytest.approx({BUSY: 0.9, TAKEN_GB: 4.0})


def test_what_agents_see_is_journaled_and_a_job_cannot_say_it_itself():
    scene = Scene()
    scene.join()
    scene.job("a", steps=1e6)
    scene.at(0.0)
    for second in range(1, 3 * MIN_HEARTBEATS):
        scene.backend.heartbeat(0, Heartbeat((0.4, 0.0), (7.0, 0.0)))
        scene.backend.report(0, [Progress(0, 1, 2 * second, 0, 2.0), Metric(0, 1, BUSY, 0.9)])
        scene.at(float(second))
    view = scene.loop.state.snapshot(scene.second)
    assert view.jobs.metric(BUSY).tolist() == pytest.approx([0.4])
    assert view.jobs.metric(TAKEN_GB).tolist() == [7.0]
    told = [event for event in scene.journal if getattr(event, "name", "") == BUSY]
    assert len(told) == 1
    scene.check()


def test_what_was_seen_before_a_launch_and_is_not_told_is_dropped():
    measures = MetricBuffer()
    for job in (0, 1):
        measures.add_measured(job, {BUSY: 0.4, TAKEN_GB: 7.0})
    measures.add(Metric(0, 1, "loss", 0.1))
    measures.launched(0)
    assert {event.name: event.jobs.tolist() for event in measures.flush(1.0)} == {BUSY: [1], TAKEN_GB: [1], "loss": [0]}
    measures.add_measured(0, {BUSY: 0.4, TAKEN_GB: 7.0})
    measures.launched(0)
    assert measures.flush(2.0) == []


def test_every_beat_counts_also_while_nothing_else_happens():
    scene = Scene()
    scene.join()
    scene.job("a", steps=1e6)
    scene.at(0.0)
    scene.backend.report(0, [Progress(0, 1, 20, 0, 2.0)])
    scene.at(10.0)
    for _ in range(1 + MIN_HEARTBEATS):
        scene.backend.heartbeat(0, Heartbeat((0.4, 0.0), (7.0, 0.0)))
    scene.at(60.0)
    scene.at(62.0)
    assert scene.loop.state.snapshot(scene.second).jobs.metric(BUSY).tolist() == pytest.approx([0.4])
    scene.check()


def test_a_beat_wakes_who_waits_for_something_to_happen():
    scene = Scene()
    scene.join()
    scene.at(0.0)
    lest_it_waits_for_ever = threading.Timer(60.0, scene.backend.stop)
    lest_it_waits_for_ever.start()
    scene.backend.heartbeat(0, Heartbeat((0.4, 0.0), (7.0, 0.0)))
    scene.backend.wait(3600.0, 0.0)
    lest_it_waits_for_ever.cancel()
    assert not scene.backend.stopped


def test_what_was_seen_takes_the_place_of_what_was_predicted():
    table = table_of(("v100",), {("a", 1): [2.0], ("b", 1): [2.0]})
    predicted = Predicted(table, {"a": (95.0, 4.0), "b": (50.0, 4.0)})
    scene = Scene("v100:2,v100:1", table=table)
    scene.join()
    for name, kind in zip("xyz", ("a", "b", "")):
        scene.job(name, steps=1e6, kind=kind)
    scene.at(0.0)
    before = scene.loop.state.snapshot(0.0)
    assert predicted.observe(before).values == {}
    for second in range(1, 2 * MIN_HEARTBEATS):
        scene.backend.heartbeat(0, Heartbeat((0.8, 0.8), (6.0, 6.0)))
        scene.backend.heartbeat(1, Heartbeat((0.3,), (5.0,)))
        for number in range(3):
            scene.backend.report(number // 2, [Progress(number, 1, 2 * second, 0, 2.0)])
        scene.at(float(second))
    view = scene.loop.state.snapshot(scene.second)
    facts = predicted.observe(view).values
    assert np.isfinite(view.jobs.metric(BUSY)).all()
    assert facts.keys() == {"use of a on v100", "use of b on v100"}
    assert facts["use of a on v100"] == pytest.approx([30.0, 5.0])
    after = view.with_changes(observations=facts)
    assert predicted.observe(after).values == {}, "it is known"
    row = table.row("a", 1)
    believed, corrected = predicted.rates(view), predicted.rates(after)
    assert believed.usage is not None
    assert corrected.usage is not None
    assert believed.usage.utilization[row, 0] == pytest.approx(0.95)
    assert corrected.usage.utilization[row, 0] == pytest.approx(0.3)
    assert corrected.usage.memory_gb[row, 0] == 5.0
    assert corrected.paired[row, row, 0] > believed.paired[row, row, 0]
    assert np.array_equal(predicted.rates(view).paired, believed.paired)


def test_a_kind_without_a_prediction_is_known_once_it_was_seen():
    table = table_of(("v100",), {("a", 1): [2.0]})
    predicted, view = Predicted(table), State(Scene().cluster).snapshot(0.0)
    assert not predicted.rates(view).paired.any()
    seen = predicted.rates(view.with_changes(observations={"use of a on v100": [30.0, 4.0]}))
    assert seen.paired[table.row("a", 1), table.row("a", 1), 0] > 0


def test_on_a_real_cluster_company_comes_once_agents_have_seen_who_leaves_room():
    compose({"policy": "horus", "estimator": "monitored"})
    scene = Scene("v100:2", policy="horus", estimator="monitored")
    scene.join()
    for name, kind in zip("xyz", ("small", "large", "small")):
        scene.job(name, steps=1e6, kind=kind)
    scene.at(0.0)
    assert scene.phase(2) is Phase.WAITING, "nothing is known of it"
    alone = Heartbeat((0.3, 0.95), (4.0, 14.0))
    generation = {number: scene.backend.launches.latest(number).generation for number in (0, 1)}
    for second in range(1, 40):
        scene.backend.heartbeat(0, alone)
        scene.backend.report(0, [Progress(number, generation[number], 2 * second, 0, 2.0) for number in (0, 1)])
        scene.at(float(second))
    state = scene.loop.state
    assert state.observations["use of small on v100"] == pytest.approx([30.0, 4.0])
    assert state.observations["measured 1 × small on v100"] == 2.0
    assert scene.phase(2) is Phase.RUNNING
    places = {number: scene.backend.launches.latest(number).places for number in range(3)}
    assert places[2] == places[0] != places[1]
    scene.backend.report(0, [Progress(number, 1, 90, 0, 1.0) for number in (0, 2)])
    scene.at(50.0)
    assert state.observations["measured 1 × small on v100"] == 2.0, "a rate in company is not the kind's"
    check_state(state, residents=2)
    assert replay_events(scene.journal).digest() == state.digest()


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        ({"usage": {"a": (101.0, 1.0)}}, "usage"),
        ({"profiles": "h200_pairs"}, "profiles"),
        ({"speeds": {"v100": 0.0}}, "speeds"),
    ],
)
def test_bad_beliefs_are_told(parameters, field):
    with pytest.raises(InputError, match=f"field '{field}'"):
        Monitored(**parameters)
