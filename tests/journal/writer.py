"""A writer in a process of its own, that dies when it is told to; and what its journal must then say."""

from __future__ import annotations

import math
import os
import signal
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence

from fairlead.config.schedulers import SchedulerConfig
from fairlead.engine.apply import apply_event, replay_events
from fairlead.engine.codec import encode
from fairlead.engine.state import State
from fairlead.journal.recovery import recover
from fairlead.journal.sql_journal import DatabaseJournal
from fairlead.testing.contracts import SCENES, play

EVENTS = play(lambda table: SchedulerConfig.from_data({"policy": "max-min-fairness"}).build(table), *SCENES[1])[1]
"""A run with submissions, plans, memos, progress and finishes."""

Acknowledges = Callable[[int], None]


class Process:
    """Runs `work(acknowledge)` in a child; what it acknowledges is heard here, in order."""

    def __init__(self, work: Callable[[Acknowledges], None]) -> None:
        hears, says = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(hears)
            code = 1
            try:
                work(lambda number: _say(says, number))
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        os.close(says)
        self._lines = os.fdopen(hears)

    def heard(self) -> Iterator[int]:
        """Each number when it comes, until the process is over."""
        for line in self._lines:
            yield int(line)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def ended(self) -> int:
        """Waits for it: its exit status, or the negative signal."""
        _, status = os.waitpid(self.pid, 0)
        self._lines.close()
        return os.waitstatus_to_exitcode(status)


def _say(pipe: int, number: int) -> None:
    os.write(pipe, b"%d\n" % number)


def write_on(
    journal: DatabaseJournal, acknowledge: Acknowledges, *, batches: Sequence[int] = (1, 2, 7), snapshots: bool = True
) -> None:
    """Go on with EVENTS from where the journal stands, in commits of several sizes; now and then a snapshot, and old events go.
    A commit is acknowledged when it is over, by the number of its last event."""
    state, turn = State(EVENTS[0].cluster), 0  # type: ignore[union-attr]
    for event in EVENTS[: journal.last]:
        apply_event(state, event)
    at = journal.last
    while at < len(EVENTS):
        batch = EVENTS[at : at + batches[turn % len(batches)]]
        for event in batch:
            journal.append(event)
            apply_event(state, event)
        journal.commit()
        at, turn = at + len(batch), turn + 1
        acknowledge(at)
        if snapshots and turn % 5 == 0:
            journal.snapshot(state)
        if snapshots and turn % 15 == 0:
            journal.retain(2, math.inf)


def check_kept(journal: DatabaseJournal, acknowledged: int) -> None:
    """All that was acknowledged is there, the journal leads to the state of the same events in memory, and can be continued."""
    assert journal.last >= acknowledged
    last = journal.last
    if last:
        state, reached = recover(journal)
        assert (reached, state.digest()) == (last, replay_events(EVENTS[:last]).digest())
    left = [encode(event) for event in journal]
    assert left == [encode(event) for event in EVENTS[last - len(left) : last]]


def check_continued(journal: DatabaseJournal) -> None:
    """The same run goes on to its end as if nothing had been."""
    write_on(journal, lambda number: None, batches=(50,))
    state, last = recover(journal)
    assert (last, state.digest()) == (len(EVENTS), replay_events(EVENTS).digest())


def last_of(numbers: Iterable[int]) -> int:
    return max(numbers, default=0)
