"""What is predicted of one training on one kind of GPU: memory, utilization, speed. The command line, the Python API, a job and
the scheduler share this value; it knows neither PyTorch nor how the prediction was made."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import orjson

from fairlead.core.errors import FairleadError, InputError, require

if TYPE_CHECKING:
    from fairlead.core.cluster import Floats

PARTS = ("parameters", "gradients", "optimizer", "activations", "inputs", "workspace")
SHARDINGS = ("none", "ddp", "fsdp")
SOURCES = ("fake step", "trial", "graph")
Z80 = 1.2815515655446004
"""Standard deviations from the middle of a normal distribution to either end of an 80 % interval."""
MAX_AMOUNT = 1e30
"""Of every number: products of a few stay finite."""
MAX_WORKERS, MAX_SPEEDS = 65_536, 32
_WHERE = "prediction"
_NOT_IN_JOBS = ("parts_mb", "kernels", "flops", "bytes", "communication_mb", "notes")
_ORDERED = (("utilization_low", "utilization", "utilization_high"), ("steps_per_s_low", "steps_per_s", "steps_per_s_high"))


class DataDependentStep(FairleadError):
    """A training step depends on values of tensors, so that it cannot be traced without data."""


@dataclass(frozen=True)
class StepPrediction:
    """One optimizer step of a training, alone on a GPU. Memory is in MiB, utilization in percent, intervals cover 80 %."""

    device: str
    allocated_mb: float  # peak of the tensors
    reserved_mb: float  # peak that PyTorch's allocator takes from the device
    memory_mb: float  # upper value for the whole process on the device, for placement
    parts_mb: Mapping[str, float] = field(default_factory=dict)  # what is allocated at the peak, by PARTS
    utilization: float = 0.0
    utilization_low: float = 0.0
    utilization_high: float = 100.0
    multiprocessors: float | None = None  # percent that are in use
    steps_per_s: float = 0.0
    steps_per_s_low: float = 0.0
    steps_per_s_high: float = 0.0
    kernel_s: float = 0.0  # mean duration of a kernel
    kernels: int = 0
    flops: float = 0.0
    bytes: float = 0.0
    workers: int = 1
    sharding: str = "none"
    communication_mb: float = 0.0  # that each worker sends in a step
    speeds: Mapping[int, float] = field(default_factory=dict)  # steps per second times workers, by the number of workers
    source: str = "fake step"
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check every field, because predictions come from files and from other machines.

        Raises:
            InputError: If a field has a value that it cannot have.
        """
        _check(isinstance(self.device, str) and 0 < len(self.device) <= 200, "the name of a device", "device", self.device)
        for one in fields(self):
            value = getattr(self, one.name)
            if one.type == "float" or (one.name == "multiprocessors" and value is not None):
                _check_amount(one.name, value)
            if one.name.startswith(("utilization", "multiprocessors")) and value is not None:
                _check(value <= 100.0, "a percentage, from 0 to 100", one.name, value)
        for low, middle, high in _ORDERED:
            inside = getattr(self, low) <= getattr(self, middle) <= getattr(self, high)
            _check(inside, f"a value from {low} to {high}", middle, getattr(self, middle))
        upper = "at least the reserved memory, which is at least the allocated memory"
        _check(self.allocated_mb <= self.reserved_mb <= self.memory_mb, upper, "memory_mb", self.memory_mb)
        _check(
            isinstance(self.parts_mb, Mapping) and set(self.parts_mb) <= set(PARTS), ", ".join(PARTS), "parts_mb", self.parts_mb
        )
        for name, value in self.parts_mb.items():
            _check_amount(f"parts_mb.{name}", value)
        known = isinstance(self.speeds, Mapping) and len(self.speeds) <= MAX_SPEEDS
        _check(known, f"at most {MAX_SPEEDS} numbers of workers with their speeds", "speeds", self.speeds)
        for size, speed in self.speeds.items():
            whole = isinstance(size, int) and not isinstance(size, bool) and 1 <= size <= MAX_WORKERS
            _check(whole, f"numbers of workers from 1 to {MAX_WORKERS}", "speeds", size)
            _check_amount(f"speeds.{size}", speed)
            _check(speed > 0, "a speed above 0", f"speeds.{size}", speed)
        for name, least in (("workers", 1), ("kernels", 0)):
            value = getattr(self, name)
            whole = isinstance(value, int) and not isinstance(value, bool) and value >= least
            _check(whole, f"a whole number of at least {least}", name, value)
        _check(self.sharding in SHARDINGS, f"one of {', '.join(SHARDINGS)}", "sharding", self.sharding)
        _check(self.source in SOURCES, f"one of {', '.join(SOURCES)}", "source", self.source)
        texts = isinstance(self.notes, tuple) and all(isinstance(one, str) for one in self.notes)
        _check(texts, "a list of texts", "notes", self.notes)

    def to_data(self) -> dict[str, Any]:
        """Return what `from_data` reads, ready for JSON."""
        speeds = {str(size): speed for size, speed in sorted(self.speeds.items())}
        return {**asdict(self), "parts_mb": dict(self.parts_mb), "speeds": speeds, "notes": list(self.notes)}

    @property
    def memory_gb(self) -> float:
        """The upper value of memory, as jobs request it."""
        return self.memory_mb / 1024

    @property
    def rate_uncertainty(self) -> float:
        """The relative standard deviation of the steps per second; infinite where these are not predicted."""
        if not self.steps_per_s:
            return math.inf
        return (self.steps_per_s_high - self.steps_per_s_low) / (2 * Z80 * self.steps_per_s)

    def speeds_at(self, sizes: Sequence[int]) -> Floats:
        """`speeds` with these numbers of workers: between those predicted by interpolation, and 0 below and above them."""
        import numpy as np

        if not self.speeds:
            return np.zeros(len(sizes))
        known, speeds = np.log(np.array(sorted(self.speeds.items()))).T
        asked = np.log(np.maximum(np.array(sizes, dtype=np.float64), 0.5))
        found: Floats = np.exp(np.interp(asked, known, speeds)) * ((asked >= known[0]) & (asked <= known[-1]))
        return found

    def job_text(self, type_name: str) -> str:
        """Return what a job carries of it as JSON, with the GPU type of a cluster in place of the device's name."""
        data = {name: value for name, value in self.to_data().items() if name not in _NOT_IN_JOBS}
        if not self.speeds:  # as before there were any
            del data["speeds"]
        return orjson.dumps({**data, "device": type_name}).decode()

    @classmethod
    def from_data(cls, data: Any, source: object = _WHERE) -> StepPrediction:
        """Read a prediction.

        Args:
            data: What `to_data` returned, as read from JSON.
            source: The file or the request that an error names.

        Returns:
            The prediction.

        Raises:
            InputError: If a field is unknown, missing or has a value that it cannot have.
        """
        require(isinstance(data, Mapping), source, "a prediction with named fields", None, data)
        known = [one.name for one in fields(cls)]
        for name in data:
            require(name in known, source, f"one of {', '.join(known)}", "prediction", name)
        for name in known[:4]:
            require(name in data, source, "a prediction with this field", name)
        notes, speeds = data.get("notes", ()), data.get("speeds", {})
        if isinstance(speeds, Mapping):  # JSON has texts as keys
            speeds = {int(size) if str(size).isdecimal() and len(str(size)) < 6 else size: one for size, one in speeds.items()}
        notes = tuple(notes) if isinstance(notes, list | tuple) else notes
        try:
            return cls(**{**data, "notes": notes, "speeds": speeds})
        except InputError as problem:
            raise InputError(source, problem.expected, field=problem.field, value=problem.value) from None


def _check(good: object, expected: str, name: str, value: object) -> None:
    require(good, _WHERE, expected, name, value)


def _check_amount(name: str, value: Any) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    _check(number and 0 <= value <= MAX_AMOUNT, "a finite number of at least 0", name, value)


@lru_cache(maxsize=10_000)
def job_prediction(text: str) -> StepPrediction:
    """The prediction that a job carries; its device is a GPU type.

    Raises:
        InputError: If it is not what `job_text` writes.
    """
    try:
        data = orjson.loads(text)
    except ValueError:
        raise InputError(_WHERE, "JSON, as 'fairlead predict module --json' prints it", value=text[:80]) from None
    return StepPrediction.from_data(data, "a job's prediction")
