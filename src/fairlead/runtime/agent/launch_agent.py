"""The agent of one launch, which an engine such as Slurm or Kubernetes has started on one of its machines. It gets the launch
from the control plane, prints the output of its workers, and ends when the end of the launch is acknowledged."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace

from fairlead.core.errors import FairleadError
from fairlead.runtime.agent.agent_service import Agent
from fairlead.runtime.agent.agent_stream import AgentStream
from fairlead.runtime.protocol import messages as ms
from fairlead.runtime.protocol import orders as od

_PRINT_BYTES = 1 << 16  # at once, of each worker


@dataclass(eq=False)
class LaunchAgent(Agent):
    """An agent for one launch. `failed` says how its launch ended."""

    launch: tuple[int, int] = (0, 0)
    failed: bool = field(default=False, init=False)

    is_last_reader = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._printed: dict[int, int] = {}  # bytes, by rank
        self._ranks: tuple[int, ...] = ()
        self._over = False

    def _hello(self) -> ms.Hello:
        return replace(super()._hello(), launch=self.launch, keeps_credential=False)

    def _receive(self, stream: AgentStream) -> None:
        super()._receive(stream)
        if self._over and not self._unacknowledged:
            self.leaving.set()

    def _carry_out(self, order: od.Order) -> od.Ended | None:
        if isinstance(order, od.Launch):
            self._ranks = order.ranks
        return super()._carry_out(order)

    def _batch(self, reports: list[od.Report]) -> ms.ReportBatch:
        for one in reports:
            if isinstance(one, od.Ended):
                self._over, self.failed = True, bool(one.code) and not one.yielded
        return super()._batch(reports)

    def _poll(self, *, connected: bool = True) -> list[od.Report]:
        reports = super()._poll(connected=connected)
        self._print()
        return reports

    def _print(self) -> None:
        """Print what the workers have written since the last call; of several, each line begins with the rank."""
        for rank in self._ranks:
            while True:
                offset = self._printed.get(rank, 0)
                try:
                    found = self.supervisor.read_log(*self.launch, rank, offset, _PRINT_BYTES)
                except FairleadError:  # it has not begun
                    break
                data = found.data
                if len(self._ranks) > 1:  # whole lines, unless one is very long
                    data = data[: data.rfind(b"\n") + 1] or (data if len(data) == _PRINT_BYTES or self._over else b"")
                if not data:
                    break
                self._printed[rank] = found.offset + len(data)
                text = data if len(self._ranks) == 1 else b"".join(b"[%d] " % rank + line for line in data.splitlines(True))
                sys.stdout.buffer.write(text)
                sys.stdout.buffer.flush()
