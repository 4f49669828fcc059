"""The real part of the demo: an embedded cluster, jobs that come and are cancelled at their seconds, and its journal, followed
while it is written."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairlead.core.events import Event
from fairlead.demo.story import Story
from fairlead.journal.jsonl import JsonlJournal
from fairlead.journal.recovery import read_journal
from fairlead.journal.sqlite import SqliteJournal
from fairlead.runtime.embedded import JOURNAL, NotUp, embedded, scratch
from fairlead.runtime.http_client import RefusedRequest

# The jobs of the demo: who comes when, and what each of them is there to show.

CLUSTER = "2xv100:2,2xk80:2"
STEP_S = 0.15


@dataclass(frozen=True)
class DemoJob:
    """A job and the second it is submitted at, counted from the first; with the second at which its owner cancels it."""

    second: float
    task: Mapping[str, Any]
    cancelled: float | None = None


def a_dozen() -> list[DemoJob]:
    """About 45 seconds on two nodes of two accelerators."""
    return [
        *(DemoJob(0.0, task(f"small-{n}", "small", steps)) for n, steps in enumerate((50, 60, 70, 40), 1)),
        DemoJob(1.0, task("endless", "endless", 10_000), cancelled=17.0),
        DemoJob(3.0, task("fails-once", "small", 45, "--fail-at", "22")),
        DemoJob(4.0, task("gang", "gang", 45, workers=2)),
        DemoJob(5.0, task("grows", "growing", 60, "--double-every", "20")),
        DemoJob(8.0, task("large-1", "large", 110)),
        DemoJob(10.0, task("large-2", "large", 90)),
        DemoJob(14.0, task("late-1", "small", 30)),
        DemoJob(16.0, task("late-2", "small", 30)),
    ]


def a_few() -> list[DemoJob]:
    """One of each, for those in a hurry: as long as one sees turns being taken on a slow machine too, where a job's first step
    comes late and until then nobody else has its place."""
    return [
        DemoJob(0.0, task("gang", "gang", 20, workers=2)),
        DemoJob(0.0, task("fails-once", "small", 24, "--fail-at", "18")),
        DemoJob(0.0, task("small", "small", 24)),
        DemoJob(0.0, task("grows", "growing", 24, "--double-every", "8")),
        DemoJob(0.0, task("endless", "endless", 10_000), cancelled=5.0),
        DemoJob(0.0, task("late", "small", 10)),
    ]


def task(name: str, kind: str, steps: int, *words: str, workers: int = 1) -> dict[str, Any]:
    run = [sys.executable, "-m", "fairlead.demo.demo_job", "--steps", str(steps), "--step-s", str(STEP_S), *words]
    given = {"name": name, "kind": kind, "run": run, "steps": steps, "workers": workers, "retries": 1}
    path = os.environ.get("PYTHONPATH")
    return given | ({"env": {"PYTHONPATH": path}} if path else {})


LOOK_S = 0.2
PATIENCE_S = 300.0


def run_demo(
    coming: Sequence[DemoJob],
    *,
    policy: str,
    round_s: float,
    journal: Path,
    heard: Callable[[Story, Sequence[tuple[Event, Sequence[str]]]], None],
) -> Story:
    """Run the jobs to their end. `heard` is told of every new event with what is to be said of it, and, several times a second,
    of none. The journal is left as a file of its own; everything else of the cluster is gone."""
    story = Story()
    with scratch("demo") as folder:
        root = folder / "cluster"
        with embedded(root, "--cluster", CLUSTER, "--policy", policy, "--round", str(round_s)) as plane:
            began, seen = time.monotonic(), 0
            to_come = sorted(coming, key=lambda one: one.second)
            to_cancel = sorted((one for one in coming if one.cancelled), key=lambda one: one.cancelled or 0.0)
            with contextlib.closing(SqliteJournal(root / JOURNAL, write=False)) as follows:
                while not story.over(len(coming)):
                    passed = time.monotonic() - began
                    if passed > PATIENCE_S:
                        raise NotUp(f"the jobs have not ended after {PATIENCE_S:g} s")
                    due = [to_come.pop(0).task for one in tuple(to_come) if one.second <= passed]
                    if due:
                        plane.submit(due)
                    while to_cancel and (to_cancel[0].cancelled or 0.0) <= passed:
                        with contextlib.suppress(RefusedRequest):  # it has ended meanwhile
                            plane.cancel(str(to_cancel.pop(0).task["name"]))
                    new = [(event, story.tell(event)) for event in follows.after(seen)]
                    seen += len(new)
                    heard(story, new)
                    time.sleep(LOOK_S)
        kept = JsonlJournal(journal, fresh=True)
        for event in read_journal(str(root / JOURNAL)):
            kept.append(event)
        kept.close()
    return story
