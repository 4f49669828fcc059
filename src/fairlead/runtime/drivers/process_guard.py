"""Run a command all of whose processes end with the process that asked for it: `python process_guard.py COMMAND...`.

An engine gives GPUs away as soon as its own process is dead. Jobs are in sessions of their own, and would run on. The guard is
the parent of all of them: they stay its descendants however they detach. It leaves the engine's process tree at once, because
engines kill the children of a process that ends. It holds the read end of a pipe as standard input:

- a byte in the pipe: SIGTERM to the command, which may then take its time;
- the end of the pipe, when its writer is dead: SIGKILL to every process.

When the command has ended, what it left is killed, too. The last line of the output is `process_guard: ended STATUS`. Only the
standard library is used, so that it starts at once."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

LAST_LINE = "process_guard: ended"
POLL_S = 0.1
_PDEATHSIG, _CHILD_SUBREAPER = 1, 36  # of prctl(2)


def guard(words: Sequence[str]) -> int:
    """Run a command until it or the writer of standard input has ended; returns its exit status, or minus the signal."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_CHILD_SUBREAPER, 1, 0, 0, 0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    command = subprocess.Popen(
        list(words),
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=lambda: libc.prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0),
    )
    while command.poll() is None:
        if not select.select([0], (), (), POLL_S)[0]:
            _reap(command.pid)
        elif os.read(0, 1):
            command.terminate()
        else:
            break
    kill_descendants(command.pid)
    return command.wait()


def kill_descendants(owned: int) -> None:
    """Kill all processes below this one, until there are none. `owned` is a child that the caller waits for."""
    while left := processes_below(os.getpid()):
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        select.select((), (), (), 0.01)
        _reap(owned)


def processes_below(root: int) -> list[int]:
    """The processes below one that have not ended, by the tables of this machine."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            except OSError:  # it has ended meanwhile
                continue
            if state != "Z":
                parents[int(entry.name)] = int(parent)
    found, frontier = list[int](), {root}
    while frontier := {pid for pid, parent in parents.items() if parent in frontier}:
        found += frontier
    return found


def _reap(owned: int) -> None:
    """Collect ended processes that were left to this one; for `owned`, the caller waits."""
    for child in _children():
        if child != owned:
            with suppress(ChildProcessError):
                os.waitpid(child, os.WNOHANG)


def _children() -> list[int]:
    try:
        return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
    except OSError:
        return []


def main() -> None:
    """Detach from the caller's process tree, then guard the command of the arguments."""
    if os.fork():
        os._exit(0)
    os.setsid()
    status = guard(sys.argv[1:])
    sys.stderr.write(f"{LAST_LINE} {status}\n")
    sys.exit(0)


if __name__ == "__main__":
    main()
