"""Predictions of current trainings from a fake step and from their graphs."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")
pytest.importorskip("onnx")

from fairlead_papers.horus.predicted import read_predictions
from fairlead_papers.prediction import predict_trainings


def test_a_file_has_what_a_graph_tells_and_what_could_not_be_read(tmp_path, monkeypatch, capsys):
    out = tmp_path / "by_graph.jsonl"
    predict_trainings.main(["--out", str(out), "--by", "graph", "--only", "mlp-64@16:4/fp32"])
    [(name, found)] = read_predictions(out)
    assert (name, found.source, found.device) == ("mlp-64@16:4/fp32", "graph", "NVIDIA H200")
    assert found.memory_mb > 0
    assert found.utilization_low == found.utilization_high

    def refuse(*given: object) -> None:
        raise RuntimeError("it cannot be exported")

    monkeypatch.setattr(predict_trainings, "export_module", refuse)
    predict_trainings.main(["--out", str(out), "--by", "graph", "--only", "mlp-64@16:4/fp32,mlp-64@16:8/fp32"])
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row.get("problem") for row in rows] == [None, "RuntimeError: it cannot be exported"], "the first was there"
    assert len(list(read_predictions(out))) == 1
    assert "it cannot be exported" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["mlp-64@16:4/bf16", "mlp-512@784:4096"])
def test_a_fake_step_tells_of_both_lists(tmp_path, name):
    out = tmp_path / "by_step.jsonl"
    predict_trainings.main(["--out", str(out), "--only", name])
    [(found_name, found)] = read_predictions(out)
    assert (found_name, found.source) == (name, "fake step")
    assert found.utilization_low < found.utilization_high
