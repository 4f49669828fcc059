"""What every journal keeps to, and one event of each kind to try it with."""

from __future__ import annotations

import math
import os
import signal
from pathlib import Path
from typing import ClassVar

import numpy as np

from fairlead.config.schedulers import SchedulerConfig
from fairlead.core import events as ev
from fairlead.core.cluster import AcceleratorType, Node
from fairlead.core.errors import JournalError
from fairlead.core.job import Job
from fairlead.core.plan import Launches, RoundPlan
from fairlead.core.reasons import Reasons
from fairlead.core.routes import Route
from fairlead.engine.apply import replay_events
from fairlead.engine.codec import encode
from fairlead.engine.journal import Journal
from fairlead.testing.builders import cluster
from fairlead.testing.contracts.scenes import SCENES, play


class JournalContract:
    """Give `open(path)`, which opens a journal in a folder, the same one each time; `keeps` is False for one that forgets when
    it is closed, `durable` is False for one whose commits do not outlive a writer that is killed."""

    keeps: ClassVar[bool] = True
    durable: ClassVar[bool] = True

    def open(self, folder: Path) -> Journal:
        raise TypeError("a journal's contract needs `open(folder)`")

    def test_events_come_back_as_they_went_in(self, tmp_path: Path) -> None:
        journal = self.open(tmp_path)
        events = every_event()
        for event in events:
            journal.append(event)
        assert [encode(e) for e in journal] == [encode(e) for e in events]
        journal.close()

    def test_commits_may_come_at_any_moment_and_change_nothing(self, tmp_path: Path) -> None:
        journal = self.open(tmp_path)
        events = every_event()
        journal.commit()
        for number, event in enumerate(events):
            journal.append(event)
            for _ in range(number % 3):
                journal.commit()
            assert [encode(e) for e in journal] == [encode(e) for e in events[: number + 1]]
        journal.close()

    def test_a_closed_journal_can_be_opened_and_continued(self, tmp_path: Path) -> None:
        if not self.keeps:
            return
        events = every_event()
        for part in (events[:3], events[3:]):
            journal = self.open(tmp_path)
            for event in part:
                journal.append(event)
            journal.close()
        journal = self.open(tmp_path)
        assert [encode(e) for e in journal] == [encode(e) for e in events]
        journal.close()

    def test_a_closed_journal_takes_no_more_and_can_be_closed_again(self, tmp_path: Path) -> None:
        if not self.keeps:
            return
        journal = self.open(tmp_path)
        journal.append(every_event()[0])
        journal.close()
        journal.close()
        try:
            journal.append(every_event()[1])
        except JournalError:
            return
        raise AssertionError("a closed journal accepted an event")

    def test_what_was_committed_outlives_a_writer_that_is_killed(self, tmp_path: Path) -> None:
        if not (self.keeps and self.durable):
            return
        events = every_event()
        for committed in (1, 7, len(events)):
            folder = tmp_path / str(committed)
            folder.mkdir()
            if (child := os.fork()) == 0:
                try:
                    journal = self.open(folder)
                    for number, event in enumerate(events):
                        journal.append(event)
                        if number + 1 == committed:
                            journal.commit()
                finally:
                    os.kill(os.getpid(), signal.SIGKILL)
            os.waitpid(child, 0)
            journal = self.open(folder)
            found = list(journal)
            assert len(found) >= committed
            assert [encode(e) for e in found] == [encode(e) for e in events[: len(found)]]
            for event in events[len(found) :]:
                journal.append(event)
            journal.commit()
            assert replay_events(journal).digest() == replay_events(events).digest()
            journal.close()

    def test_a_run_replays_to_the_same_state(self, tmp_path: Path) -> None:
        state, events = play(lambda table: SchedulerConfig.from_data({"policy": "las"}).build(table), *SCENES[1])
        journal = self.open(tmp_path)
        for event in events:
            journal.append(event)
        assert replay_events(journal).digest() == state.digest()
        journal.close()


def every_event() -> list[ev.Event]:
    """One of each, in an order that a journal could have."""
    one, machine = np.array([0]), cluster("v100:2")
    plan = RoundPlan(
        2.0,
        refused=((1, Reasons.needs(8, "GPUs", of_at_most=2)),),
        admitted=one,
        launches=Launches(one, one * 0, np.array([0, 2]), np.array([0, 1]), np.array([32])),
    )
    routes = {0: Route((0, 1), (0.75, 0.25), 8, 120.5)}
    return [
        ev.JournalOpened(0.0, machine, {"policy": "fifo"}, "every event", {"|2": (1.0,)}),
        ev.JobSubmitted(1.0, 0, Job("a", 1.0, 100.0, workers=2, deadline_s=50.0, allowed_types=("v100",))),
        ev.JobSubmitted(1.5, 1, Job("b", 1.5, workers=8)),
        ev.RoundPlanned(plan),
        ev.MemoChanged(2.0, {"queues": [1, 2], "share": np.array([0.5])}),
        ev.ObservationsRecorded(2.0, {"kind-0|1@v100": [[0, 0.5, 1.25]]}),
        ev.ProgressReported(2.0, one, np.array([0.0]), np.array([1.25]), np.array([2.5])),
        ev.MetricsReported(3.0, "loss", one, np.array([0.125])),
        ev.NodeLost(4.0, 0),
        ev.JobsInterrupted(4.0, one, np.array([1.0])),
        ev.NodeRepaired(5.0, 0),
        ev.NodeDrained(5.25, 0),
        ev.NodeDrained(5.3, 0, False, "new disk", "ann", 3600.0),
        ev.NodeDrained(5.5, 0, undo=True),
        ev.NodeBackedOff(5.6, 0, 35.6, "disk full"),
        ev.NodeRepaired(5.7, 0),
        ev.ControlPlaneRestarted(5.72, 5.71),
        ev.NodeAdded(5.75, 1, Node("k80-1", "k80", 4, cpus=16.0), AcceleratorType("k80", 12.0)),
        ev.NodeRepaired(5.8, 1),
        ev.NodeRemoved(5.9, 1),
        ev.SchedulerSwitched(6.0, {"policy": "las"}, "a test"),
        ev.RoundPlanned(RoundPlan(7.0, launches=Launches(one, one * 0, np.array([0, 2]), np.array([0, 1])), routes=routes)),
        ev.RoundPlanned(RoundPlan(8.0, suspended=one)),
        ev.RoundPlanned(RoundPlan(9.0, launches=Launches(one, one * 0, np.array([0, 2]), np.array([1, 0])))),
        ev.JobsFinished(10.0, one, np.array([9.75])),
        ev.JobSubmitted(11.0, 2, Job("c", 11.0, after=(0,))),
        ev.JobHeld(11.25, 2, "ann"),
        ev.JobUpdated(11.5, 2, {"priority": 3, "time_limit_s": 60.0, "account": "lab"}),
        ev.JobReleased(11.75, 2),
        ev.JobRequeued(11.9, 0, hold=True, by="ann"),
        ev.ForecastsRecorded(11.95, one, one + 12.0, one + 13.0, one + 15.5, one + 14.0, one + 19.0, one + math.inf, 1.5),
        ev.SlowdownExceeded(11.96, one, one + 1.5),
        ev.JobCancelled(12.0, 2),
    ]
