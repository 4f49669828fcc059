"""Track the launches of a real cluster, from the plan that starts one to the report that its last process has ended. It knows
no network and no clock: orders for agents and outcomes of launches are returned."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from fairlead.core.cluster import Cluster, Ints
from fairlead.core.plan import Launches
from fairlead.core.routes import Route, Routes
from fairlead.core.snapshot import Snapshot
from fairlead.runtime.control.tracked_launch import (
    Key,
    LaunchEnd,
    LaunchOutcome,
    LaunchTable,
    NodeRanks,
    TrackedLaunch,
    outcome_of,
)
from fairlead.runtime.protocol import orders as od

MAX_STEPS, MAX_S = 2**53, 1e9  # bounds of a lease, however often a job reports a renewal

Addressed: TypeAlias = tuple[int, od.Order]  # a node and an order for it


@dataclass(eq=False)
class LaunchTracker:
    """The active launches. A launch is sent when every launch that was asked to leave its accelerators has left, so a
    slow save and a quick start never meet on one accelerator. Launches that the plan co-locates do not wait for each other."""

    address_of: Callable[[int], str]  # a node's address, at which a gang finds its first worker
    ports: Callable[[Key], tuple[int, int]]  # for a gang
    checkpoints: str = ""  # a folder that all nodes see, with a folder for each job; empty: each agent has its own

    def __post_init__(self) -> None:
        self._all = LaunchTable()

    def get(self, job: int, generation: int) -> TrackedLaunch | None:
        return self._all.get((job, generation))

    def all(self) -> list[TrackedLaunch]:
        """Return a copy of the list, for other threads too."""
        return self._all.all()

    def latest(self, job: int) -> TrackedLaunch | None:
        return max(self._all.of_job(job), key=lambda run: run.generation, default=None)

    def jobs_on(self, node: int) -> dict[int, bool]:
        """Return the jobs whose processes may be on a node, and whether each was asked to leave."""
        return {run.job: run.leaving for run in self._all.on_nodes((node,)) if run.sent and node in run.nodes_left}

    def uses(self, node: int) -> bool:
        """Return whether a launch runs on a node, or will start there."""
        return any(node in run.nodes_left for run in self._all.on_nodes((node,)))

    def has_part_on(self, node: int) -> bool:
        """Return whether a launch has a part on a node, even one that has ended."""
        return bool(self._all.on_nodes((node,)))

    def start(self, run: TrackedLaunch) -> list[Addressed]:
        """Start a launch as soon as its accelerators are free."""
        self._all.add(run)
        self._all.wait(run, self._predecessors(run))
        return self._send(run)

    def adopt(self, run: TrackedLaunch) -> None:
        """Track a launch from before a restart. `compare` finds out whether its agents know it."""
        run.sent = True
        self._all.add(run)

    def compare(
        self,
        found: Mapping[int, Collection[Key]],
        all_of: Callable[[int], tuple[int, ...]],
        may_save: Callable[[int], bool],
        forgotten: Collection[int] = (),
    ) -> tuple[list[Addressed], list[LaunchOutcome]]:
        """Compare with the launches that agents `found` running, by node: repeat lost orders, and end unknown launches, which
        may be on any of `all_of` the accelerators of a node. `may_save`: whether a job may save before it ends. Launches of
        `forgotten` jobs that no agent found are not repeated but lost."""
        orders: list[Addressed] = []
        outcomes: list[LaunchOutcome] = []
        resend: list[TrackedLaunch] = []
        over: list[TrackedLaunch] = []
        for run in [run for run in self._all.on_nodes(found) if run.sent]:
            here = [node for node in run.nodes_left if node in found]
            missing = [node for node in here if run.key not in found[node]]
            none_found = run.job in forgotten and len(missing) == len(run.nodes_left)
            if run.leaving or run.lost or run.broken or none_found:
                orders += [(node, _leave_order(run)) for node in here if node not in missing]
                run.lost.update(missing)  # it never began there
                if run.over:
                    over.append(run)
            elif missing:
                run.unsent |= set(missing)
                run.sent = len(run.unsent) < len(run.assignment)
                resend.append(run)
            if run.parameters.routing is not None and not run.leaving:  # a change may be lost
                orders += [(node, od.Reroute(*run.key, run.parameters.routing)) for node in here if node not in missing]
        # Unknown launches first: every launch on their accelerators has to wait for them.
        for node in found:
            for key in sorted(found[node]):
                orders += self._dismiss(key, NodeRanks(node, (), all_of(node)), may_save)
        jobs = {job for keys in found.values() for job, _ in keys}  # their earlier launches may be among those
        for run in (*self._all.on_nodes(found), *(run for job in sorted(jobs) for run in self._all.of_job(job))):
            if not run.sent or run.unsent:
                self._all.wait(run, self._predecessors(run))
        for run in over:
            more, ended = self._settle(run)
            orders += more
            outcomes += ended
        for run in resend:
            orders += self._send(run)
        return orders, outcomes

    def _dismiss(self, key: Key, part: NodeRanks, may_save: Callable[[int], bool]) -> list[Addressed]:
        """End an unknown launch. It must not save if a later launch of the job runs already."""
        run = self._all.get(key)
        if run is not None and part.node in {known.node for known in run.assignment}:
            return []
        if run is None:
            later = any(other.sent and other.generation > key[1] for other in self._all.of_job(key[0]))
            saves = may_save(key[0]) and not later
            run = TrackedLaunch(*key, "", od.Task(()), (), sent=True, revoked=saves, dropped=not saves)
            self._all.add(run)
        self._all.extend(run, part)
        return [(part.node, _leave_order(run))]

    def reroute(self, job: int, routing: od.RequestRouting) -> list[Addressed]:
        """Change the routing of a job that serves requests. An unsent launch carries it already."""
        run = self.latest(job)
        if run is None:
            return []
        run.parameters = replace(run.parameters, routing=routing)
        if not run.sent or run.leaving:
            return []
        return [(node, od.Reroute(*run.key, routing)) for node in run.nodes_left if node not in run.unsent]

    def revoke(self, job: int) -> list[Addressed]:
        """Tell the most recent launch of a job to save and leave."""
        run = self.latest(job)
        if run is None:  # it has just ended
            return []
        run.revoked = True
        run.cancel_unsent()
        if not run.sent or run.over:
            return self._settle(run)[0]
        return [(node, od.Revoke(*run.key)) for node in run.nodes_left]

    def drop(self, job: int) -> list[Addressed]:
        """Kill all launches of a job that has ended."""
        orders: list[Addressed] = []
        for run in self._all.of_job(job):
            run.dropped = True
            run.cancel_unsent()
            orders += self._settle(run)[0] if not run.sent or run.over else _kill(run)
        return orders

    def renew(self, node: int, request: od.RenewalRequest) -> list[Addressed]:
        """Renew a launch's lease unless it was asked to leave. A repeated request gets the same answer."""
        run = self.get(request.job, request.generation)
        if run is None or run.leaving:
            return []
        leases = request.renewal + 1
        steps, length_s = min(leases * run.task.max_steps, MAX_STEPS), min(leases * run.task.max_s, MAX_S)
        return [(node, od.Extend(*run.key, request.renewal, steps, length_s))]

    def ended(self, node: int, report: od.Ended, at: float = math.inf) -> tuple[list[Addressed], list[LaunchOutcome]]:
        """The processes of a launch on one node have ended, at that second."""
        run = self.get(report.job, report.generation)
        if run is None or node not in run.nodes_left:
            return [], []  # reported twice, or of a launch that is over
        run.ended[node] = report
        run.stopped_s = max(run.stopped_s, at)
        run.saved = max(run.saved, report.saved)
        if run.broken:
            run.cancel_unsent()
        if run.over:
            return self._settle(run)
        return (_kill(run), []) if run.broken else ([], [])

    def sent_to(self, node: int) -> list[Key]:
        """Return the launches that were sent to a node and have not ended there."""
        there = self._all.on_nodes((node,))
        return [run.key for run in there if run.sent and node in run.nodes_left and node not in run.unsent]

    def node_lost(
        self, node: int, at: float = math.inf, only: Key | None = None
    ) -> tuple[list[Addressed], list[LaunchOutcome]]:
        """A node is gone, or `only` one launch there. What ran there has stopped, as far as is known at that second."""
        orders: list[Addressed] = []
        outcomes: list[LaunchOutcome] = []
        there = [run for run in self._all.on_nodes((node,)) if node in run.nodes_left and only in (None, run.key)]
        for run in there:  # all of them before any is settled, so that no waiting launch begins on the lost node
            run.lost.add(node)
            run.stopped_s, run.lost_s = max(run.stopped_s, at), min(run.lost_s, at)
            run.cancel_unsent()
        for run in there:
            if run.sent and not run.over:
                orders += _kill(run)
                continue
            more, ended = self._settle(run)
            orders += more
            outcomes += ended
        return orders, outcomes

    def _predecessors(self, run: TrackedLaunch) -> set[Key]:
        """Earlier launches of the job, and launches that are leaving its accelerators."""
        earlier = {other.key for other in self._all.of_job(run.job) if other.generation < run.generation}
        others = self._all.on_nodes(part.node for part in run.assignment)
        places = run.places
        leaving = {other.key for other in others if other.leaving and not places.isdisjoint(other.places)}
        return (earlier | leaving) - {run.key}

    def _send(self, run: TrackedLaunch) -> list[Addressed]:
        if run.waits_for or run.lost or run.leaving or run.broken or (run.sent and not run.unsent):
            return []
        orders = [(node, launch) for node, launch in self._orders(run) if not run.sent or node in run.unsent]
        run.sent, run.unsent = True, set()
        return orders

    def _orders(self, run: TrackedLaunch) -> list[Addressed]:
        master, gang = self.ports(run.key) if run.world_size > 1 else (0, 0)
        host = self.address_of(run.assignment[0].node)
        return [
            (
                part.node,
                od.Launch(
                    *run.key,
                    run.name,
                    run.task,
                    part.ranks,
                    part.accelerators,
                    world_size=run.world_size,
                    master_address=host,
                    master_port=master,
                    gang_port=gang,
                    gang_token=run.gang_token if gang else "",
                    checkpoints=f"{self.checkpoints}/{run.job}" if self.checkpoints else "",
                    nodes=len(run.assignment),
                    parameters=run.parameters,
                    user=run.user,
                ),
            )
            for part in run.assignment
        ]

    def _settle(self, run: TrackedLaunch) -> tuple[list[Addressed], list[LaunchOutcome]]:
        """A launch is over: start the launches that waited for it, except one of a job that has finished."""
        waiting, outcome = self._all.waiting_for(run.key), outcome_of(run)
        self._all.remove(run)
        orders: list[Addressed] = []
        for other in waiting:
            other.waits_for.discard(run.key)
            other.saved = max(other.saved, run.saved if other.job == run.job else 0)
            if other.job != run.job or outcome.end is not LaunchEnd.FINISHED:
                orders += self._send(other)
        return orders, [outcome]


def _leave_order(run: TrackedLaunch) -> od.Order:
    return od.Revoke(*run.key) if run.revoked and not run.dropped else od.Kill(*run.key)


def _kill(run: TrackedLaunch) -> list[Addressed]:
    return [(node, od.Kill(*run.key)) for node in run.nodes_left]


class RankAssignment:
    """Assigns ranks to nodes: worker i gets accelerator i of a launch, in ascending order, as after a restart."""

    def __init__(self, cluster: Callable[[], Cluster]) -> None:
        self._cluster = cluster

    def of(self, accelerators: Ints) -> tuple[NodeRanks, ...]:
        """Return the ranks by node, the node of rank 0 first."""
        cluster, by_node = self._cluster(), dict[int, list[tuple[int, int]]]()
        for rank, place in enumerate(sorted(accelerators.tolist())):
            node = int(cluster.node_of[place])
            by_node.setdefault(node, []).append((rank, place - cluster.bounds_of_node[node][0]))
        return tuple(NodeRanks(node, tuple(r for r, _ in here), tuple(p for _, p in here)) for node, here in by_node.items())

    def all_of(self, node: int) -> tuple[int, ...]:
        """Return all accelerators of a node, counted from 0."""
        return tuple(range(self._cluster().nodes[node].accelerators))


def planned_parameters(launches: Launches, routes: Routes) -> list[od.LaunchParameters]:
    """Return the parameters of each launch of a plan."""
    zeros = [0] * len(launches)
    columns = (launches.batch_sizes, launches.cpus, launches.host_memory_gb)
    shared = np.bincount(launches.accelerators)[launches.accelerators] > 1
    colocated = np.logical_or.reduceat(shared, launches.offsets[:-1]).tolist() if len(launches) else []
    rows = zip(*(zeros if column is None else column.tolist() for column in columns), colocated)
    parameters = [od.LaunchParameters(*row) for row in rows]
    if not routes:
        return parameters
    mine = [routes.get(number) for number in launches.jobs.tolist()]
    return [one if route is None else replace(one, routing=routing(route)) for one, route in zip(parameters, mine)]


def running_parameters(view: Snapshot) -> dict[int, od.LaunchParameters]:
    """Return the parameters that running jobs were launched with, by number."""
    runners, colocated = view.jobs.runners, set(view.device_map.on(view.device_map.occupancy > 1).tolist())
    columns = (runners.number, runners.batch_size, runners.cpus_given, runners.memory_given_gb)
    rows = zip(*(column.tolist() for column in columns))
    parameters = {number: od.LaunchParameters(size, cpus, memory, number in colocated) for number, size, cpus, memory in rows}
    return parameters | {number: replace(parameters[number], routing=routing(route)) for number, route in view.routes.items()}


def routing(route: Route) -> od.RequestRouting:
    """Return a route for agents; its accelerators are in the order of ranks."""
    return od.RequestRouting(route.batch, route.rate, route.parts)
