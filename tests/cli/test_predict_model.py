"""`fairlead predict model` says all that it took for granted, and whether what it predicts can be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fairlead.cli.main import app
from fairlead.core.errors import InputError

onnx = pytest.importorskip("onnx", reason="the extra `predict` is not installed")
helper, FLOAT = onnx.helper, onnx.TensorProto.FLOAT


def layers(path: Path, batch: int | str = "N", length: int | str = 128) -> str:
    """Two wide layers over a sequence."""
    nodes = [helper.make_node("MatMul", ["x", "v"], ["a"]), helper.make_node("MatMul", ["a", "w"], ["y"])]
    ends = [[helper.make_tensor_value_info(name, FLOAT, (batch, length, 1024))] for name in "xy"]
    held = [onnx.TensorProto(name=name, data_type=FLOAT, dims=(1024, 1024), raw_data=bytes(4 * 1024**2)) for name in "vw"]
    graph = helper.make_graph(nodes, "g", *ends, initializer=held)
    path.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString())
    return str(path)


def said(*words: str) -> Any:
    return CliRunner().invoke(app, ["predict", "model", *words], catch_exceptions=False)


def test_which_batch_size_was_taken_is_told(tmp_path):
    path = layers(tmp_path / "open.onnx")
    assert "batch size 1, because the file does not fix it; pass --batch" in said(path).stderr
    assert said(path, "--batch", "64").stderr == "batch size 64\n"
    assert said(layers(tmp_path / "own.onnx", 64)).stderr == "batch size 64, as in the file\n"


def test_text_has_what_json_has(tmp_path):
    path = layers(tmp_path / "mine.onnx", 64)
    told, text = json.loads(said(path, "--json").stdout), said(path).stdout
    assert f"{told['multiprocessors']:.0f} % of the multiprocessors busy" in text
    assert f"kernels of {1e6 * told['kernel_s']:,.0f} µs" in text
    assert told["fits"] is True
    assert "fit" not in text


def test_what_no_such_accelerator_has_is_said_not_to_fit(tmp_path):
    path = layers(tmp_path / "open.onnx")
    assert "it does not fit: the device has 144,384 MB\n" in said(path, "--batch", "10000000").stdout
    assert json.loads(said(path, "--batch", "10000000", "--json").stdout)["fits"] is False


def test_open_sizes_are_given(tmp_path):
    open_, fixed = layers(tmp_path / "open.onnx", length="sequence"), layers(tmp_path / "fixed.onnx", length=256)
    asked = ("--batch", "8", "--json")
    assert said(open_, "--size", "sequence=256", *asked).stdout == said(fixed, *asked).stdout
    for strange in ("sequence", "=4", "sequence=0", "sequence=1e3", f"sequence={'9' * 400}"):
        refused = CliRunner().invoke(app, ["predict", "model", open_, "--size", strange]).exception
        assert isinstance(refused, InputError)
        assert (refused.field, refused.value) == ("size", strange)
    refused = CliRunner().invoke(app, ["predict", "model", "resnet50@224:64", "--size", "sequence=4"]).exception
    assert isinstance(refused, InputError), "a configuration leaves nothing open"


@pytest.mark.parametrize("words", [("--workers", "2"), ("--max-batch",)])
def test_a_trial_has_one_worker_and_one_batch_size(words):
    with pytest.raises(InputError, match="one worker and one batch size"):
        CliRunner().invoke(app, ["predict", "module", "mine.py:training", "--trial", *words], catch_exceptions=False)
