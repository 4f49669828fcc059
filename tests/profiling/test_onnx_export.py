"""Models become graphs: where PyTorch and onnx are."""

from __future__ import annotations

import pytest

from fairlead.prediction.features import graph_features
from fairlead.prediction.graph import load_graph
from fairlead.profiling.configurations import configuration
from fairlead.profiling.results import measured_set


def test_an_exported_model_has_the_features_that_ship(tmp_path):
    pytest.importorskip("torch", reason="the extra `torch` is not installed")
    pytest.importorskip("onnx", reason="the extra `predict` is not installed")
    from fairlead.profiling.onnx_export import export_configuration

    path = tmp_path / "model.onnx"
    export_configuration(configuration("mlp-512@784:64"), path)
    found = graph_features(load_graph(path), 64)
    row = next(row for row in measured_set("h200_features")[1] if row["name"] == "mlp-512@784:64")
    assert found.parameters == row["parameters"] == 785 * 512 + 513 * 512 + 513 * 1000
    assert found.flops == pytest.approx(row["flops"])
    assert found.kept == pytest.approx(row["kept"])


def test_a_file_that_was_made_for_inference_is_read_as_its_model_trains(tmp_path):
    torch = pytest.importorskip("torch", reason="the extra `torch` is not installed")
    pytest.importorskip("onnx", reason="the extra `predict` is not installed")
    from fairlead.profiling.onnx_export import export_module

    layers = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, bias=False),
        torch.nn.BatchNorm2d(8),
        torch.nn.ReLU(),
        torch.nn.Conv2d(8, 4, 3),
        torch.nn.ReLU(),
    )
    inputs = torch.rand(2, 3, 16, 16)
    export_module(layers, inputs, tmp_path / "trains.onnx")
    torch.onnx.export(layers.eval(), (inputs,), str(tmp_path / "infers.onnx"), dynamo=False)
    assert load_graph(tmp_path / "infers.onnx") == load_graph(tmp_path / "trains.onnx")


def test_every_measured_configuration_has_features():
    rows = measured_set("h200_features")[1]
    assert {row["name"] for row in rows} == {row["name"] for row in measured_set()[1]}
    assert not any(row["unknown"] for row in rows)
    trained = {row["name"]: row["parameters"] for row in measured_set()[1]}
    assert all(row["parameters"] == pytest.approx(trained[row["name"]], rel=0.01) for row in rows)
