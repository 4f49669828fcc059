"""Measure two trainings at once on one GPU, in two processes that each hold all listed models. On a shared host speed can halve
from one second to the next, so each training is measured alone and co-located within one second, alternately."""

from __future__ import annotations

import gc
import multiprocessing
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from fairlead.core.errors import FairleadError
from fairlead.profiling.configurations import configuration
from fairlead.profiling.meter import Meter

Interval: TypeAlias = tuple[float, float]
"""Start and end."""
COLOCATED_FACTOR = 2  # expected duration of a co-located step, relative to alone
DRAIN_STEPS = 2 * COLOCATED_FACTOR  # in steps alone: at a pause, two co-located steps may still have to finish


@dataclass(frozen=True)
class PairTiming:
    """How long to measure a pair, in seconds: both start; then, `repetitions` times, one alone, both, and the other alone.
    Windows are longer where they would have fewer than `steps` steps."""

    warm_s: float = 0.1
    alone_s: float = 0.2
    window_s: float = 0.3
    repetitions: int = 2
    steps: int = 5


class WorkInterval(NamedTuple):
    """An interval of work: its actual start, the times at which steps were seen to finish (late by the `ahead` steps that the
    host may run ahead), and when the device had finished its last step."""

    began: float
    done: list[float]
    ahead: int
    device_done: float


class PairRates(NamedTuple):
    """Steps per second of both together, and of each alone just before or after."""

    together: tuple[float, float]
    alone: tuple[float, float]


class PairSchedule(NamedTuple):
    """When each of two trainings works; `other` has an extra first interval, for warm-up."""

    one: list[Interval]
    other: list[Interval]


def pair_schedule(timing: PairTiming, step_s: tuple[float, float], moment: float, longer: int = 1) -> PairSchedule:
    """The schedule from a moment on, given the duration of a step alone. Before one is alone, the other must have finished its
    last step. `longer` scales all of it, for pairs that are slower than expected."""
    first, second = (
        longer * (max(timing.alone_s, timing.steps * mine) + DRAIN_STEPS * theirs)
        for mine, theirs in (step_s, reversed(step_s))
    )
    both = longer * max(timing.window_s, timing.steps * COLOCATED_FACTOR * max(step_s))
    began, now = moment, moment + timing.warm_s
    one, other = list[Interval](), [(began, now)]
    for _ in range(timing.repetitions):
        both_start, both_end = now + first, now + first + both
        one.append((began, both_end))
        other.append((both_start, both_end + second))
        began = now = both_end + second
    return PairSchedule(one, other)


def window_rates(planned: PairSchedule, one: Sequence[WorkInterval], other: Sequence[WorkInterval]) -> list[PairRates]:
    """The rates of each window with enough steps. A training that pauses still works for a moment, during which the other is
    not alone; one that wakes up late is not co-located until then."""
    found = list[PairRates]()
    for number, mine in enumerate(one):
        before, theirs = other[number], other[number + 1]
        (began, both_end), (both_start, ended) = planned.one[number], planned.other[number + 1]
        both = max(both_start, theirs.began), both_end
        found.append(
            PairRates(
                (rate(mine, both), rate(theirs, both)),
                (rate(mine, (max(began, before.device_done), both_start)), rate(theirs, (mine.device_done, ended))),
            )
        )
    return [window for window in found if min(window.together + window.alone) > 0]


def rate(interval: WorkInterval, within: Interval) -> float:
    """Steps per second within an interval, without steps that started before; 0 if there were too few."""
    start, end = within
    whole = [moment for moment in interval.done if start <= moment <= end][interval.ahead :]
    return (len(whole) - 1) / (whole[-1] - whole[0]) if len(whole) > 1 else 0.0


MAX_STEPS_AHEAD = 3  # short steps that the host may run ahead of the device; one if they are long
SHORT_S = 0.01
SOON_S = 0.03  # until both processes have received the schedule
WORKERS = 2
WARMUP_STEPS = 3  # steps of the warm-up, and of the first estimate of a step's duration
ESTIMATE_ONLY: Sequence[Interval] = ()  # instead of a schedule: estimate the duration of a step
RETRY_FACTORS = (1, 2, 4)  # of the schedule's length, until there are enough steps
TOO_FEW = "too few steps were done to tell how fast it is; --window and --alone can be longer, with another --out"


class SteppableTraining(Protocol):
    """A training that is run step by step. `record_event` returns a function that waits until the steps so far are done."""

    def step(self) -> None: ...
    def record_event(self) -> Callable[[], None]: ...


def work(
    training: SteppableTraining,
    step_s: float,
    schedule: Sequence[Interval],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> list[WorkInterval]:
    """Work in some intervals and pause in between; `step_s` is about the duration of a step."""
    ahead, intervals = MAX_STEPS_AHEAD if step_s < SHORT_S else 1, []
    for start, end in schedule:
        while (now := clock()) < start:
            sleep(start - now)
        began, done, pending = clock(), list[float](), deque[Callable[[], None]]()
        while clock() < end:
            training.step()
            pending.append(training.record_event())
            if len(pending) > ahead:
                pending.popleft()()
                done.append(clock())
        for each in pending:
            each()
        intervals.append(WorkInterval(began, done, ahead, clock()))
    return intervals


def build_configuration(name: str, device: str) -> SteppableTraining:
    """The training of a configuration."""
    from fairlead.profiling.profile_alone import TrainingLoop

    return TrainingLoop.of(configuration(name), device)


class PairBench:
    """Two processes with all models in each, which `build` makes. `alone(name)` and `together(one, other)` measure."""

    def __init__(
        self,
        names: Sequence[str],
        device: str,
        timing: PairTiming | None = None,
        build: Callable[[str, str], SteppableTraining] = build_configuration,
    ) -> None:
        self.timing, self.device = timing or PairTiming(), device
        spawn = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
        self._connections: list[Connection] = []
        self._processes = []
        for _ in range(WORKERS):
            ours, theirs = spawn.Pipe()
            process = spawn.Process(target=_run_worker, args=(theirs, tuple(names), device, build), daemon=True)
            process.start()
            theirs.close()
            self._connections.append(ours)
            self._processes.append(process)
        self.problems: dict[str, str] = {}
        """Models that cannot run here, with the error."""
        self._step_s: dict[str, float] = {}
        try:
            for connection in self._connections:
                self.problems |= self._receive(connection)
            for name in (
                name for name in names if name not in self.problems
            ):  # alone, when both processes have built their models
                (answer,) = self._request({0: (name, ESTIMATE_ONLY)})
                if isinstance(answer, str):
                    self.problems[name] = answer
                else:
                    self._step_s[name] = answer
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> PairBench:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End both processes."""
        for connection, process in zip(self._connections, self._processes):
            connection.close()  # ends the worker
            process.join(timeout=10)
            if process.is_alive():
                process.kill()

    def alone(self, name: str) -> dict[str, Any]:
        """Measure in one process and then in the other; returns the mean and the spread."""
        timing, began, windows = self.timing, time.perf_counter(), list[float]()
        window_s = 2 * max(timing.window_s, timing.steps * self._step_s[name])
        with Meter(self.device) as meter:
            for number in range(WORKERS):
                moment = _soon()
                opens, closes = moment + timing.warm_s, moment + timing.warm_s + window_s
                (answer,) = self._request({number: (name, [(moment, closes)])})
                if isinstance(answer, str):
                    return {"name": name, "problem": answer}
                windows.append(rate(answer[0], (opens, closes)))
        if not min(windows) > 0:
            return {"name": name, "problem": TOO_FEW}
        mean = sum(windows) / WORKERS
        return {
            "name": name,
            "alone": name,
            "steps_per_s": mean,
            "spread": (max(windows) - min(windows)) / mean,
            "windows": windows,
            "window_s": window_s,
            "took_s": time.perf_counter() - began,
            **meter.summary(),
        }

    def together(self, one: str, other: str) -> dict[str, Any]:
        """Measure two trainings alternately alone and co-located. Slowdowns are computed within each window, their spread
        between windows. A pair with too few steps is measured again for longer."""
        about, began = {"name": f"{one} + {other}", "pair": [one, other]}, time.perf_counter()
        windows, problem = list[PairRates](), TOO_FEW
        for longer in RETRY_FACTORS:
            planned = pair_schedule(self.timing, (self._step_s[one], self._step_s[other]), _soon(), longer)
            with Meter(self.device) as meter:
                answer = self._request({0: (one, planned.one), 1: (other, planned.other)})
            problem = next((each for each in answer if isinstance(each, str)), TOO_FEW)
            intervals = [each for each in answer if not isinstance(each, str)]
            windows = window_rates(planned, *intervals) if len(intervals) == WORKERS else []
            if windows or problem != TOO_FEW:
                break
        if not windows:
            return {**about, "problem": problem}
        return {**about, **_summary(windows), "took_s": time.perf_counter() - began, **meter.summary()}

    def _request(self, wanted: Mapping[int, tuple[str, Sequence[Interval]]]) -> list[Any]:
        """The intervals of each, the estimated duration of a step, or an error text."""
        for number, (name, schedule) in wanted.items():
            with suppress(ConnectionError):  # receiving reports it
                self._connections[number].send((name, self._step_s.get(name, 0.0), schedule))
        return [self._receive(self._connections[number]) for number in wanted]

    def _receive(self, connection: Connection) -> Any:
        try:
            return connection.recv()
        except (EOFError, ConnectionResetError):
            raise FairleadError("a training process ended early; its measurements are kept: run the command again") from None


def _soon() -> float:
    return time.monotonic() + SOON_S


def _summary(windows: Sequence[PairRates]) -> dict[str, Any]:
    together, alone = (np.array(column) for column in zip(*windows))
    slower = alone / together
    spread = float(((slower.max(axis=0) - slower.min(axis=0)) / slower.mean(axis=0)).max())
    return {
        "steps_per_s": together.mean(axis=0).tolist(),
        "undisturbed_steps_per_s": alone.mean(axis=0).tolist(),
        **({"spread": spread} if len(windows) > 1 else {}),
        "windows": together.tolist(),
        "undisturbed_windows": alone.tolist(),
    }


def estimated_step_s(training: SteppableTraining, clock: Callable[[], float] = time.monotonic) -> float:
    """The approximate duration of a step, in seconds."""
    training.record_event()()
    began = clock()
    for _ in range(WARMUP_STEPS):
        training.step()
    training.record_event()()
    return (clock() - began) / WARMUP_STEPS


def _run_worker(
    connection: Connection, names: tuple[str, ...], device: str, build: Callable[[str, str], SteppableTraining]
) -> None:
    """The main function of a process: build the models, send the errors, then measure until the connection ends."""
    held, problems = dict[str, SteppableTraining](), dict[str, str]()
    for name in names:
        try:
            held[name] = build(name, device)
            for _ in range(WARMUP_STEPS):
                held[name].step()
            held[name].record_event()()
        except (RuntimeError, ValueError, TypeError, AttributeError, ImportError) as problem:
            held.pop(name, None)
            problems[name] = f"{type(problem).__name__}: {problem}"[:300]
    gc.collect()
    gc.freeze()  # no garbage collection of the models during a window
    connection.send(problems)
    while True:
        try:
            name, step_s, schedule = connection.recv()
        except EOFError:
            return
        try:
            connection.send(work(held[name], step_s, schedule) if schedule else estimated_step_s(held[name]))
        except RuntimeError as problem:  # out of memory
            connection.send(f"{type(problem).__name__}: {problem}"[:300])
