"""The process between an agent and a worker: `python -m fairlead.runtime.agent.shim`. It leads the worker's session, starts the
command as a process group, writes its output to the log, adopts its orphans, and records how it ended. All of this continues
when the agent dies. Standard library only, and named tuples as values, so that it starts fast. It passes SIGTERM on to the
process group; `END` kills the command and all its descendants. Either ends a shim that has not started its command yet. It
reads its launch spec from standard input and starts nothing if that is incomplete, because its agent died."""

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
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from fairlead.runtime.agent.kept_outputs import DIRECTORY, keep_outputs, with_rights_of
from fairlead.runtime.agent.processes import closed_folder, descendants, find_process, kill_all
from fairlead.runtime.agent.worker_logs import LogWriter

_TIMES = struct.Struct("=dd")


class FencingDeadline:
    """Until when the jobs of a node may run without the control plane: two monotonic times in a file. The agent moves them with
    every renewal of its lease. All shims read them, since a killed agent cannot stop its jobs. After these times the control
    plane relies on nothing running here any more. A restart of the machine invalidates them, but each launch follows a renewal.

    It fails closed. A shim begins with the times of its launch spec. It keeps the last times that it has read while the file is
    missing, short or damaged, so the job stops then. Nothing is launched while the file cannot be written and read back.

    Shims of former versions read the file `lifeline`; it stays as a second name of the same file."""

    def __init__(self, root: Path) -> None:
        self.path, former = root / "fencing-deadline", root / "lifeline"
        if former.exists() and not self.path.exists():
            os.link(former, self.path)
        self._file = self._open()
        self.times = (math.inf, math.inf)  # as last moved by this agent; infinite: not yet

    def move(self, stop_s: float, kill_s: float) -> None:
        """Raises `OSError`: shims may not read these times."""
        self.times = stop_s, kill_s
        self.check()

    def check(self) -> None:
        """Make sure that shims read the times, where there are any. Raises `OSError`: they may not."""
        if self.times[0] == math.inf:
            return
        try:
            in_place = os.path.samestat(os.lstat(self.path), os.fstat(self._file))
        except OSError:
            in_place = False
        if not in_place:
            self.close()
            self._file = self._open()
        os.pwrite(self._file, _TIMES.pack(*self.times), 0)
        if _fencing_times(str(self.path)) != self.times:
            raise OSError(errno.EIO, "the fencing deadline cannot be read back", str(self.path))

    @property
    def moved_at(self) -> float:
        """Unix time of the last renewal: until then the agent was alive."""
        return os.fstat(self._file).st_mtime

    def close(self) -> None:
        """Close the file; the times stay."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _open(self) -> int:
        return os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _fencing_times(path: str) -> tuple[float, float] | None:
    """When jobs are asked to save and leave, and when the last of them must be gone; None: the file cannot be read."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            stop_s, kill_s = _TIMES.unpack(os.read(file, _TIMES.size))
        finally:
            os.close(file)
    except (OSError, struct.error):
        return None
    return (stop_s, kill_s) if -math.inf < stop_s < math.inf and stop_s <= kill_s else None


NEVER_BEGAN, CANNOT_START = 125, 127
END = signal.SIGUSR1
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


class Exit(NamedTuple):
    """How a worker ended: its exit status (negative: the signal), and when (monotonic)."""

    code: int
    at_ns: int
    why: str = ""
    lost: int = 0  # bytes of its log that could not be written
    permanent: bool = False  # its command can never be executed: another attempt would fail too
    node_fault: bool = False  # the node could not start it
    asked_ns: int = 0  # when its shim sent SIGTERM at the fencing deadline; 0: it did not, or the worker had ended before

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
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, END):
            signal.signal(number, lambda caught, _: self.received.add(caught))
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
        system.start(spec)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        why = _why_not_started(spec, error)
        log.write(f"fairlead: {why}\n".encode())
        number = error.errno if isinstance(error, OSError) and not isinstance(error, _OutputError) else 0
        permanent, node_fault = isinstance(error, OSError) and error.errno in _PERMANENT, number in _OF_THE_NODE
        return _leave(directory, draft, Exit(CANNOT_START, _now_ns(system), why, permanent=permanent, node_fault=node_fault))
    code, at_ns = _supervise(system, log, fencing)
    log.close()
    why = CUT_OFF if fencing.over else ""
    if spec.outputs and END not in system.received and not _yielded(spec):
        with contextlib.suppress(OSError, ValueError):
            keep_outputs(spec.directory, list(spec.outputs), directory / DIRECTORY, lambda: with_rights_of(spec.user))
    return _leave(directory, draft, Exit(code, at_ns, why, lost=log.lost, asked_ns=fencing.asked_ns))


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
        self._times = _fencing_times(self._spec.fencing_deadline) or self._times
        return self._times

    def _ask_to_stop(self) -> None:
        if not self._revoke() and self._system.runs():
            self.asked_ns = _now_ns(self._system)
            self._system.signal_group(signal.SIGTERM)

    def _revoke(self) -> bool:
        """Revoke the lease. Returns False if the worker cannot know: it has no lease, or has not opened its page yet."""
        if not self._spec.page:
            return self._spec.cooperative  # then the first worker of its gang informs it
        from fairlead.runtime.agent.lease_file import LeaseFile  # rarely needed, and slow to import

        with contextlib.suppress(OSError):
            lease = LeaseFile(Path(self._spec.page))
            lease.revoke()
            return bool(lease.status().opened)
        return True


def _supervise(system: ShimSystem, log: LogWriter, fencing: _FencingWatch) -> tuple[int, int]:
    """Run until the command and all its descendants are dead and their output is written. Returns exit status and time."""
    code: int | None = None
    at_ns = 0
    term_sent = False
    received = system.received
    while True:
        timeout_s = fencing.check()
        if fencing.over:
            received.add(END)
        system.wait(_POLL_S if code is not None or END in received else timeout_s)
        status = system.reap()
        if status is not None:
            code, at_ns = status, _now_ns(system)
        if signal.SIGTERM in received and code is None and not term_sent:
            term_sent = True
            system.signal_group(signal.SIGTERM)
        if END in received and code is None:
            system.signal_group(signal.SIGKILL)
        over = code is not None or END in received
        all_dead = over and system.kill_descendants()
        # Only now: when all are dead, the output that is read next is the last.
        data = system.read_output()
        if data:
            log.write(data)
        if code is not None and all_dead and not data:
            return code, at_ns


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
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, END):
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
