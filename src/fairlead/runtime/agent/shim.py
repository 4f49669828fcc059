"""The process between an agent and a worker: `python -m fairlead.runtime.agent.shim`. It leads the worker's session, starts the
command as a process group, writes its output to the log, adopts its orphans, and records how it ended. All of this continues
when the agent dies. Standard library only, and named tuples as values, so that it starts fast. It reads its launch spec from
standard input and starts nothing if that is incomplete, because its agent died.

Its agent sends `STOP`, for SIGTERM to the process group, and `END`, which kills the command and all its descendants. Other
signals end no shim. An engine such as Slurm sends SIGTERM to the agent, all shims and all jobs at once: a shim records that,
and does not pass it on. So that the order in which they arrive does not matter, a shim waits a moment for a signal before it
says that its command ended by itself. SIGUSR1 has no effect: commands start with it ignored."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import math
import os
import selectors
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from fairlead.runtime.agent.fencing_deadline import fencing_times
from fairlead.runtime.agent.kept_outputs import DIRECTORY, keep_outputs, with_rights_of
from fairlead.runtime.agent.processes import (
    END,
    SHIM_SIGNALS,
    STOP,
    closed_folder,
    descendants,
    find_process,
    kill_all,
    remove_container,
    with_variable,
)
from fairlead.runtime.agent.worker_logs import LogWriter

NEVER_BEGAN, CANNOT_START = 125, 127
EXIT = "exit.json"
LOG = "log"

CUT_OFF = "killed because its agent was stopped or disconnected for too long"
TOO_LATE = "not started, because its agent was stopped or disconnected for too long"

_PERMANENT = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.ENOEXEC, errno.ELOOP, errno.ENAMETOOLONG, errno.E2BIG}
)
"""Errors of a command that can never be executed; others may pass."""

_OF_THE_NODE = frozenset({errno.ENOMEM, errno.ENFILE, errno.EIO})
"""Errors that the node has, not the job."""

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_RESERVED = 4096
_MAX_SHOWN = 200  # characters of a word in an exit, which must fit into its reserved space
_CHUNK = 1 << 16
_POLL_S = 0.05
_NO_DEADLINE_POLL_S = 10.0  # while no deadline is set
_SAME_SIGNAL_S = 5.0  # an order to stop after a signal to all processes does not signal the command a second time
_STAGE_AT, _ENDED_STAGES = 16 * 8, (3, 4)  # of a lease page, which is slow to import: `Field.STAGE`, yielded and finished
_RUNTIME_FAILED = 125  # exit status of podman and docker
NO_CONTAINER = "exit status 125: its container could not be started, or its command returned 125: see the log of the job"
_PAGE = "FAIRLEAD_LEASE"  # `lease_page.PAGE`, which is slow to import

SETTLE_S = 0.3  # how much later a signal may reach one process than another, if both got it at the same moment


class LaunchSpec(NamedTuple):
    """What a shim has to do. `user` has the ids of a user, its group and its other groups; empty: the agent's own user."""

    command: list[str]
    environment: dict[str, str]
    directory: str  # where the command runs
    work_directory: str  # the worker's, for its log and its exit
    log_bytes: int
    log_files: int
    user: list[int]
    fencing_deadline: str = ""  # path of the file; empty: no deadline
    grace_s: float = 0.0
    cooperative: bool = True
    page: str = ""  # the lease page to revoke at the deadline; empty: none. A worker that has not opened it gets SIGTERM
    output: str = ""  # a file that also gets the output; relative to `directory`
    outputs: list[str] | tuple[()] = ()  # patterns of files to keep when it has ended; empty: none
    deadline: list[float] | tuple[float, float] = (math.inf, math.inf)  # the two times in the file, at the launch
    own_page: str = ""  # the worker's lease page, of any rank, to see whether it has ended by its lease; empty: none
    settle_s: float = SETTLE_S
    remove: list[str] | tuple[()] = ()  # of a container, whose processes may be no descendants: the command that removes it


class Exit(NamedTuple):
    """How a worker ended: its exit status (negative: the signal), and when (monotonic)."""

    code: int
    at_ns: int
    why: str = ""
    lost: int = 0  # bytes of its log that could not be written
    permanent: bool = False  # its command can never be executed: another attempt would fail too
    node_fault: bool = False  # the node could not start it
    asked_ns: int = 0  # when its shim sent SIGTERM; 0: it did not, or the worker had ended before
    signalled_ns: int = 0  # when its shim got SIGTERM or SIGINT, which the worker got too, as from Slurm; 0: it did not

    @property
    def status(self) -> int:
        """The exit status of the shim, as a shell has it; for an agent that is still its parent."""
        return self.code if self.code >= 0 else 128 - self.code


def _main() -> int:
    text = sys.stdin.buffer.read()
    return run_shim(LaunchSpec(**json.loads(text)), ShimSystem()) if text.endswith(b"\n") else NEVER_BEGAN


class ShimSystem:
    """What a shim does with its machine: one command, its process group and all its descendants."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._waking, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        self.received: set[int] = set()  # signals
        # Handlers, not SIG_IGN, which the command would inherit.
        for number in (signal.SIGCHLD, signal.SIGHUP, *SHIM_SIGNALS):
            signal.signal(number, lambda caught, _: self.received.add(caught))
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # for the command too: Slurm's --signal reaches both
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SHIM_SIGNALS)  # its agent has blocked them until now
        myself = find_process(os.getpid())
        assert myself is not None
        self._myself, self._pid = myself, 0
        self._output = -1

    def monotonic(self) -> float:
        return time.monotonic()

    def start(self, spec: LaunchSpec) -> None:
        """Start the command. Raises `OSError`, `ValueError` or `SubprocessError`: it cannot be started."""
        self._output, output_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._output, False)
        user, group, groups = (spec.user[0], spec.user[1], spec.user[2:]) if spec.user else (None, None, None)
        if spec.user:
            with with_rights_of(spec.user):  # otherwise a job could begin inside another user's closed folder
                os.chdir(spec.directory)
        worker = subprocess.Popen(
            spec.command,
            env=spec.environment,
            cwd=None if spec.user else spec.directory,
            stdin=subprocess.DEVNULL,
            stdout=output_end,
            stderr=output_end,
            user=user,
            group=group,
            extra_groups=groups,
            process_group=0,
            # After the change of user, which would reset it.
            preexec_fn=lambda: self._libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0),
        )
        worker.returncode = 0  # the shim reaps it itself, with the orphans
        self._pid = worker.pid
        if spec.user:
            os.chdir("/")  # the shim itself keeps no folder in use
        os.close(output_end)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._output, selectors.EVENT_READ)
        self._selector.register(self._waking, selectors.EVENT_READ)

    def wait(self, timeout_s: float | None) -> None:
        """Return when there is a signal or output, or after the timeout."""
        self._selector.select(timeout_s)
        with contextlib.suppress(BlockingIOError):
            os.read(self._waking, _CHUNK)

    def reap(self) -> int | None:
        """Reap all ended children, also orphans; returns the exit status of the command if it was among them. Its group is
        killed before it is reaped, while its pid cannot be reused."""
        found = None
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return found
            if ended is None:
                return found
            if ended.si_pid == self._pid:
                self.signal_group(signal.SIGKILL)
            _, status = os.waitpid(ended.si_pid, 0)
            if ended.si_pid == self._pid:
                found = os.waitstatus_to_exitcode(status)

    def runs(self) -> bool:
        """Whether the command has not ended by itself; one that has may wait to be reaped."""
        try:
            return os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        except ChildProcessError:
            return False

    def signal_group(self, number: signal.Signals) -> None:
        """Signal the whole group at once, so that a process that forks all the time cannot escape."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._pid, number)

    def kill_descendants(self) -> bool:
        """Kill the command and everything that it has started; True if nothing is left."""
        return kill_all(lambda: descendants(self._myself.pid, self._myself.started))

    def read_output(self) -> bytes | None:
        """New output; None: nothing now; empty: the end."""
        if self._output < 0:
            return b""
        try:
            data = os.read(self._output, _CHUNK)
        except BlockingIOError:
            return None
        if not data:
            self._selector.unregister(self._output)
            self._output = -1
        return data


def run_shim(spec: LaunchSpec, system: ShimSystem) -> int:
    """Run a command to its end and record how it ended. Returns the exit status of the shim."""
    directory = Path(spec.work_directory)
    draft = _reserve(directory / (EXIT + ".new"))
    log = LogWriter(directory / LOG, spec.log_bytes, spec.log_files)
    fencing = _FencingWatch(spec, system)
    try:
        log.copy = _open_as_user(spec) if spec.output else -1
        if fencing.has_passed():  # its agent, or this process, was paused before the command began
            return _leave(directory, draft, Exit(NEVER_BEGAN, _now_ns(system), TOO_LATE))
        if (stopped := _stopped_before(system)) is not None:
            return _leave(directory, draft, stopped)
        system.start(spec)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        why = _why_not_started(spec, error)
        log.write(f"fairlead: {why}\n".encode())
        number = error.errno if isinstance(error, OSError) and not isinstance(error, _OutputError) else 0
        permanent, node_fault = isinstance(error, OSError) and error.errno in _PERMANENT, number in _OF_THE_NODE
        return _leave(directory, draft, Exit(CANNOT_START, _now_ns(system), why, permanent=permanent, node_fault=node_fault))
    exit = _supervise(system, log, fencing, spec)
    log.close()
    if spec.outputs and END not in system.received and not _yielded(spec):
        with contextlib.suppress(OSError, ValueError):
            keep_outputs(spec.directory, list(spec.outputs), directory / DIRECTORY, lambda: with_rights_of(spec.user))
    why = CUT_OFF if fencing.over else NO_CONTAINER if spec.remove and exit.code == _RUNTIME_FAILED else ""
    return _leave(directory, draft, exit._replace(why=why, lost=log.lost))


def _stopped_before(system: ShimSystem) -> Exit | None:
    """The exit of a command that is not started, because a signal came first."""
    now_ns = _now_ns(system)
    if END in system.received:
        return Exit(-signal.SIGKILL, now_ns)
    if STOP in system.received:
        return Exit(-signal.SIGTERM, now_ns, asked_ns=now_ns)
    return Exit(-signal.SIGTERM, now_ns, signalled_ns=now_ns) if _is_signalled(system) else None


def _is_signalled(system: ShimSystem) -> bool:
    return signal.SIGTERM in system.received or signal.SIGINT in system.received


def _yielded(spec: LaunchSpec) -> bool:
    """Whether the worker left because its lease was over: it will resume, and its outputs are not complete."""
    if not spec.page:
        return False
    from fairlead.client.lease_page import Stage  # only with outputs, and slow to import
    from fairlead.runtime.agent.lease_file import LeaseFile

    try:
        lease = LeaseFile(Path(spec.page))
    except OSError:
        return False
    try:
        return bool(lease.status().stage == Stage.YIELDED)
    finally:
        lease.close()


def _why_not_started(spec: LaunchSpec, error: Exception) -> str:
    what = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    place, program = spec.directory[:_MAX_SHOWN], spec.command[0][:_MAX_SHOWN]
    if isinstance(error, _OutputError):
        return f"cannot write its output to {spec.output[:_MAX_SHOWN]} in {place}: {what}"
    with with_rights_of(spec.user):
        found = os.path.exists(spec.directory)
    if not found:
        return f"cannot run '{program}': there is no directory {place} on this node"
    return f"cannot run '{program}' in {place}: {what}{closed_folder(error, spec.command[0], spec.environment)}"


class _OutputError(OSError):
    """The file for the output cannot be opened."""


def _open_as_user(spec: LaunchSpec) -> int:
    """Open the file for the output with the rights of the job's user, to append to it."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe must not block the shim
    try:
        with with_rights_of(spec.user):
            file = os.open(os.path.join(spec.directory, spec.output), flags, 0o644)
        if not stat.S_ISREG(os.fstat(file).st_mode):
            os.close(file)
            raise OSError(errno.EINVAL, "not a plain file")
    except OSError as error:
        raise _OutputError(error.errno, error.strerror) from None
    return file


class _FencingWatch:
    """Watches the fencing deadline in place of an agent that may be dead."""

    def __init__(self, spec: LaunchSpec, system: ShimSystem) -> None:
        self.asked_ns = 0  # when it got SIGTERM
        self.over = False
        self._spec, self._system, self._times = spec, system, (spec.deadline[0], spec.deadline[1])
        self._stop_sent = False

    def has_passed(self) -> bool:
        return bool(self._spec.fencing_deadline) and self._system.monotonic() >= self._read()[0]

    def check(self) -> float | None:
        """Ask the worker to stop when it is time. Returns the seconds until the next check; None: no check is needed."""
        if not self._spec.fencing_deadline or self.over:
            return None
        # A script that got SIGTERM has to leave, even if its agent is back: whether it has finished could not be told later.
        now, (stop_s, kill_s) = self._system.monotonic(), self._times if self.asked_ns else self._read()
        if stop_s == math.inf:
            return _NO_DEADLINE_POLL_S
        if now < stop_s:
            return stop_s - now
        if not self._stop_sent:
            self._stop_sent = True
            self._ask_to_stop()
        kill_s = min(kill_s, stop_s + self._spec.grace_s)
        self.over = now >= kill_s
        return max(0.0, kill_s - now)

    def _read(self) -> tuple[float, float]:
        self._times = fencing_times(self._spec.fencing_deadline) or self._times
        return self._times

    def _ask_to_stop(self) -> None:
        if not self.revoke() and self._system.runs():
            self.asked_ns = _now_ns(self._system)
            self._system.signal_group(signal.SIGTERM)

    def revoke(self) -> bool:
        """Revoke the lease. Returns False if the worker cannot know: it has no lease, or has not opened its page yet."""
        if not self._spec.page:
            return self._spec.cooperative  # then the first worker of its gang informs it
        from fairlead.runtime.agent.lease_file import LeaseFile  # rarely needed, and slow to import

        with contextlib.suppress(OSError):
            lease = LeaseFile(Path(self._spec.page))
            lease.revoke()
            return bool(lease.status().opened)
        return True


def _supervise(system: ShimSystem, log: LogWriter, fencing: _FencingWatch, spec: LaunchSpec) -> Exit:
    """Run until the command and all its descendants are dead and their output is written. Returns how the command ended."""
    code: int | None = None
    at_ns = asked_ns = signalled_ns = removed = 0
    received = system.received
    while True:
        timeout_s = fencing.check()
        if fencing.over:
            received.add(END)
        system.wait(_POLL_S if code is not None or END in received else timeout_s)
        status = system.reap()
        if status is not None:
            code, at_ns = status, _now_ns(system)
        if not signalled_ns and _is_signalled(system):
            signalled_ns = _now_ns(system)
            if code is None and spec.cooperative:
                fencing.revoke()
        if STOP in received and code is None:
            received.discard(STOP)
            now_ns = _now_ns(system)
            if not asked_ns and (not signalled_ns or now_ns - signalled_ns > _SAME_SIGNAL_S * 1e9) and system.runs():
                asked_ns = now_ns
                system.signal_group(signal.SIGTERM)
        if END in received and code is None:
            system.signal_group(signal.SIGKILL)
        over = code is not None or END in received
        if over and spec.remove and not removed and (code is None or code < 0 or code == _RUNTIME_FAILED or END in received):
            removed = 1  # before its processes are killed, for which a runtime would wait; by itself it has done so
            remove_container(spec.remove, spec.environment, spec.user)
        all_dead = over and system.kill_descendants()
        if all_dead and spec.remove:
            all_dead = kill_all(lambda: with_variable(f"{_PAGE}={spec.environment[_PAGE]}"))  # a daemon's children
        # Only now: when all are dead, the output that is read next is the last.
        data = system.read_output()
        if data:
            log.write(data)
        if code is None or not all_dead or data:
            continue
        by_itself = not (signalled_ns or asked_ns or fencing.asked_ns or END in received or _left_by_lease(spec, code))
        if not by_itself or _now_ns(system) >= at_ns + spec.settle_s * 1e9:
            return Exit(code, at_ns, asked_ns=fencing.asked_ns or asked_ns, signalled_ns=signalled_ns)


def _left_by_lease(spec: LaunchSpec, code: int) -> bool:
    """Whether a worker says on its lease page that it has yielded or finished: it was not ended by a signal."""
    if code or not spec.own_page:
        return False
    try:
        with open(spec.own_page, "rb") as page:
            page.seek(_STAGE_AT)
            return int.from_bytes(page.read(8), sys.byteorder) in _ENDED_STAGES
    except OSError:
        return False


def _now_ns(system: ShimSystem) -> int:
    return int(system.monotonic() * 1e9)


def _reserve(draft: Path) -> int:
    """A file for the exit, with its space allocated before the job can fill the disk; -1 if that is not possible."""
    try:
        file = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return -1
    with contextlib.suppress(OSError):
        os.posix_fallocate(file, 0, _RESERVED)
    return file


def _leave(directory: Path, draft: int, exit: Exit) -> int:
    """Record an exit and return the shim's own status. From here on a signal must not change that status."""
    for number in (signal.SIGHUP, *SHIM_SIGNALS):
        signal.signal(number, signal.SIG_IGN)
    # Without fields that say nothing: an agent of a former version, which an upgrade has left running, may not know them.
    known = {name: value for name, value in exit._asdict().items() if value != Exit._field_defaults.get(name)}
    text = json.dumps(known).encode()[:_RESERVED]
    with contextlib.suppress(OSError):
        if draft >= 0:
            os.pwrite(draft, text.ljust(_RESERVED), 0)
            os.fsync(draft)
            os.rename(directory / (EXIT + ".new"), directory / EXIT)
    return exit.status


if __name__ == "__main__":
    sys.exit(_main())
