"""Overlapping intervals made into disjoint ones, so that an accelerator shared by two jobs is busy once and a gang of
four runs once. It knows keys and times only, neither jobs nor accelerators."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairlead.core.cluster import Floats, Ints


@dataclass(frozen=True)
class Intervals:
    """Intervals that do not overlap within a key, ordered by key and start."""

    key: Ints
    start_s: Floats
    end_s: Floats

    def clipped(self, low_s: float, high_s: float) -> Intervals:
        return Intervals(self.key, np.clip(self.start_s, low_s, high_s), np.clip(self.end_s, low_s, high_s))

    def total_s(self) -> float:
        return float((self.end_s - self.start_s).sum())


def disjoint(key: Ints, start_s: Floats, end_s: Floats) -> Intervals:
    """The union of the intervals of each key."""
    if len(key) == 0:
        return Intervals(key, start_s, end_s)
    order = _by_key_and_start(key, start_s)
    key, start_s, end_s = key[order], start_s[order], end_s[order]
    same = key[1:] == key[:-1]
    if not np.any(same & (start_s[1:] < end_s[:-1])):
        return Intervals(key, start_s, end_s)  # the common case: nobody shares, nothing to join
    # Ranks instead of times: adding a key's offset to a rank is exact, adding it to a float is not.
    times, rank = np.unique(np.concatenate((start_s, end_s)), return_inverse=True)
    offset = key * (len(times) + 1)
    begin, finish = rank[: len(key)] + offset, rank[len(key) :] + offset
    reached = np.maximum.accumulate(finish)
    first = np.flatnonzero(np.concatenate(([True], (begin[1:] > reached[:-1]) | ~same)))
    return Intervals(key[first], start_s[first], np.maximum.reduceat(end_s, first))


def _by_key_and_start(key: Ints, start_s: Floats) -> Ints:
    if np.any(start_s[1:] < start_s[:-1]):
        return np.lexsort((start_s, key))
    # Already in order of start: a stable sort by key keeps that, and on two-byte keys numpy's is a linear radix sort.
    narrow = key.astype(np.uint16) if key.min() >= 0 and key.max() < 2**16 else key
    return np.argsort(narrow, kind="stable")
