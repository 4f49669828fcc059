"""Trained models as plain numbers: a line or a forest, which predict with numpy alone and are kept as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from fairlead.core.cluster import Floats, Ints
from fairlead.core.errors import InputError

MOST_NODES = 2_000_000
LARGEST = 1e30  # of stored numbers: sums and products of a few stay finite


class Learned(Protocol):
    """A fitted model that predicts one number for each row."""

    def predict(self, rows: Floats) -> Floats: ...
    def importance(self) -> Floats: ...
    def to_data(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Line:
    """base + Σ weight · x"""

    base: float
    weights: tuple[float, ...]
    scale: tuple[float, ...]  # how much each input varies, for importance

    def predict(self, rows: Floats) -> Floats:
        found: Floats = self.base + np.asarray(rows) @ np.array(self.weights)
        return found

    def importance(self) -> Floats:
        found: Floats = np.abs(np.array(self.weights) * np.array(self.scale))
        return found

    def to_data(self) -> dict[str, Any]:
        return {"kind": "line", "base": self.base, "weights": list(self.weights), "scale": list(self.scale)}


@dataclass(frozen=True)
class Tree:
    """Node n asks whether x[feature] ≤ threshold: yes goes to `left`, no to `right`. A leaf has feature −1 and a value."""

    feature: Sequence[int]
    threshold: Sequence[float]
    left: Sequence[int]
    right: Sequence[int]
    value: Sequence[float]


@dataclass(frozen=True)
class Forest:
    """base + the sum of the trees' values; a mean of trees is a sum of smaller ones."""

    base: float
    trees: tuple[Tree, ...]
    gains: tuple[float, ...]  # the gain of each input, for importance

    @cached_property
    def _flat(self) -> tuple[Ints, Ints, Floats, Ints, Ints, Floats]:
        sizes = [len(tree.feature) for tree in self.trees]
        starts = np.concatenate([[0], np.cumsum(sizes)])[:-1].astype(int)
        left = np.concatenate([np.asarray(tree.left) + start for tree, start in zip(self.trees, starts)])
        right = np.concatenate([np.asarray(tree.right) + start for tree, start in zip(self.trees, starts)])
        feature = np.concatenate([np.asarray(tree.feature) for tree in self.trees])
        threshold = np.concatenate([np.asarray(tree.threshold, dtype=float) for tree in self.trees])
        value = np.concatenate([np.asarray(tree.value, dtype=float) for tree in self.trees])
        return starts, feature, threshold, left, right, value

    def predict(self, rows: Floats) -> Floats:
        starts, feature, threshold, left, right, value = self._flat
        asked = np.asarray(rows, dtype=np.float32).astype(float)  # as the learners saw them
        at = np.broadcast_to(starts, (len(asked), len(starts))).copy()
        row = np.arange(len(asked))[:, None]
        while (inside := feature[at] >= 0).any():
            yes = asked[row, np.maximum(feature[at], 0)] <= threshold[at]
            at = np.where(inside, np.where(yes, left[at], right[at]), at)
        found: Floats = self.base + value[at].sum(axis=1)
        return found

    def importance(self) -> Floats:
        return np.array(self.gains)

    def to_data(self) -> dict[str, Any]:
        trees = [[list(each) for each in (t.feature, t.threshold, t.left, t.right, t.value)] for t in self.trees]
        return {"kind": "forest", "base": self.base, "gains": list(self.gains), "trees": trees}


def model_from_data(data: Mapping[str, Any], inputs: int, source: object) -> Learned:
    """Read a model from its data; raises InputError where they are malformed."""
    try:
        if data["kind"] == "line":
            line = Line(_number(data["base"]), _numbers(data["weights"]), _numbers(data["scale"]))
            if not len(line.weights) == len(line.scale) == inputs:
                raise ValueError("a weight for each input")
            return line
        if data["kind"] == "forest":
            trees = tuple(_tree(one, inputs) for one in data["trees"])
            if not trees or sum(len(tree.feature) for tree in trees) > MOST_NODES:
                raise ValueError(f"from 1 to {MOST_NODES:,} nodes")
            gains = _numbers(data["gains"])
            if len(gains) != inputs or min(gains, default=0.0) < 0:
                raise ValueError("a gain of at least 0 for each input")
            return Forest(_number(data["base"]), trees, gains)
        raise ValueError("line or forest")
    except (KeyError, TypeError, ValueError, IndexError, OverflowError) as problem:
        raise InputError(
            source, f"a line or a forest as `fairlead predict train` writes them: {problem}", field="learned"
        ) from None


def _tree(data: Sequence[Sequence[Any]], inputs: int) -> Tree:
    feature, left, right = (tuple(int(each) for each in data[place]) for place in (0, 2, 3))
    tree = Tree(feature, _numbers(data[1]), left, right, _numbers(data[4]))
    size = len(feature)
    if not size or any(len(each) != size for each in (tree.threshold, left, right, tree.value)):
        raise ValueError("five columns of equal length")
    for node in range(size):
        if not -1 <= feature[node] < inputs:
            raise ValueError("inputs that exist")
        if not (-1 <= left[node] < size and -1 <= right[node] < size):
            raise ValueError("nodes that exist")
        if feature[node] >= 0 and not (node < left[node] < size and node < right[node] < size):
            raise ValueError("child nodes after their parents")  # else it might go round for ever
    return tree


def _numbers(data: Sequence[Any]) -> tuple[float, ...]:
    found = tuple(float(each) for each in data)
    if not sane(found):
        raise ValueError(f"finite numbers, none beyond {LARGEST:g}")
    return found


def _number(data: Any) -> float:
    return _numbers([data])[0]


def sane(numbers: Sequence[float]) -> bool:
    """Whether all numbers are finite and not too large."""
    return all(abs(each) <= LARGEST for each in numbers)  # not so for NaN
