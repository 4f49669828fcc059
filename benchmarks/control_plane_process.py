"""A real `fairlead serve` process for benchmarks, on loopback and on ports that the system gives, and its CPU seconds."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PATIENCE_S = 120.0


@dataclass(frozen=True)
class Served:
    process: subprocess.Popen[bytes]
    root: Path
    http_port: int
    agents_port: int
    started_s: float  # from the start of the process to its first answer

    @property
    def cpu_s(self) -> float:
        """Of all its threads, user and system."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def memory_mb(self) -> float:
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

    def token(self, role: str) -> str:
        return (self.root / f"{role}.token").read_text()

    def connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=PATIENCE_S)


@contextmanager
def serving(root: Path, cluster: str, *more: str, agents_port: int = 0) -> Iterator[Served]:
    people, agents = _free_port(), agents_port or _free_port()
    where = ["--http", f"127.0.0.1:{people}", "--agents", f"127.0.0.1:{agents}", "--root", str(root)]
    command = [sys.executable, "-m", "fairlead.cli.main", "serve", "--cluster", cluster, *where, *more]
    began = time.monotonic()
    root.mkdir(parents=True, exist_ok=True)
    with (root / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log)
    try:
        _await_answer(process, root / "log", people, began + PATIENCE_S)
        yield Served(process, root, people, agents, time.monotonic() - began)
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _await_answer(process: subprocess.Popen[bytes], log: Path, port: int, deadline: float) -> None:
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(log.read_text())
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", "/v1/health")
            if connection.getresponse().status == 200:
                return
        except OSError:
            time.sleep(0.02)
        finally:
            connection.close()
    raise RuntimeError(f"no answer within {PATIENCE_S:g} s")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
