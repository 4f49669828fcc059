"""A node for tests: a supervisor on a root of its own, jobs that are small Python scripts, and waiting with a deadline."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from fairlead.runtime.agent.devices import NodeAccelerators
from fairlead.runtime.agent.processes import with_variable
from fairlead.runtime.agent.settings import AgentSettings
from fairlead.runtime.agent.supervisor import Supervisor
from fairlead.runtime.host import Host
from fairlead.runtime.protocol.orders import Ended, Kill, Launch, Metric, Progress, Report, Revoke, Task

PATIENCE_S = 120.0

RUNS_FOREVER = "import signal, sys; print('up', flush=True)\nwhile True: signal.pause()"

IGNORES_SIGTERM = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + RUNS_FOREVER

OPENS = """
import os
from fairlead.client.lease_page import Field, Page, Stage
page = Page(os.environ["FAIRLEAD_LEASE"])
page[Field.OPENED] = 1
"""

LEASED = f"""
import sys, time
{OPENS}
print("up", flush=True)
page[Field.STAGE] = Stage.RUNNING
page[Field.BEGAN_NS] = time.monotonic_ns()
while not page[Field.REVOKED]:
    time.sleep(0.001)
    page[Field.LAST_NS] = time.monotonic_ns()
    page[Field.STEPS] += 1
page[Field.SAVED] = page[Field.STEPS]
page[Field.STAGE] = Stage.YIELDED
"""


class Clock(Host):
    """The real clock, which can also be set forward and be stopped."""

    def __init__(self) -> None:
        self.skipped_s = 0.0
        self._stopped_at: float | None = None

    def monotonic(self) -> float:
        return (time.monotonic() if self._stopped_at is None else self._stopped_at) + self.skipped_s

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """However slow the machine is, only `passes` makes anything due meanwhile."""
        self._stopped_at = time.monotonic()
        try:
            yield
        finally:
            self.skipped_s -= time.monotonic() - self._stopped_at
            self._stopped_at = None

    def passes(self, seconds: float) -> None:
        self.skipped_s += seconds


def order(script: str = "", *, job: int = 1, generation: int = 1, ranks: int = 1, **more: object) -> Launch:
    task = Task((sys.executable, "-c", script))
    fields = {name: more.pop(name) for name in tuple(more) if name in Task.__dataclass_fields__}
    launch = Launch(job, generation, f"job-{job}", replace(task, **fields), tuple(range(ranks)), tuple(range(ranks)), ranks)
    return replace(launch, **more)


class Node:
    def __init__(
        self, root: Path, settings: AgentSettings | None = None, accelerators: str | NodeAccelerators = "v100:4"
    ) -> None:
        self.root, self.clock = root, Clock()
        self.settings = settings or AgentSettings()
        self.accelerators = NodeAccelerators.parse(accelerators) if isinstance(accelerators, str) else accelerators
        self.reports: list[Report] = []
        self.supervisor = self._supervisor()

    def _supervisor(self) -> Supervisor:
        return Supervisor(self.root, self.accelerators, self.settings, self.clock)

    def restarts(self) -> None:
        self.supervisor.close()
        self.supervisor = self._supervisor()

    def launch(self, launch: Launch) -> Launch:
        self.supervisor.launch(launch)
        return launch

    def starts(self, launch: Launch) -> Launch:
        """Launches it and waits until each worker has printed a line: it may come in pieces."""
        self.launch(launch)
        for rank in launch.ranks:
            self.until(lambda rank=rank: "\n" in self.printed(launch, rank), "a first line")
        return launch

    def revoke(self, launch: Launch) -> None:
        self.supervisor.carry_out(Revoke(launch.job, launch.generation))

    def kill(self, launch: Launch) -> None:
        self.supervisor.carry_out(Kill(launch.job, launch.generation))

    def until(self, condition: Callable[[], object], what: str = "the condition") -> object:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            self.reports += self.supervisor.poll()
            if found := condition():
                return found
            assert time.monotonic() < deadline, f"waited in vain for {what}; told: {self.reports}"
            self.supervisor.wait(0.01)

    def ended(self, launch: Launch) -> Ended:
        return self.until(lambda: self.ends_of(launch), f"the end of {launch.name}")[0]

    def ends_of(self, launch: Launch) -> list[Ended]:
        key = (launch.job, launch.generation)
        return [reports for reports in self.reports if isinstance(reports, Ended) and (reports.job, reports.generation) == key]

    def metrics(self) -> list[tuple[str, float]]:
        return [(reports.name, reports.value) for reports in self.reports if isinstance(reports, Metric)]

    def progress(self) -> list[Progress]:
        return [reports for reports in self.reports if isinstance(reports, Progress)]

    def printed(self, launch: Launch, rank: int = 0) -> str:
        return self.supervisor.read_log(launch.job, launch.generation, rank).data.decode()

    def directory(self, launch: Launch) -> Path:
        return self.root / "jobs" / str(launch.job) / str(launch.generation)

    def workers(self, launch: Launch) -> list[int]:
        """Whoever lives and belongs to a launch, by its environment; shims are not among them."""
        found = []
        for rank in launch.ranks:
            found += with_variable(f"FAIRLEAD_LEASE={self.directory(launch) / str(rank) / 'lease'}")
        return [process.pid for process in found]

    def close(self) -> None:
        """Nothing outlives a test."""
        self.supervisor.stop_all(0.0)
        self.clock.passes(1.0)
        self.until(lambda: not self.supervisor.running(), "the end of everything")
        self.supervisor.close()
        deadline = time.monotonic() + PATIENCE_S
        while _zombies():  # a shim of a supervisor that was closed before it ended, which `subprocess` reaps later
            assert time.monotonic() < deadline, "shims that nobody reaped"
            subprocess._cleanup()
            time.sleep(0.01)


def _zombies() -> list[str]:
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = Path(f"/proc/{name}/stat").read_bytes().rpartition(b")")[2].split()  # the name before it may be no text
        except OSError:
            continue
        if fields[0] == b"Z" and int(fields[1]) == os.getpid():
            found.append(name)
    return found
