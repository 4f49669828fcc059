"""The supervisor of a node: it starts, watches and stops all workers. It takes orders and returns reports, and waits only in
`wait`. One thread at a time may use it. Jobs keep running when it dies, and the next supervisor on the same root takes them
over. It knows no network."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import math
import os
import stat
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from fairlead.files import make_folder, remove, remove_empty
from fairlead.runtime.agent.agent_errors import DirectoryInUse, NodeError, OrderRefused, node_errors
from fairlead.runtime.agent.devices import MultiProcessService, NodeAccelerators
from fairlead.runtime.agent.fencing_deadline import FencingDeadline
from fairlead.runtime.agent.kept_outputs import DIRECTORY, read_output
from fairlead.runtime.agent.launch import RECORD, SETTLED, AgentLaunch, LaunchRecord, read_ended, stored_launches
from fairlead.runtime.agent.launcher import Launcher
from fairlead.runtime.agent.processes import ProcessTable, cgroup_limits
from fairlead.runtime.agent.settings import AgentSettings
from fairlead.runtime.agent.shim import LOG
from fairlead.runtime.agent.worker_logs import LogExcerpt, read_log_files
from fairlead.runtime.host import Host
from fairlead.runtime.protocol.code_archive import unpack_code
from fairlead.runtime.protocol.orders import MAX_COUNT, Ended, Extend, Kill, Launch, Report, Reroute, Revoke

log = logging.getLogger(__name__)

_MAX_READ = 1 << 20
_MAX_SWEEP = 10
_UNKNOWN_EXIT = 126  # exit status of a launch that is over, without a record of how it ended


class Supervisor:
    """Supervises the launches of one root directory."""

    def __init__(
        self,
        root: Path,
        accelerators: NodeAccelerators,
        settings: AgentSettings | None = None,
        host: Host | None = None,
        processes: ProcessTable | None = None,
    ) -> None:
        self._settings = settings or AgentSettings()
        self._host, self._processes = host or Host(), processes or ProcessTable()
        self._clock = self._host.monotonic
        self.root, self.accelerators = root.absolute(), accelerators
        self._jobs, self._code, self._aside = self.root / "jobs", self.root / "code", self.root / "aside"
        with node_errors(self.root):
            for folder in (self.root, self._jobs, self._code):
                self._settings.make_folder(folder)
            owner, anyone = self.root.lstat().st_uid, self.root.parent.stat().st_mode & stat.S_IWOTH
            if anyone and owner not in (0, os.geteuid()):  # as in /tmp: the folder was made to get at the jobs
                raise NodeError(self.root, "this folder belongs to another account: pass another --root")
            os.chmod(self._code, 0o700)  # jobs have links to its files
            self._lock = _locked(self.root / "lock")
            self._fencing_deadline = FencingDeadline(self.root)
        group = self._settings.cgroup
        self.limits = ",".join(cgroup_limits(group)) or "none" if group or self._settings.reports_limits else ""
        self.mps = MultiProcessService(self.root / "mps")
        self._launcher = Launcher(
            self._jobs,
            self._code,
            accelerators,
            self._settings,
            self.mps,
            self._fencing_deadline,
            self._host,
            self._processes,
        )
        self.leaving = False  # nothing is started any more
        self._latest_generation: dict[int, int] = {}
        self._launches: dict[tuple[int, int], AgentLaunch] = {}
        try:
            self._restore()
        except BaseException:
            self.close()
            raise

    def launch(self, order: Launch) -> Ended | None:
        """Start the workers, all or none. Repeating a launch changes nothing; if its end was acknowledged, returns how it
        ended, because the control plane may have forgotten it."""
        newest = self._latest_generation.get(order.job)
        if newest is not None and order.generation < newest:
            over = f"generation {order.generation} has ended; generation {newest} was launched on this node"
            raise OrderRefused(f"job {order.job}: {over}")
        if order.generation == newest:
            why = "it has ended on this node; its exit status is not known"
            unknown = Ended(*order.key, _UNKNOWN_EXIT, False, 0, 0, why)
            return None if self.has(order.key) else read_ended(self._jobs / str(order.job) / str(newest)) or unknown
        before = None if newest is None else self._launches.get((order.job, newest))
        if before is not None and before.ended is None:
            wait = f"generation {newest} still runs on this node; generation {order.generation} must wait for its end"
            raise OrderRefused(f"job {order.job}: {wait}")
        if self.leaving:
            raise NodeError(self.root, "the agent is leaving")
        if self._clock() >= self._fencing_deadline.times[0]:  # the order may be older than this agent's pause
            raise NodeError(self.root, "the agent's lease is over; nothing starts before it is renewed")
        held = [worker.accelerator for one in self.running() for worker in one.record.workers]
        self._launches[order.key] = self._launcher.start(order, held)
        self._latest_generation[order.job] = order.generation
        return None

    def has(self, launch: tuple[int, int]) -> bool:
        """Whether a launch runs here, or has ended here without an acknowledgement."""
        return launch in self._launches

    def carry_out(self, order: Revoke | Kill | Extend | Reroute) -> None:
        """Do what an order says; nothing if its launch has ended or was never here."""
        launch = self._launches.get(order.key)
        if launch is None or launch.ended is not None:
            return
        if isinstance(order, Revoke):
            launch.revoke(self._clock())
        elif isinstance(order, Kill):
            launch.kill(self._clock(), "killed at the request of the control plane")
        elif isinstance(order, Extend):
            launch.extend(order)
        else:
            launch.route(order.routing)

    def poll(self) -> list[Report]:
        """What happened since the last call. Also does what is due: kills after a grace period, or after a worker failed."""
        now = self._clock()
        return [report for launch in self._launches.values() for report in launch.poll(now)]

    def wait(self, timeout_s: float) -> None:
        """Return when a worker has ended, or after the timeout."""
        workers = [worker for launch in self._launches.values() for worker in launch.workers if worker.exit is None]
        self._processes.wait([worker.shim for worker in workers if worker.shim is not None], timeout_s)

    def running(self) -> list[AgentLaunch]:
        return [launch for launch in self._launches.values() if launch.ended is None]

    @property
    def has_central_renewals(self) -> bool:
        """Whether a job may be waiting for an answer to its renewal request (central renewal)."""
        return any(launch.record.central for launch in self.running())

    def set_fencing_deadline(self, until: float, grace_s: float) -> None:
        """The agent's lease runs until then. Without another call, all jobs have this long to leave afterwards, even without a
        supervisor."""
        with node_errors(self.root):
            self._fencing_deadline.move(until, until + self._saving_time(grace_s))

    def end_leases(self, grace_s: float = math.inf) -> None:
        """The agent's lease is over: ask all launches to stop, with their own grace period but no longer than this one."""
        now = self._clock()
        for launch in self.running():
            launch.revoke(now, min(launch.record.grace_s, self._saving_time(grace_s)))

    def _saving_time(self, grace_s: float) -> float:
        """The part of a grace period that is left for saving: killing takes time too."""
        return grace_s - min(self._settings.kill_patience_s, grace_s / 2)

    def stop_all(self, grace_s: float | None = None, since: float | None = None) -> None:
        """Ask all launches to stop for good; poll until none is running. Each has its own grace period, but no longer than
        `grace_s`. `since`: what has ended from then on may have been asked to stop before, by a signal."""
        now = self._clock()
        for launch in self.running():
            launch.revoke(now, None if grace_s is None else min(grace_s, launch.record.grace_s), for_good=True, since=since)

    def acknowledge(self, key: tuple[int, int]) -> None:
        """The control plane knows that a launch ended: a later supervisor does not report it again."""
        launch = self._launches.get(key)
        if launch is not None and launch.ended is not None:
            # On a full disk a later supervisor reports it again, which does no harm.
            with contextlib.suppress(OSError):
                (launch.directory / SETTLED).touch()
            launch.close()
            del self._launches[key]

    def set_aside(self) -> Path:
        """Move all launches, with their logs, out of the way, to be removed later: from now on the same numbers mean other
        jobs. Nothing may be running."""
        if self.running():
            raise OrderRefused("jobs still run here; their files cannot be moved")
        self._release_launches()
        self._latest_generation.clear()
        with node_errors(self.root):
            make_folder(self._aside, 0o700)
            place = next(place for n in count() if not (place := self._aside / str(n)).exists())
            self._jobs.rename(place)
            os.utime(place)
            self._settings.make_folder(self._jobs)
        return place

    def sweep(self, at: float, limit: int = _MAX_SWEEP) -> int:
        """Remove what is older at this wall-clock time than the settings keep: acknowledged launches, what was set aside, and
        unpacked code, which can be requested again. Removes at most `limit` folders, so that it does not take long."""
        before = at - self._settings.keep_s
        old: list[Path] = []
        with node_errors(self.root):
            for job, generation, directory in stored_launches(self._jobs):
                over = directory / SETTLED
                if (job, generation) not in self._launches and over.exists() and over.stat().st_mtime < before:
                    old.append(directory)
            for folder in (self._code, self._aside):
                old += [path for path in folder.glob("*") if path.lstat().st_mtime < before]
        for path in old[:limit]:
            remove(path)
            if path.parent not in (self._code, self._aside):
                remove_empty(path.parent / "checkpoints", path.parent)
        return len(old[:limit])

    def take_code(self, archive: bytes, digest: str) -> None:
        """Unpack a code archive for launches that need it."""
        with node_errors(self._code):
            unpack_code(archive, digest, self._code, self._settings.archives)

    def has_code(self, digest: str) -> bool:
        return self._launcher.has_code(digest)

    def read_log(self, job: int, generation: int, rank: int, offset: int = 0, limit: int = _MAX_READ) -> LogExcerpt:
        """A part of a worker's log; a negative offset counts from the end."""
        directory = self._jobs / str(int(job)) / str(int(generation)) / str(int(rank))
        if not directory.is_dir():
            raise OrderRefused(f"job {job}, generation {generation}: worker {rank} was not launched here, or was removed")
        with node_errors(directory):
            return read_log_files(directory / LOG, min(max(offset, -MAX_COUNT), MAX_COUNT), max(0, min(limit, _MAX_READ)))

    def log_tails(self, each: int, in_all: int) -> Iterator[tuple[int, int, int, LogExcerpt]]:
        """Job, generation, rank and the end of the log of all workers of this node, those of the most recent launches first; at
        most so many bytes of each, and of all."""
        with node_errors(self._jobs):
            stored = sorted(stored_launches(self._jobs), key=lambda one: one[2].stat().st_mtime, reverse=True)
            for job, generation, directory in stored:
                for rank in sorted(int(path.name) for path in directory.iterdir() if path.name.isdecimal()):
                    found = self.read_log(job, generation, rank, -each, each)
                    in_all -= len(found.data)
                    if in_all < 0:
                        return
                    yield job, generation, rank, found

    def read_output(self, job: int, generation: int, path: str, offset: int, limit: int) -> bytes:
        """A part of a file that a launch has kept, or of the list of them for an empty path."""
        place = self._jobs / str(int(job)) / str(int(generation)) / "0" / DIRECTORY
        try:
            return read_output(place, path, offset, max(0, min(limit, _MAX_READ)))
        except (OSError, ValueError):
            raise OrderRefused(f"job {job}, launch {generation}: no such output is stored here") from None

    def close(self) -> None:
        """Release everything and stop nothing."""
        self._release_launches()
        self._fencing_deadline.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _release_launches(self) -> None:
        for launch in self._launches.values():
            launch.close()
        self._launches.clear()

    def _restore(self) -> None:
        """Take over what earlier supervisors on this root left."""
        with node_errors(self._jobs):
            last_sign = self._fencing_deadline.moved_at
            for job, generation, directory in stored_launches(self._jobs):
                record = LaunchRecord.read(directory)
                if record is None:
                    record = self._launcher.unknown(job, generation, directory)
                    strays = [self._processes.has_strays(worker.variable) for worker in record.workers]
                    if not os.path.lexists(directory / RECORD) and not any(strays):
                        remove(directory)  # its agent died before the launch
                        continue
                    log.error("a launch without a valid record is ended", extra={"record": str(directory / RECORD)})
                self._latest_generation[job] = max(generation, self._latest_generation.get(job, 0))
                if not (directory / SETTLED).exists() or read_ended(directory) is None or record.runs(self._processes):
                    self._launches[job, generation] = AgentLaunch.restore(
                        record, directory, self._settings, self._host, self._processes, last_sign
                    )


def _locked(path: Path) -> int:
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        # The lock of a process: with flock, a child that the agent has just forked would keep it when the agent dies.
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        os.close(lock)
        raise DirectoryInUse(path.parent) from None
    return lock
