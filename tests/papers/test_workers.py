"""Predicted memory of DDP and FSDP workers, against several processes on one H200."""

from __future__ import annotations

import json
from importlib import resources

import pytest

pytest.importorskip("torch", reason="the extra `torch` is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

from fairlead.prediction.predict_step import CONTEXT_MB, predict
from fairlead.prediction.training_step import allow_torchvision
from fairlead_papers.prediction.trainings import entry

pytestmark = pytest.mark.long

_LINES = (resources.files("fairlead_papers") / "data" / "h200_workers.jsonl").read_text().splitlines()
MEASURED = [json.loads(line) for line in _LINES[1:]]


@pytest.mark.parametrize("row", [row for row in MEASURED if "bert-base" in row["name"]], ids=lambda row: row["sharding"])
def test_memory_of_a_worker(row):
    allow_torchvision()
    found = predict(entry(row["name"]).make(), workers=row["workers"], sharding=row["sharding"])
    near = 0.01 if row["sharding"] == "ddp" else 0.05
    assert found.allocated_mb == pytest.approx(row["allocated_mb"], rel=near)
    assert found.reserved_mb == pytest.approx(row["reserved_mb"], rel=0.15)
    assert found.memory_mb > row["reserved_mb"] + CONTEXT_MB
