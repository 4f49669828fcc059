"""Which job holds which accelerators; used by the state, the simulated world and tests."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from fairlead.core.cluster import Bools, Ints
from fairlead.core.columns import FALSE, NO_JOB, TRUE

NONE: Ints = np.empty(0, dtype=np.int64)


class DeviceMap:
    """The job of each accelerator. Further jobs on a shared one are in higher layers, and move down when a layer is free."""

    def __init__(self, accelerators: int, capacity: int = 256) -> None:
        self.accelerators = accelerators
        self.last: Ints = np.full(capacity, -1, dtype=np.int64)  # by job: the first accelerator it has or had last, or -1
        self._layers: list[Ints] = [np.full(accelerators, -1, dtype=np.int64)]  # by accelerator: a job, or -1
        self._marks: Bools = np.zeros(capacity + 1, dtype=np.bool_)  # for `held_by`; the last entry means no job
        self.shared = False  # whether any accelerator has more than one job on it

    def reserve(self, size: int) -> None:
        old = len(self.last)
        if size > old:
            grown = max(size, 2 * old) - old
            self.last = np.concatenate((self.last, np.full(grown, -1, dtype=np.int64)))
            self._marks = np.zeros(old + grown + 1, dtype=np.bool_)

    def grow(self, accelerators: int) -> None:
        """Add accelerators, up to this many in all."""
        more = np.full(accelerators - self.accelerators, -1, dtype=np.int64)
        self._layers = [np.concatenate((layer, more)) for layer in self._layers]
        self.accelerators = accelerators

    @property
    def occupancy(self) -> Ints:
        """How many jobs there are on each accelerator."""
        jobs: Ints = np.add.reduce([layer >= 0 for layer in self._layers], dtype=np.int64)
        return jobs

    def of(self, number: int) -> Ints:
        """The accelerators of a job, in ascending order."""
        return np.sort(np.concatenate([(layer == number).nonzero()[0] for layer in self._layers]))

    def held_by(self, numbers: Ints) -> Bools:
        """By accelerator, whether one of these jobs holds it."""
        marks = self._marks
        marks[numbers] = TRUE
        held: Bools = marks[self._layers[0]]
        for layer in self._layers[1:]:
            held |= marks[layer]
        marks[numbers] = FALSE
        return held

    def others(self, numbers: Ints, than: Ints) -> Ints:
        """`numbers` without those in `than`, in their order."""
        marks = self._marks
        marks[than] = TRUE
        left = numbers[~marks[numbers]]
        marks[than] = FALSE
        return left

    def on(self, accelerators: Bools) -> Ints:
        """The jobs that hold one of these accelerators, by number."""
        held = np.unique(np.concatenate([layer[accelerators] for layer in self._layers]))
        return held[held >= 0]

    def places(self, numbers: Ints) -> tuple[Ints, Ints]:
        """The accelerators of these jobs, as columns of job numbers and accelerators, both ascending."""
        marks = self._marks
        marks[numbers] = TRUE
        owner: list[Ints] = []
        place: list[Ints] = []
        for layer in self._layers:
            at = marks[layer].nonzero()[0]
            owner.append(layer[at])
            place.append(at)
        marks[numbers] = FALSE
        owners, places = np.concatenate(owner), np.concatenate(place)
        order = np.lexsort((places, owners))
        return owners[order], places[order]

    def take(self, jobs: Ints, offsets: Ints, accelerators: Ints, *, exclusive: bool = False) -> None:
        """Job i takes `accelerators[offsets[i]:offsets[i+1]]`; `exclusive` where they are known to be free, and taken once."""
        if not len(jobs):
            return
        takers, ground = jobs, self._layers[0]
        if len(accelerators) == len(jobs):
            self.last[jobs] = accelerators
        else:
            self.last[jobs] = accelerators[offsets[:-1]]
            takers = jobs.repeat(offsets[1:] - offsets[:-1])
        if exclusive:
            ground[accelerators] = takers
            return
        before = ground[accelerators]
        ground[accelerators] = takers
        if before.item(before.argmax()) >= 0 or np.count_nonzero(ground[accelerators] != takers):
            ground[accelerators] = before  # some were not free, or taken by two jobs
            self._add_layers(takers.tolist(), accelerators.tolist())

    def release(self, jobs: Ints) -> None:
        """Free the accelerators of these jobs, each of which holds some."""
        marks = self._marks
        marks[jobs] = TRUE
        for layer in self._layers:
            layer[marks[layer]] = NO_JOB
        marks[jobs] = FALSE
        if self.shared:
            self._compact_layers()

    @property
    def layers(self) -> Ints:
        """The jobs by layer and accelerator; with `last`, the whole content."""
        return np.array(self._layers)

    @classmethod
    def of_layers(cls, layers: Ints, last: Ints) -> DeviceMap:
        """The inverse of `layers`."""
        device_map = cls(layers.shape[1], 0)
        device_map.last, device_map._layers = last.copy(), [layer.copy() for layer in layers]
        device_map._marks = np.zeros(len(last) + 1, dtype=np.bool_)
        device_map.shared = len(layers) > 1
        return device_map

    def copy(self) -> DeviceMap:
        return DeviceMap.of_layers(self.layers, self.last)

    def _add_layers(self, takers: list[int], accelerators: list[int]) -> None:
        for job, place in zip(takers, accelerators):
            layer = next((layer for layer in self._layers if layer[place] < 0), None)
            if layer is None:
                layer = np.full(self.accelerators, -1, dtype=np.int64)
                self._layers.append(layer)
                self.shared = True
            layer[place] = job

    def _compact_layers(self) -> None:
        for level, lower in enumerate(self._layers):
            for upper in self._layers[level + 1 :]:
                falls = (lower < 0) & (upper >= 0)
                lower[falls] = upper[falls]
                upper[falls] = -1
        self._layers = [layer for level, layer in enumerate(self._layers) if level == 0 or layer.max(initial=-1) >= 0]
        self.shared = len(self._layers) > 1


def ragged(parts: Iterable[Ints]) -> tuple[Ints, Ints]:
    """Offsets and the flat column of several arrays."""
    arrays = list(parts)
    offsets = offsets_of(np.array([len(a) for a in arrays], dtype=np.int64))
    return offsets, np.concatenate(arrays) if arrays else NONE


def offsets_of(sizes: Ints) -> Ints:
    """Where each of several parts of one column begins, and where the last ends."""
    offsets = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.add.accumulate(sizes, out=offsets[1:])
    return offsets
