"""The engines of a control plane: which of them has a node, and all of them together."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from fairlead.core.cluster import Node
from fairlead.runtime.control.engine_hub import EngineHub
from fairlead.runtime.drivers.base import LaunchKey
from fairlead.runtime.protocol import messages as ms


class Engines:
    """The engines that start agents of single launches. There may be none: then agents of nodes do everything."""

    def __init__(self, engines: Sequence[EngineHub] = ()) -> None:
        self.all = tuple(engines)

    def of(self, node: int) -> EngineHub | None:
        """Return the engine that has a node; None: the node has an agent of its own."""
        owners = [engine for engine in self.all if engine.owns(node)]
        return next((engine for engine in owners if node in engine.nodes.up), owners[0] if owners else None)

    def name_for(self, node: int, spec: Node) -> str:
        """Return the name of the engine that has a node, also of one that this control plane does not use; empty: none."""
        engine = self.of(node)
        return spec.engine if engine is None else engine.driver.name

    def named(self, engine: str) -> int:
        """Return how many engines have this name: two clusters of one kind may be used."""
        return sum(one.driver.name == engine for one in self.all)

    def check_agent(self, node: int, spec: Node) -> None:
        """Refuse an agent for all launches of a node that is an engine's machine. Raises `BadMessage`."""
        if engine := self.name_for(node, spec):
            raise ms.BadMessage(
                f"node {spec.name!r} is a machine of {engine}, which starts its agents: pass another --node; if {engine} does "
                f"not have it any more, run 'fairlead nodes remove {spec.name}'"
            )

    def for_agent(self, hello: ms.Hello, node: int) -> EngineHub:
        """Return the engine whose agent this is: that of its machine, or one that has not answered since a restart."""
        if (owner := self.of(node)) is not None:
            return owner
        for engine in self.all:
            if not engine.nodes.machines or hello.node in engine.nodes.machines:
                return engine
        raise ms.BadMessage(f"no engine of this control plane has a machine {hello.node!r}: check 'serve --engine'")

    @property
    def connected(self) -> frozenset[int]:
        """Nodes on which launches can start."""
        return frozenset[int]().union(*(engine.connected for engine in self.all))

    def why_not_begun(self, job: int) -> dict[str, str]:
        """Why parts of a running job have not begun, by machine."""
        return {machine: why for engine in self.all for machine, why in engine.not_begun(job).items()}

    @property
    def problems(self) -> list[str]:
        """Why engines are unavailable."""
        return [engine.problem for engine in self.all if engine.problem]

    def expire(self) -> float:
        """Give up parts of launches whose agents are silent. Returns in how many seconds to call it again."""
        return min((engine.expire() for engine in self.all), default=math.inf)

    def adopt(self, node: int) -> bool:
        """Keep a node whose engine is away, if agents of launches there are connected."""
        return any(engine.adopt(node) for engine in self.all)

    def request_output(self, request: ms.LogRequest, answer: Callable[[bytes | None], None]) -> bool:
        """Ask for the log of a worker whose agent has ended; False if no engine has it. An engine's thread answers."""
        for engine in self.all:
            if (key := engine.output_of(request.job, request.generation, request.rank)) is not None:
                engine.thread.read(key, request.offset, request.limit, answer)
                return True
        return False

    def close(self) -> None:
        """End all streams."""
        for engine in self.all:
            engine.close()


def launch_key(journal: str, hello: ms.Hello) -> LaunchKey:
    """Return the part of a launch that an agent says it is for."""
    return LaunchKey(journal, *(hello.launch or (0, 0)), hello.node)
