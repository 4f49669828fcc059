"""Who starts, watches and stops all workers of a node. It takes orders and tells what happened; it does not wait, except in
`wait`. One thread at a time may use it. Nothing it started depends on it: a supervisor that dies leaves its jobs running, and
the next one on the same root takes them over."""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import select
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

from fairlead.files import make_folder, remove, remove_empty
from fairlead.runtime.agent.agent_errors import (
    DirectoryInUse,
    NodeError,
    OrderRefused,
    StaleGeneration,
    StillRunning,
    node_errors,
)
from fairlead.runtime.agent.archives import unpack
from fairlead.runtime.agent.devices import NodeAccelerators
from fairlead.runtime.agent.launch import Launched, RunningLaunch
from fairlead.runtime.agent.launch_records import RECORD, SETTLED, Record, Stop, boot, launches, read_ended
from fairlead.runtime.agent.launcher import Starter
from fairlead.runtime.agent.lease_file import LeaseFile
from fairlead.runtime.agent.mps import MultiProcessService
from fairlead.runtime.agent.settings import DEFAULTS, AgentSettings
from fairlead.runtime.agent.shim import LOG, FencingDeadline
from fairlead.runtime.agent.worker import REPORTS, Worker
from fairlead.runtime.agent.worker_logs import Excerpt, read
from fairlead.runtime.agent.worker_reports import WorkerReports
from fairlead.runtime.protocol.orders import Ended, Extend, Kill, Launch, Report, Reroute, Revoke

READ_AT_ONCE = 1 << 20
SWEPT_AT_ONCE = 10
UNKNOWN = 126
"""The exit status of a launch of which only that it is over is known."""


class Supervisor:
    def __init__(
        self,
        root: Path,
        accelerators: NodeAccelerators,
        settings: AgentSettings = DEFAULTS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.root, self.accelerators, self._settings, self._clock = root.absolute(), accelerators, settings, clock
        self._jobs, self._code, self._aside = self.root / "jobs", self.root / "code", self.root / "aside"
        with node_errors(self.root):
            for folder in (self.root, self._jobs, self._code):
                make_folder(folder, settings.folder_mode)
            self._lock = _locked(self.root / "lock")
            self._lifeline = FencingDeadline(self.root / "lifeline")
        self._sharing = MultiProcessService(self.root / "mps")
        self._starter = Starter(self._jobs, self._code, accelerators, settings, self._sharing, self._lifeline.path)
        self._newest: dict[int, int] = {}
        self._launched: dict[tuple[int, int], Launched] = {}
        try:
            self._find()
        except BaseException:
            self.close()
            raise

    def launch(self, order: Launch) -> Ended | None:
        """Starts the workers, all or none. The same launch again changes nothing; where it has ended and that was
        acknowledged, how: of half a gang only the control plane's memory had it, which may be gone."""
        newest = self._newest.get(order.job)
        if newest is not None:
            if order.generation < newest:
                raise StaleGeneration(order.job, order.generation, newest)
            if order.generation == newest:
                return None if self.has(order.job, newest) else self._how_it_ended(order)
            before = self._launched.get((order.job, newest))
            if before is not None and before.ended is None:
                raise StillRunning(order.job, order.generation, newest)
        held = [accelerator for one in self.running() for accelerator in one.accelerators]
        self._launched[order.job, order.generation] = self._starter.start(order, held)
        self._newest[order.job] = order.generation
        return None

    def _how_it_ended(self, order: Launch) -> Ended:
        found = read_ended(self._jobs / str(order.job) / str(order.generation))
        return found or Ended(order.job, order.generation, UNKNOWN, False, 0, 0, "it has ended here, nobody knows how any more")

    def has(self, job: int, generation: int) -> bool:
        """Whether it runs here, or has ended here and that was not acknowledged yet."""
        return (job, generation) in self._launched

    def revoke(self, order: Revoke) -> None:
        """Lets it save and stop. What has ended, or was never here, needs no more."""
        if (launched := self._launched.get((order.job, order.generation))) is not None:
            launched.revoke(self._clock())

    def kill(self, order: Kill) -> None:
        launched = self._launched.get((order.job, order.generation))
        if launched is not None and launched.ended is None:
            launched.kill(self._clock(), "killed because it was not wanted any more")

    def extend(self, order: Extend) -> None:
        """New bounds for a launch that asked for more."""
        if (launched := self._launched.get((order.job, order.generation))) is not None:
            launched.extend(order)

    def reroute(self, order: Reroute) -> None:
        """Other numbers for a launch that serves requests."""
        if (launched := self._launched.get((order.job, order.generation))) is not None:
            launched.route(order.routing)

    def poll(self) -> list[Report]:
        """What happened since the last call, and whatever is due by now: kills at the end of a grace, siblings of the
        failed."""
        now = self._clock()
        told: list[Report] = []
        for launched in self._launched.values():
            told += launched.poll(now)
        return told

    def wait(self, timeout_s: float) -> None:
        """Returns when a worker has ended, or after the timeout."""
        ends = select.poll()
        for launched in self._launched.values():
            for worker in launched.workers:
                if worker.exit is None and worker.handle is not None:
                    ends.register(worker.handle, select.POLLIN)
        ends.poll(max(0.0, timeout_s) * 1000)

    def running(self) -> list[RunningLaunch]:
        return [launched.running for launched in self._launched.values() if launched.ended is None]

    @property
    def is_waited_for(self) -> bool:
        """Whether a job does nothing beyond its bounds until it is answered (central renewal)."""
        return any(launched.record.central and launched.ended is None for launched in self._launched.values())

    def hold(self, until: float, grace_s: float) -> None:
        """The agent's lease runs until then. If nothing more is heard, all that runs here has so long to leave after that,
        whether or not there is a supervisor to see to it."""
        with node_errors(self.root):
            self._lifeline.move(until, until + self._grace(grace_s))

    def expire(self, grace_s: float = math.inf) -> None:
        """The agent's own lease is over: everything is asked to stop, and has its own grace, but no longer than this one."""
        now = self._clock()
        for launched in self._launched.values():
            launched.revoke(now, min(launched.record.grace_s, self._grace(grace_s)))

    def _grace(self, grace_s: float) -> float:
        """What is left for saving of the time in which all must be gone: killing takes a while too."""
        return grace_s - min(self._settings.kill_patience_s, grace_s / 2)

    def stop_all(self, grace_s: float | None = None) -> None:
        """Asks everything to stop, for good; keep polling until nothing is running. None: each has its own grace."""
        now = self._clock()
        for launched in self._launched.values():
            launched.revoke(now, grace_s, for_good=True)

    def stop_mps(self) -> None:
        """Ends the services of shared accelerators, for an agent that has stopped everything and leaves."""
        self._sharing.close()

    def acknowledge(self, job: int, generation: int) -> None:
        """Whoever had to know that a launch ended knows it: a later supervisor does not tell it again."""
        launched = self._launched.get((job, generation))
        if launched is not None and launched.ended is not None:
            # On a disk that takes nothing a later supervisor tells it once more, which does no harm.
            with contextlib.suppress(OSError):
                launched.settle()
            launched.close()
            del self._launched[job, generation]

    def set_aside(self) -> Path:
        """All that is known of jobs, their logs too, goes where it is not looked for any more, and is removed after a while:
        from now on the same numbers mean other jobs. Nothing may be running."""
        if self.running():
            raise OrderRefused("jobs still run here; they cannot be set aside")
        for launched in self._launched.values():
            launched.close()
        self._launched.clear()
        self._newest.clear()
        with node_errors(self.root):
            make_folder(self._aside, self._settings.folder_mode)
            place = next(place for n in count() if not (place := self._aside / str(n)).exists())
            self._jobs.rename(place)
            os.utime(place)
            make_folder(self._jobs, self._settings.folder_mode)
        return place

    def sweep(self, at: float, most: int = SWEPT_AT_ONCE) -> int:
        """Removes what is older than the settings keep at a moment of the calendar: launches whose end was heard of, what was
        set aside, and unpacked code, which is asked for again where a job needs it. At most so many at once, so that nobody
        waits long."""
        before = at - self._settings.keep_s
        old: list[Path] = []
        with node_errors(self.root):
            for job, generation, directory in launches(self._jobs):
                over = directory / SETTLED
                if (job, generation) not in self._launched and over.exists() and over.stat().st_mtime < before:
                    old.append(directory)
            for folder in (self._code, self._aside):
                old += [path for path in folder.glob("*") if path.stat().st_mtime < before]
        for path in old[:most]:
            remove(path)
            if path.parent not in (self._code, self._aside):
                remove_empty(path.parent / "checkpoints", path.parent)
        return len(old[:most])

    def take_code(self, archive: bytes, digest: str) -> None:
        unpack(archive, digest, self._code, self._settings.archives)

    def has_code(self, digest: str) -> bool:
        return self._starter.has_code(digest)

    def read_log(self, job: int, generation: int, rank: int, offset: int = 0, limit: int = READ_AT_ONCE) -> Excerpt:
        desk = self._jobs / str(int(job)) / str(int(generation)) / str(int(rank))
        if not desk.is_dir():
            raise OrderRefused(f"job {job}, generation {generation}: worker {rank} was not launched here, or is forgotten")
        with node_errors(desk):
            return read(desk / LOG, offset, max(0, min(limit, READ_AT_ONCE)))

    def ignored_reports(self) -> int:
        """Lines of reports that made no sense, over all launches at hand."""
        return sum(launched.ignored_reports for launched in self._launched.values())

    def close(self) -> None:
        """Lets go of everything and stops nothing."""
        for launched in self._launched.values():
            launched.close()
        self._launched.clear()
        self._lifeline.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _find(self) -> None:
        """Takes over what earlier supervisors on this root left."""
        with node_errors(self._jobs):
            for job, generation, directory in launches(self._jobs):
                record = Record.read(directory)
                if record is None and not (directory / RECORD).exists():
                    remove(directory)  # its agent died before anything began
                    continue
                self._newest[job] = max(generation, self._newest.get(job, 0))
                if record is None:
                    raise NodeError(directory / RECORD, "not a record of this version; end what it names and remove its folder")
                ended = read_ended(directory)
                if ended is None:
                    self._launched[job, generation] = _found(record, directory, self._settings)
                elif not (directory / SETTLED).exists():
                    self._launched[job, generation] = Launched.over(record, directory, self._settings, ended)


def _found(record: Record, directory: Path, settings: AgentSettings) -> Launched:
    same_boot = record.boot == boot()
    workers = []
    for worker in record.workers:
        lease = None
        with contextlib.suppress(OSError):  # pages in memory do not outlive the machine
            lease = LeaseFile(Path(worker.page))
        workers.append(Worker(worker, directory / str(worker.rank), lease, None, same_boot))
    reports = None
    with contextlib.suppress(OSError):
        reports = WorkerReports(directory / str(record.workers[0].rank) / REPORTS)
    stop = Stop.read(directory) if same_boot else None
    return Launched(record, directory, workers, reports, settings, stop, found=True)


def _locked(path: Path) -> int:
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        # The process's own, unlike flock's, which a child that an agent has just forked would hold on to when the agent dies.
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        os.close(lock)
        raise DirectoryInUse(path.parent) from None
    return lock
