"""PyTorch modules as ONNX files, for what is read off graphs."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch

from fairlead.core.errors import FairleadError
from fairlead.profiling.configurations import Configuration
from fairlead.profiling.networks import make

SAMPLES = 2  # batch of an export: of 1, some layers make something special


def export(configuration: Configuration, path: Path) -> None:
    """A configuration's model, with a batch of two; what grows with the batch is scaled by who reads it."""
    small = Configuration(configuration.family, configuration.model, configuration.input, SAMPLES)
    model, inputs, _ = make(small, "cpu")
    export_module(model, inputs, path)


def export_module(model: Any, inputs: Any, path: Path) -> None:
    """Any module, as it trains: normalization and dropout are what they are in training."""
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                model.train(),
                (inputs,),
                str(path),
                training=torch.onnx.TrainingMode.TRAINING,
                do_constant_folding=False,
                opset_version=17,
                dynamo=False,
            )
    except Exception as problem:  # the exporter's errors have no common root
        raise FairleadError(f"the model cannot be exported to ONNX: {type(problem).__name__}: {problem}"[:300]) from None
