"""Measure one configuration alone: warm up, wait for a steady rate, measure a few windows and their spread. The training step
is forward, loss, backward and update, on data that is on the device already: the GPU and the host that launches its kernels are
measured, not a disk."""

from __future__ import annotations

import gc
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from fairlead.profiling.configurations import Configuration
from fairlead.profiling.meter import Meter
from fairlead.profiling.networks import build_model


class TrainingLoop:
    """SGD with momentum, in single precision, cuDNN as PyTorch sets it up."""

    def __init__(self, model: Any, inputs: Any, targets: Any, device: str, loss: Any = None) -> None:
        """Model and data are on the device already; `loss` takes the output and the targets, the default is cross entropy."""
        self.model, self.inputs, self.targets, self.device = model, inputs, targets, device
        if device.startswith("cuda:"):
            torch.cuda.set_device(device)  # the device of later calls that name none
        self.model.train()
        self.loss = loss or nn.CrossEntropyLoss()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9)

    @classmethod
    def of(cls, configuration: Configuration, device: str) -> TrainingLoop:
        """The training of a configuration."""
        return cls(*build_model(configuration, device), device)

    def step(self) -> None:
        """One training step."""
        self.optimizer.zero_grad(set_to_none=True)
        self.loss(self.model(self.inputs), self.targets).backward()
        self.optimizer.step()

    def finish(self) -> None:
        """Wait until the device has finished all submitted work."""
        if self.device.startswith("cuda"):
            torch.cuda.synchronize()

    def record_event(self) -> Callable[[], None]:
        """A function that waits for the work submitted until now."""
        if not self.device.startswith("cuda"):
            return lambda: None  # a CPU is synchronous
        event = torch.cuda.Event()
        event.record()
        wait: Callable[[], None] = event.synchronize
        return wait

    @property
    def parameters(self) -> int:
        """The number of the model's parameters."""
        return sum(p.numel() for p in self.model.parameters())


@dataclass(frozen=True)
class AloneTiming:
    """How long to measure: at least `windows` windows, until the last ones differ by less than `measure_steady`."""

    warm_steps: int = 5
    warm_s: float = 0.5
    window_s: float = 0.8
    windows: int = 3
    measure_steady: float = 0.05
    max_windows: int = 6


def measure_alone(configuration: Configuration, device: str = "cuda", plan: AloneTiming | None = None) -> dict[str, Any]:
    """Steps per second and their spread, utilization, memory and host cores of a configuration. If it cannot run here, the
    error is under `problem`; a missing library raises ImportError."""
    plan = plan or AloneTiming()
    try:
        _clear(device)
        training = TrainingLoop.of(configuration, device)
        row = {
            "name": configuration.name,
            **asdict(configuration),
            "parameters": training.parameters,
            **measure_steady(training, plan),
        }
        del training
    except (RuntimeError, ValueError, TypeError, AttributeError) as problem:  # out of memory, or not made for this
        why = f"{type(problem).__name__}: {problem}"[:300]
        row = {"name": configuration.name, "family": configuration.family, "problem": why}
    _clear(device)
    return row


def _warm_up(training: TrainingLoop, plan: AloneTiming) -> None:
    began, steps = time.perf_counter(), 0
    while steps < plan.warm_steps or time.perf_counter() - began < plan.warm_s:
        training.step()
        training.finish()
        steps += 1


def measure_window(training: TrainingLoop, seconds: float) -> tuple[int, float]:
    """Steps and seconds of a window. The host may run ahead of the device as in a real training."""
    began, steps, ahead = time.perf_counter(), 0, 8
    while True:
        training.step()
        steps += 1
        if steps % ahead == 0:
            training.finish()
        passed = time.perf_counter() - began
        if passed >= seconds:
            training.finish()
            return steps, time.perf_counter() - began


def measure_steady(training: TrainingLoop | Any, plan: AloneTiming) -> dict[str, Any]:
    """Measure a training after its warm-up; it has `step`, `finish` and `device`."""
    device = str(training.device)
    _warm_up(training, plan)
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats()
    rates: list[float] = []
    cpu, began = _cpu_s(), time.perf_counter()
    with Meter(device) as meter:
        while len(rates) < plan.max_windows:
            steps, seconds = measure_window(training, plan.window_s)
            rates.append(steps / seconds)
            last = rates[-plan.windows :]
            if len(last) == plan.windows and max(last) <= (1 + plan.measure_steady) * min(last):
                break
    passed, spent = time.perf_counter() - began, _cpu_s() - cpu
    last = rates[-plan.windows :]
    mean = statistics.fmean(last)
    row: dict[str, Any] = {
        "steps_per_s": mean,
        "spread": (max(last) - min(last)) / mean,
        "windows": len(rates),
        "host_cores": spent / passed,
        **meter.summary(),
    }
    if device.startswith("cuda"):
        row["allocated_mb"] = torch.cuda.max_memory_allocated() / 2**20
        row["reserved_mb"] = torch.cuda.max_memory_reserved() / 2**20
    return row


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _clear(device: str) -> None:
    gc.collect()
    if device.startswith("cuda"):
        torch.cuda.empty_cache()
