"""Predict the use of an accelerator by a PyTorch module: from its graph if it exports, else from a short trial on
the accelerator at hand. Imported only where PyTorch is."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from fairlead.core.errors import FairleadError
from fairlead.prediction.features import features_of
from fairlead.prediction.predictor import Predictor, shipped_predictor
from fairlead.profiling.onnx_export import export_module
from fairlead.profiling.profile_alone import AloneTiming, TrainingLoop, measure_steady

SHORT = AloneTiming(warm_steps=3, warm_s=0.5, window_s=0.5, windows=2, max_windows=4)


@dataclass(frozen=True)
class ModuleTrial:
    """Utilization in percent and memory in MB on `device`; None where that says nothing of it. `why` is what was wrong with the
    graph, where there was a trial; `steps_per_s` is of that."""

    utilization: float | None
    memory_mb: float | None
    device: str  # that it was predicted for, or that it was tried on
    steps_per_s: float | None = None
    why: str = ""


def of_module(
    model: Any,
    inputs: Any,
    targets: Any,
    device: str = "cuda",
    loss: Any = None,
    predictor: Predictor | None = None,
    plan: AloneTiming = SHORT,
) -> ModuleTrial:
    """A copy of the module trains, and only where its graph cannot be had."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        try:
            export_module(model, inputs, path)
            predictor = predictor or shipped_predictor()
            predicted = predictor.predict(features_of(path))
        except FairleadError as problem:
            return _tried(model, inputs, targets, device, loss, plan, str(problem))
    return ModuleTrial(predicted.utilization, predicted.memory_mb, predictor.device)


def _tried(model: Any, inputs: Any, targets: Any, device: str, loss: Any, plan: AloneTiming, why: str) -> ModuleTrial:
    try:
        tried = copy.deepcopy(model).to(device)
        rates = measure_steady(TrainingLoop(tried, _on(inputs, device), _on(targets, device), device, loss), plan)
    except Exception as problem:  # no such device, out of memory, shapes that do not go together: it is the user's code
        raise FairleadError(f"{why}; and it cannot be tried: {type(problem).__name__}: {problem}"[:600]) from None
    return ModuleTrial(rates.get("utilization"), rates.get("device_memory_mb"), device_name(device), rates["steps_per_s"], why)


def device_name(device: str) -> str:
    """The name that an accelerator reports."""
    return str(torch.cuda.get_device_name(device)) if torch.device(device).type == "cuda" else device


def _on(value: Any, device: str) -> Any:
    return value.to(device) if hasattr(value, "to") else value
