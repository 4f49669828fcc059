"""One launch of a job on this node, from its start to its end: when it is asked to stop, when it is killed, what is reported.
It decides by the time that it is given; its workers deal with processes and files. An agent stores a launch in
`root/jobs/JOB/GENERATION/`, so that the next agent can take it over:

- `record.json`: what was launched and the processes, written before any of them starts;
- `stop.json`: that it was asked to stop, and by when;
- `ended.json`: how it ended, and `settled` when the control plane has acknowledged the end;
- `RANK/`: each worker's exit, log and reports."""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

from pydantic import Field

from fairlead.client.lease_page import Stage
from fairlead.core.job import LAUNCH_FAILED, signal_name
from fairlead.files import write_json
from fairlead.runtime.agent.lease_file import LeaseFile, WorkerStatus
from fairlead.runtime.agent.processes import ProcessTable
from fairlead.runtime.agent.settings import AgentSettings
from fairlead.runtime.agent.shim import CUT_OFF, TOO_LATE, Exit
from fairlead.runtime.agent.stored_records import MonotonicTime, Nanoseconds, RecordSchema, Seconds
from fairlead.runtime.agent.worker import REPORTS, AgentWorker, WorkerRecord
from fairlead.runtime.agent.worker_reports import StepRate, WorkerReports
from fairlead.runtime.host import Host
from fairlead.runtime.protocol.orders import (
    Count,
    Ended,
    Extend,
    Metric,
    Progress,
    RenewalRequest,
    Report,
    RequestRouting,
    Text,
)

RECORD, SETTLED = "record.json", "settled"
_STOP, _ENDED = "stop.json", "ended.json"
_VERSION = 1
_NUMBER = re.compile(r"0|[1-9][0-9]{0,14}")

_REPEAT_REQUEST_S = 1.0  # a renewal request without an answer is repeated: it may have been lost

_SIGNAL_MARGIN_S = 5.0  # later than its grace period and this, a worker does not end because of a signal

_LEFT_AFTER_SIGTERM = (0, -signal.SIGTERM, 128 + signal.SIGTERM)
"""Exit statuses of a script without a lease after SIGTERM: by its own exit, by the signal, or as a shell reports the signal."""


@dataclass(frozen=True, slots=True)
class LaunchRecord:
    """What the agent stores on disk about a launch."""

    job: Count
    generation: Count
    name: Text
    world_size: Count
    cooperative: bool
    grace_s: Seconds
    max_s: Seconds
    boot: Text  # id of the machine's boot that the processes belong to
    workers: Annotated[tuple[WorkerRecord, ...], Field(min_length=1)]
    central: bool = False
    version: Annotated[int, Field(ge=_VERSION, le=_VERSION)] = _VERSION

    def runs(self, processes: ProcessTable) -> bool:
        """Whether a process of it is alive: then it has not ended, whatever other records say."""
        return self.boot == processes.boot_id() and any(
            processes.is_alive(one.pid, one.started) if one.pid else processes.has_strays(one.variable) for one in self.workers
        )

    def write(self, directory: Path) -> None:
        write_json(directory / RECORD, asdict(self))

    @classmethod
    def read(cls, directory: Path) -> LaunchRecord | None:
        """The record in a launch's directory, of that launch; None without one that this version can read."""
        found = _RECORD.read(directory / RECORD)
        return found if found is not None and _is_of(found, directory) else None


@dataclass(frozen=True, slots=True)
class _Stop:
    """A launch that was asked to stop. `deadline` is monotonic."""

    deadline: MonotonicTime
    why: Text  # for users, when it is killed at the deadline
    asked: bool  # because a lease ended, and not because another worker failed
    signalled: bool = False  # SIGTERM was sent although the job may know its lease: it had not opened it yet
    asked_ns: Nanoseconds = 0  # monotonic, when it was asked or signalled


_RECORD, _STOPS, _ENDS = RecordSchema(LaunchRecord), RecordSchema(_Stop), RecordSchema(Ended)


def read_ended(directory: Path) -> Ended | None:
    """How a launch ended, from its directory; None: there is no valid record."""
    found = _ENDS.read(directory / _ENDED)
    return found if found is not None and _is_of(found, directory) else None


def _is_of(record: LaunchRecord | Ended, directory: Path) -> bool:
    """Whether a record is about the launch of its directory, and not about another one."""
    return (str(record.job), str(record.generation)) == (directory.parent.name, directory.name)


def stored_launches(jobs: Path) -> Iterator[tuple[int, int, Path]]:
    """Job, generation and directory of all launches on disk, earlier generations first."""
    for job in sorted(jobs.iterdir(), key=lambda path: path.name):
        if not _NUMBER.fullmatch(job.name) or not job.is_dir() or job.is_symlink():
            continue
        generations = [path for path in job.iterdir() if _NUMBER.fullmatch(path.name) and path.is_dir()]
        for directory in sorted(generations, key=lambda path: int(path.name)):
            yield int(job.name), int(directory.name), directory


class AgentLaunch:
    """A launch and its state. `workers` are in the order of their ranks, `reports` those of the first. `stop` and `restored`
    are of a launch of an earlier agent: how often its lease was renewed is not certain, so its time counts again."""

    def __init__(
        self,
        record: LaunchRecord,
        directory: Path,
        workers: list[AgentWorker],
        reports: WorkerReports | None,
        settings: AgentSettings,
        host: Host,
        stop: _Stop | None = None,
        restored: bool = False,
        last_sign: float = 0.0,
    ) -> None:
        self.record, self.directory, self.workers, self._host = record, directory, workers, host
        self.ended: Ended | None = None  # then only `poll` and `close` may be called
        self._reports, self._settings = reports, settings
        self._stop = stop
        self._max_s = record.max_s
        self._began: float | None = None
        self._restored, self._last_sign = restored, last_sign
        self._killed = ""  # why
        self._last_progress = (0, 0, 0)  # steps, steps saved, batch size
        self._step_rate = StepRate()
        self._end_reported = False
        self._requested: tuple[int, float] = (0, 0.0)  # which renewal, and when

    @classmethod
    def restore(
        cls,
        record: LaunchRecord,
        directory: Path,
        settings: AgentSettings,
        host: Host,
        processes: ProcessTable,
        last_sign: float = 0.0,
    ) -> AgentLaunch:
        """A launch of an earlier agent. It runs, or has ended and its end may not have been reported. `last_sign`: Unix time at
        which that agent was last alive, for workers that ended without a record of when."""
        if (ended := read_ended(directory)) is not None and not record.runs(processes):
            launch = cls(record, directory, [], None, settings, host)
            launch.ended = ended
            return launch
        same_boot = record.boot == processes.boot_id()
        workers = []
        for worker in record.workers:
            lease = None
            with contextlib.suppress(OSError):  # pages in memory do not survive a reboot
                lease = LeaseFile(Path(worker.page))
            shim = processes.find_shim(worker.pid, worker.started) if same_boot else None
            workers.append(AgentWorker(worker, directory / str(worker.rank), lease, shim, host))
        reports = None
        with contextlib.suppress(OSError):
            reports = WorkerReports(directory / str(record.workers[0].rank) / REPORTS)
        stop = _STOPS.read(directory / _STOP) if same_boot else None
        return cls(record, directory, workers, reports, settings, host, stop, restored=True, last_sign=last_sign)

    @property
    def key(self) -> tuple[int, int]:
        return self.record.job, self.record.generation

    @property
    def stopping(self) -> bool:
        """Whether it was asked to stop, or is being killed."""
        return bool(self._stop or self._killed)

    def revoke(self, now: float, grace_s: float | None = None, *, for_good: bool = False, since: float | None = None) -> None:
        """Ask it to stop; asking again can only bring the deadline closer. A job that has not opened its lease gets SIGTERM: it
        has nothing to save, or has no lease at all. `for_good`: so does one that has not made its first step. `since`: when it
        may have been asked before."""
        grace_s = self.record.grace_s if grace_s is None else grace_s
        # Workers of a gang on other nodes may have opened theirs, and would fail if they lost these.
        whole = for_good or len(self.workers) == self.record.world_size
        new = whole and all(_not_started(one.status) and (for_good or not one.status.opened) for one in self.workers)
        signalled = self.record.cooperative and new
        why = f"killed {grace_s:g} s after it was asked to stop"
        asked_ns = int((self._host.monotonic() if since is None else since) * 1e9)
        stop = _Stop(now + grace_s, why, asked=True, signalled=signalled, asked_ns=asked_ns)
        before = self._stop
        if before is not None and before.asked:
            nearer = stop if stop.deadline < before.deadline else before
            signalled = signalled and not before.signalled
            if signalled or nearer is stop:
                asked_ns = (stop if signalled else before).asked_ns
                self._set_stop(replace(nearer, signalled=signalled or before.signalled, asked_ns=asked_ns))
            if signalled:
                self._terminate()
            return
        self._set_stop(stop if before is None else replace(stop, deadline=min(stop.deadline, before.deadline)))
        if signalled or not self.record.cooperative:
            self._terminate()
        else:  # the first worker of a gang informs the others; without it here, one of these has to ask it
            for worker in self.workers[:1] if for_good or self.workers[0].record.rank == 0 else ():
                worker.revoke()

    def kill(self, now: float, why: str) -> None:
        """Kill all workers; to be repeated until they have ended."""
        self._killed = self._killed or why
        for worker in self.workers:
            worker.kill(now, self._settings.kill_patience_s)

    def extend(self, order: Extend) -> None:
        if order.renewal > self.workers[0].status.renewals:
            self._max_s = order.max_s
            for worker in self.workers:
                worker.extend(order.renewal, order.max_steps, order.max_s)

    def route(self, routing: RequestRouting) -> None:
        for worker in self.workers:
            worker.route(routing)

    def poll(self, now: float) -> list[Report]:
        """Do what is due, and return what is new."""
        if self._end_reported:
            return []
        if self.ended is None:
            for worker in self.workers:
                worker.check_exit()
            self._kill_if_due(now)
        over = all(worker.exit is not None for worker in self.workers)
        reports = self._new_reports(over, now)
        if over:
            self.ended = self.ended or self._end()
            reports.append(self.ended)
            self._end_reported = True
            self.close()
        return reports

    def close(self) -> None:
        """Release all files; the workers keep running."""
        for worker in self.workers:
            worker.close()
        if self._reports is not None:
            self._reports.close()

    def _kill_if_due(self, now: float) -> None:
        if all(worker.exit is not None for worker in self.workers):
            return
        failed = self._first_failed()
        if failed is not None and self._stop is None:
            why = f"worker {failed.record.rank} failed and the others did not end within {self._settings.sibling_grace_s:g} s"
            self._set_stop(_Stop(now + self._settings.sibling_grace_s, why, asked=False))
        if self._began is None and (began_ns := self.workers[0].status.began_ns):
            self._began = now if self._restored else min(began_ns / 1e9, now)
        if self._max_s and self._began is not None and now > self._began + self._max_s + self.record.grace_s:
            self.kill(now, f"killed {self.record.grace_s:g} s after its {self._max_s:g} s were over")
        elif self._stop is not None and now >= self._stop.deadline:
            self.kill(now, self._stop.why)
        elif self._killed:
            self.kill(now, self._killed)

    def _new_reports(self, over: bool, now: float) -> list[Report]:
        if not self.workers:
            return []
        status = self.workers[0].status
        reports: list[Report] = []
        rate = self._step_rate.update(status.began_at, status.began_ns, status.steps, status.last_ns)
        if (progress := (status.steps, status.saved, status.batch_size)) != self._last_progress:
            reports.append(Progress(*self.key, status.steps, status.saved, rate, status.batch_size))
            self._last_progress = progress
        if self._must_request(status, now) and not over:
            self._requested = (status.wants_more, now)
            reports.append(RenewalRequest(*self.key, status.wants_more))
        if self._reports is not None:
            values = self._reports.rest() if over else self._reports.read()
            reports += [Metric(*self.key, name, value) for name, value in values]
        return reports

    def _must_request(self, status: WorkerStatus, now: float) -> bool:
        which, requested_s = self._requested
        wants = status.wants_more == status.renewals + 1 and self._stop is None and not self._killed
        return wants and (which != status.wants_more or now >= requested_s + _REPEAT_REQUEST_S)

    def _end(self) -> Ended:
        statuses = [worker.status for worker in self.workers]
        exits = [worker.exit for worker in self.workers if worker.exit is not None]
        asked = self._stop is not None and self._stop.asked
        in_time = self._stop is not None and any(exit.at_ns >= self._stop.asked_ns for exit in exits)  # else it ended by itself
        clean = all(exit.code == 0 for exit in exits)
        by_shim = any(0 < exit.asked_ns <= exit.at_ns for exit in exits)  # at the fencing deadline, or as this agent asked
        finished = clean and any(status.stage == Stage.FINISHED for status in statuses)
        saving_ns = (self.record.grace_s + _SIGNAL_MARGIN_S) * 1e9
        if any(exit.signalled_ns > 0 and exit.at_ns <= exit.signalled_ns + saving_ns for exit in exits):
            yielded = not self._killed and not finished  # whatever its status: an engine has signalled all processes
        elif self._stop is not None and self._stop.signalled and in_time:
            yielded = not self._killed and not finished
        elif self.record.cooperative and by_shim:
            yielded = not finished
        elif self.record.cooperative:
            # Without its page it is not known whether it has finished or left when asked: it resumes from its checkpoint.
            yielded = clean and any(one.page_is_lost or one.status.stage == Stage.YIELDED for one in self.workers)
        else:
            yielded = ((asked and in_time) or by_shim) and all(exit.code in _LEFT_AFTER_SIGTERM for exit in exits)
        failed = None if yielded else self._first_failed()
        node_fault = failed is not None and failed.exit is not None and failed.exit.node_fault
        # A worker that did not leave when asked has not failed by itself, unless a cooperative worker failed before and the
        # others waited for it.
        by_itself = self.record.cooperative and failed is not None and failed.exit is not None and failed.exit.code > 0
        overstayed = self._stop is not None and asked and self._killed == self._stop.why and not by_itself
        yielded = yielded or overstayed or node_fault or any(exit.why in (CUT_OFF, TOO_LATE) for exit in exits)
        ended = Ended(
            *self.key,
            code=LAUNCH_FAILED if node_fault else failed.exit.code if failed is not None and failed.exit is not None else 0,
            yielded=yielded,
            steps=statuses[0].steps,
            saved=statuses[0].saved,
            why=self._why(failed),
            rank=0 if failed is None else failed.record.rank,
            permanent=failed is not None and failed.exit is not None and failed.exit.permanent,
            ended_at=max(worker.ended_at or self._last_sign for worker in self.workers),
        )
        # A full disk must not keep a job from ending; the end can be derived again from the exits and pages.
        with contextlib.suppress(OSError):
            write_json(self.directory / _ENDED, asdict(ended))
            for worker in self.workers:
                Path(worker.record.page).unlink(missing_ok=True)
        return ended

    def _why(self, failed: AgentWorker | None) -> str:
        if failed is None or failed.exit is None:
            return ""
        by_failure = self._stop is not None and not self._stop.asked and self._killed == self._stop.why
        return self._killed if self._killed and not by_failure else _exit_text(failed.record.rank, failed.exit)

    def _first_failed(self) -> AgentWorker | None:
        failed = [(worker.exit.at_ns, worker) for worker in self.workers if worker.exit is not None and worker.exit.code != 0]
        return min(failed, key=lambda pair: pair[0])[1] if failed else None

    def _terminate(self) -> None:
        for worker in self.workers:
            worker.terminate()

    def _set_stop(self, stop: _Stop) -> None:
        self._stop = stop
        with contextlib.suppress(OSError):  # it only informs the next agent
            write_json(self.directory / _STOP, asdict(stop))


def _not_started(status: WorkerStatus) -> bool:
    """Whether it has neither done a step nor saved since it was launched."""
    return status.stage == Stage.STARTING and not status.began_ns


def _exit_text(rank: int, exit: Exit) -> str:
    if exit.why:
        return f"worker {rank}: {exit.why}"
    if exit.code < 0:
        return f"worker {rank} was ended by {signal_name(-exit.code)}"
    return f"worker {rank} ended with status {exit.code}"
