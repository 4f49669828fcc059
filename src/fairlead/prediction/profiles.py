"""The measured tables as a scheduler or a simulator wants them: who does what alone, and how much slower two get together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

from fairlead.core.errors import InputError, near_or_all
from fairlead.profiling.results import measured, sets


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
    return Profiles(about["device"], alone, _pairs(device))


def _pairs(device: str) -> dict[str, dict[tuple[str, str], tuple[float, float]]]:
    found: dict[str, dict[tuple[str, str], tuple[float, float]]] = {}
    for name in sets():
        if not name.startswith(f"{device}_pairs"):
            continue
        about, rows = measured(name)
        table = found.setdefault(about["sharing"], {})
        alone = {row["name"]: row["steps_per_s"] for row in rows if "pair" not in row and "problem" not in row}
        for row in rows:
            if "pair" not in row or "problem" in row:
                continue
            (one, other), (first, second) = row["pair"], row["steps_per_s"]
            slower = alone[one] / first, alone[other] / second
            table[one, other], table[other, one] = slower, slower[::-1]
    return found
