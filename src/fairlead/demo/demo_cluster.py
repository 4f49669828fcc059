"""The demo's cluster: jobs are submitted to and cancelled on a local cluster at given times, and its journal is followed while
it is written. It prints nothing."""

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
from fairlead.runtime.embedded import JOURNAL, ClusterStartError, embedded, scratch_folder
from fairlead.runtime.http_client import RefusedRequest

CLUSTER = "2xv100:2,2xk80:2"
STEP_S = 0.15


@dataclass(frozen=True)
class DemoJob:
    """A job with the seconds at which it is submitted and cancelled."""

    second: float
    task: Mapping[str, Any]
    cancelled: float | None = None


def a_dozen() -> list[DemoJob]:
    """About 45 seconds on two nodes of two accelerators."""
    return [
        *(DemoJob(0.0, _task(f"small-{n}", "small", steps)) for n, steps in enumerate((50, 60, 70, 40), 1)),
        DemoJob(1.0, _task("endless", "endless", 10_000), cancelled=17.0),
        DemoJob(3.0, _task("fails-once", "small", 45, "--fail-at", "22")),
        DemoJob(4.0, _task("gang", "gang", 45, workers=2)),
        DemoJob(5.0, _task("grows", "growing", 60, "--double-every", "20")),
        DemoJob(8.0, _task("large-1", "large", 110)),
        DemoJob(10.0, _task("large-2", "large", 90)),
        DemoJob(14.0, _task("late-1", "small", 30)),
        DemoJob(16.0, _task("late-2", "small", 30)),
    ]


def a_few() -> list[DemoJob]:
    """One job of each kind, long enough to show preemptions on a slow machine too."""
    return [
        DemoJob(0.0, _task("gang", "gang", 40, workers=2)),
        DemoJob(0.0, _task("fails-once", "small", 36, "--fail-at", "27")),
        DemoJob(0.0, _task("small", "small", 36)),
        DemoJob(0.0, _task("grows", "growing", 24, "--double-every", "8")),
        DemoJob(0.0, _task("endless", "endless", 10_000), cancelled=12.0),
        DemoJob(0.0, _task("late", "small", 20)),
    ]


def _task(name: str, kind: str, steps: int, *words: str, workers: int = 1) -> dict[str, Any]:
    run = [sys.executable, "-m", "fairlead.demo.demo_job", "--steps", str(steps), "--step-s", str(STEP_S), *words]
    fields = {"name": name, "kind": kind, "run": run, "steps": steps, "workers": workers, "retries": 1}
    path = os.environ.get("PYTHONPATH")
    return fields | ({"env": {"PYTHONPATH": path}} if path else {})


_POLL_S = 0.2
_TIMEOUT_S = 300.0


def run_demo(
    jobs: Sequence[DemoJob],
    *,
    policy: str,
    round_s: float,
    journal: Path,
    on_events: Callable[[Story, Sequence[tuple[Event, Sequence[str]]]], None],
) -> Story:
    """Run the jobs to their end. `on_events` gets each new event with its lines of narration, and several times a second an
    empty list. The journal is kept as a file; the rest of the cluster is removed."""
    story = Story()
    with scratch_folder("demo") as folder:
        root = folder / "cluster"
        with embedded(root, "--cluster", CLUSTER, "--policy", policy, "--round", str(round_s)) as plane:
            began, events_read = time.monotonic(), 0
            to_submit = sorted(jobs, key=lambda one: one.second)
            to_cancel = sorted((one for one in jobs if one.cancelled), key=lambda one: one.cancelled or 0.0)
            with contextlib.closing(SqliteJournal(root / JOURNAL, write=False)) as follows:
                while not story.over(len(jobs)):
                    passed = time.monotonic() - began
                    if passed > _TIMEOUT_S:
                        raise ClusterStartError(f"the jobs have not ended after {_TIMEOUT_S:g} s")
                    due = [to_submit.pop(0).task for one in tuple(to_submit) if one.second <= passed]
                    if due:
                        plane.submit(due)
                    while to_cancel and (to_cancel[0].cancelled or 0.0) <= passed:
                        with contextlib.suppress(RefusedRequest):  # it has ended meanwhile
                            plane.cancel(str(to_cancel.pop(0).task["name"]))
                    new = [(event, story.add(event)) for event in follows.after(events_read)]
                    events_read += len(new)
                    on_events(story, new)
                    time.sleep(_POLL_S)
        kept = JsonlJournal(journal, fresh=True)
        for event in read_journal(str(root / JOURNAL)):
            kept.append(event)
        kept.close()
    return story
