"""Export PyTorch modules as ONNX graphs without weights, so that the files are small. They can be analysed but not run."""

from __future__ import annotations

import copy
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fairlead.core.errors import FairleadError, install
from fairlead.profiling.configurations import Configuration
from fairlead.profiling.networks import build_model

_KINDS = {torch.int64: 7, torch.int32: 6, torch.bool: 9}  # as ONNX numbers them
_SAMPLES = 2  # batch of an export: batch normalization needs two


def export_configuration(configuration: Configuration, path: Path) -> None:
    """Export a configuration's model with a batch of two; the reader scales what grows with the batch."""
    small = Configuration(configuration.family, configuration.model, configuration.input, _SAMPLES)
    model, inputs, _ = build_model(small, "cpu")
    _write(model, inputs, path)


def export_module(model: Any, inputs: Any, path: Path) -> None:
    """Export any module in training mode; the module itself does not change."""
    try:
        copied = copy.deepcopy(model)
    except Exception as problem:  # any error of the user's code
        raise FairleadError(f"the model cannot be copied: {type(problem).__name__}: {problem}"[:300]) from None
    _write(copied, inputs, path)


def _write(model: Any, inputs: Any, path: Path) -> None:
    try:
        onnx: Any = import_module("onnx")
    except ImportError:
        raise FairleadError(f"a model's graph needs onnx: {install('predict')}") from None
    model = _with_pools_that_export(model).train()
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                model,
                (inputs,),
                str(path),
                export_params=False,
                training=torch.onnx.TrainingMode.TRAINING,
                do_constant_folding=False,
                opset_version=17,
                dynamo=False,
            )
    except Exception as problem:  # the exporter's errors have no common root
        raise FairleadError(f"the model cannot be exported to ONNX: {type(problem).__name__}: {problem}"[:300]) from None
    made = onnx.load(str(path), load_external_data=False)
    _mark_weights(onnx, made.graph, model)
    path.write_bytes(made.SerializeToString())


def _mark_weights(onnx: Any, graph: Any, model: Any) -> None:
    """Turn the weights, which are inputs of the graph now, into references to an external file that is not written."""
    held = dict((*model.named_parameters(), *model.named_buffers()))
    given = [value for value in graph.input if value.name not in held]
    for value in graph.input:
        if value.name in held:
            tensor = held[value.name]
            kind = _KINDS.get(tensor.dtype, onnx.TensorProto.FLOAT)
            made = onnx.TensorProto(name=value.name, data_type=kind, dims=tensor.shape)
            made.data_location = onnx.TensorProto.EXTERNAL
            made.external_data.add(key="location", value="not written")
            graph.initializer.append(made)
    del graph.input[:]
    graph.input.extend(given)


class _Pool(nn.Module):
    """An adaptive pool; ONNX has none that enlarges its input, where each value is repeated."""

    def __init__(self, size: tuple[int, int]) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Any) -> Any:
        if int(x.shape[-1]) < self.size[-1]:
            return nn.functional.interpolate(x, size=self.size)
        return nn.functional.adaptive_avg_pool2d(x, self.size)


def _with_pools_that_export(model: Any) -> Any:
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.AdaptiveAvgPool2d) and isinstance(module.output_size, tuple):
            parent = model.get_submodule(name.rpartition(".")[0]) if name else None
            if parent is not None and all(isinstance(size, int) for size in module.output_size):
                setattr(parent, name.rpartition(".")[2], _Pool(module.output_size))
    return model
