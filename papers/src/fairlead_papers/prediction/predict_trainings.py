"""Predict trainings, one line each: from one fake step, as `fairlead predict module` does, or from their ONNX graphs, as
`fairlead predict model` does. Names with a mode are of `trainings`, others of the shipped measurements (single precision, SGD).

python -m fairlead_papers.prediction.predict_trainings --by graph --out h200_steps_by_graph.jsonl --only '*bf16*'

For a graph, a model is exported with a batch of two, on the CPU; precision and optimizer are no inputs. A training that cannot
be predicted has a `problem`. With --by left-out, the model of a fake step's speed is fitted without the training's family;
otherwise, a family that the predictor has seen is not left out."""

from __future__ import annotations

import argparse
import fnmatch
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import orjson
from torch import nn

from fairlead.prediction.cuda_paths import built_untouched
from fairlead.prediction.fake_step import trace_step
from fairlead.prediction.features import graph_features
from fairlead.prediction.measured_profiles import shipped_profiles
from fairlead.prediction.onnx_process import load_graph_in_process
from fairlead.prediction.predict_step import predict, step_prediction_of
from fairlead.prediction.predictor import shipped_predictor
from fairlead.prediction.step_features import device_rates
from fairlead.prediction.step_prediction import StepPrediction
from fairlead.prediction.step_predictor import SpeedModel
from fairlead.prediction.training_step import Training, allow_torchvision
from fairlead.profiling.configurations import configuration
from fairlead.profiling.networks import build_model
from fairlead.profiling.onnx_export import export_module
from fairlead_papers.prediction.fit_steps import fit, host_launches_us, measured_steps
from fairlead_papers.prediction.trainings import LISTS, entries, entry

_SAMPLES = 2  # batch normalization needs two
_RELATED = {"fully-connected": "mlp", "resnext": "resnet", "transformer": "bert"}  # families that the list calls otherwise


def training_named(name: str, samples: int = 0) -> Training:
    """A training of the list or of the shipped measurements, with a batch of its own size or of so many `samples`."""
    if "/" in name:
        one = entry(name)
        if not samples:
            return one.make()
        fields = one.fields
        return Training(**one.build(fields["model"], fields["input"], min(samples, fields["batch_size"])))
    known = configuration(name)
    batch = min(samples, known.batch_size) if samples else known.batch_size
    model, inputs, targets = build_model(replace(known, batch_size=batch), "cpu")
    return Training(model, inputs, targets, optimizer="sgd", precision="fp32")


def batch_size_named(name: str) -> int:
    """The batch size in a name."""
    return int(entry(name).fields["batch_size"]) if "/" in name else configuration(name).batch_size


def prediction_by_step(name: str) -> StepPrediction:
    """What the shipped predictor says of a fake step."""
    with built_untouched():
        made = training_named(name)
    return predict(made)


def prediction_by_others(name: str) -> StepPrediction:
    """What a model of speed says of a fake step that was fitted without the training's family."""
    with built_untouched():
        made = training_named(name)
    launch_us = next((launch for listed, launch in host_launches_us().items() if name in _names(listed)), None)
    return step_prediction_of(trace_step(made), device_rates("h200"), launch_us, _model_without(family_named(name)))


@cache
def _names(listed: str) -> frozenset[str]:
    return frozenset(one.name for one in entries(listed))


def family_named(name: str) -> str:
    """The family of a training, as the list calls it: one family of all mobile nets, for example."""
    if "/" in name:
        return str(entry(name).family)
    family = shipped_profiles().alone[name].family
    return _RELATED.get(family, family.split("-")[0])


@cache
def _model_without(family: str) -> SpeedModel:
    data = measured_steps()
    return fit(data.only(data.families != family))  # its intervals are not those of families left out


class _OneInput(nn.Module):  # type: ignore[misc]
    """A model as the exporter calls it, with all inputs in one list; it returns what the loss is computed from."""

    def __init__(self, training: Training) -> None:
        super().__init__()
        self.model = training.model
        self.names = [name for name in training.inputs if name != "labels"] if isinstance(training.inputs, Mapping) else None

    def forward(self, values: Any) -> Any:
        if self.names is not None:
            found = self.model(**dict(zip(self.names, values)))
        else:
            found = self.model(*values) if isinstance(values, tuple | list) else self.model(values)
        if hasattr(found, "logits"):
            return found.logits
        return next(iter(found.values())) if isinstance(found, Mapping) else found


def _values(inputs: Any) -> Any:
    if isinstance(inputs, Mapping):
        return tuple(value for name, value in inputs.items() if name != "labels")
    return inputs


def prediction_by_graph(name: str) -> StepPrediction:
    """What the shipped predictor says of a training's graph. It has no interval.

    Raises:
        FairleadError: The model cannot be exported, or its graph not read.
    """
    made = training_named(name, _SAMPLES)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        export_module(_OneInput(made), _values(made.inputs), path)
        graph = load_graph_in_process(path)
    predictor = shipped_predictor()
    found = predictor.predict(graph_features(graph, batch_size_named(name)))
    busy = min(found.utilization, 100.0)
    return StepPrediction(
        predictor.device,
        allocated_mb=found.memory_mb,
        reserved_mb=found.memory_mb,
        memory_mb=found.memory_mb,
        utilization=busy,
        utilization_low=busy,
        utilization_high=busy,
        multiprocessors=found.multiprocessors,
        kernel_s=found.kernel_s,
        source="graph",
    )


WAYS = {"graph": prediction_by_graph, "left-out": prediction_by_others, "step": prediction_by_step}


def main(arguments: Sequence[str] | None = None) -> None:
    """Write a line for each training that the file does not have yet."""
    parser = argparse.ArgumentParser(description="Predict trainings.")
    parser.add_argument("--by", choices=sorted(WAYS), default="step")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="*", help="names of trainings, or patterns of them, with commas between them")
    parser.add_argument("--list", choices=LISTS, default="first", help="which trainings")
    given = parser.parse_args(arguments)
    patterns = given.only.split(",")
    allow_torchvision()
    known = {orjson.loads(line)["name"] for line in given.out.read_bytes().splitlines()} if given.out.exists() else set[str]()
    others = shipped_profiles().paired() if given.list == "first" else ()
    listed = (*(one.name for one in entries(given.list)), *others)
    names = [name for name in listed if any(fnmatch.fnmatchcase(name, each) for each in patterns)]
    names = list(dict.fromkeys((*names, *(each for each in patterns if "*" not in each))))
    for name in names:
        if name in known:
            continue
        began = time.process_time()
        try:
            row = WAYS[given.by](name).to_data()
        except Exception as problem:  # a library's own, or one of ours
            row = {"problem": f"{type(problem).__name__}: {problem}"[:300]}
        with given.out.open("ab") as file:
            file.write(orjson.dumps({"name": name, **row}) + b"\n")
        print(
            f"{name}: {row.get('problem') or row['memory_mb']} in {time.process_time() - began:.1f} s of CPU time", flush=True
        )


if __name__ == "__main__":
    main()
