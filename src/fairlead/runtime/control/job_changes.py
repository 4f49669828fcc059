"""What users do to submitted jobs on a real cluster: hold, release, requeue and update become events, and orders to agents."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fairlead.core import events as ev
from fairlead.core.job import UPDATABLE_ENDED, Phase
from fairlead.engine.state import State
from fairlead.files import remove
from fairlead.runtime.control.inbox import Answer, Inbox, ignore
from fairlead.runtime.control.job_tracker import TrackedJobs
from fairlead.runtime.control.launches import Addressed, LaunchTracker


@dataclass
class JobChanges:
    """Requests to change jobs, from any thread. `state` is read in the loop's thread; events of the same commit are not in it
    yet, but `jobs` and `launches` know of them."""

    jobs: TrackedJobs
    launches: LaunchTracker
    inbox: Inbox
    send: Callable[[Sequence[Addressed]], None]
    finished: set[int]  # jobs that had finished before a restart
    checkpoints: str = ""
    state: Callable[[], State] = field(init=False)  # set when there is a loop

    def hold(self, number: int, by: str, answer: Answer = ignore) -> None:
        """Hold a job that does not run; other jobs get no event."""

        def handle(now: float) -> list[ev.Event]:
            return [ev.JobHeld(now, number, by)] if number in self.jobs and not self._runs(number) else []

        self.inbox.put(handle, answer)

    def release(self, number: int, answer: Answer = ignore) -> None:
        """Release a held job."""
        self.inbox.put(lambda now: [ev.JobReleased(now, number)] if number in self.jobs else [], answer)

    def requeue(self, number: int, hold: bool, by: str, answer: Answer = ignore, *, ended: bool = True) -> None:
        """Requeue a job: a running one saves and stops when the event is in the journal, an `ended` one may run again, a
        finished one without its checkpoints. A waiting job gets an event only with `hold`."""
        orders: list[Addressed] = []
        outdated: list[Path] = []

        def handle(now: float) -> list[ev.Event]:
            state = self.state()
            if number not in self.jobs:
                if not ended or state.columns["phase"][number] <= int(Phase.RUNNING):
                    return []  # it has ended since the request, or ends with this commit
                if state.columns["phase"][number] == int(Phase.FINISHED) and self.checkpoints:
                    outdated.append(Path(self.checkpoints) / str(number))
                self.jobs.revive(number, state, now)
                self.finished.discard(number)
            elif self._runs(number):
                self.jobs.suspend(number, now)
                orders.extend(self.launches.revoke(number))
            elif not hold:
                return []
            return [ev.JobRequeued(now, number, hold, by)]

        def stop(events: Sequence[ev.Event]) -> None:
            self.send(orders)
            for folder in outdated:
                remove(folder)
            answer(events)

        self.inbox.put(handle, stop)

    def update(self, number: int, changes: Mapping[str, Any], answer: Answer = ignore) -> None:
        """Change fields of a job; the time limit of a running job counts from the start of its first launch. A job that has
        ended meanwhile gets no event, unless these fields can still be changed."""

        def handle(now: float) -> list[ev.Event]:
            state, tracked = self.state(), self.jobs.get(number)
            if tracked is None and not set(changes) <= set(UPDATABLE_ENDED):
                return []
            if tracked is not None:
                a, tracked.job = state.columns, replace(tracked.job, **changes)
                ran_s = float(a["settled_run_s"][number]) - state.uncounted_s(number)
                started_s = float(a["run_started_s"][number]) if self._runs(number) else None
                self.jobs.limits.change(number, tracked.job.time_limit_s, ran_s, started_s)
            return [ev.JobUpdated(now, number, changes)]

        self.inbox.put(handle, answer)

    def _runs(self, number: int) -> bool:
        """Whether a plan has started a job, and nothing has stopped it since. At its time limit it runs until it has left."""
        run, tracked = self.launches.latest(number), self.jobs.get(number)
        leaves = run is not None and run.revoked and not (tracked is not None and tracked.limit_reached)
        return run is not None and not leaves and not run.dropped and not run.over
