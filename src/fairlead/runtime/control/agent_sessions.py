"""The streams of agents: of all launches on a node, or of one part of a launch, which an engine runs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from fairlead.runtime.control.tokens import Bearer, Role
from fairlead.runtime.drivers.base import LaunchKey
from fairlead.runtime.protocol import messages as ms
from fairlead.runtime.protocol import orders as od

if TYPE_CHECKING:
    from fairlead.runtime.control.engine_hub import EngineHub

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


@dataclass(eq=False)
class PartSession:
    """The stream of the agent of one part."""

    engine: EngineHub
    part: TrackedPart
    out: Callable[[ms.FromControl | None], None]

    @property
    def node(self) -> int:
        return self.part.node

    @property
    def open(self) -> bool:
        """Whether it is the present stream of its part."""
        return self.part.session is self
