"""The bundled catalogue: the 26 job types of Gavel's Table 2 on six types of accelerator. **Every rate is modelled, not
measured**: it follows from the figures below through a roofline model. Peaks, bandwidths and memory sizes are from public data
sheets; efficiencies, demands and networks are assumptions, in round numbers, chosen to agree with the Gavel paper
(docs/reference/throughput-catalogue.md). `python -m fairlead.workloads.catalogue` prints how close that is. This module
knows no files and no scheduler."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from fairlead.core.cluster import AcceleratorType, Bools, Floats, Ints
from fairlead.core.columns import significant
from fairlead.core.errors import UnknownName, near_names, near_or_all
from fairlead.core.job import TIMED, kind_of, model_of
from fairlead.workloads.throughput_tables import ThroughputTable

OVERLAP = 0.3
"""The share of the device's bulk work behind which gradients travel: the later part of the backward pass."""

INTERFERENCE = 0.08
"""The slowdown by a co-located job that is always busy, beyond its share of time (caches, memory channels, switching)."""

GRADIENT_BYTES = 2.0
"""Gradients travel in half precision."""

TRAINING_BYTES = 16.0
"""Held for each parameter: value, gradient and two moments of the optimizer, four bytes each."""

CONTEXT_GB = 0.8
"""The memory of a process before its first tensor: context, libraries, workspaces."""


@dataclass(frozen=True, slots=True)
class DeviceSpec:
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
class StepDemand:
    """What one step of a job type requires of each worker."""

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
class Interconnect:
    """The connection of the workers of a gang: a link per device, a delay per hop, and waiting for the slowest."""

    link_gbs: Floats  # per device, one way
    hop_us: float
    straggling: float  # relative growth of a step with each doubling of the gang


@dataclass(frozen=True)
class StepTimes:
    """Seconds per step on one worker, demands × devices: what keeps the device busy, and the whole step."""

    bulk: Floats  # kernels that fill the device
    busy: Floats  # all kernels
    step: Floats


def step_times(demands: Sequence[StepDemand], devices: Sequence[DeviceSpec]) -> StepTimes:
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
    return StepTimes(bulk, bulk + kernels, bulk + kernels + host)


def memory_gb(demands: Sequence[StepDemand]) -> Floats:
    """GB on a device for each demand: context + parameters and their moments + activations."""
    parameters = np.array([d.parameters_m * 1e6 * TRAINING_BYTES / 1e9 for d in demands])
    activations = np.array([d.samples * d.activations_mb / 1e3 for d in demands])
    return np.asarray(CONTEXT_GB + parameters + activations, dtype=np.float64)


def gang_step_times(times: StepTimes, demands: Sequence[StepDemand], workers: Ints, interconnect: Interconnect) -> Floats:
    """step(n) = step × (1 + σ·log2 n) + what of the all-reduce does not hide behind the device's work.

    A ring moves 2(n−1)/n of the gradient through every link, in 2(n−1) hops. The rows of `times`, `demands` and
    `workers` go together.
    """
    n = workers.astype(np.float64)[:, None]
    gradient = _column([d.parameters_m * 1e6 * GRADIENT_BYTES for d in demands])
    exchange = 2 * (n - 1) / n * gradient / (interconnect.link_gbs * 1e9) + 2 * (n - 1) * interconnect.hop_us * 1e-6
    exposed = np.maximum(exchange - OVERLAP * times.bulk, 0.0)
    return np.asarray(times.step * (1 + interconnect.straggling * np.log2(n)) + exposed, dtype=np.float64)


def shared_rates(alone: Floats, busy: Floats, may_share: Bools) -> Floats:
    """rate(r with q) = alone(r) / max(1, u_r + u_q) × (1 − γ·u_q), for rows × rows × devices.

    u is the busy fraction alone. Two jobs that together need less than the device hardly slow down; others share it in
    proportion to what each would use. `may_share` tells which pairs fit; elsewhere the rate is 0.
    """
    together = np.maximum(busy[:, None, :] + busy[None, :, :], 1.0)
    rates = alone[:, None, :] / together * (1.0 - INTERFERENCE * busy[None, :, :])
    return np.where(may_share, rates, 0.0)


def _column(values: Sequence[float]) -> Floats:
    return np.array(values, dtype=np.float64)[:, None]


SOURCE = "modelled"
GANG_SIZES = (1, 2, 4, 8)

# Peaks, bandwidths, memory sizes and NVLink are from NVIDIA's data sheets, named below; links and networks count
# one way. PCIe counts 10 GB/s, because neighbours share it. A node's network is an assumption: 32 Gb/s for the
# first three types, as cloud machines of their time had, then 100 and 400. Prices are approximate public list
# prices, on demand, per accelerator: k80, p100 and v100 as on Google Cloud around 2020, as the Gavel paper uses;
# a100 as Google Cloud's a2-highgpu-1g around 2023; h100 and h200 are assumed at 7 and 8 dollars, the order of an
# eighth of an eight-way machine on a large cloud in 2025.
DEVICES = (
    # TFLOP/s, GB/s, GB, link and network GB/s, $/h; then efficiencies: convolution, matrix, streaming, small kernel in µs.
    # "Tesla K80 GPU Accelerator" board specification: two devices with 8.74 TFLOP/s, 480 GB/s, 24 GB together.
    DeviceSpec("k80", 4.37, 240, 12, 10, 4, 0.45, 0.20, 0.16, 0.60, 40),
    # "Tesla P100" data sheet, PCIe 16 GB: 9.3 TFLOP/s single precision, 732 GB/s.
    DeviceSpec("p100", 9.3, 732, 16, 10, 4, 1.46, 0.42, 0.35, 0.70, 10),
    # "Tesla V100" data sheet, SXM2 16 GB: 15.7 TFLOP/s single precision, 900 GB/s, NVLink 300 GB/s both ways together.
    DeviceSpec("v100", 15.7, 900, 16, 150, 4, 2.48, 0.55, 0.42, 0.80, 8),
    # "NVIDIA A100 Tensor Core GPU" data sheet, SXM 40 GB: TF32 156 TFLOP/s dense, 1,555 GB/s, NVLink 600 GB/s.
    DeviceSpec("a100", 156, 1555, 40, 300, 12.5, 3.67, 0.25, 0.20, 0.80, 6),
    # "NVIDIA H100 Tensor Core GPU" data sheet, SXM: TF32 494 TFLOP/s dense, 3,350 GB/s, 80 GB, NVLink 900 GB/s.
    DeviceSpec("h100", 494, 3350, 80, 450, 50, 7.00, 0.18, 0.15, 0.80, 5),
    # "NVIDIA H200 Tensor Core GPU" data sheet, SXM: as the H100, with 141 GB at 4,800 GB/s.
    DeviceSpec("h200", 494, 4800, 141, 450, 50, 8.00, 0.18, 0.15, 0.80, 5),
)

# What a step asks. FLOPs: three times the forward pass (one forward, two backward), or 6 × parameters × tokens.
# Model and batch sizes (None: the name has none, and a step is one unit of work); then GFLOP and MB per sample, millions of
# parameters, MB of activations per sample, kernels, host ms per step and µs per sample, convolutional, distributable.
_MODELS: tuple[tuple[str, tuple[int | None, ...], tuple[float, float, float, float, int, float, float, bool, bool]], ...] = (
    # 32×32 images, 0.56 billion multiply-adds forward.
    ("ResNet-18", (16, 32, 64, 128, 256), (3.34, 60, 11.2, 12, 200, 15, 20, True, True)),
    # 224×224 images, 4.1 billion multiply-adds forward; the host decodes ahead of the device, so little is exposed.
    ("ResNet-50", (16, 32, 64, 128), (24.6, 1500, 25.6, 80, 500, 10, 20, True, True)),
    # 49 million parameters, sentences of about 16 tokens; masks and batches are made on the host.
    ("Transformer", (16, 32, 64, 128, 256), (4.7, 150, 49, 20, 1200, 60, 40, False, True)),
    # Asynchronous actor-critic: a step is a rollout; environments run on the host, the network is tiny.
    ("A3C", (None,), (1.0, 20, 1.5, 400, 4000, 100, 0.0, False, False)),
    # LSTM, 35 tokens a sample, 33 thousand words: the projection to the words costs most, the recurrence is serial.
    ("LM", (5, 10, 20, 40, 80), (1.5, 40, 14, 20, 600, 3, 0.0, False, True)),
    # Autoencoder over sparse baskets: only the items at hand are scored, and the host gathers them.
    ("Recommendation", (512, 1024, 2048, 4096, 8192), (0.02, 0.5, 24, 0.5, 50, 8, 20, False, False)),
    # Two generators and two discriminators, one pair of images a step.
    ("CycleGAN", (None,), (1700, 20000, 28, 4000, 800, 20, 0.0, True, False)),
)
DEMANDS = tuple(StepDemand(kind_of(model, batch), batch or 1, *step) for model, sizes, step in _MODELS for batch in sizes)
_BY_KIND = {demand.kind: demand for demand in DEMANDS}


@cache
def catalogue(network_gbs: float | None = None) -> ThroughputTable:
    """Steps per second of the whole gang, for every job type, gang size, accelerator type, placement, and pair of equal gangs.
    The network of nodes has `network_gbs` GB/s one way, or what is usual for their type."""
    rows = [(demand, n) for demand in DEMANDS for n in (GANG_SIZES if demand.distributable else (1,))]
    demands = [demand for demand, _ in rows]
    sizes = np.array([n for _, n in rows], dtype=np.int64)
    times = step_times(demands, DEVICES)
    # Consolidated: one node holds the gang. Spread: a node for each worker. Hops and stragglers are assumptions.
    consolidated = Interconnect(np.array([device.link_gbs for device in DEVICES]), hop_us=10, straggling=0.02)
    network = np.array([network_gbs or device.network_gbs for device in DEVICES])
    scattered = Interconnect(network, hop_us=40, straggling=0.06)
    room = np.array([device.memory_gb for device in DEVICES])
    held = memory_gb(demands)
    fits = held[:, None] <= room

    together = gang_step_times(times, demands, sizes, consolidated)
    apart = gang_step_times(times, demands, sizes, scattered)
    alone = np.where(fits, sizes[:, None] / together, 0.0)
    spread = np.where(fits, sizes[:, None] / apart, 0.0)
    # Two gangs share accelerators one to one, so only gangs of one size meet.
    may_share = (sizes[:, None] == sizes)[:, :, None] & ((held[:, None] + held)[:, :, None] <= room)
    paired = shared_rates(alone, times.busy / together, may_share)

    types = tuple(device.name for device in DEVICES)
    keys = ((TIMED, 1), *((demand.kind, n) for demand, n in rows))
    timed = ThroughputTable.timed(types)
    pairs = np.pad(paired, ((1, 0), (1, 0), (0, 0)))
    return ThroughputTable(
        types,
        keys,
        _fixed(np.concatenate((timed.alone, alone))),
        _fixed(np.concatenate((timed.spread, spread))),
        _fixed(pairs),
        SOURCE,
    )


def accelerator_types() -> tuple[AcceleratorType, ...]:
    """The catalogue's types with memory and an approximate price, slowest first."""
    found = ((device.name, float(device.memory_gb), float(device.price_per_hour)) for device in DEVICES)
    return tuple(AcceleratorType(*each) for each in found)


def accelerator_type(name: str, memory_gb: float = 0.0) -> AcceleratorType:
    """The type of a name, as in the catalogue where it is known there; with this memory, where it was measured. Its numbers are
    floats, as those of a type that is read from a journal: a digest of the state depends on it."""
    known = {type_.name: type_ for type_ in accelerator_types()}.get(name, AcceleratorType(name))
    return replace(known, memory_gb=float(memory_gb or known.memory_gb))


def misspelt_types(names: Iterable[str], present: Iterable[str] = ()) -> list[str]:
    """Return a remark on each name that is neither in the catalogue nor `present`, and near to one that is."""
    known = dict.fromkeys((*present, *(type_.name for type_ in accelerator_types())))
    unknown = [name for name in dict.fromkeys(names) if name not in known]
    return [f"unknown GPU type {name!r}; {near_or_all(name, near)}" for name in unknown if (near := near_names(name, known))]


def memory_gb_of(kind: str) -> float:
    """GB that a job type needs on each accelerator, modelled."""
    return float(memory_gb([_demand(kind)])[0])


def claims() -> str:
    """A table that compares the catalogue with the Gavel paper's measurements."""
    table = catalogue()
    price = {t.name: t.price_per_hour for t in accelerator_types()}
    names = ("k80", "p100", "v100")
    lines = [f"{'kind (one worker)':<33}{'v100/k80':>9}  {'steps/$ k80':>12}{'p100':>10}{'v100':>10}  best per $"]
    for kind in table.kinds:
        rates = dict(zip(table.types, table.alone[table.row(kind, 1)].tolist()))
        per_dollar = {name: rates[name] * 3600 / price[name] for name in names}
        best = max(names, key=per_dollar.__getitem__)
        shown = "".join(f"{per_dollar[name]:>{width},.0f}" for name, width in zip(names, (12, 10, 10)))
        lines.append(f"{kind:<33}{rates['v100'] / rates['k80']:>8.2f}×  {shown}  {best}")
    row = table.row
    speedup = table.alone[:, table.types.index("v100")] / table.alone[:, table.types.index("k80")]
    best_resnet = max(speedup[row(kind, 1)] for kind in table.kinds if model_of(kind) == "ResNet-50")
    lines.append(f"A3C: {speedup[row('A3C', 1)]:.2f}× (paper: 2×); ResNet-50: {best_resnet:.2f}× (paper: nearly 10×)")
    lines.append("Every rate is modelled, not measured.")
    return "\n".join(lines)


def _demand(kind: str) -> StepDemand:
    if kind not in _BY_KIND:
        raise UnknownName("kind of job", kind, _BY_KIND)
    return _BY_KIND[kind]


def _fixed(array: Floats) -> Floats:
    kept = significant(array)  # the last bits of a logarithm differ between machines
    kept.setflags(write=False)
    return kept


if __name__ == "__main__":
    print(claims())
