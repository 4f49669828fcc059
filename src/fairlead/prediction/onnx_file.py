"""An ONNX file, read so that nothing in it is run, followed or believed: no weights are unpacked, no other file is opened,
sizes are bounded before anything is made of them. What comes out is the graph with shapes; what is wrong is an InputError."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from fairlead.core.cluster import Ints
from fairlead.core.errors import FairleadError, InputError, install, near_or_all

MOST_BYTES = 2**31  # protobuf's own limit
MOST_NODES = 20_000
MOST_DIMS = 16
MOST_ELEMENTS = 2**44  # of a tensor: 70 TB in single precision
DEEPEST = 20  # subgraphs inside subgraphs
_REAL = (1, 10, 11, 16)  # single, half, double precision, bfloat16, as ONNX numbers them
MOST_PASSES = 50
FEW = 64  # elements of a tensor that is arithmetic on shapes
KEPT_ELEMENTS = 4096  # a constant of more is weights, whose values say nothing about shapes
MOST_NAME = 200  # of an operator
MOST_TEXT = 65_536  # of a text among the attributes
MOST_EQUATION = 256  # of Einsum


def read_onnx(path: Path, sizes: Mapping[str, int] | None = None) -> tuple[Any, frozenset[str], frozenset[str]]:
    """The graph with every shape that can be inferred, the names of its weights, and of the inputs whose batch size is
    open: it is taken as 1. `sizes` are other open dimensions, by name."""
    onnx = _onnx()
    data = _bytes(path)
    try:
        model = onnx.load_model_from_string(data)
    except Exception as problem:  # the parser's own exceptions have no common root
        raise _bad(path, f"an ONNX model; its bytes cannot be read as one ({type(problem).__name__})") from None
    del data
    _believable(path, model)
    left_open = _close(path, model.graph, sizes or {})
    weights = frozenset(tensor.name for tensor in model.graph.initializer if tensor.data_type in _REAL)
    _without_weights(onnx, model.graph)
    inferred = _inferred(path, onnx, model)
    for value in (*inferred.graph.output, *inferred.graph.value_info):
        _dims(path, value.name, [dim.dim_value for dim in _dims_of(value)])
    return inferred.graph, weights, left_open


def _bytes(path: Path) -> bytes:
    try:
        size = path.stat().st_size
        if size > MOST_BYTES:
            raise _bad(
                path, f"a file of at most {MOST_BYTES:,} bytes; weights may be in other files, which are not needed", size
            )
        data = path.read_bytes() if path.is_file() else b""
    except OSError as problem:
        raise _bad(path, f"a file that can be read: {problem.strerror}") from None
    if not data:
        raise _bad(path, "a file with an ONNX model; it is empty or not a file")
    return data


def _believable(path: Path, model: Any) -> None:
    """Bounds that are checked before third-party code reads the file."""
    if not model.HasField("graph") or not model.graph.node:
        raise _bad(path, "an ONNX model with a graph; it has none, or one without nodes")
    if not model.opset_import:
        raise _bad(path, "an ONNX model with the versions of its operators (opset_import)")
    if model.functions:
        raise _bad(path, "a graph of operators; it has functions of its own, inline them (onnx.inliner)", len(model.functions))
    nodes = 0
    for depth, graph in _graphs(model.graph):
        nodes += len(graph.node)
        if depth > DEEPEST:
            raise _bad(path, f"subgraphs at most {DEEPEST} deep")
        if nodes > MOST_NODES:
            raise _bad(path, f"at most {MOST_NODES:,} nodes")
        _in_order(path, graph, depth)
        for node in graph.node:
            if not isinstance(node.op_type, str) or len(node.op_type) > MOST_NAME:  # invalid text comes as bytes
                raise _bad(path, f"operators with names, of at most {MOST_NAME} letters", node.op_type[:60])
            _attributes(path, node)
        for tensor in graph.initializer:
            _dims(path, tensor.name, tensor.dims)
        for value in (*graph.input, *graph.output, *graph.value_info):
            _dims(path, value.name, [dim.dim_value for dim in _dims_of(value)])


def _graphs(graph: Any) -> Iterator[tuple[int, Any]]:
    """It and its subgraphs, with their depths."""
    left = [(0, graph)]
    while left:
        depth, one = left.pop()
        yield depth, one
        for node in one.node:
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    left.append((depth + 1, attribute.g))
                left += [(depth + 1, inner) for inner in attribute.graphs]


def _in_order(path: Path, graph: Any, depth: int) -> None:
    """Check that nodes read only values made before, and no value is made twice: no cycles. Subgraphs may read outer values."""
    made = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer} | {""}
    made |= {tensor.values.name for tensor in graph.sparse_initializer}
    for node in graph.node:
        for name in node.input:
            if depth == 0 and name not in made:
                raise _bad(path, f"nodes in order, each after its inputs; {node.op_type[:60]} is not", name)
        for name in filter(None, node.output):
            if name in made:
                raise _bad(path, f"values that are computed once; {node.op_type[:60]} computes another of the same name", name)
            made.add(name)


def _attributes(path: Path, node: Any) -> None:
    most = MOST_EQUATION if node.op_type == "Einsum" else MOST_TEXT
    for each in node.attribute:
        size = MOST_DIMS if each.name == "kernel_shape" else KEPT_ELEMENTS
        if len(each.s) > most:
            raise _bad(path, f"attributes of at most {most:,} bytes; that of {node.op_type[:60]} is longer", each.name[:60])
        if len(each.ints) > size:
            raise _bad(path, f"attributes of at most {size:,} numbers; that of {node.op_type[:60]} is longer", each.name[:60])
        if each.HasField("t"):
            _dims(path, f"{node.op_type} {each.name}", each.t.dims)


def _dims(path: Path, name: str, dims: Any) -> None:
    if len(dims) > MOST_DIMS:
        raise _bad(path, f"tensors of at most {MOST_DIMS} dimensions; '{name[:60]}' has more", len(dims))
    if any(dim < 0 for dim in dims) or math.prod(max(dim, 1) for dim in dims) > MOST_ELEMENTS:
        raise _bad(
            path, f"tensors of sizes above 0 and at most {MOST_ELEMENTS:,} elements; '{name[:60]}' is not", list(dims)[:8]
        )


def _close(path: Path, graph: Any, sizes: Mapping[str, int]) -> frozenset[str]:
    """Set the open dimensions: by name, or 1 for the first dimension of an input, which is the batch.
    Other sizes must be present. Returns the inputs that were given a batch of 1."""
    weights = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in weights]
    names = {dim.dim_param for value in inputs for dim in _dims_of(value) if dim.dim_value <= 0 and dim.dim_param}
    if unknown := next((name for name in sizes if name not in names), None):
        known = near_or_all(unknown, sorted(name[:60] for name in names if name.isprintable()))
        raise InputError(path, f"a dynamic dimension of the file; {known}", field="size", value=unknown)
    for value in (*inputs, *graph.output, *graph.value_info):
        for dim in _dims_of(value):
            if dim.dim_value <= 0 and dim.dim_param in sizes:
                dim.dim_value = sizes[dim.dim_param]
    left_open = set()
    for value in inputs:
        for place, dim in enumerate(_dims_of(value)):
            if dim.dim_value > 0:
                continue
            if place:
                raise _bad(path, f"inputs with known sizes, except the batch; {_mend(value.name, place, dim.dim_param)}")
            dim.dim_value = 1
            left_open.add(value.name)
        _dims(path, value.name, [dim.dim_value for dim in _dims_of(value)])
    return frozenset(left_open)


def _dims_of(value: Any) -> Any:
    return value.type.tensor_type.shape.dim


def _mend(name: str, place: int, called: str) -> str:
    at = f"size {place} of '{name[:60]}' is open"
    if called and called.isprintable():
        return f"{at}: give it, as in --size {called[:60]}=128"
    return f"{at} and has no name: export it with fixed sizes (without dynamic_axes or dynamic_shapes)"


def _without_weights(onnx: Any, graph: Any) -> None:
    """Weights become inputs of their shape: nothing is unpacked, and files that hold them are never opened."""
    inputs = {value.name for value in graph.input}
    kept = []
    for tensor in graph.initializer:
        if math.prod(tensor.dims) <= KEPT_ELEMENTS and not tensor.external_data and tensor.data_location == 0:
            kept.append(tensor)
        elif tensor.name not in inputs:
            graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
    small = [onnx.TensorProto.FromString(tensor.SerializeToString()) for tensor in kept]
    del graph.initializer[:]
    graph.initializer.extend(small)


def _inferred(path: Path, onnx: Any, model: Any) -> Any:
    """With shapes. Where an axis is split PyTorch says with a little arithmetic on shapes, which inference does not follow
    everywhere; what is known of it becomes constants, and inference goes on from there."""
    _fold(onnx, model.graph, {})
    for _ in range(MOST_PASSES):
        try:
            model = onnx.shape_inference.infer_shapes(model, strict_mode=False, data_prop=True)
        except MemoryError:
            raise _bad(path, "a graph whose shapes can be inferred in little memory") from None
        except Exception as problem:  # inference raises errors of several kinds, none of them documented
            raise _bad(path, f"a graph whose shapes can be inferred: {' '.join(str(problem).split())[:200]}") from None
        shapes = {
            value.name: _known_dims(value) for value in (*model.graph.input, *model.graph.value_info, *model.graph.output)
        }
        made = [name for node in model.graph.node for name in node.output if name]
        if all(shapes.get(name) is not None for name in made) or not _fold(onnx, model.graph, shapes):
            break
    return model


def _known_dims(value: Any) -> list[int] | None:
    kind = value.type.tensor_type
    dims = kind.shape.dim
    return [dim.dim_value for dim in dims] if kind.HasField("shape") and all(dim.dim_value > 0 for dim in dims) else None


def _fold(onnx: Any, graph: Any, shapes: Mapping[str, list[int] | None]) -> int:
    """The number of nodes that became constants: arithmetic on a few known integers."""
    known: dict[str, Ints] = {}
    folded = 0
    for node in graph.node:
        if not node.output:
            continue
        if node.op_type == "Constant":
            tensor = next((each.t for each in node.attribute if each.name == "value"), None)
            if tensor is not None and tensor.data_type == onnx.TensorProto.INT64 and math.prod(tensor.dims) <= FEW:
                held = tensor.int64_data or np.frombuffer(tensor.raw_data[: len(tensor.raw_data) // 8 * 8], dtype="<i8")
                if len(held) == math.prod(tensor.dims):
                    known[node.output[0]] = np.array(held, dtype=np.int64).reshape(tuple(tensor.dims))
            continue
        if node.op_type == "Shape" and not node.attribute and node.input and shapes.get(node.input[0]) is not None:
            made = np.array(shapes[node.input[0]], dtype=np.int64)
        elif node.op_type in _FOLDED and node.input and all(name in known for name in node.input):
            try:
                made = np.asarray(_FOLDED[node.op_type](*(known[name] for name in node.input)), dtype=np.int64)
            except (ArithmeticError, IndexError, TypeError, ValueError):
                continue  # inference will say what is wrong with it
        else:
            continue
        if made.size <= FEW and (np.abs(made) < 2**31).all():
            name = node.output[0]
            known[name] = made
            tensor = onnx.helper.make_tensor(name, onnx.TensorProto.INT64, made.shape, made.flatten().tolist())
            node.CopyFrom(onnx.helper.make_node("Constant", [], [name], value=tensor))
            folded += 1
    return folded


def _remainder(one: Ints, other: Ints) -> Ints:
    if not np.asarray(other).all():
        raise ZeroDivisionError
    return np.mod(one, other)


def _quotient(one: Ints, other: Ints) -> Ints:
    if not np.asarray(other).all() or (np.asarray(one) < 0).any():
        raise ZeroDivisionError
    return np.floor_divide(one, other)


_FOLDED: dict[str, Callable[..., Any]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Mod": _remainder,
    "Div": _quotient,
    "Gather": lambda one, places: np.take(one, places) if one.ndim == 1 else _unfit(),
    "Identity": lambda one: one,
    "Reshape": lambda one, shape: one.reshape(tuple(shape.tolist())),
    "Unsqueeze": lambda one, axes: np.expand_dims(one, tuple(axes.tolist())),
    "Squeeze": lambda one, axes: np.squeeze(one, tuple(axes.tolist())),
    "Concat": lambda *ones: np.concatenate(ones) if all(one.ndim == 1 for one in ones) else _unfit(),
}


def _unfit() -> Ints:
    raise ValueError


def _bad(path: Path, expected: str, value: object = None) -> InputError:
    return InputError(path, expected, field="model", value=value)


def _onnx() -> Any:
    try:
        onnx = import_module("onnx")
        import_module("onnx.shape_inference")
    except ImportError:
        raise FairleadError(f"reading a model's graph needs onnx: {install('predict')}") from None
    return onnx
