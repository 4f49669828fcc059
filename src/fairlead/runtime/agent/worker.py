"""One worker as its agent sees it: a shim to watch and to signal, a lease page, and an exit to find."""

from __future__ import annotations

import contextlib
import signal
from dataclasses import dataclass
from pathlib import Path

from fairlead.client.lease_page import PAGE
from fairlead.runtime.agent.lease_file import LeaseFile, WorkerStatus
from fairlead.runtime.agent.processes import END, STOP, Cgroup, ShimProcess
from fairlead.runtime.agent.shim import EXIT, NEVER_BEGAN, Exit
from fairlead.runtime.agent.stored_records import Nanoseconds, Pid, read_exit
from fairlead.runtime.host import Host
from fairlead.runtime.protocol.orders import Rank, RequestRouting, Text

REPORTS = "reports"
LEASE = "lease"


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """What the agent stores on disk about a worker."""

    rank: Rank
    accelerator: Rank
    pid: Pid  # its shim's; 0: not known
    started: Nanoseconds
    page: Text
    cgroup: Text = ""  # its control group, if it has one

    @property
    def variable(self) -> str:
        """A variable that all its processes have, as far as they are known without a control group."""
        return f"{PAGE}={self.page}"


class AgentWorker:
    """A worker that this agent or an earlier one has started. `lease` is None if its page is gone, `shim` if the machine was
    restarted since."""

    def __init__(
        self, record: WorkerRecord, directory: Path, lease: LeaseFile | None, shim: ShimProcess | None, host: Host
    ) -> None:
        self.record, self.directory, self.shim = record, directory, shim
        self.exit: Exit | None = None
        self.ended_at = 0.0  # Unix time of its end, where it is known
        self._lease, self._host = lease, host
        self._kill_since: float | None = None
        self._cgroup = Cgroup(Path(record.cgroup)) if record.cgroup and shim is not None else None

    @property
    def status(self) -> WorkerStatus:
        return self._lease.status() if self._lease is not None else WorkerStatus()

    @property
    def page_is_lost(self) -> bool:
        """Whether its `status` is not known: the machine was restarted, and its page is gone or damaged."""
        return self._lease is None or self._lease.is_lost

    def check_exit(self) -> None:
        """Find out, without waiting, whether and how it has ended: all its processes must be dead."""
        if self.exit is not None or not (self.shim is None or self.shim.has_ended()):
            return
        found = read_exit(self.directory / EXIT)
        is_child = self.shim is not None and self.shim.is_child
        if is_child and found is not None and self.shim is not None and found.status != self.shim.status:
            found = None  # its shim did not write this
        if (found is not None and is_child) or self._strays_are_dead():
            self.exit = found or self._exit_by_shim()
            self.ended_at = self._recorded_at() if found is not None else self._host.time() if is_child else 0.0
        if self.exit is not None and self._cgroup is not None:
            self._cgroup.remove()

    def revoke(self) -> None:
        """Revoke its lease. If the page cannot be written, the worker is killed after its grace period."""
        with contextlib.suppress(OSError):
            if self._lease is not None:
                self._lease.revoke()

    def extend(self, renewal: int, max_steps: int, max_s: float) -> None:
        with contextlib.suppress(OSError):  # the worker may have truncated its page, and filled the disk
            if self._lease is not None:
                self._lease.extend(renewal, max_steps, max_s)

    def route(self, routing: RequestRouting) -> None:
        with contextlib.suppress(OSError):
            if self._lease is not None and self.record.rank < len(routing.shares):
                self._lease.route(routing.batch, routing.rate, routing.shares[self.record.rank])

    def terminate(self) -> None:
        if self.exit is None and self.shim is not None:
            self.shim.send_signal(STOP)

    def kill(self, now: float, patience_s: float) -> None:
        """Kill it; to be repeated until it has ended. The shim kills and records it; a shim that does not is killed last."""
        if self.exit is not None or self.shim is None:
            return
        if self._kill_since is None:
            self._kill_since = now
            self.shim.send_signal(END)
        elif now - self._kill_since > patience_s:
            if self._cgroup is not None:
                self._cgroup.kill()
            elif self.shim.kill_descendants():
                self.shim.send_signal(signal.SIGKILL)

    def close(self) -> None:
        """Release the files; the worker keeps running."""
        if self._lease is not None:
            self._lease.close()
        if self.shim is not None:
            self.shim.close()

    def _recorded_at(self) -> float:
        """Unix time of the exit record; now, if it is gone again."""
        try:
            return max(0.0, (self.directory / EXIT).lstat().st_mtime)
        except OSError:
            return self._host.time()

    def _strays_are_dead(self) -> bool:
        """Kill what a dead shim has left."""
        if self._cgroup is not None and not self._cgroup.kill():
            return False  # those of a container may be outside of it
        return self.shim is None or self.shim.kill_strays(self.record.variable)

    def _exit_by_shim(self) -> Exit:
        now_ns = int(self._host.monotonic() * 1e9)
        status = self.shim.status if self.shim is not None else None
        if status is None:
            return Exit(-signal.SIGKILL, now_ns, "its supervisor process ended, so its exit status is not known")
        if status in (-END, -signal.SIGUSR1):  # before it began; SIGUSR1: of a former version
            return Exit(-signal.SIGKILL, now_ns)
        if status == NEVER_BEGAN:
            return Exit(status, now_ns, "it was never started")
        if status == -signal.SIGKILL:
            return Exit(status, now_ns, "its supervisor process was killed")
        return Exit(128 - status if status > 128 else status, now_ns)
