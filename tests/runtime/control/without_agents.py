"""A control plane without agents, for tests of its scheduler: nodes are said to be there, and launches go nowhere."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from fairlead.config.registry import Registry
from fairlead.config.schedulers import SchedulerConfig
from fairlead.core.job import Phase
from fairlead.engine.state import State
from fairlead.journal.recovery import open_journal, read_journal
from fairlead.runtime.control.control_plane import ControlPlane
from fairlead.runtime.protocol.task_file import TaskSpec
from fairlead.testing import check_events
from fairlead.testing.builders import cluster

PATIENCE_S = 120.0


class Scene:
    """With one stage of the test's own, which may wait for the `gate` and note what it was `asked`. Rounds are short; where it
    matters which stage is late, they are so long that no other one is on a busy machine."""

    def __init__(self, where: Path, slow: type, stage: str = "policy", round_s: float = 0.2) -> None:
        slow.gate, slow.asked = threading.Event(), []
        self.policy, self.where = slow, str(where / "journal.sqlite")
        registry = Registry.installed().plus(stage, "slow", slow)
        scheduler = {"policy": "fifo", "estimator": "measured", "rounds": round_s, stage: "slow"}
        self.plane = ControlPlane(
            cluster("v100:2,v100:2"),
            scheduler,
            lambda data: SchedulerConfig.from_data(dict(data)).build(None, registry),
            open_journal(self.where),
        )
        if stage != "policy":  # then another one is late, and never the policy, however busy the machine is
            self.plane.loop.stages.policy._background._wait_s = PATIENCE_S

    def play(self, scene: Callable[[], Awaitable[None]]) -> State:
        async def run() -> None:
            await self.plane.start()
            for node in range(2):
                self.plane.backend.agent_joined(node, ())
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
        await self.kept(lambda answered: self.plane.backend.submit_jobs(jobs, answered))

    async def until(self, reached: Callable[[], bool]) -> None:
        def look() -> bool:
            with self.plane.backend.lock:
                return reached()

        while not await asyncio.to_thread(look):
            assert self.plane.failure is None
            await asyncio.sleep(0.02)

    def runs(self, number: int) -> bool:
        return self.plane.loop.state.columns["phase"][number] == Phase.RUNNING

    def starts(self, number: int) -> int:
        return int(self.plane.loop.state.columns["starts"][number])
