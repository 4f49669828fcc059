"""Predict the use of an accelerator by a PyTorch module: from its graph if it exports, else from a short trial on
the accelerator at hand. Imported only where PyTorch is."""

from __future__ import annotations

import copy
import importlib.util
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from fairlead.core.errors import FairleadError, InputError
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


def training_in(spelled: str) -> tuple[Any, ...]:
    """Call a function of a file, as "mine.py:training": it returns a model, inputs, targets, and a loss if it has its own."""
    name, _, function = spelled.rpartition(":")
    wanted = "a Python file and a function in it, as in mine.py:training"
    spec = importlib.util.spec_from_file_location("training", name) if Path(name).is_file() else None
    if spec is None or spec.loader is None:
        raise InputError("profile module", wanted, field="module", value=spelled)
    module = importlib.util.module_from_spec(spec)
    _run(spec.loader.exec_module, module, spelled=spelled)
    make: Callable[[], Any] | None = getattr(module, function, None)
    if not callable(make):
        raise InputError("profile module", wanted, field="module", value=spelled)
    made = _run(make, spelled=spelled)
    if not isinstance(made, tuple) or len(made) not in (3, 4):
        raise InputError(
            "profile module", "a function that returns a model, inputs, targets and, optionally, a loss", field="module"
        )
    if not isinstance(made[0], torch.nn.Module):
        raise InputError("profile module", "a PyTorch model (torch.nn.Module) first", field="module", value=made[0])
    return made


def _run(theirs: Callable[..., Any], *given: Any, spelled: str) -> Any:
    """The user's code may fail in any way; the error names the line of their file."""
    try:
        return theirs(*given)
    except (Exception, SystemExit) as problem:
        path = str(Path(spelled.rpartition(":")[0]).absolute())
        lines = [at.lineno for at in traceback.extract_tb(problem.__traceback__) if at.filename == path]
        where = f", in line {lines[-1]}" if lines else ""
        text = " ".join(f"{type(problem).__name__}: {problem}".split())[:300]
        raise FairleadError(f"profile module: {spelled} failed with {text}{where}") from None
