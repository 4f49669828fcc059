"""A short trial of a training on the accelerator at hand: the fallback where a step cannot be traced without data."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from fairlead.core.errors import FairleadError
from fairlead.prediction.step_prediction import StepPrediction
from fairlead.prediction.training_step import Training, TrainingStep
from fairlead.profiling.profile_alone import AloneTiming, measure_steady

SHORT = AloneTiming(warm_steps=3, warm_s=0.5, window_s=0.5, windows=2, max_windows=4)


class TrainingTrial(TrainingStep):
    """A copy of a training on a device, as `measure_steady` runs it."""

    def __init__(self, training: Training, device: str) -> None:
        def there(value: Any) -> Any:
            given = dict(value) if isinstance(value, Mapping) else value
            return tree_map_only(torch.Tensor, lambda one: one.to(device), given)

        model = copy.deepcopy(training.model).to(device)
        moved = replace(training, model=model, inputs=there(training.inputs), targets=there(training.targets))
        super().__init__(moved, device)

    def finish(self) -> None:
        """Wait until the device has finished all submitted work."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def try_training(training: Training, device: str = "cuda", plan: AloneTiming = SHORT) -> StepPrediction:
    """Train a copy for a few seconds and measure it.

    Args:
        training: The training; its model is copied.
        device: Where to try it.
        plan: How long to measure.

    Returns:
        What was measured. On a CPU, memory and utilization are 0, because they say nothing of a GPU.

    Raises:
        FairleadError: If the training cannot run there.
    """
    try:
        trial = TrainingTrial(training, device)
        rates = measure_steady(trial, plan)
    except Exception as problem:  # no such device, out of memory, shapes that do not go together: it is the user's code
        text = " ".join(f"{type(problem).__name__}: {problem}".split())[:400]
        raise FairleadError(f"predict module: the training cannot be tried on {device}: {text}") from None
    reserved = rates.get("reserved_mb", 0.0)
    used, speed = rates.get("utilization") or 0.0, rates["steps_per_s"]
    unknown = () if device.startswith("cuda") else ("a trial on a CPU says nothing of memory and utilization on a GPU",)
    return StepPrediction(
        device=device_name(device),
        allocated_mb=min(rates.get("allocated_mb", 0.0), reserved),
        reserved_mb=reserved,
        memory_mb=max(reserved, rates.get("device_memory_mb") or 0.0),
        utilization=used,
        utilization_low=used,
        utilization_high=used,
        multiprocessors=rates.get("sm_active"),
        steps_per_s=speed,
        steps_per_s_low=speed * (1 - min(1.0, rates["spread"])),
        steps_per_s_high=speed * (1 + rates["spread"]),
        source="trial",
        notes=unknown,
    )


def device_name(device: str) -> str:
    """The name that an accelerator reports."""
    return str(torch.cuda.get_device_name(device)) if torch.device(device).type == "cuda" else device
