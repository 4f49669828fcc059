"""When nodes fail and come back in a simulation: an explicit list, or a seeded process. It knows nodes by number only."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from fairlead.core.events import NodeLost, NodeRepaired
from fairlead.core.rng import stream


@dataclass(frozen=True)
class Outage:
    """A node is gone from `start_s` up to `end_s`."""

    node: int
    start_s: float
    end_s: float = math.inf


def listed(outages: Iterable[Outage]) -> Iterator[NodeLost | NodeRepaired]:
    """The events of a list of outages, in order of time; at one moment repairs come first. A node is back when the last of
    the outages that overlap is over."""
    events: list[NodeLost | NodeRepaired] = []
    until: dict[int, float] = {}
    for outage in sorted(outages, key=lambda outage: outage.start_s):
        if outage.start_s > until.get(outage.node, -math.inf):
            if outage.node in until:
                events.append(NodeRepaired(until[outage.node], outage.node))
            events.append(NodeLost(outage.start_s, outage.node))
            until[outage.node] = outage.end_s
        else:
            until[outage.node] = max(until[outage.node], outage.end_s)
    events += [NodeRepaired(end_s, node) for node, end_s in until.items() if end_s < math.inf]
    events.sort(key=lambda e: (e.time, isinstance(e, NodeLost), e.node))
    return iter(events)


def random_process(nodes: int, mean_up_s: float, mean_down_s: float, seed: int) -> Iterator[NodeLost | NodeRepaired]:
    """Every node fails and is repaired after exponential times, each from a stream of its own; without end."""
    streams = [stream(seed, "node-faults", node) for node in range(nodes)]
    heap = [(float(streams[node].exponential(mean_up_s)), node, True) for node in range(nodes)]
    heapq.heapify(heap)
    while heap:
        time, node, fails = heapq.heappop(heap)
        yield NodeLost(time, node) if fails else NodeRepaired(time, node)
        mean = mean_down_s if fails else mean_up_s
        heapq.heappush(heap, (time + float(streams[node].exponential(mean)), node, not fails))
