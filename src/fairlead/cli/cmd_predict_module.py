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
from fairlead.prediction.step_prediction import DataDependentStep, StepPrediction


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
    sharding: str | None = typer.Option(
        None, help="How several workers train: ddp copies the model, fsdp shards it. [default: ddp]"
    ),
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
    usual; they need no GPU and no memory. One training step runs on fake tensors. If the model depends on values of its
    tensors, it trains for a few seconds on this machine's GPU instead, as with --trial.
    """
    if max_batch and workers > 1:
        raise InputError("--max-batch", "one worker; with several, pass --batch", value=workers)
    if trial and (max_batch or workers > 1):
        raise InputError("--trial", "one worker and one batch size", value=workers if workers > 1 else "--max-batch")
    changes = {name: value for name, value in (("precision", precision), ("optimizer", optimizer)) if value is not None}
    rates = device_rates(device)
    if trial:
        _show(_tried(spelled, batch, changes), None, batch, json)
        return
    if max_batch:
        batch, found = _torch_module("predict_step").largest_batch(partial(_training, spelled, changes), device, batch or 8)
    else:
        found = predict_file(spelled, batch, device, workers, sharding or "ddp", host_launch_us, **changes)
    _show(found, rates.memory_mb, batch, json)


def predict_file(
    spelled: str,
    batch: int | None = None,
    device: str = "h200",
    workers: int = 1,
    sharding: str = "ddp",
    host_launch_us: float | None = None,
    **changes: Any,
) -> StepPrediction:
    """Predict the training that a function of a file returns, as in mine.py:training. If its step depends on values of tensors,
    measure a short trial on this machine's GPU instead.

    Args:
        spelled: The file and the function.
        batch: Passed to the function as batch_size.
        device: The GPU that it will run on.
        workers: Data-parallel workers, one GPU each.
        sharding: Of several workers: "ddp" or "fsdp".
        host_launch_us: Microseconds of a kernel launch on the host.
        changes: Fields of the training to replace, such as its precision or optimizer.
    """
    several = (workers, sharding, host_launch_us)
    try:
        found: StepPrediction = _torch_module("predict_step").predict(_training(spelled, changes, batch), device, *several)
    except DataDependentStep:
        if workers > 1 or not import_module("torch").cuda.is_available():
            raise
        note("the model depends on values of its tensors: it trains for a few seconds on this machine's GPU instead")
        found = _tried(spelled, batch, changes)
    return found


def _tried(spelled: str, batch: int | None, changes: Mapping[str, Any]) -> StepPrediction:
    """What a short trial on this machine's GPU measures."""
    training = _torch_module("training_step").training_in(spelled, batch, **changes)
    found: StepPrediction = _torch_module("module_trial").try_training(training)
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
        held = f"{found.allocated_mb:,.0f} MB allocated" + (f" ({parts})" if parts else "")
        out.print(f"memory: {held}, {found.reserved_mb:,.0f} MB reserved")
    speed = (
        f"{_short(found.steps_per_s)} steps per second ({_short(found.steps_per_s_low)} to {_short(found.steps_per_s_high)})"
    )
    used = f"{found.utilization:.0f} % utilization ({found.utilization_low:.0f} to {found.utilization_high:.0f})"
    out.print(f"speed: {speed}, {used}")
    if found.kernels:
        out.print(
            f"each step: {found.kernels:,} kernels of {1e6 * found.kernel_s:,.0f} µs on average,"
            f" {found.flops / 1e12:,.2f} TFLOP, {found.bytes / 2**30:,.1f} GiB"
        )
    if found.workers > 1:
        sent = f"each sends {found.communication_mb:,.0f} MB in a step"
        out.print(f"{found.workers} workers with {found.sharding}, and these figures for each of them; {sent}")
        (least, slowest), *more = sorted(found.speeds.items()) or [(1, 1.0)]
        gains = ", ".join(f"{speed / slowest:.3g} with {size}" for size, speed in more)
        out.print(f"speedup over {least} worker{'s' if least > 1 else ''}: {gains or 'unknown'}")
    for one in found.notes:
        note(one)


def _short(speed: float) -> str:
    """Three digits of a speed, never with an exponent for a thousand or more."""
    return f"{speed:,.0f}" if speed >= 100 else f"{speed:.3g}"
