"""Processes, identified by pid *and* start time, so that a reused pid is never signalled; the shims of an agent; and control
groups. Standard library only: the shim uses it too."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

STOP, END = signal.SIGRTMIN + 7, signal.SIGRTMIN + 8
"""Orders of an agent to a shim: let the command stop, or kill it. No other program sends these signals."""

SHIM_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, STOP, END)
"""Signals that a shim handles; they are blocked until it does."""

_FORMER = {STOP: signal.SIGTERM, END: signal.SIGUSR1}  # the same orders to shims of former versions

_PARENT, _STARTED = 1, 19  # fields of /proc/PID/stat, counted behind the name
_REMOVE_WITHIN_S = 3.0  # for a container runtime to remove a container; less than a deadline leaves to kill its processes


class Process(NamedTuple):
    """A process as /proc shows it."""

    pid: int
    started: int  # in ticks since the machine booted
    parent: int = 0
    dead: bool = False  # a zombie: it has ended and waits to be reaped


def find_process(pid: int) -> Process | None:
    """The process with a pid, or None."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            line = file.read()
    except OSError:
        return None
    fields = line[line.rindex(b")") + 2 :].split()  # the name before it may hold anything, brackets and spaces too
    return Process(pid, int(fields[_STARTED]), int(fields[_PARENT]), fields[0] in (b"Z", b"X"))


def is_alive(pid: int, started: int) -> bool:
    """Whether this process still runs."""
    process = find_process(pid)
    return process is not None and process.started == started and not process.dead


def send_signal(process: Process, number: int) -> bool:
    """Signal exactly this process; False if it is gone."""
    handle = open_pidfd(process.pid, process.started)
    if handle is None:
        if _has_handles() or not is_alive(process.pid, process.started):
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


def handles_signal(pid: int, number: int) -> bool:
    """Whether a process catches a signal, or blocks it until it does."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            found = dict(line.split(b":", 1) for line in file.read().splitlines() if b":" in line)
        masks = int(found[b"SigCgt"], 16) | int(found[b"SigBlk"], 16)
    except (OSError, KeyError, ValueError):
        return False
    return bool(masks >> (number - 1) & 1)


def open_pidfd(pid: int, started: int) -> int | None:
    """A descriptor that becomes readable when the process ends; None if it is gone, or the system has no pidfd."""
    try:
        handle = os.pidfd_open(pid)
    except OSError as error:
        if error.errno in (errno.ESRCH, errno.EINVAL, errno.ENOSYS, errno.EPERM):
            return None
        raise
    # Only from here on the handle keeps the pid from being reused: check that it still is the same process.
    if is_alive(pid, started):
        return handle
    os.close(handle)
    return None


def has_ended(handle: int) -> bool:
    """Whether the process of a descriptor has ended."""
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(0))


def _all_processes() -> list[Process]:
    found = (find_process(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return [process for process in found if process is not None]


def descendants(pid: int, started: int) -> list[Process]:
    """All living descendants of a process. The nearest ancestor that is a subreaper, as a shim is, adopts orphans. So a process
    cannot escape by leaving its group, session or parent."""
    children: dict[int, list[Process]] = {}
    for process in _all_processes():
        children.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    front = [pid]
    while front:
        for process in children.get(front.pop(), ()):
            front.append(process.pid)
            if not process.dead:
                found.append(process)
    # It is still alive, so the pid was not reused meanwhile, and these are its descendants.
    return found if is_alive(pid, started) else []


def with_variable(setting: str) -> list[Process]:
    """All processes that were started with `NAME=value` in their environment, as far as this process may see."""
    wanted = setting.encode()
    found = []
    for process in _all_processes():
        try:
            with open(f"/proc/{process.pid}/environ", "rb") as file:
                environment = file.read()
        except OSError:
            continue
        if not process.dead and wanted in environment.split(b"\0"):
            found.append(process)
    return found


def kill_all(find: Callable[[], list[Process]]) -> bool:
    """Kill all processes that `find` returns, repeatedly, since they may start others meanwhile; True if none is left."""
    for _ in range(20):
        living = find()
        if not living:
            return True
        for process in living:
            with contextlib.suppress(PermissionError):  # a program that changed its user
                send_signal(process, signal.SIGKILL)
    return not find()


def remove_container(remove: Sequence[str], environment: Mapping[str, str], user: list[int]) -> None:
    """Let a container runtime remove a container, as a user; its processes may be no descendants. Waits for some seconds."""
    ids: dict[str, Any] = {"user": user[0], "group": user[1], "extra_groups": user[2:]} if user else {}
    null = subprocess.DEVNULL
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        subprocess.run(
            remove, env=environment, cwd="/", stdin=null, stdout=null, stderr=null, timeout=_REMOVE_WITHIN_S, check=False, **ids
        )


def closed_folder(error: Exception, program: str, environment: Mapping[str, str]) -> str:
    """Which folder above a program keeps other users out, and what to do; empty if that is not why it cannot start."""
    import shutil  # slow to import, and seldom needed

    found = shutil.which(program, path=environment.get("PATH")) if isinstance(error, PermissionError) else None
    above = [*reversed(Path(found).absolute().parents), *reversed(Path(found).resolve().parents)] if found else []
    closed = next((folder for folder in above if not folder.stat().st_mode & 0o001), None)
    if closed is None:
        return ""
    return f" (jobs of other users cannot pass through {closed}: chmod o+x {closed}, or install the program elsewhere)"


def _has_handles() -> bool:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    return True


class ShimProcess:
    """A shim as its agent sees it: the agent's child, or, after a restart of the agent, a process that is known by pid and
    start time."""

    def __init__(self, pid: int, started: int, child: subprocess.Popen[bytes] | None = None) -> None:
        self.pid, self.started, self._child = pid, started, child
        self.handle = open_pidfd(pid, started)  # readable when it has ended

    @property
    def is_child(self) -> bool:
        return self._child is not None

    @property
    def status(self) -> int | None:
        """Its exit status; None if it is not known, because an earlier agent was its parent."""
        return self._child.returncode if self._child is not None else None

    def has_ended(self) -> bool:
        if self._child is not None:
            return self._child.poll() is not None
        if self.handle is not None:
            return has_ended(self.handle) and _reaped(self.handle)
        return not is_alive(self.pid, self.started)

    def send_spec(self, spec: bytes) -> None:
        """Make it start its command. A shim that was killed meanwhile is found by the next check."""
        assert self._child is not None
        assert self._child.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._child.stdin.write(spec)
        with contextlib.suppress(BrokenPipeError):
            self._child.stdin.close()

    def send_signal(self, number: int) -> None:
        """Send a signal, or an order: `STOP` or `END`."""
        if number in _FORMER and self._child is None and not handles_signal(self.pid, number):
            number = _FORMER[number]
        send_signal(Process(self.pid, self.started), number)

    def kill_descendants(self) -> bool:
        """Kill everything that it has started; True if nothing is left."""
        return kill_all(lambda: descendants(self.pid, self.started))

    def kill_strays(self, variable: str) -> bool:
        """Kill everything that a dead shim has left: processes with this variable; True if nothing is left."""
        return kill_all(lambda: with_variable(variable))

    def end(self) -> None:
        """End a shim without a launch spec, which has started nothing."""
        assert self._child is not None
        self._child.kill()
        self._child.communicate()

    def close(self) -> None:
        """Release the handle; the shim keeps running."""
        if self.handle is not None:
            os.close(self.handle)
            self.handle = None


class ProcessTable:
    """The processes of a node, as its agent uses them."""

    def start_shim(self, directory: Path) -> ShimProcess:
        """Start a shim that waits for its launch spec. Raises `OSError`: it cannot be started."""
        with (
            open(directory / "shim.err", "wb", opener=lambda path, flags: os.open(path, flags, 0o600)) as errors,
            _blocked(SHIM_SIGNALS),  # so that it does not die of a signal while it starts
        ):
            child = subprocess.Popen(
                [sys.executable, "-P", "-m", "fairlead.runtime.agent.shim"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
            )
        process = find_process(child.pid)
        if process is None:
            child.kill()
            child.communicate()
            raise FileNotFoundError(errno.ENOENT, "cannot be read: is /proc mounted?", f"/proc/{child.pid}")
        return ShimProcess(child.pid, process.started, child)

    def find_shim(self, pid: int, started: int) -> ShimProcess:
        """The shim that an earlier agent has started."""
        return ShimProcess(pid, started)

    def is_alive(self, pid: int, started: int) -> bool:
        return is_alive(pid, started)

    def has_strays(self, variable: str) -> bool:
        """Whether any process was started with this variable."""
        return bool(with_variable(variable))

    def wait(self, shims: Iterable[ShimProcess], timeout_s: float) -> None:
        """Return when one of these shims has ended, or after the timeout."""
        ends = select.poll()
        for shim in shims:
            if shim.handle is not None:
                ends.register(shim.handle, select.POLLIN)
        ends.poll(max(0.0, timeout_s) * 1000)

    def boot_id(self) -> str:
        """Identifies the time since the machine was started."""
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@contextlib.contextmanager
def _blocked(signals: Iterable[int]) -> Iterator[None]:
    """Block signals in this thread, and so in processes that it starts."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _reaped(handle: int) -> bool:
    """Reap a shim that an earlier supervisor in this same process has started."""
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_PIDFD, handle, os.WEXITED | os.WNOHANG)
    return True


_CONTROLLERS = ("cpu", "memory")
_CPU_PERIOD_US = 100_000


def find_cgroup(name: str, mount: Path = Path("/sys/fs/cgroup")) -> Path | None:
    """A new or earlier control group (version 2) of this name, for an agent's jobs. None: the agent cannot make groups, or they
    would limit nothing."""
    group = mount / name
    try:
        if not {*_CONTROLLERS} & {*(mount / "cgroup.controllers").read_text().split()}:
            return None
        _enable_controllers(mount)
        group.mkdir(exist_ok=True)
    except OSError:
        return None
    return group if cgroup_limits(group) else None


def cgroup_limits(group: Path | None) -> list[str]:
    """The resources that groups inside a control group can limit; enables them."""
    if group is None:
        return []
    _enable_controllers(group)
    try:
        enabled = (group / "cgroup.subtree_control").read_text().split()
    except OSError:
        return []
    return [name for name in _CONTROLLERS if name in enabled]


def _enable_controllers(group: Path) -> None:
    for name in _CONTROLLERS:  # each by itself: the kernel may refuse one of them
        with contextlib.suppress(OSError):
            if name not in (group / "cgroup.subtree_control").read_text().split():
                (group / "cgroup.subtree_control").write_text(f"+{name}")


class Cgroup:
    """A control group (version 2) of one worker, inside that of its launch, which has the limits. No process can leave it, and
    all die at once. Without one, the agent relies on shims that adopt orphans."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @classmethod
    def of_launch(cls, path: Path, cpus: float, memory_gb: float) -> Cgroup:
        """The group of a launch, with limits for all its workers together; 0: none. Some kernels do not offer all of them."""
        path.mkdir(exist_ok=True)
        limits = {}
        if cpus:
            limits["cpu.max"] = f"{max(1000, round(cpus * _CPU_PERIOD_US))} {_CPU_PERIOD_US}"
        if memory_gb:
            limits["memory.max"] = str(round(memory_gb * 2**30))
        for name, limit in limits.items():
            if (path / name).exists():
                (path / name).write_text(limit)
        return cls(path)

    @classmethod
    def create(cls, path: Path, pid: int) -> Cgroup:
        """A new group with this process, and so all processes that it will start."""
        path.mkdir(exist_ok=True)  # left by an agent that died before the launch
        made = cls(path)
        try:
            (path / "cgroup.procs").write_text(str(pid))
        except OSError:
            made.remove()
            raise
        return made

    def kill(self) -> bool:
        """Kill all processes of the group, also the shim; True if none was left."""
        try:
            if not (self._path / "cgroup.procs").read_text():
                return True
            (self._path / "cgroup.kill").write_text("1")
        except FileNotFoundError:
            return True
        return False

    def remove(self) -> None:
        """Remove the group, if it is empty, and that of its launch after the last worker."""
        with contextlib.suppress(OSError):
            self._path.rmdir()
            if self._path.name.isdigit():
                self._path.parent.rmdir()
