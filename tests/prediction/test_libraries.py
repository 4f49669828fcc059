"""Models of today's libraries are traced as they are; what was measured on an H200 is what is predicted."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the extra `torch` is not installed")
LIBRARIES = ("timm", "transformers", "diffusers", "peft")
if missing := [name for name in LIBRARIES if importlib.util.find_spec(name) is None]:
    pytest.skip(f"not installed: {', '.join(missing)}", allow_module_level=True)

from fairlead.prediction.cuda_allocator import memory_use  # noqa: E402
from fairlead.prediction.cuda_paths import built_untouched  # noqa: E402
from fairlead.prediction.fake_step import trace_step  # noqa: E402
from fairlead_papers import prediction  # noqa: E402
from fairlead_papers.prediction import trainings  # noqa: E402
from fairlead_papers.prediction.training_models import allow_torchvision  # noqa: E402

MEASURED = Path(prediction.__file__).parents[1] / "data" / "h200_steps.jsonl"
NAMES = (
    "resnet50@224:64/bf16",
    "vit_small_patch16_224@224:32/fp32",
    "bert-base@128:32/bf16",
    "llama-150m@512:8/bf16",
    "lora-gpt2@256:8/fp32",
    "gru-1024x2@128:64/bf16",
    "vae-small@64:8/fp32",
)


@pytest.fixture(scope="module")
def measured() -> dict[str, dict[str, float]]:
    rows = [json.loads(line) for line in MEASURED.read_text(encoding="utf-8").splitlines()]
    return {row["name"]: row for row in rows if "allocated_mb" in row}


@pytest.mark.parametrize("name", NAMES)
def test_memory_is_as_measured(name: str, measured: dict[str, dict[str, float]]):
    allow_torchvision()
    with built_untouched():
        training = trainings.entry(name).make()
    found = memory_use(trace_step(training))
    assert found.allocated_mb == pytest.approx(measured[name]["steady_allocated_mb"], rel=0.03)
    assert found.reserved_mb == pytest.approx(measured[name]["steady_reserved_mb"], rel=0.12)
