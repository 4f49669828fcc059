"""The measured tables as a scheduler or a simulator wants them: who does what alone, and how much slower two get together."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from fairlead.core.errors import InputError, near_or_all
from fairlead.profiling.results import measured, sets

TO_SPARE = 60.0  # percent of utilization, of both together, that leaves both undisturbed


@dataclass(frozen=True)
class Alone:
    """One configuration by itself. Utilizations are NVML's, in percent; memory is all that the device showed in use."""

    name: str
    family: str
    steps_per_s: float
    utilization: float
    memory_utilization: float
    memory_mb: float


@dataclass(frozen=True)
class Profiles:
    """What was measured on one device. `pairs[sharing][a, b]` are the slowdowns of a beside b and of b beside a; both orders
    are there."""

    device: str
    alone: Mapping[str, Alone]
    pairs: Mapping[str, Mapping[tuple[str, str], tuple[float, float]]] = field(default_factory=dict)

    def slowdowns(self, one: str, other: str, sharing: str = "time-slicing") -> tuple[float, float]:
        """As measured; an error where these two were not."""
        found = self.pairs.get(sharing, {})
        if (one, other) not in found:
            raise InputError(
                f"measured pairs on {self.device}", "two configurations measured together", field=sharing, value=(one, other)
            )
        return found[one, other]

    def paired(self, sharing: str = "time-slicing") -> tuple[str, ...]:
        """Who was measured beside others, in order of utilization."""
        names = {one for one, _ in self.pairs.get(sharing, {})}
        return tuple(sorted(names, key=lambda name: (self.alone[name].utilization, name)))


@cache
def profiles(device: str = "h200") -> Profiles:
    """The set that ships for a device."""
    if device not in sets():
        raise InputError("profiles", near_or_all(device, sets()), field="device", value=device)
    about, found = measured(device)
    alone = {
        one["name"]: Alone(
            one["name"],
            one["family"],
            one["steps_per_s"],
            one["utilization"],
            one["memory_utilization"],
            one["device_memory_mb"],
        )
        for one in found
        if "problem" not in one
    }
    return Profiles(about["device"], alone, _pairs(device, alone))


def _pairs(device: str, alone: Mapping[str, Alone]) -> dict[str, dict[tuple[str, str], tuple[float, float]]]:
    found: dict[str, dict[tuple[str, str], tuple[float, float]]] = {}
    for name in sets():
        if name.startswith(f"{device}_pairs"):
            about, rows = measured(name)
            found.setdefault(about["sharing"], {}).update(slowdowns(rows, alone))
    return found


def slowdowns(rows: Sequence[Mapping[str, Any]], alone: Mapping[str, Alone]) -> dict[tuple[str, str], tuple[float, float]]:
    """Of every pair of a file of pairs, in both orders."""
    rows = [row for row in rows if "problem" not in row]
    paired = [row for row in rows if "pair" in row]
    speed = {row["name"]: _undisturbed(row, paired, alone) for row in rows if "pair" not in row}
    table: dict[tuple[str, str], tuple[float, float]] = {}
    for row in paired:
        (one, other), (first, second) = row["pair"], row["steps_per_s"]
        slower = speed[one] / first, speed[other] / second
        table[one, other], table[other, one] = slower, slower[::-1]
    return table


def _undisturbed(row: Mapping[str, Any], paired: Sequence[Mapping[str, Any]], alone: Mapping[str, Alone]) -> float:
    """Trainings that wait for their host vary by a tenth from one second to the next, and two windows alone say too little. So
    the windows count too in which the device had nearly half of its time to spare: the median of all."""
    name, mean, half = row["name"], row["steps_per_s"], row["spread"] / 2
    seen = [mean * (1 - half), mean * (1 + half)]
    for pair in paired:
        if sum(alone[each].utilization for each in pair["pair"]) <= TO_SPARE:
            seen += [rate for each, rate in zip(pair["pair"], pair["steps_per_s"]) if each == name]
    return float(statistics.median(seen))
