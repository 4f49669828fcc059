"""`fairlead predict module`: memory, utilization and speed of a user's own training, from one fake step on the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from importlib import import_module
from typing import Any

import typer

from fairlead.cli.output import JsonOption, note, out, print_json
from fairlead.core.errors import InputError, NotInstalled, install
from fairlead.prediction.step_features import device_rates
from fairlead.prediction.step_prediction import StepPrediction


def module(
    spelled: str = typer.Argument(
        ..., metavar="FILE:FUNCTION", help="A file and a function in it, as in mine.py:training. Fairlead calls the function."
    ),
    batch: int | None = typer.Option(None, min=1, help="Passed to the function as batch_size."),
    precision: str | None = typer.Option(
        None, help="bf16 or fp16 (autocast), or fp32. [default: that of the training, or bf16]"
    ),
    optimizer: str | None = typer.Option(None, help="adamw, adam, sgd or adafactor. [default: that of the training, or adamw]"),
    device: str = typer.Option("h200", help="The GPU that it will run on."),
    max_batch: bool = typer.Option(False, "--max-batch", help="Find the largest batch size that fits."),
    workers: int = typer.Option(1, min=1, max=65536, help="Data-parallel workers, one GPU each."),
    sharding: str | None = typer.Option(None, help="ddp or fsdp. [default: ddp with several workers]"),
    host_launch_us: float | None = typer.Option(
        None, min=0.1, max=1e6, help="Microseconds of a kernel launch on the host, from `fairlead profile host`."
    ),
    trial: bool = typer.Option(False, "--trial", help="Train briefly on this machine's GPU instead."),
    json: JsonOption = False,
) -> None:
    """Predict memory, GPU utilization and speed of your own training.

    Examples:

      fairlead predict module mine.py:training

      fairlead predict module mine.py:training --batch 64 --precision bf16 --optimizer adamw

      fairlead predict module mine.py:training --max-batch

      fairlead predict module mine.py:training --workers 8 --sharding fsdp

    The function returns fairlead.Training, or a model, inputs, targets and, unless it is cross entropy, a loss. Build them as
    usual; no GPU and no memory for them is needed. One training step runs on fake tensors. If it depends on values of tensors,
    use --trial on a machine with a GPU.
    """
    if max_batch and workers > 1:
        raise InputError("--max-batch", "one worker; with several, pass --batch", value=workers)
    changes = {name: value for name, value in (("precision", precision), ("optimizer", optimizer)) if value is not None}
    rates = device_rates(device)
    if trial:
        training = _torch_module("training_step").training_in(spelled, batch, **changes)
        found: StepPrediction = _torch_module("module_trial").try_training(training)
        _show(found, None, batch, json)
        return
    if max_batch:
        batch, found = _torch_module("predict_step").largest_batch(partial(_training, spelled, changes), device, batch or 8)
    else:
        several = (workers, sharding or "ddp")
        found = _torch_module("predict_step").predict(_training(spelled, changes, batch), device, *several, host_launch_us)
    _show(found, rates.memory_mb, batch, json)


def predict_file(spelled: str, batch: int | None = None, device: str = "h200", **changes: Any) -> StepPrediction:
    """Predict the training that a function of a file returns, as in mine.py:training.

    Args:
        spelled: The file and the function.
        batch: Passed to the function as batch_size.
        device: The GPU that it will run on.
        changes: Fields of the training to replace, such as its precision or optimizer.
    """
    found: StepPrediction = _torch_module("predict_step").predict(_training(spelled, changes, batch), device)
    return found


def _training(spelled: str, changes: Mapping[str, Any], batch: int | None) -> Any:
    with _torch_module("cuda_paths").built_untouched():
        return _torch_module("training_step").training_in(spelled, batch, **changes)


def _torch_module(name: str) -> Any:
    try:
        return import_module(f"fairlead.prediction.{name}")
    except ImportError as problem:
        if problem.name is not None and problem.name.startswith("fairlead"):
            raise
        raise NotInstalled(f"predict module runs PyTorch: {install('torch')}") from None


def _show(found: StepPrediction, there: float | None, batch: int | None, json: bool) -> None:
    fits = None if there is None else found.memory_mb <= there
    if json:
        print_json({**found.to_data(), "batch_size": batch, "fits": fits})
        return
    size = "" if batch is None else f"batch size {batch}, "
    out.print(f"{size}on {found.device}: {found.memory_mb:,.0f} MB for placement")
    if fits is False:
        out.print(f"it does not fit: the device has {there:,.0f} MB")
    if found.allocated_mb:
        parts = ", ".join(f"{name} {size:,.0f}" for name, size in sorted(found.parts_mb.items(), key=lambda one: -one[1]))
        out.print(f"memory: {found.allocated_mb:,.0f} MB allocated ({parts}), {found.reserved_mb:,.0f} MB reserved")
    speed = f"{found.steps_per_s:.3g} steps per second ({found.steps_per_s_low:.2g} to {found.steps_per_s_high:.2g})"
    used = f"{found.utilization:.0f} % utilization ({found.utilization_low:.0f} to {found.utilization_high:.0f})"
    out.print(f"speed: {speed}, {used}")
    if found.kernels:
        out.print(
            f"each step: {found.kernels:,} kernels of {1e6 * found.kernel_s:,.0f} µs on average,"
            f" {found.flops / 1e12:,.2f} TFLOP, {found.bytes / 2**30:,.1f} GiB"
        )
    if found.workers > 1:
        sent = f"each sends {found.communication_mb:,.0f} MB in a step"
        out.print(f"{found.workers} workers with {found.sharding}, figures of each: {sent}")
    for one in found.notes:
        note(one)
