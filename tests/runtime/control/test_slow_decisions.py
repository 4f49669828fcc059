"""Decisions that take longer than a round, on wall time: people are answered, rounds go on, who runs keeps its place. The slow
part waits for a gate that the test opens, so nothing here depends on how fast the machine is."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from fairlead.config import SchedulerConfig
from fairlead.core import events as ev
from fairlead.core.allocation import Allocation
from fairlead.core.errors import SolverError
from fairlead.core.events import Memo
from fairlead.core.job import Phase
from fairlead.core.plan import Selection
from fairlead.core.snapshot import Snapshot
from fairlead.engine.state import State
from fairlead.journals.opening import open_journal, read_journal
from fairlead.policies.fifo import Fifo
from fairlead.registry import Registry
from fairlead.runtime.control.plane import Plane
from fairlead.runtime.tasks import TaskSpec
from fairlead.testing import check_events
from fairlead.testing.builders import cluster

PATIENCE_S = 60.0


@dataclass(frozen=True)
class SlowShares:
    """Equal shares for all, once the gate is open."""

    gate: ClassVar[threading.Event]
    asked: ClassVar[list[list[int]]]

    def allocate(self, view: Snapshot, memo: Memo) -> tuple[Allocation, Memo]:
        self.asked.append(view.jobs.number.tolist())
        assert self.gate.wait(PATIENCE_S)
        return Allocation.alone(view.jobs.number, np.full((len(view.jobs), 1), 1.0)), memo


@dataclass(frozen=True)
class Unsolved(SlowShares):
    """No shares for anybody, until the gate is open."""

    gate: ClassVar[threading.Event]
    asked: ClassVar[list[list[int]]]

    def allocate(self, view: Snapshot, memo: Memo) -> tuple[Allocation, Memo]:
        if not self.gate.is_set():
            self.asked.append(view.jobs.number.tolist())
            raise SolverError("unsolved", "a time limit")
        return super().allocate(view, memo)


@dataclass(frozen=True)
class SlowFifo:
    """In line, once the gate is open."""

    gate: ClassVar[threading.Event]
    asked: ClassVar[list[list[int]]]

    def select(self, view: Snapshot, memo: Memo) -> tuple[Selection, Memo]:
        self.asked.append(view.jobs.number.tolist())
        assert self.gate.wait(PATIENCE_S)
        return Fifo().select(view, memo)


class Scene:
    """A control plane without agents: its nodes are said to be there, and launches go nowhere."""

    def __init__(self, where: Path, policy: type) -> None:
        policy.gate, policy.asked = threading.Event(), []
        self.policy, self.where = policy, str(where / "journal.sqlite")
        registry = Registry.installed().plus("policy", "slow", policy)
        scheduler = {"policy": "slow", "estimation": "measured", "rounds": 0.2}
        self.plane = Plane(
            cluster("v100:2,v100:2"),
            scheduler,
            lambda data: SchedulerConfig.from_data(dict(data)).build(None, registry),
            open_journal(self.where),
        )

    def play(self, scene: Callable[[], Awaitable[None]]) -> State:
        async def run() -> None:
            await self.plane.start()
            for node in range(2):
                self.plane.live.joined(node, ())
            try:
                await asyncio.wait_for(scene(), PATIENCE_S)
            finally:
                self.policy.gate.set()
                await self.plane.stop()

        asyncio.run(run())
        replayed = check_events(list(read_journal(self.where)), real=True)
        assert replayed.digest() == self.plane.loop.state.digest()
        return replayed

    async def kept(self, ask: Callable[[Callable[[Any], None]], None]) -> None:
        """Returns when what is asked for is in the journal."""
        loop = asyncio.get_running_loop()
        answered = asyncio.Event()
        ask(lambda events: loop.call_soon_threadsafe(answered.set))
        await answered.wait()

    async def submit(self, *names: str, workers: int = 1) -> None:
        jobs = [TaskSpec(name=name, run="true", workers=workers).job(name, "ann") for name in names]
        await self.kept(lambda answered: self.plane.live.submit_jobs(jobs, answered))

    async def until(self, reached: Callable[[], bool]) -> None:
        def look() -> bool:
            with self.plane.live.lock:
                return reached()

        while not await asyncio.to_thread(look):
            assert self.plane.failure is None
            await asyncio.sleep(0.02)

    def runs(self, number: int) -> bool:
        return self.plane.loop.state.store.arrays["phase"][number] == Phase.RUNNING

    def starts(self, number: int) -> int:
        return int(self.plane.loop.state.store.arrays["starts"][number])


def test_rounds_go_on_with_the_last_allocation_while_the_next_is_computed(tmp_path):
    scene = Scene(tmp_path, SlowShares)
    loop, asked = scene.plane.loop, SlowShares.asked

    async def story() -> None:
        await scene.submit("first")
        await scene.until(lambda: scene.runs(0))  # an agnostic share: there is no allocation yet
        held = loop.state.holdings.of(0).tolist()
        await scene.submit("second", workers=2)
        await scene.until(lambda: scene.runs(1))
        decisions = loop.decisions
        await scene.until(lambda: loop.decisions > decisions + 2)
        assert asked == [[0]]
        assert (loop.state.holdings.of(0).tolist(), scene.starts(0)) == (held, 1)
        assert loop.state.memo["known"].tolist() == []
        SlowShares.gate.set()
        await scene.until(lambda: loop.state.memo["known"].tolist() == [0, 1])
        assert asked == [[0], [0, 1]]
        assert (loop.state.holdings.of(0).tolist(), scene.starts(0), scene.starts(1)) == (held, 1, 1)

    scene.play(story)


def test_after_a_solver_that_failed_the_last_allocation_stands_and_it_is_asked_again(tmp_path, caplog):
    scene = Scene(tmp_path, Unsolved)
    loop = scene.plane.loop

    async def story() -> None:
        await scene.submit("first")
        await scene.until(lambda: scene.runs(0) and len(Unsolved.asked) > 1)
        assert "allocation failed, the last one stands" in caplog.text
        Unsolved.gate.set()
        await scene.until(lambda: loop.state.memo["known"].tolist() == [0])

    scene.play(story)
    assert scene.starts(0) == 1


@pytest.mark.parametrize("policy", [SlowShares, SlowFifo])
def test_people_are_answered_while_a_decision_is_made(tmp_path, policy):
    scene = Scene(tmp_path, policy)

    async def story() -> None:
        await scene.submit("first")
        await scene.until(lambda: bool(policy.asked))
        for n in range(20):
            await scene.submit(f"more-{n}")
        assert scene.plane.loop.state.next_number == 21
        assert not policy.gate.is_set()

    scene.play(story)


def test_what_has_been_overtaken_is_not_done_and_what_came_since_is_decided_on_next(tmp_path):
    scene = Scene(tmp_path, SlowFifo)
    live, state = scene.plane.live, scene.plane.loop.state

    async def story() -> None:
        await scene.submit("cancelled", "stays", "elsewhere", "on-a-node-that-goes")
        await scene.until(lambda: bool(SlowFifo.asked))
        assert SlowFifo.asked == [[0, 1, 2, 3]]
        await scene.kept(lambda answered: live.cancel(0, answered))
        live.left(1)
        await scene.submit("late")
        SlowFifo.gate.set()
        await scene.until(lambda: scene.runs(1) and not scene.runs(3) and len(SlowFifo.asked) > 1)
        await scene.until(lambda: scene.runs(2))

    scene.play(story)
    assert (scene.starts(0), state.store.arrays["phase"][0]) == (0, Phase.CANCELLED)
    first = next(event.plan for event in read_journal(scene.where) if isinstance(event, ev.RoundPlanned))
    assert (first.admitted.tolist(), first.launches.jobs.tolist()) == ([1, 2, 3], [1])
    assert SlowFifo.asked[1] == [1, 2, 3, 4]
