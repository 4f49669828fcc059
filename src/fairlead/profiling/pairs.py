"""Two trainings at once on one accelerator, in two processes that hold all models of a list, so that a pair costs a second or
two and not the start of two processes. Neither process knows of the other: both are told a moment at which to begin. Each keeps
to two cores, leaves them for others when they are slowed, and the time until it has noticed does not count."""

from __future__ import annotations

import gc
import multiprocessing
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fairlead.core.errors import FairleadError
from fairlead.profiling.configurations import configuration
from fairlead.profiling.host import Host, parts
from fairlead.profiling.meter import Meter

AHEAD = 3  # steps that the host may be ahead of the device
WORKERS = 2
Floats: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True)
class Look:
    """How long to look at a pair, in seconds. Both work on for `after_s` when the window is over, so that nobody's last step is
    alone. Those whose host was slowed by others for all but `quiet` of the window, or whose window's halves differ by more than
    `steady`, are looked at again, `most` times at most; the mean of the windows counts, of the quiet ones if there are any."""

    warm_s: float = 0.2
    window_s: float = 0.8
    after_s: float = 0.05
    soon_s: float = 0.03  # until both have heard when to begin, and have found cores
    glance_s: float = 0.04  # from one look at the host to the next
    quiet: float = 0.25
    steady: float = 0.1
    most: int = 2


class Stepped(Protocol):
    def step(self) -> None: ...
    def mark(self) -> Callable[[], None]: ...


class Seen(NamedTuple):
    """A window: steps per second, by how much its halves differ, and the part of it in which the host was quiet."""

    steps_per_s: float
    spread: float
    quiet: float


def pace(
    training: Stepped,
    begin: float,
    look: Look,
    host: Host | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Seen:
    """What was done in the window while the host was quiet, or in all of it where that was too little. Between two glances at a
    quiet host it was quiet. Without a host to look at, it always is."""
    opens = begin + look.warm_s
    closes = opens + look.window_s
    done, pending = [begin], deque[Callable[[], None]]()
    since, calm, stretches = begin, True, list[tuple[float, float, bool]]()

    def glance() -> None:
        nonlocal since, calm
        still = host is None or host.quiet()
        stretches.append((since, clock(), calm and still))
        calm = still or (host is not None and host.settle())
        since = clock()

    while clock() < begin:
        pass
    while done[-1] < closes or clock() < closes + look.after_s:
        training.step()
        pending.append(training.mark())
        if len(pending) > AHEAD:
            pending.popleft()()
            done.append(clock())
        if clock() >= since + look.glance_s:
            glance()
    for each in pending:
        each()
    glance()
    edges = np.clip([(start, end) for start, end, _ in stretches], opens, closes)
    spans = edges[:, 1] - edges[:, 0]
    kept = np.array([quiet for *_, quiet in stretches])
    share = float(spans[kept].sum()) / look.window_s
    if share < look.quiet:
        kept[:] = True
    first, second = np.interp(edges, done, np.arange(len(done))).T
    rates = _halves(spans[kept], (second - first)[kept])
    mean = sum(rates) / 2
    return Seen(mean, abs(rates[1] - rates[0]) / mean if mean else 0.0, share)


def _halves(spans: Floats, steps: Floats) -> tuple[float, float]:
    """Steps per second in the first half of some stretches of time, and in the second. Steps are a line between the moments at
    which they were seen to be done, so that no stretch needs to hold a whole number of them."""
    time_s, done = np.cumsum([0.0, *spans]), np.cumsum([0.0, *steps])
    half = float(time_s[-1]) / 2
    middle = float(np.interp(half, time_s, done))
    return middle / half, (float(done[-1]) - middle) / half


class Bench:
    """Two processes with all the models in each. `alone(name)` and `together(one, other)` measure."""

    def __init__(self, names: Sequence[str], device: str, look: Look | None = None) -> None:
        self.look = look or Look()
        spawn = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
        self._lines: list[Connection] = []
        self._processes = []
        for cores in parts(WORKERS) if device.startswith("cuda") else [()] * WORKERS:
            ours, theirs = spawn.Pipe()
            process = spawn.Process(target=_work, args=(theirs, tuple(names), device, cores), daemon=True)
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
        spread, quiet = (max(rates) - min(rates)) / mean, min(told["quiet"] for told in found)
        about = {"name": name, "alone": name, "steps_per_s": mean, "spread": spread, "windows": windows, "quiet": quiet}
        return {**found[-1], **about}

    def together(self, one: str, other: str) -> dict[str, Any]:
        return {"name": f"{one} + {other}", "pair": [one, other], **self._ask({0: one, 1: other})}

    def _ask(self, wanted: dict[int, str]) -> dict[str, Any]:
        began, windows = time.perf_counter(), list[list[Seen]]()
        with Meter() as meter:
            while len(windows) < self.look.most:
                heard = self._window(wanted)
                problem = next((told for told in heard if isinstance(told, str)), None)
                if problem is not None:
                    return {"problem": problem}
                windows.append([Seen(*told) for told in heard])
                if self._calm(windows[-1]) and max(one.spread for one in windows[-1]) <= self.look.steady:
                    break
        counted = [window for window in windows if self._calm(window)] or windows
        each = np.array([[one.steps_per_s for one in window] for window in counted])
        rates = each.mean(axis=0)
        apart = (each.max(axis=0) - each.min(axis=0)) / np.maximum(rates, 1e-12)
        return {
            "steps_per_s": rates.tolist(),
            "spread": max(one.spread for one in counted[0]) if len(counted) == 1 else float(apart.max()),
            "windows": each.tolist(),
            "quiet": min(one.quiet for window in counted for one in window),
            "window_s": self.look.window_s,
            "took_s": time.perf_counter() - began,
            **meter.told(),
        }

    def _calm(self, window: Sequence[Seen]) -> bool:
        return min(one.quiet for one in window) >= self.look.quiet

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


def _work(line: Connection, names: tuple[str, ...], device: str, cores: tuple[int, ...]) -> None:
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
    gc.collect()
    gc.freeze()  # nobody looks through all these models for garbage in the middle of a window
    host = Host(cores) if device.startswith("cuda") else None  # on a CPU, who slows the host is the training itself
    line.send(problems)
    while True:
        try:
            name, begin, look = line.recv()
        except EOFError:
            return
        try:
            if host is not None:
                host.settle()
            line.send(pace(held[name], begin, look, host) if name in held else problems[name])
        except RuntimeError as problem:  # out of memory beside the other
            line.send(f"{type(problem).__name__}: {problem}"[:300])
