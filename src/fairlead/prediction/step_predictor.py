"""Speed and use of a GPU by a training step: seconds of the device and of the host, each a weighted sum of terms
(`step_features`). The weights are fitted to measured trainings; their errors on families left out give the intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import orjson

from fairlead.core.errors import InputError
from fairlead.models.learned_models import sane

Terms = Mapping[str, float]
FORMAT = "fairlead speed model 1"
SHIPPED = Path(__file__).parent / "trained" / "h200_steps.json"
OVERLAP = 6.0  # device and host run side by side: seconds = (device⁶ + host⁶)^(1/6), a little more than the longer
HOST_SCALING = 0.5  # exponent of a host's launch time: trainings of four sessions differed by less than their probes did
COVERED = (0.1, 0.9)  # quantiles of the errors that the intervals cover


@dataclass(frozen=True)
class SpeedEstimate:
    """Speed and use of the GPU, each with an interval that covers about 80 %."""

    steps_per_s: tuple[float, float, float]  # low, middle, high
    utilization: tuple[float, float, float]  # percent
    multiprocessors: float  # percent
    kernel_s: float


@dataclass(frozen=True)
class SpeedModel:
    """The weights of all terms, and the logarithmic errors that the intervals cover."""

    device: Mapping[str, float]
    host: Mapping[str, float]
    multiprocessors: Mapping[str, float]  # of the device's terms, for the seconds of all its multiprocessors
    host_launch_us: float  # of the host that was measured, by `fairlead profile host`
    step_error: tuple[float, float] = (-0.5, 0.5)
    utilization_error: tuple[float, float] = (-0.5, 0.5)

    def estimate(self, device: Terms, host: Terms, kernels: float, host_launch_us: float | None = None) -> SpeedEstimate:
        """The speed of a step with these terms, on a host whose launches take so many microseconds."""
        slower = 1.0 if host_launch_us is None else (host_launch_us / self.host_launch_us) ** HOST_SCALING
        on_device, on_host = weighed(device, self.device), slower * weighed(host, self.host)
        step_s = combined(on_device, on_host)
        low, high = (math.exp(-error) / step_s for error in reversed(self.step_error))
        used = utilization_of(on_device, step_s)
        less, more = (min(100.0, max(0.0, (1 + used) * math.exp(-error) - 1)) for error in reversed(self.utilization_error))
        held = min(used, 100.0 * weighed(device, self.multiprocessors) / step_s)
        speeds, percents = (low, 1 / step_s, high), (min(less, used), used, max(more, used))
        return SpeedEstimate(speeds, percents, held, on_device / max(kernels, 1))

    def to_data(self) -> dict[str, Any]:
        return {"format": FORMAT, **asdict(self)}


def weighed(terms: Terms, weights: Mapping[str, float]) -> float:
    """Seconds; a term that no training had when the model was fitted counts as it is."""
    return sum(seconds * weights.get(name, 1.0) for name, seconds in terms.items())


def combined(device_s: Any, host_s: Any) -> Any:
    """Seconds of a step."""
    return (device_s**OVERLAP + host_s**OVERLAP) ** (1 / OVERLAP)


def utilization_of(device_s: float, step_s: float) -> float:
    """Percent of the time in which a kernel runs."""
    return min(100.0, 100.0 * device_s / step_s)


@cache
def shipped_speed_model() -> SpeedModel:
    """The model that ships."""
    return load_speed_model(SHIPPED)


def load_speed_model(path: Path) -> SpeedModel:
    """Read a model, and check what is in it."""
    try:
        data = orjson.loads(path.read_bytes())
        given = {name: data[name] for name in ("device", "host", "multiprocessors")}
        weights = {name: {str(term): float(weight) for term, weight in each.items()} for name, each in given.items()}
        (a, b), (c, d) = (map(float, data[name]) for name in ("step_error", "utilization_error"))
        found = SpeedModel(**weights, host_launch_us=float(data["host_launch_us"]), step_error=(a, b), utilization_error=(c, d))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
        raise InputError(path, f"a speed model: {problem!r}"[:300], field="predictor") from None
    numbers = [*found.device.values(), *found.host.values(), *found.multiprocessors.values(), found.host_launch_us]
    if data.get("format") != FORMAT or not sane([*numbers, a, b, c, d]) or min(numbers) <= 0:
        raise InputError(path, f"'format: {FORMAT}' and weights above 0", field="predictor")
    return found
