"""Two trainings at once on one accelerator, in two processes that hold all models of a list, so that a pair costs a second or
two and not the start of two processes. Neither process knows of the other: both are told a moment at which to begin."""

from __future__ import annotations

import multiprocessing
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Protocol

import numpy as np

from fairlead.core.errors import FairleadError
from fairlead.profiling.configurations import configuration
from fairlead.profiling.meter import Meter

AHEAD = 3  # steps that the host may be ahead of the device
WORKERS = 2


@dataclass(frozen=True)
class Look:
    """How long to look at a pair, in seconds. Both work on for `after_s` when the window is over, so that nobody's last step is
    alone. Those whose window's halves differ by more than `steady`, as they do where the host is waited for, are looked at
    again, `most` times at most; the mean of the windows counts."""

    warm_s: float = 0.2
    window_s: float = 0.8
    after_s: float = 0.05
    soon_s: float = 0.01  # until both have heard when to begin
    steady: float = 0.1
    most: int = 2


class Stepped(Protocol):
    def step(self) -> None: ...
    def mark(self) -> Callable[[], None]: ...


def pace(training: Stepped, begin: float, look: Look, clock: Callable[[], float] = time.monotonic) -> tuple[float, float]:
    """Steps per second in the window, and by how much its halves differ. Steps done are a line between the moments at which
    steps were seen to be done, so that a window needs not hold a whole number of them."""
    opens = begin + look.warm_s
    closes = opens + look.window_s
    seen, pending = [begin], deque[Callable[[], None]]()
    while clock() < begin:
        pass
    while seen[-1] < closes or clock() < closes + look.after_s:
        training.step()
        pending.append(training.mark())
        if len(pending) > AHEAD:
            pending.popleft()()
            seen.append(clock())
    for done in pending:
        done()
    at = np.interp([opens, (opens + closes) / 2, closes], seen, np.arange(len(seen)))
    halves = np.diff(at) / (look.window_s / 2)
    rate = float(halves.mean())
    return rate, float(abs(halves[1] - halves[0]) / rate) if rate else 0.0


class Bench:
    """Two processes with all the models in each. `alone(name)` and `together(one, other)` measure."""

    def __init__(self, names: Sequence[str], device: str, look: Look | None = None) -> None:
        self.look = look or Look()
        spawn = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
        self._lines: list[Connection] = []
        self._processes = []
        for _ in range(WORKERS):
            ours, theirs = spawn.Pipe()
            process = spawn.Process(target=_work, args=(theirs, tuple(names), device), daemon=True)
            process.start()
            theirs.close()
            self._lines.append(ours)
            self._processes.append(process)
        problems: dict[str, str] = {}
        for line in self._lines:
            problems |= self._heard(line)
        self.problems = problems
        """Which models cannot be held here, and why."""

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for line, process in zip(self._lines, self._processes):
            line.close()  # a worker whose line ends leaves
            process.join(timeout=10)
            if process.is_alive():
                process.kill()

    def alone(self, name: str) -> dict[str, Any]:
        """In the one process and then in the other; the mean of both, and by how much they differ."""
        found = [self._ask({number: name}) for number in range(WORKERS)]
        problem = next((told["problem"] for told in found if "problem" in told), None)
        if problem is not None:
            return {"name": name, "problem": problem}
        rates = [told["steps_per_s"][0] for told in found]
        mean = sum(rates) / len(rates)
        windows = [rate for told in found for (rate,) in told["windows"]]
        spread = (max(rates) - min(rates)) / mean
        return {**found[-1], "name": name, "alone": name, "steps_per_s": mean, "spread": spread, "windows": windows}

    def together(self, one: str, other: str) -> dict[str, Any]:
        return {"name": f"{one} + {other}", "pair": [one, other], **self._ask({0: one, 1: other})}

    def _ask(self, wanted: dict[int, str]) -> dict[str, Any]:
        began, windows = time.perf_counter(), list[list[float]]()
        with Meter() as meter:
            while len(windows) < self.look.most:
                heard = self._window(wanted)
                problem = next((told for told in heard if isinstance(told, str)), None)
                if problem is not None:
                    return {"problem": problem}
                windows.append([rate for rate, _ in heard])
                halves = max(spread for _, spread in heard)
                if halves <= self.look.steady:
                    break
        each = np.array(windows)
        rates = each.mean(axis=0)
        apart = (each.max(axis=0) - each.min(axis=0)) / np.maximum(rates, 1e-12)
        return {
            "steps_per_s": rates.tolist(),
            "spread": halves if len(windows) == 1 else float(apart.max()),
            "windows": windows,
            "window_s": self.look.window_s,
            "took_s": time.perf_counter() - began,
            **meter.told(),
        }

    def _window(self, wanted: dict[int, str]) -> list[Any]:
        begin = time.monotonic() + self.look.soon_s
        for number, name in wanted.items():
            self._lines[number].send((name, begin, self.look))
        return [self._heard(self._lines[number]) for number in wanted]

    def _heard(self, line: Connection) -> Any:
        try:
            return line.recv()
        except EOFError:
            raise FairleadError(
                "a process that trains has ended before its time; what was measured is kept, run it again"
            ) from None


def _work(line: Connection, names: tuple[str, ...], device: str) -> None:
    """A worker's life: make the models, tell which cannot be made, then measure what is asked until nobody asks any more."""
    from fairlead.profiling.training import Training

    held: dict[str, Training] = {}
    problems: dict[str, str] = {}
    for name in names:
        try:
            held[name] = Training.of(configuration(name), device)
            for _ in range(3):
                held[name].step()
            held[name].finish()
        except (RuntimeError, ValueError, TypeError, AttributeError, ImportError) as problem:
            held.pop(name, None)
            problems[name] = f"{type(problem).__name__}: {problem}"[:300]
    line.send(problems)
    while True:
        try:
            name, begin, look = line.recv()
        except EOFError:
            return
        try:
            line.send(pace(held[name], begin, look) if name in held else problems[name])
        except RuntimeError as problem:  # out of memory beside the other
            line.send(f"{type(problem).__name__}: {problem}"[:300])
