"""A module of one's own: by its graph, or by a trial where that cannot be had."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fairlead.cli.main import app
from fairlead.core.errors import FairleadError, InputError

torch = pytest.importorskip("torch", reason="the extra `torch` is not installed")

trial = pytest.importorskip("fairlead.prediction.module_trial")
QUICK = trial.AloneTiming(1, 0.0, 0.01, 1, 1.0, 1)


class Sorting(torch.nn.Module):
    """Its way depends on its data, in a manner that no exporter follows."""

    def __init__(self) -> None:
        super().__init__()
        self.line = torch.nn.Linear(8, 4)

    def forward(self, x):
        return self.line(torch.from_numpy(x.detach().numpy().copy())) * self._scale(x)

    @torch.jit.ignore
    def _scale(self, x):
        if torch.onnx.is_in_onnx_export():
            raise ValueError("not for export")
        return 1.0


def test_a_module_that_exports_is_predicted_and_not_run():
    found = trial.of_module(torch.nn.Linear(8, 4), torch.zeros(2, 8), torch.zeros(2, dtype=torch.long), "cpu")
    assert found.utilization is not None
    assert 0 < found.utilization < 100
    assert found.memory_mb > 100
    assert (found.steps_per_s, found.why) == (None, "")
    assert found.device == "NVIDIA H200", "what was learned from, wherever this runs"


def test_a_module_that_does_not_export_is_tried():
    model, inputs, targets = Sorting(), torch.zeros(2, 8), torch.zeros(2, dtype=torch.long)
    before = model.line.weight.detach().clone()
    found = trial.of_module(model, inputs, targets, "cpu", plan=QUICK)
    assert found.steps_per_s > 0
    assert "not for export" in found.why
    assert (found.device, found.utilization) == ("cpu", None), "a CPU does not say how busy it is"
    assert torch.equal(model.line.weight, before), "a copy is trained"
    with pytest.raises(FairleadError, match="cannot be tried"):
        trial.of_module(model, inputs, torch.zeros(3, dtype=torch.long), "cpu", plan=QUICK)


def test_an_accelerator_is_named_as_it_calls_itself(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"NVIDIA A100 at {device}")
    assert [trial.device_name(one) for one in ("cuda:1", "cpu")] == ["NVIDIA A100 at cuda:1", "cpu"]


def test_the_command_takes_a_function_of_a_file(tmp_path: Path):
    path = tmp_path / "mine.py"
    path.write_text(
        "import torch\n"
        "def training():\n"
        "    return torch.nn.Linear(8, 4), torch.zeros(2, 8), torch.zeros(2, 4), torch.nn.MSELoss()\n"
        "def wrong():\n"
        "    return 1\n"
    )
    told = json.loads(CliRunner().invoke(app, ["profile", "module", f"{path}:training", "--json"]).stdout)
    assert told["utilization"] > 0
    assert told["device"] == "NVIDIA H200"
    assert (
        CliRunner().invoke(app, ["profile", "module", f"{path}:training"]).stdout.startswith("by its graph, on NVIDIA H200: ")
    )
    for strange in (f"{path}:nothing", f"{path}:wrong", "nowhere.py:training", str(path), ""):
        refused = CliRunner().invoke(app, ["profile", "module", strange])
        assert isinstance(refused.exception, InputError)
        assert refused.exception.field == "module"


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("def training():\n    raise RuntimeError('two\\nlines')", "RuntimeError: two lines, in line 2"),
        ("def training():\n    return training()", "RecursionError: maximum recursion depth exceeded, in line 2"),
        ("def training():\n    raise SystemExit(0)", "SystemExit: 0, in line 2"),
        ("import nosuchthing", "ModuleNotFoundError: No module named 'nosuchthing', in line 1"),
        ("raise SystemExit(3)", "SystemExit: 3, in line 1"),
        ("def (:", "SyntaxError: "),
        ("\xff\xfe", "SyntaxError: "),
        ("def training():\n    return 1, 2, 3", "a PyTorch model (torch.nn.Module)"),
    ],
)
def test_a_file_that_fails_is_told_in_one_line_with_its_place(tmp_path: Path, monkeypatch, written: str, told: str):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_bytes(written.encode("latin-1"))
    refused = CliRunner().invoke(app, ["profile", "module", "mine.py:training"]).exception
    assert isinstance(refused, FairleadError)
    assert "\n" not in str(refused)
    assert told in str(refused)
    assert "profile module" in str(refused)


class Stubborn(torch.nn.Linear):
    def __deepcopy__(self, memo):
        raise TypeError("cannot be copied")


def test_without_onnx_it_is_tried_and_what_cannot_be_copied_is_told_in_words(monkeypatch):
    given = torch.zeros(2, 8), torch.zeros(2, dtype=torch.long), "cpu"
    with pytest.raises(FairleadError, match="cannot be copied"):
        trial.of_module(Stubborn(8, 4), *given, plan=QUICK)
    monkeypatch.setitem(sys.modules, "onnx", None)
    found = trial.of_module(torch.nn.Linear(8, 4), *given, plan=QUICK)
    assert "[predict]" in found.why
    assert found.steps_per_s > 0
