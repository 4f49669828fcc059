"""The launches of a real cluster, from the plan that asks for one to the word that its last process has ended. It knows no
network and no clock: whatever is to be sent comes back as orders, whatever became of a job as an outcome."""

from __future__ import annotations

import secrets
import signal
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TypeAlias

from fairlead.runtime.protocol.orders import (
    Ended,
    Extend,
    Kill,
    Launch,
    LaunchParameters,
    Order,
    RenewalRequest,
    RequestRouting,
    Reroute,
    Revoke,
    Task,
)

NOTHING = LaunchParameters()

MOST_STEPS, LONGEST_S = 2**53, 1e9
"""Of a lease, however often it is renewed; which renewal it is, is the job's own word."""


class LaunchEnd(Enum):
    """What became of a launch."""

    YIELDED = "yielded"  # saved and left because it was asked to
    FINISHED = "finished"
    FAILED = "failed"  # by its own fault
    LOST = "lost"  # its node is gone, or nobody knows of it any more
    DROPPED = "dropped"  # ended because nobody wants it any more


@dataclass(frozen=True)
class LaunchOutcome:
    job: int
    generation: int
    fate: LaunchEnd
    saved: int  # steps in its last checkpoint
    code: int = 0
    why: str = ""
    asked: bool = False  # to leave, before that
    node: int = -1  # where it failed
    rank: int = 0  # who did


@dataclass(frozen=True)
class NodeRanks:
    """The workers of a launch on one node."""

    node: int
    ranks: tuple[int, ...]
    accelerators: tuple[int, ...]  # on the node, from 0


Key: TypeAlias = tuple[int, int]
"""A job's number and a generation."""


@dataclass
class TrackedLaunch:
    """One launch. `waits_for` are the launches that are on their way off its accelerators."""

    job: int
    generation: int
    name: str
    task: Task
    assignment: tuple[NodeRanks, ...]
    waits_for: set[Key] = field(default_factory=set)
    sent: bool = False
    owed: set[int] = field(default_factory=set)  # nodes on which it is to begin, though it was sent
    revoked: bool = False
    dropped: bool = False
    ended: dict[int, Ended] = field(default_factory=dict)  # by node
    lost: set[int] = field(default_factory=set)  # nodes
    saved: int = 0
    given: LaunchParameters = field(default_factory=LaunchParameters)
    gang_token: str = field(default_factory=lambda: secrets.token_hex(16))

    @property
    def key(self) -> Key:
        return self.job, self.generation

    @property
    def leaving(self) -> bool:
        return self.sent and (self.revoked or self.dropped)

    @property
    def places(self) -> set[tuple[int, int]]:
        """Nodes and accelerators on them."""
        return {(seat.node, place) for seat in self.assignment for place in seat.accelerators}

    @property
    def over(self) -> bool:
        return all(seat.node in self.ended or seat.node in self.lost for seat in self.assignment)

    @property
    def broken(self) -> bool:
        """Some of its workers have failed, or were killed; half a gang is no gang."""
        return any(end.code for end in self.ended.values())

    @property
    def world_size(self) -> int:
        return sum(len(seat.ranks) for seat in self.assignment)

    def stay_away(self) -> None:
        """Where it has not begun it never will: an order that is still owed would come after the one to leave."""
        self.lost |= self.owed
        self.owed = set()


Addressed: TypeAlias = tuple[int, Order]
"""An order, and the number of the node that it goes to."""


class LaunchTracker:
    """All launches that are not over. A launch is sent when everybody who is asked to leave its accelerators has left, so that
    a slow save and a quick start never meet on one accelerator. Who shares an accelerator by plan is not waited for."""

    def __init__(
        self,
        address_of: Callable[[int], str],
        ports: Callable[[Key], tuple[int, int]],
        checkpoints: str = "",
    ) -> None:
        """`address_of(node)` is where the first worker of a gang is found; `ports(launch)` gives a gang two ports. Each job
        has a directory of its own under `checkpoints`, which all nodes see; empty: each agent keeps its own."""
        self._checkpoints = checkpoints
        self._all: dict[Key, TrackedLaunch] = {}
        self._address_of, self._ports = address_of, ports

    def get(self, job: int, generation: int) -> TrackedLaunch | None:
        return self._all.get((job, generation))

    def everybody(self) -> list[TrackedLaunch]:
        """A copy, for other threads too."""
        return list(self._all.values())

    def latest(self, job: int) -> TrackedLaunch | None:
        return max((run for run in self._all.values() if run.job == job), key=lambda run: run.generation, default=None)

    def jobs_on(self, node: int) -> set[int]:
        """Whose processes may be on a node, those included that were asked to leave it."""
        return {run.job for run in self._all.values() if run.sent and node in self._nodes_left(run)}

    def wants(self, node: int) -> bool:
        """Whether anything runs on a node, or is to begin there."""
        return any(node in self._nodes_left(run) for run in self._all.values())

    def start(
        self,
        job: int,
        generation: int,
        name: str,
        task: Task,
        assignment: Iterable[NodeRanks],
        saved: int = 0,
        given: LaunchParameters = NOTHING,
    ) -> list[Addressed]:
        """`saved` is what it will find in its last checkpoint: it has that many steps even if it comes to nothing."""
        run = TrackedLaunch(job, generation, name, task, tuple(assignment), saved=saved, given=given)
        run.waits_for = self._before(run)
        self._all[run.key] = run
        return self._send(run)

    def adopt(
        self,
        job: int,
        generation: int,
        name: str,
        task: Task,
        assignment: Iterable[NodeRanks],
        saved: int = 0,
        given: LaunchParameters = NOTHING,
    ) -> None:
        """A launch of a time before a restart. Whether its agents know of it is found out when they come back."""
        run = TrackedLaunch(job, generation, name, task, tuple(assignment), sent=True, saved=saved, given=given)
        self._all[run.key] = run

    def compare(
        self,
        found: Mapping[int, Collection[Key]],
        places: Callable[[int], tuple[int, ...]],
        may_save: Callable[[int], bool],
    ) -> tuple[list[Addressed], list[LaunchOutcome]]:
        """Agents are there, and tell what they found running, by node. What was ordered while nobody heard it is said again,
        and strangers that nobody knows of have to leave: a job that `may_save` does so first. `places(node)` are all
        accelerators of a node, which is as much as is known of where a stranger stands."""
        orders: list[Addressed] = []
        outcomes: list[LaunchOutcome] = []
        unheard: list[TrackedLaunch] = []
        over: list[TrackedLaunch] = []
        for run in [run for run in self._all.values() if run.sent]:
            here = [node for node in self._nodes_left(run) if node in found]
            missing = [node for node in here if run.key not in found[node]]
            if run.leaving or run.lost or run.broken:
                orders += [(node, _farewell(run)) for node in here if node not in missing]
                run.lost.update(missing)  # it never began there
                if run.over:
                    over.append(run)
            elif missing:
                run.owed |= set(missing)
                run.sent = len(run.owed) < len(run.assignment)
                unheard.append(run)
            if run.given.routing is not None and not run.leaving:  # a change may have got lost
                orders += [(node, Reroute(*run.key, run.given.routing)) for node in here if node not in missing]
        # Strangers before anybody is sent: whoever begins, in place of who has left too, begins when they are gone.
        for node in found:
            for key in sorted(found[node]):
                orders += self._dismiss(key, NodeRanks(node, (), places(node)), may_save)
        for run in self._all.values():
            if not run.sent or run.owed:
                run.waits_for |= self._before(run)
        for run in over:
            more, became = self._settle(run)
            orders += more
            outcomes += became
        for run in unheard:
            orders += self._send(run)
        return orders, outcomes

    def _dismiss(self, key: Key, seat: NodeRanks, may_save: Callable[[int], bool]) -> list[Addressed]:
        """A stranger has to leave, and whoever comes after it waits for that. Where a later launch of the job runs already it
        must not save."""
        run = self._all.get(key)
        if run is not None and seat.node in {known.node for known in run.assignment}:
            return []
        if run is None:
            later = any(other.sent and other.generation > key[1] for other in self._all.values() if other.job == key[0])
            saves = may_save(key[0]) and not later
            run = TrackedLaunch(*key, "", Task(()), (), sent=True, revoked=saves, dropped=not saves)
            self._all[key] = run
        run.assignment += (seat,)
        return [(seat.node, _farewell(run))]

    def reroute(self, job: int, routed: RequestRouting) -> list[Addressed]:
        """Who has not been sent yet finds it in its launch."""
        run = self.latest(job)
        if run is None:
            return []
        run.given = replace(run.given, routing=routed)
        if not run.sent or run.leaving:
            return []
        return [(node, Reroute(*run.key, routed)) for node in self._nodes_left(run) if node not in run.owed]

    def revoke(self, job: int) -> list[Addressed]:
        run = self.latest(job)
        if run is None:  # it ended at this very moment, and that is being told
            return []
        run.revoked = True
        run.stay_away()
        if not run.sent or run.over:  # nothing became of it
            return self._settle(run)[0]
        return [(node, Revoke(job, run.generation)) for node in self._nodes_left(run)]

    def drop(self, job: int) -> list[Addressed]:
        """Nobody wants it any more."""
        orders: list[Addressed] = []
        for run in [run for run in self._all.values() if run.job == job]:
            run.dropped = True
            run.stay_away()
            if not run.sent or run.over:
                orders += self._settle(run)[0]
            else:
                orders += [(node, Kill(job, run.generation)) for node in self._nodes_left(run)]
        return orders

    def renew(self, node: int, wants: RenewalRequest) -> list[Addressed]:
        """Whoever is not asked to leave may go on. The same question has the same answer, however often it is asked."""
        run = self.get(wants.job, wants.generation)
        if run is None or run.leaving:
            return []
        leases = wants.renewal + 1
        steps, length_s = min(leases * run.task.max_steps, MOST_STEPS), min(leases * run.task.max_s, LONGEST_S)
        return [(node, Extend(*run.key, wants.renewal, steps, length_s))]

    def heard(self, node: int, ended: Ended) -> tuple[list[Addressed], list[LaunchOutcome]]:
        """The processes of a launch on one node have ended."""
        run = self.get(ended.job, ended.generation)
        if run is None or node not in self._nodes_left(run):
            return [], []  # told twice, or of a launch that is over
        run.ended[node] = ended
        run.saved = max(run.saved, ended.saved)
        if run.broken:
            run.stay_away()
        if run.over:
            return self._settle(run)
        if run.broken:
            return [(other, Kill(run.job, run.generation)) for other in self._nodes_left(run)], []
        return [], []

    def node_gone(self, node: int) -> tuple[list[Addressed], list[LaunchOutcome]]:
        """A node is gone, and all that ran there has stopped by now."""
        orders: list[Addressed] = []
        outcomes: list[LaunchOutcome] = []
        there = [run for run in self._all.values() if node in self._nodes_left(run)]
        for run in there:  # all of them before any is settled: whoever waited for one must not begin on a node that is gone
            run.lost.add(node)
            run.stay_away()
        for run in there:
            if run.sent and not run.over:
                orders += [(other, Kill(run.job, run.generation)) for other in self._nodes_left(run)]
                continue
            more, became = self._settle(run)
            orders += more
            outcomes += became
        return orders, outcomes

    # What the above are made of.

    def _before(self, run: TrackedLaunch) -> set[Key]:
        """Earlier launches of the job, and whoever is leaving the accelerators of this one."""
        others = [other for other in self._all.values() if other.key != run.key]
        earlier = {other.key for other in others if other.job == run.job and other.generation < run.generation}
        return earlier | {other.key for other in others if other.leaving and not run.places.isdisjoint(other.places)}

    def _nodes_left(self, run: TrackedLaunch) -> list[int]:
        """Where it may still run."""
        return [seat.node for seat in run.assignment if seat.node not in run.ended and seat.node not in run.lost]

    def _send(self, run: TrackedLaunch) -> list[Addressed]:
        if run.waits_for or run.lost or run.leaving or run.broken or (run.sent and not run.owed):
            return []
        orders = [(node, launch) for node, launch in self._orders(run) if not run.sent or node in run.owed]
        run.sent, run.owed = True, set()
        return orders

    def _orders(self, run: TrackedLaunch) -> list[Addressed]:
        master, gang = self._ports(run.key) if run.world_size > 1 else (0, 0)
        host = self._address_of(run.assignment[0].node)
        return [
            (
                seat.node,
                Launch(
                    *run.key,
                    run.name,
                    run.task,
                    seat.ranks,
                    seat.accelerators,
                    world_size=run.world_size,
                    master_address=host,
                    master_port=master,
                    gang_port=gang,
                    gang_token=run.gang_token if gang else "",
                    checkpoints=f"{self._checkpoints}/{run.job}" if self._checkpoints else "",
                    nodes=len(run.assignment),
                    parameters=run.given,
                ),
            )
            for seat in run.assignment
        ]

    def _settle(self, run: TrackedLaunch) -> tuple[list[Addressed], list[LaunchOutcome]]:
        """A launch is over: whoever waited for that may begin."""
        del self._all[run.key]
        orders: list[Addressed] = []
        for other in list(self._all.values()):
            if run.key in other.waits_for:
                other.waits_for.discard(run.key)
                other.saved = max(other.saved, run.saved if other.job == run.job else 0)
                orders += self._send(other)
        return orders, [_outcome(run)]


def _farewell(run: TrackedLaunch) -> Order:
    return Revoke(*run.key) if run.revoked and not run.dropped else Kill(*run.key)


def _outcome(run: TrackedLaunch) -> LaunchOutcome:
    ends = list(run.ended.values())
    overstayed = any(end.code and end.yielded for end in ends)  # killed by its agent, and the others because of that
    bad = None if overstayed else next((end for end in ends if end.code), None)
    whole = len(ends) == len(run.assignment)
    unable = next((end for end in ends if end.could_not_start and not run.revoked), None)
    end = bad or unable or next((end for end in ends if end.code), ends[0] if ends else None)
    node = next((place for place, told in run.ended.items() if told is end and end.code), -1)
    code, why = (end.code, end.why) if end is not None else (0, "its node is gone" if run.lost else "it had not begun")
    if run.dropped:
        fate = LaunchEnd.DROPPED
    elif whole and bad is None and not any(end.yielded for end in ends):
        fate = LaunchEnd.FINISHED
    elif whole and bad is not None and not (run.revoked and _may_leave_so(run, bad)):
        fate = LaunchEnd.FAILED
    elif run.revoked:
        fate = LaunchEnd.YIELDED
    else:
        fate = LaunchEnd.LOST
    return LaunchOutcome(
        *run.key, fate, run.saved, code, why, run.revoked, node, end.rank if end is not None and end.code else 0
    )


def _may_leave_so(run: TrackedLaunch, end: Ended) -> bool:
    """Who knows no lease may end with any status when it is sent SIGTERM, and who takes too long is killed. Others that fail
    when they are asked to leave have failed."""
    return not run.task.cooperative or end.code == -signal.SIGKILL
