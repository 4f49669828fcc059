"""The last decisions that changed something, for people to look at. The journal has all of them."""

from __future__ import annotations

from collections import deque
from typing import Any

from fairlead.core.cluster import Cluster
from fairlead.core.plan import RoundPlan
from fairlead.engine.state import State

KEPT = 50


class Decisions:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._last: deque[RoundPlan] = deque(maxlen=KEPT)

    def note(self, plan: RoundPlan) -> None:
        if plan.changes:
            self._last.append(plan)

    def records(self, state: State, whose: str | None = None) -> list[dict[str, Any]]:
        """The youngest first: who was launched where, suspended, refused or ended; of one user, or (None) of everybody."""
        return [record for plan in reversed(self._last) if (record := self._record(plan, state, whose))]

    def _record(self, plan: RoundPlan, state: State, whose: str | None) -> dict[str, Any]:
        def names(numbers: list[int]) -> list[str]:
            return [state.job_of[n].name for n in numbers if n in state.job_of and whose in (None, state.job_of[n].user)]

        starts, bounds = plan.launches, plan.launches.offsets.tolist()
        launched = {}
        for number, begin, end in zip(starts.jobs.tolist(), bounds, bounds[1:]):
            nodes = sorted(set(self._cluster.node_of[starts.accelerators[begin:end]].tolist()))
            for name in names([number]):
                launched[name] = [self._cluster.nodes[node].name for node in nodes]
        record = {
            "launched": launched,
            "suspended": names([n for n in plan.suspended.tolist() if n not in starts.jobs]),
            "refused": names([number for number, _ in plan.refused]),
            "ended": names(plan.ended.tolist()),
        }
        return {"second": plan.time, **record} if any(record.values()) else {}
