"""What a training step costs, from its trace: seconds by kind of work, on the device by a roofline and on the host by its
launches. A fitted model (`step_predictor`) weighs these terms; a weight of 1 is what the device's rates alone would say."""

from __future__ import annotations

from collections import defaultdict
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
LAUNCH_S, GROUP_S, RECURRENCE_S = 1e-6, 3e-6, 1e-5  # of the device: a kernel, a group of a convolution, a step of a cell
HOST_S = 1e-5  # of the host: an operator, a launch, a view, a call of a module
TILE = 128 * 128  # elements of a matrix product that one multiprocessor computes at a time
DEPTHWISE = 130  # multiply-adds for each element of a convolution; with more, a group has several channels
CLASSES = {
    "matmul": ("mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "_grouped_mm", "_addmm_activation", "dot"),
    "convolution": ("convolution", "convolution_backward"),
    "attention": ("_scaled_dot_product", "_flash_attention", "_efficient_attention"),
    "batch_norm": ("native_batch_norm", "_native_batch_norm"),
    "normalization": ("native_layer_norm", "native_group_norm", "_fused_rms_norm"),
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


def device_terms(trace: StepTrace, device: DeviceRates) -> dict[str, float]:
    """Seconds of a step on the device, by kind of work."""
    terms: dict[str, float] = defaultdict(float)
    for one in trace.kernels:
        terms["launches"] += LAUNCH_S * one.launches * one.times
        for name, seconds in _kernel_terms(one, device):
            terms[name] += seconds * one.times
    return dict(terms)


def _kernel_terms(one: Kernel, device: DeviceRates) -> list[tuple[str, float]]:
    kind, low = operator_class(one.operator), one.dtype in ("bfloat16", "float16")
    dtype, rate = ("low", device.low_flops) if low else ("fp32", device.fp32_flops)
    traffic = (one.read + one.written) / device.bytes_per_s
    if kind == "matmul":
        filled = min(1.0, max(one.elements / TILE / device.multiprocessors, 0.05))
        return [(f"matmul_{dtype}", one.flops / rate / filled**0.5), ("matmul_bytes", traffic)]
    if kind == "attention":
        return [(f"attention_{dtype}", one.flops / rate), ("attention_bytes", traffic)]
    rate = device.low_flops if low else device.tf32_flops
    if kind == "convolution" and one.groups <= 1:
        return [(f"convolution_{dtype}", one.flops / rate), (f"convolution_bytes_{dtype}", traffic)]
    if kind == "convolution":
        passes = 1 if one.operator == "convolution" else 2
        if one.flops <= 2 * passes * DEPTHWISE * max(one.elements, 1):
            return [
                (f"depthwise_bytes_{dtype}", traffic),
                (f"depthwise_{one.phase}", one.flops / (device.fp32_flops / 10)),
            ]
        work = (f"grouped_{dtype}", one.flops / (rate / 10))
        return [work, (f"grouped_bytes_{dtype}", traffic), ("groups", GROUP_S * one.launches * one.groups)]
    if kind == "batch_norm":  # a channel is one multiprocessor's
        return [(f"batch_norm_{dtype}", traffic / min(1.0, max(one.groups, 1) / device.multiprocessors))]
    if kind == "recurrent":
        work = (f"recurrent_{dtype}", one.flops / rate)
        return [work, ("recurrent_bytes", traffic), ("recurrence", RECURRENCE_S * one.launches)]
    return [("update_bytes" if one.phase == "update" else f"{kind}_bytes", traffic)]


def host_terms(trace: StepTrace) -> dict[str, float]:
    """Seconds of a step on the host, by what it does."""
    terms: dict[str, float] = defaultdict(float)
    by_phase: dict[str, int] = defaultdict(int)
    for one in trace.kernels:
        by_phase[one.phase] += one.times
        terms[f"operators_{one.phase}"] += HOST_S * one.times
        terms["launches"] += HOST_S * one.launches * one.times
    for phase, count in trace.views.items():
        terms[f"views_{phase}"] += HOST_S * count
    again = by_phase["recompute"] / max(by_phase["forward"], 1)
    terms["modules"] += HOST_S * trace.modules * (1 + again)
    terms["tensors"] += 0.1 * HOST_S * trace.tensors
    terms["step"] += 10 * HOST_S
    return dict(terms)


def totals(trace: StepTrace) -> tuple[float, float, float]:
    """Kernels, floating-point operations and bytes of a step."""
    kernels = sum(one.launches * one.times for one in trace.kernels)
    flops = sum(one.flops * one.times for one in trace.kernels)
    return float(kernels), flops, float(sum((one.read + one.written) * one.times for one in trace.kernels))
