"""Simulated machines: processes that start, are signalled and die, and the commands of jobs. Agents, supervisors and shims are
the real code; only what they ask of the operating system is simulated. Their files are real, in a folder of the run."""

from __future__ import annotations

import errno
import json
import signal
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from fairlead.client.lease_page import PAGE, Field, Page, Stage
from fairlead.runtime.agent.processes import SHIM_SIGNALS, ProcessTable, ShimProcess
from fairlead.runtime.agent.shim import LaunchSpec, ShimSystem, run_shim
from fairlead.testing.runtime_simulation.ledger import Ledger
from fairlead.testing.runtime_simulation.virtual_world import (
    FaultWindow,
    MachineClock,
    SimulatedHost,
    SimulatedProgram,
    VirtualWorld,
)


class SimulatedMachine:
    """A node's machine: its processes, and what is wrong with it. `slowness` stretches the time between two turns of its
    agent."""

    def __init__(self, world: VirtualWorld, name: str, ledger: Ledger, drift: float, slowness: float = 1.0) -> None:
        self.world, self.name, self.ledger, self.slowness = world, name, ledger, slowness
        self.clock = MachineClock(world, drift)
        self.boot = 1
        self.disk_fault = (FaultWindow(world), 0)  # with the error of every write
        self.torn_write = FaultWindow(world)  # its agent dies in the middle of its next write
        self.cannot_start = FaultWindow(world)  # no command
        self.resumed_s = -1e9  # when all its processes were last paused
        self.processes: dict[int, _Shim] = {}
        self.orphans: list[SimulatedCommand] = []  # that run without a shim
        self.agent: SimulatedProgram | None = None  # the last one
        self._pids, self.starting = 100, world.random(f"starts {name}")

    def host(self, program: SimulatedProgram) -> SimulatedHost:
        return SimulatedHost(program, self.clock)

    def new_pid(self) -> int:
        self._pids += 1
        return self._pids

    def programs(self) -> list[SimulatedProgram]:
        """All programs that run, except the agent."""
        found = []
        for shim in self.processes.values():
            if shim.program.alive:
                found.append(shim.program)
                if shim.system.command is not None and shim.system.command.program.alive:
                    found.append(shim.system.command.program)
        return found + [command.program for command in self.orphans if command.program.alive]

    def lose_power(self) -> None:
        """Everything dies at once, and lease pages in memory are gone."""
        for shim in list(self.processes.values()):
            shim.die(-signal.SIGKILL)
        self.processes.clear()
        for command in self.orphans:
            command.die(-signal.SIGKILL)
        self.orphans.clear()
        self.boot += 1

    def strays(self, variable: str) -> list[SimulatedCommand]:
        """Commands without a shim that were started with `NAME=value` in their environment."""
        name, _, value = variable.partition("=")
        return [one for one in self.orphans if one.status is None and one.environment.get(name) == value]


class SimulatedProcesses(ProcessTable):
    """The process table of a machine, for its agent."""

    def __init__(self, machine: SimulatedMachine, agent: SimulatedProgram) -> None:
        self._machine = machine
        self.agent = machine.agent = agent
        self.changed = machine.host(agent).condition()

    def start_shim(self, directory: Path) -> ShimProcess:
        shim = _Shim(self._machine, directory)
        self._machine.processes[shim.pid] = shim
        return _ShimOfAgent(shim, self, is_child=True)

    def find_shim(self, pid: int, started: int) -> ShimProcess:
        if (shim := self._machine.processes.get(pid)) is not None and not shim.begun:
            shim.die(-signal.SIGKILL)  # its agent died before it had the spec
        return _ShimOfAgent(shim, self, is_child=False, pid=pid, started=started)

    def is_alive(self, pid: int, started: int) -> bool:
        shim = self._machine.processes.get(pid)
        return shim is not None and shim.started == started and shim.status is None

    def has_strays(self, variable: str) -> bool:
        return bool(self._machine.strays(variable))

    def kill_strays(self, variable: str) -> None:
        """Kill all commands that have lost their shim."""
        for command in self._machine.strays(variable):
            command.die(-signal.SIGKILL)

    def wait(self, shims: Iterable[ShimProcess], timeout_s: float) -> None:
        for shim in shims:
            assert isinstance(shim, _ShimOfAgent)
            if shim.process is not None:
                shim.process.on_end = self.changed.notify_all
        self.changed.wait(max(0.001, timeout_s) * self._machine.slowness)

    def boot_id(self) -> str:
        return f"{self._machine.name}-{self._machine.boot}"


class _Shim:
    """A shim's process."""

    def __init__(self, machine: SimulatedMachine, directory: Path) -> None:
        self.machine, self.pid, self.started = machine, machine.new_pid(), int(machine.world.now * 100)
        self.program = SimulatedProgram(machine.world, f"shim {machine.name}/{self.pid}")
        self.system = SimulatedShimSystem(machine, self.program)
        self.status: int | None = None
        self.begun = False
        self.on_end: Callable[[], None] = lambda: None

    def begin(self, spec: LaunchSpec) -> None:
        self.begun = True
        self.program.world.start(self.program, lambda: self._run(spec))

    def _run(self, spec: LaunchSpec) -> None:
        handlers = {number: signal.getsignal(number) for number in (signal.SIGHUP, *SHIM_SIGNALS)}
        status = run_shim(spec, self.system)
        for number, handler in handlers.items():  # at its end it ignores signals, but this process must not
            signal.signal(number, handler)
        self.die(status)

    def die(self, status: int, *, alone: bool = False) -> None:
        """The process ends. A command that still runs dies with it; `alone`: not what the command has started."""
        if self.status is None:
            self.status = status
            self.program.kill()
            if self.system.command is not None and not alone:
                self.system.command.die(-signal.SIGKILL)
            elif self.system.command is not None and self.system.command.status is None:
                self.system.command.orphaned = True
                self.machine.orphans.append(self.system.command)
            self.on_end()


class _ShimOfAgent(ShimProcess):
    """A shim as a simulated agent sees it."""

    def __init__(
        self, process: _Shim | None, table: SimulatedProcesses, *, is_child: bool, pid: int = 0, started: int = 0
    ) -> None:
        self.process, self._table = process, table
        self.pid, self.started = (process.pid, process.started) if process is not None else (pid, started)
        self.handle, self._parent = None, is_child

    @property
    def is_child(self) -> bool:
        return self._parent

    @property
    def status(self) -> int | None:
        return self.process.status if self._parent and self.process is not None else None

    def has_ended(self) -> bool:
        return self.process is None or self.process.status is not None

    def send_spec(self, spec: bytes) -> None:
        if self.process is not None and self.process.status is None:
            self.process.begin(LaunchSpec(**json.loads(spec)))
            self._table.agent.wait(self.process.machine.starting.uniform(0.0, 0.05))  # the shim may be faster than its agent

    def send_signal(self, number: int) -> None:
        if self.process is None or self.process.status is not None:
            return
        if number == signal.SIGKILL:
            self.process.die(-signal.SIGKILL)
        else:
            self.process.system.deliver(number)

    def kill_descendants(self) -> bool:
        if self.process is not None and self.process.status is None and self.process.system.command is not None:
            self.process.system.command.die(-signal.SIGKILL)
        return True

    def kill_strays(self, variable: str) -> bool:
        self._table.kill_strays(variable)
        return True

    def end(self) -> None:
        if self.process is not None:
            self.process.die(-signal.SIGKILL)

    def close(self) -> None:
        pass


class SimulatedShimSystem(ShimSystem):
    """What a simulated shim does with its machine."""

    def __init__(self, machine: SimulatedMachine, program: SimulatedProgram) -> None:
        self._machine, self._program, self._host = machine, program, machine.host(program)
        self._changed = self._host.condition()
        self.received: set[int] = set()
        self.command: SimulatedCommand | None = None
        self._reaped = False

    def deliver(self, number: int) -> None:
        """A signal arrives."""
        self.received.add(number)
        self._changed.notify_all()

    def monotonic(self) -> float:
        return self._host.monotonic()

    def start(self, spec: LaunchSpec) -> None:
        if self._machine.cannot_start.active():
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        self.command = SimulatedCommand(self._machine, spec, self._changed.notify_all)

    def wait(self, timeout_s: float | None) -> None:
        if not self._news():
            self._changed.wait(timeout_s)

    def reap(self) -> int | None:
        if self.command is None or self.command.status is None or self._reaped:
            return None
        self._reaped = True
        return self.command.status

    def runs(self) -> bool:
        return self.command is not None and self.command.status is None

    def signal_group(self, number: signal.Signals) -> None:
        if self.command is not None:
            self.command.signal(number)

    def kill_descendants(self) -> bool:
        if self.command is not None:
            self.command.die(-signal.SIGKILL)
        return True

    def read_output(self) -> bytes | None:
        return b""

    def _news(self) -> bool:
        return self.command is not None and self.command.status is not None and not self._reaped


class SimulatedCommand:
    """A job's command: it makes steps, saves checkpoints into the ledger, follows its lease page or SIGTERM, and ends. What it
    does is in its arguments: steps, seconds a step, steps a checkpoint, what it does at SIGTERM, and the step at which it
    fails once."""

    def __init__(self, machine: SimulatedMachine, spec: LaunchSpec, on_end: Callable[[], None]) -> None:
        self._machine, self._spec, self._on_end = machine, spec, on_end
        environment = self.environment = spec.environment
        self.orphaned = False
        self.job, self.generation = int(environment["FAIRLEAD_JOB"]), int(environment["FAIRLEAD_GENERATION"])
        self.rank, self.world_size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
        self.options: Mapping[str, str] = dict(word.split("=", 1) for word in spec.command[1:])
        self.status: int | None = None
        self.program = SimulatedProgram(machine.world, f"job {self.job}.{self.generation}/{self.rank} on {machine.name}")
        self._host = machine.host(self.program)
        self._changed = self._host.condition()
        self._term = False
        self._page: Page | None = None
        self.last_stage: int = Stage.STARTING
        machine.ledger.begin(self)
        machine.world.start(self.program, self._main)

    @property
    def machine_resumed_s(self) -> float:
        return self._machine.resumed_s

    @property
    def unwatched(self) -> bool:
        agent = self._machine.agent
        return self.orphaned and (agent is None or not agent.runs)

    def signal(self, number: int) -> None:
        """A signal arrives."""
        if self.status is not None:
            return
        if number == signal.SIGKILL:
            self.die(-signal.SIGKILL)
        else:
            self._term = True
            self._changed.notify_all()

    def die(self, status: int) -> None:
        """The process ends."""
        if self.status is not None:
            return
        self.status = status
        self.program.kill()
        if self._page is not None:
            self.last_stage = self._page[Field.STAGE]
            self._page.close()
        self._machine.ledger.end(self, status)
        self._on_end()

    def _main(self) -> None:
        if self.rank:
            self.die(self._follow())
        else:
            self.die(self._lease_aware() if self._spec.cooperative else self._plain())

    def _follow(self) -> int:
        """A worker that is not the first does what the first one does."""
        page = self._page = Page(self._spec.environment[PAGE])
        page[Field.OPENED] = 1
        while True:
            self._sleep(0.5)
            leader = self._machine.ledger.leader(self)
            if leader is not None and leader.status is not None:
                page[Field.STAGE] = leader.last_stage
                return 0 if leader.status == 0 else 1
            if self._term and (leader is None or leader.last_stage == Stage.STARTING):
                return 143  # before the gang has begun

    def _lease_aware(self) -> int:
        total, step_s, every = int(self.options["steps"]), float(self.options["step_s"]), int(self.options["every"])
        ledger = self._machine.ledger
        self._sleep(float(self.options["start_s"]))
        page = self._page = Page(self._spec.environment[PAGE])
        page[Field.OPENED] = 1
        steps = began = ledger.saved(self.job)
        page[Field.STEPS] = page[Field.SAVED] = page[Field.BEGAN_AT] = steps
        page[Field.BEGAN_NS] = page[Field.LAST_NS] = int(self._host.monotonic() * 1e9)
        page[Field.STAGE] = self.last_stage = Stage.RUNNING
        if not self._gather():
            return 1
        fails_at = int(self.options.get("fails_at", "-1"))
        while steps < total:
            if page[Field.REVOKED] or self._term:
                self._save(steps)
                page[Field.STAGE] = Stage.YIELDED
                return 0
            if (steps == fails_at and ledger.fail_once(self.job)) or ledger.follower_failed(self):
                return 1
            self._sleep(step_s)
            steps += 1
            ledger.step(self, steps, began)
            page[Field.STEPS] = steps
            page[Field.LAST_NS] = int(self._host.monotonic() * 1e9)
            if steps % every == 0:
                self._save(steps)
        self._save(steps)
        page[Field.STAGE] = Stage.FINISHED
        return 0

    def _gather(self) -> bool:
        """Wait for the other workers of the gang; False if they do not come."""
        for _ in range(60):
            if self._machine.ledger.workers(self) == self.world_size or self._term:
                return True
            self._sleep(0.5)
        return False

    def _save(self, steps: int) -> None:
        assert self._page is not None
        self._page[Field.STAGE] = Stage.SAVING
        self._sleep(float(self.options["save_s"]))
        if self.rank == 0:
            self._machine.ledger.save(self, steps)
        self._page[Field.SAVED] = steps
        self._page[Field.STAGE] = Stage.RUNNING

    def _plain(self) -> int:
        """A script without a lease: all its work is lost when it is stopped."""
        ledger, at_term = self._machine.ledger, self.options["at_term"]
        until = self._machine.world.now + float(self.options["steps"]) * float(self.options["step_s"])
        ledger.step(self, 0, 0)
        while (left := until - self._machine.world.now) > 0:
            if self._term and at_term != "ignore":
                self._sleep(float(self.options["save_s"]))
                return 0 if at_term == "exit0" else 143
            self._changed.wait(left)
        ledger.step(self, int(self.options["steps"]), 0)
        return 0

    def _sleep(self, seconds: float) -> None:
        self.program.wait(seconds)
