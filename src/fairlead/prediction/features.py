"""The features of a training before it runs: Horus' Table 3 (operations, parameters, activations, batch size,
counts of operators), and the device time and host time of a step, by a roofline over the operators.

Counts do not show this: a thousand small kernels leave a large device idle while the host prepares the next one,
and the share of time in which a kernel runs is what NVML calls utilization."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from fairlead.prediction.graph import CELLS, CONVOLUTIONS, PRODUCTS, Graph, Operator

TABLE_3 = (
    *("Exp", "Split", "Constant", "GlobalAveragePool", "ReduceMean", "MaxPool", "GRU", "Reshape", "LSTM", "Concat", "Gather"),
    *("Squeeze", "Pad", "BatchNormalization", "AveragePool", "Conv", "Slice", "Transpose", "Flatten", "Relu", "Gemm"),
)
COUNTED = (*TABLE_3, "MatMul", "Softmax", "LayerNormalization", "Add", "Mul", "Clip", "Sigmoid", "ConvTranspose", "Dropout")
BYTES = 4  # single precision


# Speeds of a device and its host in small training steps, as orders of magnitude; the learners correct the rest. They are
# rounded numbers that reproduce the steps measured on an H200.
CONVOLUTION_FLOPS_PER_S = 140e12
PRODUCT_FLOPS_PER_S = 60e12
BYTES_PER_S = 2e12
THIN = 128.0  # operations for each element written, below which a convolution is thin
THIN_SLOWDOWN = 5.0  # of a thin convolution, relative to its bytes
LOSS = 120.0  # number of strided reads and writes of the outputs for the loss
KERNEL_S = 9e-6  # an operator takes no less
RECURRENCE_S = 15e-6  # one step of a recurrent cell
HOST_S = 35e-6  # to prepare and launch an operator, once
UPDATE_S = 3e-6  # to update a parameter tensor
STEP_S = 400e-6  # the loss, the optimizer
BACKWARD_FACTOR = 2.0  # the backward pass does twice the work of the forward pass


@dataclass(frozen=True)
class Features:
    """The numbers of one training at one batch size."""

    flops: float
    convolution_flops: float
    product_flops: float
    parameters: float
    parameter_tensors: float
    activations: float
    batch_size: float
    launches: float
    recurrence: float
    inputs: float
    outputs: float
    positions: float
    kept: float
    largest: float
    device_s: float
    host_s: float
    busy: float
    counts: Mapping[str, int]
    unknown: Mapping[str, int]

    def column(self) -> dict[str, float]:
        """The features by name, as learners take them; operators by their counts."""
        plain = {one.name: float(getattr(self, one.name)) for one in fields(self) if one.name not in ("counts", "unknown")}
        counted = {kind: float(self.counts.get(kind, 0)) for kind in COUNTED}
        rest = float(sum(count for kind, count in self.counts.items() if kind not in COUNTED))
        return {**plain, **counted, "others": rest}


NAMES = frozenset({one.name for one in fields(Features)} - {"counts", "unknown"} | {*COUNTED, "others"})
"""The names of the columns."""


def graph_features(graph: Graph, batch_size: int | None = None) -> Features:
    """The features of a graph, trained with this batch size; None: the batch size of the file."""
    batch = batch_size or graph.batch_size
    scale = batch / graph.batch_size
    scaled = [_at(one, scale) for one in graph.operators]
    device_s = sum(_device_s(one) for one in scaled)
    device_s += _loss_s(graph, scale) + _update_s(graph)
    host_s = STEP_S + (1 + BACKWARD_FACTOR) * HOST_S * len(scaled) + UPDATE_S * graph.parameter_tensors
    return Features(
        flops=sum(one.flops for one in scaled),
        convolution_flops=sum(one.flops for one in scaled if one.kind in CONVOLUTIONS),
        product_flops=sum(one.flops for one in scaled if one.kind in PRODUCTS),
        parameters=float(graph.parameters),
        parameter_tensors=float(graph.parameter_tensors),
        activations=sum(one.written for one in scaled),
        batch_size=float(batch),
        launches=float(sum(one.length for one in scaled)),
        recurrence=float(sum(one.length for one in scaled if one.kind in CELLS)),
        inputs=scale * graph.inputs,
        outputs=scale * graph.outputs,
        positions=scale * graph.positions,
        kept=scale * graph.kept,
        largest=scale * graph.largest,
        device_s=device_s,
        host_s=host_s,
        busy=min(1.0, device_s / host_s) if host_s else 1.0,
        counts=graph.counts,
        unknown=graph.unknown,
    )


def _at(one: Operator, scale: float) -> Operator:
    """With another batch size: weights stay, the rest grows in proportion."""
    return Operator(one.kind, scale * one.flops, scale * one.read, scale * one.written, one.weights, one.length)


def _device_s(one: Operator) -> float:
    """The time of an operator, forward and backward."""
    moved = BYTES * (one.read + one.written + one.weights) / BYTES_PER_S
    if one.kind in CELLS:
        computed = one.flops / PRODUCT_FLOPS_PER_S
        return (1 + BACKWARD_FACTOR) * max(computed, moved, RECURRENCE_S * one.length)
    speed = CONVOLUTION_FLOPS_PER_S if one.kind in CONVOLUTIONS else PRODUCT_FLOPS_PER_S
    computed = one.flops / speed if one.kind in CONVOLUTIONS | PRODUCTS else 0.0
    if one.kind in CONVOLUTIONS and one.flops < THIN * one.written:
        moved *= THIN_SLOWDOWN
    return (1 + BACKWARD_FACTOR) * max(computed, moved, KERNEL_S)


def _loss_s(graph: Graph, scale: float) -> float:
    return LOSS * BYTES * scale * graph.outputs / BYTES_PER_S + 10 * KERNEL_S


def _update_s(graph: Graph) -> float:
    """The time to read and write weights, gradients and momentum."""
    return 5 * BYTES * graph.parameters / BYTES_PER_S
