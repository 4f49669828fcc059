"""Two trainings at once on one accelerator, in two processes that hold all models of a list, so that a pair costs a second or
two and not the start of two processes. Neither process knows of the other: both are told when to work and when to pause."""

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

# When each of two trainings is at work and when it pauses, and how fast they were. Where others share the host, it is half as
# fast from one second to the next, and trainings that wait for it are slower then; so each is seen alone and in company
# within
# one second, by turns, and what slows both does not count.

Stretch: TypeAlias = tuple[float, float]
"""From one moment to another."""
IN_COMPANY = 2  # times what a step takes alone it takes beside another, by turns of equal length, whatever the other's take
LAST = 2 * IN_COMPANY  # times what a step takes alone: two may be left when it pauses


@dataclass(frozen=True)
class PairTiming:
    """How long to look at a pair, in seconds: both begin, then `looks` times the one alone, both, and the other alone. It is
    longer where that would not be as many `steps`."""

    warm_s: float = 0.1
    alone_s: float = 0.2
    window_s: float = 0.3
    looks: int = 2
    steps: int = 5


class Spell(NamedTuple):
    """A stretch of work: when it really began, the moments at which steps were seen to be done, as many steps late as the host
    may be `ahead`, and the moment at which the device had done all that it was asked."""

    began: float
    done: list[float]
    ahead: int
    over: float


class PairRates(NamedTuple):
    """Steps per second of both together, and of each alone just before or after."""

    together: tuple[float, float]
    alone: tuple[float, float]


class PairSchedule(NamedTuple):
    """When each of two is at work; the other has a spell more, at first."""

    one: list[Stretch]
    other: list[Stretch]


def turns(look: PairTiming, step_s: tuple[float, float], moment: float, longer: int = 1) -> PairSchedule:
    """From a moment on, by how long a step of each takes alone. Before one is alone, the other has to have done its last. All
    of it some times `longer`, where they get slower than one would think."""
    first, second = (
        longer * (max(look.alone_s, look.steps * mine) + LAST * theirs) for mine, theirs in (step_s, reversed(step_s))
    )
    both = longer * max(look.window_s, look.steps * IN_COMPANY * max(step_s))
    began, now = moment, moment + look.warm_s
    one, other = list[Stretch](), [(began, now)]
    for _ in range(look.looks):
        met, parted = now + first, now + first + both
        one.append((began, parted))
        other.append((met, parted + second))
        began = now = parted + second
    return PairSchedule(one, other)


def seen(planned: PairSchedule, one: Sequence[Spell], other: Sequence[Spell]) -> list[PairRates]:
    """What was done, look by look, of those with enough steps to tell. Who pauses still works for a moment, and until then
    nobody is alone; who wakes up late is no company until then."""
    found = list[PairRates]()
    for number, mine in enumerate(one):
        before, theirs = other[number], other[number + 1]
        (began, parted), (met, ended) = planned.one[number], planned.other[number + 1]
        both = max(met, theirs.began), parted
        found.append(
            PairRates(
                (rate(mine, both), rate(theirs, both)),
                (rate(mine, (max(began, before.over), met)), rate(theirs, (mine.over, ended))),
            )
        )
    return [look for look in found if min(look.together + look.alone) > 0]


def rate(spell: Spell, within: Stretch) -> float:
    """Steps per second, without those that were begun before; 0 where there were too few to tell."""
    start, end = within
    whole = [moment for moment in spell.done if start <= moment <= end][spell.ahead :]
    return (len(whole) - 1) / (whole[-1] - whole[0]) if len(whole) > 1 else 0.0


AHEAD = 3  # steps that the host may be ahead of the device, if they are short; else one, which is soon done when it pauses
SHORT_S = 0.01
SOON_S = 0.03  # until both have heard when to begin
WORKERS = 2
TRIED = 3  # steps, before anything is timed, and then to tell about how long one takes
TO_TRY: Sequence[Stretch] = ()  # sent in place of when to work
LONGER = (1, 2, 4)  # times as long a pair is looked at, one after the other, until there were steps enough to tell
TOO_FEW = "too few steps were done to tell how fast it is; --window and --alone can be longer, with another --out"


class Stepped(Protocol):
    def step(self) -> None: ...
    def mark(self) -> Callable[[], None]: ...


def work(
    training: Stepped,
    step_s: float,
    stretches: Sequence[Stretch],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> list[Spell]:
    """Work in each of some stretches of time, and pause in between; `step_s` is about what a step takes."""
    ahead, spells = AHEAD if step_s < SHORT_S else 1, []
    for start, end in stretches:
        while (now := clock()) < start:
            sleep(start - now)
        began, done, pending = clock(), list[float](), deque[Callable[[], None]]()
        while clock() < end:
            training.step()
            pending.append(training.mark())
            if len(pending) > ahead:
                pending.popleft()()
                done.append(clock())
        for each in pending:
            each()
        spells.append(Spell(began, done, ahead, clock()))
    return spells


class Bench:
    """Two processes with all the models in each. `alone(name)` and `together(one, other)` measure."""

    def __init__(self, names: Sequence[str], device: str, look: PairTiming | None = None) -> None:
        self.look, self.device = look or PairTiming(), device
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
        self.problems: dict[str, str] = {}
        """Which models cannot be held here, and why."""
        self._step_s: dict[str, float] = {}
        try:
            for line in self._lines:
                self.problems |= self._heard(line)
            for name in (name for name in names if name not in self.problems):  # when both have made theirs: by itself
                (told,) = self._asked({0: (name, TO_TRY)})
                if isinstance(told, str):
                    self.problems[name] = told
                else:
                    self._step_s[name] = told
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        for line, process in zip(self._lines, self._processes):
            line.close()  # a worker whose line ends leaves
            process.join(timeout=10)
            if process.is_alive():
                process.kill()

    def alone(self, name: str) -> dict[str, Any]:
        """In the one process and then in the other; the mean of both, and by how much they differ."""
        look, began, windows = self.look, time.perf_counter(), list[float]()
        window_s = 2 * max(look.window_s, look.steps * self._step_s[name])
        with Meter(self.device) as meter:
            for number in range(WORKERS):
                moment = _soon()
                opens, closes = moment + look.warm_s, moment + look.warm_s + window_s
                (told,) = self._asked({number: (name, [(moment, closes)])})
                if isinstance(told, str):
                    return {"name": name, "problem": told}
                windows.append(rate(told[0], (opens, closes)))
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
            **meter.told(),
        }

    def together(self, one: str, other: str) -> dict[str, Any]:
        """By turns alone and in company. What is slower in company is told within each look, and its spread between looks.
        Nobody knows before how slow they get; so who did too few steps is looked at for longer."""
        about, began = {"name": f"{one} + {other}", "pair": [one, other]}, time.perf_counter()
        looks, problem = list[PairRates](), TOO_FEW
        for longer in LONGER:
            planned = turns(self.look, (self._step_s[one], self._step_s[other]), _soon(), longer)
            with Meter(self.device) as meter:
                told = self._asked({0: (one, planned.one), 1: (other, planned.other)})
            problem = next((each for each in told if isinstance(each, str)), TOO_FEW)
            spells = [each for each in told if not isinstance(each, str)]
            looks = seen(planned, *spells) if len(spells) == WORKERS else []
            if looks or problem != TOO_FEW:
                break
        if not looks:
            return {**about, "problem": problem}
        return {**about, **_told(looks), "took_s": time.perf_counter() - began, **meter.told()}

    def _asked(self, wanted: Mapping[int, tuple[str, Sequence[Stretch]]]) -> list[Any]:
        """The spells of each, how long a step takes where it was to try, or what went wrong, as text."""
        for number, (name, stretches) in wanted.items():
            with suppress(ConnectionError):  # nobody answers there either
                self._lines[number].send((name, self._step_s.get(name, 0.0), stretches))
        return [self._heard(self._lines[number]) for number in wanted]

    def _heard(self, line: Connection) -> Any:
        try:
            return line.recv()
        except (EOFError, ConnectionResetError):
            raise FairleadError(
                "a process that trains has ended before its time; what was measured is kept, run it again"
            ) from None


def _soon() -> float:
    return time.monotonic() + SOON_S


def _told(looks: Sequence[PairRates]) -> dict[str, Any]:
    together, alone = (np.array(column) for column in zip(*looks))
    slower = alone / together
    spread = float(((slower.max(axis=0) - slower.min(axis=0)) / slower.mean(axis=0)).max())
    return {
        "steps_per_s": together.mean(axis=0).tolist(),
        "undisturbed_steps_per_s": alone.mean(axis=0).tolist(),
        **({"spread": spread} if len(looks) > 1 else {}),
        "windows": together.tolist(),
        "undisturbed_windows": alone.tolist(),
    }


def tried(training: Stepped, clock: Callable[[], float] = time.monotonic) -> float:
    """Seconds that a step takes, about."""
    training.mark()()
    began = clock()
    for _ in range(TRIED):
        training.step()
    training.mark()()
    return (clock() - began) / TRIED


def _work(line: Connection, names: tuple[str, ...], device: str) -> None:
    """A worker's life: make the models, tell which cannot be made, then measure what is asked until nobody asks any more."""
    from fairlead.profiling.training_step import TrainingLoop

    held, problems = dict[str, TrainingLoop](), dict[str, str]()
    for name in names:
        try:
            held[name] = TrainingLoop.of(configuration(name), device)
            for _ in range(TRIED):
                held[name].step()
            held[name].finish()
        except (RuntimeError, ValueError, TypeError, AttributeError, ImportError) as problem:
            held.pop(name, None)
            problems[name] = f"{type(problem).__name__}: {problem}"[:300]
    gc.collect()
    gc.freeze()  # nobody looks through all these models for garbage in the middle of a window
    line.send(problems)
    while True:
        try:
            name, step_s, stretches = line.recv()
        except EOFError:
            return
        try:
            line.send(work(held[name], step_s, stretches) if stretches else tried(held[name]))
        except RuntimeError as problem:  # out of memory beside the other
            line.send(f"{type(problem).__name__}: {problem}"[:300])
