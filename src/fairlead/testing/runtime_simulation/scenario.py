"""One run of a simulated cluster: its machines, its jobs, its faults, and the rules that are checked. A seed chooses all of
them."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random

from fairlead import files
from fairlead.config.registry import Registry
from fairlead.config.schedulers import compose
from fairlead.core import events as ev
from fairlead.core.job import ENDED, Phase
from fairlead.engine.apply import apply_event
from fairlead.runtime.agent.agent_errors import AgentRefused, NodeError
from fairlead.runtime.agent.agent_identity import CREDENTIAL_FILE
from fairlead.runtime.agent.agent_service import Agent
from fairlead.runtime.agent.devices import NodeAccelerators
from fairlead.runtime.agent.settings import AgentSettings
from fairlead.runtime.agent.supervisor import Supervisor
from fairlead.runtime.control.cluster_backend import ClusterBackend
from fairlead.runtime.control.control_plane import ControlPlane
from fairlead.runtime.control.tokens import Role, Tokens
from fairlead.runtime.protocol.task_file import TaskSpec
from fairlead.testing.builders import cluster
from fairlead.testing.invariants import InvariantBroken, check_events
from fairlead.testing.runtime_simulation.control import AGENT_TOKEN, ControlPlaneSettings, SimulatedControlPlane
from fairlead.testing.runtime_simulation.injected_faults import Fault, choose_faults
from fairlead.testing.runtime_simulation.ledger import Ledger
from fairlead.testing.runtime_simulation.machine import SimulatedMachine, SimulatedProcesses
from fairlead.testing.runtime_simulation.node_workload import NodeOperator
from fairlead.testing.runtime_simulation.simulated_database import DatabaseServer
from fairlead.testing.runtime_simulation.simulated_network import Network, SimulatedStream
from fairlead.testing.runtime_simulation.virtual_world import FaultWindow, SimulatedProgram, VirtualWorld

LEASE_S, GRACE_S, ROUND_S = 6.0, 8.0, 4.0
# How long a control plane renews leases without its database: below or above lease and grace, or until after a takeover has
# given up its nodes, if that did not know of it.
JOURNAL_TIMEOUTS_S = (4.0, 16.0, 30.0)
FAULTS_UNTIL_S = 60.0  # then the cluster is left alone
CONVERGE_WITHIN_S = 400.0  # after the last fault, every job must have ended

_RETRIES = 30  # a shim that is killed counts as an attempt of its job
_POLICIES = ("fifo", "las", "srtf", "max-min-fairness")


@dataclass(frozen=True)
class RunResult:
    """What a run showed."""

    seed: int
    violation: str  # empty: all rules held
    faults: tuple[Fault, ...]
    took_effect: tuple[Fault, ...]  # those that changed what happened
    log: list[tuple[float, str, str]]
    commands: int  # that were started
    events: int  # in the journal
    seconds: float  # of virtual time


class _AgentNode:
    """A node: a machine, and an agent that is started again after it dies."""

    def __init__(self, scene: _Scene, name: str, machine: SimulatedMachine, root: Path, gpus: str = "v100:2") -> None:
        self._scene, self.name, self.machine, self.root, self._gpus = scene, name, machine, root, gpus
        self.program: SimulatedProgram | None = None
        self.prefix = f"{root}/"
        self._order = scene.world.random(f"addresses {root.name}").choice((1, -1))  # in which it knows the control planes
        self._removed = False
        self._agent: Agent | None = None

    def start(self) -> None:
        if self._removed or (self.program is not None and self.program.alive):
            return
        world = self._scene.world
        program = self.program = SimulatedProgram(world, f"agent {self.name}")
        world.note(program.name, "starts")
        world.start(program, lambda: self._run(program))

    def _run(self, program: SimulatedProgram) -> None:
        host = self.machine.host(program)
        processes = SimulatedProcesses(self.machine, program)
        settings = AgentSettings(kill_patience_s=1.0, sibling_grace_s=2.0)
        try:
            supervisor = Supervisor(self.root, NodeAccelerators.parse(self._gpus), settings, host, processes)
            network = self._scene.network
            addresses = ",".join(map(str, range(len(network.hubs))[:: self._order]))
            agent = Agent(supervisor, self.name, addresses, AGENT_TOKEN, address="127.0.0.1", host=host)
            agent.connect = lambda: SimulatedStream(network, self.name, program, agent.own.token, int(agent.control_address))
            self._agent = agent
            agent.run()
            supervisor.close()
            program.kill()
            self._scene.world.note(program.name, "has left")
            self._scene.world.after(3.0, self.start)
        except (AgentRefused, NodeError) as problem:  # another agent has its name, or its disk is full
            program.kill()
            if "revoked" in str(problem) or "removed" in str(problem):  # an operator lets it join again
                (self.root / CREDENTIAL_FILE).unlink(missing_ok=True)
            if not self._removed:
                self._scene.world.after(2.0, self.start)

    def leave(self) -> None:
        """An operator ends the agent, which lets its jobs save; it starts again a little later."""
        if self._agent is not None and self.program is not None and self.program.alive:
            self._scene.world.note(self.program.name, "is asked to leave")
            self._agent.leaving.set()

    def kill(self) -> bool:
        """Kill the agent; False if none runs."""
        if self.program is None or not self.program.alive:
            return False
        self._scene.world.note(self.program.name, "is killed")
        self.program.kill()
        for stream in [one for one in self._scene.network.streams if one.agent is self.program]:
            stream.close()
        return True

    def die_here(self) -> None:
        """The agent dies in the code that calls this, and is started again."""
        program = self.program
        self._scene.world.after(1.0, self.start)
        if self.kill() and program is not None:
            program.die_here()

    def remove(self) -> None:
        """The machine is switched off for good."""
        self._removed = True
        self.kill()
        self.machine.lose_power()


@dataclass
class _Promise:
    """A job that was acknowledged."""

    number: int
    total: int
    cooperative: bool
    may_fail: bool


@dataclass
class _Scene:
    """Everything of one run."""

    seed: int
    folder: Path
    promises: dict[int, _Promise] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._doubles = 0
        self.effects: dict[Fault, None] = {}
        self.world = world = VirtualWorld(self.seed)
        random = world.random("scene")
        self._choices = world.random("choices")
        self.ledger = Ledger(world)
        self.network = Network(world, world.random("network"))
        count = random.choice((2, 3))
        description = cluster(",".join(["v100:2"] * count))
        scheduler = {"policy": random.choice(_POLICIES), "estimator": "measured", "rounds": ROUND_S}
        registry = Registry.installed()
        tokens = Tokens()
        tokens.accept(AGENT_TOKEN, Role.AGENT, "agent")
        settings = ControlPlaneSettings(
            description,
            scheduler,
            lambda data: compose(data, registry),
            tokens,
            LEASE_S,
            GRACE_S,
            random.choice(JOURNAL_TIMEOUTS_S),
        )
        self.database = DatabaseServer(world)
        self.database.on_event = self._on_event
        self.controls = [
            SimulatedControlPlane(f"control plane {name}", self.database, self.network, settings)
            for name in random.choice(("A", "AB", "AB"))
        ]
        self.network.on_renewal = self._on_renewal
        self.network.hubs = [control.listening for control in self.controls]
        self.nodes = [
            _AgentNode(
                self,
                node.name,
                SimulatedMachine(world, node.name, self.ledger, random.uniform(-2e-4, 2e-4), random.choice((1.0, 3.0, 6.0))),
                self.folder / node.name,
            )
            for node in description.nodes
        ]
        world.note("scene", f"{count} nodes, {len(self.controls)} control planes, {scheduler['policy']}")

    def _on_renewal(self, program: SimulatedProgram) -> None:
        for control in self.controls:
            control.check_renewal(program)

    def active(self, odd: bool) -> SimulatedControlPlane | None:
        """The control plane that has the journal, or, if `odd`, another one that runs; None if there is none."""
        return next((control for control in self.controls if control.runs and control.has_journal != odd), None)

    def double(self, node: int) -> _AgentNode:
        """Another machine with the name of a node."""
        self._doubles += 1
        name = self.nodes[node].name
        machine = SimulatedMachine(self.world, f"{name}-double-{self._doubles}", self.ledger, 0.0)
        return _AgentNode(self, name, machine, self.folder / machine.name)

    def took_effect(self, fault: Fault) -> bool:
        """Note that a fault has changed what happens; always true."""
        self.effects[fault] = None
        return True

    def begin(self) -> None:
        for control in self.controls:
            control.start()
        for node in self.nodes:
            node.start()
        random = self.world.random("jobs")
        for _ in range(random.randint(5, 9)):
            self._submit_at(random.uniform(0.0, 45.0), Random(random.random()))
        gangs = self.world.random("gangs")
        for _ in range(gangs.randint(0, 2)):
            self._submit_at(gangs.uniform(0.0, 45.0), Random(gangs.random()), workers=gangs.randint(2, 4))
        leaving = self.world.random("leaving")
        for _ in range(leaving.choice((0, 0, 1, 2))):
            self.world.at(leaving.uniform(5.0, 50.0), leaving.choice(self.nodes).leave)
        users = self.world.random("users")
        for _ in range(users.randint(0, 4)):
            act = partial(users.choice((self._cancel, self._drain, self._switch, self._requeue)), users.randrange(1000))
            self.world.at(users.uniform(5.0, 50.0), act)
        changes, operator = self.world.random("nodes"), NodeOperator(self.world, self._plane)
        for number in range(changes.choice((0, 0, 1, 2))):
            machine = SimulatedMachine(self.world, f"extra-{number}", self.ledger, changes.uniform(-2e-4, 2e-4))
            node = _AgentNode(self, machine.name, machine, self.folder / machine.name, changes.choice(("v100:2", "a100:2")))
            operator.add_at(changes.uniform(2.0, 30.0), node, changes.uniform(8.0, 60.0))
        if changes.random() < 0.3:
            operator.remove_at(changes.uniform(8.0, 45.0), changes.choice(self.nodes).name)

    def _plane(self) -> ControlPlane | None:
        """A control plane that users reach; it may be one that does not know that another is active."""
        there = [control.plane for control in self.controls if control.listening() is not None and control.plane is not None]
        return self._choices.choice(there) if there else None

    def _backend(self) -> ClusterBackend | None:
        plane = self._plane()
        return plane.backend if plane is not None else None

    def _cancel(self, chosen: int) -> None:
        backend, numbers = self._backend(), sorted(self.promises)
        if backend is None or not numbers:
            return
        number = numbers[chosen % len(numbers)]

        def answer(events: Sequence[ev.Event]) -> None:
            if events:
                self.world.note("user", f"job {number} is cancelled")

        backend.cancel(number, answer)

    def _requeue(self, chosen: int) -> None:
        backend, numbers = self._backend(), sorted(self.promises)
        if backend is not None and numbers:
            number = numbers[chosen % len(numbers)]
            if number not in self.ledger.ended:
                self.world.note("user", f"asks to requeue job {number}")
                backend.changes.requeue(number, False, "ann")

    def _drain(self, chosen: int) -> None:
        node = chosen % len(self.nodes)

        undone = False

        def answer(events: Sequence[ev.Event]) -> None:
            nonlocal undone
            undone = True

        def undo() -> None:  # until it is answered: the request may be lost with its control plane
            if not undone:
                if (backend := self._backend()) is not None:
                    backend.drain(node, True, answer)
                self.world.after(5.0, undo)

        if (backend := self._backend()) is not None:
            self.world.note("operator", f"drains node {node}")
            backend.drain(node, False)
            self.world.after(5.0 + chosen % 20, undo)

    def _switch(self, chosen: int) -> None:
        if (plane := self._plane()) is not None:
            policy = _POLICIES[chosen % len(_POLICIES)]
            self.world.note("operator", f"switches to {policy}")
            plane.switch({"policy": policy, "estimator": "measured", "rounds": ROUND_S}, "a test")

    def _submit_at(self, when: float, random: Random, workers: int = 1) -> None:
        steps, cooperative = random.randint(3, 25), workers > 1 or random.random() < 0.6
        options = {
            "steps": steps,
            # Some jobs outlast a lease, a grace and a round: only these can run twice at once.
            "step_s": round(random.uniform(0.2, 1.5) + random.choice((0.0, 0.0, 2.0)), 3),
            "start_s": round(random.uniform(0.0, 1.0), 3),
            "save_s": round(random.uniform(0.0, 1.0), 3),
            "every": random.randint(2, 10),
            "at_term": random.choice(("exit0", "exit143", "exit143", "ignore")),
        }
        may_fail = cooperative and random.random() < 0.2
        if may_fail:
            options["fails_at"] = random.randint(0, steps - 1)
        run = ["job", *(f"{name}={value}" for name, value in options.items())]
        grace_s = random.choice((2.0, 5.0))
        spec = TaskSpec(run=run, cooperative=cooperative, grace_s=grace_s, retries=_RETRIES, steps=steps, workers=workers)
        job = spec.job("", "ann")

        def submit() -> None:
            if (backend := self._backend()) is None:
                self.world.after(1.0, submit)
                return
            promise = _Promise(-1, steps, cooperative, may_fail)

            def answer(events: Sequence[ev.Event]) -> None:
                for event in events:
                    assert isinstance(event, ev.JobSubmitted)
                    promise.number = event.number
                    self.promises[event.number] = promise
                    self.world.note("user", f"job {event.number} is acknowledged")

            backend.submit_jobs([job], answer)

        self.world.at(when, submit)

    def _on_event(self, event: ev.Event) -> None:
        if isinstance(event, ev.JobsFinished):
            for number in event.jobs.tolist():
                self.world.note("journal", f"job {number} finished")
                if number not in self.ledger.completed:
                    self.world.violate(f"job {number} counts as finished, but did not reach its last step")
                self.ledger.ended.add(number)
        elif isinstance(event, ev.JobCancelled):
            self.ledger.ended.add(event.number)
            self.ledger.cancelled.add(event.number)
        elif isinstance(event, ev.JobRequeued):
            self.ledger.ended.discard(event.number)
        elif isinstance(event, ev.JobsFailed):
            for number in event.jobs.tolist():
                self.world.note("journal", f"job {number} failed")

    def over(self) -> bool:
        """Whether all jobs have ended, by the journal."""
        if (control := next((one for one in self.controls if one.leads), None)) is None or control.plane is None:
            return False
        state = control.plane.loop.state
        return (
            len(self.promises) > 0
            and not state.busy
            and all(number in state.job_of and state.columns["phase"][number] in ENDED for number in self.promises)
        )

    def check_end(self) -> None:
        world = self.world
        if world.violation:
            return
        try:
            replayed = check_events(self.database.events(), real=True)
        except InvariantBroken as problem:
            world.violate(str(problem))
            return
        control = next((one for one in self.controls if one.leads), None)
        if control is None or control.plane is None or control.journal is None:
            world.violate(f"no control plane is active {CONVERGE_WITHIN_S:g} s after the last fault")
            return
        for event in control.journal.uncommitted():
            apply_event(replayed, event)
        if replayed.digest() != control.plane.loop.state.digest():
            world.violate("replay of the journal gives another state than the control plane has")
        for number, promise in self.promises.items():
            if number not in replayed.job_of:
                world.violate(f"job {number} was acknowledged and is not in the journal")
                return
            phase = Phase(int(replayed.columns["phase"][number]))
            if phase not in ENDED:
                world.violate(f"job {number} is {phase.name.lower()} {CONVERGE_WITHIN_S:g} s after the last fault")
            elif phase is Phase.FAILED and not promise.may_fail:
                world.violate(f"job {number} failed without a fault of its own")
            elif phase is Phase.FINISHED and len(self.ledger.completed[number]) > 1:
                generations = self.ledger.completed[number]
                world.note("scene", f"job {number} ran to its end {len(generations)} times: {generations}")

    def before_write(self, path: Path) -> None:
        """Let a write fail on a machine whose disk is full or damaged, or end its agent in the middle of the write."""
        for node in self.nodes:
            window, error = node.machine.disk_fault
            if not str(path).startswith(node.prefix):
                continue
            if window.active():
                raise OSError(error, os.strerror(error), str(path))
            if node.machine.torn_write.active():
                node.machine.torn_write = FaultWindow(self.world)
                path.with_name(f".{path.name}.{os.getpid()}.part").write_bytes(b'{"torn')
                node.die_here()


def run_scenario(seed: int, faults: Sequence[Fault] | None = None, kinds: Sequence[str] = ()) -> RunResult:
    """Run one seed, with the faults that it chooses (only of these kinds, where there are any), or with these faults."""
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix="fairlead-sim-", dir=base))
    try:
        scene = _Scene(seed, folder)
        world = scene.world
        if faults is None:
            faults = choose_faults(world.random("faults"), len(scene.nodes), FAULTS_UNTIL_S, kinds)
        chosen = tuple(faults)
        files.before_write = scene.before_write
        scene.begin()
        for fault in chosen:
            world.at(fault.at_s, partial(fault.apply, scene))
        world.run(FAULTS_UNTIL_S)
        for stream in (stream for node in scene.nodes for stream in scene.network.streams_of(node.name)):
            stream.late_s = 0.0
        while not world.violation and not scene.over() and world.now < FAULTS_UNTIL_S + CONVERGE_WITHIN_S:
            world.run(world.now + 1.0)
        scene.check_end()
        return RunResult(
            seed,
            world.violation,
            chosen,
            tuple(scene.effects),
            world.log,
            scene.ledger.commands,
            len(scene.database.bodies),
            world.now,
        )
    finally:
        files.before_write = lambda path: None
        _close_files(folder)
        shutil.rmtree(folder, ignore_errors=True)


def _close_files(folder: Path) -> None:
    """Close what killed programs have left open."""
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{entry}").startswith(str(folder)):
                os.close(int(entry))
