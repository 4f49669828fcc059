"""The nodes of an engine, such as Slurm or Kubernetes. Each part of a launch there has an agent of its own, which the engine
starts, with its own stream and its own lease. The agent starts nothing before it is given its launch here. So a part that was
never given out is over as soon as it is withdrawn; any other is over when its end was reported, when the engine saw its
processes end, or when its lease and grace have passed. One thread uses a hub, as `AgentHub`."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from fairlead.core.job import LAUNCH_FAILED
from fairlead.runtime.control.agent_sessions import HubServices, PartSession, Place, TrackedPart
from fairlead.runtime.control.engine_nodes import EngineNodes
from fairlead.runtime.control.engine_thread import EngineThread
from fairlead.runtime.drivers.base import (
    EngineDriver,
    EngineTask,
    LaunchKey,
    LaunchNeeds,
    LaunchPart,
    Machine,
    MachineState,
    TaskState,
)
from fairlead.runtime.protocol import messages as ms
from fairlead.runtime.protocol import orders as od

log = logging.getLogger(__name__)

START_WITHIN_S = 300.0  # from the request until the agent of a part connects; then another node may be tried
PREPARE_WITHIN_S = 1800.0  # the same for a part whose machine prepares it, as by pulling a large image
LISTED_WITHIN_S = 30.0  # from the request until the engine must list a part
MAX_STARTS = 3  # of a part that disappears before its agent connects
MAX_OUTPUTS = 100_000  # workers whose machines are remembered, for their logs
GATHER_S = 0.2  # for all parts of a launch to arrive; some may be for other engines
_OVER = "this launch is over: its agent is not needed any more"


@dataclass(eq=False)
class EngineHub:
    """The streams and parts of one engine. `control` is the address at which the engine's agents reach this control plane."""

    driver: EngineDriver
    hub: HubServices
    token_of: Callable[[LaunchKey], str] = lambda key: ""
    agent_options: tuple[str, ...] = ()  # of every agent, such as the certificate that it trusts
    control: str = ""

    def __post_init__(self) -> None:
        self.host, self._parts = self.hub.host, dict[Place, TrackedPart]()
        self._outputs: dict[tuple[int, int, int], tuple[Place, bool]] = {}  # by job, generation and rank: alone there
        self._forgotten: set[LaunchKey] = set()
        self._alive: dict[str, set[tuple[int, int]]] = {}  # launches by machine, as the engine lists them
        self._joining: dict[int, float] = {}  # nodes whose launches from before a restart are not known yet
        self.thread = EngineThread(
            self.driver,
            self.hub.journal,
            lambda machines, tasks: self._post(lambda: self._observe(machines, tasks)),
            lambda parts: self._post(lambda: self._accepted(parts)),
            lambda parts, why: self._post(lambda: self._refuse(parts, why)),
            self.host,
        )
        self.nodes = EngineNodes(self.driver.name, self.hub, self.thread.observe_soon, self._join, self._uses)

    # For any thread.

    def _post(self, call: Callable[[], None]) -> None:
        self.hub.post(call)

    def owns(self, node: int) -> bool:
        """Whether a node is a machine of this engine."""
        return self.nodes.owns(node)

    def send(self, node: int, order: od.Order) -> None:
        """Carry out an order for a part of a launch."""
        self._post(lambda: self._take(node, order))

    def not_begun(self, job: int) -> dict[str, str]:
        """Why the engine has not started parts of a job, by machine; without those that it starts right now."""
        parts = [part for part in list(self._parts.values()) if part.key.job == job and not part.given]
        return {part.key.machine: why for part in parts if (why := self.problem or part.reason)}

    @property
    def problem(self) -> str:
        """Why the engine is unavailable; empty: it is not."""
        return self.thread.problem and f"{self.driver.name} is unavailable: {self.thread.problem}"

    def address_of(self, node: int) -> str:
        return self.nodes.address_of(node)

    def silent_s(self, node: int) -> float:
        """Return the longest silence of an agent on a node; infinity if the engine does not offer the machine."""
        if node not in self.nodes.up:
            return math.inf
        now, lease_s = self.host.monotonic(), self.hub.lease_s + self.hub.grace_s
        ages = [
            now + lease_s - part.until for part in list(self._parts.values()) if part.node == node and part.until < math.inf
        ]
        oldest = max(ages, default=0.0)
        return oldest if oldest > 0.7 * self.hub.lease_s else 0.0

    @property
    def connected(self) -> frozenset[int]:
        """Nodes on which launches can start."""
        return frozenset(self.nodes.up)

    # For the hub's thread.

    def welcome(self, hello: ms.Hello, out: Callable[[ms.FromControl | None], None]) -> PartSession:
        """Begin the session of a part's agent. Raises `BadMessage`: its launch is over, or has another agent."""
        assert hello.launch is not None
        node = self.hub.cluster.number_of_node.get(hello.node, -1)
        runs, place = hello.launch in hello.running, (node, *hello.launch)
        part = self._parts.get(place)
        if node < 0 or (part is None and not runs):
            raise ms.BadMessage(_OVER)
        if part is None:  # from before a restart, or given up
            part = self._parts[place] = TrackedPart(LaunchKey(self.hub.journal, *hello.launch, hello.node), node, given=True)
            if node in self.nodes.up and node not in self._joining:
                part.again[od.Kill] = od.Kill(*hello.launch)
        if part.identity not in ("", hello.identity):
            raise ms.BadMessage("another agent has this launch: the engine started it twice")
        if part.session is not None:
            part.session.out(None)
        part.identity, part.address = hello.identity, hello.address
        session = part.session = PartSession(self, part, out)
        self._renew(part)
        out(ms.Welcome(self.hub.lease_s, self.hub.grace_s, self.hub.journal))
        if runs:
            part.given = True
        elif part.launch is None:  # the order was lost with the former control plane
            self._fail(part, "its launch was lost when the control plane was restarted")
            return session
        if part.again:
            out(ms.OrderBatch(tuple(part.again.values())))
        for one in [part, *self._gang(part)]:
            if one is not part or not runs:
                self._give(one)
        return session

    def receive(self, session: PartSession, message: ms.Message) -> bool:
        """Handle a later message; False if the session is over."""
        part = session.part
        if not session.open:
            return False
        if isinstance(message, ms.Heartbeat):
            if not self.hub.may_renew():
                self._close(part)
                return False
            self._renew(part)
            session.out(ms.LeaseRenewed())
        elif isinstance(message, ms.ReportBatch):
            ends = any(isinstance(one, od.Ended) for one in message.reports)
            if any(one.key != part.place[1:] for one in message.reports):
                raise ms.BadMessage("the agent of one launch sent a report about another")

            def answer() -> None:
                self._post(lambda: self._acknowledge(session, message.sequence, ends=ends))

            self.hub.backend.report(part.node, message.reports, answer)
        elif isinstance(message, ms.Left):
            self._left(part)
            return False
        elif not isinstance(message, ms.Leaving):
            self.hub.transfers.receive(session, message)
        return True

    def _left(self, part: TrackedPart) -> None:
        """An agent says that nothing runs any more; the engine has stopped it, or its launch is over."""
        self._close(part)
        if part.ended:
            self._finish(part)
        elif part.given:
            self._lose(part, "its agent has left")
        else:
            self._fail(part, f"{self.driver.name} stopped its agent before it received its launch")

    def leave(self, session: PartSession) -> None:
        """The stream of a part has ended."""
        part = session.part
        if part.session is session:
            part.session = None
            if part.ended:
                self._finish(part)
            self.thread.observe_soon()

    def session_of(self, node: int, job: int, generation: int) -> PartSession | None:
        """The stream of a part, if its agent is connected."""
        part = self._parts.get((node, job, generation))
        return part.session if part is not None else None

    def output_of(self, job: int, generation: int, rank: int) -> LaunchKey | None:
        """The part whose output the engine has, and which is that of this worker only; None: there is none, or it runs."""
        place, alone = self._outputs.get((job, generation, rank), (None, False))
        part = self._parts.get(place) if place is not None else None
        if place is None or not alone or (part is not None and part.session is not None):
            return None
        return LaunchKey(self.hub.journal, job, generation, self.hub.cluster.nodes[place[0]].name)

    def expire(self) -> float:
        """Give up parts whose agents are silent, and start launches. Returns in how many seconds to call it again."""
        now = self.host.monotonic()
        for part in [part for part in self._parts.values() if min(part.gathered, part.until) <= now]:
            if self._parts.get(part.place) is not part:
                continue  # removed with another
            if part.until <= now:
                self._lose(part, f"no message from its agent for {self.hub.lease_s + self.hub.grace_s:g} s")
            elif part.gathered <= now:
                self._start([part, *(one for one in self._gang(part) if one.gathered < math.inf)])
        due = min((min(part.gathered, part.until) for part in self._parts.values()), default=math.inf)
        return max(0.0, due - now)

    def adopt(self, node: int) -> bool:
        """Take over a node whose engine has not answered since a restart, if agents of launches there are connected."""
        if node in self._joining or not any(part.node == node and part.session for part in self._parts.values()):
            return False
        self._join(node)
        return True

    def close(self) -> None:
        """End all streams; agents connect again when they can."""
        for part in self._parts.values():
            self._close(part)

    # Orders.

    def _take(self, node: int, order: od.Order) -> None:
        place = (node, *order.key)
        part = self._parts.get(place)
        if isinstance(order, od.Launch):
            if part is None or (part.launch is None and not part.given):
                name = self.hub.cluster.nodes[node].name
                part = part or TrackedPart(LaunchKey(self.hub.journal, *order.key, name), node)
                part.launch, part.gathered = order, self.host.monotonic() + GATHER_S
                if len(self._outputs) > MAX_OUTPUTS:
                    self._outputs.clear()
                self._outputs.update({(*order.key, rank): (place, len(order.ranks) == 1) for rank in order.ranks})
                self._parts[place] = part
                arrived = [part, *(one for one in self._gang(part) if one.gathered < math.inf)]
                if len(arrived) == order.nodes:
                    self._start(arrived)
            return
        if part is None:
            self._report(node, order.key, "the launch did not reach this node")
            return
        part.again[type(order)] = order
        if part.session is not None and (part.given or not isinstance(order, od.Revoke | od.Kill)):
            part.session.out(ms.OrderBatch((order,)))
        elif isinstance(order, od.Revoke | od.Kill):
            if not part.given:
                self._fail(part, "the launch did not reach this node")
            elif isinstance(order, od.Kill):  # its agent may be unable to connect
                self.thread.stop(part.key, 0.0)

    def _gang(self, part: TrackedPart) -> list[TrackedPart]:
        """The other parts of the same launch."""
        return [one for one in self._parts.values() if one.place[1:] == part.place[1:] and one is not part]

    def _start(self, parts: Sequence[TrackedPart]) -> None:
        launch = parts[0].launch
        assert launch is not None
        task, given = launch.task, launch.parameters
        needs = LaunchNeeds(
            *(launch.name, launch.user),
            cpus=given.cpus or task.cpus,
            memory_gb=given.host_memory_gb or task.host_memory_gb,
            grace_s=task.grace_s,
            options=task.engines.get(self.driver.name, {}),
            container=task.container,
        )
        in_order = sorted(parts, key=lambda part: part.launch.ranks if part.launch is not None else ())
        self.thread.start([self._request(part) for part in in_order], needs)  # a token may need a database
        for part in parts:
            part.gathered = math.inf

    def _request(self, part: TrackedPart) -> LaunchPart:
        key, launch = part.key, part.launch
        assert launch is not None
        gpus = f"{self.hub.cluster.nodes[part.node].type}:{len(launch.accelerators)}"
        arguments = ["agent", "--launch", f"{key.job}.{key.generation}", "--node", key.machine, "--control", self.control]
        arguments += ["--accelerators", gpus, *self.agent_options]
        return LaunchPart(key, launch.accelerators, tuple(arguments), self.token_of(key))

    def _give(self, part: TrackedPart) -> None:
        """Give a part its launch, once the address of the gang's first worker is known."""
        launch = part.launch
        if launch is None or part.session is None or part.ended or od.Kill in part.again or od.Revoke in part.again:
            return
        if launch.nodes > 1:
            leader = next((one for one in (part, *self._gang(part)) if one.leads), None)
            if leader is not None and not leader.address:
                return
            launch = launch if leader is None else replace(launch, master_address=leader.address)
        if not self.driver.capabilities.picks_devices:  # its agent has only those that it may use
            launch = replace(launch, accelerators=tuple(range(len(launch.accelerators))))
        part.given = True
        task = launch.task.on_engine(runs_images=self.driver.capabilities.runs_images)
        part.session.out(ms.OrderBatch((replace(launch, task=task),)))

    def _accepted(self, parts: Sequence[LaunchPart]) -> None:
        for asked in parts:
            if (part := self._of(asked.key)) is not None and part.since == math.inf:
                part.since = self.host.monotonic()

    def _refuse(self, parts: Sequence[LaunchPart], why: str) -> None:
        for asked in parts:
            if (part := self._of(asked.key)) is not None:
                del self._parts[part.place]
                ended = od.Ended(*part.place[1:], LAUNCH_FAILED, False, 0, 0, od.bounded_text(why), permanent=True)
                self.hub.backend.report(part.node, (ended,))

    # What the engine observes.

    def _observe(self, machines: Sequence[Machine], tasks: Sequence[EngineTask]) -> None:
        if not self.hub.may_renew():
            return  # another control plane may have the journal, and these machines
        for task in tasks:
            self._observe_task(task)
        self._alive = {}
        for key in [task.key for task in tasks if task.state is not TaskState.OVER]:
            self._alive.setdefault(key.machine, set()).add((key.job, key.generation))
        states = {task.key: task.state for task in tasks}
        usable = {machine.name for machine in machines if machine.state is not MachineState.UNREACHABLE}
        for part in list(self._parts.values()):
            if not part.given and part.since < math.inf:
                self._follow_start(part, states.get(part.key), can_start=part.key.machine in usable)
        self.nodes.observe(machines)

    def _follow_start(self, part: TrackedPart, state: TaskState | None, *, can_start: bool) -> None:
        """Give up or repeat the start of a part that its agent was not given yet, so nothing of it runs."""
        now, engine = self.host.monotonic(), self.driver.name
        if (waited_s := now - part.since) > START_WITHIN_S:  # not counted: while a machine of its gang prepares it
            waited_s = now - max(part.since, *(one.prepared for one in (part, *self._gang(part))))
        part.listed |= state is not None
        gone = state is TaskState.UNKNOWN or (state is None and (part.listed or waited_s > LISTED_WITHIN_S))
        if waited_s > START_WITHIN_S:
            self._fail(part, f"{engine} did not start it within {START_WITHIN_S:g} s: {part.reason or 'no reason given'}")
        elif part.session is not None:
            return
        elif not can_start:
            self._fail(part, f"{engine} no longer has this node, or cannot reach it")
        elif gone and part.starts >= MAX_STARTS:
            self._fail(part, f"{engine} lost it {MAX_STARTS} times before its agent connected")
        elif gone:
            log.warning("engine lost a launch; it is started again", extra={"job": part.key.job, "node": part.key.machine})
            part.starts, part.since, part.listed, part.identity = part.starts + 1, math.inf, False, ""
            self.thread.stop(part.key, 0.0)  # what is left of it; its driver may remember it
            self._start([part])

    def _observe_task(self, task: EngineTask) -> None:
        part = self._of(task.key)
        node = self.hub.cluster.number_of_node.get(task.key.machine, -1)
        if part is None:
            if task.state is TaskState.OVER:
                self._forget(task.key)
            elif node in self.nodes.up and node not in self._joining:
                self.thread.stop(task.key, 0.0)
            return
        part.reason, part.own_fault, now = task.reason, task.own_fault, self.host.monotonic()
        part.prepared = now if task.preparing and now - part.since <= PREPARE_WITHIN_S else part.prepared
        if task.state is not TaskState.OVER or part.session is not None or part.ended:
            return
        status = f" with status {task.code}" if task.code else ""
        why = f"{self.driver.name}: its agent ended{status}{': ' + task.reason if task.reason else ''}"
        if part.given:
            if part.starts == 1:  # otherwise the agent of an object that disappeared may have the launch
                self._lose(part, why)
        elif part.since < math.inf:
            self._fail(part, why)

    def _join(self, node: int) -> None:
        """Let the backend use a node. Launches that it or the engine knows may run: their agents have a lease and a grace."""
        self.nodes.up.add(node)
        self._joining[node] = self.hub.take_over(node)
        backend = self.hub.backend

        def found() -> Sequence[tuple[int, int]]:
            keys = sorted({*backend.launches.sent_to(node), *self._alive.get(self.hub.cluster.nodes[node].name, ())})
            self._post(lambda: self._found(node, keys))
            return keys

        backend.agent_joined(node, found)

    def _uses(self, node: int) -> bool:
        return any(part.node == node for part in self._parts.values())

    def _found(self, node: int, found: Sequence[tuple[int, int]]) -> None:
        until, name = self._joining.pop(node, math.inf), self.hub.cluster.nodes[node].name
        for key in found:
            if (place := (node, *key)) not in self._parts:
                self._parts[place] = TrackedPart(LaunchKey(self.hub.journal, *key, name), node, given=True, until=until)
        for part in [part for part in self._parts.values() if part.node == node and part.launch is None]:
            if part.place[1:] not in found and part.session is not None and not part.ended:
                part.again[od.Kill] = kill = od.Kill(*part.place[1:])
                part.session.out(ms.OrderBatch((kill,)))

    # Ends.

    def _acknowledge(self, session: PartSession, sequence: int, *, ends: bool) -> None:
        session.part.ended = session.part.ended or ends
        session.out(ms.Acknowledged(sequence))
        if ends and session.part.session is None:
            self._finish(session.part)

    def _finish(self, part: TrackedPart) -> None:
        self._parts.pop(part.place, None)
        self._forget(part.key)

    def _forget(self, key: LaunchKey) -> None:
        """Once: the engine may list a part for a while that is over."""
        if key not in self._forgotten:
            if len(self._forgotten) > MAX_OUTPUTS:
                self._forgotten.clear()
            self._forgotten.add(key)
            self.thread.forget(key)

    def _fail(self, part: TrackedPart, why: str) -> None:
        """A part that was never given out is over: its agent is refused from now on."""
        self._parts.pop(part.place, None)
        if part.session is not None:
            part.session.out(ms.Refused(_OVER))
            self._close(part)
        self.thread.stop(part.key, 0.0)
        self._report(part.node, part.place[1:], why, own_fault=part.own_fault and {od.Revoke, od.Kill}.isdisjoint(part.again))

    def _lose(self, part: TrackedPart, why: str) -> None:
        """Nothing of a part runs any more, and its end is not known."""
        log.warning("a launch was lost", extra={"job": part.key.job, "node": part.key.machine, "why": why})
        self._parts.pop(part.place, None)
        self._close(part)
        self.thread.stop(part.key, 0.0)
        silent_s = max(0.0, self.host.monotonic() + self.hub.lease_s + self.hub.grace_s - part.until)
        self.hub.backend.part_lost(part.node, part.place[1:], 0.0 if math.isinf(silent_s) else silent_s)

    def _report(self, node: int, key: tuple[int, int], why: str, *, own_fault: bool = False) -> None:
        """A launch did not begin. Its node is to blame, and is left alone for a while, unless the job is."""
        self.hub.backend.report(node, (od.Ended(*key, LAUNCH_FAILED, not own_fault, 0, 0, od.bounded_text(why)),))

    def _of(self, key: LaunchKey) -> TrackedPart | None:
        return self._parts.get((self.hub.cluster.number_of_node.get(key.machine, -1), key.job, key.generation))

    def _renew(self, part: TrackedPart) -> None:
        part.until = self.host.monotonic() + self.hub.lease_s + self.hub.grace_s

    def _close(self, part: TrackedPart) -> None:
        session, part.session = part.session, None
        if session is not None:
            session.out(None)
