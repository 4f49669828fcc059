"""How long an engine blocks the scheduling loop: the time of a request that the loop answers, with a driver whose calls return
at once, and with one whose every call takes 20 s. `python benchmarks/engine_hangs.py` takes a minute."""

from __future__ import annotations

import asyncio
import json
import queue
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from fairlead.config.registry import Registry
from fairlead.config.schedulers import SchedulerConfig
from fairlead.core import events as ev
from fairlead.core.job import Job
from fairlead.engine.journal import MemoryJournal
from fairlead.runtime.control.control_plane import ControlPlane
from fairlead.runtime.drivers.base import Capabilities, EngineTask, LaunchKey, LaunchNeeds, LaunchPart, Machine
from fairlead.testing.builders import cluster

CALL_S, SECONDS, EVERY_S = 20.0, 25.0, 0.01


class SlowDriver:
    """An engine with two machines, whose calls take as long as this says."""

    name = "slow"
    capabilities = Capabilities()

    def __init__(self, call_s: float) -> None:
        self._call_s, self._over = call_s, threading.Event()
        self.calls = 0

    def _call(self) -> None:
        self.calls += 1
        self._over.wait(self._call_s)

    def observe(self, journal: str) -> tuple[Sequence[Machine], Sequence[EngineTask]]:
        self._call()
        return [Machine(f"machine-{n}", "v100", 2) for n in range(2)], ()

    def start(self, parts: Sequence[LaunchPart], needs: LaunchNeeds) -> None:
        self._call()

    def stop(self, key: LaunchKey, grace_s: float) -> None:
        self._call()

    def log(self, key: LaunchKey, offset: int, limit: int) -> bytes | None:
        self._call()
        return None

    def forget(self, key: LaunchKey) -> None:
        self._call()

    def watch(self, changed: Callable[[], None]) -> None:
        pass

    def close(self) -> None:
        self._over.set()


async def answers(plane: ControlPlane) -> list[float]:
    """The times in which the loop answers requests, with a job submitted once a second."""
    took, until, number = list[float](), time.monotonic() + SECONDS, 0
    while time.monotonic() < until:
        answer, began = queue.SimpleQueue[Sequence[ev.Event]](), time.monotonic()
        if number % 100 == 0:
            plane.backend.submit_jobs([Job("", command='{"run": ["true"]}')], answer.put)
        else:
            plane.backend.inbox.put(lambda now: (), answer.put)
        await asyncio.to_thread(answer.get)
        took.append(time.monotonic() - began)
        number += 1
        await asyncio.sleep(EVERY_S)
    return sorted(took)


async def measure(call_s: float) -> dict[str, Any]:
    driver = SlowDriver(call_s)
    compose = lambda data: SchedulerConfig.from_data(dict(data)).build(None, Registry.installed())  # noqa: E731
    scheduler = {"policy": "las", "estimator": "measured", "rounds": 0.5}
    plane = ControlPlane(cluster("v100:2"), scheduler, compose, MemoryJournal(), drivers=[driver])
    await plane.start()
    try:
        plane.backend.agent_joined(0, ())
        took = await answers(plane)
    finally:
        driver.close()
        await plane.stop()
    p99 = took[int(0.99 * (len(took) - 1))]
    return {
        "call_s": call_s,
        "driver_calls": driver.calls,
        "requests": len(took),
        "median_ms": round(1e3 * statistics.median(took), 2),
        "p99_ms": round(1e3 * p99, 2),
        "largest_ms": round(1e3 * took[-1], 2),
    }


def main() -> None:
    for call_s in (0.0, CALL_S):
        print(json.dumps(asyncio.run(measure(call_s))))


if __name__ == "__main__":
    main()
