"""Current trainings to measure and to predict: families of models, sizes, batches and modes. Weights are random; nothing is
downloaded. The libraries are imported when a training is made.

A name is model@input:batch/mode, such as "llama-150m@512:8/bf16"; the input is pixels, tokens, samples of sound, nodes or
features. Modes: bf16 and fp16 are autocast with AdamW, fp32 is single precision with SGD, pure has weights in bf16 and AdamW.
Words after "+" change a mode, as in "bf16+checkpointing"."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import torch

from fairlead.core.errors import InputError, near_or_all
from fairlead.prediction.training_step import Training
from fairlead_papers.prediction.later_families import LATER
from fairlead_papers.prediction.training_families import FIRST, SIZED, Build
from fairlead_papers.prediction.unseen_families import UNSEEN

MODES: dict[str, dict[str, Any]] = {
    "bf16": {"precision": "bf16", "optimizer": "adamw"},
    "fp16": {"precision": "fp16", "optimizer": "adamw", "gradient_scaling": True},
    "fp32": {"precision": "fp32", "optimizer": "sgd"},
    "pure": {"precision": "fp32", "optimizer": "adamw"},  # no autocast: the weights are in bf16
}
CHANGES: dict[str, dict[str, Any]] = {
    "checkpointing": {"checkpointing": True},
    "accumulate2": {"accumulation": 2},
    "clip": {"clip_norm": 1.0},
    "adafactor": {"optimizer": "adafactor"},
    "adamw": {"optimizer": "adamw"},
    "sgd": {"optimizer": "sgd"},
}
LIBRARIES = ("timm", "transformers", "diffusers", "peft")
_NAME = re.compile(r"(?P<model>[\w.-]+)@(?P<size>\d+):(?P<batch>\d+)/(?P<mode>\w+)(?P<changes>(\+\w+)*)")


@dataclass(frozen=True)
class TrainingEntry:
    """One training of the list."""

    name: str
    family: str
    build: Build

    @property
    def fields(self) -> dict[str, Any]:
        """What the name says: model, input, batch size and mode."""
        found = _NAME.fullmatch(self.name)
        assert found is not None, self.name
        mode = found["mode"] + found["changes"]
        return {"model": found["model"], "input": int(found["size"]), "batch_size": int(found["batch"]), "mode": mode}

    def make(self) -> Training:
        """The training on PyTorch's default device: use `with torch.device("cuda")` to build it on a GPU."""
        fields = self.fields
        mode, *changes = fields["mode"].split("+")
        parts = self.build(fields["model"], fields["input"], fields["batch_size"])
        settings = {**MODES[mode]}
        for change in changes:
            settings |= CHANGES[change]
        if mode == "pure":
            parts["model"].to(torch.bfloat16)
        return Training(**parts, **settings)


LISTS: dict[str, dict[str, tuple[Build, tuple[str, ...]]]] = {"first": FIRST, "unseen": UNSEEN, "later": LATER}
"""Trainings with which the predictor was developed; those that were new to it then; and those that were new to it after it had
been mended with the second list. The speed of a step is fitted to all."""


def entries(listed: str = "first") -> tuple[TrainingEntry, ...]:
    """The trainings of one of `LISTS`. Families alternate, so that an interrupted measurement is a fair sample."""
    families = [[TrainingEntry(name, family, build) for name in names] for family, (build, names) in LISTS[listed].items()]
    return tuple(one for turn in zip_longest(*families) for one in turn if one is not None)


def entry(name: str) -> TrainingEntry:
    """The training with a name: one of the lists, a model of the lists with another input, batch size or mode, or one of
    another size whose model's first word is a family that has sizes in its names, as in "mlp-64@16:4/fp32"."""
    by_name = {one.name: one for listed in LISTS for one in entries(listed)}
    known = {one.name.partition("@")[0]: one for one in by_name.values()}
    model, family = name.partition("@")[0], name.partition("-")[0]
    if name not in by_name and _well_formed(name) and (model in known or family in SIZED):
        like = known.get(model)
        return TrainingEntry(name, like.family if like else family, like.build if like else FIRST[family][0])
    if name not in by_name:
        raise InputError("trainings", f"one of the lists ({near_or_all(name, by_name)})", field="name", value=name)
    return by_name[name]


def _well_formed(name: str) -> bool:
    found = _NAME.fullmatch(name)
    return found is not None and found["mode"] in MODES and {*found["changes"].split("+")[1:]} <= CHANGES.keys()
