"""The real part of the demo: an embedded cluster, jobs that come and are cancelled at their seconds, and its journal, followed
while it is written."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from fairlead.core.events import Event
from fairlead.demo.story import Story
from fairlead.demo.tasks import CLUSTER, Coming
from fairlead.engine.journal import JsonlJournal
from fairlead.journals.opening import read_journal
from fairlead.journals.sqlite import SqliteJournal
from fairlead.runtime.embedded import JOURNAL, NotUp, embedded
from fairlead.runtime.people import RefusedRequest
from fairlead.runtime.scratch import scratch

LOOK_S = 0.2
PATIENCE_S = 300.0


def play(
    coming: Sequence[Coming],
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
