"""What really happened in a simulated cluster, independent of what its control plane believes: which command ran when, what it
did, and what was promised to users. Here the rules are checked that must hold whatever fails."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from fairlead.testing.runtime_simulation.virtual_world import SimulatedProgram, VirtualWorld

LATE_WITHIN_S = 40.0  # for the order that ends a cancelled job, or the fencing deadline, also after a pause
PAUSE_SLACK_S = 1.0  # after a pause of the whole machine, for its shims to see the deadline


class LedgerCommand(Protocol):
    """What the ledger knows of a job's command."""

    job: int
    generation: int
    rank: int
    world_size: int
    options: Mapping[str, str]
    program: SimulatedProgram
    status: int | None
    last_stage: int

    @property
    def machine_resumed_s(self) -> float:
        """When all processes of its machine were last paused."""
        ...

    @property
    def unwatched(self) -> bool:
        """Whether its shim was killed, and its agent does not run: then nothing can stop it."""
        ...


class Ledger:
    """The truth about the commands of a run."""

    def __init__(self, world: VirtualWorld) -> None:
        self._world = world
        self._alive: dict[int, set[LedgerCommand]] = {}
        self._saved: dict[int, int] = {}
        self._failed: set[int] = set()
        self._newest: dict[int, int] = {}
        self.completed: dict[int, list[int]] = {}  # generations of a job that reached their last step
        self.ended: set[int] = set()  # jobs whose end is in the journal
        self.cancelled: set[int] = set()
        self.commands = 0
        self._leaders: dict[tuple[int, int], LedgerCommand] = {}
        self._lost_followers: set[tuple[int, int]] = set()

    def begin(self, command: LedgerCommand) -> None:
        """A command starts."""
        self.commands += 1
        there = self._alive.setdefault(command.job, set())
        self._world.note(command.program.name, "starts")
        for other in there:
            if other.generation != command.generation:
                self._double(command, other)
            if (other.generation, other.rank) == (command.generation, command.rank):
                self._world.violate(f"{command.program.name} starts twice: also as {other.program.name}")
        if command.generation < self._newest.get(command.job, 0):
            self._world.violate(f"{command.program.name} starts after generation {self._newest[command.job]}")
        if command.job in self.ended:
            if command.job not in self.cancelled:
                self._world.violate(f"{command.program.name} starts although the job has finished")
            self._world.after(LATE_WITHIN_S, lambda: self._must_be_over(command))  # its launch was under way
        self._newest[command.job] = command.generation
        if command.rank == 0:
            self._leaders[command.job, command.generation] = command
        there.add(command)

    def step(self, command: LedgerCommand, steps: int, began: int) -> None:
        """A command made a step."""
        for other in self._alive[command.job]:
            if other.generation > command.generation:
                self._double(other, command)
        if steps >= int(command.options["steps"]) and command.rank == 0:
            done = self.completed.setdefault(command.job, [])
            if command.generation not in done:
                done.append(command.generation)

    def save(self, command: LedgerCommand, steps: int) -> None:
        """A command saved a checkpoint."""
        newest = self._newest[command.job]
        if command.generation < newest and not self._excused(command):
            self._world.violate(f"{command.program.name} saves after generation {newest} has started")
        self._saved[command.job] = max(self._saved.get(command.job, 0), steps)

    def saved(self, job: int) -> int:
        """The steps in a job's last checkpoint."""
        return self._saved.get(job, 0)

    def leader(self, command: LedgerCommand) -> LedgerCommand | None:
        """The first worker of a command's gang, also when it has ended."""
        return self._leaders.get((command.job, command.generation))

    def workers(self, command: LedgerCommand) -> int:
        """How many workers of a command's gang run."""
        return sum(other.generation == command.generation for other in self._alive[command.job])

    def follower_failed(self, command: LedgerCommand) -> bool:
        """Whether another worker of the gang has died."""
        return command.world_size > 1 and (command.job, command.generation) in self._lost_followers

    def fail_once(self, job: int) -> bool:
        """Whether a job that fails once has not failed yet."""
        new = job not in self._failed
        self._failed.add(job)
        return new

    def end(self, command: LedgerCommand, status: int) -> None:
        """A command ended."""
        self._alive[command.job].discard(command)
        if command.rank and status:
            self._lost_followers.add((command.job, command.generation))
        self._world.note(command.program.name, f"ends with {status}")

    def running(self) -> list[LedgerCommand]:
        """All commands that run, in the order of their jobs."""
        every = [command for commands in self._alive.values() for command in commands]
        return sorted(every, key=lambda command: (command.job, command.generation, command.rank))

    def _must_be_over(self, command: LedgerCommand) -> None:
        if command in self._alive[command.job]:
            self._world.violate(f"{command.program.name} runs {LATE_WITHIN_S:g} s after the job was cancelled")

    def _double(self, new: LedgerCommand, old: LedgerCommand) -> None:
        if not self._excused(old):
            self._world.violate(f"{new.program.name} runs while {old.program.name} does")

    def _excused(self, command: LedgerCommand) -> bool:
        """Whether no part of the runtime could have stopped it in time."""
        if command.unwatched:
            return True
        paused = self._world.now < command.program.paused_until
        return paused or self._world.now < command.machine_resumed_s + PAUSE_SLACK_S
