"""What every driver of an engine keeps to, on the real engine or one that behaves like it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import ClassVar

from fairlead.runtime.drivers.base import (
    EngineDriver,
    EngineTask,
    EngineUnavailable,
    LaunchKey,
    LaunchNeeds,
    LaunchPart,
    Machine,
    MachineState,
    TaskState,
)

JOURNAL = "contract"
NOWHERE = "127.0.0.1:9"  # agents of these tests never reach a control plane, and run until they are stopped


class DriverContract:
    """Give `make()`, which returns a new driver of one engine with at least one free machine of two GPUs. `away()` is a context
    in which the engine does not answer; None if it cannot be taken away. `patience_s` is how long the engine may take."""

    patience_s: ClassVar[float] = 60.0
    away: ClassVar[Callable[..., AbstractContextManager[None]] | None] = None

    def make(self) -> EngineDriver:
        raise TypeError("a driver's contract needs `make()`")

    def test_machines_are_named_and_have_gpus(self) -> None:
        machines, _ = self._observed(self.make())
        assert len({machine.name for machine in machines}) == len(machines) > 0
        for machine in machines:
            assert machine.type == machine.type.lower()
            assert machine.accelerators > 0

    def test_what_was_started_is_listed_until_it_is_over(self) -> None:
        with self._driver() as driver:
            part = self._part(driver, 1)
            self._until(driver, part.key, None)
            driver.start([part], LaunchNeeds("one"))
            self._until(driver, part.key, TaskState.RUNNING)
            _, others = self._observed(driver, "another journal")
            assert part.key not in {task.key for task in others}
            driver.stop(part.key, 1.0)
            self._until(driver, part.key, TaskState.OVER)
            driver.stop(part.key, 1.0)
            driver.forget(part.key)
            driver.forget(part.key)

    def test_starting_twice_starts_once_also_by_another_driver(self) -> None:
        with self._driver() as driver:
            part = self._part(driver, 2)
            driver.start([part], LaunchNeeds("one"))
            driver.start([part], LaunchNeeds("one"))
            again = self.make()
            try:
                again.start([part], LaunchNeeds("one"))
                self._until(again, part.key, TaskState.RUNNING)
                _, tasks = self._observed(again)
                assert [task.key for task in tasks if task.key.job == 2] == [part.key]
            finally:
                again.close()

    def test_two_generations_are_two_parts(self) -> None:
        with self._driver() as driver:
            first, second = self._part(driver, 3), self._part(driver, 3, generation=2)
            driver.start([first], LaunchNeeds("one"))
            self._until(driver, first.key, TaskState.RUNNING)
            driver.stop(first.key, 1.0)
            self._until(driver, first.key, TaskState.OVER)
            driver.start([second], LaunchNeeds("one"))
            self._until(driver, second.key, TaskState.RUNNING)

    def test_stopping_what_was_never_started_is_no_error(self) -> None:
        with self._driver() as driver:
            key = self._part(driver, 4).key
            driver.stop(key, 0.0)
            driver.forget(key)
            assert driver.log(key, 0, 100) is None

    def test_an_engine_that_is_away_is_told_apart_from_one_with_nothing_to_do(self) -> None:
        if self.away is None:
            return
        with self._driver() as driver:
            part = self._part(driver, 5)
            driver.start([part], LaunchNeeds("one"))
            self._until(driver, part.key, TaskState.RUNNING)
            with self.away():
                for call in (
                    lambda: driver.observe(JOURNAL),
                    lambda: driver.start([self._part(driver, 6, part.key.machine)], LaunchNeeds("six")),
                    lambda: driver.stop(part.key, 1.0),
                ):
                    self._until_unavailable(call)
            self._until(driver, part.key, TaskState.RUNNING)
            late = self._part(driver, 6, part.key.machine)
            driver.start([late], LaunchNeeds("six"))
            self._until(driver, late.key, TaskState.RUNNING)

    @contextmanager
    def _driver(self) -> Iterator[EngineDriver]:
        driver = self.make()
        try:
            yield driver
        finally:
            for task in self._observed(driver)[1]:
                driver.stop(task.key, 0.0)
            driver.close()

    def _part(self, driver: EngineDriver, job: int, machine: str = "", generation: int = 1) -> LaunchPart:
        ready = [one.name for one in self._observed(driver)[0] if one.state is MachineState.READY] if not machine else [machine]
        key = LaunchKey(JOURNAL, job, generation, ready[0])
        arguments = ("agent", "--launch", f"{job}.{generation}", "--node", key.machine, "--control", NOWHERE)
        return LaunchPart(key, (0,), (*arguments, "--accelerators", "v100:1", "--insecure"), "fl_launch_none.none")

    def _observed(self, driver: EngineDriver, journal: str = JOURNAL) -> tuple[Sequence[Machine], Sequence[EngineTask]]:
        """A driver may need a moment for its first look."""
        until = time.monotonic() + self.patience_s
        while True:
            try:
                return driver.observe(journal)
            except EngineUnavailable:
                if time.monotonic() > until:
                    raise
                time.sleep(0.05)

    def _until(self, driver: EngineDriver, key: LaunchKey, state: TaskState | None) -> None:
        until, found = time.monotonic() + self.patience_s, list[EngineTask]()
        while time.monotonic() < until:
            found = [task for task in self._observed(driver)[1] if task.key == key]
            if (found[0].state if found else None) is state:
                return
            time.sleep(0.05)
        raise AssertionError(f"{key} is not {state} in time: {found}")

    def _until_unavailable(self, call: Callable[[], object]) -> None:
        until = time.monotonic() + self.patience_s
        while time.monotonic() < until:
            try:
                call()
            except EngineUnavailable:
                return
            time.sleep(0.05)
        raise AssertionError("the engine does not answer, and the driver does not say so")
