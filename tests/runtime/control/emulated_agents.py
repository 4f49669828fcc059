"""A control plane's backend and loop with agents that the test plays: what they are ordered is seen, what they say is given."""

from __future__ import annotations

from dataclasses import dataclass, field

from fairlead.config.registry import Registry
from fairlead.config.schedulers import SchedulerConfig
from fairlead.core import events as ev
from fairlead.core.job import Job, Phase
from fairlead.engine.apply import replay_events
from fairlead.engine.journal import MemoryJournal
from fairlead.engine.loop import Loop
from fairlead.engine.state import State
from fairlead.runtime.control.cluster_backend import ClusterBackend
from fairlead.runtime.control.wall_clock import WallClock
from fairlead.runtime.protocol.orders import Ended, Order, Task
from fairlead.testing import check_events
from fairlead.testing.builders import cluster
from fairlead.testing.invariants import check_state
from scenes import table_of

ROUND = 10.0


@dataclass
class EmulatedTransport:
    """Agents that do nothing but remember their orders."""

    orders: list[tuple[int, Order]] = field(default_factory=list)
    silent: dict[int, float] = field(default_factory=dict)  # seconds, by node
    removed: list[int] = field(default_factory=list)  # nodes whose sessions were ended

    def send(self, node: int, order: Order) -> None:
        self.orders.append((node, order))

    def address_of(self, node: int) -> str:
        return f"node-{node}"

    def silent_s(self, node: int) -> float:
        return self.silent.get(node, 0.0)

    def remove(self, node: int) -> None:
        self.removed.append(node)

    def new(self, kind: type = Order) -> list[tuple[int, Order]]:
        found, self.orders = self.orders, []
        return found


class Scene:
    def __init__(
        self,
        machines: str = "v100:2,v100:2",
        policy: str = "las",
        state: State | None = None,
        journal=None,
        table=None,
        **parts: str,
    ) -> None:
        self.second = 0.0 if state is None else state.time
        self.wire = EmulatedTransport()
        self.cluster = cluster(machines) if state is None else state.cluster
        clock = WallClock(0.0, self.second, lambda: 0.0, lambda: self.second)
        clock._offset = 0.0
        number = 0 if state is None else state.next_number
        self.backend = ClusterBackend(self.cluster, self.wire, clock, lambda job: Task((job.command or "true",)), number)
        self.backend.lock.acquire()
        self.journal = journal or MemoryJournal()
        rates = {("", size): [1.0] * len(self.cluster.types) for size in (2, 3)}
        scheduler = SchedulerConfig.from_data({"policy": policy, "rounds": ROUND, **parts})
        stages = scheduler.build(table or table_of(self.cluster.type_names, rates), Registry.installed())
        self.loop = Loop(state or State(self.cluster), self.backend, stages, journal=self.journal, allow_stalls=True)
        if state is None:
            self.loop.record(ev.JournalOpened(0.0, self.cluster, {}))
            for node in range(len(self.cluster.nodes)):
                self.loop.record(ev.NodeLost(0.0, node))
        self.answers: list[object] = []

    def at(self, second: float) -> list[tuple[int, Order]]:
        """What is ordered when the clock stands at this second."""
        self.second = second
        self.loop.run(until=second)
        return self.wire.new()

    def join(self, *nodes: int) -> None:
        for node in nodes or range(len(self.cluster.nodes)):
            self.backend.agent_joined(node, ())

    def job(self, name: str, **about) -> None:
        self.backend.submit_jobs([Job(name, **about)], self.answers.append)

    def reconcile(self) -> None:
        """After a restart, with what agents have said so far."""
        for event in self.backend.reconcile(self.loop.state.snapshot(self.second)):
            self.loop.record(event)

    def phase(self, number: int) -> Phase:
        return Phase(int(self.loop.state.columns["phase"][number]))

    def check(self) -> None:
        check_state(self.loop.state)
        check_events(list(self.journal), real=True)
        assert replay_events(self.journal).digest() == self.loop.state.digest()


def begun(name: str, machines: str = "v100:2,v100:2", policy: str = "las", **about) -> Scene:
    """A scene whose agents are there, with one job that was launched at second 0."""
    scene = Scene(machines, policy)
    scene.join()
    scene.job(name, **about)
    scene.at(0.0)
    return scene


def unable(generation: int, job: int = 0) -> Ended:
    """The word of a node that could not begin a launch."""
    return Ended(job, generation, 126, True, 0, 0, "/full: No space left on device")


def restarted(before: Scene, machines: str, second: float) -> Scene:
    """A control plane that has read its journal, and to which nobody has spoken yet."""
    scene = Scene(machines, state=replay_events(before.journal), journal=before.journal)
    scene.second = second
    return scene
