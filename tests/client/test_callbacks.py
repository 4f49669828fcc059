"""The callbacks for Lightning, Hugging Face and Keras. The packages are heavy, so their trainers are played here by a few lines
that call the same hooks in the same order; where the real ones are installed, they train too."""

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


class Keras:
    """What a model of Keras does in `fit`, as far as a callback sees it. Its weights are the batches of each epoch so far."""

    def __init__(self, size: int, at_once: int = 1) -> None:
        self.size, self.at_once, self.stop_training = size, at_once, False
        self.optimizer = SimpleNamespace(built=True)
        self.weights: list[int] = []

    def save_weights(self, path: Path) -> None:
        path.write_text(" ".join(map(str, self.weights)))

    def load_weights(self, path: Path) -> None:
        self.weights = [int(word) for word in path.read_text().split()]

    def fit(self, callback: Any, epochs: int, initial_epoch: int, known: bool = True) -> None:
        callback.model, callback.params = self, {"steps": self.size if known else None}
        self.stop_training = False
        callback.on_train_begin()
        for epoch in range(initial_epoch, epochs):
            callback.on_epoch_begin(epoch)
            self.weights += [0] * (epoch + 1 - len(self.weights))
            for end in range(self.at_once - 1, self.size, self.at_once):
                self.weights[epoch] += self.at_once
                callback.on_train_batch_end(end)
                if self.stop_training:
                    break
            callback.on_epoch_end(epoch)
            if self.stop_training:
                break
        callback.on_train_end()


@pytest.mark.parametrize("at_once", [1, 2])
def test_keras_does_the_rest_of_an_interrupted_epoch(page: Page, monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    made = with_fake(monkeypatch, "keras.callbacks", "Callback", "fairlead.client.keras")
    done = []
    for bound in (6, 2, 2, 0):
        page[Field.MAX_STEPS] = bound
        callback = made()
        model = Keras(4, at_once)
        model.fit(callback, 3, callback.initial_epoch)
        done.append((model.weights, callback.yielded, page[Field.STEPS], page[Field.SAVED], Stage(page[Field.STAGE])))
    assert done == [
        ([4, 2], True, 6, 6, Stage.YIELDED),
        ([4, 4], True, 8, 8, Stage.YIELDED),
        ([4, 4, 2], True, 10, 10, Stage.YIELDED),
        ([4, 4, 4], False, 12, 12, Stage.FINISHED),
    ]


def test_keras_that_has_finished_does_no_step_more(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    made = with_fake(monkeypatch, "keras.callbacks", "Callback", "fairlead.client.keras")
    for _ in range(2):
        callback, model = made(), Keras(4)
        model.fit(callback, 2, callback.initial_epoch)
        assert (model.weights, page[Field.STEPS], Stage(page[Field.STAGE])) == ([4, 4], 8, Stage.FINISHED)


def test_a_second_fit_with_a_lease_that_has_ended_is_refused_and_keeps_the_weights(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = with_fake(monkeypatch, "keras.callbacks", "Callback", "fairlead.client.keras")
    page[Field.MAX_STEPS] = 2
    Keras(4).fit(made(), 2, 0)
    page[Field.MAX_STEPS] = 0
    callback, model = made(), Keras(4)
    model.fit(callback, 2, callback.initial_epoch)
    with pytest.raises(RuntimeError, match=r"call fit\(\) once, with all epochs"):
        model.fit(callback, 4, 2)
    assert model.weights == [4, 4]


def test_another_callback_can_end_keras_in_an_epoch_that_was_interrupted(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    made = with_fake(monkeypatch, "keras.callbacks", "Callback", "fairlead.client.keras")
    page[Field.MAX_STEPS] = 2
    Keras(4).fit(made(), 9, 0)
    page[Field.MAX_STEPS] = 0
    callback, model = made(), Keras(4)
    end_epoch = callback.on_epoch_end

    def then_stop_early(epoch: int) -> None:  # as one that stands behind it
        end_epoch(epoch)
        model.stop_training = model.stop_training or epoch == 1

    callback.on_epoch_end = then_stop_early
    model.fit(callback, 9, callback.initial_epoch)
    assert (model.weights, Stage(page[Field.STAGE])) == ([4, 4], Stage.FINISHED)


REAL_KERAS = """
import os, sys
os.environ["KERAS_BACKEND"] = "torch"
import keras, numpy
from fairlead.client.keras import LeaseCallback

class Log(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        momentum = float(abs(keras.ops.convert_to_numpy(model.optimizer.variables[-1])).sum())
        open(sys.argv[1], "a").write(f"{int(model.optimizer.iterations)}:{momentum:.4f} ")

keras.utils.set_random_seed(1)
model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
model.compile(optimizer=keras.optimizers.SGD(0.01, momentum=0.9), loss="mse", steps_per_execution=1)
x = numpy.ones((8, 1), dtype="float32")  # all batches are equal: it does not matter which come first
callback = LeaseCallback()
model.fit(x, 2 * x, batch_size=2, epochs=2, initial_epoch=callback.initial_epoch, callbacks=[callback, Log()], verbose=0)
"""

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


@pytest.mark.long
@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed")
@pytest.mark.skipif(
    importlib.util.find_spec("accelerate") is None, reason="accelerate, which its trainer needs, is not installed"
)
def test_the_real_hugging_face_trainer_uses_every_batch_once(agent: Agent, tmp_path: Path) -> None:
    is_leader, second = (part.split() for part in launches(agent, tmp_path, REAL_HUGGING_FACE))
    assert (len(is_leader), len(second)) == (5, 3)
    for epoch in (is_leader[:4], is_leader[4:] + second):
        assert sorted("".join(epoch)) == list("01234567")


@pytest.mark.skipif(importlib.util.find_spec("keras") is None, reason="Keras is not installed")
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch, on which it trains here, is not installed")
def test_the_real_keras_resumes_with_its_weights_and_its_optimizer(agent: Agent, tmp_path: Path) -> None:
    first, second = (part.split() for part in launches(agent, tmp_path, REAL_KERAS))
    assert (len(first), len(second)) == (5, 3)
    elsewhere = {"FAIRLEAD_CHECKPOINT_DIR": str(tmp_path / "others")}
    in_one = agent.launch(tmp_path / "script.py", tmp_path / "log", environment=elsewhere)
    assert in_one.ends() == 0, in_one.errors
    assert (tmp_path / "log").read_text().split() == first + second
