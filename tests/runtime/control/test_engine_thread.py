"""The thread that speaks to an engine: what waits, what is repeated, and what is left out."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any

from fairlead.config.registry import Registry
from fairlead.config.schedulers import SchedulerConfig
from fairlead.core.job import Job
from fairlead.engine.journal import MemoryJournal
from fairlead.runtime.control.control_plane import ControlPlane
from fairlead.runtime.control.engine_thread import EngineThread
from fairlead.runtime.drivers.base import Capabilities, EngineRefused, EngineUnavailable, LaunchKey, LaunchNeeds, LaunchPart
from fairlead.testing.builders import cluster

PATIENCE_S = 60.0
NEEDS = LaunchNeeds("job")


class Driver:
    """An engine that fails as it is told, and remembers its calls."""

    name = "engine"
    capabilities = Capabilities(poll_s=0.05, starts_per_s=1e6)

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.problem: Exception | None = None
        self.looks, self.closed = 0, threading.Event()
        self.watches, self.watched_after = 0, 1
        self.changed = threading.Condition()

    def _call(self, what: str, about: Any = None) -> None:
        with self.changed:
            self.looks += what == "observe"
            self.changed.notify_all()
            if self.problem is not None:
                raise self.problem
            if what != "observe":
                self.calls.append((what, about))

    def observe(self, journal: str) -> tuple[tuple[()], tuple[()]]:
        self._call("observe")
        return (), ()

    def watch(self, changed: Callable[[], None]) -> None:
        self.watches += 1
        if self.watches < self.watched_after:
            raise EngineUnavailable("not yet")

    def start(self, parts: Sequence[LaunchPart], needs: LaunchNeeds) -> None:
        self._call("start", [part.key.job for part in parts])

    def stop(self, key: LaunchKey, grace_s: float) -> None:
        self._call("stop", key.job)

    def forget(self, key: LaunchKey) -> None:
        self._call("forget", key.job)

    def log(self, key: LaunchKey, offset: int, limit: int) -> bytes | None:
        self._call("log", (offset, limit))
        return b"0123456789"[offset : offset + limit]

    def close(self) -> None:
        self.closed.set()

    def until(self, reached: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(reached, PATIENCE_S), self.calls


class Scene:
    def __init__(self) -> None:
        self.driver, self.refused = Driver(), list[str]()
        self.started = list[int]()
        self.thread = EngineThread(
            self.driver,
            "j",
            lambda machines, tasks: None,
            lambda parts: self.started.extend(part.key.job for part in parts),
            lambda parts, why: self.refused.append(why),
        )
        self._running = threading.Thread(target=self.thread.run)

    def __enter__(self) -> Scene:
        self._running.start()
        self.driver.until(lambda: self.driver.looks > 0)
        return self

    def __exit__(self, *problem: object) -> None:
        self.thread.close()
        self._running.join(PATIENCE_S)
        assert self.driver.closed.is_set()


def part(job: int) -> LaunchPart:
    return LaunchPart(LaunchKey("j", job, 1, "m0"), (0,))


def test_calls_wait_for_an_engine_that_is_away_and_keep_their_order():
    with Scene() as scene:
        scene.driver.problem = EngineUnavailable("away")
        scene.thread.start([part(1)], NEEDS)
        scene.thread.forget(part(9).key)
        scene.thread.start([part(2)], NEEDS)
        looks = scene.driver.looks
        scene.driver.until(lambda: scene.thread.problem == "away" or scene.driver.looks > looks + 2)
        assert scene.driver.calls == []
        scene.driver.problem = None
        scene.driver.until(lambda: len(scene.driver.calls) == 3)
        assert scene.driver.calls == [("start", [1]), ("forget", 9), ("start", [2])]
    assert scene.started == [1, 2]


def test_an_engine_that_is_away_at_the_beginning_is_watched_later():
    scene = Scene()
    scene.driver.watched_after = 2
    with scene:
        scene.driver.until(lambda: scene.driver.looks > 1)
    assert scene.driver.watches == 2


def test_what_is_withdrawn_before_it_was_tried_never_reaches_the_engine():
    scene = Scene()
    scene.thread.start([part(1), part(2)], NEEDS)
    scene.thread.start([part(3)], NEEDS)
    scene.thread.stop(part(1).key, 0.0)
    scene.thread.stop(part(3).key, 0.0)
    scene.thread.stop(part(4).key, 0.0)
    with scene:
        scene.driver.until(lambda: len(scene.driver.calls) == 2)
    assert scene.driver.calls == [("start", [2]), ("stop", 4)]


def test_what_may_have_had_an_effect_is_stopped_even_if_it_is_withdrawn():
    with Scene() as scene:
        scene.driver.problem = EngineUnavailable("time-out")
        scene.thread.start([part(1)], NEEDS)
        scene.driver.until(lambda: scene.thread.problem == "time-out" or bool(scene.driver.changed.wait(0.05)))
        while scene.thread._queued.get(part(1).key) is not True:
            scene.thread.observe_soon()
        scene.thread.stop(part(1).key, 0.0)
        scene.driver.problem = None
        scene.driver.until(lambda: bool(scene.driver.calls))
        assert scene.driver.calls == [("stop", 1)]


def test_a_refusal_and_a_failing_plug_in_reach_the_job_and_the_thread_goes_on():
    with Scene() as scene:
        for problem in (EngineRefused("no such queue"), KeyError("bug")):
            scene.driver.problem = problem
            scene.thread.start([part(1)], NEEDS)
            seen = len(scene.refused)
            while len(scene.refused) == seen:
                scene.thread.observe_soon()
        scene.driver.problem = None
        scene.thread.start([part(2)], NEEDS)
        scene.driver.until(lambda: ("start", [2]) in scene.driver.calls)
    assert scene.refused == ["no such queue", "engine failed: KeyError('bug')"]


def test_output_is_read_from_its_beginning_or_its_end():
    found: list[bytes | None] = []
    with Scene() as scene:
        for offset in (0, 4, -3):
            scene.thread.read(part(1).key, offset, 2, found.append)
        scene.driver.until(lambda: len(scene.driver.calls) == 3)
    assert found == [b"01", b"45", b"78"]


class Hangs(Driver):
    """An engine that answers no call before the end of the test."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.called = threading.Event(), threading.Event()
        self.threads: set[int] = set()

    def _call(self, what: str, about: Any = None) -> None:
        self.threads.add(threading.get_ident())
        self.called.set()
        self.gate.wait(PATIENCE_S)


def test_decisions_are_made_and_read_while_an_engine_answers_no_call():
    driver = Hangs()
    compose = lambda data: SchedulerConfig.from_data(dict(data)).build(None, Registry.installed())  # noqa: E731
    scheduler = {"policy": "fifo", "estimator": "measured", "rounds": 0.2}
    plane = ControlPlane(cluster("v100:2"), scheduler, compose, MemoryJournal(), drivers=[driver])

    async def story() -> None:
        await plane.start()
        try:
            assert await asyncio.to_thread(driver.called.wait, PATIENCE_S)
            plane.backend.agent_joined(0, ())
            plane.backend.submit_jobs([Job("one", command='{"run": ["true"]}')], lambda events: None)
            while True:
                with plane.backend.at_rest():
                    if len(plane.loop.state.running):
                        break
                await asyncio.sleep(0.02)
            assert not driver.gate.is_set()
            assert len(driver.threads) == 1
            assert not driver.threads & {threading.get_ident()}
        finally:
            driver.gate.set()
            await plane.stop()

    asyncio.run(asyncio.wait_for(story(), PATIENCE_S))
    assert plane.failure is None
