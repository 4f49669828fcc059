"""What a host's CPUs and memory are to the jobs on it: how much each worker is entitled to, how much it can use, and three ways
to divide what there is. It knows which workers stand on which node, and neither why nor for how long.

Nobody is ever slower than with its *share*, the part of a node that goes with its accelerators: who can use less than that gets
what it can use, and what it leaves is for those who can use more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias

import numpy as np

from fairlead.core.cluster import Floats
from fairlead.core.sensitivity import Curve, Sensitivity

Way: TypeAlias = Literal["proportional", "tune", "optimal"]

CPUS, MEMORY = 0, 1
ROUNDING = 1e-9
_GRAIN_GB = 8.0
"""Beside the points of its curve, a division that is optimal tries memory in such steps; CPUs in ones."""


@dataclass(frozen=True)
class Tenant:
    """A job on its nodes. `share` and `wants` are amounts of CPUs and of memory for each worker."""

    number: int
    workers: Mapping[int, int]  # by node
    share: tuple[float, float]
    wants: tuple[float, float]
    sensitivity: Sensitivity

    @property
    def least(self) -> tuple[float, float]:
        """With so much it is as fast as with its share."""
        return (min(self.share[CPUS], self.wants[CPUS]), min(self.share[MEMORY], self.wants[MEMORY]))

    @property
    def tunable(self) -> bool:
        """Whether more than its share would make it faster, and can be had on one node."""
        more = self.wants[CPUS] > self.share[CPUS] or self.wants[MEMORY] > self.share[MEMORY]
        return more and len(self.workers) == 1


def allot(tenants: Sequence[Tenant], there: Floats, way: Way) -> dict[int, tuple[float, float]]:
    """CPUs and memory for each worker of each job, by number. `there` is what nodes have: resources × nodes."""
    if way == "proportional":
        return {tenant.number: tenant.share for tenant in tenants}
    given = {tenant.number: tenant.least for tenant in tenants}
    spare = there.tolist()
    for tenant in tenants:
        for node, workers in tenant.workers.items():
            for resource, amount in enumerate(given[tenant.number]):
                spare[resource][node] -= amount * workers
    by_node: dict[int, list[Tenant]] = {}
    for tenant in tenants:
        if tenant.tunable:
            by_node.setdefault(next(iter(tenant.workers)), []).append(tenant)
    for node, mine in by_node.items():
        left = (spare[CPUS][node], spare[MEMORY][node])
        given.update(_one_by_one(mine, left) if way == "tune" else _best(mine, left))
    return given


def _one_by_one(tenants: Sequence[Tenant], left: tuple[float, float]) -> dict[int, tuple[float, float]]:
    """Each in turn as much as it can use, or what is left (Synergy-Tune: who finds no more falls back to its share)."""
    spare, given = list(left), {}
    for tenant in tenants:
        (workers,) = tenant.workers.values()
        amounts = list(tenant.least)
        for resource in (CPUS, MEMORY):
            more = min(tenant.wants[resource] - amounts[resource], max(spare[resource], 0.0) / workers)
            amounts[resource] += max(more, 0.0)
            spare[resource] -= max(more, 0.0) * workers
        given[tenant.number] = (amounts[CPUS], amounts[MEMORY])
    return given


def _best(tenants: Sequence[Tenant], left: tuple[float, float]) -> dict[int, tuple[float, float]]:
    """The division with the greatest Σ workers · speed / (speed with its share), over whole CPUs and steps of memory."""
    looks = tuple((next(iter(t.workers.values())), t.least, t.share, t.wants, t.sensitivity) for t in tenants)
    return dict(zip((t.number for t in tenants), _best_of(looks, left)))


Look: TypeAlias = tuple[int, tuple[float, float], tuple[float, float], tuple[float, float], Sensitivity]


@lru_cache(maxsize=4096)
def _best_of(looks: tuple[Look, ...], left: tuple[float, float]) -> tuple[tuple[float, float], ...]:
    """By dynamic programming over what is used: of two partial divisions the one that uses no less and gains no more goes."""
    reached: list[tuple[float, float, float, tuple[tuple[float, float], ...]]] = [(0.0, 0.0, 0.0, ())]
    for workers, least, share, wants, sensitivity in looks:
        usual = sensitivity.speed(*share)
        options = [
            ((cpus - least[CPUS]) * workers, (memory - least[MEMORY]) * workers, cpus, memory)
            for cpus in _amounts(least[CPUS], wants[CPUS], sensitivity.cpus, 1.0)
            for memory in _amounts(least[MEMORY], wants[MEMORY], sensitivity.memory_gb, _GRAIN_GB)
        ]
        further = [
            (used + c, taken + m, gained + workers * (sensitivity.speed(cpus, memory) / usual - 1), (*chosen, (cpus, memory)))
            for used, taken, gained, chosen in reached
            for c, m, cpus, memory in options
            if used + c <= left[CPUS] + ROUNDING and taken + m <= left[MEMORY] + ROUNDING
        ]
        stays = [(used, taken, gained, (*chosen, least)) for used, taken, gained, chosen in reached]
        reached = _undominated(further or stays)
    return max(reached, key=lambda one: one[2])[3]


def _undominated(
    ways: list[tuple[float, float, float, tuple[tuple[float, float], ...]]],
) -> list[tuple[float, float, float, tuple[tuple[float, float], ...]]]:
    kept: list[tuple[float, float, float, tuple[tuple[float, float], ...]]] = []
    for way in sorted(ways, key=lambda one: (-one[2], one[0], one[1])):
        if not any(other[0] <= way[0] + ROUNDING and other[1] <= way[1] + ROUNDING for other in kept):
            kept.append(way)
    return kept


def _amounts(least: float, wants: float, curve: Curve | None, grain: float) -> list[float]:
    if curve is None or not wants > least:
        return [least]
    steps = np.arange(np.floor(least / grain) + 1, np.ceil(wants / grain)) * grain
    points = (amount for amount, _ in curve.points)
    return sorted({least, wants, *(a for a in (*steps.tolist(), *points) if least < a < wants)})
