"""What a cluster is: nodes, each with accelerators of one type. A frozen value with numpy columns. The state knows which
nodes are up, and which job holds which accelerator."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from operator import itemgetter
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from fairlead.core.errors import InputError, require

Ints: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]
Bools: TypeAlias = npt.NDArray[np.bool_]

T = TypeVar("T", bound=np.generic)

MAX_TYPE_NAME = 128
MAX_TYPES = 63  # of a cluster; `feasible_types` has a bit for each
_TYPE = r"[A-Za-z][\w.-]*"


def is_type_name(text: str) -> bool:
    """Whether a cluster that is written in a line can have a type of this name."""
    return len(text) <= MAX_TYPE_NAME and re.fullmatch(_TYPE, text, re.ASCII) is not None


@dataclass(frozen=True, slots=True)
class AcceleratorType:
    """A type of accelerator: the properties that all accelerators of this name share. `price_changes` are pairs of a second and
    the price per hour from then on."""

    name: str
    memory_gb: float = float("inf")
    price_per_hour: float = 0.0
    price_changes: tuple[tuple[float, ...], ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        seconds = [second for second, _ in self.price_changes]
        if any(one >= other for one, other in pairwise(seconds)):
            raise ValueError(f"price changes of {self.name} at seconds that do not ascend")


@dataclass(frozen=True, slots=True)
class Node:
    """One machine. `links` is the bandwidth between its accelerators in Gb/s, where it is known."""

    name: str
    type: str
    accelerators: int
    cpus: float = float("inf")
    memory_gb: float = float("inf")
    network_gbps: float = 0.0
    links: tuple[tuple[float, ...], ...] = ()
    removed: bool = False  # it has left the cluster; its number stays
    temporary: bool = field(default=False, repr=False)  # it is removed when its agent has left
    engine: str = field(default="", repr=False)  # that has the machine and starts its agents, such as Slurm
    rack: str = field(default="", repr=False)  # where it is; nodes without one count as one rack


class Drain(NamedTuple):
    """Why a node is drained, by which user, until when (None: until an operator ends it), and from when (None: now)."""

    reason: str = ""
    by: str = ""
    until_s: float | None = None
    from_s: float | None = None


NO_DRAIN = Drain()
"""A drain without a reason, a user or an end."""


class BackoffPeriod(NamedTuple):
    """Until when a node that failed to start jobs gets no new ones, and what the failure was."""

    until_s: float
    why: str


@dataclass(frozen=True)
class Cluster:
    """Nodes in a fixed order; accelerators are numbered through them. Types are numbered by first appearance.

    A removed node keeps its numbers. `size` and columns by node or accelerator include it; sizes by type do not."""

    nodes: tuple[Node, ...]
    types: tuple[AcceleratorType, ...] = field(default=())

    def __post_init__(self) -> None:
        named = {t.name for t in self.types}
        missing = dict.fromkeys(n.type for n in self.nodes if n.type not in named)
        object.__setattr__(self, "types", self.types + tuple(AcceleratorType(name) for name in missing))

    @classmethod
    def parse(cls, text: str, known: Sequence[AcceleratorType] = ()) -> Cluster:
        """`"8xv100:4,16xp100:4"`: 8 accelerators of type v100, 4 per node, and 16 of p100. Without `:n`, 8 per node."""
        nodes: list[Node] = []
        for part in text.split(","):
            match = re.fullmatch(rf"\s*(\d+)\s*[x×]\s*({_TYPE})\s*(?::\s*(\d+))?\s*", part)
            if not match or int(match[1]) < 1 or (match[3] and int(match[3]) < 1):
                wanted = "GPUs×type:per-node, as in '8xv100:4,16xp100:4'"
                raise InputError("cluster", wanted, field="cluster", value=part)
            total, type_name, per_node = int(match[1]), match[2].lower(), int(match[3] or 8)
            require(total <= 1_000_000, "cluster", "at most 1,000,000 GPUs", "cluster", part)
            while total > 0:
                nodes.append(Node(f"{type_name}-{len(nodes)}", type_name, min(per_node, total)))
                total -= per_node
        used = {n.type for n in nodes}
        return cls(tuple(nodes), _in_order(known, nodes) if used else ())

    @cached_property
    def type_names(self) -> tuple[str, ...]:
        return tuple(t.name for t in self.types)

    @cached_property
    def type_code(self) -> dict[str, int]:
        return {t.name: code for code, t in enumerate(self.types)}

    @cached_property
    def node_type(self) -> Ints:
        return _fixed(np.array([self.type_code[n.type] for n in self.nodes], dtype=np.int64))

    @cached_property
    def node_size(self) -> Ints:
        return _fixed(np.array([n.accelerators for n in self.nodes], dtype=np.int64))

    @cached_property
    def node_of(self) -> Ints:
        """The node of each accelerator."""
        return _fixed(np.repeat(np.arange(len(self.nodes), dtype=np.int64), self.node_size))

    @cached_property
    def type_of(self) -> Ints:
        """The type of each accelerator."""
        return _fixed(self.node_type[self.node_of])

    @cached_property
    def first_of(self) -> Ints:
        """The number of each node's first accelerator."""
        return _fixed((np.cumsum(self.node_size) - self.node_size).astype(np.int64))

    @cached_property
    def accelerators_of_type(self) -> tuple[Ints, ...]:
        """By type, the numbers of its accelerators."""
        return tuple(_fixed(np.flatnonzero(self.type_of == code)) for code in range(len(self.types)))

    # The same as Python values, for loops over single nodes, where a numpy scalar costs more than the work.

    @cached_property
    def node_of_accelerator(self) -> list[int]:
        return list(map(int, self.node_of))

    @cached_property
    def kind_of_node(self) -> list[int]:
        return list(map(int, self.node_type))

    @cached_property
    def rack_of_node(self) -> list[int]:
        """The rack of each node; racks are numbered by first appearance."""
        number = {rack: at for at, rack in enumerate(dict.fromkeys(node.rack for node in self.nodes))}
        return [number[node.rack] for node in self.nodes]

    @cached_property
    def nodes_of_rack(self) -> tuple[int, ...]:
        """The nodes of each rack as the bits of an integer; empty if all nodes are in one rack."""
        racks = [0] * (max(self.rack_of_node, default=0) + 1)
        for node, rack in enumerate(self.rack_of_node):
            racks[rack] |= 1 << node
        return tuple(racks) if len(racks) > 1 else ()

    @cached_property
    def bounds_of_node(self) -> list[tuple[int, int]]:
        """The first accelerator of each node, and the one behind its last."""
        return [(first, first + size) for first, size in zip(self.first_of.tolist(), self.node_size.tolist())]

    @cached_property
    def _usable_size(self) -> Ints:
        """By node, its accelerators; 0 of a removed node."""
        return _fixed(np.array([0 if n.removed else n.accelerators for n in self.nodes], dtype=np.int64))

    @cached_property
    def size_of_type(self) -> Ints:
        """How many accelerators each type has, whether up or down."""
        return _fixed(np.bincount(self.node_type, self._usable_size, len(self.types)).astype(np.int64))

    @cached_property
    def largest_node_of_type(self) -> Ints:
        """The accelerators of the largest node of each type; 1 for a type without nodes."""
        largest = np.ones(len(self.types), dtype=np.int64)
        np.maximum.at(largest, self.node_type, self._usable_size)
        return _fixed(largest)

    @cached_property
    def number_of_node(self) -> dict[str, int]:
        """By name, the numbers of the nodes that are not removed."""
        return {node.name: number for number, node in enumerate(self.nodes) if not node.removed}

    def number_for(self, spec: Node) -> int:
        """The number that an added node gets: that of a removed node with its name, type and size, or the next one."""
        shape = (True, spec.name, spec.type, spec.accelerators)
        same = (k for k, node in enumerate(self.nodes) if (node.removed, node.name, node.type, node.accelerators) == shape)
        return next(same, len(self.nodes))

    def with_node(self, number: int, spec: Node, type_: AcceleratorType | None = None) -> Cluster:
        """The cluster with a node under this number, which is the next one or that of another node."""
        types = self.types if type_ is None or type_.name in self.type_code else (*self.types, type_)
        return Cluster((*self.nodes[:number], spec, *self.nodes[number + 1 :]), types)

    @property
    def with_removed(self) -> Cluster:
        """The cluster as if no node had been removed."""
        return Cluster(tuple(replace(node, removed=False) for node in self.nodes), self.types)

    @cached_property
    def node_cpus(self) -> Floats:
        return _fixed(np.array([n.cpus for n in self.nodes], dtype=np.float64))

    @cached_property
    def node_memory_gb(self) -> Floats:
        return _fixed(np.array([n.memory_gb for n in self.nodes], dtype=np.float64))

    def workers_hosted(self, type_name: str, cpus: float, memory_gb: float) -> int:
        """How many workers with such needs the nodes of a type have CPUs and memory for, were the cluster empty."""
        code = self.type_code[type_name]
        if not (cpus > 0 or memory_gb > 0):
            return int(self.size_of_type[code])
        mine = self.node_type == code
        hosted = self._usable_size[mine].astype(np.float64)
        for need, there in ((cpus, self.node_cpus), (memory_gb, self.node_memory_gb)):
            if need > 0:
                hosted = np.minimum(hosted, np.floor(there[mine] / need + 1e-9))
        return int(hosted.sum())

    def spread(self, places: Ints, offsets: Ints, types: Ints) -> Bools:
        """Which gangs stand on more nodes than they need: the i-th on `places[offsets[i]:offsets[i+1]]`, of the i-th type."""
        cuts = offsets[:-1]
        wide = np.zeros(len(cuts), dtype=np.bool_)
        if len(places) == len(cuts):
            return wide
        node = self.node_of[places]
        # Most stand on one node, whose number is then both the least and the greatest of theirs.
        several = (np.minimum.reduceat(node, cuts) < np.maximum.reduceat(node, cuts)).nonzero()[0]
        if len(several):
            begin, end = cuts[several], offsets[several + 1]
            used = [len(set(node[first:last].tolist())) for first, last in zip(begin.tolist(), end.tolist())]
            wide[several] = np.array(used) > -((begin - end) // self.largest_node_of_type[types[several]])
        return wide

    def across_racks(self, places: Ints, offsets: Ints) -> Bools:
        """Which gangs are on several racks: the i-th on `places[offsets[i]:offsets[i+1]]`."""
        if not self.nodes_of_rack or len(places) == len(offsets) - 1:
            return np.zeros(len(offsets) - 1, dtype=np.bool_)
        rack, cuts = np.array(self.rack_of_node)[self.node_of[places]], offsets[:-1]
        several: Bools = np.minimum.reduceat(rack, cuts) < np.maximum.reduceat(rack, cuts)
        return several

    def racks_needed(self, type_: int, workers: int) -> int:
        """On how few racks a gang would be, were the cluster empty."""
        rack_of, sizes = np.array(self.rack_of_node), np.where(self.node_type == type_, self._usable_size, 0)
        reach = np.cumsum(np.sort(np.bincount(rack_of, sizes))[::-1])
        return int(reach.searchsorted(workers)) + 1

    @cached_property
    def price_changes_s(self) -> list[float]:
        """When the price of any type changes, in ascending order."""
        return sorted({second for type_ in self.types for second, _ in type_.price_changes})

    def prices_at(self, time_s: float) -> Floats:
        """The price per hour of an accelerator, by type."""
        before = (bisect_right(type_.price_changes, time_s, key=itemgetter(0)) for type_ in self.types)
        pairs = zip(self.types, before)
        return np.array([type_.price_changes[at - 1][1] if at else type_.price_per_hour for type_, at in pairs])

    def cost_until(self, type_: int, time_s: Floats) -> Floats:
        """What one accelerator of a type costs from second 0 on, up to each of these seconds."""
        changes = self.types[type_].price_changes
        begin_s = np.array([0.0, *(second for second, _ in changes)])
        price = np.array([self.types[type_].price_per_hour, *(price for _, price in changes)])
        before = np.concatenate(([0.0], np.cumsum(np.diff(begin_s) * price[:-1])))
        at = begin_s.searchsorted(time_s, side="right") - 1
        cost: Floats = (before[at] + (time_s - begin_s[at]) * price[at]) / 3600
        return cost

    @cached_property
    def size(self) -> int:
        """How many accelerators have a number, those of removed nodes included."""
        return int(self.node_size.sum())

    def __str__(self) -> str:
        sizes = zip(self.type_names, self.size_of_type.tolist())
        return ", ".join(f"{size} × {name}" for name, size in sizes if size) or "no nodes"


def _in_order(known: Sequence[AcceleratorType], nodes: Sequence[Node]) -> tuple[AcceleratorType, ...]:
    by_name = {t.name: t for t in known}
    return tuple(by_name.get(name, AcceleratorType(name)) for name in dict.fromkeys(n.type for n in nodes))


def _fixed(array: npt.NDArray[T]) -> npt.NDArray[T]:
    array.setflags(write=False)
    return array
