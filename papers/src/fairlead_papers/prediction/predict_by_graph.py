"""Predict the trainings of `trainings` from their ONNX graphs, as `fairlead predict model` does: the baseline of predictions
from a fake step. Precision and optimizer are no inputs of it.

python -m fairlead_papers.prediction.predict_by_graph --out h200_steps_by_graph.jsonl --only '*bf16*'

A model is exported with a batch of two, on the CPU. A model that cannot be exported or read in time has a `problem`."""

from __future__ import annotations

import argparse
import fnmatch
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from fairlead.core.errors import FairleadError
from fairlead.prediction.features import graph_features
from fairlead.prediction.onnx_process import load_graph_in_process
from fairlead.prediction.predictor import shipped_predictor
from fairlead.prediction.step_prediction import StepPrediction
from fairlead.profiling.onnx_export import export_module
from fairlead_papers.prediction.training_models import allow_torchvision
from fairlead_papers.prediction.trainings import TrainingEntry, entries, entry

_SAMPLES = 2  # batch normalization needs two


def prediction_by_graph(one: TrainingEntry) -> StepPrediction:
    """What the shipped predictor says of a training's graph. It has no interval.

    Raises:
        FairleadError: The model cannot be exported, or its graph not read.
    """
    fields = one.fields
    parts: Mapping[str, Any] = one.build(fields["model"], fields["input"], min(_SAMPLES, fields["batch_size"]))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        export_module(parts["model"], parts["inputs"], path)
        graph = load_graph_in_process(path)
    predictor = shipped_predictor()
    found = predictor.predict(graph_features(graph, fields["batch_size"]))
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


def main(arguments: Sequence[str] | None = None) -> None:
    """Write a line for each training that the file does not have yet."""
    parser = argparse.ArgumentParser(description="Predict trainings from their graphs.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="*", help="names of trainings, or patterns of them, with commas between them")
    given = parser.parse_args(arguments)
    patterns = given.only.split(",")
    allow_torchvision()
    known = {orjson.loads(line)["name"] for line in given.out.read_bytes().splitlines()} if given.out.exists() else set[str]()
    names = [one.name for one in entries() if any(fnmatch.fnmatchcase(one.name, each) for each in patterns)]
    names = list(dict.fromkeys((*names, *(each for each in patterns if "*" not in each))))
    for name in names:
        if name in known:
            continue
        began = time.perf_counter()
        try:
            row = prediction_by_graph(entry(name)).to_data()
        except FairleadError as problem:
            row = {"problem": str(problem)[:300]}
        with given.out.open("ab") as file:
            file.write(orjson.dumps({"name": name, **row}) + b"\n")
        print(f"{name}: {row.get('problem') or row['memory_mb']} in {time.perf_counter() - began:.1f} s", flush=True)


if __name__ == "__main__":
    main()
