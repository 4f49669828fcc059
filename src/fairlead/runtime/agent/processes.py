"""Processes by pid *and* start time, so that a number that the system gave to somebody else is never signalled. Standard
library only: the stub uses it too."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

_PARENT, _STARTED = 1, 19
"""Fields of /proc/PID/stat, counted behind the name."""


class Process(NamedTuple):
    pid: int
    started: int  # in ticks since the machine booted
    parent: int = 0
    dead: bool = False  # a zombie: it has ended and waits to be reaped


def look(pid: int) -> Process | None:
    """The process of that number, or None where there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            line = file.read()
    except OSError:
        return None
    fields = line[line.rindex(b")") + 2 :].split()  # the name before it may hold anything, brackets and spaces too
    return Process(pid, int(fields[_STARTED]), int(fields[_PARENT]), fields[0] in (b"Z", b"X"))


def is_there(pid: int, started: int) -> bool:
    process = look(pid)
    return process is not None and process.started == started and not process.dead


def send(process: Process, number: signal.Signals) -> bool:
    """Signals exactly this process; False where it is gone."""
    handle = watch(process.pid, process.started)
    if handle is None:
        if _has_handles() or not is_there(process.pid, process.started):
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)
        return True
    try:
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
    return True


def watch(pid: int, started: int) -> int | None:
    """A descriptor that becomes readable when the process ends; None where it is gone, or the system has no such thing."""
    try:
        handle = os.pidfd_open(pid)
    except OSError as error:
        if error.errno in (errno.ESRCH, errno.EINVAL, errno.ENOSYS, errno.EPERM):
            return None
        raise
    # The number is pinned by the handle only from here on: look whether it still means the same process.
    if is_there(pid, started):
        return handle
    os.close(handle)
    return None


def has_ended(handle: int) -> bool:
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(0))


def everybody() -> list[Process]:
    found = (look(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return [process for process in found if process is not None]


def descendants(pid: int, started: int) -> list[Process]:
    """All who come from this process and live. An orphan goes to the nearest ancestor that adopts orphans, as a stub does, so
    leaving the group, the session or the parent leads nowhere else."""
    children: dict[int, list[Process]] = {}
    for process in everybody():
        children.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    front = [pid]
    while front:
        for process in children.get(front.pop(), ()):
            front.append(process.pid)
            if not process.dead:
                found.append(process)
    # Still there behind the look: so it was the same all the while, and these are its own.
    return found if is_there(pid, started) else []


def with_variable(setting: str) -> list[Process]:
    """All who were started with `NAME=value` in their environment, as far as this process may look."""
    wanted = setting.encode()
    found = []
    for process in everybody():
        try:
            with open(f"/proc/{process.pid}/environ", "rb") as file:
                environment = file.read()
        except OSError:
            continue
        if not process.dead and wanted in environment.split(b"\0"):
            found.append(process)
    return found


def end(find: Callable[[], list[Process]], sweeps: int = 20) -> bool:
    """Kills all that `find` finds, again and again, since they may be starting others meanwhile; True where none is left."""
    for _ in range(sweeps):
        living = find()
        if not living:
            return True
        for process in living:
            # Not ours to kill: a program that changed its user. It stays on the list.
            with contextlib.suppress(PermissionError):
                send(process, signal.SIGKILL)
    return not find()


def _has_handles() -> bool:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    return True


# A control group for each worker, where the agent was given a part of the hierarchy (version 2) to make them in. It is the
# only thing that nobody leaves and that dies all at once; without it an agent relies on stubs that adopt their orphans.


class Cgroup:
    def __init__(self, path: Path) -> None:
        self._path = path

    @classmethod
    def create(cls, path: Path, pid: int) -> Cgroup:
        """A new one with this process in it, and so all that it will start."""
        path.mkdir(exist_ok=True)  # it was left by an agent that died before anything began
        made = cls(path)
        try:
            (path / "cgroup.procs").write_text(str(pid))
        except OSError:
            made.remove()
            raise
        return made

    def kill(self) -> bool:
        """Everybody in it, the stub too; True where none was left."""
        try:
            if not (self._path / "cgroup.procs").read_text():
                return True
            (self._path / "cgroup.kill").write_text("1")
        except FileNotFoundError:
            return True
        return False

    def remove(self) -> None:
        with contextlib.suppress(OSError):  # not empty yet, or gone
            self._path.rmdir()
