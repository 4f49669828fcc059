"""How fast training should be, worked out from what a device can do and what a step asks of it: a roofline with a
serial host, ring all-reduce for gangs, and shared device time for pairs. Only formulas live here, on whole arrays at
once; the numbers that go in are the catalogue's, and nothing here knows the name of a device or of a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fairlead.core.cluster import Bools, Floats, Ints

OVERLAP = 0.3
"""The share of the device's bulk work behind which gradients travel: the later part of the backward pass."""

INTERFERENCE = 0.08
"""What a partner that is always busy costs beyond its share of time (caches, memory channels, switching)."""

GRADIENT_BYTES = 2.0
"""Gradients travel in half precision."""

TRAINING_BYTES = 16.0
"""Held for each parameter: value, gradient and two moments of the optimizer, four bytes each."""

CONTEXT_GB = 0.8
"""What a process takes on a device before the first tensor: context, libraries, workspaces."""


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator of a type. Efficiencies are the shares of the peaks that training reaches on its generation."""

    name: str
    tflops: float  # peak of the number format training uses by default
    bandwidth_gbs: float  # of its own memory, GB/s
    memory_gb: float
    link_gbs: float  # to its neighbours in the node, GB/s one way
    network_gbs: float  # of its node to the others, GB/s one way
    price_per_hour: float
    convolution: float  # share of `tflops` that convolutions reach
    matrix: float  # share of `tflops` that matrix products of these models reach
    streaming: float  # share of `bandwidth_gbs`
    small_kernel_us: float  # time of a kernel that is too small to fill the device


@dataclass(frozen=True, slots=True)
class Demand:
    """What one step of a kind asks of each worker."""

    kind: str
    samples: int  # per step
    gflop_per_sample: float  # forward and backward
    mb_per_sample: float  # traffic to the device's memory
    parameters_m: float  # millions
    activations_mb: float  # held per sample until the backward pass
    small_kernels: int  # per step, one after the other
    host_ms: float  # per step, on the CPU, while the device waits
    host_us_per_sample: float
    convolutional: bool
    distributable: bool


@dataclass(frozen=True)
class Placing:
    """What lies between the workers of a gang: a link per device, a delay per hop, and waiting for the slowest."""

    link_gbs: Floats  # per device, one way
    hop_us: float
    straggling: float  # what a step grows by with each doubling of the gang


@dataclass(frozen=True)
class Times:
    """Seconds per step on one worker, demands × devices: what keeps the device busy, and the whole step."""

    bulk: Floats  # kernels that fill the device
    busy: Floats  # all kernels
    step: Floats


def step_times(demands: Sequence[Demand], devices: Sequence[Device]) -> Times:
    """step = max(FLOPs / reached FLOP/s, bytes / reached bandwidth) + small kernels + host."""
    samples = _column([d.samples for d in demands])
    flops = samples * _column([d.gflop_per_sample * 1e9 for d in demands])
    moved = samples * _column([d.mb_per_sample * 1e6 for d in demands])
    peak = np.array([d.tflops * 1e12 for d in devices])
    convolution = peak * np.array([d.convolution for d in devices])
    matrix = peak * np.array([d.matrix for d in devices])
    reached = np.where(np.array([d.convolutional for d in demands])[:, None], convolution, matrix)
    streaming = np.array([d.bandwidth_gbs * 1e9 * d.streaming for d in devices])
    bulk = np.maximum(flops / reached, moved / streaming)
    kernels = _column([d.small_kernels for d in demands]) * np.array([d.small_kernel_us * 1e-6 for d in devices])
    host = _column([d.host_ms * 1e-3 + d.samples * d.host_us_per_sample * 1e-6 for d in demands])
    return Times(bulk, bulk + kernels, bulk + kernels + host)


def memory_gb(demands: Sequence[Demand]) -> Floats:
    """What each demand holds on a device: context + parameters and their moments + activations."""
    parameters = np.array([d.parameters_m * 1e6 * TRAINING_BYTES / 1e9 for d in demands])
    activations = np.array([d.samples * d.activations_mb / 1e3 for d in demands])
    return np.asarray(CONTEXT_GB + parameters + activations, dtype=np.float64)


def gang_step_times(times: Times, demands: Sequence[Demand], workers: Ints, placing: Placing) -> Floats:
    """step(n) = step × (1 + σ·log2 n) + what of the all-reduce does not hide behind the device's work.

    A ring moves 2(n−1)/n of the gradient through every link, in 2(n−1) hops. The rows of `times`, `demands` and
    `workers` go together.
    """
    n = workers.astype(np.float64)[:, None]
    gradient = _column([d.parameters_m * 1e6 * GRADIENT_BYTES for d in demands])
    exchange = 2 * (n - 1) / n * gradient / (placing.link_gbs * 1e9) + 2 * (n - 1) * placing.hop_us * 1e-6
    exposed = np.maximum(exchange - OVERLAP * times.bulk, 0.0)
    return np.asarray(times.step * (1 + placing.straggling * np.log2(n)) + exposed, dtype=np.float64)


def shared_rates(alone: Floats, busy: Floats, may_share: Bools) -> Floats:
    """rate(r with q) = alone(r) / max(1, u_r + u_q) × (1 − γ·u_q), for rows × rows × devices.

    u is the busy fraction alone. Two that leave room for one another hardly notice; two that do not share the device in
    proportion to what each would use. `may_share` says which pairs fit at all; elsewhere the rate is 0.
    """
    together = np.maximum(busy[:, None, :] + busy[None, :, :], 1.0)
    rates = alone[:, None, :] / together * (1.0 - INTERFERENCE * busy[None, :, :])
    return np.where(may_share, rates, 0.0)


def _column(values: Sequence[float]) -> Floats:
    return np.array(values, dtype=np.float64)[:, None]
