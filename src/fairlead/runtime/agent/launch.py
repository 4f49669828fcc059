"""One launch of a job on this node, from its start to its end: when it is asked to stop, when it is killed, what is told about
it. It decides by the clock it is handed; processes and files are the worker's business."""

from __future__ import annotations

import contextlib
import signal
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from fairlead.client.lease_page import Stage
from fairlead.core.job import signal_name
from fairlead.files import write_json
from fairlead.runtime.agent.launch_records import ENDED, SETTLED, Record, Stop
from fairlead.runtime.agent.lease_file import WorkerStatus
from fairlead.runtime.agent.settings import AgentSettings
from fairlead.runtime.agent.shim import CUT_OFF, Exit
from fairlead.runtime.agent.worker import Worker
from fairlead.runtime.agent.worker_reports import Pace, WorkerReports
from fairlead.runtime.protocol.orders import Ended, Extend, Metric, Progress, RenewalRequest, Report, RequestRouting

ASK_AGAIN_S = 1.0
"""A renewal that was asked for and not answered is asked for again: the question may have been lost."""

_LEFT_WHEN_ASKED = (0, -signal.SIGTERM, 128 + signal.SIGTERM)
"""How a script that knows no lease ends when it is sent SIGTERM: in its own time, at once, or as a shell puts it."""


@dataclass(frozen=True, slots=True)
class RunningLaunch:
    """A launch that has not ended."""

    job: int
    generation: int
    name: str
    ranks: tuple[int, ...]
    accelerators: tuple[int, ...]
    steps: int
    stopping: bool


class Launched:
    """`workers` are in the order of their ranks, and `reports` are those of the first."""

    def __init__(
        self,
        record: Record,
        directory: Path,
        workers: list[Worker],
        reports: WorkerReports | None,
        settings: AgentSettings,
        stop: Stop | None,
        found: bool = False,
    ) -> None:
        """`found`: an earlier agent launched it. How often its lease was renewed by then is not known for sure: its time counts
        anew."""
        self.record, self.directory, self.workers = record, directory, workers
        self.ended: Ended | None = None
        self._reports, self._settings = reports, settings
        self._stop = stop
        self._max_s = record.max_s
        self._began: float | None = None
        self._found = found
        self._killed = ""  # why
        self._told: Progress | None = None
        self._pace = Pace()
        self._told_end = False
        self._asked: tuple[int, float] = (0, 0.0)  # which renewal, and when

    @classmethod
    def over(cls, record: Record, directory: Path, settings: AgentSettings, ended: Ended) -> Launched:
        """One that ended under an earlier agent, and of which perhaps nobody was told."""
        launched = cls(record, directory, [], None, settings, None)
        launched.ended = ended
        return launched

    @property
    def running(self) -> RunningLaunch:
        standing = self.workers[0].standing
        return RunningLaunch(
            self.record.job,
            self.record.generation,
            self.record.name,
            tuple(worker.rank for worker in self.record.workers),
            tuple(worker.accelerator for worker in self.record.workers),
            standing.steps,
            bool(self._stop or self._killed),
        )

    @property
    def ignored_reports(self) -> int:
        return self._reports.ignored if self._reports else 0

    def revoke(self, now: float, grace_s: float | None = None, *, for_good: bool = False) -> None:
        """Once asked, asking again can only bring the end nearer. `for_good`: nobody wants its first step any more, so that who
        has not looked at its lease, and perhaps never will, is sent SIGTERM."""
        if self.ended is not None:
            return
        grace_s = self.record.grace_s if grace_s is None else grace_s
        signalled = for_good and self.record.cooperative and all(_idle(worker.standing) for worker in self.workers)
        stop = Stop(now + grace_s, f"killed {grace_s:g} s after it was asked to stop", asked=True, signalled=signalled)
        before = self._stop
        if before is not None and before.asked:
            nearer = stop if stop.deadline < before.deadline else before
            signalled = signalled and not before.signalled
            if signalled or nearer is stop:
                self._stop_by(replace(nearer, signalled=signalled or before.signalled))
            if signalled:
                self._ask()
            return
        self._stop_by(stop if before is None else replace(stop, deadline=min(stop.deadline, before.deadline)))
        if signalled or not self.record.cooperative:
            self._ask()
        elif self.workers[0].record.rank == 0:
            self.workers[0].revoke()

    def kill(self, now: float, why: str) -> None:
        self._killed = self._killed or why
        for worker in self.workers:
            worker.end(now, self._settings.kill_patience_s)

    def extend(self, order: Extend) -> None:
        if self.ended is None and order.renewal > self.workers[0].standing.renewals:
            self._max_s = order.max_s
            for worker in self.workers:
                worker.extend(order.renewal, order.max_steps, order.max_s)

    def route(self, routed: RequestRouting) -> None:
        if self.ended is None:
            for worker in self.workers:
                worker.route(routed)

    def poll(self, now: float) -> list[Report]:
        if self._told_end:
            return []
        if self.ended is None:
            for worker in self.workers:
                worker.look()
            self._hurry(now)
        over = all(worker.exit is not None for worker in self.workers)
        told = self._news(over, now)
        if over:
            self.ended = self.ended or self._end()
            told.append(self.ended)
            self._told_end = True
            self.close()
        return told

    def settle(self) -> None:
        (self.directory / SETTLED).touch()

    def close(self) -> None:
        for worker in self.workers:
            worker.close()
        if self._reports is not None:
            self._reports.close()

    def _hurry(self, now: float) -> None:
        left = [worker for worker in self.workers if worker.exit is None]
        if not left:
            return
        failed = self._first_failed()
        if failed is not None and self._stop is None:
            why = f"worker {failed.record.rank} failed and the others did not end within {self._settings.sibling_grace_s:g} s"
            self._stop_by(Stop(now + self._settings.sibling_grace_s, why, asked=False))
        if self._began is None and (began_ns := self.workers[0].standing.began_ns):
            self._began = now if self._found else min(began_ns / 1e9, now)
        if self._max_s and self._began is not None and now > self._began + self._max_s + self.record.grace_s:
            self.kill(now, f"killed {self.record.grace_s:g} s after its {self._max_s:g} s were over")
        elif self._stop is not None and now >= self._stop.deadline:
            self.kill(now, self._stop.why)
        elif self._killed:
            self.kill(now, self._killed)

    def _news(self, over: bool, now: float) -> list[Report]:
        if not self.workers:
            return []
        job, generation, standing = self.record.job, self.record.generation, self.workers[0].standing
        told: list[Report] = []
        rate = self._pace.see(standing.began_at, standing.began_ns, standing.steps, standing.last_ns)
        progress = Progress(job, generation, standing.steps, standing.saved, rate, standing.batch_size)
        before = self._told or Progress(job, generation, 0, 0, 0.0)
        if replace(progress, rate=0.0) != replace(before, rate=0.0):
            told.append(progress)
            self._told = progress
        if self._must_ask(standing, now) and not over:
            self._asked = (standing.wants_more, now)
            told.append(RenewalRequest(job, generation, standing.wants_more))
        if self._reports is not None:
            said = self._reports.rest() if over else self._reports.read()
            told += [Metric(job, generation, name, value) for name, value in said]
        return told

    def _must_ask(self, standing: WorkerStatus, now: float) -> bool:
        which, asked_s = self._asked
        wants = standing.wants_more == standing.renewals + 1 and self._stop is None and not self._killed
        return wants and (which != standing.wants_more or now >= asked_s + ASK_AGAIN_S)

    def _end(self) -> Ended:
        standings = [worker.standing for worker in self.workers]
        exits = [worker.exit for worker in self.workers if worker.exit is not None]
        asked = self._stop is not None and self._stop.asked
        if self.record.cooperative and not (self._stop is not None and self._stop.signalled):
            clean = all(exit.code == 0 for exit in exits)
            yielded = clean and any(standing.stage == Stage.YIELDED for standing in standings)
        else:
            yielded = asked and all(exit.code in _LEFT_WHEN_ASKED for exit in exits)
        failed = None if yielded else self._first_failed()
        # Who did not leave when asked has not failed by itself, whoever it was that asked; unless one that knows its lease did
        # before, and the others waited for it.
        by_itself = self.record.cooperative and failed is not None and failed.exit is not None and failed.exit.code > 0
        overstayed = self._stop is not None and asked and self._killed == self._stop.why and not by_itself
        yielded = yielded or overstayed or any(exit.why == CUT_OFF for exit in exits)
        ended = Ended(
            self.record.job,
            self.record.generation,
            code=failed.exit.code if failed is not None and failed.exit is not None else 0,
            yielded=yielded,
            steps=standings[0].steps,
            saved=standings[0].saved,
            why=self._why(failed),
            rank=0 if failed is None else failed.record.rank,
        )
        # A disk that takes nothing must not keep a job from ending; it can be told anew from the exits and pages.
        with contextlib.suppress(OSError):
            write_json(self.directory / ENDED, asdict(ended))
            for worker in self.workers:
                Path(worker.record.page).unlink(missing_ok=True)
        return ended

    def _why(self, failed: Worker | None) -> str:
        if failed is None or failed.exit is None:
            return ""
        by_failure = self._stop is not None and not self._stop.asked and self._killed == self._stop.why
        return self._killed if self._killed and not by_failure else _how(failed.record.rank, failed.exit)

    def _first_failed(self) -> Worker | None:
        failed = [(worker.exit.at_ns, worker) for worker in self.workers if worker.exit is not None and worker.exit.code != 0]
        return min(failed, key=lambda pair: pair[0])[1] if failed else None

    def _ask(self) -> None:
        for worker in self.workers:
            worker.ask()

    def _stop_by(self, stop: Stop) -> None:
        self._stop = stop
        # It is asked all the same where this cannot be written; only the next agent would not know.
        with contextlib.suppress(OSError):
            stop.write(self.directory)


def _idle(standing: WorkerStatus) -> bool:
    """Whether it has not done a step, or saved one, since it was launched."""
    return standing.stage == Stage.STARTING and not standing.began_ns


def _how(rank: int, exit: Exit) -> str:
    if exit.why:
        return f"worker {rank}: {exit.why}"
    if exit.code < 0:
        return f"worker {rank} was ended by {signal_name(-exit.code)}"
    return f"worker {rank} ended with status {exit.code}"
