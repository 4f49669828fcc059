"""One step of a training as its owner describes it: model, batch, loss, optimizer, precision. The same step runs on fake
tensors to predict it, and on a GPU to measure it."""

from __future__ import annotations

import importlib.util
import inspect
import traceback
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fairlead.core.errors import FairleadError, InputError, NotInstalled, install, require

try:
    import torch
except ImportError:  # `fairlead.Training` can be named without it
    torch = None

PRECISIONS = {"bf16": "bfloat16", "fp16": "float16", "fp32": None}
OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-4),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-4),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=1e-3, momentum=0.9),
    "adafactor": lambda parameters: torch.optim.Adafactor(parameters, lr=1e-3),
}


@dataclass(frozen=True)
class Training:
    """A training to predict.

    `inputs` is one tensor, a tuple of positional arguments, or a mapping of named ones. `loss` takes the model's output and
    the targets; without it, the loss is the output's own `loss`, as in Hugging Face models, or else the cross entropy.
    """

    model: Any
    inputs: Any
    targets: Any = None
    loss: Callable[[Any, Any], Any] | None = None
    optimizer: str | Callable[[Any], Any] = "adamw"  # a name in OPTIMIZERS, or a function of the trainable parameters
    precision: str = "bf16"  # of autocast: bf16 or fp16; fp32: no autocast, the model's own types
    gradient_scaling: bool = False  # as with fp16
    accumulation: int = 1  # micro-batches of one optimizer step; `inputs` is one of them
    checkpointing: bool = False  # call the model's gradient_checkpointing_enable or set_grad_checkpointing
    clip_norm: float | None = None  # gradients are clipped to this norm

    def __post_init__(self) -> None:
        if torch is None:
            raise NotInstalled(f"predictions run PyTorch: {install('torch')}")
        where = "training"
        require(isinstance(self.model, torch.nn.Module), where, "a PyTorch model (torch.nn.Module)", "model", self.model)
        require(self.precision in PRECISIONS, where, f"one of {', '.join(PRECISIONS)}", "precision", self.precision)
        known = callable(self.optimizer) or self.optimizer in OPTIMIZERS
        require(known, where, f"one of {', '.join(OPTIMIZERS)}, or a function", "optimizer", self.optimizer)
        require(self.accumulation >= 1, where, "at least 1 micro-batch", "accumulation", self.accumulation)
        require(self.clip_norm is None or self.clip_norm > 0, where, "a norm above 0", "clip_norm", self.clip_norm)


class TrainingStep:
    """Runs a training step by step, on the device where its model is."""

    def __init__(self, training: Training, device: str) -> None:
        self.training, self.model, self.device = training, training.model, torch.device(device)
        self.model.train()
        if training.checkpointing:
            enable_checkpointing(self.model)
        parameters = [one for one in self.model.parameters() if one.requires_grad]
        chosen = training.optimizer
        self.optimizer = (OPTIMIZERS[chosen] if isinstance(chosen, str) else chosen)(parameters)
        self.scaler = torch.amp.GradScaler(self.device.type) if training.gradient_scaling else None

    def step(self) -> None:
        """One optimizer step: forward and backward of each micro-batch, and the update."""
        self.optimizer.zero_grad(set_to_none=True)
        for _ in range(self.training.accumulation):
            with self.precision():
                loss = self.loss(self.forward())
            if self.training.accumulation > 1:
                loss = loss / self.training.accumulation
            (loss if self.scaler is None else self.scaler.scale(loss)).backward()
            del loss
        self.update()

    def forward(self) -> Any:
        """The model's output."""
        inputs = self.training.inputs
        if isinstance(inputs, Mapping):
            return self.model(**inputs)
        return self.model(*inputs) if isinstance(inputs, tuple) else self.model(inputs)

    def loss(self, output: Any) -> Any:
        """The loss of an output."""
        if self.training.loss is not None:
            return self.training.loss(output, self.training.targets)
        if getattr(output, "loss", None) is not None:
            return output.loss
        output = getattr(output, "logits", output)
        return torch.nn.functional.cross_entropy(output, self.training.targets)

    def precision(self) -> Any:
        """Autocast, where the training uses it."""
        kind = PRECISIONS[self.training.precision]
        return nullcontext() if kind is None else torch.autocast(self.device.type, getattr(torch, kind))

    def update(self) -> None:
        """Clip the gradients and update the parameters."""
        if self.scaler is not None and self.training.clip_norm is not None:
            self.scaler.unscale_(self.optimizer)
        if self.training.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.training.clip_norm)
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()


def enable_checkpointing(model: Any) -> None:
    """Recompute activations in the backward pass, if the model offers it."""
    for name in ("gradient_checkpointing_enable", "enable_gradient_checkpointing", "set_grad_checkpointing"):
        if callable(enable := getattr(model, name, None)):
            enable()
            return
    raise InputError(
        "training",
        "a model with gradient_checkpointing_enable or set_grad_checkpointing; with another model, call"
        " torch.utils.checkpoint in its forward and leave this off",
        field="checkpointing",
        value=type(model).__name__,
    )


def allow_torchvision() -> None:
    """Declare the operators that a torchvision built for CUDA lacks next to a PyTorch without it: timm, Transformers and
    Diffusers import torchvision."""
    found = importlib.util.find_spec("torchvision")
    if _declared or torch.version.cuda is not None or found is None or found.origin is None:
        return
    version = Path(found.origin).with_name("version.py")
    if version.is_file() and "+cu" in version.read_text(encoding="utf-8") and not hasattr(torch.ops.torchvision, "nms"):
        library = torch.library.Library("torchvision", "DEF")
        library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _declared.append(library)


_declared: list[Any] = []  # a library's operators go with it


def training_in(spelled: str, batch_size: int | None = None, **changes: Any) -> Training:
    """Call a function of a file, as "mine.py:training". It returns a `Training`, or a model, inputs, targets and, optionally, a
    loss. `batch_size` is passed to it, if given; `changes` are fields of the training to replace."""
    name, _, function = spelled.rpartition(":")
    wanted = "a Python file and a function in it, as in mine.py:training"
    spec = importlib.util.spec_from_file_location("training", name) if Path(name).is_file() else None
    if spec is None or spec.loader is None:
        raise InputError("predict module", wanted, field="module", value=spelled)
    module = importlib.util.module_from_spec(spec)
    allow_torchvision()
    _run(spec.loader.exec_module, module, spelled=spelled)
    make: Callable[..., Any] | None = getattr(module, function, None)
    if not callable(make):
        raise InputError("predict module", wanted, field="module", value=spelled)
    named: dict[str, Any] = {}
    if batch_size is not None:
        if "batch_size" not in inspect.signature(make).parameters:
            expected = f"a function with a parameter batch_size, as in def {function}(batch_size=32)"
            raise InputError("predict module", expected, field="batch", value=batch_size)
        named["batch_size"] = batch_size
    made = _run(make, spelled=spelled, **named)
    return as_training(made, **changes)


def as_training(made: Any, **changes: Any) -> Training:
    """A training from what a user's function returns."""
    if isinstance(made, tuple) and len(made) in (3, 4):
        made = Training(*made)
    if not isinstance(made, Training):
        expected = "a function that returns fairlead.Training, or a model, inputs, targets and, optionally, a loss"
        raise InputError("predict module", expected, field="module", value=type(made).__name__)
    return replace(made, **changes) if changes else made


def _run(theirs: Callable[..., Any], *given: Any, spelled: str, **named: Any) -> Any:
    """The user's code may fail in any way; the error names the line of their file."""
    try:
        return theirs(*given, **named)
    except (Exception, SystemExit) as problem:
        path = str(Path(spelled.rpartition(":")[0]).absolute())
        lines = [at.lineno for at in traceback.extract_tb(problem.__traceback__) if at.filename == path]
        where = f", in line {lines[-1]}" if lines else ""
        text = " ".join(f"{type(problem).__name__}: {problem}".split())[:300]
        raise FairleadError(f"predict module: {spelled} failed with {text}{where}") from None
