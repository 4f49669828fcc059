"""A narration of a run from the events of its journal: which jobs start, are preempted, resume and end. Pure: events in, lines
out. It also keeps the state, which shows the jobs on each GPU now."""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.core import events as ev
from fairlead.core.job import Phase
from fairlead.engine.apply import apply_event
from fairlead.engine.state import State


class Story:
    """The narration of a run; add every event of its journal in order."""

    def __init__(self) -> None:
        self.state: State | None = None
        self.preemptions, self.resumed = 0, 0
        self._preempted: set[int] = set()

    def add(self, event: ev.Event) -> list[str]:
        """Apply an event; returns its lines of narration, none for events that are not of interest."""
        if isinstance(event, ev.JournalOpened):
            self.state = State(event.cluster)
        if self.state is None:
            return []
        lines = list(self._lines(event, self.state))
        apply_event(self.state, event)
        return lines

    def running(self) -> Iterator[tuple[str, list[str]]]:
        """Each node's name, and the job on each of its GPUs."""
        state = self.state
        if state is None:
            return
        holders = [""] * state.cluster.size
        for number, place in zip(*(column.tolist() for column in state.device_map.places(state.running))):
            holders[place] = state.job_of[number].name
        for node, first in zip(state.cluster.nodes, state.cluster.first_of.tolist()):
            yield node.name, holders[first : first + node.accelerators]

    def waiting(self) -> list[str]:
        """The names of the waiting jobs."""
        if self.state is None:
            return []
        phases = self.state.columns["phase"]
        return [job.name for number, job in self.state.job_of.items() if phases[number] < int(Phase.RUNNING)]

    def over(self, jobs: int) -> bool:
        """Whether this many jobs were submitted and all have ended."""
        return self.state is not None and self.state.next_number == jobs and not self.state.busy

    def _lines(self, event: ev.Event, state: State) -> Iterator[str]:
        if isinstance(event, ev.JobSubmitted):
            gang = f", a gang of {event.job.workers}" if event.job.workers > 1 else ""
            yield f"{event.job.name} is submitted{gang}"
        elif isinstance(event, ev.RoundPlanned):
            yield from self._planned(event, state)
        elif isinstance(event, ev.JobsInterrupted):
            why = "fails and will be retried" if event.own_fault else "loses its node"
            for number, steps in zip(event.jobs.tolist(), event.steps.tolist()):
                yield f"{state.job_of[number].name} {why}, from step {steps:.0f}"
                self._preempted.add(number)
        elif isinstance(event, ev.MetricsReported) and event.name == "batch_size":
            for number, size in zip(event.jobs.tolist(), event.values.tolist()):
                yield f"{state.job_of[number].name} trains with a batch size of {size:.0f}"
        elif isinstance(event, (ev.JobsFinished, ev.JobsFailed)):
            how = "finishes" if isinstance(event, ev.JobsFinished) else f"has failed: {event.why}"
            yield from (f"{state.job_of[number].name} {how}" for number in event.jobs.tolist())
        elif isinstance(event, ev.JobCancelled):
            yield f"{state.job_of[event.number].name} is cancelled by its owner"

    def _planned(self, event: ev.RoundPlanned, state: State) -> Iterator[str]:
        starts = event.plan.launches
        bounds = starts.offsets.tolist()
        again = set(starts.jobs.tolist())
        for number in event.plan.suspended.tolist():
            if number not in again:
                self.preemptions += 1
                self._preempted.add(number)
                yield f"{state.job_of[number].name} is preempted: it saves and leaves"
        for number, begin, end in zip(starts.jobs.tolist(), bounds, bounds[1:]):
            nodes = sorted(
                {state.cluster.nodes[n].name for n in state.cluster.node_of[starts.accelerators[begin:end]].tolist()}
            )
            where = " and ".join(nodes)
            steps = f"{state.columns['base_steps'][number]:.0f}"
            if number in event.plan.suspended:
                yield f"{state.job_of[number].name} moves to {where}"
            elif number in self._preempted:
                self.resumed += 1
                self._preempted.discard(number)
                yield f"{state.job_of[number].name} resumes from step {steps}, on {where}"
            else:
                yield f"{state.job_of[number].name} starts on {where}"
