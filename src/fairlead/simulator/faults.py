"""Node faults of a simulation: an explicit list, or a seeded random process. This module knows nodes by number only."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from fairlead.core.errors import check_number
from fairlead.core.events import NodeLost, NodeRepaired
from fairlead.core.rng import stream

MAX_OUTAGE_S = 1e11


@dataclass(frozen=True)
class Outage:
    """A node is down from `start_s` up to `end_s`."""

    node: int
    start_s: float
    end_s: float = math.inf

    def __post_init__(self) -> None:
        check_number("outage", "node", self.node, "the number of a node, from 0 on")
        check_number("outage", "start_s", self.start_s, f"seconds from 0 to {MAX_OUTAGE_S:g}", 0.0, MAX_OUTAGE_S)
        after = math.nextafter(self.start_s, math.inf)
        latest = math.inf if self.end_s == math.inf else MAX_OUTAGE_S
        check_number("outage", "end_s", self.end_s, f"seconds above start_s, at most {MAX_OUTAGE_S:g}", after, latest)


def outage_events(outages: Iterable[Outage]) -> Iterator[NodeLost | NodeRepaired]:
    """The events of a list of outages, by time; at one moment repairs come first. A node is repaired when the last of
    overlapping outages ends."""
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


def either(*faults: Iterable[NodeLost | NodeRepaired]) -> Iterator[NodeLost | NodeRepaired]:
    """The events of nodes that are down while any of several processes has them down."""
    down: Counter[int] = Counter()
    for event in heapq.merge(*faults, key=lambda e: (e.time, isinstance(e, NodeRepaired), e.node)):
        lost = isinstance(event, NodeLost)
        down[event.node] += 1 if lost else -1
        if down[event.node] == lost:
            yield event


def random_process(nodes: int, mean_up_s: float, mean_down_s: float, seed: int) -> Iterator[NodeLost | NodeRepaired]:
    """Endless events: every node fails and is repaired after exponential times, drawn from a stream of its own."""
    streams = [stream(seed, "node-faults", node) for node in range(nodes)]
    heap = [(float(streams[node].exponential(mean_up_s)), node, True) for node in range(nodes)]
    heapq.heapify(heap)
    while heap:
        time, node, fails = heapq.heappop(heap)
        yield NodeLost(time, node) if fails else NodeRepaired(time, node)
        mean = mean_down_s if fails else mean_up_s
        heapq.heappush(heap, (time + float(streams[node].exponential(mean)), node, not fails))
