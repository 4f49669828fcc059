"""Predicts a training from one fake step: memory by the model of the allocator, speed and utilization by features."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from fairlead.core.errors import FairleadError, InputError
from fairlead.prediction.cuda_allocator import memory_use
from fairlead.prediction.distributed_step import SIZES, distributed, speeds
from fairlead.prediction.step_features import DeviceRates, device_rates, device_terms, host_terms, totals
from fairlead.prediction.step_prediction import StepPrediction
from fairlead.prediction.step_predictor import SpeedModel, shipped_speed_model
from fairlead.prediction.training_step import Training

if TYPE_CHECKING:
    from fairlead.prediction.fake_step import StepTrace

CONTEXT_MB = 1390.0  # in use on an H200 besides PyTorch's memory: the driver, CUDA's context, code of cuBLAS and cuDNN
MARGIN = 1.13  # of the announced memory over the reserved: fragmentation, and workspaces of convolutions
LARGEST_BATCH = 2**28


def predict(
    training: Training,
    device: str = "h200",
    workers: int = 1,
    sharding: str = "ddp",
    host_launch_us: float | None = None,
) -> StepPrediction:
    """Predict memory, utilization and speed of a training, without a GPU.

    One training step runs on fake tensors on this machine's CPU. It takes seconds and next to no memory.

    Args:
        training: Model, inputs, targets, loss, optimizer and precision. The model stays as it is.
        device: The GPU, as "h200".
        workers: Data-parallel workers, one GPU each, with this batch on each of them.
        sharding: Of several workers: "ddp" or "fsdp".
        host_launch_us: Microseconds of a kernel launch on the host, as `fairlead profile host` measures it. Default: that of
            the host on which the model of speed was fitted.

    Returns:
        The prediction for each worker, alone on its GPU.

    Raises:
        FairleadError: If the step cannot be traced, for example because the model depends on values of its tensors.
    """
    from fairlead.prediction.fake_step import trace_step  # needs PyTorch

    trace, there = trace_step(training), device_rates(device)
    alone = step_prediction_of(trace, there, host_launch_us)
    by_size = speeds(alone, trace, sharding, sorted({*SIZES, workers}), memory_mb=there.memory_mb)
    return replace(alone if workers == 1 else distributed(alone, trace, workers, sharding), speeds=by_size)


def step_prediction_of(
    trace: StepTrace, device: DeviceRates, host_launch_us: float | None = None, model: SpeedModel | None = None
) -> StepPrediction:
    """The prediction from a trace, with the model of speed that ships or another one."""
    memory, (kernels, flops, moved) = memory_use(trace), totals(trace)
    speed = (model or shipped_speed_model()).estimate(device_terms(trace, device), host_terms(trace), kernels, host_launch_us)
    return StepPrediction(
        device=device.name,
        allocated_mb=memory.allocated_mb,
        reserved_mb=memory.reserved_mb,
        memory_mb=CONTEXT_MB + MARGIN * memory.reserved_mb,
        parts_mb=memory.by_category_mb,
        utilization=speed.utilization[1],
        utilization_low=speed.utilization[0],
        utilization_high=speed.utilization[2],
        multiprocessors=speed.multiprocessors,
        steps_per_s=speed.steps_per_s[1],
        steps_per_s_low=speed.steps_per_s[0],
        steps_per_s_high=speed.steps_per_s[2],
        kernel_s=speed.kernel_s,
        kernels=int(kernels),
        flops=flops,
        bytes=moved,
        notes=trace.notes,
    )


def largest_batch(make: Callable[[int], Training], device: str = "h200", first: int = 8) -> tuple[int, StepPrediction]:
    """The largest batch size whose announced memory fits the device, to 0.5 %.

    Memory is nearly linear in the batch size, so that a few traces find it; the answer is traced itself.

    Args:
        make: Returns the training for a batch size.
        device: The GPU, as "h200".
        first: The batch size to begin with.

    Returns:
        The batch size and its prediction.

    Raises:
        FairleadError: If not even one sample fits, or if memory does not depend on the batch size.
    """
    there = device_rates(device).memory_mb
    known: dict[int, StepPrediction] = {}

    def at(batch: int) -> float:
        if batch not in known:
            known[batch] = predict(make(batch), device)
        return known[batch].memory_mb

    if at(first) > there:
        low, high = 1, first
        if at(low) > there:
            raise FairleadError(f"predict module: one sample needs {at(low):,.0f} MB, and {device} has {there:,.0f} MB")
    else:
        low, high = first, 4 * first
        while at(high) <= there:
            slope = max((at(high) - at(low)) / (high - low), 1e-9)
            low, high = high, min(16 * high, int(high + 1.1 * (there - at(high)) / slope) + 1)
            if high > LARGEST_BATCH:
                expected = f"a training whose memory grows with batch_size; a batch of {low} needs {at(low):,.0f} MB"
                raise InputError("--max-batch", expected)
    while high - low > max(1, low // 200):
        share = (there - at(low)) / (at(high) - at(low))
        wanted = min(max(int(low + share * (high - low)), low + 1 + low // 400), high - 1)
        low, high = (wanted, high) if at(wanted) <= there else (low, wanted)
    return low, known[low]
