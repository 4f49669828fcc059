"""Processes of the `fairlead` command in no time. `foundry_process.py` has imported everything once, and each process is a fork
of it: a real one, with standard streams, a folder and an end of its own, without the second that its imports would take."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from command_server import install

SOURCE = str(Path(__file__).resolve().parents[1] / "src")
PATIENCE_S = 300.0
FIRST_PORT, PORTS = 10_000, 10_000
"""Below those that the system gives to whoever connects or asks for any: until a server takes its port, nobody else has it."""


def environment(*more: Path) -> dict[str, str]:
    """What a process gets: this source, whatever else is on its way to be imported, and no terminal."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "COLUMNS", "FORCE_COLOR")}
    own = {"PYTHONPATH": os.pathsep.join((*map(str, more), SOURCE)), "FAIRLEAD_ALLOW_ROOT_JOBS": "1"}  # in private folders
    return {**kept, **own, "NO_COLOR": "1", "TERM": "dumb"}


_ports = itertools.count(317 * os.getpid())  # test processes begin apart from each other


def free_port() -> int:
    """For a server that is started soon, or again and again; no port is given twice."""
    while True:
        port = FIRST_PORT + next(_ports) % PORTS
        with contextlib.suppress(OSError), socket.socket() as one:
            one.bind(("127.0.0.1", port))
            return port


@dataclass(frozen=True)
class Done:
    """How a process ended and what it said."""

    returncode: int
    stdout: str
    stderr: str


@dataclass
class Running:
    """A process that was made here."""

    pid: int
    returncode: int | None = None

    def poll(self) -> int | None:
        """How it ended, if it has."""
        return self.wait() if self.returncode is None and has_ended(self.pid) else self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def wait(self, patience_s: float = PATIENCE_S) -> int:
        if self.returncode is None:
            assert ends(self.pid, patience_s), f"process {self.pid} does not end"
            self.returncode = foundry().status(self.pid)
        return self.returncode


class Foundry:
    """Our end of `foundry_process.py`."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="foundry-")
        self.address = Path(self._folder.name, "socket")
        self.program = install(Path(self._folder.name), self.address)  # the command, for shells
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(self.address))
            listener.listen(64)
            number = listener.fileno()
            command = [sys.executable, str(Path(__file__).with_name("foundry_process.py")), str(number), str(self.program)]
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment(), text=True, pass_fds=[number]
            )
        atexit.register(self.close)

    def make(self, words: list[str], log: Path, **about: Any) -> int:
        """The pid of a new process; it writes to `log` whatever it says."""
        return self._answer({"words": words, "stdout": str(log), "stderr": str(log), **about})

    def run(self, *words: object, cwd: Path | None = None) -> Done:
        """A process from beginning to end."""
        with tempfile.TemporaryDirectory() as folder:
            out, err = Path(folder, "out"), Path(folder, "err")
            order = {"words": list(map(str, words)), "stdout": str(out), "stderr": str(err), "cwd": str(cwd or Path.cwd())}
            process = Running(self._answer(order))
            try:
                code = process.wait()
            except BaseException:
                process.send_signal(signal.SIGKILL)
                process.wait()
                raise
            return Done(code, out.read_text(encoding="utf-8"), err.read_text(encoding="utf-8"))

    def status(self, pid: int) -> int:
        """Waits for the end of one that was made here: its exit status, or the negative signal."""
        return self._answer({"ended": pid})

    def close(self) -> None:
        self._process.communicate()
        self._folder.cleanup()

    def _answer(self, order: dict[str, Any]) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(order), file=self._process.stdin, flush=True)
        return int(self._process.stdout.readline())


@cache
def foundry() -> Foundry:
    return Foundry()


@contextlib.contextmanager
def running(folder: Path, *words: object, log: str = "log", end: int = signal.SIGINT) -> Iterator[Running]:
    """A command that goes on in `folder` until it is ended."""
    process = Running(foundry().make(list(map(str, words)), folder / log, cwd=str(folder)))
    try:
        yield process
    finally:
        process.send_signal(end)
        process.wait()


def has_ended(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


def ends(pid: int, patience_s: float) -> bool:
    """Whether it ends within that time."""
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(pid)
        try:
            return bool(select.select([handle], [], [], patience_s)[0])
        finally:
            os.close(handle)
    return True
