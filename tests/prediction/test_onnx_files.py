"""What is read off an ONNX file, and that no file can do harm."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fairlead.cli.main import app
from fairlead.core.errors import InputError
from fairlead.prediction import onnx_process
from fairlead.prediction.features import graph_features
from fairlead.prediction.graph import load_graph

onnx = pytest.importorskip("onnx", reason="the extra `predict` is not installed")
helper, TensorProto = onnx.helper, onnx.TensorProto


def weights(name: str, *dims: int, filled: bool = True) -> Any:
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=dims)
    if filled:
        count = 1
        for dim in dims:
            count *= dim
        tensor.raw_data = struct.pack("<f", 0.5) * count
    return tensor


def value(name: str, *dims: int | str) -> Any:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)


def convolutional(batch: int | str = 2, **changed: Any) -> Any:
    """Convolution, normalization, ReLU, a pool over all, classes: 8 pixels, 3 to 16 channels, 10 classes."""
    nodes = [
        helper.make_node("Conv", ["x", "kernel"], ["a"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["a", "scale", "shift", "mean", "variance"], ["b"]),
        helper.make_node("Relu", ["b"], ["c"]),
        helper.make_node("GlobalAveragePool", ["c"], ["d"]),
        helper.make_node("Flatten", ["d"], ["e"]),
        helper.make_node("Gemm", ["e", "classes", "bias"], ["y"], transB=1),
    ]
    held = [weights("kernel", 16, 3, 3, 3), *(weights(name, 16) for name in ("scale", "shift", "mean", "variance"))]
    held += [weights("classes", 10, 16), weights("bias", 10)]
    given = {"nodes": nodes, "inputs": [value("x", batch, 3, 8, 8)], "outputs": [value("y", batch, 10)], "initializer": held}
    return model(**{**given, **changed})


def folded(bias: bool, mark: Callable[[Any], None]) -> Any:
    """The same as exporters write it for inference."""
    made = convolutional()
    convolution, normalization, *others = made.graph.node
    convolution.output[0] = normalization.output[0]
    if bias:
        convolution.input.append("shift")
    gone = {"scale", "mean", "variance", *(() if bias else ("shift",))}
    held = [tensor for tensor in made.graph.initializer if tensor.name not in gone]
    mark(convolution)
    names = dict(zip(("kernel", "shift"), convolution.input[1:]))
    for tensor in held:
        tensor.name = names.get(tensor.name, tensor.name)
    inputs, outputs = list(made.graph.input), list(made.graph.output)
    return model([convolution, *others], inputs, outputs, initializer=held)


def model(nodes: list[Any], inputs: list[Any], outputs: list[Any], **more: Any) -> Any:
    graph = helper.make_graph(nodes, "g", inputs, outputs, **more)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of its own takes as long as ten seconds to begin on a busy machine."""
    monkeypatch.setattr(onnx_process, "SECONDS", 120.0)


@pytest.fixture
def saved(tmp_path: Path) -> Callable[[Any], Path]:
    def save(what: Any) -> Path:
        path = tmp_path / "model.onnx"
        path.write_bytes(what if isinstance(what, bytes) else what.SerializeToString())
        return path

    return save


def test_work_is_counted_from_shapes(saved):
    graph = load_graph(saved(convolutional()))
    by_kind = {one.kind: one for one in graph.operators}
    assert by_kind["Conv"].flops == 2 * (2 * 16 * 8 * 8) * (3 * 3 * 3)
    assert by_kind["Gemm"].flops == 2 * (2 * 10) * 16
    assert graph.parameters == 16 * 27 + 32 + 170  # running statistics are no parameters
    assert (graph.parameter_tensors, graph.batch_size, graph.inputs, graph.outputs) == (5, 2, 2 * 192, 20)
    assert "Flatten" in graph.counts
    assert "Flatten" not in by_kind
    assert graph.kept == 2 * (192 + 16 * 64 + 16 * 64 + 16)  # what the convolution, the norm, ReLU and the last layer need
    assert not graph.unknown


def lost_their_names(convolution: Any) -> None:
    for place in range(1, len(convolution.input)):
        convolution.input[place] = f"onnx::Conv_{16 + place}"


def names_its_rule(convolution: Any) -> None:
    rules = "RemoveOptionalBiasFromConv, FuseBatchNormIntoConv"
    convolution.metadata_props.add(key="pkg.onnxscript.rewriter.rule_name", value=rules)


@pytest.mark.parametrize(("bias", "mark"), [(True, lost_their_names), (True, names_its_rule), (False, names_its_rule)])
def test_normalization_that_was_folded_away_for_inference_is_there_in_a_training(saved, bias, mark):
    as_trained, read = load_graph(saved(convolutional())), load_graph(saved(folded(bias, mark)))
    assert read == as_trained
    bare = load_graph(saved(folded(bias, lambda convolution: None)))
    assert (bare.kept, "BatchNormalization" in bare.counts) == (as_trained.kept - 2 * 16 * 64, False)


@pytest.mark.parametrize("bias", [True, False])
def test_a_weight_that_was_computed_from_others_is_no_normalization_that_was_folded_away(saved, bias):
    """As in weight normalization: it has lost its name, and a bias, where there is one, has not."""

    def computed(convolution: Any) -> None:
        convolution.input[1] = "onnx::Conv_17"

    assert load_graph(saved(folded(bias, computed))) == load_graph(saved(folded(bias, lambda convolution: None)))


def test_a_batch_that_is_open_or_another_is_a_matter_of_scale(saved):
    two = graph_features(load_graph(saved(convolutional(2))), 64)
    open_ = graph_features(load_graph(saved(convolutional("N"))), 64)
    own = graph_features(load_graph(saved(convolutional(64))))
    assert two.column() == pytest.approx(own.column())
    assert open_.column() == pytest.approx(own.column())
    assert own.batch_size == 64


def test_more_work_keeps_the_device_busier(saved):
    graph = load_graph(saved(convolutional()))
    busy = [graph_features(graph, batch).busy for batch in (1, 1_000, 1_000_000)]
    assert busy == sorted(busy)
    assert busy[0] < 0.3
    assert busy[-1] == 1.0


def test_recurrent_cells_wait_for_themselves(saved):
    cell = helper.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=4)
    held = [weights("w", 1, 16, 8), weights("r", 1, 16, 4)]
    graph = load_graph(saved(model([cell], [value("x", 20, 2, 8)], [value("y", 20, 1, 2, 4)], initializer=held)))
    assert graph.operators[0].length == 20
    assert graph.operators[0].flops == 2 * 20 * 2 * 16 * (8 + 4)


def test_softmax_between_products_leaves_nothing_behind(saved):
    nodes = [
        helper.make_node("MatMul", ["q", "k"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["shares"]),
        helper.make_node("MatMul", ["shares", "v"], ["y"]),
    ]
    shapes = [value("q", 2, 50, 8), value("k", 2, 8, 50), value("v", 2, 50, 8)]
    assert load_graph(saved(model(nodes, shapes, [value("y", 2, 50, 8)]))).kept == 3 * 2 * 50 * 8


def test_operators_that_nobody_knows_are_counted_and_named(saved):
    strange = helper.make_node("Frobnicate", ["x"], ["y"], domain="elsewhere")
    made = model([strange], [value("x", 2, 3)], [value("y", 2, 3)])
    made.opset_import.append(helper.make_opsetid("elsewhere", 1))
    graph = load_graph(saved(made))
    assert graph.unknown == {"Frobnicate": 1}
    assert graph.operators[0].flops == 6


def test_of_many_operators_that_nobody_knows_a_few_are_named(saved):
    nodes = [helper.make_node(f"Strange{n}", ["x"], [f"y{n}"], domain="elsewhere") for n in range(1000)]
    made = model(nodes, [value("x", 2, 3)], [value("y0", 2, 3)])
    made.opset_import.append(helper.make_opsetid("elsewhere", 1))
    done = CliRunner().invoke(app, ["predict", "model", str(saved(made))], catch_exceptions=False)
    assert "Strange0, Strange1, Strange10" in done.output
    assert "and 976 more" in done.output


def _nested(depth: int) -> Any:
    graph = plain = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [], [value("y", 1)])
    for _ in range(depth):
        node = helper.make_node("If", ["c"], ["y"], then_branch=graph, else_branch=plain)
        graph = helper.make_graph([node], "g", [], [value("y", 1)])
    return model(list(graph.node), [value("x", 1), helper.make_tensor_value_info("c", TensorProto.BOOL, [])], [value("y", 1)])


def _calling_itself() -> Any:
    made = convolutional()
    loop = helper.make_function(
        "own", "Again", ["x"], ["y"], [helper.make_node("Again", ["x"], ["y"], domain="own")], made.opset_import
    )
    made.functions.append(loop)
    return made


def _without_opset() -> Any:
    made = convolutional()
    del made.opset_import[:]
    return made


def _beside(location: str) -> Any:
    tensor = weights("kernel", 16, 3, 3, 3, filled=False)
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    return tensor


def _relu_and(*nodes: Any) -> Any:
    return model([RELU, *nodes], [value("x", 1)], [value("y", 1)])


def _strange(kind: str) -> Any:
    made = model([helper.make_node(kind, ["x"], ["y"], domain="elsewhere")], [value("x", 1)], [value("y", 1)])
    made.opset_import.append(helper.make_opsetid("elsewhere", 1))
    return made


def _whole(dims: list[int], *held: int) -> Any:
    return TensorProto(name="t", data_type=TensorProto.INT64, dims=dims, int64_data=held)


RELU = helper.make_node("Relu", ["x"], ["y"])
HOSTILE: dict[str, Callable[[], Any]] = {
    "empty": lambda: b"",
    "no ONNX": lambda: b"<html><body>404</body></html>" * 100,
    "a pickle": lambda: pickle.dumps({"state_dict": list(range(100))}),
    "cut off": lambda: convolutional().SerializeToString()[:-400],
    "zeros": lambda: bytes(10_000),
    "no graph": lambda: onnx.ModelProto(ir_version=8),
    "no nodes": lambda: model([], [value("x", 1)], [value("x", 1)]),
    "no operators named": _without_opset,
    "a cycle": lambda: model(
        [helper.make_node("Add", ["x", "b"], ["a"]), helper.make_node("Relu", ["a"], ["b"])], [value("x", 1)], [value("b", 1)]
    ),
    "reads what nobody makes": lambda: model([helper.make_node("Relu", ["nobody"], ["y"])], [value("x", 1)], [value("y", 1)]),
    "a size below zero": lambda: model([RELU], [value("x", 1, -5)], [value("y", 1)]),
    "a size beyond memory": lambda: model([RELU], [value("x", 1, 2**62)], [value("y", 1)]),
    "sizes that overflow together": lambda: model([RELU], [value("x", 1, 2**31, 2**31, 2**31)], [value("y", 1)]),
    "weights it does not have": lambda: convolutional(
        initializer=[weights("kernel", 2**40, 2**20, filled=False), *convolutional().graph.initializer[1:]]
    ),
    "grows without end": lambda: model(
        [helper.make_node("Concat", ["x"] * 1000, ["a0"], axis=0)]
        + [helper.make_node("Concat", [f"a{n}"] * 1000, [f"a{n + 1}"], axis=0) for n in range(8)],
        [value("x", 8, 8)],
        [value("a8", 1, 1)],
    ),
    "too deep": lambda: _nested(30),
    "made twice, after": lambda: model(
        [helper.make_node("Softmax", ["x"], ["y"]), helper.make_node("Cast", ["y"], ["y"], to=1)],
        [value("x", 1)],
        [value("y", 1)],
    ),
    "made twice, before": lambda: model(
        [helper.make_node("Add", ["x", "x"], ["x"]), helper.make_node("Softmax", ["x"], ["y"])],
        [value("x", 1)],
        [value("y", 1)],
    ),
    "an endless equation": lambda: _relu_and(helper.make_node("Einsum", ["x"], ["z"], equation="..." * 1000)),
    "a window of many sizes": lambda: _relu_and(helper.make_node("MaxPool", ["x"], ["z"], kernel_shape=[2**62] * 5000)),
    "many dimensions": lambda: model([RELU], [value("x", 1), value("w", *[2**62] * 5000)], [value("y", 1)]),
    "too many nodes": lambda: _relu_and(*(helper.make_node("Relu", ["x"], [f"r{n}"]) for n in range(20_000))),
    "a constant for nobody": lambda: _relu_and(helper.make_node("Constant", [], [], value=_whole([1], 3))),
    "a constant of sizes below zero": lambda: _relu_and(helper.make_node("Constant", [], ["z"], value=_whole([-1, -1], 3))),
    "a constant of nothing, many times": lambda: _relu_and(
        helper.make_node("Constant", [], ["z"], value=_whole([0, 2**62, 4]))
    ),
    "a constant of many dimensions": lambda: _relu_and(helper.make_node("Constant", [], ["z"], value=_whole([1] * 100, 3))),
    "an operator whose name is no text": lambda: _strange("Frob").SerializeToString().replace(b"Frob", b"Fr\xff\xfe"),
    "an operator with an endless name": lambda: _strange("F" * 1000),
    "calls itself": _calling_itself,
    "open sizes": lambda: model([RELU], [value("x", "N", "H", "W")], [value("y", "N", "H", "W")]),
    "attributes that make no sense": lambda: model(
        [helper.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=-3)],
        [value("x", 5)],
        [value("y", 5)],
        initializer=[weights("w", 1), weights("r", 1)],
    ),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_file_is_refused_in_one_line(saved, kind: str):
    with pytest.raises(InputError, match=r"model\.onnx") as refused:
        load_graph(saved(HOSTILE[kind]()))
    assert len(str(refused.value)) < 600


def test_a_file_is_read_by_a_process_of_its_own_and_told_alike(saved):
    path = saved(convolutional())
    assert onnx_process.load_graph_in_process(path) == load_graph(path)
    for wrong in (saved(HOSTILE["too deep"]()), path.parent / "nothing.onnx"):
        with pytest.raises(InputError) as direct:
            load_graph(wrong)
        with pytest.raises(InputError) as told:
            onnx_process.load_graph_in_process(wrong)
        assert str(told.value) == str(direct.value)


@pytest.mark.parametrize(("name", "little"), [("SECONDS", 1.5), ("MEMORY", 2**28)])
def test_a_file_that_swells_is_given_up(saved, monkeypatch, name: str, little: float):
    shape = helper.make_node("Shape", ["x"], ["s0"])
    doubled = [helper.make_node("Concat", [f"s{n}", f"s{n}"], [f"s{n + 1}"], axis=0) for n in range(32)]
    last = helper.make_node("Reshape", ["x", "s32"], ["y"])
    monkeypatch.setattr(onnx_process, name, little)
    with pytest.raises(InputError, match=r"model\.onnx"):
        onnx_process.load_graph_in_process(saved(model([shape, *doubled, last], [value("x", 1, 3)], [value("y", 1)])))


def test_many_softmaxes_behind_a_long_chain_are_told_at_once(saved):
    chain = [helper.make_node("MatMul", ["x", "x"], ["a0"])]
    chain += [helper.make_node("Add", [f"a{n}", "x"], [f"a{n + 1}"]) for n in range(3000)]
    for n in range(3000):
        chain += [helper.make_node("Softmax", ["a3000"], [f"s{n}"]), helper.make_node("MatMul", [f"s{n}", "x"], [f"y{n}"])]
    graph = load_graph(saved(model(chain, [value("x", 4, 4)], [value("y0", 4, 4)])))
    assert graph.kept == 16  # x alone


def test_a_folder_and_a_file_that_is_not_there_are_refused(tmp_path):
    for path in (tmp_path, tmp_path / "nothing.onnx"):
        with pytest.raises(InputError):
            load_graph(path)


def test_files_beside_it_are_never_opened(saved, tmp_path):
    held = convolutional().graph.initializer[1:]
    for location in ("nothing.bin", "/etc/hostname", "../../etc/hostname"):
        graph = load_graph(saved(convolutional(initializer=[_beside(location), *held])))
        assert graph.parameters == 16 * 27 + 32 + 170


def tokens(batch: int | str = "batch", length: int | str = "sequence") -> Any:
    """A layer over tokens of 32 numbers each."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Relu", ["a"], ["y"])]
    ends = [value("x", batch, length, 32)], [value("y", batch, length, 64)]
    return model(nodes, *ends, initializer=[weights("w", 32, 64)])


def test_a_size_that_is_open_is_given_by_its_name(saved):
    fixed, path = load_graph(saved(tokens(1, 128))), saved(tokens())
    assert not fixed.open_batch
    assert load_graph(path, {"sequence": 128}) == replace(fixed, open_batch=True)
    assert onnx_process.load_graph_in_process(path, {"sequence": 128}) == load_graph(path, {"sequence": 128})
    assert load_graph(path, {"sequence": 128, "batch": 4}) == load_graph(saved(tokens(4, 128)))
    assert graph_features(load_graph(saved(tokens()), {"sequence": 128}), 4).flops == 2 * 4 * 128 * 64 * 32 + 4 * 128 * 64


def test_a_size_that_is_open_and_not_given_is_asked_for(saved):
    with pytest.raises(InputError, match=r"size 1 of 'x' is open: give it, as in --size sequence=128"):
        load_graph(saved(tokens()))
    with pytest.raises(InputError, match="a dynamic dimension of the file; did you mean 'sequence'") as refused:
        onnx_process.load_graph_in_process(saved(tokens()), {"sequenc": 128})
    assert refused.value.field == "size"
    nameless = tokens()
    nameless.graph.input[0].type.tensor_type.shape.dim[1].ClearField("dim_param")
    for strange in (nameless, tokens(length="\x1b[2J")):
        with pytest.raises(InputError, match="has no name: export it with fixed sizes"):
            load_graph(saved(strange))
    with pytest.raises(InputError, match="at most"):
        load_graph(saved(tokens()), {"sequence": 10**18})
