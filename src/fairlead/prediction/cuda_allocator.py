"""Replays the record of a training step through a model of PyTorch's caching allocator: peak allocated and reserved memory."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairlead.prediction.fake_step import StepTrace

MB = 2**20
ROUND, SMALL, LARGE, SMALL_SEGMENT, LARGE_SEGMENT = 512, MB, 10 * MB, 2 * MB, 20 * MB


@dataclass(frozen=True)
class MemoryUse:
    """Peaks in MiB, after the first step; `by_category_mb` is what is allocated at the peak."""

    allocated_mb: float
    reserved_mb: float
    by_category_mb: Mapping[str, float]


class _Block:
    __slots__ = ("address", "free", "next", "previous", "size", "small")

    def __init__(self, size: int, address: int, small: bool) -> None:
        self.size, self.address, self.small, self.free = size, address, small, False
        self.previous: _Block | None = None
        self.next: _Block | None = None

    def key(self) -> tuple[int, int]:
        """Best fit, then the lowest address."""
        return (self.size, self.address)


class CachingAllocator:
    """PyTorch's CUDA caching allocator for one stream (c10/cuda/CUDACachingAllocator.cpp)."""

    def __init__(self) -> None:
        self.keys: dict[bool, list[tuple[int, int]]] = {True: [], False: []}
        self.blocks: dict[tuple[int, int], _Block] = {}
        self.allocated = self.reserved = self.next_address = 0

    def allocate(self, size: int) -> _Block:
        """A block for so many bytes: the smallest free one that fits, else a new segment."""
        size = max(ROUND, -(-size // ROUND) * ROUND)
        small = size <= SMALL
        keys = self.keys[small]
        place = bisect_left(keys, (size, 0))
        if place < len(keys):
            block = self.blocks.pop(keys.pop(place))
        else:
            segment = SMALL_SEGMENT if small else LARGE_SEGMENT if size < LARGE else -(-size // SMALL_SEGMENT) * SMALL_SEGMENT
            block = _Block(segment, self.next_address, small)
            self.next_address += segment + SMALL_SEGMENT  # segments do not touch
            self.reserved += segment
        left = block.size - size
        if left >= ROUND if small else left > SMALL:
            rest = _Block(left, block.address + size, small)
            rest.previous, rest.next = block, block.next
            if block.next is not None:
                block.next.previous = rest
            block.next, block.size = rest, size
            self._put(rest)
        block.free = False
        self.allocated += block.size
        return block

    def release(self, block: _Block) -> None:
        """Free a block and merge it with free neighbours."""
        self.allocated -= block.size
        for other in (block.previous, block.next):
            if other is not None and other.free:
                keys = self.keys[other.small]
                del keys[bisect_left(keys, other.key())]
                del self.blocks[other.key()]
                left, right = (other, block) if other.address < block.address else (block, other)
                left.size += right.size
                left.next = right.next
                if right.next is not None:
                    right.next.previous = left
                block = left
        self._put(block)

    def _put(self, block: _Block) -> None:
        block.free = True
        insort(self.keys[block.small], block.key())
        self.blocks[block.key()] = block


def memory_use(trace: StepTrace) -> MemoryUse:
    """The peaks after the first step. The last step is repeated: free memory gets more fragmented in the first steps."""
    allocator, live = CachingAllocator(), dict[tuple[int, int], _Block]()
    held: dict[str, int] = defaultdict(int)
    peak, parts = 0, dict[str, int]()
    last = trace.steps[-1]
    left = {event[1] for event in last if event[0] == "a"} - {event[1] for event in last if event[0] == "f"}
    gradients = [name for name in left if trace.categories.get(name) == "gradients"]

    def free(name: tuple[int, int]) -> None:
        if (block := live.pop(name, None)) is not None:
            held[trace.categories.get(name[1], "activations")] -= block.size
            allocator.release(block)

    for turn, events in enumerate([trace.setup, *trace.steps, *[last] * 3]):
        copy = max(0, turn - len(trace.steps))  # which repetition of the last step
        if turn == 2:
            peak = 0  # as measured: after the first step
        if copy:
            for number in gradients:  # by zero_grad, with which a step begins
                free((copy - 1, number))
        for event in events:
            if event[0] == "f":
                free((copy, event[1]))
            elif event[0] == "w":
                block = allocator.allocate(event[1])
                if allocator.allocated > peak:
                    peak, parts = allocator.allocated, {**held, "workspace": held["workspace"] + block.size}
                allocator.release(block)
            elif event[2] and not (copy and event[1] in left and trace.categories.get(event[1]) != "gradients"):
                live[copy, event[1]] = block = allocator.allocate(event[2])
                held[trace.categories.get(event[1], "activations")] += block.size
                if allocator.allocated > peak:
                    peak, parts = allocator.allocated, dict(held)
    return MemoryUse(peak / MB, allocator.reserved / MB, {name: size / MB for name, size in parts.items() if size})
