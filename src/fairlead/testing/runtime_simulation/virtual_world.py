"""The virtual world: one clock, one queue of what happens next, and programs that take turns. A program is real code that
blocks, run as a greenlet; it yields the thread where it would wait. Everything follows from the seed."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable
from itertools import count
from types import TracebackType

from fairlead.core.errors import FairleadError
from fairlead.runtime.host import Condition, Host

try:
    from greenlet import getcurrent, greenlet
except ImportError:
    raise FairleadError("the simulation of the runtime needs greenlet: pip install greenlet") from None

EPOCH_S = 1_700_000_000.0  # Unix time at which every world begins


class VirtualWorld:
    """Time, and what happens at which time. Calls for the same moment happen in the order in which they were made."""

    def __init__(self, seed: int) -> None:
        self.now = 0.0
        self.log: list[tuple[float, str, str]] = []
        self.violation = ""  # the first rule that was broken; the run ends with it
        self._seed = seed
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._main = getcurrent()
        self._kept: list[greenlet] = []  # of dead programs: a greenlet that is collected would run its `finally` blocks
        self.main = self._main.switch  # leaves the code that runs, until it is resumed

    def random(self, purpose: str) -> random.Random:
        """Random numbers for one purpose, so that a change elsewhere does not change them."""
        return random.Random(f"{self._seed}/{purpose}")

    def note(self, subject: str, text: str) -> None:
        """Write a line into the log of the run."""
        self.log.append((self.now, subject, text))

    def violate(self, rule: str) -> None:
        """A rule that must always hold is broken."""
        self.violation = self.violation or f"at {self.now:.3f} s: {rule}"
        self.note("RULE BROKEN", rule)

    def at(self, when: float, call: Callable[[], None]) -> None:
        """Do something at a time, at the earliest now."""
        heapq.heappush(self._queue, (max(when, self.now), next(self._numbers), call))

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        """Do something later."""
        self.at(self.now + seconds, call)

    def run(self, until: float) -> None:
        """Let time pass, or up to the first broken rule."""
        queue = self._queue
        while queue and queue[0][0] <= until and not self.violation:
            self.now, _, call = heapq.heappop(queue)
            call()
        if not self.violation:
            self.now = max(self.now, until)

    def start(self, program: SimulatedProgram, work: Callable[[], None]) -> None:
        """Run code as a part of a program, from now on."""
        part = greenlet(work, parent=self._main)
        self._kept.append(part)
        self.at(self.now, lambda: program.resume(part))


class FaultWindow:
    """How long a fault lasts. `hit` is called when it does something. With `within_s` it begins at the first time that it can
    do something, at the latest after that many seconds."""

    def __init__(
        self, world: VirtualWorld, seconds: float = 0.0, hit: Callable[[], object] = lambda: None, within_s: float = 0.0
    ) -> None:
        self._world, self._seconds, self._hit = world, seconds, hit
        self._begin_s, self.until = world.now + within_s, world.now + within_s + seconds

    @property
    def lasts_s(self) -> float:
        """For how long it has lasted; 0: it is over, or has not begun."""
        return self._world.now - self._begin_s if self._begin_s <= self._world.now < self.until else 0.0

    def active(self) -> bool:
        """Whether it lasts; then it does something now."""
        now = self._world.now
        if now >= self.until:
            return False
        if now < self._begin_s:
            self._begin_s, self.until = now, now + self._seconds
        self._hit()
        return True


class MachineClock:
    """The clocks of a machine. The monotonic one has a rate that is a little wrong; the system time may be set."""

    def __init__(self, world: VirtualWorld, drift: float) -> None:
        self._world, self._rate = world, 1.0 + drift
        self._since, self._then = world.now, 1000.0
        self.error_s = 0.0  # of the system time

    def monotonic(self) -> float:
        return self._then + (self._world.now - self._since) * self._rate

    def time(self) -> float:
        return EPOCH_S + self._world.now + self.error_s

    def set_drift(self, drift: float) -> None:
        """From now on it runs faster by this share."""
        self._then, self._since, self._rate = self.monotonic(), self._world.now, 1.0 + drift


class SimulatedProgram:
    """A process with its threads. It can be paused (SIGSTOP) and killed (SIGKILL); then none of its code runs again, not even
    `finally` blocks."""

    def __init__(self, world: VirtualWorld, name: str) -> None:
        self.world, self.name = world, name
        self.alive = True
        self.paused_until = -math.inf

    def kill(self) -> None:
        self.alive = False

    def die_here(self) -> None:
        """Kill the program in the middle of the code that calls this."""
        self.kill()
        self.world.main()

    @property
    def runs(self) -> bool:
        """Whether it is alive and not paused."""
        return self.alive and self.world.now >= self.paused_until

    def pause(self, seconds: float) -> None:
        self.paused_until = max(self.paused_until, self.world.now + seconds)

    def call(self, when: float, call: Callable[[], None]) -> None:
        """Do something at a time in this program: not while it is paused, and not when it is dead."""

        def attempt() -> None:
            if not self.alive:
                return
            if self.world.now < self.paused_until:
                self.world.at(self.paused_until, attempt)
                return
            self._protected(call)

        self.world.at(when, attempt)

    def resume(self, part: greenlet) -> None:
        """Continue a part of the program that waits."""
        if not self.alive or part.dead:
            return
        if self.world.now < self.paused_until:
            self.world.at(self.paused_until, lambda: self.resume(part))
            return
        self._protected(part.switch)

    def _protected(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as problem:  # no part of the runtime fails by itself
            self.kill()
            self.world.violate(f"{self.name} failed: {type(problem).__name__}: {problem}")

    def wait(self, seconds: float) -> None:
        """Block the part that calls this."""
        part = getcurrent()
        self.world.after(seconds, lambda: self.resume(part))
        self.world.main()


class SimulatedHost(Host):
    """The machine as one program sees it."""

    def __init__(self, program: SimulatedProgram, clock: MachineClock) -> None:
        self.program = program
        self.monotonic, self.time = clock.monotonic, clock.time  # type: ignore[method-assign]

    def sleep(self, seconds: float) -> None:
        self.program.wait(seconds)

    def condition(self) -> Condition:
        return _SimulatedCondition(self.program)

    def spawn(self, name: str, work: Callable[[], None]) -> None:
        self.program.world.start(self.program, work)

    def token(self, size: int) -> str:
        return self.program.world.random(f"token {self.program.name} {self.program.world.now}").randbytes(size).hex()


class _SimulatedCondition:
    """A condition of one program. There is one thread, so nothing is locked."""

    def __init__(self, program: SimulatedProgram) -> None:
        self._program = program
        self._waiting: dict[int, greenlet] = {}
        self._numbers = count()

    def __enter__(self) -> bool:
        return True

    def __exit__(self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None, /) -> None:
        return None

    def wait(self, timeout: float | None = None) -> bool:
        number, world = next(self._numbers), self._program.world
        self._waiting[number] = getcurrent()
        if timeout is not None and timeout < math.inf:
            world.after(timeout, lambda: self._wake(number))
        world.main()
        return True

    def notify_all(self) -> None:
        for number in list(self._waiting):
            self._program.world.at(self._program.world.now, lambda number=number: self._wake(number))  # type: ignore[misc]

    def _wake(self, number: int) -> None:
        if (part := self._waiting.pop(number, None)) is not None:
            self._program.resume(part)
