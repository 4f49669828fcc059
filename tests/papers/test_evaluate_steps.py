"""The comparison of predicted with measured trainings, on predictions that are off by known factors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fairlead.prediction.step_prediction import StepPrediction
from fairlead.profiling.results import read_results
from fairlead_papers.prediction.evaluate_steps import Comparison, main
from fairlead_papers.prediction.fit_steps import MEASURED

ROWS = [row for row in read_results(MEASURED["first"])[1] if "problem" not in row]


def predictions(memory: float, speed: float) -> dict[str, StepPrediction]:
    """Of all trainings, with memory and speed off by these factors."""
    return {
        row["name"]: StepPrediction(
            "NVIDIA H200",
            allocated_mb=row["allocated_mb"] * memory,
            reserved_mb=max(row["reserved_mb"], row["allocated_mb"]) * memory,
            memory_mb=max(row["device_memory_mb"], row["allocated_mb"], row["reserved_mb"]) * memory,
            utilization=row["utilization"],
            utilization_low=row["utilization"],
            utilization_high=row["utilization"],
            steps_per_s=row["steps_per_s"] * speed,
            steps_per_s_low=row["steps_per_s"] * speed,
            steps_per_s_high=row["steps_per_s"] * speed,
        )
        for row in ROWS
    }


def test_errors_are_those_of_the_predictions():
    compared = Comparison.of(predictions(1.25, 0.5))
    assert len(compared.rows) == len(ROWS) >= 60
    assert compared.off("allocated_mb") == pytest.approx(0.25)
    assert compared.off("steps_per_s") == pytest.approx(-0.5)
    assert compared.coverage() == (1.0, pytest.approx(0.25))
    assert Comparison.of(predictions(0.9, 1.0)).coverage()[0] == 0.0


def test_the_tables_and_the_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "predicted.jsonl"
    file.write_text("".join(json.dumps({"name": name, **one.to_data()}) + "\n" for name, one in predictions(1.1, 1.0).items()))
    main([str(file), "--picture", str(tmp_path / "picture.png")])
    told = capsys.readouterr().out
    assert "| all | 97 | 10.0, 10.0, 10.0 % | 10.0, 10.0, 10.0 % | 100 % | 10 % | 0.00 | 0 % |" in told
    assert told.count("\n|") > len({row["family"] for row in ROWS})
    assert (tmp_path / "picture.png").stat().st_size > 10_000
