"""The narration of a run."""

from __future__ import annotations

import numpy as np

from fairlead.config.schedulers import Part, SchedulerConfig
from fairlead.core import events as ev
from fairlead.core.cluster import Cluster
from fairlead.core.job import Job
from fairlead.demo.story import Story
from fairlead.engine.journal import MemoryJournal
from fairlead.experiments.simulate import Simulation, run_simulation
from fairlead.workloads.trace import Trace


def told() -> tuple[Story, list[tuple[float, str]], list[list[str]]]:
    """Two jobs that take turns on a node with room for one of them, and a third that is cancelled at its side."""
    jobs = [Job("one", steps=250.0, workers=2), Job("two", steps=250.0, workers=2), Job("three", 10.0, steps=1000.0)]
    scheduler = SchedulerConfig(Part("las"), round_s=100.0)
    journal = MemoryJournal()
    others = (ev.JobCancelled(450.0, 2),)
    run_simulation(Simulation(Trace(tuple(jobs)), Cluster.parse("3xv100:3"), scheduler, others=others), journal=journal)
    story, lines, holders = Story(), [], []
    for event in journal.events:
        lines += [(event.time, line) for line in story.add(event)]
        holders.append(next(iter(story.running()))[1])
    return story, lines, holders


def test_turns_are_told_as_preemptions_and_as_going_on_from_there() -> None:
    story, lines, holders = told()
    assert lines[:2] == [(0.0, "one is submitted, a gang of 2"), (0.0, "two is submitted, a gang of 2")]
    assert (0.0, "one starts on v100-0") in lines
    assert (100.0, "one is preempted: it saves and leaves") in lines
    assert (200.0, "one resumes from step 100, on v100-0") in lines
    assert (450.0, "three is cancelled by its owner") in lines
    assert lines[-1][1].endswith("finishes")
    assert ["one", "one", "three"] in [sorted(names) for names in holders]
    assert story.preemptions == story.resumed > 1
    assert (story.over(3), story.over(4), story.waiting()) == (True, False, [])


def test_own_failures_and_batch_sizes_are_told() -> None:
    story, one = Story(), np.array([0])
    for event in (ev.JournalOpened(0.0, Cluster.parse("1xv100:1"), {}), ev.JobSubmitted(1.0, 0, Job("one"))):
        story.add(event)
    assert story.add(ev.MetricsReported(2.0, "batch_size", one, np.array([64.0]))) == ["one trains with a batch size of 64"]
    assert story.add(ev.MetricsReported(2.0, "loss", one, np.array([0.5]))) == []
    again = story.add(ev.JobsInterrupted(3.0, one, np.array([20.0]), own_fault=True))
    assert again == ["one fails and will be retried, from step 20"]
