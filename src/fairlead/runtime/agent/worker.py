"""One worker as its agent sees it: a shim to watch and to signal, a lease page, and an exit to find. The shim is the agent's
child or, after a restart of the agent, a process that is known by pid and start time."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from fairlead.client.lease_page import PAGE
from fairlead.runtime.agent.lease_file import LeaseFile, WorkerStatus
from fairlead.runtime.agent.processes import (
    Cgroup,
    Process,
    descendants,
    has_ended,
    is_alive,
    kill_all,
    open_pidfd,
    send_signal,
    with_variable,
)
from fairlead.runtime.agent.shim import END, EXIT, NEVER_BEGAN, Exit
from fairlead.runtime.agent.stored_records import Nanoseconds, Pid, read_exit
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
    def strays(self) -> list[Process]:
        """The processes that were started with its lease page, as far as they are known without a control group."""
        return with_variable(f"{PAGE}={self.page}")


def start_shim(directory: Path) -> subprocess.Popen[bytes]:
    """A shim that waits for its launch spec."""
    with open(directory / "shim.err", "wb") as errors:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "fairlead.runtime.agent.shim"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
        )


class AgentWorker:
    """A worker that this agent (`child` is its shim) or an earlier one has started; `lease` is None if its page is gone."""

    def __init__(
        self,
        record: WorkerRecord,
        directory: Path,
        lease: LeaseFile | None,
        child: subprocess.Popen[bytes] | None,
        same_boot: bool = True,
    ) -> None:
        self.record, self.directory = record, directory
        self.exit: Exit | None = None
        self.ended_at = 0.0  # Unix time of its end, where it is known
        self._shim = Process(record.pid, record.started)
        self._lease, self._child = lease, child
        self._lost_at_reboot = not same_boot
        self.handle = open_pidfd(record.pid, record.started) if same_boot else None  # readable when the worker ends
        self._kill_since: float | None = None
        self._cgroup = Cgroup(Path(record.cgroup)) if record.cgroup and same_boot else None

    @property
    def status(self) -> WorkerStatus:
        return self._lease.status() if self._lease is not None else WorkerStatus()

    def check_exit(self) -> None:
        """Find out, without waiting, whether and how it has ended: all its processes must be dead."""
        if self.exit is not None or not self._shim_has_ended():
            return
        found = read_exit(self.directory / EXIT)
        if self._child is not None and found is not None and found.status != self._child.returncode:
            found = None  # its shim did not write this
        if (found is not None and self._child is not None) or self._strays_are_dead():
            self.exit = found or self._exit_by_shim()
            self.ended_at = self._recorded_at() if found is not None else time.time() if self._child is not None else 0.0
        if self.exit is not None and self._cgroup is not None:
            self._cgroup.remove()

    def revoke(self) -> None:
        """Revoke its lease. If the page cannot be written, the worker is killed after its grace period."""
        with contextlib.suppress(OSError):
            if self._lease is not None:
                self._lease.revoke()

    def extend(self, renewal: int, max_steps: int, max_s: float) -> None:
        if self._lease is not None:
            self._lease.extend(renewal, max_steps, max_s)

    def route(self, routing: RequestRouting) -> None:
        if self._lease is not None and self.record.rank < len(routing.shares):
            self._lease.route(routing.batch, routing.rate, routing.shares[self.record.rank])

    def terminate(self) -> None:
        if self.exit is None:
            send_signal(self._shim, signal.SIGTERM)

    def kill(self, now: float, patience_s: float) -> None:
        """Kill it; to be repeated until it has ended. The shim kills and records it; a shim that does not is killed last."""
        if self.exit is not None:
            return
        if self._kill_since is None:
            self._kill_since = now
            send_signal(self._shim, END)
        elif now - self._kill_since > patience_s:
            if self._cgroup is not None:
                self._cgroup.kill()
            elif kill_all(lambda: descendants(self._shim.pid, self._shim.started)):
                send_signal(self._shim, signal.SIGKILL)

    def close(self) -> None:
        """Release the files; the worker keeps running."""
        if self._lease is not None:
            self._lease.close()
        if self.handle is not None:
            os.close(self.handle)
            self.handle = None

    def _shim_has_ended(self) -> bool:
        if self._lost_at_reboot:
            return True
        if self._child is not None:
            return self._child.poll() is not None
        if self.handle is not None:
            return has_ended(self.handle) and _reaped(self.handle)
        return not is_alive(self._shim.pid, self._shim.started)

    def _recorded_at(self) -> float:
        """Unix time of the exit record; now, if it is gone again."""
        try:
            return max(0.0, (self.directory / EXIT).lstat().st_mtime)
        except OSError:
            return time.time()

    def _strays_are_dead(self) -> bool:
        """Kill what a dead shim has left."""
        if self._cgroup is not None:
            return self._cgroup.kill()
        return kill_all(lambda: self.record.strays)

    def _exit_by_shim(self) -> Exit:
        now_ns = time.monotonic_ns()
        status = self._child.returncode if self._child is not None else None
        if status is None:
            return Exit(-signal.SIGKILL, now_ns, "its supervisor process ended, so its exit status is not known")
        if status == -END:
            return Exit(-signal.SIGKILL, now_ns)
        if status == NEVER_BEGAN:
            return Exit(status, now_ns, "it was never started")
        if status == -signal.SIGKILL:
            return Exit(status, now_ns, "its supervisor process was killed")
        return Exit(128 - status if status > 128 else status, now_ns)


def _reaped(handle: int) -> bool:
    """Reap a shim that an earlier supervisor in this same process has started."""
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_PIDFD, handle, os.WEXITED | os.WNOHANG)
    return True
