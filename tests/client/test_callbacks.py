"""The callbacks for Lightning and Hugging Face. Both packages are heavy, so their trainers are played here by a few lines that
call the same hooks in the same order; where the real ones are installed, they train too."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from fake_agent import Agent

from fairlead.client.launch_context import CHECKPOINTS
from fairlead.client.lease_page import PAGE, Field, Page, Stage


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Page:
    monkeypatch.setenv(PAGE, str(tmp_path / "lease"))
    monkeypatch.setenv(CHECKPOINTS, str(tmp_path / "checkpoints"))
    return Page.create(tmp_path / "lease")


def with_fake(monkeypatch: pytest.MonkeyPatch, package: str, base: str, callback: str) -> Any:
    """The callback's class, made with a package of which only the callback's base is there."""
    names = package.split(".")
    for end in range(1, len(names) + 1):
        monkeypatch.setitem(sys.modules, ".".join(names[:end]), ModuleType(".".join(names[:end])))
    setattr(sys.modules[package], base, type(base, (), {}))
    monkeypatch.delitem(sys.modules, callback, raising=False)
    return importlib.import_module(callback).LeaseCallback


class Lightning:
    """What a trainer of Lightning does, as far as a callback sees it."""

    def __init__(self, callback: Any, steps: int) -> None:
        self.callback, self.steps, self.global_step, self.should_stop = callback, steps, 0, False

    def save_checkpoint(self, path: Path) -> None:
        path.write_text(str(self.global_step))

    def fit(self, ckpt_path: Path | None) -> None:
        self.global_step = int(ckpt_path.read_text()) if ckpt_path else 0
        self.callback.on_train_start(self, None)
        while self.global_step < self.steps and not self.should_stop:
            self.global_step += 1
            self.callback.on_train_batch_end(self, None, None, None, 0)
        self.callback.on_train_end(self, None)


def test_lightning_saves_stops_and_goes_on(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    made = with_fake(monkeypatch, "lightning.pytorch.callbacks", "Callback", "fairlead.client.lightning")
    done = []
    for bound in (3, 4, 0):
        page[Field.MAX_STEPS] = bound
        callback = made()
        trainer = Lightning(callback, 10)
        trainer.fit(ckpt_path=callback.checkpoint)
        done.append((trainer.global_step, callback.yielded, page[Field.STEPS], page[Field.SAVED], Stage(page[Field.STAGE])))
    assert done == [(3, True, 3, 3, Stage.YIELDED), (7, True, 7, 7, Stage.YIELDED), (10, False, 10, 10, Stage.FINISHED)]


def test_lightning_does_one_step_where_the_lease_is_over_already(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    made = with_fake(monkeypatch, "lightning.pytorch.callbacks", "Callback", "fairlead.client.lightning")
    page[Field.REVOKED] = 1
    callback = made()
    trainer = Lightning(callback, 10)
    trainer.fit(ckpt_path=callback.checkpoint)
    assert (trainer.global_step, callback.yielded, page[Field.STAGE]) == (1, True, Stage.YIELDED)


class HuggingFace:
    """What a trainer of Hugging Face does, as far as a callback sees it. `dies`: in the middle of saving."""

    def __init__(self, callback: Any, steps: int, dies: bool = False) -> None:
        self.callback, self.steps, self.dies = callback, steps, dies
        self.state = SimpleNamespace(global_step=0)
        self.control = SimpleNamespace(should_save=False, should_training_stop=False)
        self.args = SimpleNamespace(output_dir=str(callback.directory))

    def train(self, resume_from_checkpoint: str | None) -> None:
        hook = (self.args, self.state, self.control)
        self.state.global_step = int((Path(resume_from_checkpoint) / "step").read_text()) if resume_from_checkpoint else 0
        self.callback.on_train_begin(*hook)
        while self.state.global_step < self.steps and not self.control.should_training_stop:
            self.state.global_step += 1
            self.callback.on_step_end(*hook)
            if self.control.should_save:
                folder = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
                folder.mkdir(parents=True)
                if self.dies:
                    raise KeyboardInterrupt
                (folder / "step").write_text(str(self.state.global_step))
                self.callback.on_save(*hook)
        self.callback.on_train_end(*hook)


def test_hugging_face_saves_stops_and_goes_on(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    made = with_fake(monkeypatch, "transformers", "TrainerCallback", "fairlead.client.huggingface")
    done = []
    for bound in (3, 4, 0):
        page[Field.MAX_STEPS] = bound
        callback = made()
        trainer = HuggingFace(callback, 10)
        trainer.train(resume_from_checkpoint=callback.checkpoint)
        done.append(
            (trainer.state.global_step, callback.yielded, page[Field.STEPS], page[Field.SAVED], Stage(page[Field.STAGE]))
        )
    assert done == [(3, True, 3, 3, Stage.YIELDED), (7, True, 7, 7, Stage.YIELDED), (10, False, 10, 7, Stage.FINISHED)]


def test_a_checkpoint_that_hugging_face_did_not_finish_is_not_used(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    made = with_fake(monkeypatch, "transformers", "TrainerCallback", "fairlead.client.huggingface")
    for bound in (3, 4):
        page[Field.MAX_STEPS] = bound
        callback = made()
        try:
            HuggingFace(callback, 10, dies=bound == 4).train(resume_from_checkpoint=callback.checkpoint)
        except KeyboardInterrupt:
            assert (callback.directory / "checkpoint-7").is_dir()
    assert made().checkpoint == str(callback.directory / "checkpoint-3")


REAL_LIGHTNING = """
import sys
import lightning, torch
from torch.utils.data import DataLoader
from fairlead.client.lightning import LeaseCallback

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
    def training_step(self, batch, number):
        open(sys.argv[1], "a").write(f"{self.current_epoch}{number} ")
        return self.layer(batch).sum()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

callback = LeaseCallback()
quiet = dict(logger=False, enable_progress_bar=False, enable_checkpointing=False, enable_model_summary=False)
trainer = lightning.Trainer(max_epochs=2, callbacks=[callback], accelerator="cpu", **quiet)
trainer.fit(Model(), DataLoader(torch.rand(8, 1), batch_size=2), ckpt_path=callback.checkpoint)
"""

REAL_HUGGING_FACE = """
import sys
import torch
if torch.version.cuda is None:  # a torchvision built for CUDA, which the Trainer imports, lacks its operators there
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
from transformers import Trainer, TrainingArguments
from fairlead.client.huggingface import LeaseCallback

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
    def forward(self, x, labels=None):
        open(sys.argv[1], "a").write("".join(str(int(value)) for value in x[:, 0]) + " ")
        return {"loss": self.layer(x).mean(), "logits": x}

callback = LeaseCallback()
quiet = dict(report_to=[], disable_tqdm=True, save_strategy="no", logging_strategy="no")
settings = dict(num_train_epochs=2, per_device_train_batch_size=2, use_cpu=True, seed=1)
data = [{"x": torch.tensor([float(number)]), "labels": torch.tensor(0.0)} for number in range(8)]
arguments = TrainingArguments(output_dir=str(callback.directory), **settings, **quiet)
trainer = Trainer(model=Model(), args=arguments, train_dataset=data, callbacks=[callback])
trainer.train(resume_from_checkpoint=callback.checkpoint)
"""


def launches(agent: Agent, tmp_path: Path, code: str) -> list[str]:
    """What it logged in each of two launches, preempted after five of eight steps."""
    script, log = tmp_path / "script.py", tmp_path / "log"
    script.write_text(code)
    logged = []
    for bound, stage, steps in ((5, Stage.YIELDED, 5), (0, Stage.FINISHED, 8)):
        job = agent.launch(script, log, bounds={Field.MAX_STEPS: bound})
        assert job.ends() == 0, job.errors
        assert (job.stage, job.page[Field.STEPS]) == (stage, steps)
        logged.append(log.read_text())
        log.unlink()
    return logged


@pytest.mark.skipif(importlib.util.find_spec("lightning") is None, reason="Lightning is not installed")
def test_the_real_lightning_does_every_step_once(agent: Agent, tmp_path: Path) -> None:
    assert launches(agent, tmp_path, REAL_LIGHTNING) == ["00 01 02 03 10 ", "11 12 13 "]


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed")
@pytest.mark.skipif(
    importlib.util.find_spec("accelerate") is None, reason="accelerate, which its trainer needs, is not installed"
)
def test_the_real_hugging_face_trainer_uses_every_batch_once(agent: Agent, tmp_path: Path) -> None:
    is_leader, second = (part.split() for part in launches(agent, tmp_path, REAL_HUGGING_FACE))
    assert (len(is_leader), len(second)) == (5, 3)
    for epoch in (is_leader[:4], is_leader[4:] + second):
        assert sorted("".join(epoch)) == list("01234567")
