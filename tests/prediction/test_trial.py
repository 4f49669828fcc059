"""A training of one's own, by the command and by a trial."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fairlead.cli.main import app
from fairlead.core.errors import FairleadError, InputError

torch = pytest.importorskip("torch", reason="the extra `torch` is not installed")

from fairlead.prediction import module_trial as trial  # noqa: E402
from fairlead.prediction.predict_step import predict  # noqa: E402
from fairlead.prediction.training_step import Training, training_in  # noqa: E402

QUICK = trial.AloneTiming(1, 0.0, 0.01, 1, 1.0, 1)


class Sorting(torch.nn.Linear):
    """Its way depends on its data."""

    def forward(self, values):
        return super().forward(values) * (1.0 if values.sum() > 0 else 2.0)


def of(model, **fields) -> Training:
    return Training(model, torch.zeros(2, 8), torch.zeros(2, dtype=torch.long), **fields)


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_a_training_is_tried_with_its_precision_and_optimizer(precision: str):
    model = Sorting(8, 4)
    before = model.weight.detach().clone()
    found = trial.try_training(of(model, precision=precision, optimizer="adamw"), "cpu", QUICK)
    assert found.steps_per_s > 0
    assert (found.source, found.device, found.utilization) == ("trial", "cpu", 0.0), "a CPU does not say how busy it is"
    assert torch.equal(model.weight, before), "a copy is trained"
    assert found.notes


def test_what_cannot_be_tried_is_told_in_words():
    class Stubborn(torch.nn.Linear):
        def __deepcopy__(self, memo):
            raise TypeError("cannot be copied")

    with pytest.raises(FairleadError, match="cannot be copied"):
        trial.try_training(of(Stubborn(8, 4)), "cpu", QUICK)
    with pytest.raises(FairleadError, match="cannot be tried on cpu"):
        trial.try_training(of(torch.nn.Linear(9, 4)), "cpu", QUICK)


def test_an_accelerator_is_named_as_it_calls_itself(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"NVIDIA A100 at {device}")
    assert [trial.device_name(one) for one in ("cuda:1", "cpu")] == ["NVIDIA A100 at cuda:1", "cpu"]


MINE = """
import fairlead, torch
def training(batch_size=2):
    inputs, targets = torch.zeros(batch_size, 8, device="cuda"), torch.zeros(batch_size, 4)
    return torch.nn.Linear(8, 4).cuda(), inputs, targets, torch.nn.MSELoss()
def whole():
    return fairlead.Training(torch.nn.Linear(8, 4), torch.zeros(2, 8), torch.zeros(2, 4), torch.nn.MSELoss(), precision="fp32")
def wrong():
    return 1
"""


def test_the_command_takes_a_function_of_a_file(tmp_path: Path):
    path = tmp_path / "mine.py"
    path.write_text(MINE)

    def run(*options: str):
        return CliRunner().invoke(app, ["predict", "module", *options])

    told = json.loads(run(f"{path}:training", "--json", "--batch", "4096").stdout)
    assert told["steps_per_s"] > 0
    assert (told["device"], told["batch_size"], told["fits"]) == ("NVIDIA H200", 4096, True)
    shown = run(f"{path}:whole").stdout
    assert shown.startswith("on NVIDIA H200: ")
    assert "steps per second" in shown
    for strange in (f"{path}:nothing", f"{path}:wrong", "nowhere.py:training", str(path), ""):
        refused = run(strange).exception
        assert isinstance(refused, InputError)
        assert refused.field == "module"
    assert isinstance(run(f"{path}:whole", "--batch", "3").exception, InputError)
    assert isinstance(run(f"{path}:whole", "--precision", "fp8").exception, InputError)
    assert isinstance(run(f"{path}:whole", "--device", "abacus").exception, InputError)
    former = CliRunner().invoke(app, ["profile", "module", f"{path}:training"]).exception
    assert "fairlead predict module" in str(former)


READS_VALUES = """
import torch
class Scaled(torch.nn.Linear):
    def forward(self, values):
        return super().forward(values) * (1.0 + values.abs().max().item())
def training(batch_size=2):
    return Scaled(8, 4), torch.ones(batch_size, 8), torch.zeros(batch_size, dtype=torch.long)
"""


def test_a_model_that_reads_values_is_tried_where_there_is_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "mine.py"
    path.write_text(READS_VALUES)

    def run(*options: str):
        return CliRunner().invoke(app, ["predict", "module", f"{path}:training", *options])

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    refused = run().exception
    assert isinstance(refused, FairleadError)
    assert "depends on values" in str(refused)
    assert "Run 'fairlead predict module --trial' on a machine with a GPU" in str(refused)
    on_cpu = functools.partial(trial.try_training, device="cpu", plan=QUICK)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(trial, "try_training", on_cpu)
    tried = run("--json", "--batch", "4")
    assert json.loads(tried.stdout)["source"] == "trial"
    assert "it trains for a few seconds on this machine's GPU instead" in tried.stderr
    assert isinstance(run("--workers", "2").exception, FairleadError), "a trial has one worker"
    with pytest.raises(FairleadError, match="depends on values"):
        predict(training_in(f"{path}:training"))


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
    refused = CliRunner().invoke(app, ["predict", "module", "mine.py:training"]).exception
    assert isinstance(refused, FairleadError)
    assert "\n" not in str(refused)
    assert told in str(refused)
    assert "predict module" in str(refused) or "training" in str(refused)
