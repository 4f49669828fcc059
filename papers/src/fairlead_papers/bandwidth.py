"""What bandwidth gangs find inside a node, by how their accelerators are chosen there (Blox §5.3, Table 4): one trace, the same
nodes, and inside them chance or `bandwidth-aware`. Links are those of the machine's table; no traffic is simulated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean

import numpy as np

from fairlead.config.clusters import LINKS
from fairlead.config.registry import Registry
from fairlead.config.schedulers import Part, SchedulerConfig
from fairlead.core.cluster import Cluster, Ints, Node
from fairlead.core.events import RoundPlanned
from fairlead.core.plan import Placed, Selection
from fairlead.core.rng import stream
from fairlead.core.snapshot import Snapshot
from fairlead.engine.journal import MemoryJournal
from fairlead.experiments.simulate import Simulation, run_simulation
from fairlead.placement.bandwidth_aware import Links, aggregate_bandwidth, best_devices, choose_within_nodes
from fairlead.placement.base import FreeDevices, place_jobs
from fairlead.placement.basic import fullest_node_first, on_fewest_nodes
from fairlead.workloads.trace import Trace

BASELINE = "random-inside"


@dataclass(frozen=True)
class RandomInside:
    """Nodes as `consolidated` chooses them, and inside a node any of the free accelerators: Table 4's baseline."""

    seed: int = 0

    def place(self, selection: Selection, view: Snapshot) -> Placed:
        return place_jobs(selection, view, self._gangs, self._singles, sticky=False)

    def _gangs(self, devices: FreeDevices, jobs: Ints, types: Ints, workers: Ints) -> list[list[int]]:
        found = on_fewest_nodes(devices, jobs, types, workers, wait=False)
        return choose_within_nodes(devices, jobs.tolist(), found, partial(self._any, time=devices.view.time))

    def _any(self, links: Links, free: tuple[int, ...], want: int, job: int, *, time: float) -> tuple[int, ...]:
        drawn = stream(self.seed, "inside a node", job, str(time)).permutation(len(free))[:want]
        return tuple(free[at] for at in sorted(drawn.tolist()))

    def _singles(self, devices: FreeDevices, kind: int) -> Ints:
        free = fullest_node_first(devices, kind)
        node = devices.cluster.node_of[free]
        turn = np.unique(node, return_index=True, return_inverse=True)
        shuffled = stream(self.seed, "single workers", kind, str(devices.view.time)).permutation(len(free))
        return free[np.lexsort((shuffled, turn[1][turn[2]]))]


@dataclass(frozen=True)
class Observed:
    """What the gangs that stood on one node found between two of their accelerators, in Gb/s: for each start its mean over
    pairs, and the mean of those."""

    gbps: float
    by_workers: dict[int, float]
    starts: dict[int, int]  # by number of workers


@dataclass(frozen=True)
class Compared:
    """Chance and choice on one trace."""

    machine: str
    random: Observed
    aware: Observed

    @property
    def ratio(self) -> float:
        return self.aware.gbps / self.random.gbps

    def ratio_of(self, workers: int) -> float:
        return self.aware.by_workers[workers] / self.random.by_workers[workers]


def compare_bandwidth(trace: Trace, machine: str = "p3.8xlarge", machines: int = 32, *, seed: int = 0) -> Compared:
    """Table 4: FIFO, gangs consolidated, machines of one kind."""
    links = LINKS[machine]
    cluster = Cluster(tuple(Node(f"{machine}-{index}", "v100", len(links), links=links) for index in range(machines)))
    registry = Registry.installed().plus("placement", BASELINE, RandomInside)
    parts = (Part(BASELINE, {"seed": seed}), Part("bandwidth-aware"))
    random, aware = (_observed(Simulation(trace, cluster, SchedulerConfig(placement=part)), registry) for part in parts)
    return Compared(machine, random, aware)


def _observed(given: Simulation, registry: Registry) -> Observed:
    journal, cluster = MemoryJournal(), given.cluster
    run_simulation(given, journal=journal, registry=registry)
    found: dict[int, list[float]] = {}
    for event in journal.events:
        if isinstance(event, RoundPlanned):
            starts = event.plan.launches
            for begin, end in zip(starts.offsets[:-1].tolist(), starts.offsets[1:].tolist()):
                places = starts.accelerators[begin:end]
                node = cluster.node_of.item(places[0])
                if len(places) > 1 and (cluster.node_of[places] == node).all():
                    gang = (places - cluster.first_of[node]).tolist()
                    found.setdefault(len(gang), []).append(between_two(cluster.nodes[node].links, gang))
    by_workers = {workers: fmean(found[workers]) for workers in sorted(found)}
    everybody = [gbps for each in found.values() for gbps in each]
    return Observed(fmean(everybody), by_workers, {workers: len(found[workers]) for workers in sorted(found)})


def between_two(links: Links, gang: Sequence[int]) -> float:
    """The mean over the pairs of a gang, Gb/s."""
    return aggregate_bandwidth(links, gang) / (len(gang) * (len(gang) - 1) / 2)


def on_empty_machines(machine: str, shares: Mapping[int, float]) -> Compared:
    """The same without a trace: every gang finds a whole machine, and `shares` of them have so many workers. By chance a gang
    finds the mean over all pairs, whatever its size."""
    links = LINKS[machine]
    everybody = tuple(range(len(links)))
    chance = dict.fromkeys(shares, between_two(links, everybody))
    choice = {workers: between_two(links, best_devices(links, everybody, workers)) for workers in shares}
    random, aware = (
        Observed(sum(shares[w] * found[w] for w in shares) / sum(shares.values()), found, dict.fromkeys(shares, 1))
        for found in (chance, choice)
    )
    return Compared(machine, random, aware)
