"""The network between agents and the control plane: streams that deliver in order, as gRPC's do, with delays, partitions,
resets, and ends that only one side learns of."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fairlead.runtime.agent.agent_stream import ConnectionLost
from fairlead.runtime.control.agent_hub import AgentHub
from fairlead.runtime.control.agent_sessions import AgentSession, PartSession
from fairlead.runtime.protocol import messages as ms
from fairlead.runtime.protocol.orders import Launch
from fairlead.testing.runtime_simulation.virtual_world import FaultWindow, SimulatedProgram, VirtualWorld

if TYPE_CHECKING:
    from random import Random


class Network:
    """All streams. During the windows in `up` and `down`, messages of a node to and from the control plane do not pass.

    Messages are lost, repeated and reordered as gRPC allows. One stream delivers in order, each message once, up to the
    moment at which it breaks. What was sent before is then lost, and the agent repeats it on its next stream. Messages of an
    old stream may arrive after those of a new one."""

    def __init__(self, world: VirtualWorld, random: Random) -> None:
        self.world, self.random = world, random
        self.up: dict[str, FaultWindow] = {}
        self.down: dict[str, FaultWindow] = {}
        self.split: dict[tuple[str, int], FaultWindow] = {}  # nodes that one control plane does not reach, by its number
        self.slow: dict[str, tuple[FaultWindow, float]] = {}  # with how many seconds more
        self.streams: list[SimulatedStream] = []
        self.on_renewal: Callable[[SimulatedProgram], None] = lambda control: None  # a control plane renews a lease
        self.on_launch: dict[str, Callable[[], object]] = {}  # by node: once, when a launch is sent to it
        self.hubs: list[Callable[[], tuple[AgentHub, SimulatedProgram] | None]] = []  # of control planes that listen

    def delay_s(self, node: str) -> float:
        window, more_s = self.slow.get(node, (None, 0.0))
        base_s = self.random.uniform(0.0005, 0.005)
        return base_s + (self.random.uniform(0.0, more_s) if window is not None and window.active() else 0.0)

    def streams_of(self, node: str) -> list[SimulatedStream]:
        """The streams of a node that no side knows to be broken."""
        return [stream for stream in self.streams if stream.node == node and stream.is_open]

    def drop_all(self, control: SimulatedProgram, *, known: bool) -> None:
        """A control plane is gone. `known`: the agents' machines learn it at once."""
        for stream in [one for one in self.streams if one.control is control]:
            stream.end_at_control()
            if known:
                stream.end_at_agent("connection reset")


class SimulatedStream:
    """One stream of an agent to the control plane with number `address`. Each side learns of an end by itself."""

    def __init__(self, network: Network, node: str, agent: SimulatedProgram, token: str, address: int) -> None:
        self._network, self.node, self.agent, self._token, self._address = network, node, agent, token, address
        self._arrived: list[bytes] = []
        self._lost = ""
        self._last = {"up": 0.0, "down": 0.0}
        self.late_s = 0.0  # how much later than those of other streams its messages arrive
        self._session: AgentSession | PartSession | None = None
        self._control = network.hubs[address]()
        self.control = self._control[1] if self._control is not None else None
        self._open_at_control = self._control is not None
        network.streams.append(self)
        if self._control is None:
            self._after("down", lambda: self.end_at_agent("connection refused"))

    @property
    def is_open(self) -> bool:
        return not self._lost and self._open_at_control

    # The agent's end.

    def send(self, message: ms.FromAgent) -> None:
        data = ms.encode_message(message)
        self._after("up", lambda: self._at_control(data))

    def receive(self) -> list[bytes]:
        arrived, self._arrived = self._arrived, []
        if not arrived and self._lost:
            raise ConnectionLost(self._lost)
        return arrived

    def close(self) -> None:
        self._lost = self._lost or "closed"
        self._after("up", self.end_at_control)
        if self in self._network.streams:
            self._network.streams.remove(self)

    def end_at_agent(self, why: str) -> None:
        """The agent learns that the stream is gone."""
        self._lost = self._lost or why

    # The control plane's end.

    def end_at_control(self) -> None:
        """The control plane learns that the stream is gone."""
        if self._open_at_control and self._control is not None:
            self._open_at_control = False
            if self._session is not None:
                hub, program = self._control
                session = self._session
                program.call(self._network.world.now, lambda: hub.leave(session))

    def _at_control(self, data: bytes) -> None:
        if not self._open_at_control or self._control is None:
            return
        _, program = self._control
        program.call(self._network.world.now, lambda: self._handle(data))

    def _handle(self, data: bytes) -> None:
        if not self._open_at_control or self._control is None:
            return
        hub, _ = self._control
        try:
            message = ms.decode_message(data)
            if self._session is None:
                self._session = hub.welcome(message, self._out, hub.admit(self._token))
                if self._session is None:
                    self._out(ms.JournalMismatch(hub.journal))
                    self._out(None)
            elif not hub.receive(self._session, message):
                self._out(None)
        except ms.BadMessage as problem:
            self._out(ms.Refused(str(problem)))
            self._out(None)

    def _out(self, message: ms.FromControl | None) -> None:
        if message is None:
            self.end_at_control()
            self._after("down", lambda: self.end_at_agent("the stream was closed"))
            return
        if self.control is not None and isinstance(message, ms.Welcome | ms.LeaseRenewed):
            self._network.on_renewal(self.control)
        if isinstance(message, ms.OrderBatch) and any(isinstance(order, Launch) for order in message.orders):
            self._network.on_launch.pop(self.node, lambda: None)()
        data = ms.encode_message(message)
        self._after("down", lambda: self._at_agent(data))

    def _at_agent(self, data: bytes) -> None:
        if not self._lost:
            self._arrived.append(data)

    def _after(self, direction: str, call: Callable[[], None]) -> None:
        """Deliver in order, and not during a partition."""
        world, blocked = self._network.world, self._network.up if direction == "up" else self._network.down
        when = max(self._last[direction], world.now + self._network.delay_s(self.node) + self.late_s)
        self._last[direction] = when

        def attempt() -> None:
            windows = blocked.get(self.node), self._network.split.get((self.node, self._address))
            if (window := next((one for one in windows if one is not None and one.active()), None)) is not None:
                self._last[direction] = max(self._last[direction], window.until)
                world.at(window.until, attempt)
            else:
                call()

        world.at(when, attempt)
