"""`fairlead predict`: what a training will do to an accelerator, from its graph; and where such predictions come from."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from fairlead.cli.output import JsonOption, note, out, print_json
from fairlead.core.errors import InputError, near_or_all
from fairlead.prediction import evaluation, learners, training
from fairlead.prediction.dataset import Dataset, dataset
from fairlead.prediction.features import features_of
from fairlead.prediction.predictor import Predictor, fingerprint, load, trained
from fairlead.prediction.profiles import Profiles, profiles
from fairlead.prediction.training import Pairs
from fairlead.profiling.results import measured, sets

predict_app = typer.Typer(help="Predict what trainings do to an accelerator.", no_args_is_help=True)

WithOption = Annotated[Path | None, typer.Option("--with", help="A predictor from `predict train`; else the one that ships.")]
SetOption = Annotated[str, typer.Option("--set", help="Which measured set to learn from.")]


@predict_app.command()
def model(
    path: Annotated[Path, typer.Argument(help="An ONNX file; nothing of it is run.")],
    batch: Annotated[int | None, typer.Option("--batch", help="Batch size; else that of the file.", min=1, max=10**9)] = None,
    device: Annotated[str, typer.Option("--device", help="Where it will run; refused where nothing was measured.")] = "h200",
    with_: WithOption = None,
    json: JsonOption = False,
) -> None:
    """GPU utilization and memory of a training alone: fairlead predict model resnet50.onnx --batch 64"""
    predictor = _predictor(with_)
    found = predictor.predict(features_of(path, batch), device)
    if json:
        print_json({**asdict(found), "device": predictor.device, "fingerprint": predictor.about["fingerprint"]})
        return
    out.print(f"on {predictor.device}: {found.utilization:.0f} % utilization, {found.memory_mb:,.0f} MB", highlight=False)
    if found.unknown:
        note(f"operators nobody knows, so take it with care: {', '.join(map(_shown, sorted(found.unknown)))}")


@predict_app.command()
def pair(
    utilization: Annotated[list[float], typer.Argument(help="Of each job alone, in percent.")],
    sharing: Annotated[str, typer.Option("--sharing", help="time-slicing or mps.")] = "time-slicing",
    with_: WithOption = None,
    json: JsonOption = False,
) -> None:
    """How much longer each of two jobs takes that share an accelerator: fairlead predict pair 26 36"""
    if len(utilization) != 2:
        raise InputError(
            "predict pair", "two utilizations; more than two were not measured", field="utilization", value=len(utilization)
        )
    for each in utilization:
        if not 0 <= each <= 100:
            raise InputError("predict pair", "a utilization from 0 to 100 percent", field="utilization", value=each)
    predictor = _predictor(with_)
    busy = np.array(utilization)
    slower = predictor.slowdowns(busy, sharing)
    spread = predictor.slowdown[sharing].spread(busy, busy.sum() - busy)
    if json:
        print_json({"slowdowns": slower.tolist(), "spread": spread.tolist(), "device": predictor.device, "sharing": sharing})
        return
    for each, factor, off in zip(utilization, slower, spread):
        out.print(f"{each:5.1f} %  takes {factor:.2f} ± {off:.2f} times as long as alone", highlight=False)


@predict_app.command()
def train(
    to: Annotated[Path, typer.Option("--out", help="Where the predictor is written.")],
    set_: SetOption = "h200",
    json: JsonOption = False,
) -> None:
    """Learn from a measured set and its pairs; the learner that errs least on what it has not seen is kept."""
    data, known, about = _data(set_)
    busy = {name: one.utilization for name, one in known.alone.items()}
    made = training.train(data, busy, known.pairs, learners.there(), about)
    made.save(to)
    if json:
        print_json({"out": str(to), "learner": made.utilization.learner, **made.about})
    else:
        note(f"{to}: {made.utilization.learner} on {len(data)} configurations, slowdown by {', '.join(made.slowdown)}")


@predict_app.command()
def evaluate(set_: SetOption = "h200", json: JsonOption = False) -> None:
    """How far off predictions are on what they have not seen: families, rows and pairs left out."""
    data, known, _ = _data(set_)
    told: dict[str, Any] = {"configurations": len(data), "utilization": {}, "slowdown": {}}
    believed: dict[str, float] = {}
    best = np.inf
    for name, learner in learners.there().items():
        left, mixed = evaluation.by_family(data, learner), evaluation.at_random(data, learner)
        told["utilization"][name] = {"by_family": left.rmsle, "at_random": mixed.rmsle, "families": left.of_families()}
        if left.rmsle < best:
            best, believed = left.rmsle, dict(zip(data.names, left.predicted.tolist()))
    off = evaluation.of_memory(data)
    told["memory"] = {
        name: {"enough": off.enough(shares), "median_error": off.median_error(shares)}
        for name, shares in (("with_overhead", off.with_overhead), ("without_overhead", off.without_overhead))
    }
    busy = {name: one.utilization for name, one in known.alone.items()}
    for mode, pairs in known.pairs.items():
        there = {each: both for each, both in pairs.items() if all(name in believed for name in each)}
        told["slowdown"][mode] = {
            "measured_utilization": _scores(pairs, busy, busy),
            "predicted_utilization": _scores(there, busy, believed),
        }
    if json:
        print_json(told)
    else:
        _print(told)


@predict_app.command()
def show(with_: WithOption = None, json: JsonOption = False) -> None:
    """A predictor: what it was learned from, which features count, and its formulas."""
    predictor = _predictor(with_)
    important = dict(list(predictor.utilization.importance().items())[:10])
    told = {
        "about": dict(predictor.about),
        "learner": predictor.utilization.learner,
        "important": important,
        "memory": predictor.memory.kept(),
        "slowdown": {mode: one.kept() for mode, one in predictor.slowdown.items()},
    }
    if json:
        print_json(told)
        return
    for name, value in predictor.about.items():
        out.print(f"{name:<18} {value}", highlight=False, markup=False)
    out.print(f"utilization        {predictor.utilization.learner}; by importance:", highlight=False)
    for name, share in important.items():
        out.print(f"    {name:<20} {share:6.1%}", highlight=False)
    for name, coefficients in (("memory", told["memory"]), *told["slowdown"].items()):  # type: ignore[attr-defined]
        out.print(f"{name:<18} {coefficients}", highlight=False, markup=False)


def _scores(pairs: Pairs, busy: dict[str, float], believed: dict[str, float]) -> dict[str, float]:
    found = evaluation.of_slowdown(pairs, busy, believed)
    return {name: getattr(found, name) for name in ("piecewise", "of_sum", "linear", "constant", "spread")}


def _print(told: dict[str, Any]) -> None:
    out.print(f"{'utilization, RMSLE':<22}{'by family':>12}{'at random':>12}", highlight=False)
    for name, errors in told["utilization"].items():
        out.print(f"{name:<22}{errors['by_family']:12.3f}{errors['at_random']:12.3f}", highlight=False)
    for name, errors in told["memory"].items():
        line = f"memory, {name.replace('_', ' ')}: {errors['enough']:.1%} get at least 0.9 of what they take"
        out.print(f"{line}, median error {errors['median_error']:.1%}", highlight=False)
    out.print(f"{'slowdown, R²':<36}{'piecewise':>10}{'of sum':>10}{'linear':>10}{'constant':>10}", highlight=False)
    for mode, errors in told["slowdown"].items():
        for name, scores in errors.items():
            numbers = "".join(f"{scores[each]:10.3f}" for each in ("piecewise", "of_sum", "linear", "constant"))
            out.print(f"{mode + ', ' + name.replace('_', ' '):<36}{numbers}", highlight=False)


def _shown(name: str) -> str:
    """Of somebody else's file, and so without anything that a terminal would act on."""
    return "".join(each if each.isprintable() else "?" for each in name[:60])


def _predictor(path: Path | None) -> Predictor:
    return load(path) if path else trained()


def _data(name: str) -> tuple[Dataset, Profiles, dict[str, str]]:
    offered = [each for each in sets() if f"{each}_features" in sets()]
    if name not in offered:
        raise InputError(
            "predict", f"a set of single measurements, with features; {near_or_all(name, offered)}", field="set", value=name
        )
    known = profiles(name)
    about, rows = measured(name)
    _, features = measured(f"{name}_features")
    pairs = [measured(each)[1] for each in sets() if each.startswith(f"{name}_pairs")]
    from_ = {
        "device": about["device"],
        "driver": about["driver"],
        "framework": f"torch {about['torch']}",
        "configurations": str(len(rows)),
        "pairs": ", ".join(f"{mode} {len({frozenset(pair) for pair in each})}" for mode, each in known.pairs.items()),
        "fingerprint": fingerprint(rows, features, *pairs),
    }
    return dataset(rows, features), known, from_
