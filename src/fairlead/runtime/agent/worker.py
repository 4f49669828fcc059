"""One worker as its agent sees it: a stub to watch and to signal, a lease page, and an exit to find. The stub is the agent's
child, or, after the agent was started again, a stranger that is known by pid and start time."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from fairlead.client.lease_page import PAGE
from fairlead.files import read_json
from fairlead.runtime.agent.launch_records import WorkerRecord
from fairlead.runtime.agent.lease_file import LeaseFile, WorkerStatus
from fairlead.runtime.agent.processes import Cgroup, Process, descendants, end, has_ended, is_there, send, watch, with_variable
from fairlead.runtime.agent.shim import END, EXIT, NEVER_BEGAN, Exit
from fairlead.runtime.protocol.orders import RequestRouting

REPORTS = "reports"
LEASE = "lease"


def start_stub(desk: Path) -> subprocess.Popen[bytes]:
    """A stub that waits for its errand."""
    with open(desk / "stub.err", "wb") as complaints:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "fairlead.runtime.agent.shim"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=complaints,
            start_new_session=True,
        )


class Worker:
    def __init__(
        self,
        record: WorkerRecord,
        desk: Path,
        lease: LeaseFile | None,
        child: subprocess.Popen[bytes] | None,
        boot: bool = True,
    ) -> None:
        """`boot`: whether the machine has been up since the worker was started."""
        self.record, self.desk = record, desk
        self.exit: Exit | None = None
        self._stub = Process(record.pid, record.started)
        self._lease, self._child = lease, child
        self._gone = not boot
        self._handle = watch(record.pid, record.started) if boot else None
        self._ending_since: float | None = None
        self._cgroup = Cgroup(Path(record.cgroup)) if record.cgroup and boot else None

    @property
    def handle(self) -> int | None:
        """Becomes readable when the worker ends."""
        return self._handle

    @property
    def standing(self) -> WorkerStatus:
        return self._lease.standing() if self._lease is not None else WorkerStatus()

    def look(self) -> None:
        """Finds out, without waiting, whether it has ended and how. It has not as long as anything of it lives."""
        if self.exit is not None or not self._stub_has_ended():
            return
        said = read_json(self.desk / EXIT)
        if isinstance(said, dict):
            self.exit = Exit(**said)
        elif self._strays_are_dead():
            self.exit = self._exit_by_stub()
        if self.exit is not None and self._cgroup is not None:
            self._cgroup.remove()

    def revoke(self) -> None:
        # Where its page cannot be written it is not told, and is killed after its grace.
        with contextlib.suppress(OSError):
            if self._lease is not None:
                self._lease.revoke()

    def extend(self, renewal: int, max_steps: int, max_s: float) -> None:
        if self._lease is not None:
            self._lease.extend(renewal, max_steps, max_s)

    def route(self, routed: RequestRouting) -> None:
        if self._lease is not None and self.record.rank < len(routed.shares):
            self._lease.route(routed.batch, routed.rate, routed.shares[self.record.rank])

    def ask(self) -> None:
        if self.exit is None:
            send(self._stub, signal.SIGTERM)

    def end(self, now: float, patience_s: float) -> None:
        """To be repeated until it has ended. It is the stub that kills, and says so; one that does not is killed too, last."""
        if self.exit is not None:
            return
        if self._ending_since is None:
            self._ending_since = now
            send(self._stub, END)
        elif now - self._ending_since > patience_s:
            if self._cgroup is not None:
                self._cgroup.kill()
            elif end(lambda: descendants(self._stub.pid, self._stub.started)):
                send(self._stub, signal.SIGKILL)

    def close(self) -> None:
        if self._lease is not None:
            self._lease.close()
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def _stub_has_ended(self) -> bool:
        if self._gone:
            return True
        if self._child is not None:
            return self._child.poll() is not None
        if self._handle is not None:
            return has_ended(self._handle) and _reaped(self._handle)
        return not is_there(self._stub.pid, self._stub.started)

    def _strays_are_dead(self) -> bool:
        """Of a stub that could not see to it itself."""
        if self._cgroup is not None:
            return self._cgroup.kill()
        return end(lambda: with_variable(f"{PAGE}={self.record.page}"))

    def _exit_by_stub(self) -> Exit:
        now_ns = time.monotonic_ns()
        status = self._child.returncode if self._child is not None else None
        if status is None:
            return Exit(-signal.SIGKILL, now_ns, "its stub is gone, and how it ended is not known")
        if status == -END:
            return Exit(-signal.SIGKILL, now_ns)
        if status == NEVER_BEGAN:
            return Exit(status, now_ns, "it was never begun")
        if status == -signal.SIGKILL:
            return Exit(status, now_ns, "its stub was killed")
        return Exit(128 - status if status > 128 else status, now_ns)


def _reaped(handle: int) -> bool:
    """A stub that was started by an earlier supervisor in this very process is ours to reap."""
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_PIDFD, handle, os.WEXITED | os.WNOHANG)
    return True
