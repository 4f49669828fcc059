"""Nodes of a simulated cluster that come and go while jobs run. New machines join by themselves. An operator drains a node and
removes it, as `fairlead nodes remove --drain` does, and asks again if the request is lost with its control plane."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from fairlead.core import events as ev
from fairlead.core.cluster import Drain
from fairlead.runtime.control.control_plane import ControlPlane
from fairlead.testing.runtime_simulation.simulated_database import SimulatedJournal
from fairlead.testing.runtime_simulation.virtual_world import VirtualWorld

_AGAIN_S = 3.0


class JoiningNode(Protocol):
    """A machine with an agent."""

    name: str

    def start(self) -> None: ...

    def remove(self) -> None: ...


class NodeOperator:
    """Adds and removes nodes; `plane` returns a control plane that users reach, if there is one."""

    def __init__(self, world: VirtualWorld, plane: Callable[[], ControlPlane | None]) -> None:
        self._world, self._plane = world, plane

    def add_at(self, when_s: float, node: JoiningNode, stays_s: float) -> None:
        """Start the agent of a new node, and remove the node after a while, with its machine."""
        self._world.at(when_s, node.start)
        self.remove_at(when_s + stays_s, node.name, node.remove)

    def remove_at(self, when_s: float, name: str, then: Callable[[], None] = lambda: None) -> None:
        """Remove a node. If its agent still runs, it is refused, and may join again with an agent token."""
        self._world.at(when_s, partial(self._remove, name, then))

    def _remove(self, name: str, then: Callable[[], None]) -> None:
        plane = self._plane()
        number = plane.cluster.number_of_node.get(name) if plane is not None else None
        if plane is not None and number is None and not _has_unwritten(plane):  # it has never joined, or is removed
            then()
            return
        done = False

        def answer(events: Sequence[ev.Event]) -> None:
            nonlocal done
            if events and not done:
                done = True
                self._world.note("operator", f"node {name} is removed")
                then()

        if plane is not None and number is not None:
            plane.backend.drain(number, False, drain=Drain("it leaves"))
            plane.backend.remove_node(number, answer)
        self._world.after(_AGAIN_S, lambda: None if done else self._remove(name, then))


def _has_unwritten(plane: ControlPlane) -> bool:
    """Whether the control plane may still lose what it shows: an operator believes in a removal when the database has it."""
    assert isinstance(plane.journal, SimulatedJournal)
    return bool(plane.journal.uncommitted())
