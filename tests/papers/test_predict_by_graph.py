"""Predictions of current trainings from their graphs, the baseline of the study with predictions."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")
pytest.importorskip("onnx")

from fairlead_papers.horus.predicted import read_predictions
from fairlead_papers.prediction import predict_by_graph


def test_a_file_has_what_a_graph_tells_and_what_could_not_be_read(tmp_path, monkeypatch, capsys):
    out = tmp_path / "by_graph.jsonl"
    predict_by_graph.main(["--out", str(out), "--only", "mlp-64@16:4/fp32"])
    [(name, found)] = read_predictions(out)
    assert (name, found.source, found.device) == ("mlp-64@16:4/fp32", "graph", "NVIDIA H200")
    assert found.memory_mb > 0
    assert found.utilization_low == found.utilization_high

    def refuse(*given: object) -> None:
        raise predict_by_graph.FairleadError("it cannot be exported")

    monkeypatch.setattr(predict_by_graph, "export_module", refuse)
    predict_by_graph.main(["--out", str(out), "--only", "mlp-64@16:4/fp32,mlp-64@16:8/fp32"])
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row.get("problem") for row in rows] == [None, "it cannot be exported"], "the first was there"
    assert len(list(read_predictions(out))) == 1
    assert "it cannot be exported" in capsys.readouterr().out
