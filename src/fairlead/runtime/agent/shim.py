"""The process between an agent and a worker: `python -m fairlead.runtime.agent.shim`. It leads the worker's session, starts
the command as a process group, keeps what it prints, adopts its orphans, and writes down how it ended, all of which goes on
when the agent dies. Standard library only, and values as named tuples, so that it starts fast.

SIGTERM it passes on to that group. `END` kills the command and all that came from it. Both end a stub that has not started
yet.

It reads what to do from its standard input, whole or not at all: an agent that dies before it has said everything has started
nothing."""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import selectors
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from fairlead.runtime.agent.processes import descendants, end, look
from fairlead.runtime.agent.worker_logs import LogWriter

# Until when the jobs of a node may run without another word from the control plane: two moments in a file, which the agent
# moves on whenever its lease is renewed and which every stub looks at. When they have passed, the control plane counts on it
# that
# nothing runs here any more; an agent that was killed cannot see to that, its stubs can.
#
# Standard library only: stubs start fast. Moments are monotonic, and mean nothing after the machine was started anew; a
# launch
# is always ordered after a renewal.

_MOMENTS = struct.Struct("=dd")


class Moments(NamedTuple):
    ask: float = math.inf  # when jobs are asked to save and leave
    last: float = math.inf  # when the last of them must be gone


class FencingDeadline:
    """The agent's end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def move(self, ask: float, last: float) -> None:
        os.pwrite(self._file, _MOMENTS.pack(ask, last), 0)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def moments(path: str) -> Moments:
    """As they are now; never where nobody has said anything."""
    try:
        with open(path, "rb") as file:
            return Moments(*_MOMENTS.unpack(file.read(_MOMENTS.size)))
    except (OSError, struct.error):
        return Moments()


NEVER_BEGAN, CANNOT_START = 125, 127
END = signal.SIGUSR1
EXIT = "exit.json"
LOG = "log"

CUT_OFF = "killed because its agent was cut off or gone for too long"

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_RESERVED = 4096
_SHOWN = 200  # characters of a word, so that an exit fits into what is reserved for it
_CHUNK = 1 << 16
_LOOK_AGAIN_S = 0.05
_NEVER_HELD_S = 10.0  # between looks at a lifeline on which nothing stands yet


class LaunchSpec(NamedTuple):
    """What a stub has to do. `user` is a number of a user, its group and its other groups; empty: the agent's own."""

    command: list[str]
    environment: dict[str, str]
    directory: str  # where the command runs
    desk: str  # the worker's directory, for its log and its exit
    log_bytes: int
    log_pieces: int
    user: list[int]
    lifeline: str = ""  # says until when it may run without its agent; empty: for ever
    grace_s: float = 0.0
    cooperative: bool = True
    page: str = ""  # of the worker that is told when the lease is over; empty: it is not told, or by SIGTERM

    def spelled(self) -> bytes:
        return json.dumps(self._asdict()).encode() + b"\n"


class Exit(NamedTuple):
    """How a worker ended: its exit status (negative: the signal), and when, monotonic."""

    code: int
    at_ns: int
    why: str = ""
    lost: int = 0  # bytes of its log that could not be written


def main() -> int:
    said = sys.stdin.buffer.read()
    if not said.endswith(b"\n"):
        return NEVER_BEGAN
    return run(LaunchSpec(**json.loads(said)))


def run(errand: LaunchSpec) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    waking, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    heard: set[int] = set()
    # Handlers, not SIG_IGN: the command must not inherit deafness.
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, END):
        signal.signal(number, lambda caught, _: heard.add(caught))
    desk = Path(errand.desk)
    draft = _reserve(desk / (EXIT + ".new"))
    printed, prints = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(printed, False)
    log = LogWriter(desk / LOG, errand.log_bytes, errand.log_pieces)
    try:
        pid = _start(errand, prints, lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        what = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        why = f"cannot run '{errand.command[0][:_SHOWN]}' in {errand.directory[:_SHOWN]}: {what}"
        log.write(f"fairlead: {why}\n".encode())
        return _leave(desk, draft, Exit(CANNOT_START, time.monotonic_ns(), why))
    os.close(prints)
    tether = _Tether(errand, pid)
    code, at_ns = _attend(pid, printed, waking, heard, log, tether)
    log.close()
    why = CUT_OFF if tether.over else ""
    return _leave(desk, draft, Exit(code, at_ns, why, lost=log.lost))


def _start(errand: LaunchSpec, prints: int, die_with_stub: Callable[[], object]) -> int:
    user, group, groups = (errand.user[0], errand.user[1], errand.user[2:]) if errand.user else (None, None, None)
    worker = subprocess.Popen(
        errand.command,
        env=errand.environment,
        cwd=errand.directory,
        stdin=subprocess.DEVNULL,
        stdout=prints,
        stderr=prints,
        user=user,
        group=group,
        extra_groups=groups,
        process_group=0,
        preexec_fn=die_with_stub,  # behind the change of user, which would undo it
    )
    worker.returncode = 0  # we reap it ourselves, with the orphans
    return worker.pid


class _Tether:
    """Watches the lifeline in the place of an agent that may be dead."""

    def __init__(self, errand: LaunchSpec, pid: int) -> None:
        self._errand, self._pid = errand, pid
        self._asked = self.over = False

    def look(self) -> float | None:
        """Asks when it is time to ask. Returns how long nothing has to be done; None: for ever."""
        if not self._errand.lifeline or self.over:
            return None
        now, (ask, last) = time.monotonic(), moments(self._errand.lifeline)
        if ask == math.inf:
            return _NEVER_HELD_S
        if now < ask:
            return ask - now
        if not self._asked:
            self._asked = True
            self._ask()
        last = min(last, ask + self._errand.grace_s)
        self.over = now >= last
        return max(0.0, last - now)

    def _ask(self) -> None:
        if not self._errand.page:
            if not self._errand.cooperative:
                _signal_group(self._pid, signal.SIGTERM)
            return
        from fairlead.runtime.agent.lease_file import LeaseFile  # rarely needed, and it would make every start slower

        with contextlib.suppress(OSError):
            LeaseFile(Path(self._errand.page)).revoke()


def _attend(pid: int, printed: int, waking: int, heard: set[int], log: LogWriter, tether: _Tether) -> tuple[int, int]:
    """Until the command has ended, all that it left behind is dead, and what they printed is written."""
    looking = selectors.DefaultSelector()
    looking.register(printed, selectors.EVENT_READ)
    looking.register(waking, selectors.EVENT_READ)
    code: int | None = None
    at_ns = 0
    printing = True
    passed_on = False
    myself = look(os.getpid())
    assert myself is not None
    while True:
        quiet_s = tether.look()
        if tether.over:
            heard.add(END)
        looking.select(_LOOK_AGAIN_S if code is not None or END in heard else quiet_s)
        with contextlib.suppress(BlockingIOError):
            os.read(waking, _CHUNK)
        status = _reap(pid)
        if status is not None:
            code, at_ns = os.waitstatus_to_exitcode(status), time.monotonic_ns()
        if signal.SIGTERM in heard and code is None and not passed_on:
            passed_on = True
            _signal_group(pid, signal.SIGTERM)
        if END in heard and code is None:
            _signal_group(pid, signal.SIGKILL)
        over = code is not None or END in heard
        all_dead = over and end(lambda: descendants(myself.pid, myself.started))
        # Only now: when all are dead, what is read next is the last there will be.
        data = _printed(printed) if printing else None
        if data:
            log.write(data)
        elif data == b"":
            printing = False
            looking.unregister(printed)
        if code is not None and all_dead and not data:
            return code, at_ns


def _printed(source: int) -> bytes | None:
    """What was printed; None: nothing now; empty: nothing ever more."""
    try:
        return os.read(source, _CHUNK)
    except BlockingIOError:
        return None


def _reap(pid: int) -> int | None:
    """Reaps whoever ended, orphans too; the status of `pid` where it was among them. Its group ends with it: until it is
    reaped, nobody else can have its number."""
    found = None
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return found
        if ended is None:
            return found
        if ended.si_pid == pid:
            _signal_group(pid, signal.SIGKILL)
        _, status = os.waitpid(ended.si_pid, 0)
        if ended.si_pid == pid:
            found = status


def _signal_group(group: int, number: signal.Signals) -> None:
    """All of them at once, which those who fork all the time do not outrun."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _reserve(draft: Path) -> int:
    """A file for the exit, with its room taken before the job can fill the disk; -1 where it cannot be."""
    try:
        file = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return -1
    with contextlib.suppress(OSError):
        os.posix_fallocate(file, 0, _RESERVED)
    return file


def _leave(desk: Path, draft: int, exit: Exit) -> int:
    said = json.dumps(exit._asdict()).encode()[:_RESERVED]
    with contextlib.suppress(OSError):
        if draft >= 0:
            os.pwrite(draft, said.ljust(_RESERVED), 0)
            os.fsync(draft)
            os.rename(desk / (EXIT + ".new"), desk / EXIT)
    # An agent that is still our parent learns it from this too.
    return exit.code if exit.code >= 0 else 128 - exit.code


if __name__ == "__main__":
    sys.exit(main())
