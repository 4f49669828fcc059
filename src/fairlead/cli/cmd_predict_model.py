"""`fairlead predict model`: what a training does to an accelerator alone, by its graph; and what other commands need to ask the
same of an ONNX file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import typer

from fairlead.cli.job_tables import legible
from fairlead.cli.output import JsonOption, note, out, print_json
from fairlead.core.errors import InputError, listed, near_names, near_or_all, require
from fairlead.core.type_names import accelerator_type_of
from fairlead.models.interference import SHORTEST_S
from fairlead.prediction.features import graph_features
from fairlead.prediction.fit_predictor import stored_features
from fairlead.prediction.measured_profiles import (
    UNKNOWN,
    InterferenceModel,
    MultiprocessorUse,
    multiprocessor_use,
    shipped_profiles,
)
from fairlead.prediction.onnx_process import load_graph_in_process
from fairlead.prediction.predictor import Prediction, Predictor, load_predictor, shipped_predictor
from fairlead.profiling.results import measured_set
from fairlead.workloads.catalogue import accelerator_types

WITH = typer.Option(None, "--with", help="A predictor file from `predict train`. [default: the one that ships with Fairlead]")
SIZE = typer.Option(
    None, metavar="NAME=N", help="A dynamic dimension of the file other than the batch, as in sequence=128; repeatable."
)
SHIPPED = "h200"
LARGEST = 10**9
"""Of batches, and of other sizes that are given."""


def model(
    what: str = typer.Argument(..., help="An ONNX file, which is read and not run; or a configuration of the measured set."),
    batch: int | None = typer.Option(None, help="Batch size. [default: that of the file]", min=1, max=LARGEST),
    size: list[str] | None = SIZE,
    device: str = typer.Option(SHIPPED, help="The GPU that it will run on; it must be one that was measured."),
    with_: Path | None = WITH,
    json: JsonOption = False,
) -> None:
    """Predict GPU utilization and memory of a training job, from the graph of an ONNX file or of a configuration.

    Examples:

      fairlead predict model resnet50.onnx --batch 64

      fairlead predict model bert.onnx --batch 16 --size sequence=128

      fairlead predict model resnet50@224:64
    """
    predictor, shipped = predictor_of(with_), shipped_profiles().alone
    seen = shipped.get(what) if not Path(what).exists() else None
    if seen is not None:
        for name, given in (("batch", batch), ("size", size)):
            if given is not None:
                raise InputError("predict model", "an ONNX file; a configuration has fixed sizes", field=name, value=given)
        rows = measured_set(f"{SHIPPED}_features")[1]
        known = next(stored_features(row) for row in rows if row["name"] == what)
        found, taken = predictor.predict(known, device), ""
    else:
        found, taken = of_file("predict model", what, batch, sizes_of("predict model", size), predictor, device)
    there = memory_mb_of(predictor.device)
    fits = None if there is None else found.memory_mb <= there
    if json:
        told = {**asdict(found), "device": predictor.device, "fingerprint": predictor.about["fingerprint"], "fits": fits}
        if seen is not None:
            measured = {"utilization": seen.utilization, "memory_mb": seen.memory_mb}
            told["measured"] = {**measured, "device": shipped_profiles().device}
        print_json(told)
        return
    out.print(f"on {predictor.device}: {found.utilization:.0f} % utilization, {found.memory_mb:,.0f} MB")
    if fits is False:
        out.print(f"it does not fit: the device has {there:,.0f} MB")
    held = "" if found.multiprocessors is None else f"{found.multiprocessors:.0f} % of the multiprocessors busy, "
    out.print(f"{held}kernels of {1e6 * found.kernel_s:,.0f} µs on average")
    if taken:
        note(taken)
    if found.unknown:
        note(f"the prediction is uncertain, because these operators are unknown: {legible(listed(sorted(found.unknown)))}")
    if seen is not None:
        was = f"{seen.utilization:.0f} % utilization, {seen.memory_mb:,.0f} MB"
        learned = "" if with_ is not None else ", and is part of the training data"
        note(f"it was measured on {shipped_profiles().device}: {was}{learned}")


def predictor_of(path: Path | None) -> Predictor:
    """Return the predictor of a file, or the one that ships."""
    return load_predictor(path) if path else shipped_predictor()


def of_file(
    asked_by: str, what: str, batch: int | None, sizes: Mapping[str, int], predictor: Predictor, device: str | None = None
) -> tuple[Prediction, str]:
    """What is predicted of an ONNX file, and at which batch size, in words."""
    if "@" in what and not Path(what).exists():
        expected = f"an ONNX file, or a configuration of the set that ships; {near_or_all(what, shipped_profiles().alone)}"
        raise InputError(asked_by, expected, field="model", value=what)
    graph = load_graph_in_process(Path(what), sizes)
    taken = f"batch size {batch or graph.batch_size}"
    if batch is None:
        taken += ", because the file does not fix it; pass --batch" if graph.open_batch else ", as in the file"
    return predictor.predict(graph_features(graph, batch), device), taken


def sizes_of(asked_by: str, spelled: Sequence[str] | None) -> dict[str, int]:
    """Return the sizes of `--size`, by name."""
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
    return known.get(accelerator_type_of(device))


# `fairlead predict pair`: what two trainings that share an accelerator do to each other, by the best that is known of both:
# what was measured of a configuration, what the graph of an ONNX file says, or numbers as they are given.

MOST = {"utilization": 100.0, "multiprocessors": 100.0, "kernel-us": 1e9}
WHO = "predict pair"
PLAIN = "utilization alone"
FINER = [
    f"multiprocessors and kernels{guessed}"
    for guessed in ("", ", predicted from the graph of one job", ", predicted from both graphs")
]
"""By how many of the two jobs have guessed multiprocessors."""
GIVEN, MEASURED, PREDICTED = "given", "measured", "predicted"


def pair(
    jobs: list[str] = typer.Argument(
        ..., help="Two jobs. Each is an ONNX file, a measured configuration, or a GPU utilization in percent."
    ),
    sharing: str = typer.Option("time-slicing", help="How the jobs share the GPU: time-slicing or mps."),
    batch: list[int] | None = typer.Option(
        None, help="Batch size of ONNX files, once for all or once for each. [default: that of the file]", min=1, max=LARGEST
    ),
    size: list[str] | None = SIZE,
    held: list[float] | None = typer.Option(
        None,
        "--multiprocessors",
        help="Busy multiprocessors of each job alone, in percent, for mps; repeat for the second job.",
    ),
    kernel_us: list[float] | None = typer.Option(
        None, help="Mean duration of a kernel in microseconds; repeat for the second job."
    ),
    with_: Path | None = WITH,
    json: JsonOption = False,
) -> None:
    """Predict the slowdown of two jobs that share a GPU.

    Examples:

      fairlead predict pair 26 36
      fairlead predict pair mine.onnx resnet50@224:64 --batch 64
      fairlead predict pair 26 36 --sharing mps --multiprocessors 20 --multiprocessors 80

    With mps, the slowdown also depends on the busy multiprocessors of each job. They are known for measured configurations
    and predicted for ONNX files.
    """
    if len(jobs) != 2:
        raise InputError(WHO, "two jobs; larger groups were not measured", field="utilization", value=len(jobs))
    for name, numbers in (("multiprocessors", held), ("kernel-us", kernel_us)):
        for each in numbers or ():
            _check(name, each)
    predictor = predictor_of(with_)
    if sharing not in predictor.slowdown:
        known = near_or_all(sharing, predictor.slowdown)
        expected = f"a sharing mode that was measured; {known}"
        raise InputError(f"predictor for {predictor.device}", expected, field="sharing", value=sharing)
    parsed = [_parse(each) for each in jobs]
    _check_counts(predictor, sharing, held, kernel_us, sum(isinstance(one, float) for one in parsed))
    batches = _batches([isinstance(one, str) and _is_file(one) for one in parsed], batch, size)
    sizes = sizes_of(WHO, size)
    asked = [_asked(one, many, sizes, predictor) for one, many in zip(parsed, batches)]
    asked = _with_holds(asked, held, kernel_us)
    fitted = InterferenceModel.fitted(predictor, sharing)
    have = [one.hold if fitted.finer is not None else UNKNOWN for one in asked]
    slower, off, finer = fitted.slower(
        np.array([[one.utilization] for one in asked]),
        np.array([one.multiprocessors for one in have]),
        np.array([one.kernel_s for one in have]),
    )
    there = memory_mb_of(predictor.device)
    taken = [one.memory_mb for one in asked]
    measured = shipped_profiles(metric=None).pairs.get(sharing, {}).get((asked[0].name, asked[1].name))
    told: dict[str, Any] = {
        "slowdowns": [float(slower[0, 1, 0]), float(slower[1, 0, 0])],
        "spread": [float(off[0, 1, 0]), float(off[1, 0, 0])],
        "by": FINER[sum(not one.counted for one in have)] if finer[0, 1, 0] else PLAIN,
        "device": predictor.device,
        "sharing": sharing,
        **({} if measured is None else {"measured": list(measured)}),
        "jobs": [
            {
                **({"name": one.name} if one.name else {}),
                "utilization": one.utilization,
                "memory_mb": one.memory_mb,
                "multiprocessors": one.hold.multiprocessors,
                "kernel_s": one.hold.kernel_s,
                "from": one.source,
                "multiprocessors_from": one.held_from,
                **({"at": one.taken} if one.taken else {}),
            }
            for one in asked
        ],
        "device_memory_mb": there,
        "fit_together": None if there is None or not all(map(math.isfinite, taken)) else sum(taken) <= there,
    }
    if json:
        print_json(told)
    else:
        _print(asked, told)


def _print(asked: Sequence[_Asked], told: Mapping[str, Any]) -> None:
    names = [legible(Path(one.name).name) for one in asked]
    width = max(map(len, names))
    for at, (one, factor, spread) in enumerate(zip(asked, told["slowdowns"], told["spread"])):
        seen = f"; it was measured to take {told['measured'][at]:.2f}" if "measured" in told else ""
        name = f"{names[at]:<{width}}  " if width else ""
        line = f"{name}{one.utilization:5.1f} %  takes {factor:.2f} ± {spread:.2f} times as long as alone{seen}"
        out.print(line, soft_wrap=True)
    if told["fit_together"] is not None:
        both = " + ".join(f"{one.memory_mb:,.0f}" for one in asked)
        verdict = "both fit in its memory" if told["fit_together"] else "they do not fit in its memory together"
        out.print(f"on {told['device']} {verdict}: {both} of {told['device_memory_mb']:,.0f} MB", soft_wrap=True)
    for name, one in zip(names, asked):
        if name:
            held = f"; multiprocessors {one.held_from}" if told["by"] != PLAIN and one.held_from != one.source else ""
            note(f"{name}: {one.source}{f' from its graph, {one.taken}' if one.taken else ''}{held}")
        if one.unknown:
            note(f"the prediction is uncertain, because these operators are unknown: {legible(listed(one.unknown))}")
    note(f"by {told['by']}")


def _parse(text: str) -> float | str:
    """A utilization; or the name of a file, or of a configuration that was measured."""
    try:
        number = float(text)
    except ValueError:
        known = shipped_profiles().alone
        if _is_file(text) or text in known:
            return text
        offered = near_or_all(text, known) if near_names(text, known) else "`fairlead profile list` shows them"
        expected = f"an existing ONNX file, a measured configuration, or a percentage ({offered})"
        raise InputError(WHO, expected, field="utilization", value=text) from None
    _check("utilization", number)
    return number


def _is_file(text: str) -> bool:
    return Path(text).exists() or text.endswith(".onnx")


@dataclass(frozen=True)
class _Asked:
    """What is known of one of the two alone, and where from; NaN where it is unknown."""

    name: str
    utilization: float
    memory_mb: float
    hold: MultiprocessorUse
    source: str
    taken: str = ""  # of a file: which batch size
    unknown: tuple[str, ...] = ()  # operators
    held_from: str | None = None  # of what it holds


def _asked(one: float | str, batch: int | None, sizes: Mapping[str, int], predictor: Predictor) -> _Asked:
    if isinstance(one, float):
        return _Asked("", one, math.nan, UNKNOWN, GIVEN)
    if not _is_file(one):
        alone, hold = shipped_profiles().alone[one], multiprocessor_use().get(one, UNKNOWN)
        held_from = MEASURED if hold.counted else PREDICTED
        return _Asked(one, alone.utilization, alone.memory_mb, hold, MEASURED, held_from=held_from)
    found, taken = of_file(WHO, one, batch, sizes, predictor)
    hold = MultiprocessorUse(math.nan if found.multiprocessors is None else found.multiprocessors, found.kernel_s)
    strange = tuple(sorted(found.unknown))
    return _Asked(one, found.utilization, found.memory_mb, hold, PREDICTED, taken, strange, PREDICTED)


def _batches(are_files: Sequence[bool], batch: Sequence[int] | None, size: Sequence[str] | None) -> list[int | None]:
    """Of each: one that is said counts for all files."""
    for name, said in (("batch", batch), ("size", size)):
        if said and not any(are_files):
            raise InputError(WHO, "an ONNX file; a configuration has fixed sizes", field=name, value=list(said))
    if batch and len(batch) not in (1, sum(are_files)):
        raise InputError(WHO, "one for all ONNX files, or one for each", field="batch", value=list(batch))
    left = cycle(batch or [None])
    return [next(left) if file else None for file in are_files]


def _with_holds(asked: list[_Asked], given: list[float] | None, kernel_us: list[float] | None) -> list[_Asked]:
    """With what is said of multiprocessors, of both or of the one that is a number. Kernels of which nothing is said are as
    long as the other's."""
    if given is None:
        return asked
    both = len(given) == 2
    default_s = SHORTEST_S if both else next(one.hold.kernel_s for one in asked if one.source != GIVEN)
    seconds = [default_s] * 2 if kernel_us is None else [each / 1e6 for each in kernel_us]
    said = (MultiprocessorUse(*each, counted=True) for each in zip(given, seconds))
    return [replace(one, hold=next(said), held_from=GIVEN) if both or one.source == GIVEN else one for one in asked]


def _check(name: str, value: float) -> None:
    require(0 <= value <= MOST[name], WHO, f"a number from 0 to {MOST[name]:g}", name, value)


def _check_counts(
    predictor: Predictor, sharing: str, held: list[float] | None, kernel_us: list[float] | None, numbers: int
) -> None:
    """Multiprocessors count only if kernels of several jobs run at once, and kernel lengths only with multiprocessors."""
    where = f"--sharing {' or '.join(predictor.at_once) or 'with which kernels of several jobs run at once'}"
    for name, given in (("multiprocessors", held), ("kernel-us", kernel_us)):
        if given is not None and len(given) != 2 and (len(given), numbers) != (1, 1):
            expected = "two values, or one if one job is a utilization"
            raise InputError(WHO, expected, field=name, value=len(given))
    if held is not None and sharing not in predictor.at_once:
        raise InputError(WHO, f"{where}; otherwise it has no effect", field="multiprocessors", value=held)
    if kernel_us is not None and (held is None or len(held) != len(kernel_us)):
        expected = f"--multiprocessors as well, and {where}; otherwise it has no effect"
        raise InputError(WHO, expected, field="kernel-us", value=kernel_us)
