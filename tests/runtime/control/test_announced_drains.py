"""Drains that begin and end by themselves, also over a restart of the control plane."""

from __future__ import annotations

import logging
from datetime import datetime

import pytest
from emulated_agents import Scene

from fairlead.core import events as ev
from fairlead.core.cluster import Drain
from fairlead.core.job import Phase
from fairlead.engine.apply import replay_events
from fairlead.runtime.control.event_log import EventLog

WINDOW = Drain("new disks", "root", 100.0, 50.0)


def drained(scene: Scene) -> list[bool]:
    state = scene.loop.state
    return [bool(state.drained[state.cluster.node_of == node].all()) for node in range(len(state.cluster.nodes))]


def restarted(scene: Scene) -> Scene:
    state = replay_events(scene.journal)
    again = Scene(state=state, journal=scene.journal)
    again.join()
    again.reconcile()
    return again


@pytest.mark.parametrize("restarts", [False, True])
def test_an_announced_drain_begins_and_ends_at_its_times(restarts: bool) -> None:
    scene = Scene()
    scene.join()
    scene.backend.drain(0, False, drain=WINDOW)
    scene.job("early")
    scene.at(40.0)
    assert drained(scene) == [False, False]
    assert scene.loop.state.drains == {0: WINDOW}
    assert scene.phase(0) is Phase.RUNNING
    scene = restarted(scene) if restarts else scene
    scene.at(50.0)
    assert drained(scene) == [True, False]
    assert scene.loop.state.drains == {0: WINDOW._replace(from_s=None)}
    scene = restarted(scene) if restarts else scene
    scene.at(99.0)
    assert drained(scene) == [True, False]
    scene.at(100.0)
    assert drained(scene) == [False, False]
    assert scene.loop.state.drains == {}
    scene.check()


def test_a_window_that_passed_while_no_control_plane_ran_leaves_nothing_behind() -> None:
    scene = Scene()
    scene.join()
    scene.backend.drain(0, False, drain=WINDOW)
    scene.at(10.0)
    state = replay_events(scene.journal)
    scene = Scene(state=state, journal=scene.journal)
    scene.second = 500.0
    scene.join()
    scene.reconcile()
    scene.at(501.0)
    assert drained(scene) == [False, False]
    assert scene.loop.state.drains == {}
    scene.check()


def test_an_announced_drain_is_undone_or_replaced() -> None:
    scene = Scene()
    scene.join()
    scene.backend.drain(0, False, drain=WINDOW)
    scene.at(10.0)
    scene.backend.drain(0, True)
    scene.backend.drain(1, False, drain=WINDOW)
    scene.backend.drain(1, False, drain=Drain("now"))
    scene.at(60.0)
    assert drained(scene) == [False, True]
    scene.at(200.0)
    assert drained(scene) == [False, True], "the end of the window was replaced too"
    assert len([event for event in scene.journal if isinstance(event, ev.NodeDrained)]) == 4
    scene.check()


def test_the_log_has_the_times_of_a_drain_as_clock_times(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "fairlead")
    state = Scene().loop.state
    state.origin = 1.8e9
    EventLog(lambda: state, lambda: 60.0).observe([ev.NodeDrained(1.0, 0, reason="new disks", until_s=100.0, from_s=50.0)], 0.0)
    (record,) = [one for one in caplog.records if one.name.startswith("fairlead")]
    times = [datetime.fromisoformat(getattr(record, name)).timestamp() for name in ("from", "until")]
    assert (record.message, times) == ("drain announced", [1.8e9 + 50.0, 1.8e9 + 100.0])
