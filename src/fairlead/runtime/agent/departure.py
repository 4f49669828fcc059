"""How an agent leaves its node: its jobs save and end, their ends are reported, and then the control plane does not wait for
the agent's lease. It decides by the time that it is given, and sends nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from fairlead.runtime.agent.shim import SETTLE_S
from fairlead.runtime.agent.supervisor import Supervisor
from fairlead.runtime.protocol.orders import Ended, Report

SINCE_S = 1.0  # an end that is reported after a signal to the agent may have been caused by it if it is not older than this
ANSWER_WITHIN_S = 5.0  # how long the control plane has to acknowledge the last ends
RECONNECT_WITHIN_S = 1.0  # how long an agent without a connection tries to report them
KILL_MARGIN_S = 5.0  # before the machine is taken away, for jobs that have to be killed and for reports


@dataclass(eq=False)
class Departure:
    """The departure of one agent. `until`: Unix time at which the machine is taken away. `grace_s`: the most that jobs get to
    save; None: each has its own. `on_end` is called with the name and the end of each job."""

    supervisor: Supervisor
    until: float = math.inf
    grace_s: float | None = None
    reconnect_s: float = RECONNECT_WITHIN_S
    on_end: Callable[[str, Ended], None] = lambda name, ended: None
    is_acknowledged: bool = False  # whether the control plane knows of it, and of all ends
    _began: float | None = None  # monotonic
    _ended: float | None = None  # when nothing ran any more
    _asked: bool = False  # jobs to stop
    _names: dict[tuple[int, int], str] = field(default_factory=dict)

    @property
    def has_begun(self) -> bool:
        return self._began is not None

    def left_s(self, time: float) -> float:
        """Seconds until the machine is taken away, for the control plane; 0: not known."""
        return max(0.001, self.until - time) if self.until < math.inf else 0.0

    def is_due(self, time: float) -> bool:
        """Whether jobs need the rest of the machine's time to save."""
        if self.until == math.inf:
            return False
        longest_s = max((launch.record.grace_s for launch in self.supervisor.running()), default=0.0)
        grace_s = longest_s if self.grace_s is None else min(longest_s, self.grace_s)
        return time >= self.until - grace_s - KILL_MARGIN_S

    def begin(self, now: float) -> None:
        """From now on nothing is started here."""
        self._began = now
        self.supervisor.leaving = True
        self._names = {launch.key: launch.record.name for launch in self.supervisor.running()}

    def advance(self, now: float) -> None:
        """Ask jobs to stop when it is time. A signal that reached this agent may be about to reach them too: a job that gets it
        a second time could stop saving."""
        assert self._began is not None
        if not self._asked and now >= self._began + SETTLE_S:
            self._asked = True
            self.supervisor.stop_all(self.grace_s, since=self._began - SINCE_S)
        if self._ended is None and not self.supervisor.running():
            self._ended = now

    def record(self, reports: list[Report]) -> None:
        """Call `on_end` for all ends among reports."""
        for report in reports if self.has_begun else ():
            if isinstance(report, Ended):
                self.on_end(self._names.get(report.key, f"job {report.job}"), report)

    def is_over(self, now: float, *, connected: bool, reported: bool) -> bool:
        """Whether nothing runs, and all ends are `reported`, or there was time enough to do so."""
        if self._ended is None:
            return False
        return (connected and reported) or now >= self._ended + (ANSWER_WITHIN_S if connected else self.reconnect_s)
