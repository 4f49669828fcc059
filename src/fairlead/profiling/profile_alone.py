"""One configuration by itself: warm up, wait for a steady pace, measure a few windows, tell the spread."""

from __future__ import annotations

import gc
import resource
import statistics
import time
from dataclasses import dataclass
from typing import Any

import torch

from fairlead.profiling.configurations import Configuration
from fairlead.profiling.meter import Meter
from fairlead.profiling.training_step import TrainingLoop


@dataclass(frozen=True)
class AloneTiming:
    """How long to look. A pace is steady when the last windows differ by less than `measure_steady`; it is waited for."""

    warm_steps: int = 5
    warm_s: float = 0.5
    window_s: float = 0.8
    windows: int = 3
    measure_steady: float = 0.05
    most: int = 6


def measure_alone(configuration: Configuration, device: str = "cuda", plan: AloneTiming | None = None) -> dict[str, Any]:
    """What it does: steps per second and their spread, utilization, memory, the host's share. Where it cannot run here, it says
    so under `problem`; a library that is not installed says nothing about it, and stays an ImportError."""
    plan = plan or AloneTiming()
    try:
        _clear(device)
        training = TrainingLoop.of(configuration, device)
        told = {**_about(configuration), "parameters": training.parameters, **measure_steady(training, plan)}
        del training
    except (RuntimeError, ValueError, TypeError, AttributeError) as problem:  # out of memory, or not made for this
        told = {
            "name": configuration.name,
            "family": configuration.family,
            "problem": f"{type(problem).__name__}: {problem}"[:300],
        }
    _clear(device)
    return told


def _about(one: Configuration) -> dict[str, Any]:
    return {
        "name": one.name,
        "family": one.family,
        "model": one.model,
        "input": one.input,
        "batch_size": one.batch_size,
    }


def warm(training: TrainingLoop, plan: AloneTiming) -> None:
    began, steps = time.perf_counter(), 0
    while steps < plan.warm_steps or time.perf_counter() - began < plan.warm_s:
        training.step()
        training.finish()
        steps += 1


def measure_window(training: TrainingLoop, seconds: float) -> tuple[int, float]:
    """Steps and seconds of a stretch; the device is waited for at its end only, so that the host may run ahead as it does."""
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


def measure_steady(training: TrainingLoop, plan: AloneTiming) -> dict[str, Any]:
    """What a training does once it is warm."""
    device = training.device
    warm(training, plan)
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats()
    rates: list[float] = []
    cpu, began = _cpu_s(), time.perf_counter()
    with Meter(device) as meter:
        while len(rates) < plan.most:
            steps, seconds = measure_window(training, plan.window_s)
            rates.append(steps / seconds)
            last = rates[-plan.windows :]
            if len(last) == plan.windows and max(last) <= (1 + plan.measure_steady) * min(last):
                break
    passed, spent = time.perf_counter() - began, _cpu_s() - cpu
    last = rates[-plan.windows :]
    mean = statistics.fmean(last)
    told: dict[str, Any] = {
        "steps_per_s": mean,
        "spread": (max(last) - min(last)) / mean,
        "windows": len(rates),
        "host_cores": spent / passed,
        **meter.told(),
    }
    if device.startswith("cuda"):
        told["allocated_mb"] = torch.cuda.max_memory_allocated() / 2**20
        told["reserved_mb"] = torch.cuda.max_memory_reserved() / 2**20
    return told


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _clear(device: str) -> None:
    gc.collect()
    if device.startswith("cuda"):
        torch.cuda.empty_cache()
