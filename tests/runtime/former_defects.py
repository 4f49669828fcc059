"""Defects that were fixed, to be put back one at a time: the simulation of the runtime must find each of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from fairlead.runtime.agent import shim
from fairlead.runtime.agent.supervisor import Supervisor
from fairlead.runtime.control.agent_hub import AgentHub
from fairlead.runtime.control.journal_term import FormerControlPlane, JournalTerm
from fairlead.runtime.control.tokens import Bearer
from fairlead.runtime.protocol.messages import OrderBatch
from fairlead.runtime.protocol.orders import Ended, Launch


def _obey_old_orders(patch: pytest.MonkeyPatch) -> None:
    """A resumed agent, and a resumed shim, start what was ordered before their pause."""
    launch = Supervisor.launch

    def obey(self: Supervisor, order: Launch) -> Ended | None:
        clock, self._clock = self._clock, lambda: -math.inf
        try:
            return launch(self, order)
        finally:
            self._clock = clock

    patch.setattr(shim._FencingWatch, "has_passed", lambda self: False)
    patch.setattr(Supervisor, "launch", obey)


def _admit_any_agent(patch: pytest.MonkeyPatch) -> None:
    """Agents have no identity: two machines have one node name."""
    welcome = AgentHub.welcome
    patch.setattr(AgentHub, "welcome", lambda self, hello, out, bearer: welcome(self, replace(hello, identity=""), out, bearer))


def _forget_roots(patch: pytest.MonkeyPatch) -> None:
    """A credential does not know the root of its agent: after a restart of the control plane, any root may have the node."""
    patch.setattr(Bearer, "is_for", lambda self, identity: True)


def _fail_open(patch: pytest.MonkeyPatch) -> None:
    """A fencing deadline that cannot be read is no deadline."""
    times = shim.fencing_times
    patch.setattr(shim, "fencing_times", lambda path: times(path) or (math.inf, math.inf))


def _forget_the_signal(patch: pytest.MonkeyPatch) -> None:
    """A shim does not record that it sent SIGTERM."""
    leave = shim._leave
    patch.setattr(shim, "_leave", lambda directory, draft, exit: leave(directory, draft, exit._replace(asked_ns=0)))


def _no_fencing(patch: pytest.MonkeyPatch) -> None:
    """Shims do not watch the fencing deadline."""
    patch.setattr(shim._FencingWatch, "check", lambda self: None)


def _renew_without_the_journal(patch: pytest.MonkeyPatch) -> None:
    """A control plane renews leases although it cannot confirm that the journal is its own."""
    patch.setattr(JournalTerm, "may_renew", lambda self: True)


def _forget_former_renewals(patch: pytest.MonkeyPatch) -> None:
    """A control plane that takes over does not wait for leases that the former one may have renewed."""
    patch.setattr(FormerControlPlane, "silence_s", lambda self, known_s, lease_s, grace_s: known_s)


def _send_to_any_session(patch: pytest.MonkeyPatch) -> None:
    """An order goes to the agent that is connected, whichever the loop knows of."""
    send = lambda self, node, order: self.post(lambda: self._put(node, OrderBatch((order,))))  # noqa: E731
    patch.setattr(AgentHub, "send", send)


@dataclass(frozen=True)
class FormerDefect:
    """How a defect is put back, and the kinds of faults that show it soonest."""

    name: str
    put_back: Callable[[pytest.MonkeyPatch], None]
    kinds: tuple[str, ...] = ()

    @property
    def what(self) -> str:
        return (self.put_back.__doc__ or "").partition("\n")[0]


DEFECTS = [
    FormerDefect("old-orders", _obey_old_orders, ("machine-paused", "agent-paused")),
    FormerDefect("any-agent", _admit_any_agent, ("second-agent",)),
    FormerDefect("forgotten-roots", _forget_roots, ("control-plane-killed", "second-agent")),
    FormerDefect("open-deadline", _fail_open, ("deadline-damaged", "machine-paused")),
    FormerDefect("forgotten-signal", _forget_the_signal, ("agent-killed", "agent-gone")),
    FormerDefect("no-fencing", _no_fencing, ("agent-killed", "agent-gone", "agent-paused")),
    FormerDefect("renewal-without-journal", _renew_without_the_journal, ("control-plane-cut-off", "control-plane-paused")),
    FormerDefect("forgotten-renewals", _forget_former_renewals, ("control-plane-cut-off", "control-plane-paused")),
    FormerDefect("any-session", _send_to_any_session),
]
