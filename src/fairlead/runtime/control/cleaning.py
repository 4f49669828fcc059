"""What is left of jobs that ended a while ago: their checkpoints, and code that no job needs any more. The journal keeps all
that there is to know about them; their logs are the agents' business."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from pathlib import Path

from fairlead.core.job import ENDED, Phase
from fairlead.engine.loop import Loop
from fairlead.runtime.agent.files import remove
from fairlead.runtime.control.code import CodeStore
from fairlead.runtime.control.live import Live
from fairlead.runtime.tasks import task_of

log = logging.getLogger(__name__)

WEEK_S = 7 * 86400.0
LOOK_S = 60.0
LEAST_CODE_S = 3600.0
"""Code is kept so long after it was sent or asked for, or it could go before its job comes."""


@dataclass(frozen=True)
class Cleaner:
    loop: Loop
    live: Live
    code: CodeStore | None
    keep_s: float = WEEK_S

    async def watch(self) -> None:
        """Looks now and then; runs until it is cancelled."""
        while True:
            await asyncio.sleep(min(LOOK_S, max(self.keep_s, 1.0)))
            try:
                await asyncio.to_thread(self.clean)
            except OSError as problem:
                log.warning("cannot clean up: %s", problem)

    def clean(self) -> list[int]:
        """The jobs whose checkpoints are gone by this."""
        gone: list[int] = []
        folder = Path(self.live.checkpoints) if self.live.checkpoints else None
        if folder is not None and folder.is_dir():
            kept = [int(path.name) for path in folder.iterdir() if path.name.isdigit()]
            gone = self._long_ended(kept)
            for number in gone:
                remove(folder / str(number))
        if self.code is not None:
            self.code.sweep(self._wanted_code(), time.time() - max(self.keep_s, LEAST_CODE_S))
        return gone

    def _long_ended(self, numbers: list[int]) -> list[int]:
        with self.live.lock:
            state, before = self.loop.state, self.live.now - self.keep_s
            a = state.store.arrays
            return [
                number
                for number in numbers
                if number in state.job_of
                and Phase(int(a["phase"][number])) in ENDED
                and a["ended_s"][number] <= before
                and self.live.launches.latest(number) is None  # it may be dying yet, and writing
            ]

    def _wanted_code(self) -> set[str]:
        with self.live.lock:
            state = self.loop.state
            return {task_of(state.job_of[number]).code for number in (*state.live.tolist(), *state.queue.tolist())}
