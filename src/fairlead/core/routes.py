"""Inference as a second kind of work, in addition to training: sessions, and the routes of a plan that serves them. Values
only: policies make such plans, and backends carry them out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np

from fairlead.core.cluster import Floats

MAX_BATCH_SIZE = 4096

MAX_REQUESTS_PER_S = 1e6

REPORTED = "request_rate"
"""The name under which a session reports how many requests a second it gets."""


def reported_rate(reported: float, known: float) -> float:
    """Requests per second of a session by its last report; 0 if it is idle. An impossible report (below 0, or not finite) is
    ignored, and the rate `known` before is returned."""
    return min(reported, MAX_REQUESTS_PER_S) if 0 <= reported < math.inf else known


def latencies(batches: Sequence[int], seconds: Sequence[float]) -> Floats:
    """How long a batch of 1, 2, … takes, from some that were measured; on a line between them. A batch smaller than all that
    were measured takes as long as the smallest of these, a larger one than all is not allowed. A larger batch takes at least
    as long as a smaller one."""
    sizes = np.arange(1, batches[-1] + 1)
    between: Floats = np.interp(sizes, np.asarray(batches, dtype=np.float64), np.asarray(seconds, dtype=np.float64))
    longest: Floats = np.maximum.accumulate(between)
    return longest


@dataclass(frozen=True, eq=False)
class Session:
    """Requests for one model, `rate` per second, each to be answered within `slo_s` of its arrival.

    `latency_s[type][b - 1]` is how long a batch of b takes on an accelerator of a type; a type that is not there cannot serve.
    """

    name: str
    rate: float  # requests per second
    slo_s: float
    latency_s: Mapping[str, Floats]

    def throughput(self, type_name: str) -> Floats:
        """Requests per second of one accelerator that runs batches of 1, 2, … back to back."""
        latency = self.latency_s[type_name]
        return np.arange(1, len(latency) + 1) / latency


@dataclass(frozen=True)
class Route:
    """Where a session's requests go, as routers have to know it: the accelerators that serve it, ascending, each alone or
    shared with others; the part of its requests that each is meant to get (0: only as a reserve); the batch size; and the
    requests per second for which this was planned."""

    accelerators: tuple[int, ...]
    parts: tuple[float, ...]
    batch: int
    rate: float


Routes: TypeAlias = Mapping[int, Route]
"""By the number of a session's job."""
NO_ROUTES: Routes = {}


@dataclass(frozen=True)
class Resident:
    """A session on one accelerator: at most so many requests at once, and how many a second are meant for it there; 0 where it
    only stands in for others."""

    session: str
    batch: int
    rate: float
    occupancy: float  # the part of the accelerator's time that these take in full batches


@dataclass(frozen=True)
class Server:
    """An accelerator that serves sessions in turn. `duty_s` is the longest round of all of its sessions that their SLOs allow,
    where the packing plans in such rounds; else 0."""

    type: str
    residents: tuple[Resident, ...]
    duty_s: float = 0.0

    @property
    def occupancy(self) -> float:
        return sum(one.occupancy for one in self.residents)


@dataclass(frozen=True)
class ServingPlan:
    """Which accelerators serve which sessions, and with which batches. `unserved` has, by session, the part of its rate for
    which there was no room."""

    servers: tuple[Server, ...]
    unserved: Mapping[str, float]

    @cached_property
    def routing(self) -> Mapping[str, tuple[tuple[int, float], ...]]:
        """By session: the servers, by position, among which its requests are dealt out, and the part of them that each is
        meant to get."""
        meant: dict[str, list[tuple[int, float]]] = {}
        for index, server in enumerate(self.servers):
            for one in server.residents:
                meant.setdefault(one.session, []).append((index, one.rate))
        totals = {name: sum(rate for _, rate in servers) for name, servers in meant.items()}
        return {name: tuple((index, rate / totals[name]) for index, rate in servers) for name, servers in meant.items()}
