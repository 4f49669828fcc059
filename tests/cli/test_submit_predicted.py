"""`fairlead submit` with a prediction: jobs share a GPU at once, and users see what was predicted."""

from __future__ import annotations

import functools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import command
import pytest
from cluster_up import cluster_up, until

pytestmark = pytest.mark.long

PREDICTED: dict[str, Any] = {
    "device": "Tesla V100-SXM2-16GB",
    "allocated_mb": 1024.0,
    "reserved_mb": 1536.0,
    "memory_mb": 2048.0,
    "parts_mb": {"parameters": 300.0},
    "utilization": 30.0,
    "utilization_low": 25.0,
    "utilization_high": 35.0,
    "multiprocessors": 20.0,
    "steps_per_s": 2.0,
    "steps_per_s_low": 1.6,
    "steps_per_s_high": 2.4,
    "kernel_s": 1e-5,
    "notes": ["a note"],
}


def test_jobs_with_predictions_share_at_once_and_others_do_not(tmp_path: Path):
    answer, fairlead = (functools.partial(ask, cwd=tmp_path) for ask in (command.answer, command.fairlead))
    (tmp_path / "light.json").write_text(json.dumps(PREDICTED))
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "light.json").write_text(json.dumps({**PREDICTED, "batch_size": 64, "fits": True}))
    (tmp_path / "more" / "task.yaml").write_text("run: sleep 1000\nprediction: light.json\nmax_slowdown: 1.5\n")
    bad = {"huge": {"memory_mb": 1e9}, "other": {"device": "NVIDIA H200"}, "hostile": {"utilization": 130}}
    for name, change in bad.items():
        (tmp_path / f"{name}.json").write_text(json.dumps({**PREDICTED, **change}))
    with cluster_up(tmp_path, "--preset", "horus", cluster="1xv100:1"):
        limited = ("--max-slowdown", "1.5")
        sent = fairlead("submit", "--name", "one", "--prediction", "light.json", *limited, "--", "sleep", "1000")
        assert sent.returncode == 0, sent.stderr
        assert "predicted on Tesla V100-SXM2-16GB: at most 2.0 GB, 30 % utilization (25 to 35), 2 steps/s" in sent.stderr
        assert fairlead("submit", "--name", "two", "more/task.yaml").returncode == 0
        assert fairlead("submit", "--name", "plain", "--", "sleep", "1000").returncode == 0

        def phases() -> Counter[str]:
            return Counter(job["phase"] for job in answer("queue")["jobs"])

        until(lambda: phases() == {"running": 2, "waiting": 1}, tmp_path)
        about = answer("info", "two")
        assert (about["colocated_with"], about["memory_gb"], about["kind"]) == (["one"], 2.0, answer("info", "one")["kind"])
        assert about["prediction"]["utilization"] == {"predicted": 30.0, "low": 25.0, "high": 35.0, "measured": None}
        assert answer("why", "one")["prediction"] == about["prediction"]
        assert answer("info", "plain")["prediction"] is None
        shown = fairlead("info", "one").stdout
        assert "at most 2.0 GB" in shown
        assert "30 % (25 to 35)" in shown
        assert "predicted for GPU type: v100; utilization: 30 % (25 to 35)" in fairlead("why", "one").stdout
        refused = {name: fairlead("submit", "--prediction", f"{name}.json", "--", "true") for name in bad}
        assert "needs 976562 GB of GPU memory" in refused["huge"].stderr
        assert "--max-batch" in refused["huge"].stderr
        assert "prediction: it is for 'h200', and this cluster has v100" in refused["other"].stderr
        assert "utilization" in refused["hostile"].stderr
        missing = fairlead("submit", "--prediction", "none.json", "--", "true")
        assert "none.json" in missing.stderr
        assert [done.returncode for done in (*refused.values(), missing)] == [4, 2, 2, 2]


TRAINING = """
import torch
from torch import nn

def training(batch_size=8):
    model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 10))
    return model, torch.randn(batch_size, 256), torch.randint(10, (batch_size,))
"""


def test_a_training_is_predicted_where_it_is_submitted(tmp_path: Path):
    pytest.importorskip("torch")
    answer, fairlead = (functools.partial(ask, cwd=tmp_path) for ask in (command.answer, command.fairlead))
    (tmp_path / "more").mkdir()
    for folder in (tmp_path, tmp_path / "more"):
        (folder / "mine.py").write_text(TRAINING)
    task = {"run": "sleep 1000", "kind": "mine", "predict": {"module": "mine.py:training", "batch": 4096, "precision": "bf16"}}
    (tmp_path / "more" / "task.json.yaml").write_text(json.dumps(task))
    with cluster_up(tmp_path, "--preset", "horus", cluster="1xh200:1"):
        sent = fairlead("submit", "--name", "one", "--predict", "mine.py:training", "--", "sleep", "1000")
        assert sent.returncode == 0, sent.stderr
        assert "predicted on NVIDIA H200: at most" in sent.stderr
        assert fairlead("submit", "--name", "two", "more/task.json.yaml").returncode == 0
        until(lambda: [job["phase"] for job in answer("queue")["jobs"]] == ["running", "running"], tmp_path)
        one, two = (answer("info", name) for name in ("one", "two"))
        assert (one["colocated_with"], two["kind"]) == (["two"], "mine")
        assert 0 < one["memory_gb"] < two["memory_gb"] < 5
        wide = {
            **task,
            "workers": 4,
            "mode": "elastic",
            "predict": {**task["predict"], "sharding": "fsdp", "host_launch_us": 9},
        }
        (tmp_path / "more" / "wide.yaml").write_text(json.dumps(wide))
        gang = fairlead("submit", "--dry-run", "more/wide.yaml")
        assert "predicted on NVIDIA H200, each of 4 workers (fsdp): at most" in gang.stderr
        assert gang.returncode == 4, "the cluster has one GPU"
        assert "workers" not in fairlead("submit", "--dry-run", "--gpus", "1", "more/wide.yaml").stderr
        wrong = {"batch": "many"}, {"surprise": 1}, {"module": "mine.py"}, {"precision": "fp3"}, {"sharding": "zero"}
        for place, change in enumerate(wrong):
            predict = {**task["predict"], **change}
            (tmp_path / "more" / f"{place}.yaml").write_text(json.dumps({**task, "predict": predict}))
        refused = [fairlead("submit", f"more/{place}.yaml") for place in range(len(wrong))]
        assert [done.returncode for done in refused] == [2] * len(wrong), refused
        for done, field in zip(refused, ("predict.batch", "predict.surprise", "predict", "precision", "sharding")):
            assert field in done.stderr
        both = fairlead("submit", "--predict", "mine.py:training", "--prediction", "none.json", "--", "true")
        assert "either a training to predict, or a prediction" in both.stderr
