"""One launch of a real cluster, how it ended, and a table of launches that finds those of a job or a node without a scan of all
of them."""

from __future__ import annotations

import math
import secrets
import signal
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias, TypeVar

from fairlead.runtime.protocol import orders as od

T = TypeVar("T")


class LaunchEnd(Enum):
    """How a launch ended."""

    YIELDED = "yielded"  # saved and left when revoked
    FINISHED = "finished"
    FAILED = "failed"  # by its own fault
    LOST = "lost"  # its node is gone, or does not know it
    DROPPED = "dropped"  # killed: the job has ended


@dataclass(frozen=True)
class LaunchOutcome:
    """What a launch left behind."""

    job: int
    generation: int
    end: LaunchEnd
    saved: int  # steps in its last checkpoint
    code: int = 0
    why: str = ""
    revoked: bool = False  # before it ended
    node: int = -1  # where it failed
    rank: int = 0  # that failed
    stopped_s: float = math.inf  # when its last process ended; infinity: now, below 0: not known
    permanent: bool = False  # another attempt would fail too
    steps: int = 0  # that it has done


@dataclass(frozen=True)
class NodeRanks:
    """The workers of a launch on one node."""

    node: int
    ranks: tuple[int, ...]
    accelerators: tuple[int, ...]  # on the node, from 0


Key: TypeAlias = tuple[int, int]  # a job's number and a generation


@dataclass
class TrackedLaunch:
    """One launch. `waits_for` are launches that still have to leave its accelerators."""

    job: int
    generation: int
    name: str
    task: od.Task
    assignment: tuple[NodeRanks, ...]
    saved: int = 0  # steps in the checkpoint that it begins with, or a later one
    parameters: od.LaunchParameters = field(default_factory=od.LaunchParameters)
    waits_for: set[Key] = field(default_factory=set)
    sent: bool = False
    unsent: set[int] = field(default_factory=set)  # nodes that have not received it although others have
    revoked: bool = False
    dropped: bool = False
    ended: dict[int, od.Ended] = field(default_factory=dict)  # by node
    lost: set[int] = field(default_factory=set)  # nodes
    stopped_s: float = -math.inf  # the last of its ends that are known
    lost_s: float = math.inf  # when the first of its lost nodes was last known to run
    gang_token: str = field(default_factory=lambda: secrets.token_hex(16))
    user: str = ""  # that submitted the job

    @property
    def key(self) -> Key:
        return self.job, self.generation

    @property
    def leaving(self) -> bool:
        """Whether it runs and was asked to leave."""
        return self.sent and (self.revoked or self.dropped)

    @property
    def places(self) -> set[tuple[int, int]]:
        """Its accelerators, as (node, accelerator on the node)."""
        return {(part.node, place) for part in self.assignment for place in part.accelerators}

    @property
    def nodes_left(self) -> list[int]:
        """Nodes on which it may still run."""
        return [part.node for part in self.assignment if part.node not in self.ended and part.node not in self.lost]

    @property
    def over(self) -> bool:
        """Whether nothing of it runs."""
        return not self.nodes_left

    @property
    def broken(self) -> bool:
        """Whether a worker has failed: the rest of the gang must end."""
        return any(end.code for end in self.ended.values())

    @property
    def world_size(self) -> int:
        return sum(len(part.ranks) for part in self.assignment)

    def cancel_unsent(self) -> None:
        """Never start it on the remaining nodes: the launch would arrive after the order to leave."""
        self.lost |= self.unsent
        self.unsent = set()


class LaunchTable:
    """The active launches, in the order in which they were added. A change takes time in proportion to the launches that it is
    about: thousands may run."""

    def __init__(self) -> None:
        self._all: dict[Key, TrackedLaunch] = {}
        self._of_job: dict[int, set[Key]] = {}
        self._on_node: dict[int, set[Key]] = {}
        self._waiting: dict[Key, set[Key]] = {}  # by launch: those that wait for it
        self._place: dict[Key, int] = {}  # in the order
        self._added = 0

    def get(self, key: Key) -> TrackedLaunch | None:
        return self._all.get(key)

    def all(self) -> list[TrackedLaunch]:
        """Return a copy of the list, for other threads too."""
        return list(self._all.values())

    def of_job(self, job: int) -> list[TrackedLaunch]:
        return self._in_order(self._of_job.get(job, ()))

    def on_nodes(self, nodes: Iterable[int]) -> list[TrackedLaunch]:
        """Return the launches with a part on one of these nodes, even if that part has ended."""
        return self._in_order({key for node in nodes for key in self._on_node.get(node, ())})

    def waiting_for(self, key: Key) -> list[TrackedLaunch]:
        return self._in_order(self._waiting.get(key, ()))

    def add(self, run: TrackedLaunch) -> None:
        self._added += 1
        self._all[run.key], self._place[run.key] = run, self._added
        self._of_job.setdefault(run.job, set()).add(run.key)
        for part in run.assignment:
            self._on_node.setdefault(part.node, set()).add(run.key)

    def extend(self, run: TrackedLaunch, part: NodeRanks) -> None:
        """A launch was found on one more node."""
        run.assignment += (part,)
        self._on_node.setdefault(part.node, set()).add(run.key)

    def wait(self, run: TrackedLaunch, others: set[Key]) -> None:
        """Let a launch wait for others, too."""
        run.waits_for |= others
        for key in others:
            self._waiting.setdefault(key, set()).add(run.key)

    def remove(self, run: TrackedLaunch) -> None:
        del self._all[run.key], self._place[run.key]
        self._waiting.pop(run.key, None)
        for key in run.waits_for:
            _discard(self._waiting, key, run.key)
        _discard(self._of_job, run.job, run.key)
        for part in run.assignment:
            _discard(self._on_node, part.node, run.key)

    def _in_order(self, keys: Iterable[Key]) -> list[TrackedLaunch]:
        return [self._all[key] for key in sorted(keys, key=self._place.__getitem__)]


def _discard(index: dict[T, set[Key]], at: T, key: Key) -> None:
    if (found := index.get(at)) is not None:
        found.discard(key)
        if not found:
            del index[at]


def outcome_of(run: TrackedLaunch) -> LaunchOutcome:
    """Return what a launch that is over left behind."""
    reports = list(run.ended.values())
    overstayed = any(one.code and one.yielded for one in reports)  # killed by its agent, and the others because of that
    failed = None if overstayed else next((one for one in reports if one.code), None)
    complete = len(reports) == len(run.assignment)
    unable = next((one for one in reports if one.could_not_start and not run.revoked), None)
    report = failed or unable or next((one for one in reports if one.code), reports[0] if reports else None)
    node = next((place for place, one in run.ended.items() if one is report and one.code), -1)
    if run.dropped:
        end = LaunchEnd.DROPPED
    elif complete and failed is None and not any(one.yielded for one in reports):
        end = LaunchEnd.FINISHED
    elif complete and failed is not None and not (run.revoked and _may_fail(run, failed)):
        end = LaunchEnd.FAILED
    elif run.revoked:
        end = LaunchEnd.YIELDED
    else:
        end = LaunchEnd.LOST
    stopped_s = min(run.stopped_s, run.lost_s)
    if report is None:
        why = "its node was lost" if run.lost else "it had not started yet"
        return LaunchOutcome(*run.key, end, run.saved, 0, why, run.revoked, stopped_s=stopped_s)
    rank = report.rank if report.code else 0
    steps = max(one.steps for one in reports)
    return LaunchOutcome(
        *run.key, end, run.saved, report.code, report.why, run.revoked, node, rank, stopped_s, report.permanent, steps
    )


def _may_fail(run: TrackedLaunch, report: od.Ended) -> bool:
    """Whether a revoked launch may end with an error: without lease support it gets SIGTERM, and a slow one is killed."""
    return not run.task.cooperative or report.code == -signal.SIGKILL
