"""The streams of agents: of all launches on a node, or of one part of a launch, which an engine runs. Also what a hub offers
to the parts that it is made of."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from fairlead.core.cluster import Cluster, Node
from fairlead.runtime.control.cluster_backend import ClusterBackend
from fairlead.runtime.control.code_store import CodeStore
from fairlead.runtime.control.tokens import Bearer, Role
from fairlead.runtime.drivers.base import LaunchKey
from fairlead.runtime.host import Host
from fairlead.runtime.protocol import messages as ms
from fairlead.runtime.protocol import orders as od

ANY_AGENT = Bearer(Role.AGENT, "")  # of a hub that asks for no token
Place: TypeAlias = tuple[int, int, int]  # a node, a job and a generation


@dataclass(eq=False)
class AgentSession:
    """One agent's stream. `out` sends messages in order; None ends the stream."""

    node: int
    out: Callable[[ms.FromControl | None], None]
    bearer: Bearer = ANY_AGENT
    incarnation: int = 0  # that was issued to its agent; 0: an agent of a former version counts by itself


@dataclass(eq=False)
class TrackedPart:
    """A part of a launch on one machine of the engine."""

    key: LaunchKey
    node: int
    launch: od.Launch | None = None  # None: from before a restart
    given: bool = False  # to its agent; from before a restart: perhaps
    since: float = math.inf  # when the engine accepted it
    starts: int = 1  # how often the engine was asked for it: objects that disappeared may still have agents
    listed: bool = False  # by the engine, since it accepted it
    gathered: float = math.inf  # when its launch is started, with the parts that have arrived by then; infinity: it was
    until: float = math.inf  # when it is given up: a lease and a grace after its agent was last heard
    session: PartSession | None = None
    identity: str = ""  # of its agent
    address: str = ""
    ended: bool = False
    reason: str = ""  # why it does not run yet, in the engine's words
    own_fault: bool = False  # and that is because of what its job asks for
    prepared: float = -math.inf  # when the engine last said that its machine prepares it
    again: dict[type, od.Order] = field(default_factory=dict)  # for an agent that connects again

    @property
    def place(self) -> Place:
        return self.node, self.key.job, self.key.generation

    @property
    def leads(self) -> bool:
        """Whether it has the first worker of its gang."""
        return self.launch is not None and 0 in self.launch.ranks


class PartOwner(Protocol):
    """An engine's side of the streams of its parts."""

    def receive(self, session: PartSession, message: ms.Message) -> bool: ...

    def leave(self, session: PartSession) -> None: ...


@dataclass(eq=False)
class PartSession:
    """The stream of the agent of one part."""

    engine: PartOwner
    part: TrackedPart
    out: Callable[[ms.FromControl | None], None]

    @property
    def node(self) -> int:
        return self.part.node

    @property
    def open(self) -> bool:
        """Whether it is the present stream of its part."""
        return self.part.session is self


class NodeOwners(Protocol):
    """Which engine has a node."""

    def name_for(self, node: int, spec: Node) -> str: ...

    def named(self, engine: str) -> int: ...


class Transfers(Protocol):
    """Logs and code on the agents' streams."""

    def receive(self, session: AgentSession | PartSession, message: ms.Message) -> None: ...


class HubServices(Protocol):
    """What engines and transfers need of the hub of all agents."""

    lease_s: float
    grace_s: float
    host: Host
    code: CodeStore | None
    journal: str
    backend: ClusterBackend
    drained_by: Callable[[int], str]

    @property
    def post(self) -> Callable[[Callable[[], None]], object]: ...

    @property
    def may_renew(self) -> Callable[[], bool]: ...

    @property
    def cluster(self) -> Cluster: ...

    @property
    def engines(self) -> NodeOwners: ...

    @property
    def transfers(self) -> Transfers: ...

    def take_over(self, node: int) -> float: ...

    def is_open(self, session: AgentSession | PartSession) -> bool: ...

    def is_kept(self, node: int) -> bool: ...
