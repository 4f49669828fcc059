"""Measured profiles for schedulers and simulators: each configuration alone, and the slowdowns of co-located pairs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeAlias

import numpy as np

from fairlead.core.cluster import Bools, Floats
from fairlead.core.errors import InputError, near_or_all
from fairlead.models.interference import SHORTEST_S, Slowdown
from fairlead.prediction.fit_predictor import dataset
from fairlead.prediction.predictor import Predictor, kernel_s, shipped_predictor
from fairlead.profiling.pair_selection import SelectionMetric
from fairlead.profiling.results import device_of, measured_set, measured_sets

Measurements: TypeAlias = tuple[Mapping[str, Any], Sequence[Mapping[str, Any]]]
"""The device, and the measurements."""
SOLO_FIELDS = ("utilization", "device_memory_mb", "family", "steps_per_s")
UNDISTURBED = 60.0  # percent of utilization, of both together, that leaves both undisturbed


@dataclass(frozen=True)
class SoloProfile:
    """One configuration alone. Utilizations are NVML's, in percent; memory is all that the device showed in use."""

    name: str
    family: str
    steps_per_s: float
    utilization: float
    memory_mb: float
    multiprocessors: float | None = None  # busy, in percent, where the device was asked


@dataclass(frozen=True)
class Profiles:
    """The measurements of one device. `pairs[sharing][a, b]` are the slowdowns of a with b, and of b with a, in both orders."""

    device: str
    alone: Mapping[str, SoloProfile]
    pairs: Mapping[str, Mapping[tuple[str, str], tuple[float, float]]] = field(default_factory=dict)

    def slowdowns(self, one: str, other: str, sharing: str = "time-slicing") -> tuple[float, float]:
        """The measured slowdowns of a pair."""
        found = self.pairs.get(sharing, {})
        if (one, other) not in found:
            raise InputError(
                f"measured pairs on {self.device}", "two configurations measured as a pair", field=sharing, value=(one, other)
            )
        return found[one, other]

    def paired(self, sharing: str = "time-slicing") -> tuple[str, ...]:
        """The configurations that were measured in pairs, by utilization."""
        names = {one for one, _ in self.pairs.get(sharing, {})}
        return tuple(sorted(names, key=lambda name: (self.alone[name].utilization, name)))


@cache
def devices() -> tuple[str, ...]:
    """Devices with a shipped set; other sets of a device begin with its name."""
    known = measured_sets()
    return tuple(name for name in known if not any(name.startswith(f"{other}_") for other in known))


@cache
def shipped_profiles(device: str = "h200", metric: SelectionMetric | None = SelectionMetric.UTILIZATION) -> Profiles:
    """The set that ships for a device, with the pairs selected by this metric; None: all pairs."""
    if device not in devices():
        expected = f"a device whose profiles ship ({near_or_all(device, devices())})"
        raise InputError("profiles", expected, field="device", value=device)
    pairs = {name: measured_set(name) for name in paired_sets(device, metric)}
    return profiles_of(measured_set(device), pairs, device, _multiprocessors(device))


@cache
def usage_by_kind(device: str) -> Mapping[str, tuple[float, float]]:
    """The measured utilization in percent and memory in GB of each configuration."""
    return {name: (one.utilization, one.memory_mb / 1024) for name, one in shipped_profiles(device).alone.items()}


def profiles_of(
    alone: Measurements, pairs: Mapping[Any, Measurements], source: object, active: Mapping[str, float] | None = None
) -> Profiles:
    """Build profiles from configurations measured alone (in `source`) and pairs (by file; repeated pairs count by their mean).
    `active` is the measured percentage of busy multiprocessors. Measurements without NVML, as on a CPU, are refused."""
    about, found = alone
    rows = [one for one in found if "problem" not in one]
    lacking = next((name for name in SOLO_FIELDS for one in rows if name not in one), None if rows else SOLO_FIELDS[0])
    if lacking is not None:
        raise InputError(source, "configurations measured alone, with the values that NVML reports", field=lacking)
    known = {
        one["name"]: SoloProfile(
            one["name"],
            one["family"],
            one["steps_per_s"],
            one["utilization"],
            one["device_memory_mb"],
            (active or {}).get(one["name"]),
        )
        for one in rows
    }
    together: dict[str, dict[tuple[str, str], list[tuple[float, float]]]] = {}
    for where, (of, both) in pairs.items():
        if "device" in of and device_of(of) != device_of(about):
            raise InputError(where, f"pairs on {device_of(about)}, as {source}", field="device", value=device_of(of))
        unknown = next((name for row in both for name in row.get("pair", ()) if name not in known), None)
        if unknown is not None:
            raise InputError(where, f"configurations of pairs also measured alone, in {source}", field="pair", value=unknown)
        for pair, slower in mean_slowdowns(both, known).items():
            together.setdefault(of["sharing"], {}).setdefault(pair, []).append(slower)
    mean = {sharing: {pair: _mean(seen) for pair, seen in found.items()} for sharing, found in together.items()}
    return Profiles(device_of(about), known, mean)


def paired_sets(device: str, metric: SelectionMetric | None = None) -> tuple[str, ...]:
    """The names of the sets of pairs selected by this metric; None: all sets."""
    starts = {SelectionMetric.UTILIZATION: f"{device}_pairs", SelectionMetric.DEVICE_FILL: f"{device}_share_pairs"}
    wanted = tuple(starts.values()) if metric is None else (starts[metric],)
    return tuple(name for name in measured_sets() if name.startswith(wanted))


def _multiprocessors(device: str) -> dict[str, float]:
    """Mean percentage of busy multiprocessors of configurations that ran alone."""
    seen: dict[str, list[float]] = {}
    for name in measured_sets():
        if name == f"{device}_activity" or name in paired_sets(device):
            for row in measured_set(name)[1]:
                if "pair" not in row and "sm_active" in row:
                    seen.setdefault(_configuration_of(row), []).append(row["sm_active"])
    return {name: statistics.fmean(values) for name, values in seen.items()}


def mean_slowdowns(
    rows: Sequence[Mapping[str, Any]], alone: Mapping[str, SoloProfile]
) -> dict[tuple[str, str], tuple[float, float]]:
    """The slowdowns of every pair, in both orders; repeated pairs count by their mean."""
    table: dict[tuple[str, str], tuple[float, float]] = {}
    for (one, other), seen in measured_slowdowns(rows, alone).items():
        first, second = _mean(seen)
        table[one, other], table[other, one] = (first, second), (second, first)
    return table


def _mean(seen: Sequence[tuple[float, float]]) -> tuple[float, float]:
    first, second = (statistics.fmean(column) for column in zip(*seen))
    return first, second


def measured_slowdowns(
    rows: Sequence[Mapping[str, Any]], alone: Mapping[str, SoloProfile]
) -> dict[tuple[str, str], list[tuple[float, float]]]:
    """All measured slowdowns of every pair, relative to the rate of each alone: in the same second where that was measured."""
    rows = [row for row in rows if "problem" not in row]
    paired = [row for row in rows if "pair" in row]
    speeds = _Undisturbed([row for row in rows if "pair" not in row], paired, alone)
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for row in paired:
        (one, other), (first, second) = row["pair"], row["steps_per_s"]
        session = row.get("session", 1)
        mine, theirs = row.get("undisturbed_steps_per_s") or (speeds.of(one, session), speeds.of(other, session))
        slower = mine / first, theirs / second
        if (other, one) in found and one != other:
            found[other, one].append(slower[::-1])
        else:
            found.setdefault((one, other), []).append(slower)
    return found


class _Undisturbed:
    """Steps per second of each configuration alone. Trainings that wait for their host vary by a tenth between seconds; a few
    windows are too few. So windows of pairs count too, if the device was idle nearly half of the time. The result is the
    median; of the same session if possible, since other hosts have other speeds."""

    def __init__(
        self, by_itself: Sequence[Mapping[str, Any]], paired: Sequence[Mapping[str, Any]], alone: Mapping[str, SoloProfile]
    ) -> None:
        self._windows: dict[tuple[str, int], list[float]] = {}
        for row in by_itself:
            mean, half = row["steps_per_s"], row["spread"] / 2
            seen = _windows(row, [mean * (1 - half), mean * (1 + half)])
            self._windows.setdefault((_configuration_of(row), row.get("session", 1)), []).extend(seen)
        for pair in paired:
            if sum(alone[each].utilization for each in pair["pair"]) <= UNDISTURBED:
                for place, each in enumerate(pair["pair"]):
                    seen = [window[place] for window in _windows(pair, [pair["steps_per_s"]])]
                    self._windows.setdefault((each, pair.get("session", 1)), []).extend(seen)

    def of(self, name: str, session: int) -> float:
        here = self._windows.get((name, session))
        return statistics.median(here or [each for (one, _), seen in self._windows.items() if one == name for each in seen])


def _windows(row: Mapping[str, Any], otherwise: list[Any]) -> list[Any]:
    """The rates of each window; older rows have only their number."""
    seen = row.get("windows")
    return seen if isinstance(seen, list) else otherwise


def _configuration_of(row: Mapping[str, Any]) -> str:
    """The configuration of a row without a pair; the first such rows have no other name."""
    return str(row.get("alone", row["name"]))


@dataclass(frozen=True)
class MultiprocessorUse:
    """Multiprocessors that a training uses alone."""

    multiprocessors: float  # busy, in percent, alone
    kernel_s: float  # mean length of a kernel, by the roofline
    counted: bool = False  # by the device itself; else predicted from the graph


UNKNOWN = MultiprocessorUse(math.nan, math.nan)


@cache
def multiprocessor_use(device: str = "h200") -> Mapping[str, MultiprocessorUse]:
    """The use of all configurations with measurements on a device and a graph."""
    known = dataset(measured_set(device)[1], measured_set(f"{device}_features")[1])
    model, alone = shipped_predictor(device).multiprocessors, shipped_profiles(device).alone
    if model is None:
        return {}
    found: dict[str, MultiprocessorUse] = {}
    for name, column, believed in zip(known.names, known.columns, model.percent(known.columns).tolist()):
        counted = alone[name].multiprocessors
        found[name] = MultiprocessorUse(believed if counted is None else counted, kernel_s(column), counted is not None)
    return found


@dataclass(frozen=True)
class InterferenceModel:
    """Slowdowns in one sharing mode: `finer` by the multiprocessors that the other holds, `plain` by utilizations alone."""

    plain: Slowdown
    finer: Slowdown | None = None

    @classmethod
    def fitted(cls, predictor: Predictor, sharing: str) -> InterferenceModel:
        return cls(predictor.slowdown[sharing], predictor.at_once.get(sharing))

    def slower(
        self, busy: Floats, held: Floats, kernel_s: Floats, others: Floats | None = None
    ) -> tuple[Floats, Floats, Bools]:
        """The slowdown of each job co-located with each other job, its standard deviation, and whether `finer` was used.
        `busy` is in percent, jobs × types; `held` (percent) and `kernel_s` are by job, NaN if unknown. `others` is the
        utilization of a job as the other one, if it differs from `busy`."""
        own, other = np.broadcast_arrays(busy[:, None], (busy if others is None else others)[None, :])
        slower, off = self.plain.of(own, other), self.plain.spread(own, other)
        known = np.isfinite(held) & np.isfinite(kernel_s)
        both = (known[:, None] & known[None, :])[:, :, None]
        if self.finer is None or not both.any():
            return slower, off, np.zeros_like(both)
        long = np.log10(np.maximum(np.where(known, kernel_s, 1.0), SHORTEST_S))
        kernel_length_ratio = np.broadcast_to((long[None, :] - long[:, None])[:, :, None], own.shape)
        holds = np.broadcast_to(np.where(known, held, 0.0)[None, :, None], own.shape)
        finer = self.finer.of(own, holds, kernel_length_ratio), self.finer.spread(own, holds)
        return np.where(both, finer[0], slower), np.where(both, finer[1], off), both
