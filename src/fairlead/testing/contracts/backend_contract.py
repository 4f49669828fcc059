"""What every backend keeps to."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fairlead.core import events as ev
from fairlead.core.cluster import Cluster
from fairlead.core.job import Job
from fairlead.core.plan import Launches, RoundPlan
from fairlead.core.stages import Backend
from fairlead.engine.state import State
from fairlead.testing.builders import cluster
from fairlead.workloads.throughput_tables import ThroughputTable


class BackendContract:
    """Give `open(cluster, table, jobs)`, which makes a backend that these jobs will reach."""

    def open(self, machine: Cluster, table: ThroughputTable, jobs: list[Job]) -> Backend:
        raise TypeError("a backend's contract needs `open(cluster, table, jobs)`")

    def test_time_goes_forward_and_no_further_than_asked(self) -> None:
        backend, _ = self._backend()
        last = backend.now
        for until in (1.0, 5.0, 50.0):
            for event in backend.wait(until, 0.0):
                assert event.time <= until
            assert last <= backend.now <= until
            last = backend.now

    def test_what_is_launched_makes_progress_and_ends(self) -> None:
        backend, number = self._backend()
        events = [*backend.submit(self._launch(backend.now, number))]
        events += self._until(backend, (ev.JobsFinished,))
        assert any(isinstance(e, ev.ProgressReported) and number in e.jobs for e in events)
        finished = [e for e in events if isinstance(e, ev.JobsFinished)]
        assert number in finished[-1].jobs
        assert not math.isinf(finished[-1].time)

    def test_what_is_suspended_does_not_end(self) -> None:
        backend, number = self._backend()
        backend.submit(self._launch(backend.now, number))
        backend.wait(backend.now + 1.0, 0.0)
        backend.submit(RoundPlan(backend.now, suspended=np.array([number])))
        events = backend.wait(backend.now + 1000.0, 0.0)
        assert not any(isinstance(e, ev.JobsFinished) for e in events)

    def test_reconciling_tells_events(self) -> None:
        backend, _ = self._backend()
        machine = cluster("v100:2")
        assert all(isinstance(event, ev.Event) for event in backend.reconcile(State(machine).snapshot()))

    def _backend(self) -> tuple[Backend, int]:
        machine = cluster("v100:2")
        backend = self.open(machine, ThroughputTable.timed(machine.type_names), [Job("a", 0.0, 20.0)])
        events = self._until(backend, (ev.JobSubmitted,))
        return backend, next(e.number for e in events if isinstance(e, ev.JobSubmitted))

    def _until(self, backend: Backend, kinds: tuple[type[Any], ...]) -> list[ev.Event]:
        events: list[ev.Event] = []
        for _ in range(100):
            events += backend.wait(backend.now + 30.0, 0.0)
            if any(isinstance(event, kinds) for event in events):
                return events
        raise AssertionError(f"no event of {kinds} happened in 100 waits")

    def _launch(self, now: float, number: int) -> RoundPlan:
        return RoundPlan(now, launches=Launches(np.array([number]), np.array([0]), np.array([0, 1]), np.array([1])))
