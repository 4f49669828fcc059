"""Tests of the client play the agent: they make the pages, start real processes and take leases away."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from fairlead.client.lease_page import Field, Page, Stage
from foundry import free_port

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "jobs"
DEADLINE_S = 120.0


def until(what: Callable[[], object], because: Callable[[], str] = str) -> None:
    """Wait for something that another process does."""
    deadline = time.monotonic() + DEADLINE_S
    while not what():
        assert time.monotonic() < deadline, f"it did not come about within {DEADLINE_S:g} s; {because()}"
        time.sleep(0.001)


class Worker:
    """A process with a page of its own."""

    def __init__(
        self, folder: Path, rank: int, command: list[str], environment: Mapping[str, str], bounds: Mapping[Field, int]
    ) -> None:
        folder.mkdir(parents=True)
        self.rank = rank
        self.page = Page.create(folder / "lease")
        for field, value in bounds.items():
            self.page[field] = value
        self.reports = folder / "reports"
        self._errors = folder / "errors"
        outside = {name: value for name, value in os.environ.items() if not name.startswith("FAIRLEAD_")}
        with self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, *command],
                env={**outside, "FAIRLEAD_LEASE": str(folder / "lease"), "FAIRLEAD_REPORTS": str(self.reports), **environment},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )

    @property
    def stage(self) -> Stage:
        return Stage(self.page[Field.STAGE])

    @property
    def errors(self) -> str:
        return self._errors.read_text()

    def pace(self, steps: int) -> None:
        """Let it do so many steps, if it is one that waits for that."""
        assert self.process.stdin
        try:
            self.process.stdin.write(b"." * steps)
            self.process.stdin.flush()
        except BrokenPipeError:
            pass

    def reaches(self, steps: int) -> None:
        until(lambda: self.page[Field.STEPS] >= steps or self.process.poll() is not None, lambda: self.errors)
        assert self.page[Field.STEPS] >= steps, self.errors

    def revoke(self) -> None:
        self.page[Field.REVOKED] = 1

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def ends(self) -> int:
        """Its exit status."""
        try:
            return self.process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            pytest.fail(f"worker {self.rank} did not end; {self.errors}")

    @property
    def printed(self) -> str:
        assert self.process.stdout
        return self.process.stdout.read().decode()


class Agent:
    """Launches jobs, whose checkpoints outlive a launch."""

    def __init__(self, root: Path) -> None:
        self.checkpoints = root / "checkpoints"
        self._root = root
        self._launched: list[Worker] = []

    def launch(
        self,
        *command: str | Path,
        environment: Mapping[str, str] | None = None,
        rank: int = 0,
        bounds: Mapping[Field, int] | None = None,
    ) -> Worker:
        worker = Worker(
            self._root / f"launch-{len(self._launched)}",
            rank,
            [str(part) for part in command],
            {"FAIRLEAD_CHECKPOINT_DIR": str(self.checkpoints), "RANK": str(rank), **(environment or {})},
            bounds or {},
        )
        self._launched.append(worker)
        return worker

    def launch_gang(
        self,
        workers: int,
        *command: str | Path,
        environment: Mapping[str, str] | None = None,
        bounds: Mapping[Field, int] | None = None,
    ) -> list[Worker]:
        """`bounds` are of the first worker, which holds the lease."""
        common = {
            "WORLD_SIZE": str(workers),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "FAIRLEAD_GANG_PORT": str(free_port()),
            "FAIRLEAD_GANG_TOKEN": "between us",
            **(environment or {}),
        }
        return [
            self.launch(*command, environment=common, rank=rank, bounds=None if rank else bounds) for rank in range(workers)
        ]

    def close(self) -> None:
        for worker in self._launched:
            worker.process.kill()
            worker.process.communicate()
            worker.page.close()


def lines(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().split()]
