"""Models of today's libraries are traced as they are; what was measured on an H200 is what is predicted."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the extra `torch` is not installed")
LIBRARIES = ("timm", "transformers", "diffusers", "peft")
if missing := [name for name in LIBRARIES if importlib.util.find_spec(name) is None]:
    pytest.skip(f"not installed: {', '.join(missing)}", allow_module_level=True)

from fairlead.prediction.cuda_allocator import memory_use  # noqa: E402
from fairlead.prediction.cuda_paths import built_untouched  # noqa: E402
from fairlead.prediction.fake_step import trace_step  # noqa: E402
from fairlead.prediction.training_step import allow_torchvision  # noqa: E402
from fairlead_papers import prediction  # noqa: E402
from fairlead_papers.prediction import trainings  # noqa: E402

pytestmark = pytest.mark.long

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


def test_a_file_that_imports_a_library_of_models_is_predicted(tmp_path: Path):
    """timm imports torchvision. One built for CUDA fails next to a PyTorch without it, unless its operators are declared."""
    file = tmp_path / "mine.py"
    file.write_text(
        "import timm, torch\n\n\n"
        "def training():\n"
        "    return timm.create_model('resnet18'), torch.randn(4, 3, 64, 64), torch.randint(0, 1000, (4,))\n"
    )
    words = [sys.executable, "-m", "fairlead.cli.main", "predict", "module", f"{file}:training", "--json"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["kernels"] > 0
