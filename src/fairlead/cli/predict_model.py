"""`fairlead predict model`: what a training does to an accelerator alone, by its graph; and what other commands need to ask the
same of an ONNX file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from fairlead.cli.job_table import legible
from fairlead.cli.output import JsonOption, note, out, print_json
from fairlead.core.errors import InputError, listed, near_or_all
from fairlead.prediction.apart import load as load_graph
from fairlead.prediction.dataset import kept_features
from fairlead.prediction.features import Features, features
from fairlead.prediction.predictor import Prediction, Predictor, load, trained
from fairlead.prediction.profiles import profiles
from fairlead.profiling.results import measured
from fairlead.runtime.agent.accelerators import type_of
from fairlead.workloads.catalogue import accelerator_types

WithOption: TypeAlias = Annotated[
    Path | None, typer.Option("--with", help="A predictor from `predict train`; else the one that ships.")
]
SizeOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--size", metavar="NAME=N", help="What a file leaves open beside the batch, as in sequence=128; repeatable."),
]
SHIPPED = "h200"
LARGEST = 10**9
"""Of batches, and of other sizes that are given."""


def model(
    what: Annotated[str, typer.Argument(help="An ONNX file; nothing of it is run. Or a configuration of the set that ships.")],
    batch: Annotated[int | None, typer.Option("--batch", help="Batch size; else that of the file.", min=1, max=LARGEST)] = None,
    size: SizeOption = None,
    device: Annotated[str, typer.Option("--device", help="Where it will run; refused where nothing was measured.")] = SHIPPED,
    with_: WithOption = None,
    json: JsonOption = False,
) -> None:
    """GPU utilization and memory of a training alone. From the graph of an ONNX file, or from that of a configuration.

    Examples:

      fairlead predict model resnet50.onnx --batch 64

      fairlead predict model bert.onnx --batch 16 --size sequence=128

      fairlead predict model resnet50@224:64
    """
    predictor, shipped = predictor_of(with_), profiles().alone
    seen = shipped.get(what) if not Path(what).exists() else None
    if seen is not None:
        for name, given in (("batch", batch), ("size", size)):
            if given is not None:
                raise InputError("predict model", "an ONNX file; a configuration has its own", field=name, value=given)
        found, taken = predictor.predict(_shipped_features(what), device), ""
    else:
        found, taken = of_file("predict model", what, batch, sizes_of("predict model", size), predictor, device)
    there = memory_mb_of(predictor.device)
    fits = None if there is None else found.memory_mb <= there
    if json:
        told = {**asdict(found), "device": predictor.device, "fingerprint": predictor.about["fingerprint"], "fits": fits}
        if seen is not None:
            told["measured"] = {"utilization": seen.utilization, "memory_mb": seen.memory_mb, "device": profiles().device}
        print_json(told)
        return
    out.print(f"on {predictor.device}: {found.utilization:.0f} % utilization, {found.memory_mb:,.0f} MB", highlight=False)
    if fits is False:
        out.print(f"it does not fit: the device has {there:,.0f} MB", highlight=False)
    held = "" if found.multiprocessors is None else f"{found.multiprocessors:.0f} % of the multiprocessors busy, "
    out.print(f"{held}kernels of {1e6 * found.kernel_s:,.0f} µs on average", highlight=False)
    if taken:
        note(taken)
    if found.unknown:
        note(f"operators nobody knows, so take it with care: {legible(listed(sorted(found.unknown)))}")
    if seen is not None:
        was = f"{seen.utilization:.0f} % utilization, {seen.memory_mb:,.0f} MB"
        learned = "" if with_ is not None else ", and learned from"
        note(f"it was measured on {profiles().device}: {was}{learned}")


def predictor_of(path: Path | None) -> Predictor:
    return load(path) if path else trained()


def of_file(
    asked_by: str,
    what: str,
    batch: int | None,
    sizes: Mapping[str, int],
    predictor: Predictor,
    device: str | None = None,
) -> tuple[Prediction, str]:
    """What is predicted of an ONNX file, and at which batch size, in words."""
    if "@" in what and not Path(what).exists():
        expected = f"an ONNX file, or a configuration of the set that ships; {near_or_all(what, profiles().alone)}"
        raise InputError(asked_by, expected, field="model", value=what)
    graph = load_graph(Path(what), sizes)
    taken = f"batch size {batch or graph.batch_size}"
    if batch is None:
        taken += ", as the file leaves it open; give --batch" if graph.open_batch else ", as in the file"
    return predictor.predict(features(graph, batch), device), taken


def sizes_of(asked_by: str, spelled: Sequence[str] | None) -> dict[str, int]:
    found: dict[str, int] = {}
    for text in spelled or ():
        name, _, number = text.rpartition("=")
        if not name or not number.isdecimal() or not 1 <= int(number[:20]) <= LARGEST:
            expected = f"a name and a number from 1 to {LARGEST:,}, as in sequence=128"
            raise InputError(asked_by, expected, field="size", value=text)
        found[name] = int(number)
    return found


def memory_mb_of(device: str) -> float | None:
    """What a device of that product's name has, where the catalogue knows it."""
    known = {each.name: each.memory_gb * 1024 for each in accelerator_types()}
    return known.get(type_of(device))


def _shipped_features(name: str) -> Features:
    return next(kept_features(row) for row in measured(f"{SHIPPED}_features")[1] if row["name"] == name)
