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
from fairlead.profiling.training_step import Training


@dataclass(frozen=True)
class Plan:
    """How long to look. A pace is steady when the last windows differ by less than `steady`; it is waited for."""

    warm_steps: int = 5
    warm_s: float = 0.5
    window_s: float = 0.8
    windows: int = 3
    steady: float = 0.05
    most: int = 6


def measure_alone(configuration: Configuration, device: str = "cuda", plan: Plan | None = None) -> dict[str, Any]:
    """What it does: steps per second and their spread, utilization, memory, the host's share. Where it cannot run here, it says
    so under `problem`; a library that is not installed says nothing about it, and stays an ImportError."""
    plan = plan or Plan()
    try:
        _clear(device)
        training = Training.of(configuration, device)
        told = {**_about(configuration), "parameters": training.parameters, **steady(training, plan)}
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


def warm(training: Training, plan: Plan) -> None:
    began, steps = time.perf_counter(), 0
    while steps < plan.warm_steps or time.perf_counter() - began < plan.warm_s:
        training.step()
        training.finish()
        steps += 1


def window(training: Training, seconds: float) -> tuple[int, float]:
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


def steady(training: Training, plan: Plan) -> dict[str, Any]:
    """What a training does once it is warm."""
    device = training.device
    warm(training, plan)
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats()
    rates: list[float] = []
    cpu, began = _cpu_s(), time.perf_counter()
    with Meter(device) as meter:
        while len(rates) < plan.most:
            steps, seconds = window(training, plan.window_s)
            rates.append(steps / seconds)
            last = rates[-plan.windows :]
            if len(last) == plan.windows and max(last) <= (1 + plan.steady) * min(last):
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
