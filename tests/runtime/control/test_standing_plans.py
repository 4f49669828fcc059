"""A planner that takes longer than its round: the old plan stands meanwhile, round by round, and nobody idles."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from without_agents import PATIENCE_S, Scene

from fairlead.core.errors import SolverError
from fairlead.core.events import Memo
from fairlead.core.snapshot import Snapshot
from fairlead.policies.shockwave.policy import Shockwave


@dataclass(frozen=True)
class Slow(Shockwave):
    """Plans once the gate is open."""

    gate: ClassVar[threading.Event]
    asked: ClassVar[list[list[int]]]
    rounds: int = 4

    def _plan(self, view: Snapshot, memo: Memo) -> Mapping[str, Any]:
        self.asked.append(view.jobs.number.tolist())
        assert self.gate.wait(PATIENCE_S)
        return super()._plan(view, memo)


@dataclass(frozen=True)
class Failing(Slow):
    """Finds no plan before the gate is open."""

    gate: ClassVar[threading.Event]
    asked: ClassVar[list[list[int]]]

    def _plan(self, view: Snapshot, memo: Memo) -> Mapping[str, Any]:
        if not self.gate.is_set():
            raise SolverError("shockwave plan", "a time limit")
        return super()._plan(view, memo)


@pytest.mark.parametrize(("policy", "trouble"), [(Slow, "takes longer than a round"), (Failing, "the policy failed")])
def test_the_old_plan_goes_on_and_room_that_it_leaves_is_taken(tmp_path, policy, trouble):
    scene = Scene(tmp_path, policy)
    loop, backend = scene.plane.loop, scene.plane.backend

    async def story() -> None:
        policy.gate.set()
        await scene.submit("a", "b", "c", workers=2)  # on four accelerators
        await scene.until(lambda: sum(scene.runs(n) for n in range(3)) == 2)
        old = loop.state.memo
        policy.gate.clear()
        await scene.submit("new")
        await scene.until(lambda: trouble in scene.plane.decision_health.message)
        await scene.until(lambda: all(scene.starts(n) for n in range(3)))  # the plan's later rounds have come
        assert loop.state.memo["number"].tolist() == old["number"].tolist() == [0, 1, 2]
        assert scene.starts(3) == 0
        await scene.kept(lambda answered: backend.cancel(0, answered))
        await scene.kept(lambda answered: backend.cancel(1, answered))
        await scene.until(lambda: scene.runs(2) and scene.runs(3))
        assert loop.state.memo["number"].tolist() == [0, 1, 2]
        policy.gate.set()
        await scene.until(lambda: loop.state.memo["number"].tolist() == [2, 3] and not scene.plane.decision_health.message)

    scene.play(story)
