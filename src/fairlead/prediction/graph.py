"""A model's graph as work: what each operator computes, reads, writes and stores for the backward pass. Numbers are for one
forward pass at the batch size of the file, and do not depend on the device."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairlead.core.errors import InputError, require
from fairlead.prediction.onnx_file import read_onnx

# Kinds of ONNX operators, by their work on a device and in the backward pass.


def _kinds(text: str) -> frozenset[str]:
    return frozenset(text.split())


CONVOLUTIONS = _kinds("Conv ConvTranspose")
PRODUCTS = _kinds("Gemm MatMul")
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
CELLS = frozenset(GATES)

VIEWS = _kinds("Constant ConstantOfShape Flatten Identity Reshape Shape Size Squeeze Transpose Unsqueeze")
"""Views of existing tensors: no work on the device."""

NEEDS_INPUTS = (
    CONVOLUTIONS
    | PRODUCTS
    | CELLS
    | _kinds("BatchNormalization LayerNormalization InstanceNormalization GroupNormalization MaxPool")
    | _kinds("Mul Div Pow Log Abs Erf Gelu HardSwish HardSigmoid Clip LeakyRelu Elu")
)
NEEDS_OUTPUT = CELLS | _kinds("Relu Sigmoid Tanh Softmax LogSoftmax Exp Sqrt Softplus")
"""The tensors that automatic differentiation stores for the backward pass."""

KNOWN = (
    NEEDS_INPUTS
    | NEEDS_OUTPUT
    | VIEWS
    | _kinds("Add Sub Neg Reciprocal Min Max Mod Floor Ceil Sin Cos Cast Dropout Where Equal Less Greater And Or Not")
    | _kinds("Concat Split Slice Gather Pad Expand Tile Range Trilu ScatterND Resize Einsum")
    | _kinds("AveragePool GlobalAveragePool GlobalMaxPool ReduceMean ReduceSum ReduceMax")
)

PER_ELEMENT = {"BatchNormalization": 5.0, "LayerNormalization": 6.0, "Softmax": 5.0, "Gelu": 8.0, "Erf": 4.0, "HardSwish": 4.0}
"""Operations for each element; 1 for other elementwise operators."""


# Exporters fold normalization into the convolution before it. In a training it is an operator with two parameters a channel.
# PyTorch's exporters leave a mark: the older one a weight and a bias without names, the newer one the name of its rule.

Shape = tuple[int, ...]

_NAMELESS = "onnx::Conv_"
_RULE, _FOLDED = "rewriter.rule_name", "FuseBatchNormInto"


def unfolded(
    nodes: Sequence[Any], shapes: Mapping[str, Shape | None], weights: frozenset[str]
) -> tuple[list[Any], dict[str, Shape | None], frozenset[str]]:
    """Nodes, shapes and weights as they are in a training."""
    same = {node.output[0]: node.input[0] for node in nodes if node.op_type == "Identity" and node.input and node.output}
    made, known, learned, gone = list[Any](), dict(shapes), set(weights), set[str]()
    for node in nodes:
        if not _is_folded(node):
            made.append(node)
            continue
        bare, then, after = type(node)(), type(node)(), node.output[0]
        bare.CopyFrom(node)
        gone.update(same.get(name, name) for name in node.input[2:3])  # the bias of the normalization
        del bare.input[2:]
        bare.output[0] = f"{after} before normalization"
        scale, bias, mean, variance = (f"{after} {what}" for what in ("scale", "bias", "mean", "variance"))
        then.op_type = "BatchNormalization"
        then.input.extend((bare.output[0], scale, bias, mean, variance))
        then.output.append(after)
        shape = known.get(after)
        channels = shape[1:2] if shape is not None else None
        known |= {bare.output[0]: shape, **dict.fromkeys((scale, bias, mean, variance), channels)}
        learned |= {scale, bias, mean, variance}
        made += (bare, then)
    return made, known, frozenset(learned - gone)


def _is_folded(node: Any) -> bool:
    if node.op_type not in ("Conv", "ConvTranspose", "Gemm") or len(node.input) < 2 or not node.output:
        return False
    if len(node.input) > 2 and all(name.startswith(_NAMELESS) for name in node.input[1:3]):
        return True
    return any(each.key.endswith(_RULE) and _FOLDED in each.value for each in node.metadata_props)


_BEFORE = ("Add", "Mul", "Div", "Where", "Cast")  # between a product and Softmax, in the one kernel
_AFTER = ("Dropout", "Cast", "Mul")


@dataclass(frozen=True)
class Operator:
    """`length` is the number of sequential steps: those of a recurrent cell, else 1."""

    kind: str
    flops: float
    read: float  # elements
    written: float  # elements
    weights: float = 0.0  # elements
    length: int = 1


@dataclass(frozen=True)
class Graph:
    """The work of one forward pass, and the elements it stores."""

    batch_size: int
    operators: tuple[Operator, ...]  # without views
    counts: Mapping[str, int]  # of all kinds, views too
    unknown: Mapping[str, int]  # kinds that are assumed to do one operation per element
    parameters: int
    parameter_tensors: int
    inputs: float  # elements
    outputs: float  # elements
    positions: float  # places with their own loss: samples, tokens or pixels
    kept: float  # elements that the backward pass needs
    largest: float  # elements of the largest tensor
    open_batch: bool = False  # the file leaves the batch size open; 1 is assumed


def load_graph(path: Path, sizes: Mapping[str, int] | None = None) -> Graph:
    """Read a graph from an ONNX file without running it. `sizes` are open dimensions other than the batch, by name."""
    graph, weights, left_open = read_onnx(path, sizes)
    try:
        return _Walk(path, graph, weights, left_open).walked()
    except (ArithmeticError, IndexError, KeyError, TypeError, ValueError) as problem:  # attributes that make no sense
        raise InputError(path, f"valid operators: {type(problem).__name__}: {problem}"[:300], field="model") from None


class _Walk:
    """One pass over the nodes, in their order."""

    def __init__(self, path: Path, graph: Any, weights: frozenset[str], left_open: frozenset[str]) -> None:
        self.path, self.graph, self.left_open = path, graph, left_open
        values = (*graph.input, *graph.output, *graph.value_info)
        shapes = {value.name: _shape(value) for value in values} | {each.name: tuple(each.dims) for each in graph.initializer}
        self.nodes, self.shapes, self.weights = unfolded(graph.node, shapes, weights)
        self.whole = {value.name for value in values if value.type.tensor_type.elem_type in (6, 7, 9)}  # int32, int64, bool
        self.constants = {tensor.name for tensor in graph.initializer} | self.weights
        self.root: dict[str, str] = {}
        self.kept: dict[str, float] = {}
        self.fused: set[str] = set()

    def walked(self) -> Graph:
        operators: list[Operator] = []
        counts: Counter[str] = Counter()
        self._find_attention()
        for node in self.nodes:
            counts[node.op_type] += 1
            if all(name in self.constants for name in node.input if name):
                self.constants.update(node.output)  # computed from weights alone: done once, or a view
                continue
            if node.op_type in VIEWS:
                if node.input and node.output:
                    self.root[node.output[0]] = self._root(node.input[0])
                continue
            if node.output and self._is_arithmetic_of_shapes(node):
                continue
            operators.append(self._operator(node))
            self._keep(node)
        given = [v.name for v in self.graph.input if v.name not in self.constants]
        require(given, self.path, "a model with an input that is not a weight", "model")
        first = self.shapes[given[0]] or (1,)
        asked = [node for node in self.nodes for name in node.input[3:5] if node.op_type == "BatchNormalization" and name]
        running = {name for node in asked for name in node.input[3:5]}  # statistics are no parameters
        learned = [name for name in self.weights if name not in running]
        made = [self.shapes.get(name) for node in self.nodes for name in node.output if name]
        outputs = [self.shapes.get(value.name) or () for value in self.graph.output]
        return Graph(
            batch_size=max(first[0] if first else 1, 1),
            operators=tuple(operators),
            counts=dict(counts),
            unknown={kind: count for kind, count in counts.items() if kind not in KNOWN},
            parameters=sum(_elements(self.shapes[name]) for name in learned),
            parameter_tensors=len(learned),
            inputs=float(sum(_elements(self.shapes[name]) for name in given)),
            outputs=float(sum(map(_elements, outputs))),
            positions=float(_positions(outputs[0])) if outputs else 0.0,
            kept=float(sum(self.kept.values())),
            largest=float(max((_elements(shape) for shape in made), default=0)),
            open_batch=given[0] in self.left_open,
        )

    def _operator(self, node: Any) -> Operator:
        out = _elements(self.shapes.get(node.output[0])) if node.output else 0
        read = float(sum(_elements(self.shapes.get(name)) for name in node.input if name and name not in self.constants))
        held = float(sum(_elements(self.shapes.get(name)) for name in node.input if name in self.constants))
        work = _WORK.get(node.op_type)
        inputs = [self.shapes.get(name) or () for name in node.input]
        flops = work(node, inputs, out) if work else PER_ELEMENT.get(node.op_type, 1.0) * max(out, read)
        length = inputs[0][0] if node.op_type in CELLS and inputs[0] else 1
        return Operator(node.op_type, float(flops), read, float(out), held, max(length, 1))

    def _is_arithmetic_of_shapes(self, node: Any) -> bool:
        """A few whole numbers: the host does that."""
        name = node.output[0]
        few = _elements(self.shapes.get(name)) <= 64
        return few and (name in self.whole or all(each in self.constants for each in node.input))

    def _keep(self, node: Any) -> None:
        needed = list(node.input) if node.op_type in NEEDS_INPUTS else []
        needed += list(node.output[:1]) if node.op_type in NEEDS_OUTPUT else []
        for name in needed:
            root = self._root(name)
            if root and root not in self.constants and root not in self.whole and root not in self.fused:
                self.kept[root] = float(_elements(self.shapes.get(root)))
        if node.op_type == "MaxPool":  # where each maximum was, as 64-bit numbers
            self.kept[f"{node.output[0]} places"] = 2.0 * _elements(self.shapes.get(node.output[0]))
        if node.op_type in CELLS:  # every gate at every step
            inside = GATES[node.op_type] * _elements(self.shapes.get(node.output[0]))
            self.kept[f"{node.output[0]} gates"] = float(inside)

    def _find_attention(self) -> None:
        """Softmax between two products is computed in one kernel, which leaves none of it behind."""
        makers = {name: node for node in self.nodes for name in node.output}
        readers: dict[str, list[Any]] = {}
        for node in self.nodes:
            for name in node.input:
                readers.setdefault(name, []).append(node)
        of_product: set[str] = set()  # made of a product, but for what the kernel does too
        for node in self.nodes:
            if node.op_type == "MatMul" or (node.op_type in _BEFORE and node.input[0] in of_product):
                of_product.update(node.output)
        to_product: set[str] = set()
        for node in reversed(self.nodes):
            for name in node.output:
                then = readers.get(name, [])
                if then and then[0].op_type in _AFTER:
                    reaches = then[0].output[0] in to_product
                else:
                    reaches = any(one.op_type == "MatMul" for one in then)
                if reaches:
                    to_product.add(name)
        above, below = set[str](), set[str]()
        for node in self.nodes:
            if node.op_type != "Softmax" or node.input[0] not in of_product or node.output[0] not in to_product:
                continue
            name = node.input[0]
            while name not in above:
                above.add(name)
                if makers[name].op_type in _BEFORE:
                    name = makers[name].input[0]
            name = node.output[0]
            while name not in below:
                below.add(name)
                if (then := readers[name])[0].op_type in _AFTER:
                    name = then[0].output[0]
        self.fused = above | below

    def _root(self, name: str) -> str:
        return self.root.get(name, name)


def _shape(value: Any) -> Shape | None:
    kind = value.type.tensor_type
    if not kind.HasField("shape"):
        return None
    dims = tuple(dim.dim_value if dim.HasField("dim_value") else -1 for dim in kind.shape.dim)
    return None if any(dim < 0 for dim in dims) else dims


def _elements(shape: Shape | None) -> int:
    return 0 if shape is None else math.prod(shape)


def _positions(shape: Shape) -> int:
    """A batch of classes, or of classes and places."""
    return math.prod((*shape[:1], *shape[2:])) if shape else 0


def _attribute(node: Any, name: str) -> int:
    return next((int(each.i) for each in node.attribute if each.name == name), 0)


def _of_product(node: Any, inputs: list[Shape], out: int) -> float:
    depth = inputs[0][0 if _attribute(node, "transA") else -1] if inputs[0] else 0
    return 2.0 * out * depth


def _of_cells(node: Any, inputs: list[Shape], out: int) -> float:
    length, batch, features = inputs[0]
    hidden = _attribute(node, "hidden_size")
    directions = inputs[1][0]
    return 2.0 * length * batch * directions * GATES[node.op_type] * hidden * (features + hidden)


def _of_window(node: Any, inputs: list[Shape], out: int) -> float:
    window = next((list(each.ints) for each in node.attribute if each.name == "kernel_shape"), [1])
    return float(out) * math.prod(window)


_WORK: dict[str, Callable[[Any, list[Shape], int], float]] = {
    "Conv": lambda node, inputs, out: 2.0 * out * math.prod(inputs[1][1:]),
    "ConvTranspose": lambda node, inputs, out: 2.0 * math.prod(inputs[0]) * math.prod(inputs[1][1:]),
    "Gemm": _of_product,
    "MatMul": _of_product,
    "MaxPool": _of_window,
    "AveragePool": _of_window,
    **dict.fromkeys(CELLS, _of_cells),
}
