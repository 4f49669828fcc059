"""What a training step costs, from its trace: a roofline for each kernel, the launches of the host, and their shares. Learners
take these features; until one is fitted for a device, `roofline` predicts from them alone."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fairlead.core.errors import InputError, near_or_all

if TYPE_CHECKING:
    from fairlead.prediction.fake_step import Kernel, StepTrace


@dataclass(frozen=True)
class DeviceRates:
    """What a GPU reaches, not what its data sheet says. fp32 is as PyTorch's defaults: TF32 in convolutions only."""

    name: str
    memory_mb: float
    bytes_per_s: float
    low_flops: float  # bf16 and fp16
    tf32_flops: float
    fp32_flops: float
    multiprocessors: int


DEVICES = {
    "h200": DeviceRates("NVIDIA H200", 143_771, 4.0e12, 700e12, 350e12, 48e12, 132),
    "h100": DeviceRates("NVIDIA H100", 81_559, 2.8e12, 700e12, 350e12, 48e12, 132),
    "a100": DeviceRates("NVIDIA A100", 81_920, 1.7e12, 260e12, 125e12, 18e12, 108),
}
SHORTEST_S = 2.2e-6  # of any kernel on the device
OPERATOR_S, LAUNCH_S, VIEW_S, MODULE_S = 7e-6, 3.5e-6, 2.5e-6, 6e-6  # of the host: dispatch, each kernel, views, module calls
BACKWARD_OPERATOR_S = 5e-6  # no Python there
CLASSES = {
    "matmul": ("mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "_grouped_mm", "_addmm_activation", "dot"),
    "convolution": ("convolution", "convolution_backward"),
    "attention": ("_scaled_dot_product", "_flash_attention", "_efficient_attention"),
    "normalization": ("native_layer_norm", "native_batch_norm", "native_group_norm", "_fused_rms_norm", "_native_batch_norm"),
    "recurrent": ("cudnn_rnn",),
    "lookup": ("embedding", "_embedding_bag", "index", "gather", "scatter", "nll_loss"),
    "copy": ("_to_copy", "clone", "copy_", "cat", "stack", "constant_pad_nd"),
    "reduction": ("sum", "mean", "_softmax", "_log_softmax", "amax", "linalg_vector_norm", "cumsum", "logsumexp", "max_pool2d"),
}


def device_rates(name: str) -> DeviceRates:
    """The rates of a GPU by its short name."""
    if name not in DEVICES:
        raise InputError("--device", f"a GPU that is known; {near_or_all(name, DEVICES)}", value=name)
    return DEVICES[name]


def operator_class(operator: str) -> str:
    """The class of an operator: matmul, convolution, attention, …, elementwise."""
    exact = operator.removesuffix("_backward").removesuffix("_backward_data").removesuffix("_dense")
    for name, members in CLASSES.items():
        if name in ("matmul", "reduction", "copy"):
            if operator in members or exact in members:
                return name
        elif operator.startswith(members):
            return name
    return "elementwise"


def kernel_seconds(kernel: Kernel, device: DeviceRates) -> float:
    """Seconds of one operator on the device: the larger of arithmetic and memory traffic, and never less than a launch."""
    kind = operator_class(kernel.operator)
    if kernel.dtype in ("bfloat16", "float16"):
        rate = device.low_flops
    else:
        rate = device.tf32_flops if kind in ("convolution", "recurrent") else device.fp32_flops
    # A small output does not fill the multiprocessors: tiles of 128 × 128 elements.
    tiles = kernel.elements / 16384
    filled = min(1.0, tiles / device.multiprocessors) if kind in ("matmul", "convolution") else 1.0
    arithmetic = kernel.flops / (rate * max(filled, 0.05))
    traffic = (kernel.read + kernel.written) / device.bytes_per_s
    return max(arithmetic, traffic, SHORTEST_S * kernel.launches)


def host_s(kernels: Iterable[Kernel], views: Mapping[str, int], modules: int) -> float:
    """Seconds that the host needs to launch one step."""
    total = MODULE_S * modules
    for one in kernels:
        each = BACKWARD_OPERATOR_S if one.phase == "backward" else OPERATOR_S
        total += one.times * (each + LAUNCH_S * one.launches)
    return total + VIEW_S * sum(views.values())


def step_features(trace: StepTrace, device: DeviceRates | str = "h200") -> dict[str, float]:
    """Return what learners take, by name.

    Args:
        trace: The trace of a step.
        device: The GPU, or its short name.

    Returns:
        Seconds on the device and on the host, kernels, arithmetic, bytes, and shares of the device's time.
    """
    device = device_rates(device) if isinstance(device, str) else device
    classes: dict[str, float] = defaultdict(float)
    phases: dict[str, float] = defaultdict(float)
    flops: dict[str, float] = defaultdict(float)
    longest = filled = bytes_ = launched = operators = short = 0.0
    for one in trace.kernels:
        each = kernel_seconds(one, device)
        seconds = each * one.times
        kind = operator_class(one.operator)
        classes["optimizer" if one.phase == "update" else kind] += seconds
        phases[one.phase] += seconds
        flops["low" if one.dtype in ("bfloat16", "float16") else "fp32"] += one.flops * one.times
        bytes_ += (one.read + one.written) * one.times
        launched += one.launches * one.times
        operators += one.times
        short += one.launches * one.times * (each / one.launches < 1e-5)
        longest = max(longest, each / one.launches)
        filled += seconds * min(1.0, one.elements / (2048 * device.multiprocessors))
    total = sum(classes.values())
    host = host_s(trace.kernels, trace.views, trace.modules)
    update = [one for one in trace.kernels if one.phase == "update"]
    names = (*CLASSES, "elementwise", "optimizer")
    return {
        "device_s": total,
        "host_s": host,
        "kernels": launched,
        "operators": operators,
        "views": float(sum(trace.views.values())),
        "modules": float(trace.modules),
        "flops": sum(flops.values()),
        "flops_low": flops["low"],
        "flops_fp32": flops["fp32"],
        "bytes": bytes_,
        "intensity": sum(flops.values()) / max(bytes_, 1.0),
        "mean_kernel_s": total / max(launched, 1.0),
        "longest_kernel_s": longest,
        "short_kernels": short / max(launched, 1.0),
        "filled": filled / max(total, 1e-12),
        "optimizer_launches": float(sum(one.launches * one.times for one in update)),
        "parameters": float(trace.parameters),
        "trainable": float(trace.trainable),
        "tensors": float(trace.tensors),
        "workload_log": math.log10(total + 1e-9),
        "device_over_host": total / max(host, 1e-9),
        **{f"share_{name}": classes[name] / max(total, 1e-12) for name in names},
        **{f"share_{name}": phases[name] / max(total, 1e-12) for name in ("forward", "backward", "recompute", "update")},
    }


@dataclass(frozen=True)
class SpeedEstimate:
    """Speed and use of the GPU, each with an interval that covers about 80 %."""

    steps_per_s: tuple[float, float, float]  # low, middle, high
    utilization: tuple[float, float, float]  # percent
    multiprocessors: float | None = None


def roofline(features: Mapping[str, float]) -> SpeedEstimate:
    """The estimate without a learner: the slower of device and host, with a wide interval."""
    device, host = features["device_s"], features["host_s"]
    step = max(device, host) + 0.1 * min(device, host)
    used = min(100.0, 100.0 * device / step)
    return SpeedEstimate(
        (0.5 / step, 1.0 / step, 1.8 / step),
        (0.6 * used, used, min(100.0, 1.5 * used)),
        min(100.0, used * features["filled"]),
    )
