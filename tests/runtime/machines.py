"""Machines that share nothing but a wire: network namespaces on a bridge, with each one's folder hidden from the others. For
root, where the kernel lets it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

SOURCE = str(Path(__file__).resolve().parents[2] / "src")
CLONE_NEWNET = 0x40000000
T = TypeVar("T")


class CannotHave(Exception):
    """Why there are no such machines here."""


class Machines:
    """`names` on one wire, the first of them with the bridge; each has an address and a folder that only it sees."""

    def __init__(self, folder: Path, names: list[str]) -> None:
        self.folder, self.names = folder, names
        self._stem = f"fl{os.getpid()}"
        self._running: list[subprocess.Popen[bytes]] = []
        self._inside: dict[str, ThreadPoolExecutor] = {}
        for name in names:
            self.own(name).mkdir()

    def __enter__(self) -> Machines:
        if os.geteuid() != 0:
            raise CannotHave("network namespaces are for root")
        if shutil.which("ip") is None:
            raise CannotHave("there is no `ip` (Debian: iproute2)")
        try:
            self._lay()
        except CannotHave:
            self._take_away()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._running):
            process.send_signal(signal.SIGTERM)
        for process in self._running:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for pool in self._inside.values():
            pool.shutdown()
        self._take_away()

    def address(self, name: str) -> str:
        return f"10.213.77.{1 + self.names.index(name)}"

    def own(self, name: str) -> Path:
        """What is on a machine's disk."""
        return self.folder / name

    def cut(self, name: str) -> None:
        """Its link is down; nobody is told."""
        self._ip("-n", self._space(name), "link", "set", "wire", "down")

    def mend(self, name: str) -> None:
        self._ip("-n", self._space(name), "link", "set", "wire", "up")

    def run(self, name: str, *words: object) -> None:
        """`fairlead …` on a machine; it ends with the machines. What it says is in LOG of its folder."""
        others = [str(self.own(other)) for other in self.names if other != name]
        hide = "".join(f"mount -t tmpfs none {other} && " for other in others)
        fairlead = [sys.executable, "-m", "fairlead.cli.main", *map(str, words)]
        command = ["ip", "netns", "exec", self._space(name), "unshare", "-m", "sh", "-c", f'{hide}exec "$@"', "sh", *fairlead]
        environment = {**os.environ, "PYTHONPATH": SOURCE, "FAIRLEAD_ALLOW_ROOT_JOBS": "1"}  # its folders are root's
        with (self.own(name) / "log").open("ab") as log:
            here = self.own(name)
            self._running.append(subprocess.Popen(command, cwd=here, env=environment, stdout=log, stderr=log))

    def on(self, name: str, do: Callable[[], T]) -> T:
        """Do something here with that machine's network."""
        if name not in self._inside:
            self._inside[name] = ThreadPoolExecutor(1, initializer=self._enter, initargs=(name,))
        return self._inside[name].submit(do).result()

    def processes(self, name: str, word: str) -> list[str]:
        """What runs there with that word in its command."""
        told = self._ip("netns", "pids", self._space(name))
        found = []
        for pid in told.split():
            with contextlib.suppress(OSError):
                found.append(Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace"))
        return [command for command in found if word in command]

    def log(self) -> str:
        return "\n".join(f"{name}: {(self.own(name) / 'log').read_text()[-1500:]}" for name in self.names)

    def _lay(self) -> None:
        bridge = self._space(self.names[0])
        for name in self.names:
            self._ip("netns", "add", self._space(name))
            self._ip("-n", self._space(name), "link", "set", "lo", "up")
        self._ip("-n", bridge, "link", "add", "wire", "type", "bridge")
        for name in self.names[1:]:
            end = f"to-{self.names.index(name)}"
            self._ip("-n", bridge, "link", "add", end, "type", "veth", "peer", "name", "wire", "netns", self._space(name))
            self._ip("-n", bridge, "link", "set", end, "master", "wire", "up")
        for name in self.names:
            self._ip("-n", self._space(name), "addr", "add", f"{self.address(name)}/24", "dev", "wire")
            self._ip("-n", self._space(name), "link", "set", "wire", "up")

    def _take_away(self) -> None:
        for name in self.names:
            with contextlib.suppress(CannotHave):
                self._ip("netns", "del", self._space(name))

    def _space(self, name: str) -> str:
        return f"{self._stem}-{name}"

    def _enter(self, name: str) -> None:
        with open(f"/var/run/netns/{self._space(name)}") as space:
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.setns(space.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), f"cannot enter {name}")

    @staticmethod
    def _ip(*words: str) -> str:
        done = subprocess.run(["ip", *words], capture_output=True, text=True, timeout=60, check=False)
        if done.returncode:
            raise CannotHave(f"ip {' '.join(words)}: {done.stderr.strip()}")
        return done.stdout
